"""Reconciles Controller: slurmctld, its configuration, and the way to talk to its Slurm."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import ClassVar

from slurm_operator.api.common import KeySelector
from slurm_operator.api.controller import ControllerSpec, NamedRef
from slurm_operator.api.load import InvalidSpec, jwt_key_of, load_spec
from slurm_operator.api.names import (
    ANNOTATION_ACCOUNTING,
    ANNOTATION_CONFIG_HASH,
    APP_CONTROLLER,
    LABEL_NAME,
    SLURMDBD_PORT,
    SLURMRESTD_PORT,
    accounting_object,
    controller_config,
    controller_pod,
    restapi_object,
)
from slurm_operator.api.nodeset import NodeSetSpec
from slurm_operator.api.others import AccountingSpec
from slurm_operator.controllers.base import (
    BY_CONTROLLER,
    Reconciler,
    Waiting,
    cluster_domain,
    controller_ref,
    index_by_controller,
    of_instance,
    trim_pod,
    unsupported,
)
from slurm_operator.desired import controller as build
from slurm_operator.desired import worker as workers
from slurm_operator.desired.parts import Cluster
from slurm_operator.desired.secrets import data_of, new_jwt_key, new_slurm_key, secret
from slurm_operator.desired.slurm_conf import ConfInputs, Group, conf_files
from slurm_operator.desired.status import Report, pod_problem, pod_ready
from slurm_operator.kube.informer import Informer
from slurm_operator.kube.objects import annotations_of, canonical_hash, condition, is_deleting, key_of
from slurm_operator.kube.resources import (
    ACCOUNTINGS,
    CONFIGMAPS,
    CONTROLLERS,
    NODESETS,
    PDBS,
    PODS,
    RESTAPIS,
    SERVICES,
    STATEFULSETS,
    Key,
    Object,
    Resource,
)
from slurm_operator.slurm.errors import SlurmBusy, SlurmNotFound
from slurm_operator.slurm.states import is_idle, ours
from slurm_operator.slurm.types import NodeInfo


class ClusterController(Reconciler[ControllerSpec]):
    """slurmctld and everything that all parts of one Slurm cluster share."""

    name: ClassVar[str] = "controller"
    resource: ClassVar[Resource] = CONTROLLERS
    spec_type = ControllerSpec
    nodesets: Informer
    restapis: Informer
    accountings: Informer
    services: Informer
    configs: Informer
    pods: Informer

    def setup(self) -> None:
        self.informer = self.watch(self.resource)
        self.nodesets = self.watch(NODESETS, _referenced, status_too=False)
        self.restapis = self.watch(RESTAPIS, _referenced)
        for informer in (self.nodesets, self.restapis):
            informer.add_index(BY_CONTROLLER, index_by_controller)
        self.accountings = self.watch(ACCOUNTINGS, self._reporting)
        self.services = self.watch(SERVICES, self._of_service)
        self.owns(STATEFULSETS)
        self.owns(PDBS)
        self.configs = self.watch(CONFIGMAPS, self._using, metadata_only=True)
        self.pods = self.watch(PODS, of_instance, label_selector=f"{LABEL_NAME}={APP_CONTROLLER}", transform=trim_pod)
        self.slurm.add_handler(self._slurm_event)

    # --- who wakes this up ---

    def _slurm_event(self, key: Key, changed: frozenset[str]) -> None:
        """Slurm came or went, or a node went DOWN whose NodeSet may be gone."""
        slurm = self.slurm.find(key)
        if not changed or (slurm and any(is_left_over(slurm.cache.node(name)) for name in changed)):
            self.enqueue(key)

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
            spec = controller.get("spec") or {}
            fields = ("configFileRefs", "prologScriptRefs", "epilogScriptRefs", "prologSlurmctldScriptRefs",
                      "epilogSlurmctldScriptRefs")  # fmt: skip
            used = {ref.get("name") for field in fields for ref in spec.get(field) or ()}
            owned = any(owner["uid"] == controller["metadata"]["uid"] for owner in meta.get("ownerReferences") or ())
            if owned or meta["name"] in used:
                yield key_of(controller)

    # --- what it does ---

    async def forget(self, key: Key) -> None:
        await self.slurm.remove(key)

    async def act(self, key: Key, obj: Object, spec: ControllerSpec) -> tuple[Report, float | None]:
        cluster = Cluster(key.name, key.namespace, spec, cluster_domain())
        if spec.ha.enabled:
            raise InvalidSpec("spec.ha.enabled: this version of the operator runs one slurmctld")
        jwt_key = await self._keys(key, cluster)
        inputs = await self._inputs(key, cluster)
        files = conf_files(inputs)
        config_hash = canonical_hash([files, await self._referenced_files(key, self._all_refs(spec))])
        await self.ensure(key, workers.cluster_service(obj, cluster))
        await self.ensure(key, workers.cluster_budget(obj, cluster))
        if spec.external:
            await self.ensure(key, build.config_map(obj, cluster, files, inputs.accounting_host))
            await self._connect(key, jwt_key)
            return Report(True, "External", f"slurmctld is outside, at {cluster.conf_server}."), None
        for service in build.services(obj, cluster):
            await self.ensure(key, service)
        await self.ensure(key, build.config_map(obj, cluster, files, inputs.accounting_host))
        await self.ensure(key, build.disruption_budget(obj, cluster))
        await self.ensure(key, build.stateful_set(obj, cluster, config_hash))
        pod = self.pods.get(key.namespace, controller_pod(key.name))
        if pod is not None and spec.inplace_reconfigure:
            await self._hurry(key, pod, config_hash)
        if pod is not None and pod_ready(pod):
            await self._connect(key, jwt_key)
            await self._forget_orphans(key)
        return self._observe(key, spec, pod, accounting=bool(inputs.accounting_host)), None

    async def _keys(self, key: Key, cluster: Cluster) -> bytes:
        """Makes the keys that are not given; returns the JWT key. Raises Waiting for a given one that is missing."""
        await self._key(key, cluster.slurm_key, "spec.slurmKeyRef", cluster.spec.slurm_key_ref is None, new_slurm_key)
        return await self._key(key, cluster.jwt_key, "spec.jwtKeyRef", jwt_key_of(cluster.spec) is None, new_jwt_key)

    async def _key(self, key: Key, selector: KeySelector, field: str, ours: bool, new: Callable[[], bytes]) -> bytes:
        def make() -> Object:
            if not ours:
                raise Waiting("NoKey", f"Secret {selector.name} does not exist ({field})")
            return secret(selector.name, key.namespace, key.name, {selector.key: new()})

        found = await self.secret_once(key, key.namespace, selector.name, make)
        value = data_of(found, selector.key)
        if not value:
            raise Waiting("NoKey", f"Secret {selector.name} has no key {selector.key} ({field})")
        return value

    async def _inputs(self, key: Key, cluster: Cluster) -> ConfInputs:
        """What slurm.conf is made from. Raises Waiting for a ConfigMap that does not exist."""
        spec = cluster.spec
        host, port = self._accounting(key, spec)
        scripts = [
            sorted(await self._referenced_files(key, refs))
            for refs in (spec.prolog_script_refs, spec.epilog_script_refs, spec.prolog_slurmctld_script_refs,
                         spec.epilog_slurmctld_script_refs)
        ]  # fmt: skip
        return ConfInputs(
            name=key.name,
            namespace=key.namespace,
            spec=spec,
            groups=self._groups(key),
            accounting_host=host,
            accounting_port=port,
            files=await self._referenced_files(key, spec.config_file_refs),
            prolog=scripts[0],
            epilog=scripts[1],
            prolog_slurmctld=scripts[2],
            epilog_slurmctld=scripts[3],
        )

    def _groups(self, key: Key) -> list[Group]:
        groups = []
        for nodeset in self.nodesets.by_index(BY_CONTROLLER, str(key)):
            if is_deleting(nodeset):
                continue
            try:
                spec = load_spec(NodeSetSpec, nodeset)
            except InvalidSpec:
                continue  # its own reconcile reports it
            name = workers.group_name(nodeset["metadata"]["name"], spec)
            partition = spec.partition.config if spec.partition.enabled else None
            groups.append(Group(name, spec.replicas, partition, nodeset["metadata"]["creationTimestamp"]))
        return groups

    def _accounting(self, key: Key, spec: ControllerSpec) -> tuple[str, int]:
        """Host and port of slurmdbd; "" without accounting.

        slurmctld dies if it meets slurmdbd for the first time and that does not answer. So accounting comes into
        slurm.conf when slurmdbd is ready; from then on it stays, because slurmctld then keeps what it cannot send.
        """
        if spec.accounting_ref is None or not spec.accounting_ref.name:
            return "", 0
        name = spec.accounting_ref.name
        accounting = self.accountings.get(key.namespace, name)
        if accounting is None:
            raise Waiting("NoAccounting", f"there is no Accounting {name} (spec.accountingRef)")
        try:
            found = load_spec(AccountingSpec, accounting)
        except InvalidSpec as error:
            raise Waiting("AccountingInvalid", f"Accounting {name} cannot be used: {error}") from None
        if found.external:
            host, port = found.external_config.host, found.external_config.port or SLURMDBD_PORT
        else:
            host, port = f"{accounting_object(name)}.{key.namespace}", found.service.port or SLURMDBD_PORT
        ready = (condition(accounting, "Ready") or {}).get("status") == "True"
        config = self.configs.get(key.namespace, controller_config(key.name))
        if ready or (config and annotations_of(config).get(ANNOTATION_ACCOUNTING)):
            return host, port
        if config is None:
            raise Waiting(
                "AccountingNotReady", f"slurmdbd of Accounting {name} has to answer first (spec.accountingRef)"
            )
        return "", 0  # the cluster goes on without until then

    def _all_refs(self, spec: ControllerSpec) -> list[NamedRef]:
        return [
            *spec.config_file_refs, *spec.prolog_script_refs, *spec.epilog_script_refs,
            *spec.prolog_slurmctld_script_refs, *spec.epilog_slurmctld_script_refs,
        ]  # fmt: skip

    async def _referenced_files(self, key: Key, refs: Sequence[NamedRef]) -> dict[str, str]:
        """Files of ConfigMaps, read from the API server: they are few, and their contents are not worth a cache."""
        files: dict[str, str] = {}
        for ref in refs:
            found = await self.kube.get(CONFIGMAPS, key.namespace, ref.name)
            if found is None:
                raise Waiting("NoConfigMap", f"ConfigMap {ref.name} does not exist")
            files |= found.get("data") or {}
        return files

    async def _hurry(self, key: Key, pod: Object, config_hash: str) -> None:
        """A change of the pod makes the kubelet look at its volumes now instead of within a minute."""
        if annotations_of(pod).get(ANNOTATION_CONFIG_HASH) != config_hash and not is_deleting(pod):
            await self.patch(key, pod, {"metadata": {"annotations": {ANNOTATION_CONFIG_HASH: config_hash}}})

    async def _connect(self, key: Key, jwt_key: bytes) -> None:
        """Tell the registry how to ask this cluster's Slurm: through its oldest RestApi."""
        restapis = [one for one in self.restapis.by_index(BY_CONTROLLER, str(key)) if not is_deleting(one)]
        restapis.sort(key=lambda one: (one["metadata"]["creationTimestamp"], one["metadata"]["name"]))
        for restapi in restapis:
            service = self.services.get(key.namespace, restapi_object(restapi["metadata"]["name"]))
            ready = (condition(restapi, "Ready") or {}).get("status") == "True"
            # Asking before there is anyone to answer costs a time-out, and then seconds until the next try.
            if service is None or not (ready or self.slurm.find(key)):
                continue
            # The address is as stable as the name, and needs no DNS.
            address = service["spec"].get("clusterIP") or "None"
            name = f"{service['metadata']['name']}.{key.namespace}.svc.{cluster_domain()}"
            host = name if address == "None" else f"[{address}]" if ":" in address else address
            ports = service["spec"].get("ports") or [{"port": SLURMRESTD_PORT}]
            await self.slurm.ensure(key, f"http://{host}:{ports[0]['port']}", jwt_key)
            return
        if not restapis:
            await self.slurm.remove(key)

    async def _forget_orphans(self, key: Key) -> None:
        """Delete Slurm's records of workers whose NodeSet is gone: no other reconcile would."""
        slurm = self.slurm.find(key)
        if slurm is None or not slurm.cache.reachable:
            return
        groups = {group.name for group in self._groups(key)}
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

    def _observe(self, key: Key, spec: ControllerSpec, pod: Object | None, *, accounting: bool) -> Report:
        missing = unsupported({"spec.metrics.serviceMonitor": spec.metrics.service_monitor.enabled})
        fault_reason = "NotSupported"
        if pod is not None and pod_ready(pod):
            count = len(self.nodesets.by_index(BY_CONTROLLER, str(key)))
            text = f"slurmctld is ready; {count} NodeSet{'' if count == 1 else 's'}."
            busy = ""
            if spec.accounting_ref and spec.accounting_ref.name and not accounting:
                busy = f"Accounting {spec.accounting_ref.name} comes into effect when its slurmdbd answers."
                text = f"{text} {busy}"
            return Report(True, "Ready", text, busy=busy, fault=missing, fault_reason=fault_reason)
        problem = pod_problem(pod) if pod is not None else ""
        if problem:
            text = f"slurmctld is not ready: {problem}"
            return Report(False, "PodFailing", text, busy=text, fault=text, fault_reason="PodFailing")
        text = "slurmctld is starting."
        return Report(False, "Starting", text, busy=text, fault=missing, fault_reason=fault_reason)


def is_left_over(node: NodeInfo | None) -> bool:
    """A dynamic node that runs nothing and that a worker of ours took DOWN when it ended."""
    return node is not None and {"DOWN", "DYNAMIC_NORM"} <= node.states and is_idle(node) and ours(node.reason)


def _referenced(obj: Object) -> Iterable[Key]:
    return (Key(obj["metadata"]["namespace"], controller_ref(obj)),)
