"""The plan of a NodeSet, case by case."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slurm_operator.desired.scale import Seen, Wanted, Worker, plan_scale, unavailable_limit
from slurm_operator.slurm.states import PREFIX, is_idle
from slurm_operator.slurm.types import NodeInfo

from desired.things import node

OURS = f"{PREFIX}Pod (slurm/w-0) is pending termination for scale-in"


def worker(ordinal: int, **fields: Any) -> Worker:
    usual = Worker(f"w-{ordinal}", f"uid{ordinal}", ordinal, f"w-{ordinal}", "new", since=100.0, created=50.0)
    return replace(usual, **fields)


def wanted(replicas: int, **fields: Any) -> Wanted:
    return replace(Wanted("slurm", replicas, "new"), **fields)


def seen(*workers: Worker, slurm: dict[str, NodeInfo] | None = None, unknown: bool = False, now: float = 200.0) -> Seen:
    nodes = {one.slurm_name: node(one.slurm_name) for one in workers if one.placed}
    known = None if unknown else {**nodes, **(slurm or {})}
    return Seen(workers, known, tuple(known or {}), now=now)


def busy(ordinal: int, *flags: str, reason: str = "") -> dict[str, NodeInfo]:
    return {f"w-{ordinal}": node(f"w-{ordinal}", "ALLOCATED", *flags, reason=reason)}


def state(ordinal: int, *states: str, reason: str = "") -> dict[str, NodeInfo]:
    return {f"w-{ordinal}": node(f"w-{ordinal}", *states, reason=reason)}


def names(workers: tuple[Worker, ...]) -> list[str]:
    return [one.name for one in workers]


# --- scale out ---


def test_creates_the_lowest_free_ordinals() -> None:
    assert plan_scale(wanted(4), seen(worker(0), worker(2))).create == (1, 3)


def test_creates_without_any_slurm() -> None:
    assert plan_scale(wanted(2), seen(unknown=True)).create == (0, 1)


def test_a_pod_that_is_being_deleted_holds_its_place() -> None:
    plan = plan_scale(wanted(2), seen(worker(0), worker(1, deleting=True)))
    assert plan.create == ()
    assert plan.delete == ()


def test_nothing_to_do_is_idle() -> None:
    assert plan_scale(wanted(2), seen(worker(0), worker(1))).idle


def test_an_ended_pod_is_removed_and_its_place_is_free_when_it_is_gone() -> None:
    plan = plan_scale(wanted(1), seen(worker(0, phase="Ended"), unknown=True))
    assert names(plan.delete) == ["w-0"]
    assert plan.create == ()


# --- scale in ---


def test_first_drains_and_only_then_deletes() -> None:
    first = plan_scale(wanted(1), seen(worker(0), worker(1)))
    assert first.delete == ()
    assert first.drain == {"w-1": f"{PREFIX}Pod (slurm/w-1) is pending termination for scale-in"}
    assert first.leaving == ("w-1",)
    second = plan_scale(wanted(1), seen(worker(0), worker(1), slurm=state(1, "IDLE", "DRAIN", reason=OURS)))
    assert names(second.delete) == ["w-1"]
    assert second.drain == {}


@pytest.mark.parametrize("states", [("ALLOCATED",), ("MIXED",), ("IDLE", "COMPLETING"), ("SOMETHING_NEW",)])
def test_a_draining_worker_with_work_is_waited_for(states: tuple[str, ...]) -> None:
    plan = plan_scale(wanted(0), seen(worker(0), slurm=state(0, *states, "DRAIN", reason=OURS)))
    assert plan.delete == ()
    assert plan.waiting == ("w-0",)


def test_without_slurm_no_placed_pod_is_deleted() -> None:
    plan = plan_scale(wanted(0), seen(worker(0), worker(1, ready=False, available=False), unknown=True))
    assert plan.delete == ()
    assert plan.drain == {}
    assert plan.blind


def test_without_slurm_a_pod_that_never_ran_may_go() -> None:
    pending = worker(1, phase="Pending", placed=False, ready=False, available=False)
    assert names(plan_scale(wanted(1), seen(worker(0), pending, unknown=True)).delete) == ["w-1"]


def test_idle_goes_before_busy_whatever_its_number() -> None:
    plan = plan_scale(wanted(1), seen(worker(0), worker(1), slurm=busy(1)))
    assert plan.leaving == ("w-0",)


def test_a_better_choice_sets_the_first_one_free() -> None:
    """w-1 was drained while busy; now w-0 is idle and w-1 goes on working."""
    plan = plan_scale(wanted(1), seen(worker(0), worker(1), slurm=busy(1, "DRAIN", reason=OURS)))
    assert plan.leaving == ("w-0",)
    assert plan.undrain == ("w-1",)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (worker(0, placed=False, phase="Pending"), worker(1)),
        (worker(0, phase="Pending", ready=False), worker(1)),
        (worker(0, phase="Unknown", ready=False), worker(1, ready=False)),
        (worker(0, ready=False), worker(1)),
        (worker(0, cost=-5), worker(1)),
        (worker(0), worker(1, deadline=9e9)),
        (worker(0, deadline=1e9), worker(1, deadline=2e9)),
        (worker(0, cordoned="x"), worker(1)),
        (worker(1), worker(0)),
    ],
)
def test_order_of_scale_in(first: Worker, second: Worker) -> None:
    for pair in ((first, second), (second, first)):
        assert plan_scale(wanted(1), seen(*pair)).leaving == (first.name,)


def test_cost_outweighs_work() -> None:
    plan = plan_scale(wanted(1), seen(worker(0, cost=-1), worker(1), slurm=busy(0)))
    assert plan.leaving == ("w-0",)


def test_an_administrators_drain_keeps_its_reason_and_its_record() -> None:
    drained = state(1, "IDLE", "DRAIN", reason="bad dimm")
    plan = plan_scale(wanted(1), seen(worker(0), worker(1), slurm=drained))
    assert names(plan.delete) == ["w-1"]
    assert plan.drain == {}
    after = plan_scale(wanted(1), seen(worker(0), slurm=state(1, "DOWN", "DRAIN", reason="bad dimm")))
    assert after.forget == ()


# --- drains and cordons ---


def test_only_our_own_drain_is_undone() -> None:
    ours = plan_scale(wanted(1), seen(worker(0), slurm=state(0, "IDLE", "DRAIN", reason=OURS)))
    assert ours.undrain == ("w-0",)
    for reason in ("bad dimm", ""):
        theirs = plan_scale(wanted(1), seen(worker(0), slurm=state(0, "IDLE", "DRAIN", reason=reason)))
        assert theirs.undrain == ()


def test_a_worker_that_is_not_ready_stays_drained() -> None:
    plan = plan_scale(wanted(1), seen(worker(0, ready=False), slurm=state(0, "IDLE", "DRAIN", reason=OURS)))
    assert plan.undrain == ()


def test_a_cordon_drains_once_and_ends_with_the_cordon() -> None:
    cordoned = worker(0, cordoned="Node (n1) was cordoned")
    reason = f"{PREFIX}Node (n1) was cordoned"
    assert plan_scale(wanted(1), seen(cordoned)).drain == {"w-0": reason}
    done = seen(cordoned, slurm=busy(0, "DRAIN", reason=reason))
    assert plan_scale(wanted(1), done).idle
    assert plan_scale(wanted(1), seen(worker(0), slurm=dict(done.slurm or {}))).undrain == ("w-0",)


def test_a_cordon_leaves_an_administrators_drain_alone() -> None:
    plan = plan_scale(wanted(1), seen(worker(0, cordoned="x"), slurm=state(0, "IDLE", "DRAIN", reason="bad dimm")))
    assert plan.idle


# --- updates ---


def test_an_update_goes_by_max_unavailable() -> None:
    old = [worker(ordinal, revision="old") for ordinal in range(8)]
    assert len(plan_scale(wanted(8), seen(*old)).drain) == 2
    assert len(plan_scale(wanted(8, max_unavailable=3), seen(*old)).drain) == 3
    out = [*old[1:], worker(0, ready=False, available=False)]
    assert len(plan_scale(wanted(8), seen(*out)).drain) == 1


def test_an_update_goes_on_with_those_it_began_with() -> None:
    old = [worker(ordinal, revision="old") for ordinal in range(4)]
    plan = plan_scale(wanted(4), seen(*old, slurm=busy(0, "DRAIN", reason=OURS)))
    assert plan.waiting == ("w-0",)
    assert plan.drain == {}
    assert plan.undrain == ()


def test_an_update_replaces_what_is_of_no_use_first_but_not_its_jobs() -> None:
    old = worker(0, revision="old", ready=False, available=False)
    fine = worker(1, revision="old")
    plan = plan_scale(wanted(2), seen(old, fine, slurm=busy(0)))
    assert plan.waiting == ("w-0",)
    assert list(plan.drain) == ["w-0"]


def test_on_delete_replaces_nothing() -> None:
    plan = plan_scale(wanted(1, rolling=False), seen(worker(0, revision="old")))
    assert not plan.drain
    assert plan.outdated == 1


@pytest.mark.parametrize(
    ("value", "replicas", "limit"),
    [("25%", 8, 2), ("25%", 9, 3), ("25%", 1, 1), (0, 5, 1), (4, 5, 4), ("3", 5, 3), ("100%", 5, 5), ("x", 5, 1)],
)
def test_max_unavailable(value: int | str, replicas: int, limit: int) -> None:
    assert unavailable_limit(value, replicas) == limit


# --- strangers and leftovers ---


def test_a_ready_worker_unknown_to_slurm_is_made_anew_after_a_while() -> None:
    one = worker(0, since=100.0)
    early = plan_scale(wanted(1), Seen((one,), {}, now=130.0))
    assert early.remake == ()
    assert early.recheck == 30.0
    assert names(plan_scale(wanted(1), Seen((one,), {}, now=161.0)).remake) == ["w-0"]
    assert plan_scale(wanted(1), Seen((one,), None, now=999.0)).remake == ()


@pytest.mark.parametrize(
    ("states", "reason", "forgotten"),
    [
        (("DOWN",), f"{PREFIX}Pod is terminating", True),
        (("IDLE", "DRAIN"), OURS, True),
        (("IDLE", "NOT_RESPONDING"), "", True),
        (("IDLE",), "", False),
        (("ALLOCATED", "NOT_RESPONDING"), "", False),
        (("DOWN", "COMPLETING"), "", False),
        (("DOWN", "DRAIN"), "bad dimm", False),
    ],
)
def test_records_of_gone_workers(states: tuple[str, ...], reason: str, forgotten: bool) -> None:
    plan = plan_scale(wanted(1), seen(worker(0), slurm=state(5, *states, reason=reason)))
    assert plan.forget == (("w-5",) if forgotten else ())


def test_a_worker_that_comes_back_gets_a_new_record() -> None:
    plan = plan_scale(wanted(2), seen(worker(0), slurm=state(1, "IDLE", "DRAIN", reason=OURS)))
    assert plan.create == (1,)
    assert plan.forget == ("w-1",)


# --- whatever happens ---

_STATES = st.sampled_from(["IDLE", "ALLOCATED", "MIXED", "DOWN", "UNKNOWN", "NEW_IN_27"])
_FLAGS = st.sets(st.sampled_from(["DRAIN", "COMPLETING", "NOT_RESPONDING", "INVALID_REG", "RESERVED"]))
_NODES = st.builds(
    lambda base, flags, reason: (base, flags, reason), _STATES, _FLAGS, st.sampled_from(["", OURS, "bad dimm"])
)


@given(
    workers=st.lists(
        st.tuples(st.booleans(), st.booleans(), st.booleans(), st.sampled_from(["new", "old"]), st.none() | _NODES),
        max_size=6,
    ),
    replicas=st.integers(0, 6),
    unknown=st.booleans(),
)
def test_no_plan_ever_removes_a_worker_that_may_run_a_job(
    workers: list[tuple[bool, bool, bool, str, Any]], replicas: int, unknown: bool
) -> None:
    pods, nodes = [], {}
    for ordinal, (placed, ready, deleting, revision, about) in enumerate(workers):
        pods.append(worker(ordinal, placed=placed, ready=ready, available=ready, deleting=deleting, revision=revision))
        if about is not None and placed:
            base, flags, reason = about
            nodes[f"w-{ordinal}"] = node(f"w-{ordinal}", base, *flags, reason=reason)
    plan = plan_scale(wanted(replicas), Seen(tuple(pods), None if unknown else nodes, now=1e9))
    for one in plan.delete:
        if one.placed:
            assert not unknown
            assert one.slurm_name not in nodes or is_idle(nodes[one.slurm_name])
            assert one.slurm_name not in nodes or "DRAIN" in nodes[one.slurm_name].states
    for one in plan.remake:
        assert not unknown
        assert one.slurm_name not in nodes
    for name in plan.undrain:
        assert nodes[name].reason == OURS
    for name in plan.drain:
        assert "DRAIN" not in nodes[name].states or nodes[name].reason == OURS
    assert not set(plan.create) & {one.ordinal for one in pods}
    assert len(pods) + len(plan.create) <= max(replicas, len(pods))
