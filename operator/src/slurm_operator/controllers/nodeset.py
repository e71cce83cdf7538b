"""Reconciles NodeSet: looks, plans, acts, reports."""

from __future__ import annotations

import time
from typing import ClassVar

from slurm_operator.api.names import (
    ANNOTATION_NODE_CORDON_REASON,
    APP_WORKER,
    LABEL_NAME,
)
from slurm_operator.api.nodeset import NodeSetSpec
from slurm_operator.controllers.base import BY_CONTROLLER, Member, trim_pod, unsupported
from slurm_operator.controllers.nodeset_steps import Steps
from slurm_operator.desired import worker as build
from slurm_operator.desired.nodeset_status import nodeset_report
from slurm_operator.desired.observe import observe
from slurm_operator.desired.scale import Plan, Wanted, plan_scale
from slurm_operator.desired.status import Report, problems
from slurm_operator.kube.informer import EventType, Informer
from slurm_operator.kube.objects import annotations_of, uid_of
from slurm_operator.kube.resources import NODES, NODESETS, PODS, Key, Object, Resource

STALE_SECONDS = 120.0
"""Slurm's nodes as of longer ago count as unknown. Nothing is deleted without another look in any case."""
ACTIVE_SECONDS = 15.0
"""While something is under way, look again after this long even if no event comes."""


class NodeSetController(Member[NodeSetSpec]):
    """Workers: pods made and removed one by one, in step with Slurm."""

    name: ClassVar[str] = "nodeset"
    resource: ClassVar[Resource] = NODESETS
    app: ClassVar[str] = APP_WORKER
    spec_type = NodeSetSpec
    nodes: Informer

    def setup(self) -> None:
        super().setup()
        self.nodes = self.manager.informer(NODES, transform=trim_node)
        self.nodes.add_handler(self._node_event)
        self.slurm.add_handler(self._slurm_event)

    def watch_pods(self) -> Informer:
        return self.owns(PODS, label_selector=f"{LABEL_NAME}={APP_WORKER}", transform=trim_pod)

    def _node_event(self, event: EventType, old: Object | None, new: Object | None) -> None:
        """A cordon, or a machine that came or went, matters to the workers on it; a heartbeat does not."""
        if old is not None and new is not None and _cordon(old) == _cordon(new):
            return
        node = new or old
        assert node is not None, "an event is about an object"
        for pod in self.pods.by_index("by_node", node["metadata"]["name"]):
            for owner in pod["metadata"].get("ownerReferences") or ():
                if owner.get("kind") == NODESETS.kind:
                    self.enqueue(Key(pod["metadata"]["namespace"], owner["name"]))

    def _slurm_event(self, key: Key, changed: frozenset[str]) -> None:
        for nodeset in self.informer.by_index(BY_CONTROLLER, str(key)):
            meta = nodeset["metadata"]
            prefix = _prefix(nodeset)
            if not changed or any(name.startswith(prefix) for name in changed):
                self.enqueue(Key(meta["namespace"], meta["name"]))

    async def act(self, key: Key, obj: Object, spec: NodeSetSpec) -> tuple[Report, float | None]:
        if spec.scaling_mode == "DaemonSet":
            text = "This version of the operator has no scalingMode DaemonSet; nothing was done."
            return Report(False, "NotSupported", text, fault=text, fault_reason="NotSupported"), None
        _, cluster = self.cluster_of(obj)
        wanted = Wanted(
            namespace=key.namespace,
            replicas=spec.replicas,
            revision=build.revision(key.name, spec, cluster),
            rolling=spec.update_strategy.type == "RollingUpdate",
            max_unavailable=spec.update_strategy.rolling_update.max_unavailable,
        )
        pods = {pod["metadata"]["name"]: pod for pod in self.pods.by_index("by_owner", uid_of(obj))}
        slurm = self.slurm.find(Key(key.namespace, cluster.name))
        known = slurm is not None and slurm.cache.reachable and slurm.cache.fresh_within(STALE_SECONDS)
        nodes = slurm.cache.nodes if slurm is not None and known else None
        seen = observe(key.name, spec, pods.values(), lambda name: self.nodes.get("", name), nodes, time.time())
        plan = plan_scale(wanted, seen)
        steps = Steps(self, key, obj, pods, slurm)
        self._tell(obj, plan)
        await steps.drains(plan)
        await steps.removals(plan)
        await steps.records(plan)
        await steps.mirror(seen, protect=spec.workload_disruption_protection)
        await steps.creations(plan, lambda ordinal: build.worker(obj, spec, cluster, ordinal))
        generation = obj["metadata"].get("generation", 0)
        report = nodeset_report(
            wanted, seen, plan, build.pod_selector(key.name), generation, problems(pods.values()), _missing(spec)
        )
        return report, self._again(plan, seen_waiting=any(not worker.available for worker in seen.workers), spec=spec)

    def _again(self, plan: Plan, *, seen_waiting: bool, spec: NodeSetSpec) -> float | None:
        times = [plan.recheck] if plan.recheck is not None else []
        if not plan.idle:
            times.append(ACTIVE_SECONDS)
        if seen_waiting and spec.min_ready_seconds:
            times.append(float(min(spec.min_ready_seconds, ACTIVE_SECONDS)))
        return min(times) if times else None

    def _tell(self, obj: Object, plan: Plan) -> None:
        """Events for what begins now; the recorder joins repeats."""
        if plan.create:
            self.events.event(obj, "Normal", "ScalingUp", f"Creating {len(plan.create)} workers")
        if plan.leaving:
            self.events.event(obj, "Normal", "ScalingDown", f"Removing {len(plan.leaving)} workers when they are idle")
        for worker in plan.remake:
            note = f"Worker {worker.name} is ready, but Slurm does not know it: its pod is made anew"
            self.events.event(obj, "Warning", "SlurmNodeNotRegistered", note)


def trim_node(obj: Object) -> Object:
    """Keep of a Kubernetes node what tells about cordons."""
    meta = obj["metadata"]
    slim = {name: meta[name] for name in ("name", "uid", "resourceVersion", "annotations", "labels") if name in meta}
    spec = {"unschedulable": True} if (obj.get("spec") or {}).get("unschedulable") else {}
    return {"apiVersion": obj.get("apiVersion", "v1"), "kind": obj.get("kind", "Node"), "metadata": slim, "spec": spec}


def _cordon(node: Object) -> tuple[bool, str]:
    spec = node.get("spec") or {}
    return bool(spec.get("unschedulable")), annotations_of(node).get(ANNOTATION_NODE_CORDON_REASON, "")


def _prefix(nodeset: Object) -> str:
    template = (nodeset.get("spec") or {}).get("template") or {}
    return str((template.get("spec") or {}).get("hostname") or f"{nodeset['metadata']['name']}-")


def _missing(spec: NodeSetSpec) -> str:
    return unsupported(
        {
            "spec.ssh.enabled": spec.ssh.enabled,
            "spec.volumeClaimTemplates": spec.volume_claim_templates,
            "spec.pinToNode": spec.pin_to_node,
            "spec.updateStrategy.type ScheduledUpdate": spec.update_strategy.type == "ScheduledUpdate",
        }
    )
