"""How workers leave, case by case: policies, deletion, what Slurm lost, cordons both ways, maintenance windows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from slurm_operator.api.drainpolicy import DrainPolicySpec
from slurm_operator.api.load import InvalidSpec
from slurm_operator.api.names import ANNOTATION_CORDONED_FOR
from slurm_operator.desired.drain import (
    DAY,
    LET_GO_AFTER,
    Policy,
    Rule,
    cordon_reason,
    duration,
    in_charge,
    machine_cordons,
    policy_of,
    span,
)
from slurm_operator.desired.maintenance import Window, change, reservation_condition, window_of
from slurm_operator.desired.nodeset_status import NEVER, deadline_text, going_report, pod_conditions
from slurm_operator.desired.observe import worker_of
from slurm_operator.desired.scale import Seen, Wanted, Worker, plan_scale
from slurm_operator.slurm.states import PREFIX
from slurm_operator.slurm.types import JobInfo, NodeInfo, Number, Reservation

from desired.things import node, nodeset_spec

OURS = f"{PREFIX}Pod (slurm/w-0) is pending termination for scale-in"
NOW = 1_000_000.0


def worker(ordinal: int, **fields: Any) -> Worker:
    usual = Worker(f"w-{ordinal}", f"uid{ordinal}", ordinal, f"w-{ordinal}", "new", since=100.0, created=50.0)
    return replace(usual, **fields)


def drained(*states: str, reason: str = OURS, since: float = NOW - 60) -> NodeInfo:
    return msgspec.structs.replace(node("w-0", *states, "DRAIN", reason=reason), reason_at=Number(True, False, since))


def wanted(replicas: int = 0, **fields: Any) -> Wanted:
    return replace(Wanted("slurm", replicas, "new"), **fields)


def seen(one: Worker, about: NodeInfo | None = None, *, blind: bool = False, **fields: Any) -> Seen:
    nodes = None if blind else {about.name: about} if about else {}
    return replace(Seen((one,), nodes, tuple(nodes or ()), now=NOW), **fields)


# --- policies ---


def spec(**fields: Any) -> DrainPolicySpec:
    return msgspec.convert(fields, DrainPolicySpec)


def test_what_holds_without_a_policy() -> None:
    assert policy_of("p", spec()) == replace(Policy(), name="p")
    assert Policy().scale_in.mode == "Wait"
    assert Policy().deletion == Rule("WaitThenRequeue", DAY)


@pytest.mark.parametrize(("text", "seconds"), [("30m", 1800), ("1d12h", 129600), ("90s", 90), ("2h", 7200)])
def test_durations(text: str, seconds: float) -> None:
    assert duration(text, "x") == seconds


@pytest.mark.parametrize("text", ["", "10", "m", "1h 2m", "-5m"])
def test_what_is_no_duration_is_said_with_its_field(text: str) -> None:
    with pytest.raises(InvalidSpec, match=r"spec\.x: .*write 30m"):
        duration(text, "spec.x")


def test_a_limit_is_needed_to_wait_until_then() -> None:
    with pytest.raises(InvalidSpec, match=r"spec\.scaleIn\.timeLimit"):
        policy_of("p", spec(scaleIn={"mode": "WaitThenRequeue"}))


@pytest.mark.parametrize(("seconds", "text"), [(86400, "1d"), (129600, "36h"), (90, "90s"), (600, "10m"), (0, "0s")])
def test_spans(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_the_policy_that_names_a_nodeset_counts_then_labels_then_any_and_the_oldest_of_equals() -> None:
    def policy(name: str, created: int, **fields: Any) -> tuple[Any, DrainPolicySpec]:
        return {"metadata": {"name": name, "creationTimestamp": f"2026-01-0{created}T00:00:00Z"}}, spec(**fields)

    everyone = policy("any", 1)
    labelled = policy("labelled", 2, selector={"matchLabels": {"tier": "gpu"}})
    named, rival = policy("named", 4, nodeSets=["a"]), policy("older", 3, nodeSets=["a", "b"])
    assert in_charge("a", {"tier": "gpu"}, [everyone, labelled, named, rival]) == ("older", ("named",))
    assert in_charge("c", {"tier": "gpu"}, [everyone, labelled, named]) == ("labelled", ())
    assert in_charge("c", {}, [everyone, labelled]) == ("any", ())
    assert in_charge("c", {}, [labelled]) == ("", ())
    expression = {"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["gpu"]}]}
    assert in_charge("c", {"tier": "gpu"}, [policy("p", 1, selector=expression)]) == ("", ())
    assert in_charge("c", {}, [policy("p", 1, selector=expression)]) == ("p", ())


# --- jobs that were waited for ---


@pytest.mark.parametrize(
    ("rule", "since", "requeued"),
    [
        (Rule("Wait"), 1e6, False),
        (Rule("Requeue"), 0, True),
        (Rule("WaitThenRequeue", 600), 599, False),
        (Rule("WaitThenRequeue", 600), 601, True),
    ],
)
def test_when_the_jobs_of_a_leaving_worker_are_requeued(rule: Rule, since: float, requeued: bool) -> None:
    about = drained("ALLOCATED", since=NOW - since)
    plan = plan_scale(wanted(policy=Policy(scale_in=rule)), seen(worker(0), about))
    assert dict(plan.requeue) == ({"w-0": False} if requeued else {})
    assert plan.waiting == ("w-0",)
    assert not plan.delete


def test_a_limit_that_is_still_to_come_is_looked_at_in_time() -> None:
    policy = Policy(scale_in=Rule("WaitThenRequeue", 600))
    assert plan_scale(wanted(policy=policy), seen(worker(0), drained("ALLOCATED"))).recheck == 540


def test_a_cordon_has_a_rule_of_its_own_and_says_nothing_about_drains_of_others() -> None:
    policy = Policy(cordon=Rule("Requeue"))
    cordoned = worker(0, cordoned="Node (n) was cordoned")
    own = drained("ALLOCATED", reason=f"{PREFIX}Node (n) was cordoned")
    assert dict(plan_scale(wanted(1, policy=policy), seen(cordoned, own)).requeue) == {"w-0": False}
    foreign = drained("ALLOCATED", reason="bad dimm")
    assert not plan_scale(wanted(1, policy=policy), seen(cordoned, foreign)).requeue


# --- deletion ---


def test_a_deleted_nodeset_drains_says_why_and_waits() -> None:
    plan = plan_scale(wanted(going=NOW - 5), seen(worker(0), node("w-0", "ALLOCATED")))
    assert plan.drain == {"w-0": f"{PREFIX}Pod (slurm/w-0) is pending termination, its NodeSet is being deleted"}
    assert plan.waiting == ("w-0",)
    assert not plan.delete
    assert not plan.let_go


def test_at_the_limit_of_a_deletion_jobs_are_requeued_or_else_end_and_later_the_worker_goes() -> None:
    busy = seen(worker(0), drained("ALLOCATED"))
    assert not plan_scale(wanted(going=NOW - DAY + 9), busy).requeue
    assert dict(plan_scale(wanted(going=NOW - DAY - 1), busy).requeue) == {"w-0": True}
    assert not plan_scale(wanted(going=NOW - DAY - 1), busy).let_go
    assert plan_scale(wanted(going=NOW - DAY - LET_GO_AFTER - 1), busy).let_go == (worker(0),)
    for_ever = Policy(deletion=Rule("Wait"))
    assert not plan_scale(wanted(going=1.0, policy=for_ever), busy).let_go
    at_once = Policy(deletion=Rule("Requeue", DAY))
    assert dict(plan_scale(wanted(going=NOW - 1, policy=at_once), busy).requeue) == {"w-0": False}


def test_without_slurm_a_deletion_waits_for_its_own_limit() -> None:
    recent = wanted(going=NOW - 4000)
    assert not plan_scale(recent, seen(worker(0), blind=True, blind_for=3599.0)).let_go
    assert plan_scale(recent, seen(worker(0), blind=True, blind_for=3601.0)).let_go == (worker(0),)
    assert not plan_scale(wanted(), seen(worker(0), blind=True, blind_for=1e9)).let_go  # only a deletion gives up


def test_of_a_deleted_nodeset_what_never_came_up_goes_without_slurm() -> None:
    asleep = worker(0, started=False, ready=False, available=False)
    assert plan_scale(wanted(going=NOW), seen(asleep, blind=True)).let_go == (asleep,)
    assert not plan_scale(wanted(), seen(asleep, blind=True)).let_go


def test_the_override_lets_go_of_everything() -> None:
    assert plan_scale(wanted(going=NOW, skip=True), seen(worker(0), drained("ALLOCATED"))).let_go == (worker(0),)


def test_the_report_names_pods_jobs_the_limit_and_the_way_out() -> None:
    want, what = wanted(going=0.0 + DAY), seen(worker(0), drained("ALLOCATED"), now=DAY + 5)
    jobs = {"w-0": (JobInfo(7), JobInfo(9))}
    report = going_report(want, what, plan_scale(want, what), ["job 9 cannot be requeued"], jobs, "to end it: skip")
    assert report.reason == "Deleting"
    for part in ("w-0 (jobs 7, 9)", "job 9 cannot be requeued", "1970-01-03T00:00:00Z", "to end it: skip"):
        assert part in report.message


# --- what Slurm does not know is not idle ---


def test_a_worker_that_slurm_lost_with_its_jobs_is_left_alone_until_their_time_is_over() -> None:
    lost = worker(0, was_busy=True)
    for one in (lost, replace(lost, deadline=NOW + 60)):
        assert not plan_scale(wanted(), seen(one)).delete
        assert not plan_scale(wanted(1), seen(one)).remake
    over = replace(lost, deadline=NOW - 60)
    assert plan_scale(wanted(), seen(over)).delete == (over,)
    assert plan_scale(wanted(1), seen(over)).remake == (over,)
    assert plan_scale(wanted(1), seen(worker(0))).remake == (worker(0),)


@pytest.mark.parametrize(
    ("about", "renewed"),
    [
        (("DOWN", "NOT_RESPONDING"), True),
        (("DOWN",), False),
        (("IDLE", "NOT_RESPONDING"), False),
        (("DOWN", "NOT_RESPONDING", "COMPLETING"), False),
    ],
)
def test_a_ready_worker_that_slurm_gave_up_is_made_anew(about: tuple[str, ...], renewed: bool) -> None:
    ghost = msgspec.structs.replace(node("w-0", *about, reason="Not responding"), reason_at=Number(True, False, 1))
    assert bool(plan_scale(wanted(1), seen(worker(0), ghost)).remake) == renewed
    fresh = msgspec.structs.replace(ghost, reason_at=Number(True, False, NOW - 5))
    assert not plan_scale(wanted(1), seen(worker(0), fresh)).remake
    kept = msgspec.structs.replace(ghost, reason="bad dimm")
    assert not plan_scale(wanted(1), seen(worker(0), kept)).remake


def pod(**changes: Any) -> dict[str, Any]:
    labels = {"nodeset.slinky.slurm.net/pod-index": "0", "nodeset.slinky.slurm.net/pod-hostname": "w-0"}
    status = {"phase": "Running", "conditions": changes.pop("conditions", [])}
    meta = {"name": "w-0", "namespace": "slurm", "labels": {**labels, **changes.pop("labels", {})}}
    return {"metadata": meta, "spec": {"nodeName": "n", "hostname": "w-0"}, "status": {**status, **changes}}


def observed(one: dict[str, Any], **more: Any) -> Worker:
    return worker_of(one, nodeset_spec(), lambda name: None, NOW, **more)


def test_an_edited_label_makes_no_other_worker_of_a_pod() -> None:
    assert observed(pod(labels={"nodeset.slinky.slurm.net/pod-hostname": "w-9"})).slurm_name == "w-0"


@pytest.mark.parametrize("mode", ["", "statefulset", "StatefulSet", "nonsense"])
def test_no_label_hides_a_worker(mode: str) -> None:
    edited = {"nodeset.slinky.slurm.net/pod-index": "x", "nodeset.slinky.slurm.net/scaling-mode": mode}
    found = observed(pod(labels=edited))
    assert (found.ordinal, found.unwanted) == (0, "")


def test_jobs_that_a_pod_had_are_remembered_on_it() -> None:
    busy = [{"type": "SlurmNodeStateMixed", "status": "True"}]
    assert observed(pod(conditions=busy)).was_busy
    assert not observed(pod(conditions=[{"type": "SlurmNodeStateIdle", "status": "True"}])).was_busy


def test_a_slurmd_counts_as_not_come_up_only_if_the_kubelet_says_so() -> None:
    assert observed(pod()).started
    assert observed(pod(containerStatuses=[{"name": "slurmd", "started": True}])).started
    assert not observed(pod(containerStatuses=[{"name": "slurmd", "started": False}])).started


def test_deadlines_come_from_the_jobs_and_from_the_pod_where_they_cannot_be_asked_for() -> None:
    one = pod()
    one["metadata"]["annotations"] = {"nodeset.slinky.slurm.net/pod-deadline": "1970-01-01T00:10:00Z"}
    assert observed(one).deadline == 600
    assert observed(one, deadlines={}).deadline == 0
    assert observed(one, deadlines={"w-0": 77.0}).deadline == 77


@pytest.mark.parametrize(
    ("ends", "text"),
    [(0.0, None), (float("inf"), NEVER), (600.0, "1970-01-01T00:10:00Z"), (601.0, "1970-01-01T00:15:00Z")],
)
def test_deadlines_are_written_in_steps_of_five_minutes(ends: float, text: str | None) -> None:
    assert deadline_text(ends) == text


def test_a_pod_says_by_whom_it_was_drained() -> None:
    about = msgspec.structs.replace(drained("IDLE", reason="bad dimm", since=600), reason_user="root")
    shown = {entry["type"]: entry["message"] for entry in pod_conditions(about)}
    assert shown["SlurmNodeStateDrain"] == "bad dimm [root@1970-01-01T00:10:00Z]"


# --- cordons, both ways ---


def machine(**changes: Any) -> dict[str, Any]:
    meta = {"name": "n", "annotations": changes.pop("annotations", {})}
    conditions = changes.pop("conditions", [])
    return {"metadata": meta, "spec": changes, "status": {"conditions": conditions}}


TAINT = {"key": "example.com/x", "value": "y", "effect": "NoSchedule"}
SICK = {"type": "Sick", "status": "True", "reason": "Xid79", "message": "GPU has\n fallen off the bus"}


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (machine(), ""),
        (machine(unschedulable=True), "Node (n) was cordoned, Pod (a/b) must be cordoned"),
        (machine(taints=[TAINT]), "Node (n) has taint example.com/x=y:NoSchedule, Pod (a/b) must be cordoned"),
        (machine(taints=[{**TAINT, "effect": "PreferNoSchedule"}]), ""),
        (machine(taints=[{"key": "node.kubernetes.io/memory-pressure", "effect": "NoSchedule"}]), ""),
        (machine(taints=[{"key": "known", "effect": "NoExecute"}]), ""),
        (machine(conditions=[SICK]), ""),
        (machine(unschedulable=True, conditions=[SICK]), "(Xid79: GPU has fallen off the bus)"),
        (machine(unschedulable=True, conditions=[{**SICK, "type": "Unlisted"}]),
         "Node (n) was cordoned, Pod (a/b) must be cordoned"),
        (machine(unschedulable=True, conditions=[SICK],
                 annotations={"nodeset.slinky.slurm.net/node-cordon-reason": " swap\n fan "}), "swap fan"),
        (machine(unschedulable=True, annotations={ANNOTATION_CORDONED_FOR: "a/b/c"}), ""),
    ],
)  # fmt: skip
def test_why_a_machine_has_to_be_drained(node: dict[str, Any], reason: str) -> None:
    tolerations = [{"key": "known", "operator": "Exists"}]
    assert cordon_reason(node, tolerations, "a/b", ["Sick"]) == reason


def test_a_foreign_drain_cordons_the_machine_once_and_its_end_undoes_only_that() -> None:
    free, marked = machine(), machine(unschedulable=True, annotations={ANNOTATION_CORDONED_FOR: "s/w/w-0"})
    by_hand = machine(annotations={ANNOTATION_CORDONED_FOR: "s/w/w-0"})
    one = worker(0, machine="n")
    bad = {"w-0": drained("IDLE", reason="bad dimm")}

    def cordons(about: dict[str, NodeInfo], node: dict[str, Any], *, enabled: bool = True) -> Any:
        ours = [node] if node["metadata"]["annotations"] else []
        return machine_cordons("s", "w", enabled, [one], about, lambda name: node, ours)

    assert cordons(bad, free) == ({"n": "s/w/w-0"}, ())
    assert cordons(bad, free, enabled=False) == ({}, ())
    assert cordons({"w-0": drained("IDLE")}, free) == ({}, ())  # our own drain
    assert cordons(bad, marked) == ({}, ())
    assert cordons(bad, by_hand) == ({}, ())  # a person uncordoned it: that holds
    assert cordons(bad, machine(unschedulable=True)) == ({}, ())  # a person cordoned it: it stays theirs
    assert cordons({"w-0": node("w-0")}, marked) == ({}, ("n",))
    assert cordons({}, marked) == ({}, ("n",))
    assert cordons(bad, marked, enabled=False) == ({}, ("n",))


# --- maintenance windows ---


def scheduled(**fields: Any) -> Any:
    given = {"startTime": "1970-01-01T01:00:00Z", "duration": "30m", **fields}
    return nodeset_spec(updateStrategy={"type": "ScheduledUpdate", "scheduledUpdate": given})


def reservation(nodes: str = "w-0", start: int = 3600, minutes: int = 30) -> Reservation:
    end = Number(True, False, start + 60 * minutes)
    flags = frozenset({"MAINT", "IGNORE_JOBS"})
    return Reservation("SlurmOperatorMaint-w", nodes, Number(True, False, start), end, flags)


def test_the_window_of_a_scheduled_update() -> None:
    assert window_of("w", nodeset_spec()) is None
    expected = Window("SlurmOperatorMaint-w", 3600, 30, ("MAINT", "IGNORE_JOBS", "PURGE_COMP"))
    assert window_of("w", scheduled(flags=["purge_comp", "MAINT"])) == expected
    with pytest.raises(InvalidSpec, match=r"startTime: 'soon' is no time"):
        window_of("w", scheduled(startTime="soon"))
    with pytest.raises(InvalidSpec, match="shorter than a minute"):
        window_of("w", scheduled(duration="30s"))


@pytest.mark.parametrize(
    ("nodes", "live", "now", "todo"),
    [
        (["w-0"], None, 0, "create"),
        (["w-0"], reservation(), 0, ""),
        (["w-0", "w-1"], reservation(), 0, "nodes"),
        (["w-0"], reservation(start=1800), 0, "replace"),
        (["w-0"], reservation(minutes=60), 0, "replace"),
        ([], reservation(), 4000, "delete"),
        ([], None, 4000, ""),
        (["w-0"], None, 9999, ""),
        (["w-0"], reservation(), 9999, "delete"),
    ],
)
def test_what_happens_to_the_reservation(nodes: list[str], live: Reservation | None, now: float, todo: str) -> None:
    assert change(window_of("w", scheduled()), nodes, live, now) == todo


def test_a_reservation_goes_with_the_strategy() -> None:
    assert change(None, ["w-0"], reservation(), 0) == "delete"


@pytest.mark.parametrize(
    ("nodes", "refused", "now", "reason"),
    [
        (["w-0"], "", 0, "Created"),
        ([], "", 0, "UpToDate"),
        (["w-0"], "", 9999, "WindowOver"),
        (["w-0"], "no", 0, "Refused"),
    ],
)
def test_the_condition_of_a_reservation(nodes: list[str], refused: str, now: float, reason: str) -> None:
    window = window_of("w", scheduled())
    assert window is not None
    shown = reservation_condition(window, nodes, refused, now)
    assert (shown["type"], shown["reason"]) == ("ReservationCreated", reason)
    assert (shown["status"] == "True") == (reason == "Created")


def test_in_a_window_only_nodes_that_slurm_has_in_maintenance_are_replaced() -> None:
    old = worker(0, revision="old")
    window = wanted(1, rolling=False, maintenance="SlurmOperatorMaint-w")
    assert not plan_scale(window, seen(old, node("w-0"))).drain
    inside = msgspec.structs.replace(node("w-0", "IDLE", "MAINTENANCE"), reservation="SlurmOperatorMaint-w")
    assert list(plan_scale(window, seen(old, inside)).drain) == ["w-0"]
    other = msgspec.structs.replace(inside, reservation="somebody-else")
    assert not plan_scale(window, seen(old, other)).drain
