"""Kubernetes objects of a Controller: slurmctld, its Services, configuration and disruption budget."""

from __future__ import annotations

from typing import Any

from slurm_operator.api.common import Metadata
from slurm_operator.api.controller import ControllerSpec, MetricEndpoint
from slurm_operator.api.names import (
    ANNOTATION_ACCOUNTING,
    ANNOTATION_CONFIG_DIGEST,
    ANNOTATION_CONFIG_HASH,
    ANNOTATION_CONFIG_PROVEN,
    APP_CONTROLLER,
    ETC_SLURM,
    JWT_KEY,
    LABEL_ACTIVE,
    LABEL_SCRAPED,
    SLURM_JWKS,
    SLURM_KEY,
    SLURMCTLD_PORT,
    controller_config,
    controller_internal_service,
    controller_object,
    controller_pod,
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
    keys_projection,
    labels,
    log_arguments,
    log_container,
    log_mounts,
    log_volumes,
    meta,
    pod_template,
    selector,
    service,
    slurm_pod_security,
)
from slurm_operator.desired.slurm_conf import ConfFiles, state_location
from slurm_operator.kube.resources import Object

# The projected volume changes by a swap of its `..data` link. Bash as PID 1 has no default action for TERM.
_RECONFIGURE = f"""\
trap 'exit 0' TERM INT
pause() {{ sleep "$1" & wait $!; }}
now() {{ readlink {ETC_SLURM}/..data; }}
done=$(now)
while pause 1; do
  seen=$(now)
  [ "$seen" != "$done" ] || continue
  until tell; do
    echo "slurmctld did not take the new configuration yet, trying again" >&2
    pause 2
    seen=$(now)
  done
  echo "configuration $seen is in effect"
  done=$seen
done
"""
RECONFIGURE = "tell() { scontrol reconfigure; }\n" + _RECONFIGURE

# Only the slurmctld at work is told: a reconfigure while another takes over makes both work for half a minute. One that
# waits reads its configuration at SIGHUP, and its keys only when it starts.
RECONFIGURE_HA = (
    f"""\
at_work() {{
  exec 3<>/dev/tcp/127.0.0.1/{SLURMCTLD_PORT} || return 1
  printf 'GET /readyz HTTP/1.1\\r\\nHost: me\\r\\nConnection: close\\r\\n\\r\\n' >&3
  local answer=; read -r -t 2 answer <&3; exec 3>&-
  case $answer in HTTP/*" 2"*) ;; *) return 1 ;; esac
}}
sum() {{ cksum <{ETC_SLURM}/{SLURM_JWKS}; }}
keys=$(sum)
tell() {{
  local signal=HUP
  [ "$keys" = "$(sum)" ] || signal=TERM
  if at_work 2>/dev/null; then scontrol reconfigure || return 1; else pkill "-$signal" -x slurmctld || return 1; fi
  keys=$(sum)
}}
"""
    + _RECONFIGURE
)

# The first slurmctld is the one at work unless it is down. A backup asked to take over does so at once, not after
# SlurmctldTimeout.
HAND_OVER = """\
case $HOSTNAME in *-0) timeout 10 scontrol takeover 1 || true ;; esac
"""


def _own(cluster: Cluster) -> dict[str, str]:
    return labels(APP_CONTROLLER, cluster.name, cluster.name, "controller")


def config_map(owner: Object, cluster: Cluster, files: ConfFiles, digest: str, proven: str) -> Object:
    """All files of /etc/slurm but the keys. One ConfigMap: what is swapped into the pod at once fits together.

    `digest` names the content; `proven` is the same when a scratch Slurm took it, else "". An annotation tells that
    slurmctld uses a slurmdbd.
    """
    metadata = meta(controller_config(cluster.name), cluster.namespace, _own(cluster), owner=owner)
    metadata["annotations"] = {ANNOTATION_CONFIG_DIGEST: digest, ANNOTATION_CONFIG_PROVEN: proven}
    if files.accounting_host:
        metadata["annotations"][ANNOTATION_ACCOUNTING] = files.accounting_host
    made: Object = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": dict(files.text)}
    if files.binary:
        made["binaryData"] = dict(files.binary)
    return made


def services(owner: Object, cluster: Cluster) -> list[Object]:
    """The Service that everyone uses, the headless one that knows unready pods, and with backups one for each pod."""
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
        meta(controller_object(cluster.name), cluster.namespace, {**_own(cluster), LABEL_SCRAPED: "true"}, owner=owner),
        # With backups the label tells which one is at work; without, the Service does not depend on the operator.
        {"type": "ClusterIP", "selector": {**chosen, LABEL_ACTIVE: "true"} if cluster.spec.ha.enabled else chosen},
        cluster.spec.service,
        port_name="slurmctld",
        port=SLURMCTLD_PORT,
    )
    hosts = range(count(cluster.spec)) if cluster.spec.ha.enabled else ()
    return [internal, public, *(_host_service(owner, cluster, index) for index in hosts)]


def _host_service(owner: Object, cluster: Cluster, index: int) -> Object:
    """A name for one slurmctld that resolves while its pod is away.

    Commands look up every SlurmctldHost, and try for minutes one that has no address; a Service without a pod behind
    it refuses at once.
    """
    pod = controller_pod(cluster.name, index)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": meta(pod, cluster.namespace, _own(cluster), owner=owner),
        "spec": {
            "publishNotReadyAddresses": True,
            "selector": {**selector(APP_CONTROLLER, cluster.name), "statefulset.kubernetes.io/pod-name": pod},
            "ports": [{"name": "slurmctld", "port": SLURMCTLD_PORT, "targetPort": SLURMCTLD_PORT, "protocol": "TCP"}],
        },
    }


def disruption_budget(owner: Object, cluster: Cluster) -> Object:
    """A single slurmctld is not evicted in passing: who means it deletes the pod. With backups, one may be."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": meta(controller_object(cluster.name), cluster.namespace, _own(cluster), owner=owner),
        "spec": {
            "maxUnavailable": 1 if cluster.spec.ha.enabled else 0,
            "selector": {"matchLabels": selector(APP_CONTROLLER, cluster.name)},
        },
    }


def count(spec: ControllerSpec) -> int:
    """How many slurmctld pods there are."""
    return 1 + (spec.ha.backups if spec.ha.enabled else 0)


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
            "replicas": count(cluster.spec),
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
    keys = keys_projection(cluster, SLURM_JWKS, SLURM_KEY, JWT_KEY)
    # 0550: scripts run, and nobody else may read the keys. fsGroup gives the files to SlurmUser's group.
    sources = [{"configMap": {"name": controller_config(cluster.name)}}, keys]
    etc = {"name": "etc-slurm", "projected": {"defaultMode": 0o550, "sources": sources}}
    volumes = [etc, {"name": "run", "emptyDir": {"medium": "Memory"}}, {"name": "tmp", "emptyDir": {}}]
    volumes += log_volumes(spec.logfile)
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
    sidecars = log_container(spec.logfile, "slurmctld", spec.slurmctld)
    if spec.inplace_reconfigure:
        sidecars.append(_reconfigure(cluster))
    if sidecars:
        pod["initContainers"] = sidecars
    if spec.ha.enabled:
        pod["shareProcessNamespace"] = True  # the reconfigure container sends signals
        apart = {
            "topologyKey": "kubernetes.io/hostname",
            "labelSelector": {"matchLabels": selector(APP_CONTROLLER, cluster.name)},
        }
        pod["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}}
    return pod


def _slurmctld(cluster: Cluster) -> Map:
    ha, logfile = cluster.spec.ha.enabled, cluster.spec.logfile
    base: Map = {
        "name": "slurmctld",
        "ports": [{"name": "slurmctld", "containerPort": SLURMCTLD_PORT, "protocol": "TCP"}],
        "startupProbe": http_probe("/livez", SLURMCTLD_PORT, period=1, failures=300),
        # A backup is as it should be while it waits, but only the one at work says that it is ready.
        "readinessProbe": http_probe("/livez" if ha else "/readyz", SLURMCTLD_PORT, period=5),
        "livenessProbe": http_probe("/livez", SLURMCTLD_PORT, period=10, failures=6),
        "securityContext": LOCKED_DOWN,
        "volumeMounts": [
            ETC_MOUNT,
            {"name": "statesave", "mountPath": state_location(cluster.namespace, cluster.name, cluster.spec)},
            {"name": "run", "mountPath": "/run"},
            TMP_MOUNT,
            *log_mounts(logfile),
        ],
    }
    if logfile:
        base["args"] = log_arguments(logfile, "slurmctld")
    if ha:
        base["lifecycle"] = {"preStop": {"exec": {"command": ["bash", "-c", HAND_OVER]}}}
    return container(base, cluster.spec.slurmctld, "spec.slurmctld")


def _reconfigure(cluster: Cluster) -> Map:
    """Sidecar that tells slurmctld of a changed configuration. Its image is slurmctld's unless another is named."""
    base: Map = {
        "name": "reconfigure",
        "restartPolicy": "Always",
        "command": ["bash", "-c", RECONFIGURE_HA if cluster.spec.ha.enabled else RECONFIGURE],
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


METRICS_PATHS = ("/metrics/jobs", "/metrics/nodes", "/metrics/partitions", "/metrics/scheduler")


def service_monitor(owner: Object, cluster: Cluster) -> Object:
    """What Prometheus' operator needs to scrape slurmctld; slurmctld takes locks for an answer, so not too often."""
    wanted = cluster.spec.metrics.service_monitor
    given = wanted.endpoints or [MetricEndpoint(path=path) for path in METRICS_PATHS]
    endpoints = [
        {
            "port": "slurmctld",
            "scheme": "http",
            "path": one.path or "/metrics/jobs",
            "interval": one.interval or wanted.interval or "30s",
            "scrapeTimeout": one.scrape_timeout or wanted.scrape_timeout or "25s",
        }
        for one in given
    ]
    user = Metadata(labels=wanted.labels, annotations=wanted.annotations)
    name = controller_object(cluster.name)
    metadata = meta(name, cluster.namespace, _own(cluster), owner=owner, user=user)
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "ServiceMonitor",
        "metadata": metadata,
        "spec": {
            # Both Services have the other labels: scraped through both, everything would be counted twice.
            "selector": {"matchLabels": {**selector(APP_CONTROLLER, cluster.name), LABEL_SCRAPED: "true"}},
            "namespaceSelector": {"matchNames": [cluster.namespace]},
            "endpoints": endpoints,
        },
    }
