"""Status of a NodeSet and the conditions of its pods, from what was seen and what is planned."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from slurm_operator.desired.drain import span
from slurm_operator.desired.scale import Plan, Seen, Wanted, Worker
from slurm_operator.desired.status import Report, listed
from slurm_operator.kube.objects import timestamp
from slurm_operator.slurm.states import is_busy, is_down, is_idle, is_schedulable, runs_work
from slurm_operator.slurm.types import JobInfo, NodeInfo

Map = dict[str, Any]
Jobs = Mapping[str, Sequence[JobInfo]]

BASE_STATES = ("ALLOCATED", "DOWN", "ERROR", "FUTURE", "IDLE", "MIXED", "UNKNOWN")
FLAGS = ("COMPLETING", "DRAIN", "FAIL", "INVALID", "INVALID_REG", "MAINTENANCE", "NOT_RESPONDING", "UNDRAIN")
CONDITION_PREFIX = "SlurmNodeState"
NEVER = "9999-12-31T23:59:59Z"
"""Deadline of a worker with a job that has no time limit."""
_SHOWN_JOBS = 5


def pod_conditions(node: NodeInfo) -> list[Map]:
    """Slurm's state of a worker as pod conditions: SlurmNodeStateIdle, SlurmNodeStateDrain, …"""
    return [
        {
            "type": f"{CONDITION_PREFIX}{''.join(word.capitalize() for word in state.split('_'))}",
            "status": "True",
            "reason": state.replace("_", "").capitalize(),
            "message": _why(node) if state == "DRAIN" else node.reason,
        }
        for state in (*BASE_STATES, *FLAGS)
        if state in node.states
    ]


def _why(node: NodeInfo) -> str:
    """Reason of a drain, by whom and since when, as Slurm's own tools show it."""
    since = node.reason_at.value()
    if not since or not node.reason_user:
        return node.reason
    return f"{node.reason} [{node.reason_user}@{timestamp(datetime.fromtimestamp(since, UTC))}]"


def deadline_text(ends: float) -> str | None:
    """When the jobs of a worker end at the latest, for its pod; None if that is not known.

    Rounded up to five minutes: each short job would cost a write otherwise.
    """
    if not ends:
        return None
    if math.isinf(ends):
        return NEVER
    return timestamp(datetime.fromtimestamp(math.ceil(ends / 300) * 300, UTC))


def protected(node: NodeInfo) -> bool:
    """A worker that no one may evict: it runs a job, or that is not known."""
    return is_busy(node)


def nodeset_report(
    wanted: Wanted,
    seen: Seen,
    plan: Plan,
    selector: str,
    generation: int,
    problems: Sequence[str],
    faults: Sequence[str] = (),
    jobs: Jobs | None = None,
    told: Sequence[str] = (),
) -> Report:
    """`problems` are pods that fail, `faults` what else is in the way.

    `jobs` are those that run on Slurm nodes, `told` says why some of them are waited for longer than asked.
    """
    jobs = jobs or {}
    live = [worker for worker in seen.workers if not worker.deleting and worker.phase != "Ended"]
    leaving = set(plan.leaving)
    staying = [worker for worker in live if worker.name not in leaving]
    fields = _counts(wanted, seen, live, selector, generation)
    available = sum(worker.available for worker in staying)
    if seen.slurm is None:
        text = f"{available} of {wanted.replicas} pods ready, but Slurm cannot be asked (is there a ready RestApi?)."
        ready = True if wanted.replicas == 0 and not live else None
        busy = _busy(plan, seen, jobs)
        return Report(ready, "SlurmUnknown", text, busy, listed(list(problems)), "PodsFailing", fields)
    usable = [worker for worker in staying if worker.available and _usable(worker, seen)]
    text = f"{len(usable)} of {wanted.replicas} workers ready"
    busy = _busy(plan, seen, jobs)
    if told:
        busy = f"{busy.rstrip('.')}; {listed(list(told))}."
    if not busy and len(usable) < wanted.replicas and not problems:
        busy = "The others are starting."
    fault, reason = _fault(staying, seen, problems, faults)
    done = len(usable) >= wanted.replicas and not plan.leaving and not (plan.outdated and wanted.rolling)
    if drained := sum("DRAIN" in seen.slurm[one.slurm_name].states for one in usable):
        text = f"{text}, {drained} of them drained"
    if done and not wanted.replicas and wanted.places is not None:
        text = "No Kubernetes node matches the pod's node selector, affinity and tolerations"
    if done:
        return Report(True, "Ready" if wanted.replicas else "NoneWanted", f"{text}.", busy, fault, reason, fields)
    parts = (text, fault, busy if busy != fault else "")
    message = "; ".join(f"{part[0].lower()}{part[1:]}".rstrip(".") for part in parts if part) + "."
    return Report(False, _reason(plan, problems, fault), message, busy, fault, reason, fields)


def _usable(worker: Worker, seen: Seen) -> bool:
    """Slurm can use it, or only an administrator's or our own drain keeps it from that."""
    node = (seen.slurm or {}).get(worker.slurm_name)
    return node is not None and not is_down(node) and "INVALID_REG" not in node.states


def _counts(wanted: Wanted, seen: Seen, live: Sequence[Worker], selector: str, generation: int) -> Map:
    nodes = [node for worker in live if (node := (seen.slurm or {}).get(worker.slurm_name)) is not None]
    available = sum(worker.available for worker in live)
    return {
        "replicas": len(live),
        "desired": wanted.replicas,
        "updatedReplicas": sum(worker.revision == wanted.revision for worker in live),
        "readyReplicas": sum(worker.ready for worker in live),
        "availableReplicas": available,
        "unavailableReplicas": max(0, wanted.replicas - available),
        "slurmIdle": sum(is_idle(node) and is_schedulable(node) for node in nodes),
        "slurmAllocated": sum(runs_work(node.states) for node in nodes),
        "slurmDown": sum(is_down(node) for node in nodes),
        "slurmDrain": sum("DRAIN" in node.states for node in nodes),
        "observedGeneration": generation,
        "nodeSetHash": wanted.revision,
        "selector": selector,
    }


def _busy(plan: Plan, seen: Seen, jobs: Jobs) -> str:
    parts = []
    if count := len(plan.create) + len(plan.place):
        parts.append(f"creating {count} workers")
    if plan.waiting:
        why = "until Slurm can be asked about" if plan.blind else "for the jobs of"
        parts.append(f"waiting {why} {listed(_with_jobs(plan.waiting, seen, jobs))}")
    if going := len(plan.delete) + len(plan.remake) + len(plan.let_go):
        parts.append(f"removing {going} workers")
    if plan.outdated:
        parts.append(f"{plan.outdated} workers of an old revision")
    return f"{'; '.join(parts)}." if parts else ""


def _with_jobs(names: Iterable[str], seen: Seen, jobs: Jobs) -> list[str]:
    """Pods with the jobs that they wait for: `debug-1 (jobs 12, 13)`."""
    slurm_names = {worker.name: worker.slurm_name for worker in seen.workers}
    result = []
    for name in names:
        ids = [str(job.id) for job in jobs.get(slurm_names.get(name, ""), ())]
        more = f", and {len(ids) - _SHOWN_JOBS} more" if len(ids) > _SHOWN_JOBS else ""
        shown = f" (job{'s' if len(ids) > 1 else ''} {', '.join(ids[:_SHOWN_JOBS])}{more})" if ids else ""
        result.append(f"{name}{shown}")
    return result


def going_report(wanted: Wanted, seen: Seen, plan: Plan, told: Sequence[str], jobs: Jobs, how_to_skip: str) -> Report:
    """Report of a NodeSet that is deleted, or whose Controller is. `told` says what is in the way besides."""
    parts = [_busy(plan, seen, jobs).rstrip(".") or "waiting for the pods to end", *told]
    rule = wanted.policy.deletion
    if plan.waiting and seen.slurm is None:
        parts.append(f"after {span(wanted.policy.unreachable)} without an answer of Slurm they are let go")
    elif plan.waiting and rule.mode != "Wait":
        until = timestamp(datetime.fromtimestamp(wanted.going + rule.limit, UTC))
        parts.append(f"what still runs at {until} is requeued, or ended where it cannot be")
    if plan.waiting:
        parts.append(how_to_skip)
    text = f"{'; '.join(parts)}."
    text = f"{text[0].upper()}{text[1:]}"
    live = [worker for worker in seen.workers if not worker.deleting]
    return Report(False, "Deleting", text, busy=text, fields=_counts(wanted, seen, live, "", 0))


def _fault(staying: Sequence[Worker], seen: Seen, problems: Sequence[str], faults: Sequence[str]) -> tuple[str, str]:
    if problems:
        return listed(list(problems)), "PodsFailing"
    bad = []
    for worker in staying:
        node = (seen.slurm or {}).get(worker.slurm_name)
        if node is not None and worker.ready and not _usable(worker, seen):
            bad.append(f"Slurm node {node.name} is {'+'.join(sorted(node.states))}: {node.reason or 'no reason given'}")
    if bad:
        return listed(sorted(bad)), "NodesDown"
    return listed(list(faults)), "Refused"


def _reason(plan: Plan, problems: Sequence[str], fault: str) -> str:
    if problems:
        return "PodsFailing"
    if plan.leaving:
        return "ScalingIn"
    if plan.outdated:
        return "Updating"
    return "NodesDown" if fault else "Starting"
