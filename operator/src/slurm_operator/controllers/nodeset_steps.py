"""The deeds of a NodeSet's plan. Before anything that cannot be undone, Slurm is asked once more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from slurm_operator.api.names import LABEL_POD_PROTECT
from slurm_operator.desired.nodeset_status import CONDITION_PREFIX, pod_conditions, protected
from slurm_operator.desired.scale import Plan, Seen, Worker
from slurm_operator.desired.worker import Seat
from slurm_operator.errors import Unknown
from slurm_operator.kube.errors import AlreadyExists, Conflict, NotFound
from slurm_operator.kube.objects import is_deleting, labels_of, set_conditions
from slurm_operator.kube.resources import Key, Object
from slurm_operator.slurm.errors import SlurmBusy, SlurmNotFound
from slurm_operator.slurm.registry import SlurmCluster
from slurm_operator.slurm.states import is_busy, is_drained, ours
from slurm_operator.slurm.types import NodeInfo

if TYPE_CHECKING:
    from slurm_operator.controllers.nodeset import NodeSetController

AT_ONCE = 16
"""Calls under way at a time."""


class Steps:
    """One pass over one NodeSet: `pods` by name as planned from, `slurm` None when there is no way to ask."""

    def __init__(
        self,
        controller: NodeSetController,
        key: Key,
        nodeset: Object,
        pods: Mapping[str, Object],
        slurm: SlurmCluster | None,
    ) -> None:
        self._do = controller
        self._key = key
        self._nodeset = nodeset
        self._pods = pods
        self._slurm = slurm

    async def drains(self, plan: Plan) -> None:
        """Undo what has no cause any more, then drain. An administrator may have come first: look before each."""
        if not plan.undrain and not plan.drain:
            return
        slurm = self._asked()
        now = await slurm.cache.read_now([*plan.undrain, *plan.drain])
        back = [name for name in plan.undrain if _draining_by_us(now[name])]
        await slurm.client.update_nodes(back, state="UNDRAIN")
        by_reason: dict[str, list[str]] = {}
        for name, reason in plan.drain.items():
            node = now[name]
            if node is not None and ("DRAIN" not in node.states or (ours(node.reason) and node.reason != reason)):
                by_reason.setdefault(reason, []).append(name)
        await gather_all(
            slurm.client.update_nodes(names, state="DRAIN", reason=reason) for reason, names in by_reason.items()
        )
        for reason, names in by_reason.items():
            self._event("NodeCordon", f"Slurm stops using {', '.join(names)}: {reason}")
        if back or by_reason:
            slurm.cache.poke()

    async def removals(self, plan: Plan) -> None:
        """Delete pods in which nothing can run, as Slurm says at this moment."""
        placed = [worker for worker in plan.delete if worker.placed and worker.phase != "Ended"]
        certain = [worker for worker in plan.delete if worker not in placed]
        if placed or plan.remake:
            now = await self._asked().cache.read_now([worker.slurm_name for worker in (*placed, *plan.remake)])
            certain += [worker for worker in placed if _removable(now[worker.slurm_name])]
            certain += [worker for worker in plan.remake if now[worker.slurm_name] is None]
        await gather_all(self._delete(worker) for worker in certain)

    async def _delete(self, worker: Worker) -> None:
        pod = self._pods[worker.name]
        try:
            # A pod that was placed on a machine since it was read, say, is not the pod that was decided on.
            await self._do.delete(self._key, pod, unchanged=not worker.placed)
        except (Conflict, NotFound):
            self._do.enqueue(self._key, 0.5)

    async def creations(self, seats: Sequence[Seat], make: Callable[[Seat], tuple[Object, Sequence[Object]]]) -> None:
        """New pods in growing batches, so that a refusal (a quota, say) costs one request and not hundreds.

        `make` gives the pod and its claims, which come first.
        """
        left = list(seats)
        size = 1
        while left:
            batch, left = left[:size], left[size:]
            await gather_all(self._create(*make(seat)) for seat in batch)
            size = min(2 * size, AT_ONCE)

    async def _create(self, pod: Object, claims: Sequence[Object]) -> None:
        for claim in claims:
            found = self._do.claims.get(self._key.namespace, claim["metadata"]["name"])
            if found is not None and is_deleting(found):
                return  # its end is an event
            if found is None:
                with suppress(AlreadyExists):  # somebody else's, which the worker then uses
                    await self._do.create(self._key, claim)
        try:
            await self._do.create(self._key, pod)
        except AlreadyExists:
            # Ours from before that the cache does not show yet, or somebody else's: the next pass sees which.
            self._do.enqueue(self._key, 1.0)

    async def records(self, plan: Plan) -> None:
        """Slurm's records of workers that are gone count against MaxNodeCount and show up in sinfo: delete them."""
        if not plan.forget:
            return
        slurm = self._asked()
        now = await slurm.cache.read_now(plan.forget)
        names = [name for name in plan.forget if _forgettable(now[name], lost=name in plan.lost)]
        await gather_all(self._forget(slurm, name) for name in names)
        if names:
            slurm.cache.poke()

    async def _forget(self, slurm: SlurmCluster, name: str) -> None:
        try:
            await slurm.client.delete_node(name)
        except (SlurmBusy, SlurmNotFound):
            return
        self._event("SlurmNodePruned", f"Slurm forgot node {name}, whose worker is gone")

    async def mirror(self, seen: Seen, *, protect: bool) -> None:
        """Slurm's view of each worker on its pod: conditions, and the label that the disruption budget goes by."""
        if seen.slurm is None:
            return
        changes: list[Awaitable[object]] = []
        for worker in seen.workers:
            node, pod = seen.slurm.get(worker.slurm_name), self._pods[worker.name]
            if is_deleting(pod):
                continue
            label = "true" if node is not None and protect and protected(node) else None
            if labels_of(pod).get(LABEL_POD_PROTECT) != label:
                changes.append(self._label(pod, label))
            if node is not None:
                changes += self._conditions(pod, node)
        await gather_all(changes)

    async def _label(self, pod: Object, value: str | None) -> None:
        try:
            await self._do.patch(
                self._key, pod, {"metadata": {"uid": pod["metadata"]["uid"], "labels": {LABEL_POD_PROTECT: value}}}
            )
        except (Conflict, NotFound):
            return

    def _conditions(self, pod: Object, node: NodeInfo) -> list[Awaitable[object]]:
        old = (pod.get("status") or {}).get("conditions") or ()
        before = [entry for entry in old if entry["type"].startswith(CONDITION_PREFIX)]
        wanted = set_conditions(before, pod_conditions(node))
        if _facts(before) == _facts(wanted):
            return []
        return [self._apply_conditions(pod, wanted)]

    async def _apply_conditions(self, pod: Object, wanted: list[Object]) -> None:
        meta = {name: pod["metadata"][name] for name in ("name", "namespace", "uid")}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "status": {"conditions": wanted}}
        try:
            await self._do.apply_status(self._key, body)
        except (Conflict, NotFound):
            return

    def _asked(self) -> SlurmCluster:
        if self._slurm is None:
            raise Unknown("there is no way to ask Slurm")
        return self._slurm

    def _event(self, reason: str, note: str) -> None:
        self._do.events.event(self._nodeset, "Normal", reason, note)


def _draining_by_us(node: NodeInfo | None) -> bool:
    return node is not None and "DRAIN" in node.states and ours(node.reason)


def _removable(node: NodeInfo | None) -> bool:
    return node is None or is_drained(node)


def _forgettable(node: NodeInfo | None, *, lost: bool) -> bool:
    if node is None or is_busy(node):
        return False
    return lost or "DRAIN" not in node.states or ours(node.reason)


def _facts(entries: Iterable[Object]) -> set[tuple[str, str, str, str]]:
    return {(entry["type"], entry["status"], entry.get("reason", ""), entry.get("message", "")) for entry in entries}


async def gather_all(calls: Iterable[Awaitable[object]]) -> None:
    """All of them, some at a time; the first failure is raised when every call has ended."""
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(call: Awaitable[object]) -> None:
        async with limit:
            await call

    results = await asyncio.gather(*(one(call) for call in calls), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
