"""Kubernetes objects of a RestApi: slurmrestd."""

from __future__ import annotations

import re

from slurm_operator.api.names import (
    ANNOTATION_CONFIG_HASH,
    APP_RESTAPI,
    NOBODY_UID,
    SLURMRESTD_PORT,
    controller_config,
    restapi_object,
)
from slurm_operator.api.others import RestApiSpec
from slurm_operator.desired.parts import (
    ETC_MOUNT,
    LOCKED_DOWN,
    TMP_MOUNT,
    Cluster,
    Map,
    container,
    dns,
    labels,
    meta,
    pod_template,
    selector,
    service,
    tcp_probe,
)
from slurm_operator.desired.slurm_conf import SLURM_CONF
from slurm_operator.kube.objects import canonical_hash
from slurm_operator.kube.resources import Object

# An answer for 15,000 nodes takes 600 MB of slurmrestd's memory in each worker thread, for good: 4 threads, not 20.
THREADS = 4

# A new NodeSet or partition changes nothing for it.
_READ = re.compile(
    r"(?i)(ClusterName|SlurmctldHost|SlurmctldPort|SlurmctldAddr|Auth|AccountingStorage|MessageTimeout|TLS)"
)


def _own(name: str, cluster: Cluster) -> dict[str, str]:
    return labels(APP_RESTAPI, name, cluster.name, "restapi")


def restapi_service(owner: Object, spec: RestApiSpec, cluster: Cluster) -> Object:
    name = owner["metadata"]["name"]
    return service(
        meta(restapi_object(name), cluster.namespace, _own(name, cluster), owner=owner),
        {"type": "ClusterIP", "selector": selector(APP_RESTAPI, name)},
        spec.service,
        port_name="slurmrestd",
        port=SLURMRESTD_PORT,
    )


def deployment(owner: Object, spec: RestApiSpec, cluster: Cluster, conf: str) -> Object:
    """slurmrestd as nobody, without any key: callers bring their tokens. Raises InvalidSpec when no image is named.

    `conf` is slurm.conf, which slurmrestd reads when it starts.
    """
    name = owner["metadata"]["name"]
    annotations = {ANNOTATION_CONFIG_HASH: canonical_hash(_read(conf))}
    pod = _pod(spec, cluster, accounting="\nAccountingStorageHost=" in conf)
    pod["topologySpreadConstraints"] = [
        {
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "maxSkew": 1,
            "labelSelector": {"matchLabels": selector(APP_RESTAPI, name)},
        }
    ]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": meta(restapi_object(name), cluster.namespace, _own(name, cluster), owner=owner),
        "spec": {
            "replicas": spec.replicas,
            "revisionHistoryLimit": 1,
            # The operator asks Slurm through it: the new one answers before the old one goes.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "selector": {"matchLabels": selector(APP_RESTAPI, name)},
            "template": pod_template(_own(name, cluster), pod, spec.template, annotations),
        },
    }


def _read(conf: str) -> list[str]:
    """The lines that slurmrestd has to know of: where daemons are and how they know each other."""
    return [line for line in conf.splitlines() if _READ.match(line)]


def _pod(spec: RestApiSpec, cluster: Cluster, *, accounting: bool) -> Map:
    conf = {"configMap": {"name": controller_config(cluster.name), "items": [{"key": SLURM_CONF, "path": SLURM_CONF}]}}
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "dnsConfig": dns(),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": NOBODY_UID,
            "runAsGroup": NOBODY_UID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_slurmrestd(spec, accounting=accounting)],
        "volumes": [{"name": "etc-slurm", **conf}, {"name": "tmp", "emptyDir": {}}],
    }


def _slurmrestd(spec: RestApiSpec, *, accounting: bool) -> Map:
    # The accounting plugins end slurmrestd when there is no slurmdbd.
    plugins = [] if accounting else ["-s", "openapi/slurmctld"]
    base = {
        "name": "slurmrestd",
        "args": ["-a", "rest_auth/jwt", "-t", str(THREADS), *plugins],
        "env": [
            {"name": "SLURM_JWT", "value": "daemon"},
            {"name": "SLURMRESTD_SECURITY", "value": "disable_unshare_sysv,disable_unshare_files"},
        ],
        "ports": [{"name": "slurmrestd", "containerPort": SLURMRESTD_PORT, "protocol": "TCP"}],
        "startupProbe": tcp_probe(SLURMRESTD_PORT, period=1, failures=300),
        "readinessProbe": tcp_probe(SLURMRESTD_PORT, period=5),
        "livenessProbe": tcp_probe(SLURMRESTD_PORT, period=20, failures=6),
        "securityContext": LOCKED_DOWN,
        "volumeMounts": [ETC_MOUNT, TMP_MOUNT],
    }
    return container(base, spec.slurmrestd, "spec.slurmrestd")
