"""Where workers belong.

scalingMode DaemonSet: which Kubernetes nodes get one, by the rules of Kubernetes' own DaemonSets, and its name.
scalingMode StatefulSet with pinToNode: which Kubernetes node a number goes back to.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from slurm_operator.api.names import ANNOTATION_HOSTNAME
from slurm_operator.desired.parts import Map
from slurm_operator.desired.scale import Worker
from slurm_operator.desired.worker import short_name
from slurm_operator.kube.objects import annotations_of, labels_of
from slurm_operator.kube.resources import Object

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True)
class Places:
    """Kubernetes nodes that are to have a worker, with the names of their Slurm nodes; `faults`: what is in the way."""

    names: Mapping[str, str]
    faults: tuple[str, ...] = ()


def places(pod: Map, nodes: Iterable[Object], occupied: set[str], taken: Mapping[str, str]) -> Places:
    """Where workers of this pod spec belong.

    `occupied` are nodes with a worker of this NodeSet: those keep it under a NoSchedule taint. `taken` are names of
    Slurm nodes that other NodeSets use, with the name of the pod. Of two nodes with one name that with a worker wins.
    """
    found: dict[str, str] = {}
    owner: dict[str, str] = {}
    faults = []
    host = bool(pod.get("hostNetwork"))
    fitting = []
    for node in nodes:
        run, keep = fits(pod, node)
        if run or (keep and node["metadata"]["name"] in occupied):
            fitting.append(node)
    for node in sorted(fitting, key=lambda one: (one["metadata"]["name"] not in occupied, one["metadata"]["name"])):
        machine, name = node["metadata"]["name"], slurm_name(node, host_network=host)
        if not _LABEL.fullmatch(name):
            faults.append(f"Kubernetes node {machine}: annotation {ANNOTATION_HOSTNAME}: {name!r} is no host name")
        elif name in owner:
            faults.append(f"Kubernetes nodes {owner[name]} and {machine} would both be Slurm node {name}")
        elif name in taken:
            faults.append(f"Kubernetes node {machine}: Slurm node {name} is pod {taken[name]} of another NodeSet")
        else:
            found[machine], owner[name] = name, machine
    return Places(dict(sorted(found.items())), tuple(sorted(faults)))


def slurm_name(node: Object, *, host_network: bool) -> str:
    """Name of the Slurm node of a Kubernetes node. With hostNetwork slurmd has the machine's name in any case."""
    wish = "" if host_network else annotations_of(node).get(ANNOTATION_HOSTNAME, "").strip()
    return wish or short_name(node["metadata"]["name"])


def judged(
    workers: Sequence[Worker], wanted: Mapping[str, str], node_of: Callable[[str], Object | None]
) -> list[Worker]:
    """The workers, with the reason on those that are in no place of theirs; of two on one node one at work stays."""
    seen: set[str] = set()
    result = []
    for worker in sorted(workers, key=lambda one: (not one.placed, not one.ready, one.created, one.name)):
        if not worker.unwanted and not worker.deleting and worker.phase != "Ended":
            why = ""
            if worker.machine not in wanted:
                gone = node_of(worker.machine) is None
                why = f"Kubernetes node {worker.machine} {'is gone' if gone else 'does not match the NodeSet any more'}"
            elif wanted[worker.machine] != worker.slurm_name:
                why = f"Kubernetes node {worker.machine} is Slurm node {wanted[worker.machine]} now"
            elif worker.machine in seen:
                why = f"it is the second worker on Kubernetes node {worker.machine}"
            seen.add(worker.machine)
            worker = replace(worker, unwanted=why)
        result.append(worker)
    return result


def pins(
    before: Mapping[str, str], workers: Iterable[Worker], node_of: Callable[[str], Object | None], *, shared: bool
) -> dict[str, str]:
    """Kubernetes node by ordinal: where each worker is, and where those that are gone were.

    A node that Kubernetes does not know any more is forgotten: its worker may go anywhere. So is one on which, unless
    nodes are `shared`, another worker is now.
    """
    here = {str(one.ordinal): one.machine for one in workers if one.ordinal >= 0 and one.machine}
    used = set() if shared else set(here.values())
    old = {number: machine for number, machine in before.items() if machine not in used and node_of(machine)}
    return dict(sorted({**old, **here}.items(), key=lambda item: int(item[0]) if item[0].isdigit() else -1))


def fits(pod: Map, node: Object) -> tuple[bool, bool]:
    """Whether a new worker belongs on the node, and whether one that is there may stay."""
    if pod.get("nodeName") not in (None, "", node["metadata"]["name"]) or not _selected(pod, node):
        return False, False
    tolerations = pod.get("tolerations") or ()
    against = [
        taint["effect"]
        for taint in (node.get("spec") or {}).get("taints") or ()
        if taint.get("effect") in ("NoSchedule", "NoExecute")
        and not any(_tolerates(toleration, taint) for toleration in tolerations)
    ]
    return not against, "NoExecute" not in against


def _tolerates(toleration: Map, taint: Map) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    operator, key = toleration.get("operator") or "Equal", toleration.get("key") or ""
    if not key:
        return bool(operator == "Exists")
    if key != taint["key"]:
        return False
    return operator == "Exists" or (
        operator == "Equal" and (toleration.get("value") or "") == (taint.get("value") or "")
    )


def _selected(pod: Map, node: Object) -> bool:
    labels = labels_of(node)
    if any(labels.get(key) != value for key, value in (pod.get("nodeSelector") or {}).items()):
        return False
    required = ((pod.get("affinity") or {}).get("nodeAffinity") or {}).get(_REQUIRED)
    if required is None:
        return True
    return any(_term(term, node) for term in required.get("nodeSelectorTerms") or ())


def _term(term: Map, node: Object) -> bool:
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not expressions and not fields:
        return False  # as in Kubernetes: an empty term selects nothing
    names = {"metadata.name": node["metadata"]["name"]}
    return all(_holds(one, labels_of(node)) for one in expressions) and all(_holds(one, names) for one in fields)


def _holds(requirement: Map, labels: Mapping[str, str]) -> bool:
    """One requirement; what cannot be read selects nothing."""
    value, values = labels.get(requirement.get("key", "")), requirement.get("values") or []
    match requirement.get("operator"):
        case "In":
            return value is not None and value in values
        case "NotIn":
            return value is None or value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as operator:
            have, limit = _whole(value), _whole(values[0]) if len(values) == 1 else None
            if have is None or limit is None:
                return False
            return have > limit if operator == "Gt" else have < limit
    return False


def _whole(text: str | None) -> int | None:
    try:
        return int(text or "")
    except ValueError:
        return None
