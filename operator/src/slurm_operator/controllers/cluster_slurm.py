"""The way to a cluster's Slurm, which of its slurmctld is at work, and records that nobody else would remove."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from slurm_operator.api.names import LABEL_ACTIVE, SLURMCTLD_PORT, SLURMRESTD_PORT, restapi_object
from slurm_operator.controllers.base import BY_CONTROLLER, cluster_domain, held
from slurm_operator.desired.podinfo import podinfo_of
from slurm_operator.desired.status import pod_ready
from slurm_operator.kube.errors import NotFound
from slurm_operator.kube.objects import condition, is_deleting, labels_of
from slurm_operator.kube.resources import Key, Object
from slurm_operator.slurm.errors import SlurmBusy, SlurmNotFound
from slurm_operator.slurm.states import is_idle, ours
from slurm_operator.slurm.types import NodeInfo

if TYPE_CHECKING:
    from slurm_operator.controllers.cluster import ClusterController

PROBE_SECONDS = 2.0


class SlurmKeeper:
    def __init__(self, controller: ClusterController) -> None:
        self._do = controller

    async def connect(self, key: Key, jwt_key: bytes, *, leaving: bool = False) -> None:
        """Tell the registry how to ask this cluster's Slurm: through its oldest RestApi.

        One that is deleted serves while it is there. `leaving`: the cluster is deleted, a RestApi need not be ready.
        """
        do = self._do
        restapis = [one for one in do.restapis.by_index(BY_CONTROLLER, str(key)) if not is_deleting(one) or held(one)]
        restapis.sort(key=lambda one: (is_deleting(one), one["metadata"]["creationTimestamp"], one["metadata"]["name"]))
        for restapi in restapis:
            service = do.services.get(key.namespace, restapi_object(restapi["metadata"]["name"]))
            ready = (condition(restapi, "Ready") or {}).get("status") == "True"
            # Asking before there is anyone to answer costs a time-out, and then seconds until the next try.
            if service is None or not (ready or leaving or do.slurm.find(key)):
                continue
            # The address is as stable as the name, and needs no DNS.
            address = service["spec"].get("clusterIP") or "None"
            name = f"{service['metadata']['name']}.{key.namespace}.svc.{cluster_domain()}"
            host = name if address == "None" else f"[{address}]" if ":" in address else address
            ports = service["spec"].get("ports") or [{"port": SLURMRESTD_PORT}]
            await do.slurm.ensure(key, f"http://{host}:{ports[0]['port']}", jwt_key)
            return
        if not restapis:
            await do.slurm.remove(key)

    async def mark_active(self, key: Key, pods: list[Object], *, ask: bool) -> Object | None:
        """Put the label `active` on the slurmctld that is at work; returns its pod.

        With backups (`ask`) each is asked over HTTP: only the one at work says that it is ready. While none does, the
        label stays where it is.
        """
        if ask:
            answers = await asyncio.gather(*(_at_work(pod) for pod in pods))
            active = next((pod for pod, yes in zip(pods, answers, strict=True) if yes), None)
        else:
            active = next(iter(pods), None)
        if active is None:
            return next((pod for pod in pods if labels_of(pod).get(LABEL_ACTIVE) == "true"), None)
        for pod in pods:
            wanted = "true" if pod is active else None
            if labels_of(pod).get(LABEL_ACTIVE) != wanted and not is_deleting(pod):
                with suppress(NotFound):
                    await self._do.patch(key, pod, {"metadata": {"labels": {LABEL_ACTIVE: wanted}}})
                if wanted and ask:
                    name = pod["metadata"]["name"]
                    self._do.events.event(pod, "Normal", "SlurmctldActive", f"slurmctld {name} is at work now.")
        return active

    async def forget_orphans(self, key: Key, groups: set[str]) -> None:
        """Delete Slurm's records of workers whose NodeSet is gone: no other reconcile would."""
        slurm = self._do.slurm.find(key)
        if slurm is None or not slurm.cache.reachable:
            return
        orphans = [
            node.name
            for node in slurm.cache.nodes.values()
            if is_left_over(node) and not groups & {*node.features, *node.active_features}
        ]
        for name, node in (await slurm.cache.read_now(orphans)).items() if orphans else ():
            if is_left_over(node):
                with suppress(SlurmBusy, SlurmNotFound):
                    await slurm.client.delete_node(name)
        if orphans:
            slurm.cache.poke()


async def _at_work(pod: Object) -> bool:
    """True if this slurmctld is the primary and serves, as its own /readyz says (204; else 500)."""
    address = (pod.get("status") or {}).get("podIP")
    if not address or is_deleting(pod) or not pod_ready(pod):
        return False
    writer = None
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            reader, writer = await asyncio.open_connection(address, SLURMCTLD_PORT)
            writer.write(b"GET /readyz HTTP/1.1\r\nHost: slurmctld\r\nConnection: close\r\n\r\n")
            status = (await reader.readline()).split()
            return len(status) > 1 and status[1].startswith(b"2")
    except (OSError, TimeoutError, ValueError):
        return False
    finally:
        if writer is not None:
            writer.close()


def is_left_over(node: NodeInfo | None) -> bool:
    """A dynamic node that runs nothing and does not answer, and that was a worker of ours.

    We drained it or took it DOWN, or its Comment says whose pod it was and nobody drained it.
    """
    if node is None or "DYNAMIC_NORM" not in node.states or not {"DOWN", "NOT_RESPONDING"} & node.states:
        return False
    ended = "DRAIN" not in node.states and podinfo_of(node.comment) is not None
    return is_idle(node) and (ours(node.reason) or ended)
