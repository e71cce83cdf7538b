"""Status of every kind, computed in one place from what was observed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from slurm_operator.kube.objects import condition, is_deleting
from slurm_operator.kube.resources import Object

Map = dict[str, Any]
_MAX_NAMED = 3


@dataclass(frozen=True)
class Report:
    """What there is to say about a resource: `ready` None means that it could not be found out.

    `reason` is one CamelCase word for machines, `message` a sentence for people. `fault` is set when something is wrong
    that does not pass by waiting; `busy` while the operator still has work under way.
    """

    ready: bool | None
    reason: str
    message: str
    busy: str = ""
    fault: str = ""
    fault_reason: str = "Fault"
    fields: Map = field(default_factory=dict)
    more: tuple[Map, ...] = ()
    """Further conditions of the kind: type, status, reason, message."""


def conditions(report: Report, generation: int) -> list[Map]:
    """Ready, Progressing and Degraded; the times of their changes are set where they are written."""
    status = {True: "True", False: "False", None: "Unknown"}[report.ready]
    progressing = ("True", "Working", report.busy) if report.busy else ("False", "Settled", "Nothing is under way.")
    degraded = (
        ("True", report.fault_reason, report.fault) if report.fault else ("False", "AsExpected", "No fault is known.")
    )
    rows = [
        ("Ready", status, report.reason, report.message),
        ("Progressing", *progressing),
        ("Degraded", *degraded),
    ]
    return [
        {"type": kind, "status": state, "reason": reason, "message": message, "observedGeneration": generation}
        for kind, state, reason, message in rows
    ] + [{**entry, "observedGeneration": generation} for entry in report.more]


def pod_ready(pod: Object) -> bool:
    found = condition(pod, "Ready")
    return found is not None and found.get("status") == "True" and not is_deleting(pod)


def pod_problem(pod: Object) -> str:
    """Why a pod is not ready, in a person's words; "" when it just takes its time."""
    status = pod.get("status") or {}
    if status.get("phase") == "Failed":
        return str(status.get("message") or status.get("reason") or "the pod failed")
    scheduled = condition(pod, "PodScheduled")
    if scheduled and scheduled.get("status") == "False":
        return str(scheduled.get("message") or "it cannot be placed on any node")
    for container in [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]:
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") == "CrashLoopBackOff":
            ended = (container.get("lastState") or {}).get("terminated") or {}
            how = f"exit code {ended.get('exitCode', '?')}, {ended.get('reason', 'Error')}"
            return f"{container['name']} keeps ending ({how}): see its logs"
        if waiting.get("reason") not in (None, "", "ContainerCreating", "PodInitializing"):
            return f"{container['name']}: {waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")
    return ""


def problems(pods: Iterable[Object]) -> list[str]:
    """`pod: problem` of the pods that have one, by name."""
    found = ((pod["metadata"]["name"], pod_problem(pod)) for pod in pods if not is_deleting(pod))
    return [f"{name}: {problem}" for name, problem in sorted(found) if problem]


def listed(items: list[str]) -> str:
    """The first few of a list, and how many more there are."""
    shown = "; ".join(items[:_MAX_NAMED])
    return shown if len(items) <= _MAX_NAMED else f"{shown}; and {len(items) - _MAX_NAMED} more"


def deployment_report(what: str, live: Object | None, wanted: int, pods: Iterable[Object]) -> Report:
    """Report of a kind that is one Deployment. `what` names a pod of it: "login pod"."""
    status = (live or {}).get("status") or {}
    seen = live is not None and status.get("observedGeneration", 0) >= live["metadata"].get("generation", 0)
    updated = status.get("updatedReplicas", 0) if seen else 0
    available = min(status.get("availableReplicas", 0), updated) if seen else 0
    settled = seen and updated == wanted and available >= wanted and status.get("replicas", 0) == wanted
    text = f"{available} of {wanted} {what}s ready"
    if settled:
        return Report(True, "Ready" if wanted else "NoneWanted", f"{text}.")
    trouble = problems(pods)
    message = f"{text}; {listed(trouble)}" if trouble else f"{text}."
    reason = "PodsFailing" if trouble else "Starting"
    return Report(
        available >= wanted > 0 and seen and updated == wanted,
        reason,
        message,
        busy=message,
        fault=listed(trouble),
        fault_reason="PodsFailing",
    )
