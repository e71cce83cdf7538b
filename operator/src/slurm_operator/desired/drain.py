"""How workers leave: policies for their jobs, the steps on the way out, and cordons in both directions.

Pure functions; `desired.scale` makes the plan of a NodeSet with them. Times are UNIX seconds, durations seconds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from slurm_operator.api.drainpolicy import DrainPolicySpec, DrainRule, LabelSelector, Modes, Requirement
from slurm_operator.api.load import InvalidSpec
from slurm_operator.api.names import ANNOTATION_CORDONED_FOR, ANNOTATION_NODE_CORDON_REASON
from slurm_operator.kube.objects import annotations_of
from slurm_operator.kube.resources import Object
from slurm_operator.slurm.states import is_busy, is_drained, ours
from slurm_operator.slurm.types import NodeInfo

if TYPE_CHECKING:
    from slurm_operator.desired.scale import Worker

DAY = 86400.0
LET_GO_AFTER = 600.0
"""When everything was tried at the time limit of a deletion, workers go so much later even if their jobs do not."""
GHOST_AFTER = 180.0
"""A ready worker that Slurm has not reached for so long gets a new pod."""
KUBERNETES_OWN = ("node.kubernetes.io/", "nodeset.slinky.slurm.net/worker")
"""Taints that are no reason for a drain: Kubernetes' signs of a node's condition come and go, the worker's is ours."""
REASON_LIMIT = 256  # characters of a cordon reason that reach Slurm

_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?$")


@dataclass(frozen=True)
class Rule:
    """What becomes of jobs in one case; `limit` is when mode WaitThenRequeue requeues, or a deletion gives up."""

    mode: Modes = "Wait"
    limit: float = math.inf

    def requeues_in(self, waited: float) -> float:
        """Seconds until the jobs are to be requeued; infinite for never."""
        return {"Wait": math.inf, "WaitThenRequeue": max(0.0, self.limit - waited), "Requeue": 0.0}[self.mode]


@dataclass(frozen=True)
class Policy:
    """A DrainPolicy, read. The defaults hold where there is none."""

    name: str = ""
    scale_in: Rule = Rule()
    deletion: Rule = Rule("WaitThenRequeue", DAY)
    cordon: Rule = Rule()
    cancel: bool = False
    unreachable: float = 3600.0
    cordon_machines: bool = False


NO_POLICY = Policy()


def duration(text: str, where: str) -> float:
    """Seconds of `1d2h3m4s`. Raises InvalidSpec, naming the field."""
    match = _DURATION.match(text)
    if not match or not any(match.groups()):
        raise InvalidSpec(f"{where}: {text!r} is no duration; write 30m, 2h or 1d12h for example")
    return float(sum(int(part or 0) * unit for part, unit in zip(match.groups(), (86400, 3600, 60, 1), strict=True)))


def span(seconds: float) -> str:
    """A duration as people write it: 1d, 36h, 90s."""
    whole = int(seconds)
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if whole and whole % size == 0:
            return f"{whole // size}{unit}"
    return f"{whole}s"


def policy_of(name: str, spec: DrainPolicySpec) -> Policy:
    """Raises InvalidSpec, naming the field."""

    def rule(given: DrainRule, field: str, unlimited: float) -> Rule:
        where = f"spec.{field}.timeLimit"
        if given.mode == "WaitThenRequeue" and not given.time_limit:
            raise InvalidSpec(f"{where}: mode WaitThenRequeue needs it, 2h for example")
        return Rule(given.mode, duration(given.time_limit, where) if given.time_limit else unlimited)

    return Policy(
        name=name,
        scale_in=rule(spec.scale_in, "scaleIn", math.inf),
        deletion=rule(spec.deletion, "deletion", DAY),
        cordon=rule(spec.cordon, "cordon", math.inf),
        cancel=spec.not_requeueable == "Cancel",
        unreachable=duration(spec.unreachable_limit, "spec.unreachableLimit"),
        cordon_machines=spec.cordon_kubernetes_node,
    )


def weight(spec: DrainPolicySpec, name: str, labels: Mapping[str, str]) -> int:
    """How much a policy means a NodeSet: 0 not at all, 1 as any, 2 by its labels, 3 by its name."""
    if spec.node_sets:
        return 3 if name in spec.node_sets else 0
    if spec.selector is not None:
        return 2 if selects(spec.selector, labels) else 0
    return 1


def selects(selector: LabelSelector, labels: Mapping[str, str]) -> bool:
    """Kubernetes' meaning of a label selector."""

    def holds(one: Requirement) -> bool:
        have = labels.get(one.key)
        match one.operator:
            case "In":
                return have is not None and have in one.values
            case "NotIn":
                return have is None or have not in one.values
            case "Exists":
                return have is not None
            case "DoesNotExist":
                return have is None

    exact = all(labels.get(key) == value for key, value in selector.match_labels.items())
    return exact and all(holds(one) for one in selector.match_expressions)


def in_charge(
    name: str, labels: Mapping[str, str], policies: Iterable[tuple[Object, DrainPolicySpec]]
) -> tuple[str, tuple[str, ...]]:
    """The policy of a NodeSet, and others that claim it as much: then the oldest counts. "" where there is none."""
    claims = [
        (-weight(spec, name, labels), policy["metadata"]["creationTimestamp"], policy["metadata"]["name"])
        for policy, spec in policies
        if weight(spec, name, labels)
    ]
    claims.sort()
    rivals = tuple(claim[2] for claim in claims[1:] if claim[0] == claims[0][0])
    return (claims[0][2], rivals) if claims else ("", ())


# --- the way out of one worker ---

Move = Literal["delete", "drain", "wait"]


def next_move(worker: Worker, slurm: Mapping[str, NodeInfo] | None, now: float) -> Move:
    """Next step on the way out of a worker. What cannot be known to be idle is waited for."""
    if not worker.placed:
        return "delete"
    if slurm is None:
        return "wait"
    node = slurm.get(worker.slurm_name)
    if node is None:
        return "wait" if may_run_unseen(worker, now) else "delete"
    if is_drained(node):
        return "delete"
    return "wait" if "DRAIN" in node.states else "drain"


def may_run_unseen(worker: Worker, now: float) -> bool:
    """Slurm has no such node (its state was lost, or it answers for another one), but there were jobs when it had.

    They can be taken for ended only when their time limit is over.
    """
    return worker.was_busy and not 0 < worker.deadline < now


def waited(node: NodeInfo, now: float) -> float:
    """Seconds since the drain was set: Slurm remembers, so that a restart of the operator loses nothing."""
    since = node.reason_at.value() or 0
    return max(0.0, now - since) if since else 0.0


# --- cordons: from Kubernetes to Slurm ---


def cordon_reason(node: Object | None, tolerations: Sequence[Object], pod: str, shown: Iterable[str] = ()) -> str:
    """Why a worker on this Kubernetes node must be drained; "" when it need not.

    `pod` is "namespace/name", `shown` are types of node conditions that tell the reason of a cordon. A node that the
    operator itself cordoned because of a Slurm drain says nothing new.
    """
    if node is None:
        return ""
    spec = node.get("spec") or {}
    name, annotations = node["metadata"]["name"], annotations_of(node)
    cordoned = bool(spec.get("unschedulable")) and not annotations.get(ANNOTATION_CORDONED_FOR)
    tainted = [taint for taint in spec.get("taints") or () if _repels(taint, tolerations)]
    if not cordoned and not tainted:
        return ""
    if given := " ".join(annotations.get(ANNOTATION_NODE_CORDON_REASON, "").split()):
        return given[:REASON_LIMIT]
    wanted = set(shown)
    told = [
        f"({entry.get('reason', '')}: {' '.join(entry.get('message', '').split())})"
        for entry in (node.get("status") or {}).get("conditions") or ()
        if entry.get("type") in wanted and entry.get("status") == "True"
    ]
    if told:
        return "; ".join(told)[:REASON_LIMIT]
    if tainted:
        taint = tainted[0]
        value = f"={taint['value']}" if taint.get("value") else ""
        return f"Node ({name}) has taint {taint['key']}{value}:{taint['effect']}, Pod ({pod}) must be cordoned"
    return f"Node ({name}) was cordoned, Pod ({pod}) must be cordoned"


def _repels(taint: Object, tolerations: Sequence[Object]) -> bool:
    if taint.get("effect") not in ("NoSchedule", "NoExecute") or taint["key"].startswith(KUBERNETES_OWN):
        return False
    return not any(_tolerates(toleration, taint) for toleration in tolerations)


def _tolerates(toleration: Object, taint: Object) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    key, operator = toleration.get("key") or "", toleration.get("operator") or "Equal"
    if not key:
        return bool(operator == "Exists")
    same = (toleration.get("value") or "") == (taint.get("value") or "")
    return bool(key == taint["key"] and (operator == "Exists" or same))


# --- cordons: from Slurm to Kubernetes ---


def cordon_cause(namespace: str, nodeset: str, slurm_name: str) -> str:
    """Value of the annotation on a Kubernetes node that the operator cordoned."""
    return f"{namespace}/{nodeset}/{slurm_name}"


def machine_cordons(
    namespace: str,
    nodeset: str,
    enabled: bool,
    workers: Iterable[Worker],
    slurm: Mapping[str, NodeInfo],
    node_of: Callable[[str], Object | None],
    ours_now: Iterable[Object],
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Kubernetes nodes to cordon (with the annotation to set) and those to uncordon.

    `ours_now` are the Kubernetes nodes that were cordoned for this NodeSet. One that was cordoned before, or that a
    person uncordoned in the meantime, is left as it is.
    """

    def drained(name: str) -> bool:
        node = slurm.get(name)
        return enabled and node is not None and "DRAIN" in node.states and not ours(node.reason)

    cordon: dict[str, str] = {}
    for worker in workers:
        machine = node_of(worker.machine) if worker.placed and not worker.deleting else None
        if machine is None or not drained(worker.slurm_name):
            continue
        spec = machine.get("spec") or {}
        if not spec.get("unschedulable") and not annotations_of(machine).get(ANNOTATION_CORDONED_FOR):
            cordon[machine["metadata"]["name"]] = cordon_cause(namespace, nodeset, worker.slurm_name)
    undo = [
        machine["metadata"]["name"]
        for machine in ours_now
        if not drained(annotations_of(machine).get(ANNOTATION_CORDONED_FOR, "").rpartition("/")[2])
    ]
    return cordon, tuple(sorted(undo))


def still_busy(node: NodeInfo | None) -> bool:
    """Jobs run here, on a node that takes no more: they may be requeued."""
    return node is not None and "DRAIN" in node.states and is_busy(node)


def is_ghost(node: NodeInfo, now: float) -> bool:
    """Slurm has given the node up for a while (so nothing runs there), although its pod may well be ready."""
    if not {"DOWN", "NOT_RESPONDING"} <= node.states or is_busy(node):
        return False
    given_up = not node.reason or ours(node.reason) or node.reason.startswith("Not responding")
    return given_up and waited(node, now) >= GHOST_AFTER
