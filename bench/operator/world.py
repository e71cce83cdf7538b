"""Everything one run needs, started and removed as one, and the questions that measures ask it."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from slurm_operator.kube.auth import load_access
from slurm_operator.kube.client import KubeClient
from slurm_operator.kube.resources import CONTROLLERS, NODES, NODESETS, RESTAPIS, SERVICES, Object, Resource

from bench.operator import control
from bench.operator.errors import BenchError
from bench.operator.jobs import BenchSlurm
from bench.operator.kubelets import NAMESPACE, Kubelets
from bench.operator.process import OURS, REPOSITORY, Operator
from bench.operator.proxy import Proxy
from bench.operator.slurm import REST_PORT, Slurm
from localcloud.kubernetes import cluster
from localcloud.kubernetes.api import Api
from localcloud.paths import Instance

NODESET = "bench"
CLUSTER = "slurm"
GROUP = "slinky.slurm.net/v1beta1"
Say = Callable[[str], None]


@dataclass
class World:
    """`workers` is N of the run."""

    inst: Instance
    workers: int
    kube: KubeClient
    slurm: BenchSlurm
    slurmrestd: Slurm
    proxy: Proxy
    kubelets: Kubelets
    operator: Operator
    calls: control.Calls
    say: Say
    started: float

    async def until(self, check: Callable[[], bool], what: str, seconds: float, pause: float = 0.02) -> float:
        """Time (monotonic) when `check` first held. Raises BenchError after `seconds`, or if the operator ended."""
        end = time.monotonic() + seconds
        while not check():
            self.operator.check()
            if time.monotonic() > end:
                trouble = "; ".join(dict.fromkeys(self.kubelets.problems[-5:]))
                raise BenchError(
                    f"not within {seconds:.0f} s: {what}" + (f" (simulation: {trouble})" if trouble else "")
                )
            await asyncio.sleep(pause)
        return time.monotonic()

    def status(self) -> Object:
        nodeset = self.kubelets.nodesets.get(NAMESPACE, NODESET)
        return dict((nodeset or {}).get("status") or {})

    def status_says(self, replicas: int) -> bool:
        """The status tells of so many workers, all ready, and of Slurm nodes in order."""
        status = self.status()
        slurm = sum(status.get(name, 0) for name in ("slurmIdle", "slurmAllocated"))
        return bool(status.get("replicas") == status.get("readyReplicas") == slurm == replicas)

    async def settle(self, replicas: int, seconds: float) -> float:
        """Until exactly so many workers exist, are ready and in the status; the time when that was so."""

        def settled() -> bool:
            pods = self.kubelets.workers()
            return len(pods) == len(self.kubelets.ready) == replicas and self.status_says(replicas)

        return await self.until(settled, f"{replicas} workers are ready and in the status", seconds)

    async def patch_nodeset(self, spec: dict[str, Any]) -> float:
        """Change the NodeSet; the time just before."""
        began = time.monotonic()
        await self.kube.patch(NODESETS, NAMESPACE, NODESET, {"spec": spec})
        return began

    async def cordon(self, machine: str, on: bool) -> float:
        """Cordon a simulated node, or take it back; the time just before."""
        began = time.monotonic()
        await self.kube.patch(NODES, "", machine, {"spec": {"unschedulable": on or None}})
        return began

    def host_of(self, pod: str) -> str:
        """Slurm node of a worker."""
        return str(self.kubelets.workers()[pod]["spec"].get("hostname") or pod)


@asynccontextmanager
async def running_world(workers: int, command: str, crds: Path | None, folder: Path, say: Say) -> AsyncIterator[World]:
    """Start everything but the NodeSet; all of it is removed at the end, whatever happens."""
    inst = control.instance()
    say("starting etcd, API server and controllers")
    try:
        api = await asyncio.to_thread(control.start, inst)
        async with _inside(inst, api, workers, command, crds, folder, say) as world:
            yield world
    finally:
        say("removing everything")
        await asyncio.shield(asyncio.to_thread(cluster.stop_all, inst=inst))


@asynccontextmanager
async def _inside(
    inst: Instance, api: Api, workers: int, command: str, crds: Path | None, folder: Path, say: Say
) -> AsyncIterator[World]:
    kubeconfig = inst.state / "run" / "operator.kubeconfig"
    control.operator_access(inst, api, kubeconfig)
    await asyncio.to_thread(_apply_crds, api, crds)
    say("starting slurmctld and slurmrestd (the first time ever this makes a Debian tree, half a minute)")
    slurmrestd = Slurm(inst, max(2 * workers, 100))
    await slurmrestd.start()
    slurm = BenchSlurm(slurmrestd)
    operator = Operator(command or OURS + " --kubeconfig {kubeconfig}", kubeconfig, NAMESPACE, folder)
    background: list[asyncio.Task[None]] = []
    async with KubeClient(load_access(inst.kubeconfig)) as kube:
        proxy = Proxy((slurmrestd.address, REST_PORT), inst.bridge)
        kubelets = Kubelets(kube, slurm, workers)
        try:
            say(f"making {workers} simulated nodes")
            await kubelets.make_machines()
            background = [asyncio.create_task(kubelets.run())]
            await asyncio.wait_for(kubelets.nodesets.synced.wait(), 30)
            await asyncio.wait_for(kubelets.pods.synced.wait(), 30)
            operator.start()
            calls = control.Calls(inst)
            world = World(
                inst, workers, kube, slurm, slurmrestd, proxy, kubelets, operator, calls, say, time.monotonic()
            )
            await _connect(world)
            yield world
        finally:
            await operator.stop()
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            await kubelets.stop()
            await proxy.cut()
            await slurm.close()


def _apply_crds(api: Api, path: Path | None) -> None:
    if path is None:
        environment = {"PYTHONPATH": str(REPOSITORY / "operator" / "src"), "PATH": "/usr/bin:/bin"}
        done = subprocess.run(
            [sys.executable, "-m", "slurm_operator", "crds"],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        text = done.stdout
    else:
        files = sorted(path.glob("*.yaml")) if path.is_dir() else [path]
        text = "\n---\n".join(file.read_text() for file in files)
    names = []
    for crd in yaml.safe_load_all(text):
        if crd and crd.get("kind") == "CustomResourceDefinition":
            names.append(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd['metadata']['name']}")
            api.apply(names[-1], crd)
    if not names:
        raise BenchError(f"{path}: holds no CustomResourceDefinition. Next: give CRDS the operator's own")
    end = time.monotonic() + 30
    while not all(_established(api.get(name)) for name in names):
        if time.monotonic() > end:
            raise BenchError("the CRDs were not established within 30 s")
        time.sleep(0.1)


def _established(crd: dict[str, Any] | None) -> bool:
    conditions = ((crd or {}).get("status") or {}).get("conditions") or ()
    return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)


async def _connect(world: World) -> None:
    """The Controller and the RestApi, and the proxy at the address of slurmrestd's Service."""
    world.say("starting the operator; Controller and RestApi")
    keys = {"slurm.key": world.slurmrestd.slurm_key, "jwt.key": world.slurmrestd.key}
    data = {name: base64.b64encode(value).decode() for name, value in keys.items()}
    await world.kube.create({"apiVersion": "v1", "kind": "Secret", "metadata": _meta("bench-keys"), "data": data})
    image = {"image": "none"}
    await world.kube.create(_custom(CONTROLLERS, CLUSTER, {
        "slurmKeyRef": {"name": "bench-keys", "key": "slurm.key"},
        "jwtKeyRef": {"name": "bench-keys", "key": "jwt.key"},
        "jwtHs256KeyRef": {"name": "bench-keys", "key": "jwt.key"},
        "persistence": {"enabled": False}, "slurmctld": image, "reconfigure": image, "logfile": image,
    }))  # fmt: skip
    await world.kube.create(_custom(RESTAPIS, CLUSTER, {"controllerRef": {"name": CLUSTER}, "slurmrestd": image}))
    name = f"{CLUSTER}-restapi"
    end = time.monotonic() + 60
    while (service := await world.kube.get(SERVICES, NAMESPACE, name)) is None:
        world.operator.check()
        if time.monotonic() > end:
            raise BenchError(f"the operator made no Service {name} within 60 s. Next: read {world.operator.log}")
        await asyncio.sleep(0.1)
    address = service["spec"]["clusterIP"]
    if address == "None":
        raise BenchError(f"Service {name} has no address of its own, so it cannot be proxied")
    names = " ".join([name, f"{name}.{NAMESPACE}", f"{name}.{NAMESPACE}.svc", f"{name}.{NAMESPACE}.svc.cluster.local"])
    with world.operator.hosts.open("a") as hosts:
        hosts.write(f"{address} {names}\n")
    await world.proxy.listen(address, service["spec"]["ports"][0]["port"])
    world.say("waiting for the operator's first request to slurmrestd")
    end = time.monotonic() + 60
    while not world.proxy.first_request.is_set():
        world.operator.check()
        if time.monotonic() > end:
            world.say("none within 60 s; it may ask only when there is a NodeSet")
            break
        await asyncio.sleep(0.05)


def nodeset(replicas: int) -> Object:
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "25%"}}
    image = {"image": "none"}
    spec = {
        "controllerRef": {"name": CLUSTER},
        "replicas": replicas,
        "slurmd": image,
        "logfile": image,
        "updateStrategy": strategy,
    }
    return _custom(NODESETS, NODESET, spec)


def _custom(resource: Resource, name: str, spec: dict[str, Any]) -> Object:
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": _meta(name), "spec": spec}


def _meta(name: str) -> dict[str, str]:
    return {"name": name, "namespace": NAMESPACE}


def quantile(values: Sequence[float], share: float) -> float:
    """Nearest-rank quantile."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, round(share * len(ordered) + 0.5) - 1))]


def dump(value: object) -> str:
    return json.dumps(value, indent=1, sort_keys=True)
