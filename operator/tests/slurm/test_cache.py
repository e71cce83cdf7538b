"""The cache follows Slurm, keeps what it knew through errors, and says how old that is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from aiohttp import web
from slurm_operator.errors import Unknown
from slurm_operator.kube.resources import Key
from slurm_operator.slurm import cache as cache_module
from slurm_operator.slurm.cache import SlurmCache
from slurm_operator.slurm.client import SlurmClient
from slurm_operator.slurm.errors import SlurmException, SlurmUnreachable
from slurm_operator.slurm.registry import SlurmRegistry
from slurm_operator.slurm.types import NodeInfo, NodesSnapshot, NotModified
from support.faulty_slurmrestd import FaultySlurmrestd, job


@pytest.fixture
async def cache(slurm: SlurmClient, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SlurmCache]:
    monkeypatch.setattr(cache_module, "RETRY_FIRST_SECONDS", 0.02)
    monkeypatch.setattr(cache_module, "RETRY_MAX_SECONDS", 0.05)
    monkeypatch.setattr(cache_module, "POKED_SECONDS", 0.01)
    cache = SlurmCache(slurm, interval=0.02)
    task = asyncio.create_task(cache.run())
    yield cache
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not true():
            await asyncio.sleep(0.005)


async def test_tells_which_nodes_changed(slurmrestd: FaultySlurmrestd, cache: SlurmCache) -> None:
    heard: list[frozenset[str]] = []
    cache.add_handler(heard.append)
    slurmrestd.add_node("n1")
    slurmrestd.jobs[3] = job(3, ["RUNNING"])
    await until(lambda: "n1" in cache.nodes and "3" in cache.jobs)
    slurmrestd.add_node("n2")
    await until(lambda: frozenset({"n2"}) in heard)
    slurmrestd.add_node("n1", "ALLOCATED")
    await until(lambda: heard[-1] == {"n1"})
    del slurmrestd.nodes["n2"]
    slurmrestd.updated += 10
    await until(lambda: heard[-1] == {"n2"})
    assert set(cache.nodes) == {"n1"}


async def test_an_outage_wipes_nothing_and_is_told(slurmrestd: FaultySlurmrestd, cache: SlurmCache) -> None:
    slurmrestd.add_node("n1")
    await until(lambda: cache.reachable)
    assert cache.fresh_within(5)
    heard: list[frozenset[str]] = []
    cache.add_handler(heard.append)
    slurmrestd.responding = False
    await until(lambda: not cache.reachable)
    assert heard == [frozenset()]
    assert "n1" in cache.nodes
    await asyncio.sleep(0.1)
    assert not cache.fresh_within(0.05)
    with pytest.raises(Unknown, match=r"connect failure|no slurmctld responds"):
        cache.require_fresh(0.05)
    with pytest.raises(SlurmException):
        await cache.refresh()
    slurmrestd.responding = True
    await until(lambda: cache.reachable)
    assert len(heard) == 2
    cache.require_fresh(5)


async def test_the_end_of_an_outage_is_told_to_all_also_when_a_node_changed_meanwhile(
    slurmrestd: FaultySlurmrestd, cache: SlurmCache
) -> None:
    slurmrestd.add_node("n1")
    await until(lambda: cache.reachable)
    heard: list[frozenset[str]] = []
    cache.add_handler(heard.append)
    slurmrestd.responding = False
    await until(lambda: not cache.reachable)
    slurmrestd.add_node("n2")
    slurmrestd.responding = True
    await until(lambda: cache.reachable)
    assert "n2" in cache.nodes
    assert heard == [frozenset(), frozenset()]


async def test_an_answer_that_a_restart_of_slurmctld_held_up_slows_no_polling(
    slurmrestd: FaultySlurmrestd, cache: SlurmCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurmrestd.add_node("n1")
    await until(lambda: cache.reachable)
    monkeypatch.setattr(cache_module, "SHARE", 40)  # a pause of 24 s after the answer below
    read, held = cache._client.nodes, asyncio.Event()

    async def hold(since: int | None = None) -> NodesSnapshot | NotModified:
        if not held.is_set():
            await asyncio.sleep(0.6)
            held.set()
        return await read(since)

    monkeypatch.setattr(cache._client, "nodes", hold)
    await until(held.is_set)
    slurmrestd.add_node("n2")
    await until(lambda: "n2" in cache.nodes)
    slurmrestd.add_node("n3")
    await until(lambda: "n3" in cache.nodes)


async def test_never_read_is_not_fresh(slurm: SlurmClient) -> None:
    cache = SlurmCache(slurm)
    assert not cache.fresh_within(1e9)
    with pytest.raises(Unknown, match="never"):
        cache.require_fresh(1e9)


async def test_unchanged_nodes_are_not_sent_again(slurmrestd: FaultySlurmrestd, cache: SlurmCache) -> None:
    slurmrestd.add_node("n1")
    await until(lambda: "n1" in cache.nodes)
    slurmrestd.updated -= 100  # nothing new since what was read
    slurmrestd.requests.clear()
    await until(lambda: len(slurmrestd.requests) > 6)
    assert "nodes/" not in [path for _, path, _ in slurmrestd.requests]
    assert "n1" in cache.nodes


async def test_refresh_shows_what_happened_before_it(slurmrestd: FaultySlurmrestd, slurm: SlurmClient) -> None:
    cache = SlurmCache(slurm, interval=60)
    task = asyncio.create_task(cache.run())
    await until(lambda: cache.reachable)
    slurmrestd.add_node("n1")
    await cache.refresh()
    assert "n1" in cache.nodes
    slurmrestd.add_node("n2")
    cache.poke()
    await until(lambda: "n2" in cache.nodes)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_read_now_asks_slurm_and_not_the_cache(slurmrestd: FaultySlurmrestd, slurm: SlurmClient) -> None:
    cache = SlurmCache(slurm)
    heard: list[frozenset[str]] = []
    cache.add_handler(heard.append)
    slurmrestd.add_node("n1")
    slurmrestd.add_node("n2")
    await cache.refresh()
    slurmrestd.add_node("n1", "ALLOCATED")
    del slurmrestd.nodes["n2"]
    slurmrestd.requests.clear()
    now = await cache.read_now(["n1"])
    assert now["n1"] is not None
    assert "ALLOCATED" in now["n1"].states
    assert [path for _, path, _ in slurmrestd.requests] == ["node/n1"]
    assert (await cache.read_now(["n1", "n2"]))["n2"] is None
    for number in range(100):
        slurmrestd.add_node(f"m{number}")
    slurmrestd.requests.clear()
    many = await cache.read_now([*(f"m{number}" for number in range(100)), "none"])
    assert len(slurmrestd.requests) == 1
    assert many["none"] is None
    assert many["m7"] is not None
    assert "m7" in cache.nodes
    assert "m7" in heard[-1]  # what it took in, its handlers were told


async def test_whole_lists_wanted_at_once_are_one_request(slurmrestd: FaultySlurmrestd, slurm: SlurmClient) -> None:
    cache = SlurmCache(slurm)
    slurmrestd.add_node("n1")
    first, second, third = await asyncio.gather(*(cache.read_now(["n1", f"gone{number}"]) for number in range(3)))
    assert first["n1"] == second["n1"] == third["n1"]
    # The first was under way before the others had asked: they must not have its answer, but may share the next.
    assert [path for _, path, _ in slurmrestd.requests] == ["nodes/", "nodes/"]


async def test_jobs_are_read_when_nodes_changed(slurmrestd: FaultySlurmrestd, cache: SlurmCache) -> None:
    slurmrestd.add_node("n1")
    await until(lambda: "n1" in cache.nodes)
    slurmrestd.updated -= 100
    await asyncio.sleep(0.1)
    slurmrestd.requests.clear()
    await until(lambda: len(slurmrestd.requests) > 6)
    assert "jobs/state/" not in [path for _, path, _ in slurmrestd.requests]
    slurmrestd.jobs[3] = job(3, ["RUNNING"])
    slurmrestd.updated += 100
    slurmrestd.add_node("n1", "ALLOCATED")
    await until(lambda: "3" in cache.jobs)


async def test_many_pokes_are_one_poll(slurmrestd: FaultySlurmrestd, slurm: SlurmClient) -> None:
    slurmrestd.add_node("n1")
    cache = SlurmCache(slurm, interval=60)
    task = asyncio.create_task(cache.run())
    await until(lambda: cache.reachable)
    slurmrestd.requests.clear()
    for _ in range(20):
        cache.poke()
        await asyncio.sleep(0)
    await until(lambda: bool(slurmrestd.requests))
    await asyncio.sleep(0.3)
    assert len([path for _, path, _ in slurmrestd.requests if path.startswith("nodes/")]) == 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("count", [1, 5, 100])
async def test_read_now_is_unknown_when_any_part_fails(
    slurmrestd: FaultySlurmrestd, slurm: SlurmClient, count: int
) -> None:
    for number in range(count):
        slurmrestd.add_node(f"n{number}")

    async def fail(request: web.Request) -> web.StreamResponse | None:
        return slurmrestd.failure(500, 22, "odd") if request.path.endswith(("/n0", "nodes/")) else None

    slurmrestd.faults.append(fail)
    cache = SlurmCache(slurm)
    with pytest.raises(Unknown):
        await cache.read_now(slurmrestd.nodes)
    cache.nodes = {name: NodeInfo(name) for name in slurmrestd.nodes}
    with pytest.raises(Unknown):
        await cache.read_now(slurmrestd.nodes)


async def test_registry_makes_keeps_replaces_and_removes(slurmrestd: FaultySlurmrestd) -> None:
    registry = SlurmRegistry()
    key = Key("slurm", "c")
    heard: list[tuple[Key, frozenset[str]]] = []
    registry.add_handler(lambda key, changed: heard.append((key, changed)))
    with pytest.raises(SlurmUnreachable, match="no RestApi"):
        registry.get(key)
    slurmrestd.add_node("n1")
    first = await registry.ensure(key, slurmrestd.url, slurmrestd.key)
    assert await registry.ensure(key, slurmrestd.url, slurmrestd.key) is first
    await until(lambda: heard == [(key, frozenset())] and "n1" in first.cache.nodes)
    second = await registry.ensure(key, slurmrestd.url, b"rotated")
    assert second is not first
    assert registry.get(key) is second
    assert not second.cache.nodes
    assert "rotated" not in repr(second)
    await registry.remove(key)
    assert registry.find(key) is None
    await registry.remove(key)
    await registry.close()
