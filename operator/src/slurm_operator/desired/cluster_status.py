"""What there is to say about a Controller."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slurm_operator.desired.status import Report, pod_problem, pod_ready
from slurm_operator.kube.resources import Object


@dataclass(frozen=True)
class Observed:
    """`pods` of slurmctld, `active` the one at work, `wanted` how many there should be.

    `fault` and `busy` are about configuration and keys, in order of importance; the first fault is told, with `reason`.
    """

    pods: Sequence[Object]
    active: Object | None
    wanted: int
    nodesets: int
    faults: Sequence[tuple[str, str]] = ()
    busy: Sequence[str] = ()


def report(seen: Observed) -> Report:
    """Ready is about slurmctld: it works as well with a configuration that waits to be mended."""
    ready = [pod for pod in seen.pods if pod_ready(pod)]
    faults = list(seen.faults)
    busy = " ".join(seen.busy)
    troubles = [f"{pod['metadata']['name']}: {problem}" for pod in seen.pods if (problem := pod_problem(pod))]
    if seen.active is not None and pod_ready(seen.active):
        sets = f"{seen.nodesets} NodeSet{'' if seen.nodesets == 1 else 's'}"
        text = f"slurmctld is ready; {sets}."
        if seen.wanted > 1:
            text = f"slurmctld works on {seen.active['metadata']['name']}; {len(ready) - 1} of {seen.wanted - 1}"
            text += f" backups ready; {sets}."
        if troubles:
            faults.append(("BackupFailing", "; ".join(troubles)))
        if len(ready) < seen.wanted:
            busy = f"{len(ready)} of {seen.wanted} slurmctld pods are ready. {busy}".strip()
        reason, fault = faults[0] if faults else ("Fault", "")
        return Report(True, "Ready", text, busy=busy, fault=fault, fault_reason=reason)
    if troubles:
        text = f"slurmctld is not ready: {'; '.join(troubles)}"
        # What Slurm said of the configuration tells more than that slurmctld ended.
        reason, fault = faults[0] if faults else ("PodFailing", text)
        return Report(False, "PodFailing", text, busy=text, fault=fault, fault_reason=reason)
    text = "slurmctld is starting."
    reason, fault = faults[0] if faults else ("Fault", "")
    return Report(False, "Starting", text, busy=f"{text} {busy}".strip(), fault=fault, fault_reason=reason)
