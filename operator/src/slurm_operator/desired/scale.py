"""What to do about the workers of a NodeSet: a pure plan from what is wanted and what was seen.

Rules that hold whatever else happens:
- A pod is only removed when nothing can run in it: it was never placed on a machine, it has ended, or Slurm says in so
  many words that its node is idle. When Slurm cannot be asked, every placed pod counts as busy.
- Drains of others are respected: the operator undoes a drain only if its reason has the operator's prefix.
- The plan depends on the present alone, so a killed operator goes on where it was.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from slurm_operator.desired.drain import (
    LET_GO_AFTER,
    NO_POLICY,
    Policy,
    is_ghost,
    may_run_unseen,
    next_move,
    still_busy,
    waited,
)
from slurm_operator.slurm.states import PREFIX, is_busy, ours
from slurm_operator.slurm.types import NodeInfo

BURST = 250
"""Most pods that one pass creates or deletes."""

UNREGISTERED_AFTER = 60.0
"""Seconds that a ready worker may be unknown to Slurm before its pod is made anew."""

Phase = Literal["Pending", "Running", "Ended", "Unknown"]
_PHASE_ORDER = {"Pending": 0, "Unknown": 1, "Running": 2, "Ended": 0}


@dataclass(frozen=True)
class Worker:
    """One worker pod, as far as the plan needs it. Times are UNIX seconds; `since` is when it turned ready.

    In scalingMode DaemonSet a worker has no number: its ordinal is -1.
    """

    name: str
    uid: str
    ordinal: int
    slurm_name: str
    revision: str
    phase: Phase = "Running"
    placed: bool = True
    ready: bool = True
    available: bool = True
    deleting: bool = False
    cordoned: str = ""
    """Why its machine or the pod itself is cordoned, as a drain reason without prefix; "" when it is not."""
    cost: int = 0
    deadline: float = 0.0
    since: float = 0.0
    created: float = 0.0
    machine: str = ""
    """The Kubernetes node it runs on, or may only run on."""
    unwanted: str = ""
    """Why it has to go whatever the number of workers; "" when it need not."""
    retry_in: float = 0.0
    """Of an ended worker: seconds until it is replaced."""
    started: bool = True
    """Its slurmd has come up; False only if that is certain."""
    was_busy: bool = False
    """There were jobs when Slurm was last heard of it, as the pod's own conditions tell."""


@dataclass(frozen=True)
class Wanted:
    """What the NodeSet asks for: `replicas` workers, or (scalingMode DaemonSet) one on each of `places`.

    `places` maps Kubernetes nodes to the names of their Slurm nodes; replicas is then their number.
    """

    namespace: str
    replicas: int
    revision: str
    rolling: bool = True
    max_unavailable: int | str = "25%"
    places: Mapping[str, str] | None = None
    policy: Policy = NO_POLICY
    going: float = 0.0
    """When the NodeSet, or its Controller, was deleted; then `replicas` is 0."""
    skip: bool = False
    """It was deleted, and somebody said not to wait for the jobs."""
    maintenance: str = ""
    """Slurm reservation in which outdated workers are replaced (updateStrategy ScheduledUpdate)."""


@dataclass(frozen=True)
class Seen:
    """What there is. `slurm` maps Slurm node names to nodes; None means that Slurm cannot be asked now.

    `records` are Slurm's nodes of this NodeSet, with or without a pod; `lost` those of them that are to go even if an
    administrator drained them, since their machine is gone for good.
    """

    workers: Sequence[Worker]
    slurm: Mapping[str, NodeInfo] | None
    records: Collection[str] = ()
    told: Collection[str] = ()
    """Of the records, those that say themselves which pod they are."""
    lost: Collection[str] = ()
    now: float = 0.0
    blind_for: float = 0.0
    """Seconds since Slurm could last be asked, as far as this process knows."""


@dataclass(frozen=True)
class Plan:
    """What to do, in this order: undrain, drain, requeue, delete (after another look at Slurm), create, forget."""

    undrain: tuple[str, ...] = ()
    drain: Mapping[str, str] = field(default_factory=dict)  # Slurm node -> reason
    requeue: Mapping[str, bool] = field(default_factory=dict)  # Slurm node -> also what cannot be requeued has to go
    let_go: tuple[Worker, ...] = ()  # to delete whatever Slurm says: the NodeSet is deleted and its time is up
    delete: tuple[Worker, ...] = ()
    begun: tuple[Worker, ...] = ()  # their way out begins with a drain of this plan, which idle ones need not outlive
    remake: tuple[Worker, ...] = ()  # unknown to Slurm though ready
    create: tuple[int, ...] = ()
    place: tuple[str, ...] = ()  # Kubernetes nodes to create workers on
    forget: tuple[str, ...] = ()  # Slurm nodes without a pod
    lost: frozenset[str] = frozenset()  # of these, the ones whose drain does not matter any more
    waiting: tuple[str, ...] = ()  # pods to remove that still run a job, or may
    leaving: tuple[str, ...] = ()  # pods that scale-in removes
    outdated: int = 0
    blind: bool = False  # something could not be decided because Slurm cannot be asked
    recheck: float | None = None

    @property
    def idle(self) -> bool:
        """Nothing to do and nothing under way."""
        work = (
            self.undrain, self.drain, self.requeue, self.delete, self.let_go, self.remake, self.create, self.place,
            self.forget, self.waiting,
        )  # fmt: skip
        return not any(work) and not self.outdated


def plan_scale(wanted: Wanted, seen: Seen) -> Plan:
    """The plan for one NodeSet."""
    present = [worker for worker in seen.workers if not worker.deleting]
    ended = [worker for worker in present if worker.phase == "Ended"]
    live = [worker for worker in present if worker.phase != "Ended"]
    unwanted = [worker for worker in live if worker.unwanted]
    rest = sorted((worker for worker in live if not worker.unwanted), key=lambda worker: _order(worker, seen))
    leaving = unwanted + rest[: max(0, len(rest) - wanted.replicas)]
    staying = _without(live, leaving)
    outdated = [worker for worker in staying if worker.revision != wanted.revision]
    replaced = _to_replace(wanted, seen, staying, outdated)

    kept = _without(staying, replaced)
    undrain, cordon = _cordons(kept, seen)
    exits = _exits(wanted, seen, leaving, replaced)
    requeue, look = _overdue(wanted, seen, leaving + replaced, [worker for worker in kept if worker.cordoned])
    remake, recheck = _unregistered(kept, seen)
    looks = [worker.retry_in for worker in ended if worker.retry_in > 0]
    looks += [time for time in (look, recheck) if time is not None]
    return Plan(
        undrain=undrain,
        drain=exits.drain | cordon,
        requeue=requeue,
        let_go=tuple(exits.let_go),
        delete=tuple([*(worker for worker in ended if worker.retry_in <= 0 or wanted.going), *exits.delete][:BURST]),
        begun=tuple(exits.begun),
        remake=remake,
        create=_missing(wanted, seen.workers) if wanted.places is None else (),
        place=_vacant(wanted.places, seen.workers) if wanted.places is not None else (),
        forget=_forgotten(seen),
        lost=frozenset(seen.lost),
        waiting=tuple(sorted(exits.waiting)),
        leaving=tuple(sorted(worker.name for worker in leaving)),
        outdated=len(outdated),
        blind=seen.slurm is None and bool(exits.waiting or any(worker.cordoned for worker in kept)),
        recheck=min(looks) if looks else None,
    )


def unavailable_limit(value: int | str, replicas: int) -> int:
    """maxUnavailable as a number of workers: shares are rounded up, and one worker may always be out."""
    if isinstance(value, str) and value.endswith("%") and value[:-1].isdigit():
        return max(1, math.ceil(replicas * int(value[:-1]) / 100))
    text = str(value)
    return max(1, int(text) if text.isdigit() else 1)


def _order(worker: Worker, seen: Seen) -> tuple[object, ...]:
    """Sort key of scale-in: who goes first. Users steer it by the annotations for cost and deadline."""
    node = (seen.slurm or {}).get(worker.slurm_name)
    busy = worker.placed and (seen.slurm is None or (node is not None and is_busy(node)))
    # No deadline means idle. One that is busy until nobody knows when goes last.
    deadline = worker.deadline or (math.inf if busy else 0.0)
    return (
        worker.placed,
        _PHASE_ORDER[worker.phase],
        worker.ready,
        worker.cost,
        deadline,
        not (worker.cordoned or _draining_by_us(worker, seen)),
        -worker.ordinal,
        -worker.since,
        -worker.created,
    )


def _to_replace(wanted: Wanted, seen: Seen, staying: Sequence[Worker], outdated: Sequence[Worker]) -> list[Worker]:
    """Outdated workers whose turn it is: those that are of no use first, then others up to maxUnavailable."""
    if wanted.maintenance:
        return [worker for worker in outdated if _in_maintenance(worker, seen, wanted.maintenance)]
    if not wanted.rolling:
        return []
    useless = [worker for worker in outdated if not worker.available]
    out = wanted.replicas - sum(worker.available for worker in staying)
    room = max(0, unavailable_limit(wanted.max_unavailable, wanted.replicas) - max(0, out))
    healthy = [worker for worker in outdated if worker.available]
    # Those that already drain for it come first: otherwise each pass would begin with another worker.
    healthy.sort(key=lambda worker: (not _draining_by_us(worker, seen), *_order(worker, seen)))
    return useless + healthy[:room]


def _draining_by_us(worker: Worker, seen: Seen) -> bool:
    node = (seen.slurm or {}).get(worker.slurm_name)
    return node is not None and "DRAIN" in node.states and ours(node.reason)


def _in_maintenance(worker: Worker, seen: Seen, reservation: str) -> bool:
    node = (seen.slurm or {}).get(worker.slurm_name)
    return node is not None and "MAINTENANCE" in node.states and reservation in node.reservation.split(",")


@dataclass
class _Exits:
    """Workers that have to leave, by what is next for them."""

    delete: list[Worker] = field(default_factory=list)
    let_go: list[Worker] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    drain: dict[str, str] = field(default_factory=dict)
    begun: list[Worker] = field(default_factory=list)


def _exits(wanted: Wanted, seen: Seen, leaving: Sequence[Worker], replaced: Sequence[Worker]) -> _Exits:
    result = _Exits()
    going = {worker.name for worker in leaving}
    for worker in (*leaving, *replaced):
        if wanted.going and _let_go(wanted, seen, worker):
            result.let_go.append(worker)
            continue
        move = next_move(worker, seen.slurm, seen.now)
        if move == "delete":
            result.delete.append(worker)
            continue
        result.waiting.append(worker.name)
        if move == "drain":
            why = "deletion" if wanted.going else "scale-in" if worker.name in going else "update"
            result.drain[worker.slurm_name] = _removal_reason(wanted.namespace, worker, why)
            result.begun.append(worker)
    return result


def _let_go(wanted: Wanted, seen: Seen, worker: Worker) -> bool:
    """Of a worker of a deleted NodeSet: nothing can run in it, or the time is up that was given for it."""
    if wanted.skip:
        return True
    if seen.slurm is None and (not worker.started or seen.blind_for >= wanted.policy.unreachable):
        return True
    rule = wanted.policy.deletion
    return rule.mode != "Wait" and seen.now - wanted.going >= rule.limit + LET_GO_AFTER


def _overdue(
    wanted: Wanted, seen: Seen, leaving: Sequence[Worker], cordoned: Sequence[Worker]
) -> tuple[dict[str, bool], float | None]:
    """Drained nodes whose jobs have been waited for long enough, and when the next one's time is up."""
    requeue: dict[str, bool] = {}
    next_look = math.inf
    for number, worker in enumerate((*leaving, *cordoned)):
        node = (seen.slurm or {}).get(worker.slurm_name)
        if node is None or not still_busy(node):
            continue
        if number >= len(leaving):
            if not ours(node.reason):
                continue  # somebody else's drain: what becomes of its jobs is theirs to say
            rule, time = wanted.policy.cordon, waited(node, seen.now)
        elif wanted.going:
            rule, time = wanted.policy.deletion, seen.now - wanted.going
        else:
            rule, time = wanted.policy.scale_in, waited(node, seen.now)
        left = rule.requeues_in(time)
        if left <= 0:
            requeue[worker.slurm_name] = bool(wanted.going) and time >= rule.limit
        next_look = min(next_look, left if left > 0 else math.inf)
    return requeue, None if math.isinf(next_look) else next_look


def _removal_reason(namespace: str, worker: Worker, why: str) -> str:
    what = {
        "scale-in": f"is pending termination{f': {worker.unwanted}' if worker.unwanted else ' for scale-in'}",
        "update": "is to be replaced by a new revision",
        "deletion": "is pending termination, its NodeSet is being deleted",
    }[why]
    return f"{PREFIX}Pod ({namespace}/{worker.name}) {what}"


def _cordons(kept: Iterable[Worker], seen: Seen) -> tuple[tuple[str, ...], dict[str, str]]:
    """Drains to undo because their cause is gone, and drains to make or rename because of a cordon."""
    undrain: list[str] = []
    drain: dict[str, str] = {}
    for worker in kept:
        node = (seen.slurm or {}).get(worker.slurm_name)
        if node is None:
            continue
        draining = "DRAIN" in node.states
        if worker.cordoned:
            reason = f"{PREFIX}{worker.cordoned}"
            if not draining or (ours(node.reason) and node.reason != reason):
                drain[worker.slurm_name] = reason
        elif draining and ours(node.reason) and worker.ready:
            undrain.append(worker.slurm_name)
    return tuple(sorted(undrain)), drain


def _unregistered(kept: Iterable[Worker], seen: Seen) -> tuple[tuple[Worker, ...], float | None]:
    """Ready workers that Slurm does not know or lost touch with, and when to look again at those that have time."""
    if seen.slurm is None:
        return (), None
    lost: list[Worker] = []
    next_look: float | None = None
    for worker in kept:
        if not (worker.placed and worker.ready and worker.since):
            continue
        node = seen.slurm.get(worker.slurm_name)
        if node is None and may_run_unseen(worker, seen.now):
            continue
        if node is not None and not is_ghost(node, seen.now):
            continue
        left = worker.since + UNREGISTERED_AFTER - seen.now
        if left <= 0:
            lost.append(worker)
        else:
            next_look = left if next_look is None else min(next_look, left)
    return tuple(lost), next_look


def _without(workers: Iterable[Worker], others: Iterable[Worker]) -> list[Worker]:
    """The workers that are not among the others, by name: comparing 5,000 with 2,500 field by field takes seconds."""
    names = {worker.name for worker in others}
    return [worker for worker in workers if worker.name not in names]


def _missing(wanted: Wanted, workers: Iterable[Worker]) -> tuple[int, ...]:
    """Ordinals to create, lowest first. A pod holds its place until it is gone: two cannot have one name."""
    held = {worker.ordinal for worker in workers if worker.ordinal >= 0}
    count = min(BURST, wanted.replicas - len(held))
    free: list[int] = []
    ordinal = 0
    while len(free) < count:
        if ordinal not in held:
            free.append(ordinal)
        ordinal += 1
    return tuple(free)


def _vacant(places: Mapping[str, str], workers: Iterable[Worker]) -> tuple[str, ...]:
    """Places without a worker. Like an ordinal, a machine and a name are held until the pod is gone."""
    held = {worker.machine for worker in workers}
    names = {worker.slurm_name for worker in workers}
    return tuple(machine for machine, name in places.items() if machine not in held and name not in names)[:BURST]


def _forgotten(seen: Seen) -> tuple[str, ...]:
    """Records of workers that are gone. One that an administrator drained is kept, reason and all, unless it is lost.

    Also of those that are about to come back: Slurm gives a node that registers again what its old record says, so a
    new revision's CPUs, GPUs or weight would never be seen.
    """
    if seen.slurm is None:
        return ()
    present = {worker.slurm_name for worker in seen.workers}
    names = []
    for name in seen.records:
        node = seen.slurm.get(name)
        if name in present or node is None or is_busy(node):
            continue
        foreign = "DRAIN" in node.states and not ours(node.reason) and name not in seen.lost
        # Slurm believes in a machine that is gone for minutes; without a pod of ours nobody answers there.
        answering = name not in seen.told and not ({"DOWN", "NOT_RESPONDING", "DRAIN"} & node.states)
        if not foreign and not answering:
            names.append(name)
    return tuple(sorted(names))
