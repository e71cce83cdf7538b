"""What there is of a NodeSet, in the words of the plan: from pods, Kubernetes nodes and Slurm nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import lru_cache

from slurm_operator.api.names import (
    ANNOTATION_MACHINE,
    ANNOTATION_POD_CORDON,
    ANNOTATION_POD_DEADLINE,
    ANNOTATION_POD_DELETION_COST,
    LABEL_POD_HOSTNAME,
    LABEL_POD_INDEX,
    LABEL_REVISION,
    LABEL_SCALING_MODE,
)
from slurm_operator.api.nodeset import NodeSetSpec
from slurm_operator.desired.drain import cordon_reason
from slurm_operator.desired.podinfo import podinfo_of
from slurm_operator.desired.scale import Phase, Seen, Worker
from slurm_operator.desired.status import pod_ready
from slurm_operator.desired.worker import group_name, ordinal_of, short_name
from slurm_operator.kube.objects import annotations_of, condition, is_deleting, labels_of, uid_of
from slurm_operator.kube.resources import Object
from slurm_operator.slurm.states import ours
from slurm_operator.slurm.types import NodeInfo

NodeOf = Callable[[str], Object | None]
_PHASES: Mapping[str, Phase] = {"Pending": "Pending", "Running": "Running", "Succeeded": "Ended", "Failed": "Ended"}
_MODES = {"statefulset": "StatefulSet", "daemonset": "DaemonSet"}
_BUSY_CONDITIONS = ("SlurmNodeStateAllocated", "SlurmNodeStateMixed", "SlurmNodeStateCompleting")


def observe(
    owner: Object,
    spec: NodeSetSpec,
    pods: Iterable[Object],
    node_of: NodeOf,
    slurm: Mapping[str, NodeInfo] | None,
    now: float,
    *,
    deadlines: Mapping[str, float] | None = None,
    shown: Iterable[str] = (),
    blind_for: float = 0.0,
) -> Seen:
    """`pods` are those of the NodeSet, `node_of` gives a Kubernetes node by name, `slurm` is None when unknown.

    `deadlines` are the ends of the jobs on Slurm nodes (None: unknown, then what was written on the pods counts).
    `shown` are the node conditions that give a cordon its reason.
    """
    workers = (worker_of(pod, spec, node_of, now, deadlines, shown) for pod in pods)
    found = records(owner, spec, slurm or {})
    lost = {
        name
        for name, machine in found.items()
        if spec.prune_slurm_node_records == "NodeNotFound" and machine and node_of(machine) is None
    }
    told = {name for name, machine in found.items() if machine}
    return Seen(tuple(workers), slurm, tuple(found), told, lost, now, blind_for)


def worker_of(
    pod: Object,
    spec: NodeSetSpec,
    node_of: NodeOf,
    now: float,
    deadlines: Mapping[str, float] | None = None,
    shown: Iterable[str] = (),
) -> Worker:
    """One worker. Labels can be edited, so what can be told from the pod's name and spec is."""
    labels, meta = labels_of(pod), pod["metadata"]
    tail = meta["name"].rpartition("-")[2]
    index = tail if tail.isdigit() else labels.get(LABEL_POD_INDEX, "")
    said = labels.get(LABEL_SCALING_MODE, "").lower()
    mode = _MODES.get(said) or ("StatefulSet" if index.isdigit() else spec.scaling_mode)
    ready = pod_ready(pod)
    since = moment((condition(pod, "Ready") or {}).get("lastTransitionTime")) if ready else 0.0
    placed = bool((pod.get("spec") or {}).get("nodeName"))
    machine = pod["spec"]["nodeName"] if placed else annotations_of(pod).get(ANNOTATION_MACHINE, "")
    node = node_of(machine) if machine else None
    slurm_name = _slurm_name(pod, machine)
    written = moment(annotations_of(pod).get(ANNOTATION_POD_DEADLINE))
    return Worker(
        name=meta["name"],
        uid=uid_of(pod),
        ordinal=int(index) if mode == "StatefulSet" and index.isdigit() else -1,
        slurm_name=slurm_name,
        revision=labels.get(LABEL_REVISION, ""),
        phase=_PHASES.get((pod.get("status") or {}).get("phase", ""), "Unknown"),
        placed=placed,
        ready=ready,
        available=ready and now - since >= spec.min_ready_seconds,
        deleting=is_deleting(pod),
        cordoned=_cordon_reason(pod, node if placed else None, shown),
        cost=_number(annotations_of(pod).get(ANNOTATION_POD_DELETION_COST)),
        deadline=written if deadlines is None else deadlines.get(slurm_name, 0.0),
        since=since,
        created=moment(meta.get("creationTimestamp")),
        machine=machine,
        unwanted=_unwanted(
            mode, spec, machine, placed=placed, known=node is not None, numbered=index.isdigit() or mode == "DaemonSet"
        ),
        started=_started(pod),
        was_busy=any((condition(pod, kind) or {}).get("status") == "True" for kind in _BUSY_CONDITIONS),
    )


def _unwanted(mode: str, spec: NodeSetSpec, machine: str, *, placed: bool, known: bool, numbered: bool) -> str:
    """Why a worker has to go, as far as it can be told from it alone."""
    if mode != spec.scaling_mode:
        return f"its NodeSet is in scalingMode {spec.scaling_mode} now"
    if not numbered:
        return "its name has no number"
    if machine and not placed and not known:
        return f"Kubernetes node {machine}, which it was bound to, is gone"
    return ""


def records(owner: Object, spec: NodeSetSpec, slurm: Mapping[str, NodeInfo]) -> dict[str, str]:
    """Slurm's nodes of this NodeSet, and the Kubernetes node that each was on last ("": not known).

    The Comment says whose they are. One without is ours if its name has our form and its features hold our group.
    """
    meta = owner["metadata"]
    name, group = meta["name"], group_name(meta["name"], spec)
    found: dict[str, str] = {}
    for node in slurm.values():
        info = podinfo_of(node.comment)
        if info is not None:
            if (info.namespace, info.node_set_name) == (meta["namespace"], name):
                found[node.name] = info.node
        elif group in (*node.features, *node.active_features) and _our_form(node, name, spec):
            found[node.name] = ""
    return found


def _our_form(node: NodeInfo, name: str, spec: NodeSetSpec) -> bool:
    """In scalingMode DaemonSet names have no form; there, one of the group that the operator or its worker took out."""
    if ordinal_of(node.name, name, spec) is not None:
        return True
    group = group_name(name, spec)
    return (
        spec.scaling_mode == "DaemonSet"
        and "DYNAMIC_NORM" in node.states
        and node.features[:1] == (group,)
        and ours(node.reason)
    )


@lru_cache(maxsize=4096)
def moment(text: str | None) -> float:
    """A Kubernetes time as UNIX seconds; 0 for none, or for what is no time."""
    if not text:
        return 0.0
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0


def _cordon_reason(pod: Object, node: Object | None, shown: Iterable[str]) -> str:
    meta = pod["metadata"]
    name = f"{meta['namespace']}/{meta['name']}"
    if reason := cordon_reason(node, (pod.get("spec") or {}).get("tolerations") or (), name, shown):
        return reason
    return f"Pod ({name}) was cordoned" if annotations_of(pod).get(ANNOTATION_POD_CORDON, "").lower() == "true" else ""


def _slurm_name(pod: Object, machine: str) -> str:
    """Labels can be edited, and then a busy worker would be taken for another, idle one; its host name cannot."""
    spec = pod.get("spec") or {}
    if spec.get("hostNetwork") and machine:
        return short_name(machine)
    return str(spec.get("hostname") or labels_of(pod).get(LABEL_POD_HOSTNAME) or short_name(machine))


def _started(pod: Object) -> bool:
    """False only if the kubelet says that slurmd has not come up since its container was last started."""
    for container in (pod.get("status") or {}).get("containerStatuses") or ():
        if container.get("name") == "slurmd":
            return container.get("started") is not False
    return bool((pod.get("status") or {}).get("phase") != "Pending")


def _number(text: str | None) -> int:
    try:
        return int(text or 0)
    except ValueError:
        return 0
