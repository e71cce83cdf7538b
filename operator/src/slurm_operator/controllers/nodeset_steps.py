"""The deeds of a NodeSet's plan. Before anything that cannot be undone, Slurm is asked once more."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from slurm_operator.controllers.nodeset_drains import AT_ONCE, DrainSteps, gather_all
from slurm_operator.desired.drain import is_ghost, may_run_unseen
from slurm_operator.desired.scale import BURST, Plan, Worker
from slurm_operator.desired.worker import Seat
from slurm_operator.kube.errors import AlreadyExists
from slurm_operator.kube.objects import is_deleting
from slurm_operator.kube.resources import Object
from slurm_operator.slurm.errors import SlurmBusy, SlurmNotFound
from slurm_operator.slurm.registry import SlurmCluster
from slurm_operator.slurm.states import is_busy, is_drained, ours
from slurm_operator.slurm.types import NodeInfo

Check = Callable[[Worker, NodeInfo | None], bool]
TRUE_SECONDS = 1.0
"""An answer of Slurm is good for deletions that begin within so long."""


class Steps(DrainSteps):
    """All the deeds of one pass."""

    async def removals(self, plan: Plan) -> None:
        """Delete pods in which nothing can run, as Slurm says at this moment.

        Those drained a moment ago are among them: once the drain is in effect, what Slurm says then is what counts.
        Where deleting takes its time Slurm is asked again: somebody may have resumed a node meanwhile.
        """
        await gather_all(self._delete(worker) for worker in plan.delete if not worker.placed or worker.phase == "Ended")
        left: list[tuple[Worker, Check]] = [
            (worker, _removable) for worker in plan.delete if worker.placed and worker.phase != "Ended"
        ]
        begun = [worker for worker in plan.begun if worker.slurm_name in self._drained]
        left += [(worker, _drained) for worker in begun[: BURST - len(plan.delete)]]
        left += [(worker, _lost) for worker in plan.remake]
        now: Mapping[str, NodeInfo | None] = {}
        asked = -math.inf
        for start in range(0, len(left), AT_ONCE):
            if time.monotonic() - asked > TRUE_SECONDS:
                asked = time.monotonic()
                now = await self._asked().cache.read_now([worker.slurm_name for worker, _ in left[start:]])
            some = left[start : start + AT_ONCE]
            sure = [worker for worker, check in some if check(worker, now[worker.slurm_name])]
            # Also a request that Kubernetes asks to send again later is not sent on an answer that is old by then.
            await gather_all(self._delete(worker, asked + TRUE_SECONDS) for worker in sure)

    async def creations(self, seats: Sequence[Seat], make: Callable[[Seat], tuple[Object, Sequence[Object]]]) -> None:
        """New pods in growing batches, so that a refusal (a quota, say) costs few requests and not hundreds.

        `make` gives the pod and its claims, which come first.
        """
        left = list(seats)
        size = 1
        while left:
            batch, left = left[:size], left[size:]
            await gather_all(self._create(*make(seat)) for seat in batch)
            # Once as many as fit went well, nothing waits for the slowest of a batch any more.
            size = 2 * size if size < AT_ONCE else len(left)

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


def _removable(worker: Worker, node: NodeInfo | None) -> bool:
    return not may_run_unseen(worker, time.time()) if node is None else is_drained(node)


def _drained(worker: Worker, node: NodeInfo | None) -> bool:
    return node is not None and is_drained(node)


def _lost(worker: Worker, node: NodeInfo | None) -> bool:
    return not may_run_unseen(worker, time.time()) if node is None else is_ghost(node, time.time())


def _forgettable(node: NodeInfo | None, *, lost: bool) -> bool:
    if node is None or is_busy(node):
        return False
    return lost or "DRAIN" not in node.states or ours(node.reason)
