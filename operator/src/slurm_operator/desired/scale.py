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

from slurm_operator.slurm.states import PREFIX, is_busy, is_drained, ours
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


@dataclass(frozen=True)
class Seen:
    """What there is. `slurm` maps Slurm node names to nodes; None means that Slurm cannot be asked now.

    `records` are Slurm's nodes of this NodeSet, with or without a pod; `lost` those of them that are to go even if an
    administrator drained them, since their machine is gone for good.
    """

    workers: Sequence[Worker]
    slurm: Mapping[str, NodeInfo] | None
    records: Collection[str] = ()
    lost: Collection[str] = ()
    now: float = 0.0


@dataclass(frozen=True)
class Plan:
    """What to do, in this order: undrain, drain, delete (after another look at Slurm), create, forget records."""

    undrain: tuple[str, ...] = ()
    drain: Mapping[str, str] = field(default_factory=dict)  # Slurm node -> reason
    delete: tuple[Worker, ...] = ()
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
            self.undrain, self.drain, self.delete, self.remake, self.create, self.place, self.forget, self.waiting
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

    delete = [worker for worker in ended if worker.retry_in <= 0]
    waiting: list[str] = []
    drain: dict[str, str] = {}
    for worker, why in [*((w, "scale-in") for w in leaving), *((w, "update") for w in replaced)]:
        step = _removal(worker, seen)
        if step == "delete":
            delete.append(worker)
            continue
        waiting.append(worker.name)
        if step == "drain":
            drain[worker.slurm_name] = _removal_reason(wanted.namespace, worker, why)

    kept = _without(staying, replaced)
    undrain, cordon = _cordons(kept, seen)
    remake, recheck = _unregistered(kept, seen)
    looks = [worker.retry_in for worker in ended if worker.retry_in > 0] + ([] if recheck is None else [recheck])
    return Plan(
        undrain=undrain,
        drain=drain | cordon,
        delete=tuple(delete[:BURST]),
        remake=remake,
        create=_missing(wanted, seen.workers) if wanted.places is None else (),
        place=_vacant(wanted.places, seen.workers) if wanted.places is not None else (),
        forget=_forgotten(seen),
        lost=frozenset(seen.lost),
        waiting=tuple(sorted(waiting)),
        leaving=tuple(sorted(worker.name for worker in leaving)),
        outdated=len(outdated),
        blind=seen.slurm is None and bool(waiting or any(worker.cordoned for worker in kept)),
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
    leaving_already = node is not None and ours(node.reason) and "DRAIN" in node.states and not worker.cordoned
    return (
        worker.placed,
        _PHASE_ORDER[worker.phase],
        worker.ready,
        worker.cost,
        busy,
        worker.deadline,
        not worker.cordoned,
        not leaving_already,
        -worker.ordinal,
        -worker.since,
        -worker.created,
    )


def _to_replace(wanted: Wanted, seen: Seen, staying: Sequence[Worker], outdated: Sequence[Worker]) -> list[Worker]:
    """Outdated workers whose turn it is: those that are of no use first, then others up to maxUnavailable."""
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


def _removal(worker: Worker, seen: Seen) -> Literal["delete", "drain", "wait"]:
    """Next step on the way out of a worker."""
    if not worker.placed:
        return "delete"
    if seen.slurm is None:
        return "wait"
    node = seen.slurm.get(worker.slurm_name)
    if node is None or is_drained(node):
        return "delete"
    return "wait" if "DRAIN" in node.states else "drain"


def _removal_reason(namespace: str, worker: Worker, why: str) -> str:
    what = "is pending termination for scale-in" if why == "scale-in" else "is to be replaced by a new revision"
    if worker.unwanted:
        what = f"is pending termination: {worker.unwanted}"
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
    """Ready workers that Slurm does not know, and when to look again at those that still have time."""
    if seen.slurm is None:
        return (), None
    lost: list[Worker] = []
    next_look: float | None = None
    for worker in kept:
        if not (worker.placed and worker.ready and worker.since) or worker.slurm_name in seen.slurm:
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
        answering = not ({"DOWN", "NOT_RESPONDING", "DRAIN"} & node.states)
        if not foreign and not answering:
            names.append(name)
    return tuple(sorted(names))
