"""Reconciles Controller: slurmctld, its configuration, and the way to talk to its Slurm."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import ClassVar

from slurm_operator.api.controller import ControllerSpec
from slurm_operator.api.load import InvalidSpec, load_spec
from slurm_operator.api.names import (
    ANNOTATION_CONFIG_HASH,
    APP_CONFIG_CHECK,
    APP_CONTROLLER,
    APP_LOGIN,
    APP_WORKER,
    LABEL_INSTANCE,
    LABEL_NAME,
)
from slurm_operator.controllers.base import (
    BY_CONTROLLER,
    Reconciler,
    cluster_domain,
    controller_ref,
    index_by_controller,
    of_instance,
    trim_pod,
)
from slurm_operator.controllers.cluster_config import ConfigKeeper, Configured, config_hash, references
from slurm_operator.controllers.cluster_keys import KeyKeeper, Keys
from slurm_operator.controllers.cluster_slurm import SlurmKeeper, is_left_over
from slurm_operator.controllers.leaving import LOOK_SECONDS as LEAVE_SECONDS
from slurm_operator.controllers.leaving import controller_waits, workers_left
from slurm_operator.desired import controller as build
from slurm_operator.desired import worker as workers
from slurm_operator.desired.cluster_status import Observed, report
from slurm_operator.desired.parts import Cluster
from slurm_operator.desired.secrets import data_of
from slurm_operator.desired.slurm_conf import max_node_count
from slurm_operator.desired.status import Report, pod_problem, pod_ready
from slurm_operator.kube.errors import NotFound
from slurm_operator.kube.informer import Informer
from slurm_operator.kube.objects import annotations_of, holds, is_deleting, key_of
from slurm_operator.kube.resources import (
    ACCOUNTINGS,
    CONFIGMAPS,
    CONTROLLERS,
    NODESETS,
    PDBS,
    PODS,
    RESTAPIS,
    SECRETS,
    SERVICEMONITORS,
    SERVICES,
    STATEFULSETS,
    Key,
    Object,
    Resource,
)

LOOK_SECONDS = 30.0
"""Secrets are not watched: whether a key was exchanged is looked up so often. A ServiceMonitor's kind, too."""
ACTIVE_SECONDS = 3.0
"""With backups: how often it is looked which slurmctld is at work."""


class ClusterController(Reconciler[ControllerSpec]):
    """slurmctld and everything that all parts of one Slurm cluster share."""

    name: ClassVar[str] = "controller"
    resource: ClassVar[Resource] = CONTROLLERS
    spec_type = ControllerSpec
    holds: ClassVar[bool] = True
    nodesets: Informer
    restapis: Informer
    accountings: Informer
    services: Informer
    configs: Informer
    pods: Informer
    check_pods: Informer
    all_pods: list[Informer]
    worker_pods: Informer

    def setup(self) -> None:
        self.informer = self.watch(self.resource)
        self.nodesets = self.watch(NODESETS, _referenced, status_too=False)
        self.watch(NODESETS, self._grown)
        self.restapis = self.watch(RESTAPIS, _referenced)
        for informer in (self.nodesets, self.restapis):
            informer.add_index(BY_CONTROLLER, index_by_controller)
        self.accountings = self.watch(ACCOUNTINGS, self._reporting)
        self.services = self.watch(SERVICES, self._of_service)
        self.owns(STATEFULSETS)
        self.owns(PDBS)
        self.configs = self.watch(CONFIGMAPS, self._using, metadata_only=True)
        self.pods = self._watch_pods(APP_CONTROLLER, wake=True)
        self.pods.add_label_index(LABEL_INSTANCE)
        self.check_pods = self._watch_pods(APP_CONFIG_CHECK, wake=True)
        self.worker_pods = self._watch_pods(APP_WORKER)
        self.all_pods = [self.pods, self.worker_pods, self._watch_pods(APP_LOGIN)]
        self.slurm.add_handler(self._slurm_event)
        self.keys_seen: dict[Key, str] = {}
        self._room: dict[Key, int] = {}
        self._monitors: dict[Key, bool] = {}
        self._config = ConfigKeeper(self)
        self._keys = KeyKeeper(self)
        self._slurm = SlurmKeeper(self)

    # --- who wakes this up ---

    def _watch_pods(self, app: str, *, wake: bool = False) -> Informer:
        mapped = of_instance if wake else _nobody
        return self.watch(PODS, mapped, label_selector=f"{LABEL_NAME}={app}", transform=trim_pod)

    def _slurm_event(self, key: Key, changed: frozenset[str]) -> None:
        """Slurm came or went, or a node went DOWN whose NodeSet may be gone."""
        slurm = self.slurm.find(key)
        if not changed or (slurm and any(is_left_over(slurm.cache.node(name)) for name in changed)):
            self.enqueue(key)

    def _grown(self, nodeset: Object) -> Iterable[Key]:
        """The status of a NodeSet matters where it outgrows MaxNodeCount: one worker per machine is counted there."""
        key = next(iter(_referenced(nodeset)))
        if key in self._room and max_node_count(self._config.groups(key)) > self._room[key]:
            yield key

    def _reporting(self, accounting: Object) -> Iterable[Key]:
        meta = accounting["metadata"]
        for controller in self.informer.list(meta["namespace"]):
            if ((controller["spec"].get("accountingRef") or {}).get("name")) == meta["name"]:
                yield key_of(controller)

    def _of_service(self, service: Object) -> Iterable[Key]:
        """Own Services, and those of slurmrestd: their address is how Slurm is asked."""
        for owner in service["metadata"].get("ownerReferences") or ():
            namespace = service["metadata"]["namespace"]
            if owner.get("kind") == CONTROLLERS.kind:
                yield Key(namespace, owner["name"])
            elif owner.get("kind") == RESTAPIS.kind:
                restapi = self.restapis.get(namespace, owner["name"])
                if restapi is not None:
                    yield Key(namespace, controller_ref(restapi))

    def _using(self, config: Object) -> Iterable[Key]:
        meta = config["metadata"]
        for controller in self.informer.list(meta["namespace"]):
            owned = any(owner["uid"] == controller["metadata"]["uid"] for owner in meta.get("ownerReferences") or ())
            if owned or meta["name"] in references(controller):
                yield key_of(controller)

    # --- what it does ---

    async def forget(self, key: Key) -> None:
        self._config.forget(key)
        self.keys_seen.pop(key, None)
        self._room.pop(key, None)
        self._monitors.pop(key, None)
        await self.slurm.remove(key)

    async def leave(self, key: Key, obj: Object) -> tuple[Report, float] | None:
        """slurmctld goes when its workers have; until then its Slurm is asked, also by an operator that just began."""
        left = workers_left(self.worker_pods, key.namespace, key.name)
        report = controller_waits(obj, left, self.nodesets.by_index(BY_CONTROLLER, str(key)))
        if report is None:
            return None
        if self.slurm.find(key) is None:
            with suppress(InvalidSpec):
                selector = Cluster(key.name, key.namespace, load_spec(ControllerSpec, obj), cluster_domain()).jwt_key
                secret = await self.kube.get(SECRETS, key.namespace, selector.name)
                if secret is not None and (jwt := data_of(secret, selector.key)):
                    await self._slurm.connect(key, jwt, leaving=True)
        return report, LEAVE_SECONDS

    async def act(self, key: Key, obj: Object, spec: ControllerSpec) -> tuple[Report, float | None]:
        cluster = Cluster(key.name, key.namespace, spec, cluster_domain())
        await self.ensure(key, workers.cluster_service(obj, cluster))
        await self.ensure(key, workers.cluster_budget(obj, cluster))
        keys = await self._keys.settle(key, obj, cluster)
        hold = _starting(self._pods_of(key)) if spec.ha.enabled else ""
        configured = await self._config.settle(key, obj, cluster, hold)
        self._room[key] = max_node_count(self._config.groups(key))
        if not spec.external:
            return await self._inside(key, obj, cluster, keys, configured)
        if keys.jwt:
            await self._slurm.connect(key, keys.jwt)
            await self._slurm.forget_orphans(key, {group.name for group in self._config.groups(key)})
        return _outside(cluster, configured, asked=bool(keys.jwt)), LOOK_SECONDS

    async def _inside(
        self, key: Key, obj: Object, cluster: Cluster, keys: Keys, configured: Configured
    ) -> tuple[Report, float | None]:
        spec = cluster.spec
        for service in build.services(obj, cluster):
            await self.ensure(key, service)
        await self.ensure(key, build.disruption_budget(obj, cluster))
        hashed = config_hash(configured, keys.digest)
        await self.ensure(key, build.stateful_set(obj, cluster, hashed))
        pods = self._pods_of(key)
        await self._deliver(key, pods, hashed, changed=configured.changed, inplace=spec.inplace_reconfigure)
        active = await self._slurm.mark_active(key, pods, ask=spec.ha.enabled)
        if active is not None and pod_ready(active):
            await self._slurm.connect(key, keys.jwt)
            await self._slurm.forget_orphans(key, {group.name for group in self._config.groups(key)})
        faults = [(configured.reason, configured.fault)] if configured.fault else []
        if missing := await self._monitor(key, obj, cluster):
            faults.append(("NoServiceMonitor", missing))
        seen = Observed(
            pods,
            active,
            build.count(spec),
            len(self.nodesets.by_index(BY_CONTROLLER, str(key))),
            faults,
            [text for text in (configured.busy, keys.rotating, self._config.missing(key, spec)) if text],
        )
        again = [LOOK_SECONDS, keys.again, configured.again, ACTIVE_SECONDS if spec.ha.enabled else None]
        return report(seen), min(seconds for seconds in again if seconds is not None)

    def _pods_of(self, key: Key) -> list[Object]:
        pods = [one for one in self.pods.by_index(LABEL_INSTANCE, key.name) if key_of(one).namespace == key.namespace]
        return sorted(pods, key=lambda pod: str(pod["metadata"]["name"]))

    async def _deliver(self, key: Key, pods: list[Object], hashed: str, *, changed: bool, inplace: bool) -> None:
        """A change of the pod makes the kubelet look at its volumes now instead of within a minute.

        A slurmctld that keeps ending would be started anew after minutes only: its pod is replaced.
        """
        for pod in pods:
            if is_deleting(pod) or annotations_of(pod).get(ANNOTATION_CONFIG_HASH) == hashed:
                continue
            if changed and _keeps_ending(pod):
                await self.delete(key, pod)
            elif inplace:
                await self.patch(key, pod, {"metadata": {"annotations": {ANNOTATION_CONFIG_HASH: hashed}}})

    async def _monitor(self, key: Key, obj: Object, cluster: Cluster) -> str:
        """Makes or removes the ServiceMonitor; returns why there is none although one is wanted."""
        metrics = cluster.spec.metrics
        wanted = metrics.enabled and metrics.service_monitor.enabled
        if not wanted and self._monitors.get(key) is False:
            return ""
        wish = build.service_monitor(obj, cluster)
        live = await self.kube.get(SERVICEMONITORS, key.namespace, wish["metadata"]["name"])
        if not wanted:
            mine = live is not None and holds(
                live["metadata"].get("ownerReferences"), wish["metadata"]["ownerReferences"]
            )
            if live is not None and mine:
                await self.delete(key, live)
        elif live is None or not holds(live, wish):
            try:
                await self.ensure(key, wish)
            except NotFound:
                return (
                    "spec.metrics.serviceMonitor: this Kubernetes does not know ServiceMonitor (Prometheus operator);"
                    f" it is made when it does, looked up every {LOOK_SECONDS:.0f} s"
                )
        self._monitors[key] = wanted
        return ""


def _outside(cluster: Cluster, configured: Configured, *, asked: bool) -> Report:
    text = f"slurmctld is outside, at {cluster.conf_server}."
    fault, reason = configured.fault, configured.reason
    if not asked and not fault:
        fault = "spec.jwtKeyRef is missing, so Slurm cannot be asked: no worker is removed, since it may be busy."
        reason = "NoKey"
    return Report(True, "External", text, fault=fault, fault_reason=reason)


def _starting(pods: list[Object]) -> str:
    """A slurmctld that starts may be taking over, which a reconfigure would disturb. "" when none does."""
    names = [str(pod["metadata"]["name"]) for pod in pods if not pod_ready(pod) and not pod_problem(pod)]
    return f"{names[0]} is starting" if names else ""


def _keeps_ending(pod: Object) -> bool:
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return any(((one.get("state") or {}).get("waiting") or {}).get("reason") == "CrashLoopBackOff" for one in statuses)


def _referenced(obj: Object) -> Iterable[Key]:
    return (Key(obj["metadata"]["namespace"], controller_ref(obj)),)


def _nobody(_: Object) -> Iterable[Key]:
    return ()
