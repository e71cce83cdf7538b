"""What belongs to a NodeSet besides its pods: claims, revision history, and what Slurm is told about its machines."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Collection, Mapping
from typing import TYPE_CHECKING

from slurm_operator.api.nodeset import NodeSetSpec
from slurm_operator.controllers.nodeset_drains import gather_all
from slurm_operator.desired.claims import owners, unused
from slurm_operator.desired.podinfo import Facts, Shape, down_for_nothing
from slurm_operator.desired.revisions import plan_history
from slurm_operator.kube.errors import AlreadyExists, Conflict, NotFound
from slurm_operator.kube.objects import is_deleting, uid_of
from slurm_operator.kube.resources import Key, Object
from slurm_operator.slurm.errors import SlurmError, SlurmNotFound
from slurm_operator.slurm.registry import SlurmCluster
from slurm_operator.slurm.types import NodeInfo, NodeUpdate

if TYPE_CHECKING:
    from slurm_operator.controllers.nodeset import NodeSetController

FIRST_WAIT, LONGEST_WAIT = 1.0, 900.0
"""Seconds that an ended worker waits for its successor: doubled with each that ends like it."""


class Retries:
    """How long ended workers wait before they are replaced. Held in memory: a new leader begins at the first step."""

    def __init__(self) -> None:
        self._ended: dict[tuple[str, str], tuple[str, int, float]] = {}  # (NodeSet, pod) -> (uid, how many, until)

    def wait(self, nodeset: str, pod: str, uid: str, now: float | None = None) -> float:
        """Seconds left for the pod of that uid, which has ended."""
        now = time.monotonic() if now is None else now
        last, count, until = self._ended.get((nodeset, pod), ("", 0, 0.0))
        if last != uid:
            self._ended = {key: value for key, value in self._ended.items() if now - value[2] < 2 * LONGEST_WAIT}
            count = count + 1 if now - until < 2 * LONGEST_WAIT else 1
            until = now + min(FIRST_WAIT * 2.0 ** min(count - 1, 16), LONGEST_WAIT)
            self._ended[nodeset, pod] = (uid, count, until)
        return max(0.0, until - now)


class Belongings:
    """One pass over one NodeSet."""

    def __init__(self, controller: NodeSetController, key: Key, nodeset: Object, spec: NodeSetSpec) -> None:
        self._do = controller
        self._key = key
        self._nodeset = nodeset
        self._spec = spec

    async def history(self, current: str, used: Collection[str]) -> None:
        """Keep the revision history."""
        present = self._do.revisions.by_index("by_owner", uid_of(self._nodeset))
        plan = plan_history(self._nodeset, self._spec, current, present, used)
        try:
            if plan.create is not None:
                await self._do.create(self._key, plan.create)
            if plan.renumber is not None:
                await self._do.patch(self._key, plan.renumber[0], {"revision": plan.renumber[1]})
            for old in plan.delete:
                await self._do.delete(self._key, old)
        except (AlreadyExists, Conflict, NotFound):
            self._do.enqueue(self._key, 1.0)

    async def claims(self, suffixes: Collection[str] | None) -> None:
        """Owner references as whenDeleted asks for; claims without a worker go as whenScaled does.

        `suffixes` are those of all workers there are and are to be; None: not all of them are known now.
        """
        present = [one for one in self._do.claims_of(self._nodeset) if not is_deleting(one)]
        doomed = unused(present, self._key.name, self._spec, suffixes) if suffixes is not None else []
        calls: list[Awaitable[object]] = [self._delete_claim(claim) for claim in doomed]
        for claim in present:
            have = claim["metadata"].get("ownerReferences") or []
            wanted = owners(have, self._nodeset, self._spec)
            if wanted != have and claim not in doomed:
                calls.append(self._own(claim, wanted))
        await gather_all(calls)

    async def _delete_claim(self, claim: Object) -> None:
        try:
            await self._do.delete(self._key, claim, unchanged=True)
        except Conflict:
            self._do.enqueue(self._key, 1.0)

    async def _own(self, claim: Object, wanted: list[Object]) -> None:
        meta = {"uid": claim["metadata"]["uid"], "ownerReferences": wanted or None}
        try:
            await self._do.patch(self._key, claim, {"metadata": meta})
        except (Conflict, NotFound):
            self._do.enqueue(self._key, 1.0)

    async def shape(self, slurm: SlurmCluster, known: Mapping[str, NodeInfo], facts: Facts) -> list[str]:
        """Write topology and features, the same ones at once; returns what Slurm refuses.

        A wish that Slurm refused, or that it shows in other words than it was given in, is not written again while both
        stay the same: an idle cluster is left alone.
        """
        tried = self._do.tried.setdefault(uid_of(self._nodeset), {})
        for name in [name for name in tried if name not in facts.shape]:
            del tried[name]
        groups: dict[Shape, list[str]] = {}
        for name, shape in facts.shape.items():
            state = (shape, known[name].topology, known[name].features)
            if tried.get(name, ("", None))[1] != state:
                groups.setdefault(shape, []).append(name)
                tried[name] = ("", state)
        try:
            await gather_all(self._shape(slurm, shape, names, tried) for shape, names in groups.items())
        except Exception:
            tried.clear()  # what was not written is to be tried again
            raise
        if groups:
            slurm.cache.poke()
        return sorted({refused for refused, _ in tried.values() if refused})

    async def _shape(
        self, slurm: SlurmCluster, shape: Shape, names: list[str], tried: dict[str, tuple[str, object]]
    ) -> None:
        changes: tuple[NodeUpdate, NodeUpdate] = (
            {"topology": shape.topology},
            {"features": shape.features, "active_features": shape.active},
        )
        for change in changes:
            if not any(value is not None for value in change.values()):
                continue
            try:
                await slurm.client.update_nodes(names, **change)
            except SlurmNotFound:  # one is gone; the others may have changed or not
                for name in names:
                    tried.pop(name, None)
                return
            except SlurmError as error:
                what, value = next(iter(change.items()))
                refused = f"Slurm refuses {what} {value!r} of {', '.join(names)}: {error.description}"
                for name in names:
                    tried[name] = (refused, tried[name][1])

    async def comments(self, slurm: SlurmCluster, facts: Facts) -> None:
        """Write which pod and machine a Slurm node is; one that is DOWN for its former machine's sake works again."""
        await gather_all(self._comment(slurm, name, comment) for name, comment in facts.comments.items())
        if facts.revive:
            # IDLE takes a drain away, too: one that came since the last look must not be lost.
            now = await slurm.cache.read_now(facts.revive)
            revive = [name for name, node in now.items() if node is not None and down_for_nothing(node)]
            await slurm.client.update_nodes(revive, state="IDLE")
        if facts.comments:
            slurm.cache.poke()

    async def _comment(self, slurm: SlurmCluster, name: str, comment: str) -> None:
        try:
            await slurm.client.update_node(name, comment=comment)
        except SlurmNotFound:
            return
