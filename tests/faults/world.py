"""Stands in for a cluster in tests of faults: machines, scheduler, kubelets, garbage collector, jobs and people.

It plays what happens to worker pods of one Slurm cluster, in virtual time, and notices what must never happen: a pod
deleted by the operator, or collected, while a job runs in it; an administrator's drain that is lost. Pods of other
kinds stay as they are created.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from datetime import UTC, datetime
from typing import Any

from slurm_operator.controllers.cluster import ClusterController
from slurm_operator.controllers.cordons import CordonController
from slurm_operator.controllers.mirror import MirrorController
from slurm_operator.controllers.nodeset import NodeSetController
from slurm_operator.kube.resources import CONTROLLERS, NODES, NODESETS, PODS, RESTAPIS, SERVICES, Object, resource_for
from slurm_operator.runtime.manager import Manager
from slurm_operator.runtime.settings import Settings
from slurm_operator.slurm import client as slurm_client

from tests.faults.clock import START, Clock
from tests.faults.kube_model import Ident, KubeModel
from tests.faults.slurm_model import SlurmModel
from tests.faults.wires import Kube, Network, SlurmWire

SPACE = "slurm"
TICK_SECONDS = 0.2
START_SECONDS = 1.0
STOP_SECONDS = 1.0
SILENT_SECONDS = 120.0
UNSEEN_SECONDS = 1.1
"""A job that begins on a node which somebody resumed this short before its pod is deleted cannot be seen by anyone."""
POD_HOSTNAME = "nodeset.slinky.slurm.net/pod-hostname"


class _Bugs(logging.Handler):
    """An unexpected exception in the operator is a defect, whatever it does next."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.seen: list[str] = []
        self.last: deque[str] = deque(maxlen=20)
        """The end of the operator's log."""

    def emit(self, record: logging.LogRecord) -> None:
        self.last.append(f"{time.monotonic():.1f} {record.name}: {record.getMessage()}")
        if record.exc_info and record.exc_info[0] is not None:
            self.seen.append(self.format(record))


class Operator:
    """One life of the operator's process."""

    def __init__(self, network: Network) -> None:
        self.dead = False
        self._network = network
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_event_loop().create_task(self._run())

    async def _run(self) -> None:
        setattr(slurm_client, "HttpClient", SlurmWire(self._network, self))  # noqa: B010
        settings = Settings(leader_elect=False, health_port=0, metrics_port=0, namespaces=(SPACE,))
        async with Kube(self._network, self) as kube, Kube(self._network, self) as lease:
            manager = Manager(settings, kube, lease)
            nodesets = NodeSetController(manager)
            mirror, cordons = MirrorController(manager, nodesets), CordonController(manager)
            manager.add([ClusterController(manager), nodesets, mirror, cordons])
            await manager.run()

    def die(self) -> None:
        """As by SIGKILL: nothing of what it was about to send is sent."""
        self.dead = True

    async def bury(self) -> None:
        self.dead = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def crashed(self) -> bool:
        return self._task is not None and self._task.done()


class World:
    """Everything but the operator; `violations` must stay empty."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.kube = KubeModel(self._stamp)
        self.slurm = SlurmModel(clock.time)
        self.network = Network(self.kube, self.slurm)
        self.network.about_to_delete = self._operator_deletes
        self.operator = Operator(self.network)
        self.violations: list[str] = []
        self.excused: set[str] = set()
        """Slurm nodes whose jobs somebody gave up."""
        self.bugs = _Bugs()
        self._since: dict[tuple[str, str], float] = {}
        self._silent: dict[str, float] = {}
        self._handlers, logging.getLogger().handlers = logging.getLogger().handlers, [self.bugs]
        self._ticking: asyncio.Task[None] | None = None

    def close(self) -> None:
        logging.getLogger().handlers = self._handlers

    async def begin(self, machines: int, nodeset: Object) -> None:
        for index in range(machines):
            self.add_machine(f"m{index}")
        spec = {"external": True, "externalConfig": {"host": "slurmctld.example"}, "clusterName": "c"}
        keys = {"slurmKeyRef": {"name": "key", "key": "k"}, "jwtKeyRef": {"name": "key", "key": "k"}}
        self.create("v1", "Secret", "key", data={"k": "a" * 44})
        self.create(CONTROLLERS.api_version, CONTROLLERS.kind, "lab", spec={**spec, **keys})
        self.make_restapi()
        self.create(NODESETS.api_version, NODESETS.kind, nodeset["metadata"]["name"], **{"spec": nodeset["spec"]})
        self._ticking = asyncio.get_event_loop().create_task(self._tick_for_ever())
        self.operator.start()

    async def end(self) -> None:
        await self.operator.bury()
        if self._ticking is not None:
            self._ticking.cancel()
            await asyncio.gather(self._ticking, return_exceptions=True)
        self.close()

    # --- people ---

    def create(self, version: str, kind: str, name: str, *, labels: Any = None, **fields: Any) -> Object:
        meta: Object = {"name": name} | ({"labels": labels} if labels else {})
        resource = resource_for(version, kind)
        if resource.namespaced:
            meta["namespace"] = SPACE
        return self.kube.create(resource, {"metadata": meta, **fields})

    def make_restapi(self) -> None:
        ready = {"type": "Ready", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": "x"}
        made = self.create(
            RESTAPIS.api_version, RESTAPIS.kind, "lab", spec={"controllerRef": {"name": "lab"}},
            status={"conditions": [ready]},
        )  # fmt: skip
        owner = {"apiVersion": RESTAPIS.api_version, "kind": RESTAPIS.kind, "name": "lab", "controller": True}
        meta = {
            "name": "lab-restapi",
            "namespace": SPACE,
            "ownerReferences": [{**owner, "uid": made["metadata"]["uid"]}],
        }
        spec = {"clusterIP": "10.0.0.9", "ports": [{"port": 6820}]}
        self.kube.create(SERVICES, {"metadata": meta, "spec": spec})

    def add_machine(self, name: str) -> None:
        labels = {"kubernetes.io/hostname": name}
        self.create("v1", "Node", name, labels=labels, spec={}, status={"conditions": []})

    def kill_machine(self, name: str) -> None:
        """The machine is gone, and everything on it."""
        for pod in self.pods():
            if pod["spec"].get("nodeName") == name:
                self.slurm.lost(pod["metadata"]["uid"])
        self.kube.remove((str(NODES), "", name))

    def nodeset(self) -> Object | None:
        found = self.kube.all(NODESETS)
        return found[0] if found else None

    def pods(self) -> list[Object]:
        return self.kube.all(PODS)

    def machines(self) -> list[str]:
        return [node["metadata"]["name"] for node in self.kube.all(NODES)]

    def restart_operator(self) -> None:
        self.operator = Operator(self.network)
        self.operator.start()

    # --- what must not happen ---

    def _operator_deletes(self, pod: Object) -> None:
        name = slurm_name(pod)
        node = self.slurm.nodes.get(name)
        here = node is not None and node.slurmd == pod["metadata"]["uid"]
        if here and self.slurm.busy_for(name) > UNSEEN_SECONDS and name not in self.excused:
            self.violations.append(f"the operator deleted pod {pod['metadata']['name']} while a job ran in it")

    def check(self) -> None:
        self.slurm.check()
        assert not self.violations, self.violations
        assert not self.bugs.seen, self.bugs.seen[0]
        if self._ticking is not None and self._ticking.done():
            self._ticking.result()
        assert not self.operator.crashed or self.operator.dead, "the operator's process ended by itself"

    # --- machinery ---

    async def _tick_for_ever(self) -> None:
        while True:
            self.tick()
            await asyncio.sleep(TICK_SECONDS)

    def tick(self) -> None:
        for ident in self.kube.orphans():
            self._collect(ident)
        for pod in self.pods():
            if "deletionTimestamp" in pod["metadata"]:
                self._stop(pod)
            elif not pod["spec"].get("nodeName"):
                self._place(pod)
            elif pod["spec"]["nodeName"] not in self.machines():
                self.kube.delete(ident_of(pod), grace=True)
            else:
                self._run(pod)
        for node in list(self.slurm.nodes.values()):
            if node.slurmd:
                self._silent.pop(node.name, None)
            elif self.clock.now - self._silent.setdefault(node.name, self.clock.now) > SILENT_SECONDS:
                self.slurm.down_if_silent(node.name)
        self.slurm.schedule()

    def _collect(self, ident: Ident) -> None:
        obj = self.kube.objects[ident]
        if ident[0] == str(PODS):
            if self.slurm.busy(slurm_name(obj)) and slurm_name(obj) not in self.excused:
                self.violations.append(f"pod {ident[2]} was collected while a job ran in it: its owner went first")
            self.kube.delete(ident, grace=True)
        else:
            self.kube.delete(ident)

    def _place(self, pod: Object) -> None:
        taken = {other["spec"].get("nodeName") for other in self.pods()}
        pinned = _pinned(pod)
        for node in self.kube.all(NODES):
            name = node["metadata"]["name"]
            cordoned = node["spec"].get("unschedulable") and not _tolerates_cordon(pod)
            if name in taken or cordoned or (pinned and name not in pinned):
                continue
            self.kube.change(PODS, pod, lambda new, name=name: new["spec"].update(nodeName=name))  # type: ignore[misc]
            return

    def _run(self, pod: Object) -> None:
        meta = pod["metadata"]
        started = self._since.setdefault((meta["uid"], "start"), self.clock.now)
        if self.clock.now - started < START_SECONDS:
            return
        registered = (meta["uid"], "registered") in self._since
        if not registered and self.slurm.register(
            slurm_name(pod), [meta["labels"]["app.kubernetes.io/instance"]], meta["uid"]
        ):
            self._since[meta["uid"], "registered"] = self.clock.now
            registered = True
        if registered and not _is_ready(pod):
            ready = {"type": "Ready", "status": "True", "lastTransitionTime": self._stamp()}

            def edit(new: Object) -> None:
                status = new.setdefault("status", {})
                status["phase"] = "Running"
                others = [one for one in status.get("conditions", []) if one["type"] != "Ready"]
                status["conditions"] = [*others, ready]

            self.kube.change(PODS, pod, edit)

    def _stop(self, pod: Object) -> None:
        meta = pod["metadata"]
        if not pod["spec"].get("nodeName"):
            self.kube.remove(ident_of(pod))
            return
        if (meta["uid"], "stop") not in self._since:
            self._since[meta["uid"], "stop"] = self.clock.now
            node = self.slurm.nodes.get(slurm_name(pod))
            if node is not None and node.slurmd == meta["uid"]:
                self.slurm.pre_stop(node.name)
        elif self.clock.now - self._since[meta["uid"], "stop"] > STOP_SECONDS:
            self.slurm.lost(meta["uid"])
            self.kube.remove(ident_of(pod))

    def _stamp(self) -> str:
        return datetime.fromtimestamp(START + self.clock.now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def slurm_name(pod: Object) -> str:
    return str((pod["metadata"].get("labels") or {}).get(POD_HOSTNAME, pod["metadata"]["name"]))


def ident_of(obj: Object) -> Ident:
    return str(PODS), obj["metadata"]["namespace"], obj["metadata"]["name"]


def _is_ready(pod: Object) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _pinned(pod: Object) -> set[str]:
    """Names of machines that the pod's required node affinity allows by metadata.name; empty: any."""
    affinity = ((pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution", {}
    )
    return {
        value
        for term in affinity.get("nodeSelectorTerms", ())
        for field in term.get("matchFields", ())
        if field["key"] == "metadata.name"
        for value in field["values"]
    }


def _tolerates_cordon(pod: Object) -> bool:
    tolerations = pod["spec"].get("tolerations") or ()
    return any(one.get("key") == "node.kubernetes.io/unschedulable" for one in tolerations)
