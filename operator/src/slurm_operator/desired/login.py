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
from slurm_operator.kube.objects import canonical_hash
from slurm_operator.kube.resources import Object

HOST_KEY_TYPES = ("ed25519", "ecdsa", "rsa")
SSHD_FILE = "sshd.conf"
ROOT_KEYS_FILE = "authorized_keys"
ANNOTATION_SSH_CONFIG_HASH = "slinky.slurm.net/sshd-conf-hash"

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
    """What goes into sshd_config.d, and root's keys."""
    name = owner["metadata"]["name"]
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": meta(login_ssh_config(name), cluster.namespace, _own(name, cluster), owner=owner),
        "data": {
            SSHD_FILE: spec.extra_sshd_config.rstrip("\n") + "\n",
            ROOT_KEYS_FILE: spec.root_ssh_authorized_keys.rstrip("\n") + "\n",
        },
    }


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
    annotations = {
        ANNOTATION_SSH_CONFIG_HASH: canonical_hash([spec.extra_sshd_config, spec.root_ssh_authorized_keys]),
    }
    result: Map = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": meta(name, cluster.namespace, _own(name, cluster), owner=owner),
        "spec": {
            "replicas": spec.replicas,
            "revisionHistoryLimit": 1,
            "selector": {"matchLabels": selector(APP_LOGIN, name)},
            "template": pod_template(_own(name, cluster), _pod(name, spec, cluster), spec.template, annotations),
        },
    }
    if spec.strategy:
        result["spec"]["strategy"] = spec.strategy
    return result


def _pod(name: str, spec: LoginSetSpec, cluster: Cluster) -> Map:
    files = [
        (f"ssh_host_{kind}_key{suffix}", mode)
        for kind in HOST_KEY_TYPES
        for suffix, mode in (("", 0o600), (".pub", 0o644))
    ]
    items = [{"key": file, "path": file, "mode": mode} for file, mode in files]
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "dnsConfig": dns(cluster.worker_domain),
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "initContainers": [_init(spec)],
        "containers": [_login(spec, cluster, [file for file, _ in files])],
        "volumes": [
            {"name": "etc-slurm", "emptyDir": {"medium": "Memory"}},
            {"name": "run-slurm", "emptyDir": {"medium": "Memory"}},
            key_volume("slurm-key", cluster, mode=0o400),
            {"name": "ssh-host-keys", "secret": {"secretName": login_host_keys(name), "items": items}},
            {"name": "ssh-config", "configMap": {"name": login_ssh_config(name), "defaultMode": 0o600}},
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


def _login(spec: LoginSetSpec, cluster: Cluster, host_keys: list[str]) -> Map:
    mounts: list[Map] = [
        {"name": "etc-slurm", "mountPath": ETC_SLURM, "readOnly": True},
        {"name": "run-slurm", "mountPath": RUN_SLURM},
        {
            "name": "ssh-config",
            "mountPath": "/etc/ssh/sshd_config.d/50-loginset.conf",
            "subPath": SSHD_FILE,
            "readOnly": True,
        },
    ]
    mounts += [
        {"name": "ssh-host-keys", "mountPath": f"/etc/ssh/{file}", "subPath": file, "readOnly": True}
        for file in host_keys
    ]
    if spec.root_ssh_authorized_keys.strip():
        mounts.append(
            {
                "name": "ssh-config",
                "mountPath": "/root/.ssh/authorized_keys",
                "subPath": ROOT_KEYS_FILE,
                "readOnly": True,
            }
        )
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
        "volumeMounts": mounts,
    }
    return container(base, spec.login, "spec.login")


def _exec_probe(script: str, *, period: int, failures: int, program: str = "bash") -> Map:
    command = [program, "-c", script]
    return {"exec": {"command": command}, "periodSeconds": period, "failureThreshold": failures, "timeoutSeconds": 5}
