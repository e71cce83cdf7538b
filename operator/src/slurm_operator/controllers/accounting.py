"""Reconciles Accounting: slurmdbd as a pod, or one that runs elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import ClassVar

from slurm_operator.api.controller import ControllerSpec
from slurm_operator.api.load import InvalidSpec, jwt_key_of, load_spec
from slurm_operator.api.names import (
    ANNOTATION_JWT_KEY_HASH,
    ANNOTATION_SLURM_KEY_HASH,
    ANNOTATION_SLURMDBD_HASH,
    APP_ACCOUNTING,
    LABEL_INSTANCE,
    LABEL_NAME,
    SLURMDBD_PORT,
    accounting_object,
)
from slurm_operator.api.others import AccountingSpec
from slurm_operator.controllers.base import Reconciler, Waiting, cluster_domain, of_instance, trim_pod
from slurm_operator.controllers.references import LOOK_SECONDS, config_value, secret_value
from slurm_operator.desired import accounting as build
from slurm_operator.desired.parts import Cluster
from slurm_operator.desired.status import Report, pod_problem, pod_ready
from slurm_operator.kube.informer import Informer
from slurm_operator.kube.objects import canonical_hash, is_deleting
from slurm_operator.kube.resources import (
    ACCOUNTINGS,
    CONTROLLERS,
    PODS,
    SECRETS,
    SERVICES,
    STATEFULSETS,
    Key,
    Object,
    Resource,
)

ANSWER_SECONDS = 3.0
AGAIN_SECONDS = 5.0
LOG_LINES = 30


class AccountingController(Reconciler[AccountingSpec]):
    """slurmdbd, ready when it answers."""

    name: ClassVar[str] = "accounting"
    resource: ClassVar[Resource] = ACCOUNTINGS
    spec_type = AccountingSpec
    controllers: Informer
    pods: Informer

    def setup(self) -> None:
        self.informer = self.watch(self.resource)
        self.controllers = self.watch(CONTROLLERS, _used_by, status_too=False)
        self.owns(STATEFULSETS)
        self.owns(SERVICES)
        chosen = f"{LABEL_NAME}={APP_ACCOUNTING}"
        self.pods = self.watch(PODS, of_instance, label_selector=chosen, transform=trim_pod)
        self.pods.add_label_index(LABEL_INSTANCE)

    async def act(self, key: Key, obj: Object, spec: AccountingSpec) -> tuple[Report, float | None]:
        if spec.external:
            return await _outside(spec)
        clusters = self._clusters(key)
        keys, conflict = choose_keys(key.name, spec, clusters)
        cluster = clusters[0].name if clusters else ""
        password = ""
        if spec.storage_config.password_key_ref:
            where = "spec.storageConfig.passwordKeyRef"
            value = await secret_value(self.kube, key.namespace, spec.storage_config.password_key_ref, where)
            password = value.decode().rstrip("\r\n")
        conf = build.slurmdbd_conf(key.name, spec, password)
        await self._conf(key, build.conf_secret(obj, cluster, conf))
        contents = [await secret_value(self.kube, key.namespace, one, f"key {path}") for one, path in keys]
        jwks = spec.jwks_key_ref
        keyset = await config_value(self.kube, key.namespace, jwks, "spec.jwksKeyRef") if jwks else ""
        hashes = {
            ANNOTATION_SLURMDBD_HASH: canonical_hash([conf, keyset]),
            ANNOTATION_SLURM_KEY_HASH: canonical_hash([content.hex() for content in contents[:-1]]),
            ANNOTATION_JWT_KEY_HASH: canonical_hash(contents[-1].hex()),
        }
        await self.ensure(key, build.accounting_service(obj, spec, cluster))
        await self.ensure(key, build.stateful_set(obj, spec, cluster, keys, hashes))
        return await self._observe(key, spec, conflict)

    def _clusters(self, key: Key) -> list[Cluster]:
        """Controllers that use this Accounting, the oldest first."""
        found = [
            one
            for one in self.controllers.list(key.namespace)
            if Key(key.namespace, key.name) in _used_by(one) and not is_deleting(one)
        ]
        found.sort(key=lambda one: (one["metadata"]["creationTimestamp"], one["metadata"]["name"]))
        clusters = []
        for one in found:
            with suppress(InvalidSpec):  # its own reconcile reports it
                spec = load_spec(ControllerSpec, one)
                clusters.append(Cluster(one["metadata"]["name"], key.namespace, spec, cluster_domain()))
        return clusters

    async def _conf(self, key: Key, wish: Object) -> None:
        """Write the Secret if it is not as it should be: Secrets are not cached, and an idle cluster sees no write."""
        live = await self.kube.get(SECRETS, key.namespace, wish["metadata"]["name"])
        same = live is not None and live.get("data") == wish["data"] and live["metadata"].get("ownerReferences")
        if not same:
            await self.ensure(key, wish)

    async def _observe(self, key: Key, spec: AccountingSpec, conflict: str) -> tuple[Report, float | None]:
        where = f"{accounting_object(key.name)}.{key.namespace}:{spec.service.port or SLURMDBD_PORT}"
        faults = [conflict] if conflict else []
        pods = [
            one for one in self.pods.by_index(LABEL_INSTANCE, key.name) if one["metadata"]["namespace"] == key.namespace
        ]
        pod = next(iter(pods), None)
        if pod is not None and pod_ready(pod):
            text = f"slurmdbd answers at {where}."
            return Report(True, "Ready", text, fault=conflict, fault_reason="KeyMismatch"), LOOK_SECONDS
        problem = pod_problem(pod) if pod is not None else ""
        if pod is not None and not is_deleting(pod):
            # Why it waits for its database, or ended, only its log tells.
            log = await self.kube.log(key.namespace, pod["metadata"]["name"], "slurmdbd", lines=LOG_LINES)
            problem = build.trouble(log or _last_words(pod)) or problem
        if problem:
            text = f"slurmdbd is not ready: {problem}"
            faults.append(text)
            return Report(
                False, "NotAnswering", text, busy=text, fault="; ".join(faults), fault_reason="NotAnswering"
            ), AGAIN_SECONDS
        text = "slurmdbd is starting."
        return Report(False, "Starting", text, busy=text, fault=conflict, fault_reason="KeyMismatch"), AGAIN_SECONDS


def choose_keys(name: str, spec: AccountingSpec, clusters: list[Cluster]) -> tuple[build.Keys, str]:
    """Keys that slurmdbd reads, and what is wrong with them. Raises Waiting while there is nobody to take them from.

    Where none is given they are those of the oldest Controller whose accountingRef names this Accounting.
    """
    slurm_key, jwt_key = spec.slurm_key_ref, jwt_key_of(spec)
    if not clusters and not (slurm_key and jwt_key):
        text = f"spec.slurmKeyRef or jwtKeyRef is not given, and no Controller has accountingRef {name}"
        raise Waiting("NoController", f"{text}: its keys would be used")
    if not clusters:
        return build.keys_of(slurm_key, jwt_key, ""), ""
    first, used = clusters[0], slurm_key or clusters[0].slurm_key
    # Also where the same Secret is named, the cluster's own follows a rotation.
    given = None if used == first.slurm_key else slurm_key
    others = [one for one in clusters if (one.slurm_key.name, one.slurm_key.key) != (used.name, used.key)]
    conflict = ""
    if others:
        conflict = (
            f"Controller {others[0].name} has another slurm key (Secret {others[0].slurm_key.name}) than slurmdbd "
            f"(Secret {used.name}), which will refuse it: give both the same slurmKeyRef"
        )
    return build.keys_of(given, None if jwt_key == first.jwt_key else jwt_key, first.name), conflict


def _used_by(controller: Object) -> Iterable[Key]:
    """The Accounting that a Controller uses."""
    name = ((controller.get("spec") or {}).get("accountingRef") or {}).get("name")
    return (Key(controller["metadata"]["namespace"], name),) if name else ()


def _last_words(pod: Object) -> str:
    """What a container that ended left as its message: the end of its log."""
    for one in (pod.get("status") or {}).get("containerStatuses") or ():
        ended = (one.get("lastState") or {}).get("terminated") or (one.get("state") or {}).get("terminated") or {}
        if ended.get("message"):
            return str(ended["message"])
    return ""


async def _outside(spec: AccountingSpec) -> tuple[Report, float | None]:
    """A slurmdbd elsewhere is ready when it takes a connection from here."""
    host, port = spec.external_config.host, spec.external_config.port or SLURMDBD_PORT
    if not host:
        raise InvalidSpec("spec.externalConfig.host: missing; name the host of slurmdbd")
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            _, writer = await asyncio.open_connection(host, port)
        writer.close()
    except (OSError, TimeoutError) as error:
        why = str(error) or f"no answer within {ANSWER_SECONDS:g} s"
        text = f"slurmdbd outside, at {host}:{port}, does not answer the operator: {why}"
        return Report(False, "NotAnswering", text, fault=text, fault_reason="NotAnswering"), AGAIN_SECONDS
    return Report(True, "External", f"slurmdbd is outside and answers at {host}:{port}."), LOOK_SECONDS
