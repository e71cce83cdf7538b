"""Pieces that several builders share: names, labels, security, probes, the final overlay."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from slurm_operator.api.common import KeySelector, Metadata, PodTemplate, Service
from slurm_operator.api.controller import ControllerSpec
from slurm_operator.api.load import InvalidSpec, jwt_key_of
from slurm_operator.api.names import (
    ETC_SLURM,
    JWT_KEY,
    LABEL_CLUSTER,
    LABEL_COMPONENT,
    LABEL_INSTANCE,
    LABEL_MANAGED_BY,
    LABEL_NAME,
    MANAGED_BY,
    SLURM_KEY,
    SLURM_UID,
    SLURMCTLD_PORT,
    controller_object,
    jwt_key_secret,
    slurm_key_secret,
    workers_service,
)
from slurm_operator.desired.merge import overlay
from slurm_operator.kube.objects import owner_reference
from slurm_operator.kube.resources import Object

Map = dict[str, Any]


@dataclass(frozen=True)
class Cluster:
    """A Controller, as far as everything that belongs to it needs to know it."""

    name: str
    namespace: str
    spec: ControllerSpec
    domain: str = "cluster.local"

    @property
    def conf_server(self) -> str:
        """host:port of slurmctld, for `--conf-server`."""
        if self.spec.external:
            return f"{self.spec.external_config.host}:{self.spec.external_config.port or SLURMCTLD_PORT}"
        return f"{controller_object(self.name)}.{self.namespace}:{self.spec.service.port or SLURMCTLD_PORT}"

    @property
    def slurm_key(self) -> KeySelector:
        return self.spec.slurm_key_ref or KeySelector(name=slurm_key_secret(self.name), key=SLURM_KEY)

    @property
    def jwt_key(self) -> KeySelector:
        return jwt_key_of(self.spec) or KeySelector(name=jwt_key_secret(self.name), key=JWT_KEY)

    @property
    def worker_domain(self) -> str:
        """Where the names of workers resolve."""
        return f"{workers_service(self.name)}.{self.namespace}.svc.{self.domain}"


def selector(app: str, instance: str) -> dict[str, str]:
    return {LABEL_NAME: app, LABEL_INSTANCE: instance}


def labels(app: str, instance: str, cluster: str, component: str) -> dict[str, str]:
    return {
        **selector(app, instance),
        LABEL_COMPONENT: component,
        LABEL_MANAGED_BY: MANAGED_BY,
        LABEL_CLUSTER: cluster,
    }


def meta(name: str, namespace: str, own: dict[str, str], *, owner: Object | None, user: Metadata | None = None) -> Map:
    """metadata of an object; the operator's labels win over the user's, since selectors rely on them."""
    user = user or Metadata()
    result: Map = {"name": name, "namespace": namespace, "labels": {**user.labels, **own}}
    if user.annotations:
        result["annotations"] = dict(user.annotations)
    if owner is not None:
        result["ownerReferences"] = [owner_reference(owner)]
    return result


LOCKED_DOWN: Map = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def slurm_pod_security(**more: Any) -> Map:
    """A pod that runs as SlurmUser."""
    return {
        "runAsNonRoot": True,
        "runAsUser": SLURM_UID,
        "runAsGroup": SLURM_UID,
        "fsGroup": SLURM_UID,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
        **more,
    }


def dns(*searches: str) -> Map:
    """Resolver options: Slurm's daemons give up after minutes of slow answers, so ask often and briefly."""
    config: Map = {"options": [{"name": "timeout", "value": "1"}, {"name": "attempts", "value": "5"}]}
    if searches:
        config["searches"] = list(searches)
    return config


def http_probe(path: str, port: int, *, period: int, failures: int = 3, timeout: int = 5) -> Map:
    return {
        "httpGet": {"path": path, "port": port},
        "periodSeconds": period,
        "failureThreshold": failures,
        "timeoutSeconds": timeout,
    }


def tcp_probe(port: int, *, period: int, failures: int = 3) -> Map:
    return {"tcpSocket": {"port": port}, "periodSeconds": period, "failureThreshold": failures, "timeoutSeconds": 5}


def key_projection(key: KeySelector, path: str) -> Map:
    """A Secret's key as a file of a projected volume."""
    return {"secret": {"name": key.name, "items": [{"key": key.key, "path": path}]}}


def key_volume(name: str, cluster: Cluster, *, mode: int) -> Map:
    """The auth/slurm key as a volume of its own.

    Slurm takes a key that belongs to root or SlurmUser and that others cannot read (auth/slurm checks S_IRWXO).
    """
    return {"name": name, "projected": {"defaultMode": mode, "sources": [key_projection(cluster.slurm_key, SLURM_KEY)]}}


def container(base: Map, user: Map, where: str) -> Map:
    """The operator's container with the user's fields over it. Raises InvalidSpec when there is no image."""
    merged = overlay(base, {key: value for key, value in user.items() if key != "name"})
    if not merged.get("image"):
        raise InvalidSpec(f"{where}.image: missing; name the image of {base['name']}")
    return _settled(merged)


def _settled(merged: Map) -> Map:
    """A user who asks for more privileges does not have to undo each of our restrictions by hand."""
    security = merged.get("securityContext") or {}
    added = (security.get("capabilities") or {}).get("add") or []
    if security.get("privileged") or "SYS_ADMIN" in added:
        security.pop("allowPrivilegeEscalation", None)
    return merged


def pod_template(base_labels: dict[str, str], spec: Map, template: PodTemplate, annotations: Map | None = None) -> Map:
    """metadata and spec of a pod, with the user's template over it."""
    metadata: Map = {"labels": {**template.metadata.labels, **base_labels}}
    if notes := {**template.metadata.annotations, **(annotations or {})}:
        metadata["annotations"] = notes
    return {"metadata": metadata, "spec": overlay(spec, template.spec)}


def service(
    base_meta: Map, spec: Map, user: Service, *, port_name: str, port: int, target: int | str | None = None
) -> Object:
    """A Service with one port and the user's fields over it; externalIPs are never taken (CVE-2020-8554)."""
    entry: Map = {"name": port_name, "port": user.port or port, "targetPort": target or port, "protocol": "TCP"}
    if user.node_port:
        entry["nodePort"] = user.node_port
    merged = overlay({**spec, "ports": [entry]}, user.spec, service=True)
    merged.pop("externalIPs", None)
    metadata = dict(base_meta)
    metadata["labels"] = {**user.metadata.labels, **base_meta["labels"]}
    if user.metadata.annotations:
        metadata["annotations"] = {**base_meta.get("annotations", {}), **user.metadata.annotations}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": merged}


def projected_config(config_map: str, others: Sequence[str], keys: Sequence[Map], *, mode: int) -> Map:
    """Volume source of /etc/slurm: the operator's ConfigMap, the user's, and keys."""
    sources = [{"configMap": {"name": name}} for name in (config_map, *others)]
    return {"projected": {"defaultMode": mode, "sources": [*sources, *keys]}}


TMP_MOUNT: Map = {"name": "tmp", "mountPath": "/tmp"}  # noqa: S108 - the container's own
ETC_MOUNT: Map = {"name": "etc-slurm", "mountPath": ETC_SLURM, "readOnly": True}

_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi|)$")
_SCALE = {"": 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15} | {
    f"{letter}i": 1024.0**power for power, letter in enumerate("KMGTP", 1)
}


def quantity(value: Any, where: str) -> float:
    """A Kubernetes quantity as a number. Raises InvalidSpec, naming the field, on what is none."""
    match = _QUANTITY.match(str(value))
    if match is None:
        raise InvalidSpec(f"{where}: {value!r} is no quantity; write 4, 500m or 16Gi for example")
    return float(match[1]) * _SCALE[match[2]]
