"""A cordon reaches Slurm by the short way, while the NodeSet's own reconcile is not even running."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from slurm_operator.controllers.cordons import CordonController
from slurm_operator.kube.auth import Access
from slurm_operator.kube.client import KubeClient
from slurm_operator.kube.resources import Key
from slurm_operator.runtime.manager import Manager
from slurm_operator.runtime.settings import Settings
from support.faulty_apiserver import FaultyApiServer
from support.faulty_slurmrestd import FaultySlurmrestd

NODE, POD, NODESET = "api/v1/nodes", "api/v1/pods", "apis/slinky.slurm.net/v1beta1/nodesets"
WORKERS = 5


@asynccontextmanager
async def running(api: FaultyApiServer, slurmrestd: FaultySlurmrestd) -> AsyncIterator[Manager]:
    await api.put(NODESET, "w", spec={"controllerRef": {"name": "c"}})
    for number in range(WORKERS):
        slurmrestd.add_node(f"w-{number}")
        await api.put(NODE, f"m{number}", namespace="")
        labels = {
            "app.kubernetes.io/name": "slurmd",
            "nodeset.slinky.slurm.net/pod-index": str(number),
            "nodeset.slinky.slurm.net/pod-hostname": f"w-{number}",
        }
        owner = {"apiVersion": "slinky.slurm.net/v1beta1", "kind": "NodeSet", "name": "w", "uid": "u"}
        meta = {"labels": labels, "ownerReferences": [{**owner, "controller": True}]}
        spec, state = {"nodeName": f"m{number}"}, {"phase": "Running"}
        await api.put(POD, f"w-{number}", metadata=meta, spec=spec, status=state)
    access = Access(api.url, namespace="ns")
    async with KubeClient(access) as kube, KubeClient(access) as lease_client:
        manager = Manager(Settings(leader_elect=False, health_port=0, metrics_port=0), kube, lease_client)
        manager.add([CordonController(manager)])
        await manager.slurm.ensure(Key("ns", "c"), slurmrestd.url, slurmrestd.key)
        task = asyncio.create_task(manager.run())
        try:
            await until(lambda: all(informer.synced.is_set() for informer in manager._informers.values()))
            yield manager
        finally:
            manager.stopping.set()
            await asyncio.wait_for(task, 10)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not true():
            await asyncio.sleep(0.005)


async def test_each_cordoned_machine_is_drained_with_its_reason(
    api: FaultyApiServer, slurmrestd: FaultySlurmrestd
) -> None:
    async with running(api, slurmrestd):
        for number in range(WORKERS - 1):
            await api.put(NODE, f"m{number}", namespace="", spec={"unschedulable": True})
        await until(lambda: all("DRAIN" in slurmrestd.nodes[f"w-{number}"]["state"] for number in range(WORKERS - 1)))
        assert slurmrestd.nodes["w-0"]["reason"].startswith("slurm-operator: Node (m0) was cordoned")
        assert "DRAIN" not in slurmrestd.nodes[f"w-{WORKERS - 1}"]["state"]


async def test_a_drain_of_an_administrator_keeps_its_reason(api: FaultyApiServer, slurmrestd: FaultySlurmrestd) -> None:
    async with running(api, slurmrestd):
        slurmrestd.add_node("w-1", "IDLE", "DRAIN", reason="bad fan")
        await api.put(NODE, "m1", namespace="", spec={"unschedulable": True})
        await api.put(NODE, "m2", namespace="", spec={"unschedulable": True})
        await until(lambda: "DRAIN" in slurmrestd.nodes["w-2"]["state"])
        await asyncio.sleep(0.05)
        assert slurmrestd.nodes["w-1"]["reason"] == "bad fan"


async def test_heartbeats_and_failures_of_slurm_are_no_harm(api: FaultyApiServer, slurmrestd: FaultySlurmrestd) -> None:
    async with running(api, slurmrestd) as manager:
        slurmrestd.requests.clear()
        await api.put(NODE, "m1", namespace="", status={"conditions": [{"type": "Ready", "status": "True"}]})
        await asyncio.sleep(0.1)
        assert not [path for _, path, _ in slurmrestd.requests if path.startswith("node/")]
        slurmrestd.responding = False
        await api.put(NODE, "m1", namespace="", spec={"unschedulable": True})
        await asyncio.sleep(0.1)
        assert manager.controllers[0].queue.failures(Key("", "cordons")) == 0  # the NodeSet's reconcile goes on with it
