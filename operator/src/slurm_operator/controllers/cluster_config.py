"""The configuration of a cluster: gathered, shown to a scratch Slurm, and only then given to the running one."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from slurm_operator.api.controller import ControllerSpec, NamedRef
from slurm_operator.api.load import InvalidSpec, load_spec
from slurm_operator.api.names import (
    ANNOTATION_ACCOUNTING,
    ANNOTATION_CONFIG_CHECK,
    ANNOTATION_CONFIG_DIGEST,
    ANNOTATION_CONFIG_PROVEN,
    SLURMDBD_PORT,
    accounting_object,
    controller_config,
)
from slurm_operator.api.nodeset import NodeSetSpec
from slurm_operator.api.others import AccountingSpec
from slurm_operator.controllers.base import BY_CONTROLLER, Waiting, held
from slurm_operator.desired import config_check as checks
from slurm_operator.desired import controller as build
from slurm_operator.desired import slurm_defaults
from slurm_operator.desired import worker as workers
from slurm_operator.desired.conf_syntax import BadConf
from slurm_operator.desired.config_check import Verdict
from slurm_operator.desired.parts import Cluster
from slurm_operator.desired.slurm_conf import ConfFiles, ConfInputs, Group, conf_files
from slurm_operator.desired.status import pod_problem
from slurm_operator.kube.errors import AlreadyExists
from slurm_operator.kube.objects import annotations_of, canonical_hash, condition, is_deleting
from slurm_operator.kube.resources import CONFIGMAPS, Key, Object

if TYPE_CHECKING:
    from slurm_operator.controllers.cluster import ClusterController

CHECK_FIELD = f"metadata.annotations[{ANNOTATION_CONFIG_CHECK}]"
PATIENCE_SECONDS = 20.0
"""A check that has a problem for so long is reported; until then it is just starting."""
RETRY_SECONDS = 30.0
_REMEMBERED = 8


@dataclass(frozen=True)
class Configured:
    """`hash` of what is installed ("" while nothing is). `fault`: why the wanted one is not; `busy`: it is checked."""

    hash: str
    changed: bool = False
    fault: str = ""
    reason: str = "InvalidConfiguration"
    busy: str = ""
    again: float | None = None


class ConfigKeeper:
    def __init__(self, controller: ClusterController) -> None:
        self._do = controller
        self._verdicts: dict[Key, dict[str, Verdict]] = {}
        self._stuck_since: dict[Key, float] = {}
        self._later: dict[tuple[Key, str], tuple[float, Verdict]] = {}

    def forget(self, key: Key) -> None:
        self._verdicts.pop(key, None)
        self._stuck_since.pop(key, None)
        self._later = {which: told for which, told in self._later.items() if which[0] != key}

    async def settle(self, key: Key, obj: Object, cluster: Cluster, hold: str = "") -> Configured:
        """Installs the wanted configuration when it is proven. Raises BadConf or Waiting while there is none at all.

        `hold` says why a new one has to wait.
        """
        live = self._do.configs.get(key.namespace, controller_config(key.name))
        installed = annotations_of(live).get(ANNOTATION_CONFIG_DIGEST, "") if live else ""
        proven = annotations_of(live).get(ANNOTATION_CONFIG_PROVEN, "") if live else ""
        if live is not None and (unread := self._unread(key)):
            text = f"{unread}. Its partition must not vanish: the configuration in effect stays as it is."
            return Configured(installed, fault=text, reason="InvalidNodeSet")
        try:
            files = conf_files(await self._inputs(key, obj, cluster))
            if clash := checks.clashing(files.text):
                raise BadConf(f"configFileRefs: {clash[0]} is a name that the operator needs")
        except BadConf as error:
            if live is None:
                raise
            return Configured(installed, fault=f"{error}. The configuration in effect stays as it is.")
        except Waiting as error:
            if live is None:
                raise
            text = f"{error}. The configuration in effect stays as it is."
            return Configured(installed, fault=text, reason=error.reason)
        worker = self._worker(key)
        digest = checks.digest(files, worker.get("image", ""))
        if cluster.spec.external or self._unchecked(obj) or digest == proven:
            return await self._install(key, obj, cluster, files, digest, digest, installed)
        if live is not None and digest != installed and hold:
            return Configured(installed, busy=f"A new configuration waits: {hold}.")
        if live is None:
            await self._install(key, obj, cluster, files, digest, "", "")
        found = await self._check(key, obj, cluster, files, digest, worker)
        if found.state == "good":
            return await self._install(key, obj, cluster, files, digest, digest, installed)
        if live is None or digest == installed:
            # The first one goes to slurmctld at once: there is nothing that it could break. It is still told.
            fault = f"Slurm refuses the configuration: {found.message}" if found.state == "refused" else ""
            return Configured(digest, changed=live is None, fault=fault)
        if found.state == "refused":
            text = f"Slurm refuses the new configuration: {found.message}. The one in effect stays as it is."
            return Configured(installed, fault=text)
        if found.state == "stuck":
            text = (
                f"The new configuration could not be checked: {found.message}. The one in effect stays as it is."
                f' {CHECK_FIELD}: "off" on the Controller installs it unchecked.'
            )
            return Configured(installed, fault=text, reason="CheckFailed", again=RETRY_SECONDS)
        return Configured(installed, busy="A new configuration is being checked.", again=PATIENCE_SECONDS)

    def _unchecked(self, obj: Object) -> bool:
        value = annotations_of(obj).get(ANNOTATION_CONFIG_CHECK, "on")
        if value not in ("on", "off"):
            raise InvalidSpec(f"{CHECK_FIELD}: {value!r}: on or off is allowed")
        return value == "off"

    async def _install(
        self, key: Key, obj: Object, cluster: Cluster, files: ConfFiles, digest: str, proven: str, before: str
    ) -> Configured:
        await self._do.ensure(key, build.config_map(obj, cluster, files, digest, proven))
        self._stuck_since.pop(key, None)
        return Configured(digest, changed=digest != before)

    # --- the check ---

    async def _check(
        self, key: Key, obj: Object, cluster: Cluster, files: ConfFiles, digest: str, worker: dict[str, Any]
    ) -> Verdict:
        """What a scratch Slurm says of the candidate. One content is shown once; pods of others are removed."""
        known = self._verdicts.setdefault(key, {})
        if digest in known:
            return known[digest]
        until, told = self._later.get((key, digest), (0.0, Verdict("pending")))
        if time.monotonic() < until:
            return told
        pod: Object | None = None
        for other in self._do.check_pods.list(key.namespace):
            if other["metadata"]["name"] == checks.check_name(cluster, digest):
                pod = other
            elif self._is_ours(other, obj) and not is_deleting(other):
                await self._do.delete(key, other, grace_seconds=0)
        if pod is None:
            try:
                pod = await self._do.create(key, checks.check_pod(obj, cluster, digest, worker))
            except AlreadyExists:
                return Verdict("pending")
        if is_deleting(pod):
            return Verdict("pending")
        found = checks.verdict(pod, pod_problem(pod))
        if found.state == "pending":
            await self._do.ensure(key, checks.candidate(pod, cluster, files))
            return found
        if found.state == "stuck" and (pod.get("status") or {}).get("phase") in ("Pending", "Running"):
            began = self._stuck_since.setdefault(key, time.monotonic())
            return found if time.monotonic() - began > PATIENCE_SECONDS else Verdict("pending")
        if found.state == "stuck":
            self._later[key, digest] = (time.monotonic() + RETRY_SECONDS, found)
        else:
            known[digest] = found
            while len(known) > _REMEMBERED:
                known.pop(next(iter(known)))
        await self._do.delete(key, pod, grace_seconds=0)
        return found

    def _is_ours(self, pod: Object, obj: Object) -> bool:
        return any(ref["uid"] == obj["metadata"]["uid"] for ref in pod["metadata"].get("ownerReferences") or ())

    def _worker(self, key: Key) -> dict[str, Any]:
        """The slurmd container of the first NodeSet; {} without any."""
        for nodeset in sorted(self._nodesets(key), key=lambda one: str(one["metadata"]["name"])):
            container = (nodeset.get("spec") or {}).get("slurmd") or {}
            if container.get("image"):
                return dict(container)
        return {}

    # --- what it is made from ---

    async def _inputs(self, key: Key, obj: Object, cluster: Cluster) -> ConfInputs:
        spec = cluster.spec
        host, port = self._accounting(key, spec)
        inputs = ConfInputs(
            name=key.name,
            namespace=key.namespace,
            spec=spec,
            groups=self.groups(key),
            accounting_host=host,
            accounting_port=port,
            preset=annotations_of(obj).get(slurm_defaults.PRESET_ANNOTATION, ""),
        )
        if spec.external:
            return inputs
        refs = (spec.config_file_refs, spec.prolog_script_refs, spec.epilog_script_refs,
                spec.prolog_slurmctld_script_refs, spec.epilog_slurmctld_script_refs)  # fmt: skip
        found = [await self._referenced(key, one) for one in refs]
        files, prolog, epilog, prolog_slurmctld, epilog_slurmctld = (text for text, _ in found)
        return replace(
            inputs,
            files=files,
            prolog=prolog,
            epilog=epilog,
            prolog_slurmctld=prolog_slurmctld,
            epilog_slurmctld=epilog_slurmctld,
            binary={name: content for _, some in found for name, content in some.items()},
            jwks=await self._jwks(key, spec),
        )

    async def _referenced(self, key: Key, refs: Sequence[NamedRef]) -> tuple[dict[str, str], dict[str, str]]:
        """Files of ConfigMaps, read from the API server: they are few, and their contents are not worth a cache."""
        text: dict[str, str] = {}
        binary: dict[str, str] = {}
        for ref in refs:
            found = await self._do.kube.get(CONFIGMAPS, key.namespace, ref.name)
            if found is None:
                raise Waiting("NoConfigMap", f"ConfigMap {ref.name} does not exist")
            text |= found.get("data") or {}
            binary |= found.get("binaryData") or {}
        return text, binary

    async def _jwks(self, key: Key, spec: ControllerSpec) -> str:
        reference = spec.jwks_key_ref
        if reference is None:
            return ""
        found = await self._do.kube.get(CONFIGMAPS, key.namespace, reference.name)
        text = ((found or {}).get("data") or {}).get(reference.key)
        if text is None:
            raise Waiting("NoConfigMap", f"ConfigMap {reference.name} has no key {reference.key} (spec.jwksKeyRef)")
        return str(text)

    def _nodesets(self, key: Key) -> Iterable[Object]:
        # One that still drains keeps its partition: without it Slurm would end its jobs.
        found = self._do.nodesets.by_index(BY_CONTROLLER, str(key))
        return (one for one in found if not is_deleting(one) or held(one))

    def _unread(self, key: Key) -> str:
        """What is wrong with a NodeSet that cannot be read; "" if none is. Slurm ends the jobs of a lost partition."""
        for nodeset in self._nodesets(key):
            try:
                load_spec(NodeSetSpec, nodeset)
            except InvalidSpec as error:
                return f"NodeSet {nodeset['metadata']['name']}: {error}"
        return ""

    def groups(self, key: Key) -> list[Group]:
        """The NodeSets as slurm.conf sees them; one that cannot be read reports that itself."""
        groups = []
        for nodeset in self._nodesets(key):
            try:
                spec = load_spec(NodeSetSpec, nodeset)
            except InvalidSpec:
                continue
            try:
                cpus, memory = workers.limits(spec)
            except InvalidSpec:
                cpus = memory = 0
            counted = int((nodeset.get("status") or {}).get("desired") or 0)
            groups.append(
                Group(
                    workers.group_name(nodeset["metadata"]["name"], spec),
                    counted if spec.scaling_mode == "DaemonSet" else spec.replicas,
                    spec.partition.config if spec.partition.enabled else None,
                    nodeset["metadata"]["creationTimestamp"],
                    cpus,
                    memory,
                    _has_gpus(spec),
                    spec.ssh.enabled,
                )
            )
        return groups

    def _accounting(self, key: Key, spec: ControllerSpec) -> tuple[str, int]:
        """Host and port of slurmdbd; "" without accounting.

        A slurmctld that has never met its slurmdbd does not start without it. So accounting comes into slurm.conf when
        slurmdbd is ready; from then on it stays, because slurmctld then keeps what it cannot send. Whether an external
        one can be reached from slurmctld, the operator cannot tell from where it is: that one comes in at once.
        """
        if spec.accounting_ref is None or not spec.accounting_ref.name:
            return "", 0
        name = spec.accounting_ref.name
        accounting = self._do.accountings.get(key.namespace, name)
        if accounting is None:
            raise Waiting("NoAccounting", f"there is no Accounting {name} (spec.accountingRef)")
        try:
            found = load_spec(AccountingSpec, accounting)
        except InvalidSpec as error:
            raise Waiting("AccountingInvalid", f"Accounting {name} cannot be used: {error}") from None
        if found.external:
            if not found.external_config.host:
                raise Waiting("AccountingInvalid", f"Accounting {name} names no host (spec.externalConfig)")
            return found.external_config.host, found.external_config.port or SLURMDBD_PORT
        host, port = f"{accounting_object(name)}.{key.namespace}", found.service.port or SLURMDBD_PORT
        ready = (condition(accounting, "Ready") or {}).get("status") == "True"
        config = self._do.configs.get(key.namespace, controller_config(key.name))
        if ready or (config and annotations_of(config).get(ANNOTATION_ACCOUNTING)):
            return host, port
        if config is None:
            raise Waiting(
                "AccountingNotReady", f"slurmdbd of Accounting {name} has to answer first (spec.accountingRef)"
            )
        return "", 0  # the cluster goes on without until then

    def missing(self, key: Key, spec: ControllerSpec) -> str:
        """Says that accounting is wanted and not yet in effect; "" otherwise."""
        config = self._do.configs.get(key.namespace, controller_config(key.name))
        wanted = spec.accounting_ref is not None and spec.accounting_ref.name
        if not wanted or (config and annotations_of(config).get(ANNOTATION_ACCOUNTING)):
            return ""
        return f"Accounting {wanted} comes into effect when its slurmdbd answers."


def references(controller: Object) -> set[str]:
    """Names of the ConfigMaps that a Controller refers to."""
    spec = controller.get("spec") or {}
    fields = ("configFileRefs", "prologScriptRefs", "epilogScriptRefs", "prologSlurmctldScriptRefs",
              "epilogSlurmctldScriptRefs")  # fmt: skip
    names = {str(ref.get("name")) for field in fields for ref in spec.get(field) or ()}
    return names | {str((spec.get("jwksKeyRef") or {}).get("name"))}


def _has_gpus(spec: NodeSetSpec) -> bool:
    limits = (spec.slurmd.get("resources") or {}).get("limits") or {}
    return "gpu" in spec.extra_conf.lower() or any(name.endswith("/gpu") for name in limits)


def config_hash(configured: Configured, keys_digest: str) -> str:
    """Of all that slurmctld reads in /etc/slurm."""
    return canonical_hash([configured.hash, keys_digest])
