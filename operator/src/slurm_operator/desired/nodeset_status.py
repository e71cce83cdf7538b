"""Status of a NodeSet and the conditions of its pods, from what was seen and what is planned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slurm_operator.desired.scale import Plan, Seen, Wanted, Worker
from slurm_operator.desired.status import Report, listed
from slurm_operator.slurm.states import is_busy, is_down, is_idle, is_schedulable, runs_work
from slurm_operator.slurm.types import NodeInfo

Map = dict[str, Any]

BASE_STATES = ("ALLOCATED", "DOWN", "ERROR", "FUTURE", "IDLE", "MIXED", "UNKNOWN")
FLAGS = ("COMPLETING", "DRAIN", "FAIL", "INVALID", "INVALID_REG", "MAINTENANCE", "NOT_RESPONDING", "UNDRAIN")
CONDITION_PREFIX = "SlurmNodeState"


def pod_conditions(node: NodeInfo) -> list[Map]:
    """Slurm's state of a worker as pod conditions: SlurmNodeStateIdle, SlurmNodeStateDrain, …"""
    return [
        {
            "type": f"{CONDITION_PREFIX}{''.join(word.capitalize() for word in state.split('_'))}",
            "status": "True",
            "reason": state.replace("_", "").capitalize(),
            "message": node.reason,
        }
        for state in (*BASE_STATES, *FLAGS)
        if state in node.states
    ]


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
    missing: str = "",
) -> Report:
    """`problems` are pods that fail, `faults` what else is in the way, `missing` tells of fields without effect."""
    live = [worker for worker in seen.workers if not worker.deleting and worker.phase != "Ended"]
    leaving = set(plan.leaving)
    staying = [worker for worker in live if worker.name not in leaving]
    fields = _counts(wanted, seen, live, selector, generation)
    available = sum(worker.available for worker in staying)
    if seen.slurm is None:
        text = f"{available} of {wanted.replicas} pods ready, but Slurm cannot be asked (is there a ready RestApi?)."
        ready = True if wanted.replicas == 0 and not live else None
        return Report(ready, "SlurmUnknown", text, _busy(plan), listed(list(problems)), "PodsFailing", fields)
    usable = [worker for worker in staying if worker.available and _usable(worker, seen)]
    text = f"{len(usable)} of {wanted.replicas} workers ready"
    busy = _busy(plan)
    if not busy and len(usable) < wanted.replicas and not problems:
        busy = "The others are starting."
    fault, reason = _fault(staying, seen, problems, faults, missing)
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


def _busy(plan: Plan) -> str:
    parts = []
    if count := len(plan.create) + len(plan.place):
        parts.append(f"creating {count} workers")
    if plan.waiting:
        why = "until Slurm can be asked about" if plan.blind else "for the jobs of"
        parts.append(f"waiting {why} {listed(list(plan.waiting))}")
    if plan.delete or plan.remake:
        parts.append(f"removing {len(plan.delete) + len(plan.remake)} workers")
    if plan.outdated:
        parts.append(f"{plan.outdated} workers of an old revision")
    return f"{'; '.join(parts)}." if parts else ""


def _fault(
    staying: Sequence[Worker], seen: Seen, problems: Sequence[str], faults: Sequence[str], missing: str
) -> tuple[str, str]:
    if problems:
        return listed(list(problems)), "PodsFailing"
    bad = []
    for worker in staying:
        node = (seen.slurm or {}).get(worker.slurm_name)
        if node is not None and worker.ready and not _usable(worker, seen):
            bad.append(f"Slurm node {node.name} is {'+'.join(sorted(node.states))}: {node.reason or 'no reason given'}")
    if bad:
        return listed(sorted(bad)), "NodesDown"
    if faults:
        return listed(list(faults)), "Refused"
    return missing, "NotSupported"


def _reason(plan: Plan, problems: Sequence[str], fault: str) -> str:
    if problems:
        return "PodsFailing"
    if plan.leaving:
        return "ScalingIn"
    if plan.outdated:
        return "Updating"
    return "NodesDown" if fault else "Starting"
