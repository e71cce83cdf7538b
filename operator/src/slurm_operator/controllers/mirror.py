"""Shows Slurm's view of each worker on its pod: conditions, when its jobs end, the label of the disruption budget; and
tells Slurm in the node's Comment which pod and machine it is.

A reconciler of its own, beside the one that makes and removes workers: hundreds of pods to mark must not keep a plan
waiting, nor the other way round.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import ClassVar

from slurm_operator.api.load import InvalidSpec, load_spec
from slurm_operator.api.names import ANNOTATION_POD_DEADLINE, APP_WORKER, LABEL_NAME, LABEL_POD_PROTECT
from slurm_operator.api.nodeset import NodeSetSpec
from slurm_operator.controllers.base import trim_pod
from slurm_operator.controllers.nodeset import NodeSetController
from slurm_operator.controllers.nodeset_belongings import Belongings
from slurm_operator.controllers.nodeset_drains import gather_all
from slurm_operator.desired.drain import may_run_unseen
from slurm_operator.desired.nodeset_status import CONDITION_PREFIX, deadline_text, pod_conditions, protected
from slurm_operator.desired.podinfo import facts
from slurm_operator.desired.scale import Worker
from slurm_operator.kube.errors import Conflict, NotFound
from slurm_operator.kube.objects import annotations_of, is_deleting, labels_of, set_conditions
from slurm_operator.kube.resources import NODESETS, PODS, Key, Object, Resource
from slurm_operator.runtime.controller import Controller
from slurm_operator.runtime.manager import Manager
from slurm_operator.slurm.states import is_busy
from slurm_operator.slurm.types import NodeInfo

REST_SECONDS = 0.3
"""Changes of so long are shown together."""
AT_ONCE = 8
"""Few writes at a time: pods to make and to remove come first."""


class MirrorController(Controller):
    """`nodesets` knows what there is of a NodeSet."""

    name: ClassVar[str] = "mirror"
    resource: ClassVar[Resource] = NODESETS

    def __init__(self, manager: Manager, nodesets: NodeSetController) -> None:
        super().__init__(manager)
        self._nodesets = nodesets

    def setup(self) -> None:
        self.owns(PODS, label_selector=f"{LABEL_NAME}={APP_WORKER}", transform=trim_pod)
        self.informer = self.watch(NODESETS)
        self.slurm.add_handler(self._slurm_event)

    def rest(self, key: Key) -> float:
        return REST_SECONDS

    def _slurm_event(self, cluster: Key, changed: frozenset[str]) -> None:
        for key in self._nodesets.touched(cluster, changed):
            self.enqueue(key)

    async def reconcile(self, key: Key) -> float | None:
        nodeset = self.informer.get(*key)
        if nodeset is None:
            return None
        try:
            spec = load_spec(NodeSetSpec, nodeset)
        except InvalidSpec:
            return None  # its own reconcile reports it
        pods = self._nodesets.worker_pods(nodeset)
        seen = self._nodesets.see(nodeset, spec, pods)
        if seen.slurm is None:
            return None
        changes: list[Awaitable[object]] = []
        for worker in seen.workers:
            node, pod = seen.slurm.get(worker.slurm_name), pods[worker.name]
            # Of a node that Slurm lost, what was known last stays: jobs may still run there.
            if is_deleting(pod) or (node is None and may_run_unseen(worker, seen.now)):
                continue
            changes += self._marks(key, pod, worker, node, protect=spec.workload_disruption_protection)
            if node is not None:
                changes += self._conditions(key, pod, node)
        await gather_all(changes, AT_ONCE)
        slurm, nodes = self._nodesets.slurm_of(nodeset)
        if slurm is not None and nodes is not None:
            said = facts(nodeset, seen.workers, nodes, self._nodesets.node, pods.__getitem__)
            await Belongings(self._nodesets, key, nodeset, spec).comments(slurm, said)
        return None

    def _marks(
        self, key: Key, pod: Object, worker: Worker, node: NodeInfo | None, *, protect: bool
    ) -> list[Awaitable[object]]:
        label = "true" if node is not None and protect and protected(node) else None
        deadline = deadline_text(worker.deadline) if node is not None and is_busy(node) else None
        same = labels_of(pod).get(LABEL_POD_PROTECT) == label
        if same and annotations_of(pod).get(ANNOTATION_POD_DEADLINE) == deadline:
            return []
        meta = {
            "uid": pod["metadata"]["uid"],
            "labels": {LABEL_POD_PROTECT: label},
            "annotations": {ANNOTATION_POD_DEADLINE: deadline},
        }
        return [_unless_gone(self.patch(key, pod, {"metadata": meta}))]

    def _conditions(self, key: Key, pod: Object, node: NodeInfo) -> list[Awaitable[object]]:
        old = (pod.get("status") or {}).get("conditions") or ()
        before = [entry for entry in old if entry["type"].startswith(CONDITION_PREFIX)]
        wanted = set_conditions(before, pod_conditions(node))
        if _content(before) == _content(wanted):
            return []
        meta = {name: pod["metadata"][name] for name in ("name", "namespace", "uid")}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "status": {"conditions": wanted}}
        return [_unless_gone(self.apply_status(key, body))]


def _content(entries: Iterable[Object]) -> set[tuple[str, str, str, str]]:
    return {(entry["type"], entry["status"], entry.get("reason", ""), entry.get("message", "")) for entry in entries}


async def _unless_gone(call: Awaitable[object]) -> None:
    try:
        await call
    except (Conflict, NotFound):
        return
