"""Reconciles NodeSet: looks, plans, acts, reports."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from slurm_operator.api.names import (
    ANNOTATION_CORDONED_FOR,
    ANNOTATION_FEATURES,
    ANNOTATION_TOPOLOGY,
    APP_WORKER,
    LABEL_INSTANCE,
    LABEL_NAME,
    LABEL_POD_HOSTNAME,
    LABEL_POD_INDEX,
    maintenance_reservation,
)
from slurm_operator.api.nodeset import NodeSetSpec
from slurm_operator.controllers.base import (
    BY_CONTROLLER,
    Member,
    controller_ref,
    index_by_controller,
    more_than_marks,
    of_instance,
    trim_pod,
)
from slurm_operator.controllers.drainpolicy import Policies
from slurm_operator.controllers.leaving import deleted_at
from slurm_operator.controllers.nodeset_belongings import Belongings, Retries
from slurm_operator.controllers.nodeset_leave import drain_all
from slurm_operator.controllers.nodeset_steps import Steps
from slurm_operator.controllers.ssh import SshParts
from slurm_operator.desired import worker as build
from slurm_operator.desired.claims import claims
from slurm_operator.desired.drain import Policy, machine_cordons
from slurm_operator.desired.maintenance import RESERVATION_CREATED, Window, reservation_condition, window_of
from slurm_operator.desired.nodeset_status import nodeset_report
from slurm_operator.desired.observe import observe
from slurm_operator.desired.parts import Cluster
from slurm_operator.desired.placement import Places, judged, pins, places
from slurm_operator.desired.podinfo import facts
from slurm_operator.desired.revisions import trim_revision
from slurm_operator.desired.scale import Plan, Seen, Wanted, Worker, plan_scale
from slurm_operator.desired.status import Report, problems
from slurm_operator.kube.informer import EventType, Informer
from slurm_operator.kube.objects import annotations_of, condition, is_deleting, key_of, labels_of, uid_of
from slurm_operator.kube.resources import (
    CONTROLLERREVISIONS,
    DRAINPOLICIES,
    NODES,
    NODESETS,
    PODS,
    PVCS,
    RESTAPIS,
    Key,
    Object,
    Resource,
)
from slurm_operator.slurm.registry import SlurmCluster
from slurm_operator.slurm.types import NodeInfo

STALE_SECONDS = 120.0
"""Slurm's nodes as of longer ago count as unknown. Nothing is deleted without another look in any case."""
BY_CORDON = "by_cordon"
REST_SECONDS, REST_SECONDS_PER_POD = 0.05, 0.00005
"""Events of so long are gathered for one pass, whose cost grows with the pods."""
AFTER_CORDON_SECONDS = 0.25
"""The short way (controllers/cordons.py) goes first: then there is mostly nothing left to drain."""
ACTIVE_SECONDS = 15.0
"""While something is under way, look again after this long even if no event comes."""


class NodeSetController(Member[NodeSetSpec]):
    """Workers: pods made and removed one by one, in step with Slurm."""

    name: ClassVar[str] = "nodeset"
    resource: ClassVar[Resource] = NODESETS
    app: ClassVar[str] = APP_WORKER
    spec_type = NodeSetSpec
    holds: ClassVar[bool] = True
    nodes: Informer
    claims: Informer
    revisions: Informer
    restapis: Informer

    def setup(self) -> None:
        super().setup()
        of_workers = f"{LABEL_NAME}={APP_WORKER}"
        self.pods.add_label_index(LABEL_POD_HOSTNAME)
        self.claims = self.watch(PVCS, of_instance, label_selector=of_workers, metadata_only=True)
        self.claims.add_label_index(LABEL_INSTANCE)
        self.revisions = self.owns(CONTROLLERREVISIONS, label_selector=of_workers, transform=trim_revision)
        self.restapis = self.manager.informer(RESTAPIS)
        self.restapis.add_index(BY_CONTROLLER, index_by_controller)
        self.retries = Retries()
        self.tried: dict[str, dict[str, tuple[str, object]]] = {}
        """What Slurm was last asked for, by NodeSet and Slurm node: see Belongings.shape."""
        self.blind: dict[str, float] = {}
        """Since when (monotonic) Slurm cannot be asked about a NodeSet, by uid."""
        self.policies = Policies(self.watch(DRAINPOLICIES, self._neighbours, status_too=False))
        self.nodes = self.manager.informer(NODES, transform=trim_node)
        self.nodes.add_index(BY_CORDON, cordoned_for)
        self.nodes.add_handler(self._node_event)
        self.ssh = SshParts(self)
        self.slurm.add_handler(self._slurm_event)

    def watch_pods(self) -> Informer:
        selector = f"{LABEL_NAME}={APP_WORKER}"
        return self.owns(PODS, label_selector=selector, transform=trim_pod, matters=more_than_marks)

    def rest(self, key: Key) -> float:
        return REST_SECONDS + len(self.pods) * REST_SECONDS_PER_POD

    def _node_event(self, event: EventType, old: Object | None, new: Object | None) -> None:
        """A cordon, or a machine that came, went or changed, matters to its workers; a heartbeat does not."""
        if old is not None and new is not None and node_facts(old) == node_facts(new):
            return
        node = new or old
        assert node is not None, "an event is about an object"
        for pod in self.pods.by_index("by_node", node["metadata"]["name"]):
            for owner in pod["metadata"].get("ownerReferences") or ():
                if owner.get("kind") == NODESETS.kind:
                    self.enqueue(Key(pod["metadata"]["namespace"], owner["name"]), AFTER_CORDON_SECONDS)
        for nodeset in self.informer.list():
            spec = nodeset.get("spec") or {}
            if spec.get("scalingMode") == "DaemonSet" or (new is None and spec.get("pinToNode")):
                self.enqueue(Key(nodeset["metadata"]["namespace"], nodeset["metadata"]["name"]))

    def _neighbours(self, policy: Object) -> Iterable[Key]:
        return [key_of(nodeset) for nodeset in self.informer.list(policy["metadata"]["namespace"])]

    def _slurm_event(self, key: Key, changed: frozenset[str]) -> None:
        for touched in self.touched(key, changed):
            self.enqueue(touched)

    def touched(self, cluster: Key, changed: frozenset[str]) -> list[Key]:
        """NodeSets that a change of these Slurm nodes may concern; of no named nodes: all of the cluster."""
        found = ((nodeset, _prefix(nodeset)) for nodeset in self.informer.by_index(BY_CONTROLLER, str(cluster)))
        return [key_of(one) for one, prefix in found if not changed or any(name.startswith(prefix) for name in changed)]

    async def forget(self, key: Key) -> None:
        await super().forget(key)
        kept = {uid_of(nodeset) for nodeset in self.informer.list()}
        self.tried = {uid: names for uid, names in self.tried.items() if uid in kept}
        self.blind = {uid: since for uid, since in self.blind.items() if uid in kept}

    async def leave(self, key: Key, obj: Object) -> tuple[Report, float] | None:
        return await drain_all(self, key, obj, deleted_at(obj))

    async def act(self, key: Key, obj: Object, spec: NodeSetSpec) -> tuple[Report, float | None]:
        controller = self.controllers.get(key.namespace, controller_ref(obj))
        if controller is not None and is_deleting(controller):
            waits = await drain_all(self, key, obj, deleted_at(controller))
            if waits is not None:
                return waits
        _, cluster = self.cluster_of(obj)
        if spec.ssh.enabled:
            await self.ssh.for_workers(key, obj, spec, cluster)
        pods = self.worker_pods(obj)
        slurm, nodes = self.slurm_of(obj)
        policy = self.policies.of(obj)
        window = window_of(key.name, spec)
        seen = self.see(obj, spec, pods)
        where, seen = self._places(obj, spec, cluster, self._paced(obj, seen))
        daemon = spec.scaling_mode == "DaemonSet"
        wanted = Wanted(
            namespace=key.namespace,
            replicas=len(where.names) if daemon else spec.replicas,
            revision=build.revision(key.name, spec, cluster),
            rolling=spec.update_strategy.type == "RollingUpdate",
            max_unavailable=spec.update_strategy.rolling_update.max_unavailable,
            places=where.names if daemon else None,
            policy=policy,
            maintenance=window.name if window else "",
        )
        plan = plan_scale(wanted, seen)
        pinned = self._pins(obj, spec, seen.workers)
        steps = Steps(self, key, obj, pods, slurm)
        belongings = Belongings(self, key, obj, spec)
        self._tell(obj, plan, pods)
        refused: list[str] = []
        said = facts(obj, seen.workers, nodes or {}, self.node, pods.__getitem__)
        if slurm is not None and nodes is not None:
            refused = await belongings.shape(slurm, nodes, said)  # before a drain is undone
        await steps.drains(plan)
        told = await steps.requeue(plan, policy)
        await steps.removals(plan)
        reserved = await self._maintenance(obj, steps, window, wanted, seen)
        await steps.records(plan)
        unknown = any(one.phase == "Running" and one.slurm_name not in (nodes or {}) for one in seen.workers)
        if slurm is not None and nodes is not None and unknown:
            slurm.cache.poke()
        cordon_trouble = await self.cordon_machines(key, steps, seen, policy)
        seats = [build.numbered(key.name, spec, number, pinned.get(str(number), "")) for number in plan.create]
        seats += [build.on_machine(key.name, machine, where.names[machine]) for machine in plan.place]
        if self.restapis.by_index(BY_CONTROLLER, f"{key.namespace}/{cluster.name}"):  # else no one would undo it
            drained = {machine: self._begins_drained(machine) for machine in {seat.machine for seat in seats}}
            seats = [replace(seat, drained=drained[seat.machine]) for seat in seats]
        await belongings.history(wanted.revision, {worker.revision for worker in seen.workers})
        await belongings.claims(_suffixes(wanted, seen, pods, seats))
        await steps.creations(
            seats,
            lambda seat: (build.worker(obj, spec, cluster, seat), claims(obj, spec, cluster.name, seat.suffix)),
        )
        report = nodeset_report(
            wanted,
            seen,
            plan,
            build.pod_selector(key.name),
            obj["metadata"].get("generation", 0),
            _problems(pods, plan),
            (*where.faults, *refused, *cordon_trouble),
            jobs=slurm.cache.book.by_node if slurm is not None else None,
            told=told,
        )
        if spec.pin_to_node:
            report.fields["ordinalToNode"] = pinned
        again = self._again(plan, seen_waiting=any(not worker.available for worker in seen.workers), spec=spec)
        return replace(report, more=reserved), again

    def node(self, name: str) -> Object | None:
        return self.nodes.get("", name)

    def _begins_drained(self, machine: str) -> bool:
        """Whether Slurm is to be told something of the machine first; of any that may be meant, if it is not known."""
        node = self.node(machine) if machine else None
        machines = [node] if node is not None else self.nodes.list()
        cordoned = node is not None and node["spec"].get("unschedulable", False)
        return cordoned or any(
            {ANNOTATION_TOPOLOGY, ANNOTATION_FEATURES} & annotations_of(one).keys() for one in machines
        )

    def worker_pods(self, nodeset: Object) -> dict[str, Object]:
        """Its pods by name."""
        return {pod["metadata"]["name"]: pod for pod in self.pods.by_index("by_owner", uid_of(nodeset))}

    def slurm_of(self, nodeset: Object) -> tuple[SlurmCluster | None, Mapping[str, NodeInfo] | None]:
        """Its cluster's Slurm, and the nodes there; None for what cannot be asked, or is too old to go by."""
        slurm = self.slurm.find(Key(nodeset["metadata"]["namespace"], controller_ref(nodeset)))
        known = slurm is not None and slurm.cache.reachable and slurm.cache.fresh_within(STALE_SECONDS)
        uid, now = uid_of(nodeset), time.monotonic()
        if known:
            self.blind.pop(uid, None)
        else:
            self.blind.setdefault(uid, now)
        return slurm, slurm.cache.nodes if slurm is not None and known else None

    def see(self, nodeset: Object, spec: NodeSetSpec, pods: Mapping[str, Object]) -> Seen:
        """What there is of it."""
        slurm, nodes = self.slurm_of(nodeset)
        return observe(
            nodeset,
            spec,
            pods.values(),
            self.node,
            nodes,
            time.time(),
            deadlines=slurm.cache.book.deadlines() if slurm is not None and nodes is not None else None,
            shown=self.manager.settings.propagated_conditions,
            blind_for=time.monotonic() - self.blind.get(uid_of(nodeset), time.monotonic()),
        )

    async def _maintenance(
        self, obj: Object, steps: Steps, window: Window | None, wanted: Wanted, seen: Seen
    ) -> tuple[Object, ...]:
        """The reservation of updateStrategy ScheduledUpdate; its condition."""
        before = condition(obj, RESERVATION_CREATED)
        if window is None and before is None:
            return ()
        if seen.slurm is None:
            return ({name: before[name] for name in ("type", "status", "reason", "message")},) if before else ()
        outdated = [
            worker.slurm_name
            for worker in seen.workers
            if worker.revision != wanted.revision and worker.phase != "Ended" and worker.slurm_name in seen.slurm
        ]
        refused = await steps.maintenance(window, outdated, maintenance_reservation(obj["metadata"]["name"]))
        return (reservation_condition(window, outdated, refused, seen.now),) if window else ()

    async def cordon_machines(self, key: Key, steps: Steps, seen: Seen, policy: Policy) -> list[str]:
        """Cordon and uncordon Kubernetes nodes as Slurm's administrators drain and resume; what went wrong."""
        if seen.slurm is None:
            return []
        marked = self.nodes.by_index(BY_CORDON, f"{key.namespace}/{key.name}")
        enabled = policy.cordon_machines
        if not enabled and not marked:
            return []
        cordon, undo = machine_cordons(key.namespace, key.name, enabled, seen.workers, seen.slurm, self.node, marked)
        trouble = await steps.machines(cordon, undo)
        return [trouble] if trouble else []

    def claims_of(self, nodeset: Object) -> list[Object]:
        """Claims whose labels say that they are of this NodeSet."""
        meta = nodeset["metadata"]
        found = self.claims.by_index(LABEL_INSTANCE, meta["name"])
        return [claim for claim in found if claim["metadata"]["namespace"] == meta["namespace"]]

    def _paced(self, obj: Object, seen: Seen) -> Seen:
        """Ended workers wait for their successors, longer each time."""

        def wait(worker: Worker) -> float:
            return self.retries.wait(uid_of(obj), worker.name, worker.uid)

        ended = [w.phase == "Ended" and not w.deleting for w in seen.workers]
        if not any(ended):
            return seen
        workers = [
            replace(worker, retry_in=wait(worker)) if over else worker
            for worker, over in zip(seen.workers, ended, strict=True)
        ]
        return replace(seen, workers=workers)

    def _places(self, obj: Object, spec: NodeSetSpec, cluster: Cluster, seen: Seen) -> tuple[Places, Seen]:
        """Where workers belong in scalingMode DaemonSet, and the workers that are elsewhere marked as such."""
        if spec.scaling_mode != "DaemonSet":
            return Places({}), seen
        here = {w.machine for w in seen.workers if not w.unwanted and not w.deleting and w.phase != "Ended"}
        pod = build.template(obj["metadata"]["name"], spec, cluster)["spec"]
        where = places(pod, self.nodes.list(), here, self._taken(obj, cluster))
        return where, replace(seen, workers=judged(seen.workers, where.names, self.node))

    def _taken(self, obj: Object, cluster: Cluster) -> Mapping[str, str]:
        """Slurm node names that pods of other NodeSets of the cluster have."""
        namespace, uid = obj["metadata"]["namespace"], uid_of(obj)
        siblings = self.informer.by_index(BY_CONTROLLER, f"{namespace}/{cluster.name}")
        others = [one for one in siblings if uid_of(one) != uid]
        found = (pod for one in others for pod in self.pods.by_index("by_owner", uid_of(one)))
        pairs = ((labels_of(pod).get(LABEL_POD_HOSTNAME, ""), pod["metadata"]["name"]) for pod in found)
        return {name: pod for name, pod in pairs if name}

    def _pins(self, obj: Object, spec: NodeSetSpec, workers: Sequence[Worker]) -> dict[str, str]:
        if not spec.pin_to_node or spec.scaling_mode != "StatefulSet":
            return {}
        before = (obj.get("status") or {}).get("ordinalToNode") or {}
        return pins(before, workers, self.node, shared=spec.oversubscribe_node)

    def _again(self, plan: Plan, *, seen_waiting: bool, spec: NodeSetSpec) -> float | None:
        times = [plan.recheck] if plan.recheck is not None else []
        if not plan.idle:
            times.append(ACTIVE_SECONDS)
        if seen_waiting and spec.min_ready_seconds:
            times.append(float(min(spec.min_ready_seconds, ACTIVE_SECONDS)))
        return min(times) if times else None

    def _tell(self, obj: Object, plan: Plan, pods: Mapping[str, Object]) -> None:
        """Events for what begins now; the recorder joins repeats."""
        if count := len(plan.create) + len(plan.place):
            self.events.event(obj, "Normal", "ScalingUp", f"Creating {count} workers")
        for worker in plan.delete:
            if worker.phase == "Ended":
                how = (pods[worker.name].get("status") or {}).get("phase", "")
                note = f"Worker {worker.name} has ended ({how}): its pod is made anew"
                kind = "Daemon" if worker.ordinal < 0 else ""
                self.events.event(obj, "Warning" if how == "Failed" else "Normal", f"{how}{kind}Pod", note)
        if plan.leaving:
            self.events.event(obj, "Normal", "ScalingDown", f"Removing {len(plan.leaving)} workers when they are idle")
        for worker in plan.remake:
            note = f"Worker {worker.name} is ready, but Slurm does not know it: its pod is made anew"
            self.events.event(obj, "Warning", "SlurmNodeNotRegistered", note)


_OURS = ("slinky.slurm.net/", "slipway.dev/")


def trim_node(obj: Object) -> Object:
    """Keep of a Kubernetes node what tells whether and how Slurm may use it."""
    meta, spec = obj["metadata"], obj.get("spec") or {}
    slim = {name: meta[name] for name in ("name", "uid", "resourceVersion", "labels") if name in meta}
    slim["annotations"] = {
        name: text for name, text in annotations_of(obj).items() if any(group in name for group in _OURS)
    }
    kept = {name: spec[name] for name in ("unschedulable", "taints") if spec.get(name)}
    faults = [
        {name: entry.get(name, "") for name in ("type", "status", "reason", "message")}
        for entry in (obj.get("status") or {}).get("conditions") or ()
        if entry.get("status") == "True" and entry.get("type") != "Ready"
    ]
    node = {"apiVersion": obj.get("apiVersion", "v1"), "kind": obj.get("kind", "Node"), "metadata": slim, "spec": kept}
    return {**node, "status": {"conditions": faults}} if faults else node


def cordoned_for(node: Object) -> Iterable[str]:
    """Index of Kubernetes nodes that the operator cordoned: the NodeSet for which."""
    cause = annotations_of(node).get(ANNOTATION_CORDONED_FOR, "")
    return (cause.rpartition("/")[0],) if cause else ()


def node_facts(node: Object) -> tuple[Object, ...]:
    """What of a Kubernetes node matters to its workers: two that are equal here differ in nothing but heartbeats."""
    taints = [{name: taint[name] for name in taint if name != "timeAdded"} for taint in node["spec"].get("taints", ())]
    faults = [tuple(entry.values()) for entry in (node.get("status") or {}).get("conditions") or ()]
    cordon = {"taints": taints, "cordon": node["spec"].get("unschedulable"), "faults": faults}
    return labels_of(node), annotations_of(node), cordon


def _suffixes(wanted: Wanted, seen: Seen, pods: Mapping[str, Object], seats: Sequence[build.Seat]) -> set[str] | None:
    """Last parts of the claim names of all workers that there are and that are to be; None while some are not known."""
    numbers = {worker.ordinal for worker in seen.workers if worker.ordinal >= 0}
    if wanted.places is None and len(numbers) + len(seats) < wanted.replicas:
        return None
    here = {labels_of(pod).get(LABEL_POD_INDEX) or labels_of(pod).get(LABEL_POD_HOSTNAME, "") for pod in pods.values()}
    return here | {seat.suffix for seat in seats} | set((wanted.places or {}).values())


def _problems(pods: Mapping[str, Object], plan: Plan) -> list[str]:
    """Of pods that fail. One without a place is no failure while others are about to make room."""
    making_room = bool(plan.leaving)
    return problems(pod for pod in pods.values() if not (making_room and not (pod.get("spec") or {}).get("nodeName")))


def _prefix(nodeset: Object) -> str:
    """What the names of its Slurm nodes begin with; "" where they are names of machines."""
    spec = nodeset.get("spec") or {}
    pod = (spec.get("template") or {}).get("spec") or {}
    if spec.get("scalingMode") == "DaemonSet" or pod.get("hostNetwork"):
        return ""
    return str(pod.get("hostname") or f"{nodeset['metadata']['name']}-")
