"""What a Controller says of itself."""

from __future__ import annotations

from typing import Any

from slurm_operator.desired.cluster_status import Observed, report


def pod(index: int, *, ready: bool = True, waiting: str = "") -> dict[str, Any]:
    status: dict[str, Any] = {"conditions": [{"type": "Ready", "status": "True" if ready else "False"}]}
    if waiting:
        status["containerStatuses"] = [{"name": "slurmctld", "state": {"waiting": {"reason": waiting}}}]
    return {"metadata": {"name": f"lab-controller-{index}"}, "status": status}


def test_a_refused_configuration_is_a_fault_of_a_cluster_that_works() -> None:
    said = report(Observed([pod(0)], pod(0), 1, 2, [("InvalidConfiguration", "Slurm refuses it")]))
    assert said.ready
    assert (said.fault_reason, said.fault) == ("InvalidConfiguration", "Slurm refuses it")
    assert said.message == "slurmctld is ready; 2 NodeSets."


def test_slurms_own_word_comes_before_a_pod_that_keeps_ending() -> None:
    broken = pod(0, ready=False, waiting="CrashLoopBackOff")
    said = report(Observed([broken], None, 1, 0, [("InvalidConfiguration", "unrecognized key: Foo")]))
    assert (said.ready, said.reason, said.fault) == (False, "PodFailing", "unrecognized key: Foo")
    assert report(Observed([broken], None, 1, 0)).fault_reason == "PodFailing"


def test_a_backup_that_fails_is_told_and_slurm_is_ready() -> None:
    said = report(Observed([pod(0), pod(1, ready=False, waiting="CrashLoopBackOff")], pod(0), 2, 1))
    assert said.ready
    assert said.fault_reason == "BackupFailing"
    assert "lab-controller-1" in said.fault
    assert "0 of 1 backups ready" in said.message


def test_what_is_under_way_is_told() -> None:
    said = report(Observed([pod(0)], pod(0), 1, 1, busy=["A new auth/slurm key is being introduced."]))
    assert said.busy == "A new auth/slurm key is being introduced."
    assert not report(Observed([], None, 1, 0)).ready
