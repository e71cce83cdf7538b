"""The manager calls reconcile when it should, tries again when it fails, and ends cleanly."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import aiohttp
import pytest
from slurm_operator.errors import Unknown
from slurm_operator.kube.auth import Access
from slurm_operator.kube.client import KubeClient
from slurm_operator.kube.errors import Conflict
from slurm_operator.kube.resources import CONFIGMAPS, PODS, Key, Object, Resource
from slurm_operator.runtime.controller import Controller
from slurm_operator.runtime.manager import Manager
from slurm_operator.runtime.settings import Settings
from support.faulty_apiserver import FaultyApiServer, on, status, times
from support.ports import free_port

CONFIG, POD = "api/v1/configmaps", "api/v1/pods"


class Recorder(Controller):
    """Notes its calls; what a call does is `act`."""

    name: ClassVar[str] = "recorder"
    resource: ClassVar[Resource] = CONFIGMAPS

    def setup(self) -> None:
        self.calls: list[Key] = []
        self.act: Callable[[Key], Awaitable[float | None]] | None = None
        self.some = self.watch(CONFIGMAPS, label_selector="some=label")
        self.own = self.watch(CONFIGMAPS)
        self.pods = self.owns(PODS, matters=lambda old, new: old.get("spec") != new.get("spec"))
        self.pause = 0.0

    def rest(self, key: Key) -> float:
        return self.pause

    async def reconcile(self, key: Key) -> float | None:
        self.calls.append(key)
        return await self.act(key) if self.act else None


@pytest.fixture
def running(api: FaultyApiServer) -> Callable[..., Any]:
    @asynccontextmanager
    async def start(**settings: Any) -> AsyncIterator[tuple[Manager, Recorder, asyncio.Task[int]]]:
        wanted = {"leader_elect": False, "health_port": 0, "metrics_port": 0, "drain_seconds": 0.5, **settings}
        access = Access(api.url, namespace="ns")
        async with KubeClient(access) as kube, KubeClient(access) as lease_client:
            manager = Manager(Settings(**wanted), kube, lease_client)
            controller = Recorder(manager)
            manager.add([controller])
            task = asyncio.create_task(manager.run())
            try:
                yield manager, controller, task
            finally:
                manager.stopping.set()
                await asyncio.wait_for(task, 10)

    return start


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not true():
            await asyncio.sleep(0.005)


async def test_own_and_owned_objects_enqueue_their_keys(api: FaultyApiServer, running: Any) -> None:
    await api.put(CONFIG, "a")
    async with running() as (_, controller, _):
        await until(lambda: controller.calls == [Key("ns", "a")])
        owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "b", "uid": "x", "controller": True}
        await api.put(POD, "p", metadata={"ownerReferences": [owner]})
        await until(lambda: controller.calls[1:] == [Key("ns", "b")])
        await api.put(POD, "q", metadata={"ownerReferences": [{**owner, "kind": "Secret"}]})
        await api.put(POD, "r")
        await api.remove(POD, "p")
        await until(lambda: controller.calls[2:] == [Key("ns", "b")])


async def test_changes_of_the_status_only_do_not_call_it_again(api: FaultyApiServer, running: Any) -> None:
    await api.put(CONFIG, "a", metadata={"generation": 1})
    async with running() as (_, controller, _):
        await until(lambda: len(controller.calls) == 1)
        await api.put(CONFIG, "a", metadata={"generation": 1}, status={"x": 1})
        await api.put(CONFIG, "a", metadata={"generation": 2}, status={"x": 1})
        await until(lambda: len(controller.calls) == 2)
        await api.put(CONFIG, "a", metadata={"generation": 2, "labels": {"l": "1"}}, status={"x": 1})
        await until(lambda: len(controller.calls) == 3)


async def test_changes_that_do_not_matter_do_not_call_it(api: FaultyApiServer, running: Any) -> None:
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "b", "uid": "x", "controller": True}
    async with running() as (_, controller, _):
        await api.put(POD, "p", metadata={"ownerReferences": [owner]}, spec={"x": 1})
        await until(lambda: controller.calls == [Key("ns", "b")])
        await api.put(POD, "p", metadata={"ownerReferences": [owner]}, spec={"x": 1}, status={"dull": 1})
        await api.put(POD, "p", metadata={"ownerReferences": [owner]}, spec={"x": 2}, status={"dull": 2})
        await until(lambda: len(controller.calls) == 2)
        await asyncio.sleep(0.05)
        assert len(controller.calls) == 2


async def test_events_after_a_reconcile_wait_for_its_rest(api: FaultyApiServer, running: Any) -> None:
    async with running() as (_, controller, _):
        controller.pause = 0.2
        await api.put(CONFIG, "a")
        await until(lambda: len(controller.calls) == 1)
        for number in range(5):
            await api.put(CONFIG, "a", data={"n": str(number)})
        assert len(controller.calls) == 1
        await until(lambda: len(controller.calls) == 2)


async def test_failures_come_back_and_are_told_once_per_change(
    api: FaultyApiServer, running: Any, caplog: pytest.LogCaptureFixture
) -> None:
    errors: list[Exception] = [Unknown("Slurm is away")] * 3 + [RuntimeError("a mistake")] * 2

    async def act(_: Key) -> float | None:
        if errors:
            raise errors.pop(0)
        return None

    with caplog.at_level(logging.INFO):
        async with running() as (_, controller, _):
            controller.act = act
            await api.put(CONFIG, "a")
            await until(lambda: len(controller.calls) == 6)
            await until(lambda: any("went well again" in one.message for one in caplog.records))
    told = [one for one in caplog.records if one.name == "recorder" and one.levelno == logging.WARNING]
    assert [("Unknown: Slurm is away" in one.message, bool(one.exc_info)) for one in told] == [
        (True, False),
        (False, True),
    ]


async def test_a_delay_that_was_asked_for(api: FaultyApiServer, running: Any) -> None:
    async def act(_: Key) -> float | None:
        return 0.01 if len(controller.calls) < 4 else None

    async with running() as (_, controller, _):
        controller.act = act
        await api.put(CONFIG, "a")
        await until(lambda: len(controller.calls) == 4)


async def test_a_reconcile_never_sees_a_world_from_before_its_own_writes(api: FaultyApiServer, running: Any) -> None:
    """Every watch event arrives late; each round adds one to what it reads, so a stale read would repeat a number."""
    written: list[str] = []

    async def act(key: Key) -> float | None:
        live = controller.own.get("ns", "counter")
        count = int(live["data"]["n"]) + 1 if live else 1
        if key.name == "counter" or count > 8:
            return None
        meta = {"name": "counter", "namespace": "ns"}
        wish = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"n": str(count)}}
        await controller.ensure(key, wish)
        written.append(str(count))
        return 0.001

    async with running() as (_, controller, _):
        controller.act = act
        await api.put(CONFIG, "a")
        api.lag = 0.05
        await until(lambda: len(written) == 8)
    assert written == [str(number) for number in range(1, 9)]


async def test_ensure_sends_nothing_when_nothing_changed(api: FaultyApiServer, running: Any) -> None:
    async def act(key: Key) -> float | None:
        if key.name == "a":
            meta = {"name": "wish", "namespace": "ns", "labels": {"x": "1"}}
            await controller.ensure(
                key, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"v": "1"}}
            )
            own = controller.own.get(*key)
            await controller.apply_status(key, {**own, "status": {"phase": "fine"}})
        return None

    async with running() as (_, controller, _):
        controller.act = act
        await api.put(CONFIG, "a", metadata={"generation": 1})
        await until(lambda: api.seen("PATCH") == 2 and len(controller.calls) >= 2)
        for _ in range(5):
            before = len(controller.calls)
            controller.enqueue(Key("ns", "a"))
            await until(lambda before=before: len(controller.calls) > before)  # type: ignore[misc]
        assert api.seen("PATCH") == 2
        await api.put(CONFIG, "wish", data={"v": "changed by somebody"})
        await until(lambda: api.objects[CONFIG, "ns", "wish"]["data"]["v"] == "changed by somebody")
        controller.enqueue(Key("ns", "a"), 0.05)
        await until(lambda: api.objects[CONFIG, "ns", "wish"]["data"]["v"] == "1")
        await api.remove(CONFIG, "wish")
        controller.enqueue(Key("ns", "a"), 0.05)
        await until(lambda: (CONFIG, "ns", "wish") in api.objects)


async def test_delete_and_evict_hit_the_object_that_was_read(api: FaultyApiServer, running: Any) -> None:
    async with running() as (_, controller, _):
        await api.put(POD, "p")
        await until(lambda: controller.pods.get("ns", "p") is not None)
        pod: Object = controller.pods.get("ns", "p")
        key = Key("ns", "owner")
        changed = await api.put(POD, "p", spec={"nodeName": "n"})
        with pytest.raises(Conflict):
            await controller.delete(key, pod, unchanged=True)
        assert await controller.delete(key, pod)
        assert controller.writer.stale(key) == [] or controller.pods.is_stale(Key("ns", "p"))
        await until(lambda: not controller.writer.stale(key))
        assert not await controller.delete(key, changed)
        await api.put(POD, "p")
        with pytest.raises(Conflict):
            await controller.delete(key, changed)


async def test_health_readiness_and_metrics(api: FaultyApiServer, running: Any) -> None:
    api.faults.append(times(3, on("GET", "pods?limit", lambda: status(403, "Forbidden", "no"))))
    health, metrics = free_port(), free_port()
    await api.put(CONFIG, "a")
    async with (
        running(health_port=health, metrics_port=metrics) as (manager, controller, _),
        aiohttp.ClientSession() as http,
    ):

        async def get(port: int, path: str) -> tuple[int, str]:
            async with http.get(f"http://127.0.0.1:{port}{path}") as answer:
                return answer.status, await answer.text()

        await until(lambda: api.seen("GET", "pods?limit") > 0)
        assert await get(health, "/readyz") == (503, "caches not filled: pods")
        assert await get(health, "/healthz") == (200, "ok")
        await until(lambda: len(controller.calls) == 1)
        assert await get(health, "/readyz") == (200, "ok")
        _, text = await get(metrics, "/metrics")
        for series in (
            'controller_runtime_reconcile_total{controller="recorder",result="success"} 1.0',
            'workqueue_adds_total{name="recorder"} 1.0',
            'workqueue_depth{name="recorder"} 0.0',
            'workqueue_longest_running_processor_seconds{name="recorder"} 0.0',
            'slurm_operator_cache_objects{resource="configmaps"} 1.0',
            'leader_election_master_status{name="slurm-operator"} 1.0',
            "process_resident_memory_bytes",
        ):
            assert series in text, series
        controller.queue.processing[Key("ns", "stuck")] = -1e6
        status_code, body = await get(health, "/healthz")
        assert status_code == 503
        assert "ns/stuck" in body
        controller.queue.processing.clear()
        manager._pulse.lag = 60
        assert (await get(health, "/healthz"))[0] == 503


async def test_nothing_begins_before_each_cache_of_a_kind_is_full(api: FaultyApiServer, running: Any) -> None:
    await api.put(CONFIG, "a")
    api.faults.append(on("GET", "labelSelector=some", lambda: status(500, "InternalError", "etcd")))
    async with running() as (manager, controller, _):
        await until(lambda: controller.own.synced.is_set() and manager.informers_of(PODS)[0].synced.is_set())
        await asyncio.sleep(0.2)
        assert controller.calls == []
        api.faults.clear()
        await until(lambda: controller.calls != [])
        assert controller.some.synced.is_set()


async def test_a_standby_is_ready_and_does_not_act(api: FaultyApiServer, running: Any) -> None:
    lease = {"holderIdentity": "somebody", "leaseDurationSeconds": 3600, "renewTime": "x"}
    await api.put("apis/coordination.k8s.io/v1/leases", "slurm-operator", spec=lease)
    await api.put(CONFIG, "a")
    health = free_port()
    async with running(leader_elect=True, health_port=health) as (_, controller, _), aiohttp.ClientSession() as http:
        await until(lambda: controller.own.get("ns", "a") is not None and api.seen("GET", "leases") > 0)
        async with http.get(f"http://127.0.0.1:{health}/readyz") as answer:
            assert answer.status == 200
        await asyncio.sleep(0.05)
        assert controller.calls == []
    assert api.objects["apis/coordination.k8s.io/v1/leases", "ns", "slurm-operator"]["spec"] == lease


async def test_losing_the_lease_ends_the_process_and_stops_writes(api: FaultyApiServer, running: Any) -> None:
    quick = {"lease_seconds": 0.9, "deadline_seconds": 0.6, "retry_seconds": 0.05}
    async with running(leader_elect=True, **quick) as (manager, controller, task):
        await api.put(CONFIG, "a")
        await until(lambda: len(controller.calls) == 1)
        stolen = api.objects["apis/coordination.k8s.io/v1/leases", "ns", "slurm-operator"]["spec"]
        await api.put("apis/coordination.k8s.io/v1/leases", "slurm-operator", spec={**stolen, "holderIdentity": "b"})
        assert await asyncio.wait_for(task, 5) == 1
        assert manager.kube.fence is not None
        with pytest.raises(Exception, match="not ours"):
            manager.kube.fence()


async def test_a_clean_stop_lets_reconciles_end_and_frees_the_lease(api: FaultyApiServer, running: Any) -> None:
    finished: list[Key] = []

    async def act(key: Key) -> float | None:
        await asyncio.sleep(0.2)
        finished.append(key)
        return None

    async with running(leader_elect=True) as (_, controller, task):
        controller.act = act
        await api.put(CONFIG, "a")
        await until(lambda: len(controller.calls) == 1)
        signal.raise_signal(signal.SIGTERM)
        assert await asyncio.wait_for(task, 5) == 0
    assert finished == [Key("ns", "a")]
    assert api.objects["apis/coordination.k8s.io/v1/leases", "ns", "slurm-operator"]["spec"]["holderIdentity"] == ""


async def test_logs_are_json_lines_with_the_fields_of_the_reconcile(
    api: FaultyApiServer, running: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    from slurm_operator.runtime import log

    root = logging.getLogger()
    before = root.handlers[:], root.level
    log.set_up("info")

    async def act(_: Key) -> float | None:
        controller.log.info("hello %d", 7)
        raise ValueError("odd") if len(controller.calls) == 1 else Unknown("?")

    try:
        async with running() as (_, controller, _):
            controller.act = act
            await api.put(CONFIG, "a")
            await until(lambda: len(controller.calls) > 1)
    finally:
        root.handlers[:], level = before
        root.setLevel(level)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    hello = next(line for line in lines if line["msg"] == "hello 7")
    assert (hello["controller"], hello["namespace"], hello["name"]) == ("recorder", "ns", "a")
    assert hello["reconcileID"]
    assert hello["level"] == "info"
    assert any("Traceback" in line.get("error", "") and "odd" in line["msg"] for line in lines)


def test_two_transforms_of_one_cache_are_refused() -> None:
    async def build() -> None:
        access = Access("http://127.0.0.1:1")
        manager = Manager(Settings(leader_elect=False), KubeClient(access), KubeClient(access))
        first = manager.informer(PODS)
        assert manager.informer(PODS) is first
        with pytest.raises(ValueError, match="different transforms"):
            manager.informer(PODS, transform=lambda obj: obj)

    asyncio.run(build())
