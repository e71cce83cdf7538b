"""What there is of a NodeSet, in the words of the plan: from pods, Kubernetes nodes and Slurm nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime

from slurm_operator.api.names import (
    ANNOTATION_NODE_CORDON_REASON,
    ANNOTATION_POD_CORDON,
    ANNOTATION_POD_DEADLINE,
    ANNOTATION_POD_DELETION_COST,
    LABEL_POD_HOSTNAME,
    LABEL_POD_INDEX,
    LABEL_REVISION,
)
from slurm_operator.api.nodeset import NodeSetSpec
from slurm_operator.desired.scale import Phase, Seen, Worker
from slurm_operator.desired.status import pod_ready
from slurm_operator.desired.worker import group_name, ordinal_of
from slurm_operator.kube.objects import annotations_of, condition, is_deleting, labels_of, uid_of
from slurm_operator.kube.resources import Object
from slurm_operator.slurm.types import NodeInfo

NodeOf = Callable[[str], Object | None]
_PHASES: Mapping[str, Phase] = {"Pending": "Pending", "Running": "Running", "Succeeded": "Ended", "Failed": "Ended"}
_REASON_LIMIT = 256  # characters of a cordon reason that reach Slurm


def observe(
    name: str,
    spec: NodeSetSpec,
    pods: Iterable[Object],
    node_of: NodeOf,
    slurm: Mapping[str, NodeInfo] | None,
    now: float,
) -> Seen:
    """`pods` are those of the NodeSet, `node_of` gives a Kubernetes node by name, `slurm` is None when unknown."""
    workers = [worker for pod in pods if (worker := worker_of(pod, spec, node_of, now)) is not None]
    return Seen(workers=tuple(workers), slurm=slurm, records=records(name, spec, slurm or {}), now=now)


def worker_of(pod: Object, spec: NodeSetSpec, node_of: NodeOf, now: float) -> Worker | None:
    """One worker; None for a pod without the labels of one."""
    labels, meta = labels_of(pod), pod["metadata"]
    index = labels.get(LABEL_POD_INDEX, "")
    if not index.isdigit():
        return None
    ready = pod_ready(pod)
    since = moment((condition(pod, "Ready") or {}).get("lastTransitionTime")) if ready else 0.0
    machine = (pod.get("spec") or {}).get("nodeName", "")
    return Worker(
        name=meta["name"],
        uid=uid_of(pod),
        ordinal=int(index),
        slurm_name=labels.get(LABEL_POD_HOSTNAME, meta["name"]),
        revision=labels.get(LABEL_REVISION, ""),
        phase=_PHASES.get((pod.get("status") or {}).get("phase", ""), "Unknown"),
        placed=bool(machine),
        ready=ready,
        available=ready and now - since >= spec.min_ready_seconds,
        deleting=is_deleting(pod),
        cordoned=_cordon_reason(pod, node_of(machine) if machine else None),
        cost=_number(annotations_of(pod).get(ANNOTATION_POD_DELETION_COST)),
        deadline=moment(annotations_of(pod).get(ANNOTATION_POD_DEADLINE)),
        since=since,
        created=moment(meta.get("creationTimestamp")),
    )


def records(name: str, spec: NodeSetSpec, slurm: Mapping[str, NodeInfo]) -> dict[int, str]:
    """Slurm's nodes of this NodeSet by ordinal: they have its name and its feature."""
    group = group_name(name, spec)
    found: dict[int, str] = {}
    for node in slurm.values():
        ordinal = ordinal_of(node.name, name, spec)
        if ordinal is not None and group in (*node.features, *node.active_features):
            found[ordinal] = node.name
    return found


def moment(text: str | None) -> float:
    """A Kubernetes time as UNIX seconds; 0 for none, or for what is no time."""
    if not text:
        return 0.0
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0


def _cordon_reason(pod: Object, node: Object | None) -> str:
    meta = pod["metadata"]
    if node is not None and (node.get("spec") or {}).get("unschedulable"):
        given = " ".join(annotations_of(node).get(ANNOTATION_NODE_CORDON_REASON, "").split())
        default = (
            f"Node ({node['metadata']['name']}) was cordoned, Pod ({meta['namespace']}/{meta['name']}) must be cordoned"
        )
        return given[:_REASON_LIMIT] or default
    if annotations_of(pod).get(ANNOTATION_POD_CORDON, "").lower() == "true":
        return f"Pod ({meta['namespace']}/{meta['name']}) was cordoned"
    return ""


def _number(text: str | None) -> int:
    try:
        return int(text or 0)
    except ValueError:
        return 0
