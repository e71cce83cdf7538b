"""Idle workers go in the pass that drains them; whatever runs a job by the time of the drain stays."""

from __future__ import annotations

import math
from typing import Any, cast

import pytest
from slurm_operator.controllers import nodeset_steps
from slurm_operator.controllers.nodeset_steps import Steps
from slurm_operator.desired.scale import Plan, Seen, Wanted, Worker, plan_scale
from slurm_operator.errors import Unknown
from slurm_operator.kube.resources import Key, Object
from slurm_operator.slurm.cache import SlurmCache
from slurm_operator.slurm.client import SlurmClient
from slurm_operator.slurm.registry import SlurmCluster
from support.faulty_slurmrestd import FaultySlurmrestd

KEY = Key("slurm", "w")


class Deeds:
    """Stands in for the controller: it notes which pods are deleted and does nothing else."""

    def __init__(self) -> None:
        self.deleted: list[str] = []
        self.events = self

    def event(self, *words: object) -> None:
        return

    async def delete(self, key: Key, pod: Object, *, unchanged: bool = False, begin_by: float) -> bool:
        assert begin_by < math.inf, "a worker that was placed goes on a fresh answer only"
        self.deleted.append(pod["metadata"]["name"])
        return True


def worker(number: int, **fields: Any) -> Worker:
    return Worker(f"w-{number}", f"uid-{number}", number, f"w-{number}", "new", **fields)


async def one_pass(slurmrestd: FaultySlurmrestd, slurm: SlurmClient, plan: Plan) -> Deeds:
    deeds = Deeds()
    pods = {name: {"metadata": {"name": name, "uid": f"uid-{name}"}} for name in slurmrestd.nodes}
    cluster = SlurmCluster(slurm, SlurmCache(slurm), ("", b"", ""))
    steps = Steps(cast(Any, deeds), KEY, {"metadata": {"name": "w"}}, pods, cluster)
    await steps.drains(plan)
    await steps.removals(plan)
    return deeds


def planned(slurmrestd: FaultySlurmrestd, workers: list[Worker], replicas: int, nodes: Any) -> Plan:
    return plan_scale(Wanted("slurm", replicas, "new"), Seen(workers, nodes))


async def test_drained_and_removed_in_one_pass(slurmrestd: FaultySlurmrestd, slurm: SlurmClient) -> None:
    for number in range(3):
        slurmrestd.add_node(f"w-{number}")
    cache = SlurmCache(slurm)
    await cache.refresh()
    plan = planned(slurmrestd, [worker(number) for number in range(3)], 1, cache.nodes)
    assert {one.name for one in plan.begun} == {"w-1", "w-2"}
    deeds = await one_pass(slurmrestd, slurm, plan)
    assert sorted(deeds.deleted) == ["w-1", "w-2"]
    assert "DRAIN" in slurmrestd.nodes["w-1"]["state"]
    assert "DRAIN" not in slurmrestd.nodes["w-0"]["state"]


async def test_a_job_that_came_before_the_drain_keeps_its_worker(
    slurmrestd: FaultySlurmrestd, slurm: SlurmClient
) -> None:
    for number in range(3):
        slurmrestd.add_node(f"w-{number}")
    cache = SlurmCache(slurm)
    await cache.refresh()
    plan = planned(slurmrestd, [worker(number) for number in range(3)], 1, cache.nodes)
    slurmrestd.add_node("w-2", "ALLOCATED")
    deeds = await one_pass(slurmrestd, slurm, plan)
    assert deeds.deleted == ["w-1"]
    assert "DRAIN" in slurmrestd.nodes["w-2"]["state"]


async def test_a_cordoned_worker_is_drained_and_stays(slurmrestd: FaultySlurmrestd, slurm: SlurmClient) -> None:
    slurmrestd.add_node("w-0")
    cache = SlurmCache(slurm)
    await cache.refresh()
    plan = planned(slurmrestd, [worker(0, cordoned="Node (m) was cordoned")], 1, cache.nodes)
    deeds = await one_pass(slurmrestd, slurm, plan)
    assert "DRAIN" in slurmrestd.nodes["w-0"]["state"]
    assert deeds.deleted == []


async def test_an_outage_after_the_drain_removes_nothing(slurmrestd: FaultySlurmrestd, slurm: SlurmClient) -> None:
    for number in range(2):
        slurmrestd.add_node(f"w-{number}")
    cache = SlurmCache(slurm)
    await cache.refresh()
    plan = planned(slurmrestd, [worker(number) for number in range(2)], 1, cache.nodes)
    deeds = Deeds()
    pods = {name: {"metadata": {"name": name, "uid": "u"}} for name in slurmrestd.nodes}
    cluster = SlurmCluster(slurm, cache, ("", b"", ""))
    steps = Steps(cast(Any, deeds), KEY, {"metadata": {"name": "w"}}, pods, cluster)
    await steps.drains(plan)
    slurmrestd.responding = False
    with pytest.raises(Unknown):
        await steps.removals(plan)
    assert deeds.deleted == []


@pytest.mark.parametrize("what", ["resumed", "gone"])
async def test_slow_deletions_ask_again(
    slurmrestd: FaultySlurmrestd, slurm: SlurmClient, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(nodeset_steps, "AT_ONCE", 2)
    monkeypatch.setattr(nodeset_steps, "TRUE_SECONDS", 0.0)
    for number in range(5):
        slurmrestd.add_node(f"w-{number}")
    cache = SlurmCache(slurm)
    await cache.refresh()
    plan = planned(slurmrestd, [worker(number) for number in range(5)], 1, cache.nodes)

    class Slow(Deeds):
        async def delete(self, key: Key, pod: Object, *, unchanged: bool = False, begin_by: float) -> bool:
            if what == "gone":
                slurmrestd.responding = False
            else:
                for number in (1, 2):  # an administrator resumed them, and a job began
                    slurmrestd.add_node(f"w-{number}", "ALLOCATED")
            return await super().delete(key, pod, unchanged=unchanged, begin_by=begin_by)

    deeds = Slow()
    pods = {name: {"metadata": {"name": name, "uid": "u"}} for name in slurmrestd.nodes}
    steps = Steps(cast(Any, deeds), KEY, {"metadata": {"name": "w"}}, pods, SlurmCluster(slurm, cache, ("", b"", "")))
    await steps.drains(plan)
    if what == "gone":
        with pytest.raises(Unknown):
            await steps.removals(plan)
    else:
        await steps.removals(plan)
    assert sorted(deeds.deleted) == ["w-3", "w-4"]
