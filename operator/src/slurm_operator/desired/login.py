"""Kubernetes objects of a LoginSet: sshd and sackd."""

from __future__ import annotations

from slurm_operator.api.names import (
    APP_LOGIN,
    ETC_SLURM,
    RUN_SLURM,
    SLURM_JWKS,
    SLURM_KEY,
    SLURM_UID,
    SSH_PORT,
    login_host_keys,
    login_ssh_config,
)
from slurm_operator.api.others import LoginSetSpec
from slurm_operator.desired import sshd
from slurm_operator.desired.parts import (
    Cluster,
    Map,
    container,
    dns,
    key_volume,
    labels,
    meta,
    pod_template,
    selector,
    service,
    tcp_probe,
)
from slurm_operator.kube.resources import Object

# Who is logged in when a pod has to go may finish within this time; the pod goes earlier when nobody is.
GRACE_SECONDS = 600

# A pod that cannot start never takes the place of one that people are logged in to.
NEW_ONE_FIRST: Map = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}

# sshd: its own privilege separation, logins of any user, and port 22.
CAPABILITIES = (
    "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETGID", "SETUID",
    "SYS_CHROOT",
)  # fmt: skip

# sackd runs as SlurmUser and takes no key of somebody else's; an fsGroup would give all of /home to that group.
# It stays and copies again when the keys change: sackd reads them anew at the next reconfigure.
COPY_KEYS = f"""\
umask 077
trap 'exit 0' TERM INT
chmod 755 {ETC_SLURM}
while :; do
  now=$(readlink /mnt/slurm-key/..data)
  if [ "$now" != "${{copied:-}}" ]; then
    for key in {SLURM_JWKS} {SLURM_KEY}; do
      cp "/mnt/slurm-key/$key" "{ETC_SLURM}/$key.new"
      chown {SLURM_UID}:{SLURM_UID} "{ETC_SLURM}/$key.new"
      mv "{ETC_SLURM}/$key.new" "{ETC_SLURM}/$key"
    done
    copied=$now
  fi
  sleep 2 & wait $! || true
done
"""


def pod_selector(name: str) -> str:
    return ",".join(f"{key}={value}" for key, value in selector(APP_LOGIN, name).items())


def _own(name: str, cluster: Cluster) -> dict[str, str]:
    return labels(APP_LOGIN, name, cluster.name, "login")


def ssh_config(owner: Object, spec: LoginSetSpec, cluster: Cluster) -> Object:
    """What goes into sshd_config.d, and root's keys. Raises BadConf for a line that sshd does not know."""
    name = owner["metadata"]["name"]
    return sshd.settings_map(
        owner,
        login_ssh_config(name),
        _own(name, cluster),
        extra=spec.extra_sshd_config,
        where="spec.extraSshdConfig",
        root_keys=spec.root_ssh_authorized_keys,
    )


def login_service(owner: Object, spec: LoginSetSpec, cluster: Cluster) -> Object:
    name = owner["metadata"]["name"]
    return service(
        meta(name, cluster.namespace, _own(name, cluster), owner=owner),
        {"type": "ClusterIP", "selector": selector(APP_LOGIN, name)},
        spec.service,
        port_name="ssh",
        port=SSH_PORT,
    )


def deployment(owner: Object, spec: LoginSetSpec, cluster: Cluster) -> Object:
    """The login pods. Raises InvalidSpec when no image is named."""
    name = owner["metadata"]["name"]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": meta(name, cluster.namespace, _own(name, cluster), owner=owner),
        "spec": {
            "replicas": spec.replicas,
            "revisionHistoryLimit": 1,
            "strategy": spec.strategy or NEW_ONE_FIRST,
            "selector": {"matchLabels": selector(APP_LOGIN, name)},
            "template": pod_template(_own(name, cluster), _pod(name, spec, cluster), spec.template),
        },
    }


def _pod(name: str, spec: LoginSetSpec, cluster: Cluster) -> Map:
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "dnsConfig": dns(cluster.worker_domain),
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "initContainers": [_init(spec)],
        "containers": [_login(spec, cluster)],
        "volumes": [
            {"name": "etc-slurm", "emptyDir": {"medium": "Memory"}},
            {"name": "run-slurm", "emptyDir": {"medium": "Memory"}},
            key_volume("slurm-key", cluster, mode=0o400),
            *sshd.volumes(login_ssh_config(name), login_host_keys(name), spec.sssd_conf_ref),
        ],
    }


def _init(spec: LoginSetSpec) -> Map:
    base: Map = {
        "name": "initconf",
        "restartPolicy": "Always",
        "command": ["/bin/sh", "-ec", COPY_KEYS],
        "startupProbe": _exec_probe(f"test -s {ETC_SLURM}/{SLURM_KEY}", period=1, failures=60, program="/bin/sh"),
        "securityContext": {
            "runAsUser": 0,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"], "add": ["CHOWN", "DAC_OVERRIDE", "FOWNER"]},
        },
        "volumeMounts": [
            {"name": "etc-slurm", "mountPath": ETC_SLURM},
            {"name": "slurm-key", "mountPath": "/mnt/slurm-key", "readOnly": True},
        ],
    }
    for field in ("image", "imagePullPolicy"):
        if spec.login.get(field):
            base[field] = spec.login[field]
    return container(base, spec.initconf, "spec.initconf")


def _login(spec: LoginSetSpec, cluster: Cluster) -> Map:
    ready = f"test -S {RUN_SLURM}/sack.socket && exec 3<>/dev/tcp/127.0.0.1/{SSH_PORT}"
    base: Map = {
        "name": "login",
        "env": [{"name": "SACKD_OPTIONS", "value": f"--conf-server {cluster.conf_server}"}],
        "ports": [{"name": "ssh", "containerPort": SSH_PORT, "protocol": "TCP"}],
        "startupProbe": _exec_probe(ready, period=1, failures=600),
        "readinessProbe": _exec_probe(ready, period=10, failures=3),
        "livenessProbe": tcp_probe(SSH_PORT, period=20, failures=6),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"], "add": list(CAPABILITIES)},
        },
        "volumeMounts": [
            {"name": "etc-slurm", "mountPath": ETC_SLURM, "readOnly": True},
            {"name": "run-slurm", "mountPath": RUN_SLURM},
            *sshd.mounts(spec.sssd_conf_ref),
        ],
    }
    return container(base, spec.login, "spec.login")


def _exec_probe(script: str, *, period: int, failures: int, program: str = "bash") -> Map:
    command = [program, "-c", script]
    return {"exec": {"command": command}, "periodSeconds": period, "failureThreshold": failures, "timeoutSeconds": 5}
