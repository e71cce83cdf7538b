"""The short way from a cordon to a drain: a Kubernetes node's event reaches Slurm without a pass over its NodeSets.

A pass over thousands of workers, or one that is busy with hundreds of pods, would keep the drain waiting. This only
drains what is not draining yet; everything else about drains (undoing, renaming, policies, what comes after a failure)
stays with the NodeSet's own reconcile, which the same event wakes up.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import ClassVar

from slurm_operator.api.load import InvalidSpec, load_spec
from slurm_operator.api.names import APP_WORKER, LABEL_NAME
from slurm_operator.api.nodeset import NodeSetSpec
from slurm_operator.controllers.base import controller_ref, trim_pod
from slurm_operator.controllers.nodeset import node_facts, trim_node
from slurm_operator.desired.observe import worker_of
from slurm_operator.errors import Unknown
from slurm_operator.kube.informer import EventType, Informer
from slurm_operator.kube.objects import is_deleting
from slurm_operator.kube.resources import NODES, NODESETS, PODS, Key, Object, Resource
from slurm_operator.runtime.controller import Controller
from slurm_operator.slurm.errors import SlurmException
from slurm_operator.slurm.registry import SlurmCluster
from slurm_operator.slurm.states import PREFIX

ALL = Key("", "cordons")
"""The one key: what comes while drains are being written is gathered for the next call."""

Wish = tuple[str, str, Object]
"""Slurm node, reason, NodeSet."""


class CordonController(Controller):
    """Cordoned or tainted Kubernetes node -> drain, all that come at once in one call per reason."""

    name: ClassVar[str] = "cordon"
    resource: ClassVar[Resource] = NODES
    workers: ClassVar[int | None] = 1
    nodes: Informer
    pods: Informer
    nodesets: Informer

    def setup(self) -> None:
        self._changed: set[str] = set()
        self.nodes = self.manager.informer(NODES, transform=trim_node)
        self.pods = self.manager.informer(PODS, f"{LABEL_NAME}={APP_WORKER}", transform=trim_pod)
        self.nodesets = self.manager.informer(NODESETS)
        self.nodes.add_handler(self._node_event)

    def _node_event(self, event: EventType, old: Object | None, new: Object | None) -> None:
        if new is None or (old is not None and node_facts(old) == node_facts(new)):
            return
        self._changed.add(new["metadata"]["name"])
        self.enqueue(ALL)

    async def reconcile(self, key: Key) -> float | None:
        machines, self._changed = self._changed, set()
        wishes: dict[Key, list[Wish]] = {}
        for machine in machines:
            for cluster, wish in self._wishes(machine):
                wishes.setdefault(cluster, []).append(wish)
        await asyncio.gather(*(self._drain(cluster, wanted) for cluster, wanted in wishes.items()))
        return None

    def _wishes(self, machine: str) -> Iterable[tuple[Key, Wish]]:
        """The drains that this Kubernetes node's present state asks for, with their clusters."""
        for pod in self.pods.by_index("by_node", machine):
            namespace = pod["metadata"]["namespace"]
            owners = pod["metadata"].get("ownerReferences") or ()
            name = next((owner["name"] for owner in owners if owner.get("kind") == NODESETS.kind), "")
            nodeset = self.nodesets.get(namespace, name)
            if nodeset is None or is_deleting(pod):
                continue
            try:
                spec = load_spec(NodeSetSpec, nodeset)
            except InvalidSpec:
                continue  # its own reconcile reports it
            shown = self.manager.settings.propagated_conditions
            worker = worker_of(pod, spec, lambda name: self.nodes.get("", name), time.time(), shown=shown)
            if worker.cordoned and worker.phase != "Ended":
                yield Key(namespace, controller_ref(nodeset)), (worker.slurm_name, worker.cordoned, nodeset)

    async def _drain(self, cluster: Key, wishes: list[Wish]) -> None:
        slurm = self.slurm.find(cluster)
        if slurm is None:
            return
        try:
            await self._write(slurm, wishes)
        except (Unknown, SlurmException) as error:
            self.log.info("the drain of %d nodes is left to their NodeSets: %s", len(wishes), error)

    async def _write(self, slurm: SlurmCluster, wishes: list[Wish]) -> None:
        """An administrator may have come first: Slurm is asked before."""
        now = await slurm.cache.read_now([name for name, _, _ in wishes])
        by_reason: dict[str, list[str]] = {}
        told: dict[str, Object] = {}
        for name, cause, nodeset in wishes:
            node = now[name]
            if node is not None and "DRAIN" not in node.states:
                reason = f"{PREFIX}{cause}"
                by_reason.setdefault(reason, []).append(name)
                told[reason] = nodeset
        await asyncio.gather(
            *(slurm.client.update_nodes(names, state="DRAIN", reason=reason) for reason, names in by_reason.items())
        )
        for reason, names in by_reason.items():
            note = f"Slurm stops using {', '.join(names)}: {reason}"
            self.events.event(told[reason], "Normal", "NodeCordon", note)
        if by_reason:
            slurm.cache.poke()
