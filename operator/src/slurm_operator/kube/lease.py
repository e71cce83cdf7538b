"""Leader election on a Lease: at most one process acts at a time.

The holder renews every 2 s. It stops acting when 10 s have passed since it *began* its last renewal that succeeded;
others take over 15 s after they *saw* the last one. Both count on their own clock of elapsed time, so clocks that
differ or jump cannot make two leaders. `check` is asked before every write (KubeClient.fence): a process that was
suspended finds out before it acts, not after.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime

from slurm_operator.kube.client import KubeClient
from slurm_operator.kube.errors import AlreadyExists, Conflict, KubeError, NotLeader
from slurm_operator.kube.resources import LEASES, Object

LEASE_SECONDS = 15.0
RENEW_DEADLINE_SECONDS = 10.0
RETRY_SECONDS = 2.0

_log = logging.getLogger("lease")


def elapsed() -> float:
    """Seconds on a clock that never jumps and also runs while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LeaderElector:
    """One candidate. `identity` must differ between processes (the pod's name and something random)."""

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        name: str,
        identity: str,
        *,
        lease_seconds: float = LEASE_SECONDS,
        deadline_seconds: float = RENEW_DEADLINE_SECONDS,
        retry_seconds: float = RETRY_SECONDS,
        clock: Callable[[], float] = elapsed,
    ) -> None:
        """`client` should have no fence: this is what the fence of the others rests on."""
        if not lease_seconds > deadline_seconds > 2 * retry_seconds:
            raise ValueError("lease_seconds > deadline_seconds > 2 * retry_seconds is needed")
        self.identity = identity
        self._client = client
        self._namespace = namespace
        self._name = name
        self._lease_seconds = lease_seconds
        self._deadline = deadline_seconds
        self._retry = retry_seconds
        self._clock = clock
        self._held_until = float("-inf")  # we may act before this moment
        self._seen: tuple[str, str] = ("", "")  # holder and renewTime of somebody else's lease
        self._seen_at = float("-inf")
        self._lease: Object | None = None
        self._problem = ""

    @property
    def is_leader(self) -> bool:
        """True while this process may act."""
        return self._clock() < self._held_until

    def check(self) -> None:
        """Raises NotLeader when this process may not act (any more)."""
        if not self.is_leader:
            raise NotLeader(0, "NotLeader", "the lease is not ours", verb="lead", target=f"{LEASES} {self._name}")

    async def acquire(self) -> None:
        """Returns when this process is the leader. Errors are logged and tried again."""
        while True:
            if await self._try():
                break
            await asyncio.sleep(self._retry * random.uniform(1.0, 1.2))  # noqa: S311
        _log.info("leading as %s", self.identity)

    async def hold(self) -> str:
        """Renew until leadership is lost; returns why. The caller must then end the process."""
        while True:
            await asyncio.sleep(self._retry)
            if not await self._try() and self._seen[0] not in ("", self.identity):
                self._held_until = float("-inf")
                return f"{self._seen[0]} holds the lease"
            if not self.is_leader:
                why = self._problem or "this process stood still"
                return f"the lease was not renewed for {self._deadline:.0f} s: {why}"

    async def release(self) -> None:
        """Let go, so that another replica need not wait. Only if it is still ours; errors do not matter."""
        held, self._held_until = self.is_leader, float("-inf")
        if not held or self._lease is None:
            return
        spec = self._lease["spec"] | {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": _now()}
        try:
            async with asyncio.timeout(self._retry):
                await self._client.replace({**self._lease, "spec": spec})
            _log.info("released the lease")
        except (KubeError, TimeoutError) as error:
            _log.info("could not release the lease, it expires by itself: %s", error)

    async def _try(self) -> bool:
        """One attempt to take or renew; True if it succeeded. It never takes longer than half of the deadline."""
        began = self._clock()
        try:
            async with asyncio.timeout(self._deadline / 2):
                taken = await self._take()
        except Conflict:
            self._lease = None  # somebody else wrote: read again before the next attempt
            return False
        except (KubeError, TimeoutError) as error:
            problem = str(error) or "the API server does not answer"
            if problem != self._problem:
                _log.warning("leader election: %s", problem)
            self._problem = problem
            self._lease = None
            return False
        self._problem = ""
        if taken:
            self._held_until = began + self._deadline
            self._seen = ("", "")
        return taken

    async def _take(self) -> bool:
        lease = self._lease or await self._client.get(LEASES, self._namespace, self._name)
        if lease is None:
            try:
                self._lease = await self._client.create(self._wish(None))
            except AlreadyExists:
                return False
            return True
        spec = lease.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        if holder and holder != self.identity and not self._expired(holder, spec):
            return False
        self._lease = await self._client.replace(self._wish(lease))
        return True

    def _expired(self, holder: str, spec: Object) -> bool:
        """True if that holder's lease has not changed for its whole duration while we were watching."""
        seen = (holder, str(spec.get("renewTime", "")))
        if seen != self._seen:
            if holder != self._seen[0]:
                _log.info("%s is leading", holder)
            self._seen, self._seen_at = seen, self._clock()
        duration = float(spec.get("leaseDurationSeconds") or self._lease_seconds)
        return self._clock() - self._seen_at >= duration

    def _wish(self, lease: Object | None) -> Object:
        now = _now()
        spec: Object = dict((lease or {}).get("spec") or {})
        if spec.get("holderIdentity") != self.identity:
            spec["acquireTime"] = now
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + 1 if lease else 0
        spec |= {"holderIdentity": self.identity, "leaseDurationSeconds": round(self._lease_seconds), "renewTime": now}
        base: Object = lease or {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": {"namespace": self._namespace, "name": self._name},
        }
        return {**base, "spec": spec}


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
