"""What one cluster's Slurm said last: its nodes and job states, kept up by polling.

Slurm has no watch. A poll that finds nothing new costs a millisecond and no bytes (304); one that does costs a whole
list (2.7 kB and 0.1 ms a node), so the pace adapts: at most a fifth of the time is spent asking, and of a server that
cannot say "not modified" a twentieth. An error never empties the cache; it makes it old, which `fresh_within` tells.
For a decision that cannot be undone use `read_now`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable, Iterable, Mapping

from slurm_operator.errors import Unknown
from slurm_operator.slurm.client import SlurmClient
from slurm_operator.slurm.errors import SlurmException, SlurmNotFound
from slurm_operator.slurm.jobs import JobBook
from slurm_operator.slurm.types import JobState, NodeInfo, NodesSnapshot, NotModified

INTERVAL_SECONDS = 1.5
SHARE = 4  # a poll that took t is followed by a pause of at least 4 t, also when somebody pokes
POKED_SECONDS = 0.1  # least time between two polls
WHOLE_INTERVAL_SECONDS = 5.0  # the same for servers whose every answer is the whole list
WHOLE_SHARE = 20
SLOWEST_SECONDS = 60.0
RETRY_FIRST_SECONDS = 0.5
RETRY_MAX_SECONDS = 2.0  # a refused connection costs nothing, and the end of an outage is to be noticed at once
WHOLE_SECONDS = 120.0  # the list is read whole at least so often: "not modified" rests on slurmctld's clock
SINGLE_READS = 64  # above it one list is cheaper than so many single reads

Handler = Callable[[frozenset[str]], None]
_log = logging.getLogger("slurm")


class SlurmCache:
    """Read `nodes` and `jobs` freely (do not change them); they are swapped whole, never emptied by an error."""

    def __init__(self, client: SlurmClient, name: str = "", interval: float = INTERVAL_SECONDS) -> None:
        self.nodes: Mapping[str, NodeInfo] = {}
        self.jobs: Mapping[str, JobState] = {}
        self.book = JobBook(client)
        """Running jobs by node."""
        self.problem = ""
        """Why the last poll failed; "" when it did not."""
        self._client = client
        self._name = name
        self._interval = interval
        self._last_update = 0
        self._read_at = -math.inf
        self._whole_at = -math.inf
        self._jobs_at = -math.inf
        self._failures = 0
        self._handlers: list[Handler] = []
        self._lock = asyncio.Lock()
        self._wake = asyncio.Event()

    @property
    def age(self) -> float:
        """Seconds since the beginning of the last read that succeeded; infinite before the first."""
        return time.monotonic() - self._read_at

    @property
    def reachable(self) -> bool:
        """True if the last poll succeeded."""
        return not self.problem and self._read_at > 0

    def node(self, name: str) -> NodeInfo | None:
        """The node as of the last poll; None: Slurm had no such node, or nothing was read yet (ask `fresh_within`)."""
        return self.nodes.get(name)

    def fresh_within(self, seconds: float) -> bool:
        """True if the cache shows a state of at most `seconds` ago."""
        return self.age <= seconds

    def require_fresh(self, seconds: float) -> None:
        """Raises Unknown if the cache is older than `seconds`, or was never filled."""
        if not self.fresh_within(seconds):
            age = "never" if math.isinf(self.age) else f"{self.age:.0f} s ago"
            raise Unknown(f"Slurm's nodes were last read {age}: {self.problem or 'the first poll is under way'}")

    def add_handler(self, handler: Handler) -> None:
        """`handler(names)` after a poll that found these nodes new, changed or gone.

        Also called, with no names, when Slurm becomes unreachable, and when it answers first or again, whatever changed
        meanwhile. It must return at once.
        """
        self._handlers.append(handler)

    def poke(self) -> None:
        """Poll soon: something changed that we know of. Many of them mean one poll, after the usual pause."""
        self._wake.set()

    async def refresh(self) -> None:
        """Returns when the cache shows a state from after this call. Raises a SlurmException if it cannot be read."""
        asked = time.monotonic()
        async with self._lock:
            if self._read_at < asked:
                await self._poll()

    async def read_now(self, names: Iterable[str]) -> dict[str, NodeInfo | None]:
        """What slurmctld says of these nodes at this moment; None: it has no such node. Any failure raises Unknown."""
        wanted = list(dict.fromkeys(names))
        # That a node does not exist is only certain from the whole list (SlurmClient.node), so take that at once.
        whole = len(wanted) > SINGLE_READS or any(name not in self.nodes for name in wanted)
        try:
            if whole:
                nodes = await self._whole_list()
                return {name: nodes.get(name) for name in wanted}
            async with asyncio.TaskGroup() as group:
                tasks = {name: group.create_task(self._read_one(name)) for name in wanted}
        except ExceptionGroup as group_error:
            error = group_error.exceptions[0]
            raise (error if isinstance(error, Unknown) else Unknown(str(error))) from error
        except SlurmException as error:
            raise (error if isinstance(error, Unknown) else Unknown(str(error))) from error
        return {name: task.result() for name, task in tasks.items()}

    async def _whole_list(self) -> Mapping[str, NodeInfo]:
        """Slurm's nodes as of after this call, for the cache too; who asks at the same time gets the same answer."""
        asked = time.monotonic()
        async with self._lock:
            if self._whole_at < asked:
                began = time.monotonic()
                snapshot = await self._client.nodes()
                assert not isinstance(snapshot, NotModified), "nothing was asked to compare with"
                if changed := self._take(snapshot, began):
                    self._tell(changed)
            return self.nodes

    async def _read_one(self, name: str) -> NodeInfo | None:
        try:
            return await self._client.node(name)
        except SlurmNotFound:
            return None

    async def run(self) -> None:
        """Poll until cancelled."""
        took = 0.0
        while True:
            self._wake.clear()
            began = time.monotonic()
            try:
                async with self._lock:
                    await self._poll()
            except SlurmException:  # told by _poll
                soonest = delay = min(RETRY_FIRST_SECONDS * 2.0 ** min(self._failures - 1, 10), RETRY_MAX_SECONDS)
            else:
                cheap = self._client.incremental
                interval = self._interval if cheap else max(self._interval, WHOLE_INTERVAL_SECONDS)
                before, took = took, time.monotonic() - began
                # One slow answer is no heavy load: slurmrestd holds it until a slurmctld that restarts is back.
                soonest = (SHARE if cheap else WHOLE_SHARE) * min(before, took)
                soonest = min(max(soonest, POKED_SECONDS), SLOWEST_SECONDS)
                delay = max(interval, soonest)
            delay *= random.uniform(0.9, 1.1)  # noqa: S311
            await asyncio.sleep(min(soonest, delay))
            try:
                async with asyncio.timeout(max(0.0, delay - soonest)):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def _poll(self) -> None:
        began = time.monotonic()
        try:
            if self.problem:
                await self._client.ping()  # answers at once; the others let a missing slurmctld hold them for 10 s
            whole = began - self._whole_at > WHOLE_SECONDS
            snapshot = await self._client.nodes(None if whole else self._last_update or None)
            # A job that begins or ends changes its nodes: without that there is nothing new to read.
            same = isinstance(snapshot, NotModified) and self._jobs_at >= self._whole_at
            jobs = None if same else await self._client.jobs_state()
        except SlurmException as error:
            self._failures += 1
            went = not self.problem
            if str(error) != self.problem:
                _log.warning("cannot read %s: %s", self._name or self._client.base_url, error)
            self.problem = str(error)
            if went:
                self._tell(frozenset())
            raise
        came_back = bool(self.problem) or math.isinf(self._read_at)
        if self.problem:
            _log.info("%s answers again", self._name or self._client.base_url)
        self.problem = ""
        self._failures = 0
        self._read_at = began
        changed: frozenset[str] = frozenset()
        if not isinstance(snapshot, NotModified):
            changed = self._take(snapshot, began)
        if jobs is not None:
            self.jobs = {job.id: job for job in jobs}
            self._jobs_at = began
        try:
            changed |= await self.book.update(self.jobs)
        except Exception:  # a mistake in the details of jobs must not stop the polling
            _log.exception("cannot read the jobs of %s", self._name or self._client.base_url)
        if changed or came_back:  # the return matters to everybody, also where no node changed meanwhile
            self._tell(frozenset() if came_back else changed)

    def _take(self, snapshot: NodesSnapshot, began: float) -> frozenset[str]:
        """Swap the list in; returns the names of the nodes that are new, changed or gone."""
        old, new = self.nodes, snapshot.nodes
        self.nodes = new
        self._last_update = snapshot.last_update
        self._whole_at = began
        return frozenset(name for name in {*old, *new} if old.get(name) != new.get(name))

    def _tell(self, changed: frozenset[str]) -> None:
        for handler in self._handlers:
            try:
                handler(changed)
            except Exception:  # a handler's mistake must not stop the polling
                _log.exception("a handler of %s failed", self._name or self._client.base_url)
