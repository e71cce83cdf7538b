"""One leader at a time, also with clocks that differ, lost answers and a server that does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from slurm_operator.kube.client import KubeClient
from slurm_operator.kube.errors import NotLeader
from slurm_operator.kube.lease import LeaderElector
from support.faulty_apiserver import FaultyApiServer, cut, on, slow, status, times

PATH = "apis/coordination.k8s.io/v1/leases"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def candidate(kube: KubeClient) -> Callable[[str, Clock], LeaderElector]:
    def make(name: str, clock: Clock) -> LeaderElector:
        return LeaderElector(kube, "ns", "op", name, clock=clock)

    return make


def holder(api: FaultyApiServer) -> str:
    return str(api.objects[PATH, "ns", "op"]["spec"]["holderIdentity"])


Make = Callable[[str, Clock], LeaderElector]


async def test_first_takes_it_and_the_second_waits_its_whole_length(api: FaultyApiServer, candidate: Make) -> None:
    clock = Clock()
    first, second = candidate("a", clock), candidate("b", clock)
    assert await first._try()
    first.check()
    assert not await second._try()
    with pytest.raises(NotLeader):
        second.check()
    clock.now += 14.9
    assert not await second._try()
    clock.now += 0.2
    assert await second._try()
    assert holder(api) == "b"
    assert not first.is_leader
    assert not await first._try()  # its old copy is a conflict, then it sees the other
    assert api.objects[PATH, "ns", "op"]["spec"]["leaseTransitions"] == 1


async def test_a_renewed_lease_is_never_taken_whatever_the_clocks_say(candidate: Make) -> None:
    """The other's clock runs days ahead: only how long *it saw* no change counts."""
    here, there = Clock(), Clock()
    there.now += 1e6
    first, second = candidate("a", here), candidate("b", there)
    assert await first._try()
    for _ in range(20):
        assert not await second._try()
        here.now += 9
        there.now += 9
        assert await first._try()


async def test_leadership_ends_before_anybody_else_can_begin(api: FaultyApiServer, candidate: Make) -> None:
    clock = Clock()
    first, second = candidate("a", clock), candidate("b", clock)
    assert await first._try()
    assert not await second._try()
    api.faults.append(on("PUT", "leases", lambda: status(500, "InternalError", "etcd")))
    while not second._clock() - second._seen_at >= 15:
        clock.now += 0.5
        await first._try()
        if first.is_leader:
            assert clock.now - 1000 < 10
    assert not first.is_leader  # 5 s before the second may take it


async def test_a_slow_answer_counts_from_when_it_was_asked_for(
    api: FaultyApiServer, candidate: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    first = candidate("a", clock)
    assert await first._try()

    async def time_passes(request: object) -> None:
        if getattr(request, "method", "") == "PUT":
            clock.now += 8

    api.faults.append(time_passes)
    assert await first._try()
    assert first.is_leader
    clock.now += 2.1  # 10.1 s after the request began
    assert not first.is_leader


async def test_a_lost_answer_to_a_renewal_is_found_out(api: FaultyApiServer, candidate: Make) -> None:
    clock = Clock()
    first = candidate("a", clock)
    assert await first._try()
    api.after_commit.append(times(1, cut("PUT")))
    assert not await first._try()
    assert await first._try()
    assert first.is_leader


async def test_a_lost_answer_to_the_creation_is_found_out(api: FaultyApiServer, candidate: Make) -> None:
    api.after_commit.append(times(1, cut("POST")))
    first = candidate("a", Clock())
    assert not await first._try()
    assert not first.is_leader
    assert await first._try()
    assert first.is_leader


async def test_hold_ends_when_another_holds_it(api: FaultyApiServer, kube: KubeClient) -> None:
    first = LeaderElector(kube, "ns", "op", "a", lease_seconds=4, deadline_seconds=3, retry_seconds=0.02)
    await first.acquire()
    lease = api.objects[PATH, "ns", "op"]
    await api.put(PATH, "op", spec={**lease["spec"], "holderIdentity": "b"})
    assert await asyncio.wait_for(first.hold(), 5) == "b holds the lease"
    assert not first.is_leader


async def test_hold_ends_when_nobody_answers(api: FaultyApiServer, kube: KubeClient) -> None:
    first = LeaderElector(kube, "ns", "op", "a", lease_seconds=0.5, deadline_seconds=0.3, retry_seconds=0.02)
    await first.acquire()
    api.faults.append(slow("PUT", "leases", 30))
    assert "was not renewed" in await asyncio.wait_for(first.hold(), 5)


async def test_release_lets_the_next_one_in_at_once(api: FaultyApiServer, candidate: Make) -> None:
    clock = Clock()
    first, second = candidate("a", clock), candidate("b", clock)
    assert await first._try()
    assert not await second._try()
    await first.release()
    assert not first.is_leader
    assert holder(api) == ""
    assert await second._try()
    await first.release()  # does not take it from the second
    assert holder(api) == "b"


async def test_release_leaves_a_lease_that_went_to_another(api: FaultyApiServer, candidate: Make) -> None:
    first = candidate("a", Clock())
    assert await first._try()
    lease = api.objects[PATH, "ns", "op"]
    await api.put(PATH, "op", spec={**lease["spec"], "holderIdentity": "b"})
    await first.release()
    assert holder(api) == "b"


def test_times_that_cannot_be_safe_are_refused(kube: KubeClient) -> None:
    with pytest.raises(ValueError, match="lease_seconds > deadline_seconds"):
        LeaderElector(kube, "ns", "op", "a", lease_seconds=10, deadline_seconds=10)
