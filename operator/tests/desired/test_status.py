"""What is said of resources."""

from __future__ import annotations

from typing import Any

import pytest
from slurm_operator.desired.nodeset_status import nodeset_report, pod_conditions, protected
from slurm_operator.desired.observe import moment, observe, worker_of
from slurm_operator.desired.scale import Seen, Wanted, plan_scale
from slurm_operator.desired.status import Report, conditions, deployment_report, listed, pod_problem, problems
from slurm_operator.kube.resources import Object

from desired.test_scale import busy, seen, state, wanted, worker
from desired.things import node, nodeset_spec, owner


def report(want: Wanted, saw: Seen, *trouble: str) -> Report:
    return nodeset_report(want, saw, plan_scale(want, saw), "a=b", 3, trouble)


def test_conditions() -> None:
    rows = conditions(Report(None, "SlurmUnknown", "text", busy="working", fault="bad", fault_reason="Why"), 7)
    assert [(row["type"], row["status"], row["reason"]) for row in rows] == [
        ("Ready", "Unknown", "SlurmUnknown"),
        ("Progressing", "True", "Working"),
        ("Degraded", "True", "Why"),
    ]
    assert all(row["observedGeneration"] == 7 and row["message"] for row in rows)
    calm = conditions(Report(True, "Ready", "fine"), 1)
    assert [row["status"] for row in calm] == ["True", "False", "False"]


@pytest.mark.parametrize(
    ("want", "saw", "ready", "reason"),
    [
        (wanted(2), seen(worker(0), worker(1)), True, "Ready"),
        (wanted(0), seen(), True, "NoneWanted"),
        (wanted(2), seen(worker(0)), False, "Starting"),
        (wanted(1), seen(worker(0), unknown=True), None, "SlurmUnknown"),
        (wanted(1), seen(worker(0), worker(1)), False, "ScalingIn"),
        (wanted(1), seen(worker(0, revision="old")), False, "Updating"),
        (wanted(1, rolling=False), seen(worker(0, revision="old")), True, "Ready"),
        (wanted(1), seen(worker(0), slurm=state(0, "DOWN", reason="Not responding")), False, "NodesDown"),
        (wanted(1), seen(worker(0), slurm=state(0, "IDLE", "INVALID_REG")), False, "NodesDown"),
        (wanted(1), seen(worker(0), slurm=state(0, "IDLE", "DRAIN", reason="bad dimm")), True, "Ready"),
        (wanted(1), Seen((worker(0),), {}, now=101.0), False, "Starting"),
    ],
)
def test_ready_of_a_nodeset(want: Wanted, saw: Seen, ready: bool | None, reason: str) -> None:
    said = report(want, saw)
    assert (said.ready, said.reason) == (ready, reason)


def test_numbers_of_a_nodeset() -> None:
    saw = seen(
        worker(0), worker(1), worker(2, ready=False, available=False), slurm={**busy(1), **state(2, "DOWN", "DRAIN")}
    )
    fields = report(wanted(4), saw).fields
    assert fields == {
        "replicas": 3, "desired": 4, "updatedReplicas": 3, "readyReplicas": 2, "availableReplicas": 2,
        "unavailableReplicas": 2, "slurmIdle": 1, "slurmAllocated": 1, "slurmDown": 1, "slurmDrain": 1,
        "observedGeneration": 3, "nodeSetHash": "new", "selector": "a=b",
    }  # fmt: skip


def test_faults_are_named() -> None:
    said = report(wanted(1), seen(worker(0), slurm=state(0, "DOWN", reason="disk")))
    assert said.fault == "Slurm node w-0 is DOWN: disk"
    failing = report(wanted(1), seen(worker(0, ready=False, available=False)), "w-0: image not found")
    assert (failing.reason, failing.fault) == ("PodsFailing", "w-0: image not found")


def test_waiting_for_jobs_is_said() -> None:
    saw = seen(worker(0), slurm=busy(0, "DRAIN", reason="slurm-operator: x"))
    assert "waiting for the jobs of w-0" in report(wanted(0), saw).message


def test_slurm_states_as_pod_conditions() -> None:
    rows = pod_conditions(node("w-0", "IDLE", "DRAIN", "NOT_RESPONDING", "DYNAMIC_NORM", reason="why"))
    assert [row["type"] for row in rows] == ["SlurmNodeStateIdle", "SlurmNodeStateDrain", "SlurmNodeStateNotResponding"]
    assert {row["message"] for row in rows} == {"why"}


@pytest.mark.parametrize(("states", "kept"), [(("IDLE",), False), (("MIXED",), True), (("IDLE", "COMPLETING"), True)])
def test_who_is_protected(states: tuple[str, ...], kept: bool) -> None:
    assert protected(node("w-0", *states)) is kept


# --- pods ---


def pod(**status: Any) -> Object:
    meta = {
        "name": "w-0", "namespace": "slurm", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {
            "nodeset.slinky.slurm.net/pod-index": "0",
            "nodeset.slinky.slurm.net/pod-hostname": "w-0",
            "controller-revision-hash": "r1",
        },
    }  # fmt: skip
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:01:00Z"}
    return {
        "metadata": meta,
        "spec": {"nodeName": "n1"},
        "status": {"phase": "Running", "conditions": [ready], **status},
    }


@pytest.mark.parametrize(
    ("status", "says"),
    [
        ({}, ""),
        ({"phase": "Failed", "message": "evicted"}, "evicted"),
        ({"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes"}]}, "0/3 nodes"),
        ({"containerStatuses": [{"name": "c", "state": {"waiting": {"reason": "ContainerCreating"}}}]}, ""),
        (
            {"containerStatuses": [{"name": "c", "state": {"waiting": {"reason": "ErrImagePull", "message": "no"}}}]},
            "c: ErrImagePull: no",
        ),
        (
            {
                "containerStatuses": [
                    {
                        "name": "c",
                        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s pod=uid"}},
                        "lastState": {"terminated": {"exitCode": 1, "reason": "Error"}},
                    }
                ]
            },
            "c keeps ending (exit code 1, Error): see its logs",
        ),
    ],
)  # fmt: skip
def test_problems_of_pods(status: Any, says: str) -> None:
    assert pod_problem(pod(**status)) == says
    assert problems([pod(**status)]) == ([f"w-0: {says}"] if says else [])


def test_long_lists_are_short() -> None:
    assert listed(["a", "b", "c", "d", "e"]) == "a; b; c; and 2 more"


def test_a_worker_from_a_pod() -> None:
    one = pod()
    one["metadata"]["annotations"] = {
        "nodeset.slinky.slurm.net/pod-deletion-cost": "-3",
        "nodeset.slinky.slurm.net/pod-deadline": "2026-01-02T00:00:00Z",
    }
    found = worker_of(one, nodeset_spec(), lambda _: None, moment("2026-01-01T00:02:00Z"))
    assert (found.ordinal, found.revision, found.phase, found.placed, found.ready, found.cost) == (
        0,
        "r1",
        "Running",
        True,
        True,
        -3,
    )
    assert found.deadline == moment("2026-01-02T00:00:00Z")


def test_available_after_min_ready_seconds() -> None:
    spec = nodeset_spec(minReadySeconds=60)
    begin = moment("2026-01-01T00:01:00Z")
    for after, available in ((59, False), (61, True)):
        found = worker_of(pod(), spec, lambda _: None, begin + after)
        assert found is not None
        assert found.available is available


@pytest.mark.parametrize(
    ("machine", "pod_note", "reason"),
    [
        ({"spec": {}}, {}, ""),
        ({"spec": {"unschedulable": True}}, {}, "Node (n1) was cordoned, Pod (slurm/w-0) must be cordoned"),
        ({"spec": {}}, {"nodeset.slinky.slurm.net/pod-cordon": "true"}, "Pod (slurm/w-0) was cordoned"),
    ],
)
def test_why_a_worker_is_cordoned(machine: Any, pod_note: Any, reason: str) -> None:
    one = pod()
    one["metadata"]["annotations"] = pod_note
    at = {"metadata": {"name": "n1"}, **machine}
    assert observe(owner("NodeSet", "w"), nodeset_spec(), [one], lambda _: at, {}, 0.0).workers[0].cordoned == reason


def test_the_reason_on_the_node_is_passed_on_in_short() -> None:
    note = {"nodeset.slinky.slurm.net/node-cordon-reason": "new\nkernel " + "x" * 400}
    at = {"metadata": {"name": "n1", "annotations": note}, "spec": {"unschedulable": True}}
    reason = observe(owner("NodeSet", "w"), nodeset_spec(), [pod()], lambda _: at, {}, 0.0).workers[0].cordoned
    assert reason.startswith("new kernel xxx")
    assert len(reason) == 256


# --- Deployments ---


@pytest.mark.parametrize(
    ("status", "want", "ready", "reason"),
    [
        (None, 1, False, "Starting"),
        ({"observedGeneration": 2, "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1}, 1, True, "Ready"),
        ({"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1}, 1, False, "Starting"),
        ({"observedGeneration": 2, "replicas": 2, "updatedReplicas": 1, "availableReplicas": 2}, 1, True, "Starting"),
        ({"observedGeneration": 2}, 0, True, "NoneWanted"),
    ],
)
def test_report_of_a_deployment(status: Any, want: int, ready: bool, reason: str) -> None:
    live = None if status is None else {"metadata": {"generation": 2}, "status": status}
    said = deployment_report("login pod", live, want, [])
    assert (said.ready, said.reason) == (ready, reason)
