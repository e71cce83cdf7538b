"""What Slurm is told about a worker's pod and machine: Comment, topology and features of its node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from slurm_operator.api.names import ANNOTATION_FEATURES, ANNOTATION_TOPOLOGY
from slurm_operator.desired.scale import Worker
from slurm_operator.kube.objects import annotations_of, uid_of
from slurm_operator.kube.resources import Object
from slurm_operator.slurm.states import ours
from slurm_operator.slurm.types import NodeInfo

FEATURE_PREFIX = "k8s/"
"""Features that begin with it come from Kubernetes nodes and are the operator's; it leaves all others alone."""


class PodInfo(msgspec.Struct, frozen=True, rename="camel"):
    """The JSON in a Slurm node's Comment."""

    namespace: str
    pod_name: str
    node: str
    node_set_name: str
    node_set_uid: str = msgspec.field(name="nodeSetUID", default="")


@dataclass(frozen=True)
class Shape:
    """What is to change of a Slurm node's topology and features; None: nothing."""

    topology: str | None = None
    features: tuple[str, ...] | None = None
    active: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Facts:
    """What is to change on Slurm nodes."""

    comments: Mapping[str, str]
    shape: Mapping[str, Shape]
    revive: tuple[str, ...] = ()
    """Nodes that are DOWN because of the machine they were on before."""


def podinfo_of(comment: str) -> PodInfo | None:
    """None for a Comment that is something else."""
    if not comment.startswith("{"):
        return None
    try:
        return msgspec.json.decode(comment, type=PodInfo)
    except msgspec.MsgspecError:
        return None


def facts(
    owner: Object,
    workers: Iterable[Worker],
    slurm: Mapping[str, NodeInfo],
    node_of: Callable[[str], Object | None],
    pod_of: Callable[[str], Object],
) -> Facts:
    """What Slurm should know of the workers and does not. A Comment that a person wrote stays."""
    meta = owner["metadata"]
    comments: dict[str, str] = {}
    shape: dict[str, Shape] = {}
    revive = []
    for worker in workers:
        node = slurm.get(worker.slurm_name)
        if node is None or not worker.placed or worker.deleting or worker.phase == "Ended":
            continue
        info = PodInfo(meta["namespace"], worker.name, worker.machine, meta["name"], uid_of(owner))
        before = podinfo_of(node.comment)
        if before != info and (before is not None or not node.comment):
            comments[node.name] = msgspec.json.encode(info).decode()
            if before is not None and before.node != worker.machine and worker.ready and down_for_nothing(node):
                revive.append(node.name)
        machine = node_of(worker.machine)
        if machine is not None:
            change = Shape(_topology(machine, pod_of(worker.name), node), *_features(machine, node))
            if change != Shape():
                shape[node.name] = change
    return Facts(comments, shape, tuple(revive))


def down_for_nothing(node: NodeInfo) -> bool:
    """DOWN for the sake of a machine or pod that is gone; nobody drained it."""
    silent = not node.reason or node.reason.startswith("Not responding")
    return "DOWN" in node.states and "DRAIN" not in node.states and (silent or ours(node.reason))


def _topology(machine: Object, pod: Object, node: NodeInfo) -> str | None:
    """The machine's annotation, else the pod's; None without either, or when Slurm has it."""
    wish = _words(annotations_of(machine).get(ANNOTATION_TOPOLOGY, "")) or _words(
        annotations_of(pod).get(ANNOTATION_TOPOLOGY, "")
    )
    return ",".join(wish) if wish and set(wish) != set(_words(node.topology)) else None


def _features(machine: Object, node: NodeInfo) -> tuple[tuple[str, ...] | None, tuple[str, ...] | None]:
    """Available and active features; None twice when Slurm has the machine's."""
    wish = [f"{FEATURE_PREFIX}{word}" for word in _words(annotations_of(machine).get(ANNOTATION_FEATURES, ""))]
    have = [feature for feature in node.features if feature.startswith(FEATURE_PREFIX)]
    if set(wish) == set(have):
        return None, None
    return _with(node.features, wish), _with(node.active_features, wish)


def _with(features: Iterable[str], wish: Iterable[str]) -> tuple[str, ...]:
    return (*(feature for feature in features if not feature.startswith(FEATURE_PREFIX)), *wish)


def _words(text: str) -> list[str]:
    return list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
