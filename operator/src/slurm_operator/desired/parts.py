"""Pieces that several builders share: names, labels, security, probes, the final overlay."""

from __future__ import annotations

import re
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
    LOG_DIRECTORY,
    MANAGED_BY,
    SLURM_JWKS,
    SLURM_KEY,
    SLURM_UID,
    SLURMCTLD_PORT,
    controller_object,
    jwt_key_secret,
    keys_secret,
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


def keys_projection(cluster: Cluster, *files: str) -> Map:
    """Keys of the cluster as files of a projected volume; Slurm prefers slurm.jwks where both are."""
    return {"secret": {"name": keys_secret(cluster.name), "items": [{"key": file, "path": file} for file in files]}}


def key_volume(name: str, cluster: Cluster, *, mode: int) -> Map:
    """The keys of auth/slurm as a volume of its own, which follows a rotation.

    Slurm takes keys that belong to root or SlurmUser and that others cannot read (auth/slurm checks S_IRWXO).
    """
    return {
        "name": name,
        "projected": {"defaultMode": mode, "sources": [keys_projection(cluster, SLURM_JWKS, SLURM_KEY)]},
    }


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


# Opened for both ways, the pipe never ends: neither when the daemon starts anew nor before it has started.
_READ_LOG = """\
trap 'exit 0' TERM INT
[ -p "$LOG" ] || { rm -f "$LOG"; mkfifo -m 622 "$LOG"; }
exec 3<>"$LOG"
cat <&3 &
wait
"""


def log_arguments(user: Map, daemon: str) -> list[str]:
    """Options that make a daemon log into the pipe of its logfile container, if the user asks for one."""
    return ["-L", f"{LOG_DIRECTORY}/{daemon}.log"] if user else []


def log_mounts(user: Map) -> list[Map]:
    return [{"name": "logs", "mountPath": LOG_DIRECTORY}] if user else []


def log_volumes(user: Map) -> list[Map]:
    return [{"name": "logs", "emptyDir": {"medium": "Memory"}}] if user else []


def log_container(user: Map, daemon: str, image_of: Map) -> list[Map]:
    """The sidecar that prints a daemon's log: only if the user asks for one, since the daemon prints it itself too."""
    if not user:
        return []
    base: Map = {
        "name": "logfile",
        "restartPolicy": "Always",
        "command": ["sh", "-c", _READ_LOG],
        "env": [{"name": "LOG", "value": f"{LOG_DIRECTORY}/{daemon}.log"}],
        "securityContext": LOCKED_DOWN,
        "volumeMounts": log_mounts(user),
    }
    base |= {field: image_of[field] for field in ("image", "imagePullPolicy") if image_of.get(field)}
    return [container(base, user, "spec.logfile")]


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
