"""The operator's Slurm client against the cloud's slurmctld and slurmrestd."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator

import pytest
from slurm_operator.slurm.cache import SlurmCache
from slurm_operator.slurm.client import SlurmClient
from slurm_operator.slurm.errors import SlurmAuthError, SlurmBusy, SlurmError, SlurmNotFound, SlurmUnreachable
from slurm_operator.slurm.states import PREFIX, is_busy, is_drained, is_idle, is_schedulable
from slurm_operator.slurm.types import NodesSnapshot, NotModified

from .conftest import Cloud

pytestmark = pytest.mark.e2e
Endpoint = tuple[str, bytes, list[str]]


@pytest.fixture
def slurm_endpoint(cloud: Cloud) -> Endpoint:
    """Address of slurmrestd, the key of its tokens, and the names of the workers."""
    service = cloud.get("service", "-n", "slurm", "slurm-restapi")["spec"]
    secrets = cloud.get("secrets", "-n", "slurm")["items"]
    key = next(s["data"]["jwt.key"] for s in secrets if "jwt.key" in s.get("data", {}))
    pods = cloud.get("pods", "-n", "slurm", "-l", "app.kubernetes.io/name=slurmd")["items"]
    names = sorted(pod["spec"]["hostname"] for pod in pods)
    return f"http://{service['clusterIP']}:6820", base64.b64decode(key), names


@pytest.fixture
async def real(slurm_endpoint: Endpoint) -> AsyncIterator[SlurmClient]:
    client = SlurmClient(slurm_endpoint[0], slurm_endpoint[1])
    yield client
    await client.close()


async def until_state(real: SlurmClient, name: str, wanted: object) -> None:
    async with asyncio.timeout(20):
        while not wanted(await real.node(name)):  # type: ignore[operator]
            await asyncio.sleep(0.05)


async def test_reads(real: SlurmClient, slurm_endpoint: Endpoint) -> None:
    assert (await real.ping())[0].primary
    assert real.version is not None
    assert real.version >= (25, 11, 0)
    snapshot = await real.nodes()
    assert isinstance(snapshot, NodesSnapshot)
    assert set(slurm_endpoint[2]) <= set(snapshot.nodes)
    assert snapshot.last_update > 0
    node = await real.node(slurm_endpoint[2][0])
    assert node.cpus > 0
    assert node.memory > 0
    assert node.partitions
    assert node.slurmd_start.value()
    assert is_idle(node)
    assert await real.reservations() == []
    assert "jobs_running" in await real.diag()
    with pytest.raises(SlurmNotFound):
        await real.node("nobody")
    with pytest.raises(SlurmNotFound):
        await real.job(4_000_000)


async def test_incremental(real: SlurmClient, slurm_endpoint: Endpoint) -> None:
    name = slurm_endpoint[2][0]
    first = await real.nodes()
    assert isinstance(first, NodesSnapshot)
    await asyncio.sleep(2.1)
    answer = await real.nodes(int(time.time()) + 5)
    assert isinstance(answer, NotModified)
    before = int(time.time())
    await real.update_node(name, comment=f"at {before}")
    changed = await real.nodes(first.last_update)
    assert isinstance(changed, NodesSnapshot)
    assert changed.nodes[name].comment == f"at {before}"
    assert changed.nodes[name].partitions


async def test_drain_and_resume(real: SlurmClient, slurm_endpoint: Endpoint) -> None:
    names = slurm_endpoint[2]
    await real.update_nodes(names, state="DRAIN", reason=f"{PREFIX}test")
    for name in names:
        node = await real.node(name)
        assert is_drained(node)
        assert node.reason == f"{PREFIX}test"
    await real.update_nodes(names, state="UNDRAIN")
    for name in names:
        await until_state(real, name, lambda node: is_schedulable(node) and is_idle(node))
    with pytest.raises(SlurmError):
        await real.update_nodes([names[0], "nobody"], state="DRAIN", reason="x")
    await real.update_nodes([names[0]], state="UNDRAIN")


async def test_errors(slurm_endpoint: Endpoint) -> None:
    stranger = SlurmClient(slurm_endpoint[0], b"another key")
    with pytest.raises(SlurmAuthError):
        await stranger.nodes()
    with pytest.raises(SlurmUnreachable):
        await stranger.ping()
    await stranger.close()


async def test_external_node_comes_and_goes(real: SlurmClient) -> None:
    await real.create_node("NodeName=ext1 CPUs=2 RealMemory=1000 State=EXTERNAL")
    cache = SlurmCache(real)
    now = await cache.read_now(["ext1", "nobody"])
    assert now["nobody"] is None
    assert now["ext1"] is not None
    assert not is_busy(now["ext1"])
    await real.create_reservation(
        "m1", nodes=["ext1"], users=["root"], start=int(time.time()) + 3600, minutes=5, flags=["MAINT"]
    )
    assert [one.nodes for one in await real.reservations()] == [["ext1"]]
    await real.delete_reservation("m1")
    with pytest.raises(SlurmNotFound):
        await real.delete_reservation("m1")
    await real.delete_node("ext1")
    with pytest.raises(SlurmNotFound):
        await real.delete_node("ext1")
    await real.reconfigure()
    await real.ping()


async def test_a_job_makes_its_node_busy(real: SlurmClient, slurm_endpoint: Endpoint) -> None:
    job = {
        "script": "#!/bin/sh\nsleep 300\n",
        "job": {
            "name": "t", "current_working_directory": "/tmp", "environment": ["PATH=/usr/bin:/bin"],
            "required_nodes": [slurm_endpoint[2][0]], "memory_per_node": {"set": True, "number": 10},
            "time_limit": {"set": True, "number": 5},
        },
    }  # fmt: skip
    import msgspec

    _, data = await real._send("POST", "job/submit", 15, job)
    job_id = msgspec.json.decode(data)["job_id"]
    await until_state(real, slurm_endpoint[2][0], is_busy)
    states = {one.id: one.states for one in await real.jobs_state()}
    assert states[str(job_id)] == {"RUNNING"}
    info = await real.job(job_id)
    assert info.nodes == [slurm_endpoint[2][0]]
    assert info.limit.value() == 5
    assert (info.end.value() or 0) > time.time()
    assert any(one.id == job_id for one in await real.jobs())
    await real.update_node(slurm_endpoint[2][0], state="DRAIN", reason=f"{PREFIX}scale-in")
    busy = await real.node(slurm_endpoint[2][0])
    assert is_busy(busy)
    assert "DRAIN" in busy.states
    with pytest.raises(SlurmBusy):
        await real.delete_node(slurm_endpoint[2][0])
    await real._send("DELETE", f"job/{job_id}", 15)
    await until_state(real, slurm_endpoint[2][0], is_drained)
    await real.update_node(slurm_endpoint[2][0], state="UNDRAIN")
    await until_state(real, slurm_endpoint[2][0], is_schedulable)
