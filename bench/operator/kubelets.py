"""Stand-ins for the scheduler, for one kubelet per simulated node, and for the slurmd in each worker pod.

Played: binding (one worker per node, the first free one), the status of a pod that runs and turns Ready, slurmd's
registration (an EXTERNAL node made through slurmrestd, or a DOWN one resumed, as ReturnToService=2 does), the preStop
hook (the node goes DOWN unless the operator drained it, and an administrator's reason is kept), and the end of a
deleted pod. A pod with restartPolicy Never has ended well at once.
Not played: images, containers, probes, resources, affinity, heartbeats, slurmd's pings, the latency of any of them.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import msgspec
from slurm_operator.kube.client import KubeClient
from slurm_operator.kube.errors import AlreadyExists, Conflict, NotFound
from slurm_operator.kube.informer import EventType, Informer
from slurm_operator.kube.resources import NODES, NODESETS, PODS, Object
from slurm_operator.slurm.errors import SlurmException, SlurmNotFound
from slurm_operator.slurm.states import ours

from bench.operator.jobs import BenchSlurm
from bench.operator.slurm import CPUS

NAMESPACE = "slurm"
WORKER = "slurmd"
AT_ONCE = 48
_FEATURES = re.compile(r"Features=([^\s'\"]+)")


class Kubelets:
    """`machines` simulated nodes. Times are of time.monotonic, by pod name unless said otherwise."""

    def __init__(self, kube: KubeClient, slurm: BenchSlurm, machines: int) -> None:
        self.created: dict[str, float] = {}
        self.ready_at: dict[str, float] = {}
        self.deleted: dict[str, float] = {}
        """When a delete was first seen."""
        self.ready: set[str] = set()
        """Workers that are Ready and not being deleted, now."""
        self.lowest_ready = 0
        self.problems: list[str] = []
        self.pods = Informer(kube, PODS, NAMESPACE, transform=_slim)
        self.nodesets = Informer(kube, NODESETS, NAMESPACE)
        self._kube = kube
        self._slurm = slurm
        self._machines = machines
        self._free = deque(f"sim-{number}" for number in range(machines))
        self._taken: dict[str, str] = {}  # uid -> simulated node
        self._ending: set[str] = set()
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()
        self._address = 0
        self.pods.add_handler(self._event)

    # --- what others ask ---

    def workers(self) -> dict[str, Object]:
        """Worker pods that exist, by name."""
        return {pod["metadata"]["name"]: pod for pod in self.pods.list() if _is_worker(pod)}

    def machine_of(self, pod: Object) -> str:
        return str(pod["spec"].get("nodeName", ""))

    def watch_lowest(self) -> None:
        """Begin a new minimum of the number of ready workers."""
        self.lowest_ready = len(self.ready)

    def forget_times(self) -> None:
        self.created.clear()
        self.ready_at.clear()
        self.deleted.clear()

    # --- life ---

    async def make_machines(self) -> None:
        """The Node objects, and one more for pods that are no workers."""
        names = [*self._free, "sim-services"]
        limit = asyncio.Semaphore(AT_ONCE)

        async def make(name: str) -> None:
            async with limit:
                await self._kube.create(_machine(name))

        await asyncio.gather(*(make(name) for name in names))

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.pods.run())
            group.create_task(self.nodesets.run())

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _event(self, event: EventType, old: Object | None, new: Object | None) -> None:
        now = time.monotonic()
        pod = new or old
        assert pod is not None, "an event is about an object"
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        worker = _is_worker(pod)
        if new is None:
            self.ready.discard(name)
            self._freed(uid)
        elif new["metadata"].get("deletionTimestamp"):
            if worker:
                self.ready.discard(name)
                self.deleted.setdefault(name, now)
            if uid not in self._ending:
                self._ending.add(uid)
                self._spawn(self._end, new)
        else:
            if worker and old is None:
                self.created[name] = now
            if worker and _is_ready(new) and name not in self.ready:
                self.ready.add(name)
                self.ready_at[name] = now
            if not new["spec"].get("nodeName") and uid not in self._taken:
                self._taken[uid] = self._machine_for(worker)
                self._spawn(self._start, new)
        self.lowest_ready = min(self.lowest_ready, len(self.ready))

    def _machine_for(self, worker: bool) -> str:
        if not worker:
            return "sim-services"
        if not self._free:
            self.problems.append("more worker pods than simulated nodes")
            return "sim-services"
        return self._free.popleft()

    def _freed(self, uid: str) -> None:
        machine = self._taken.pop(uid, "")
        self._ending.discard(uid)
        if machine not in ("", "sim-services"):
            self._free.append(machine)

    def _spawn(self, work: Callable[[Object], Coroutine[Any, Any, None]], pod: Object) -> None:
        task = asyncio.create_task(self._guarded(work, pod))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, work: Callable[[Object], Coroutine[Any, Any, None]], pod: Object) -> None:
        try:
            async with self._slots:
                await work(pod)
        except (NotFound, Conflict, AlreadyExists):
            return  # it was deleted meanwhile
        except Exception as error:
            self.problems.append(f"{pod['metadata']['name']}: {type(error).__name__}: {error}")

    async def _start(self, pod: Object) -> None:
        meta = pod["metadata"]
        machine = self._taken[meta["uid"]]
        target = {"apiVersion": "v1", "kind": "Node", "name": machine}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": meta["name"], "uid": meta["uid"]},
                   "target": target}  # fmt: skip
        body = msgspec.json.encode(binding)
        await self._kube.send("create", PODS, meta["namespace"], meta["name"], subresource="binding", body=body)
        if _is_worker(pod):
            await self._register(pod)
        self._address += 1
        status = _running(pod, f"10.200.{self._address // 250 % 250}.{self._address % 250 + 1}")
        await self._kube.patch(
            PODS, meta["namespace"], meta["name"], {"metadata": {"uid": meta["uid"]}, "status": status},
            content="strategic", subresource="status",
        )  # fmt: skip

    async def _end(self, pod: Object) -> None:
        meta = pod["metadata"]
        if _is_worker(pod) and pod["spec"].get("nodeName"):
            await self._pre_stop(pod["spec"].get("hostname") or meta["name"])
        await self._kube.delete(PODS, meta["namespace"], meta["name"], uid=meta["uid"], grace_seconds=0)

    # --- slurmd ---

    async def _register(self, pod: Object) -> None:
        name = pod["spec"].get("hostname") or pod["metadata"]["name"]
        features = f" Features={pod['spec']['features']}" if pod["spec"]["features"] else ""
        try:
            await self._slurm.create_node(
                f"NodeName={name} CPUs={CPUS} RealMemory=16000 NodeAddr=127.0.0.1 State=EXTERNAL{features}"
            )
        except SlurmException:
            node = await self._slurm.node(name)  # it was there already; anything else fails here, loudly
            if "DOWN" in node.states:
                await self._slurm.update_node(name, state="RESUME")

    async def _pre_stop(self, name: str) -> None:
        with suppress(SlurmNotFound):
            node = await self._slurm.node(name)
            draining = "DRAIN" in node.states
            if draining and ours(node.reason):
                return
            reason = node.reason if draining and node.reason else "slurm-operator: Pod is terminating"
            await self._slurm.update_node(name, state="DOWN", reason=reason)


def _slim(pod: Object) -> Object:
    meta, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    words = [word for one in spec.get("containers") or () for word in (*(one.get("args") or ()), *_values(one))]
    found = _FEATURES.search(" ".join(words))
    kept = ("name", "namespace", "uid", "resourceVersion", "labels", "deletionTimestamp", "annotations")
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {field: meta[field] for field in kept if field in meta},
        "spec": {
            **{field: spec[field] for field in ("nodeName", "hostname", "restartPolicy") if field in spec},
            "containers": [one["name"] for one in spec.get("containers") or ()],
            "init": [one["name"] for one in spec.get("initContainers") or ()],
            "features": found.group(1) if found else "",
        },
        "status": {field: status[field] for field in ("conditions", "phase") if field in status},
    }


def _values(container: Object) -> list[str]:
    return [str(one.get("value", "")) for one in container.get("env") or ()]


def _is_worker(pod: Object) -> bool:
    return (pod["metadata"].get("labels") or {}).get("app.kubernetes.io/name") == WORKER


def _is_ready(pod: Object) -> bool:
    return any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions") or ())


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _running(pod: Object, address: str) -> Object:
    now = _now()
    over = pod["spec"].get("restartPolicy") == "Never"
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": now}
        for kind in ("PodScheduled", "Initialized", *(() if over else ("ContainersReady", "Ready")))
    ]
    state: Object = {"running": {"startedAt": now}}
    if over:
        state = {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": now, "finishedAt": now}}
    facts = {"ready": not over, "started": not over, "restartCount": 0, "image": "none", "imageID": "none"}
    return {
        "phase": "Succeeded" if over else "Running",
        "startTime": now,
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": conditions,
        "containerStatuses": [{"name": name, "state": state, **facts} for name in pod["spec"]["containers"]],
        "initContainerStatuses": [{"name": name, "state": state, **facts} for name in pod["spec"]["init"]],
    }


def _machine(name: str) -> Object:
    size = {"cpu": str(CPUS), "memory": "32Gi", "pods": "110"}
    ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": _now(), "lastTransitionTime": _now()}
    return {
        "apiVersion": NODES.version,
        "kind": NODES.kind,
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}},
        "status": {"capacity": size, "allocatable": size, "conditions": [ready]},
    }
