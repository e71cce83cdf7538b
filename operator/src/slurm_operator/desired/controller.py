"""Kubernetes objects of a Controller: slurmctld, its Services, configuration and disruption budget."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slurm_operator.api.common import Metadata
from slurm_operator.api.names import (
    ANNOTATION_ACCOUNTING,
    ANNOTATION_CONFIG_HASH,
    APP_CONTROLLER,
    ETC_SLURM,
    JWKS_FILE,
    JWT_KEY,
    SLURM_KEY,
    SLURMCTLD_PORT,
    SPOOL_SLURMCTLD,
    controller_config,
    controller_internal_service,
    controller_object,
)
from slurm_operator.desired.parts import (
    ETC_MOUNT,
    LOCKED_DOWN,
    TMP_MOUNT,
    Cluster,
    Map,
    container,
    dns,
    http_probe,
    key_projection,
    labels,
    meta,
    pod_template,
    projected_config,
    selector,
    service,
    slurm_pod_security,
)
from slurm_operator.kube.resources import Object

# The projected volume changes by a swap of its `..data` link. Bash as PID 1 has no default action for TERM.
RECONFIGURE = f"""\
trap 'exit 0' TERM INT
pause() {{ sleep "$1" & wait $!; }}
now() {{ readlink {ETC_SLURM}/..data; }}
done=$(now)
while pause 1; do
  seen=$(now)
  [ "$seen" != "$done" ] || continue
  until scontrol reconfigure; do
    echo "slurmctld did not take the new configuration yet, trying again" >&2
    pause 2
    seen=$(now)
  done
  echo "configuration $seen is in effect"
  done=$seen
done
"""


def _own(cluster: Cluster) -> dict[str, str]:
    return labels(APP_CONTROLLER, cluster.name, cluster.name, "controller")


def config_map(owner: Object, cluster: Cluster, files: Mapping[str, str], accounting: str = "") -> Object:
    """The files that the operator makes; `desired.slurm_conf.conf_files` gives their content.

    An annotation tells that slurmctld uses the slurmdbd at `accounting` (a host).
    """
    user = Metadata(annotations={ANNOTATION_ACCOUNTING: accounting} if accounting else {})
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": meta(controller_config(cluster.name), cluster.namespace, _own(cluster), owner=owner, user=user),
        "data": dict(files),
    }


def services(owner: Object, cluster: Cluster) -> list[Object]:
    """The Service that everyone uses, and the headless one that names slurmctld's pod before it is ready."""
    chosen = selector(APP_CONTROLLER, cluster.name)
    internal = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": meta(controller_internal_service(cluster.name), cluster.namespace, _own(cluster), owner=owner),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": chosen,
            "ports": [{"name": "slurmctld", "port": SLURMCTLD_PORT, "targetPort": SLURMCTLD_PORT, "protocol": "TCP"}],
        },
    }
    public = service(
        meta(controller_object(cluster.name), cluster.namespace, _own(cluster), owner=owner),
        {"type": "ClusterIP", "selector": chosen},
        cluster.spec.service,
        port_name="slurmctld",
        port=SLURMCTLD_PORT,
    )
    return [internal, public]


def disruption_budget(owner: Object, cluster: Cluster) -> Object:
    """slurmctld is one pod: no one may evict it in passing. An administrator who means it deletes the pod."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": meta(controller_object(cluster.name), cluster.namespace, _own(cluster), owner=owner),
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": selector(APP_CONTROLLER, cluster.name)}},
    }


def stateful_set(owner: Object, cluster: Cluster, config_hash: str) -> Object:
    """slurmctld. With inplaceReconfigure false a new `config_hash` means a new pod."""
    spec = cluster.spec
    annotations = {} if spec.inplace_reconfigure else {ANNOTATION_CONFIG_HASH: config_hash}
    claims = _claims(cluster)
    result: Map = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": meta(controller_object(cluster.name), cluster.namespace, _own(cluster), owner=owner),
        "spec": {
            "replicas": 1,
            "serviceName": controller_internal_service(cluster.name),
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": selector(APP_CONTROLLER, cluster.name)},
            "template": pod_template(_own(cluster), _pod(cluster), spec.template, annotations),
        },
    }
    if claims:
        result["spec"]["volumeClaimTemplates"] = claims
    return result


def _pod(cluster: Cluster) -> Map:
    spec = cluster.spec
    others = [
        ref.name
        for refs in (spec.config_file_refs, spec.prolog_script_refs, spec.epilog_script_refs,
                     spec.prolog_slurmctld_script_refs, spec.epilog_slurmctld_script_refs)
        for ref in refs
    ]  # fmt: skip
    keys = [key_projection(cluster.slurm_key, SLURM_KEY), key_projection(cluster.jwt_key, JWT_KEY)]
    if spec.jwks_key_ref:
        reference = spec.jwks_key_ref
        keys.append({"configMap": {"name": reference.name, "items": [{"key": reference.key, "path": JWKS_FILE}]}})
    # 0550: scripts run, and nobody else may read the keys. fsGroup gives the files to SlurmUser's group.
    etc = {"name": "etc-slurm", **projected_config(controller_config(cluster.name), others, keys, mode=0o550)}
    volumes = [etc, {"name": "run", "emptyDir": {"medium": "Memory"}}, {"name": "tmp", "emptyDir": {}}]
    if not spec.persistence.enabled:
        volumes.append({"name": "statesave", "emptyDir": {}})
    elif spec.persistence.existing_claim:
        claim = {"claimName": spec.persistence.existing_claim}
        volumes.append({"name": "statesave", "persistentVolumeClaim": claim})
    pod: Map = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 30,
        "securityContext": slurm_pod_security(),
        "dnsConfig": dns(cluster.worker_domain),
        "containers": [_slurmctld(cluster)],
        "volumes": volumes,
    }
    if spec.inplace_reconfigure:
        pod["initContainers"] = [_reconfigure(cluster)]
    return pod


def _slurmctld(cluster: Cluster) -> Map:
    base = {
        "name": "slurmctld",
        "ports": [{"name": "slurmctld", "containerPort": SLURMCTLD_PORT, "protocol": "TCP"}],
        "startupProbe": http_probe("/livez", SLURMCTLD_PORT, period=1, failures=300),
        "readinessProbe": http_probe("/readyz", SLURMCTLD_PORT, period=5),
        "livenessProbe": http_probe("/livez", SLURMCTLD_PORT, period=10, failures=6),
        "securityContext": LOCKED_DOWN,
        "volumeMounts": [
            ETC_MOUNT,
            {"name": "statesave", "mountPath": SPOOL_SLURMCTLD},
            {"name": "run", "mountPath": "/run"},
            TMP_MOUNT,
        ],
    }
    return container(base, cluster.spec.slurmctld, "spec.slurmctld")


def _reconfigure(cluster: Cluster) -> Map:
    """Sidecar that tells slurmctld of a changed configuration. Its image is slurmctld's unless another is named."""
    base: Map = {
        "name": "reconfigure",
        "restartPolicy": "Always",
        "command": ["bash", "-c", RECONFIGURE],
        "securityContext": LOCKED_DOWN,
        "volumeMounts": [ETC_MOUNT, {"name": "run", "mountPath": "/run"}, TMP_MOUNT],
    }
    for name in ("image", "imagePullPolicy"):
        if cluster.spec.slurmctld.get(name):
            base[name] = cluster.spec.slurmctld[name]
    return container(base, cluster.spec.reconfigure, "spec.reconfigure")


def _claims(cluster: Cluster) -> list[Map]:
    persistence = cluster.spec.persistence
    if not persistence.enabled or persistence.existing_claim:
        return []
    claim: dict[str, Any] = {
        "accessModes": list(persistence.access_modes) or ["ReadWriteOnce"],
        "resources": persistence.resources or {"requests": {"storage": "4Gi"}},
    }
    optional = {
        "storageClassName": persistence.storage_class_name,
        "volumeName": persistence.volume_name,
        "volumeMode": persistence.volume_mode,
        "volumeAttributesClassName": persistence.volume_attributes_class_name,
        "selector": persistence.selector,
        "dataSource": persistence.data_source,
        "dataSourceRef": persistence.data_source_ref,
    }
    claim |= {name: value for name, value in optional.items() if value}
    # apiVersion and kind are what the API server fills in; without them the live object would always look different.
    return [{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "statesave"}, "spec": claim}]
