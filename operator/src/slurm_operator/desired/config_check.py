"""The pod that shows a configuration to a scratch slurmctld and slurmd before the running ones get it.

Slurm has no option to check its files, and a bad one ends slurmctld or every slurmd. So a pod with the cluster's own
image starts slurmctld on the candidate with an empty state, a key of its own and nobody to talk to: it comes up or says
why not. `slurmd -G` reads gres.conf in the image of a NodeSet. What is adapted for that, and nothing else: the address
of slurmctld, where it keeps state, keys and logs, slurmdbd (not asked), and device files (made up, since the devices
are on other machines).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from slurm_operator.api.names import (
    ANNOTATION_CONFIG_DIGEST,
    APP_CONFIG_CHECK,
    ETC_SLURM,
    JWKS_FILE,
    SLURMCTLD_PORT,
)
from slurm_operator.desired.conf_syntax import Setting
from slurm_operator.desired.parts import (
    LOCKED_DOWN,
    TMP_MOUNT,
    Cluster,
    Map,
    labels,
    meta,
    slurm_pod_security,
)
from slurm_operator.desired.slurm_conf import SLURM_CONF, ConfFiles
from slurm_operator.kube.objects import annotations_of, canonical_hash, owner_reference
from slurm_operator.kube.resources import Object
from slurm_operator.slurm.hostlist import expand

HOST: Final = "config-check"
GRES_CONF: Final = "gres.conf"
# Files beside the candidate's own, for the script that runs slurmd.
CHECK_GRES: Final = "config-check.gres"
CHECK_DEVICES: Final = "config-check.devices"
CHECK_NODE: Final = "config-check.node"
CHECK_CONF: Final = "config-check.conf"
_DEVICES_ROOT = "/tmp/root"  # noqa: S108 - in the pod
_MAX_DEVICES = 4096
_MAX_NODE_LINES = 64
DEADLINE_SECONDS: Final = 120
"""The pod's activeDeadlineSeconds: longer than any image takes to be pulled from nearby."""

# Parameters whose effect would reach beyond the pod, or that need slurmdbd. Their form is seen by the first step.
_DROPPED = frozenset(
    (
        "slurmctldhost", "slurmctldaddr", "slurmctldport", "statesavelocation", "slurmctldpidfile", "slurmctldlogfile",
        "slurmschedlogfile", "slurmctldprimaryonprog", "slurmctldprimaryoffprog", "authaltparameters",
        "accountingstoragetype", "accountingstoragehost", "accountingstoragebackuphost", "accountingstorageport",
        "accountingstoragepass", "accountingstorageuser", "accountingstorageenforce", "accountingstoragetres",
        "priorityweighttres",
    )
)  # fmt: skip
_BILLING = re.compile(r'\s+TRESBillingWeights=("[^"]*"|\S+)', re.IGNORECASE)

_COMMON = """\
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin SLURM_SACK_KEY=/tmp/sack.key
umask 077
mkdir -p /run/slurm /run/slurmctld /run/slurmd /tmp/state
head -c 64 /dev/urandom >/tmp/sack.key
head -c 64 /dev/urandom >/tmp/jwt.key
told() { # what Slurm said of it, for the operator: without times and without what every scratch start says
  sed -E 's/^\\[[^]]*\\] //' /tmp/log | grep -E '^(error|fatal): ' |
    grep -vE 'Domain socket directory|Node configuration differs|local config file|Waiting for gres' | tail -n 6
}
"""

# First the real text, as every command reads it, then the scratch slurmctld. That is asked over HTTP whether it is
# ready; where it does not understand, an open port is enough.
CHECK_SLURMCTLD: Final = (
    _COMMON
    + f"""\
if ! SLURM_CONF={ETC_SLURM}/{CHECK_CONF} scontrol show hostnames a >/tmp/log 2>&1; then
  sed -i 's/^scontrol: //' /tmp/log; cat /tmp/log; told >/dev/termination-log; exit 1
fi
slurmctld -D >/tmp/log 2>&1 &
ready() {{
  exec 3<>/dev/tcp/127.0.0.1/{SLURMCTLD_PORT} || return 1
  printf 'GET /readyz HTTP/1.1\\r\\nHost: check\\r\\nConnection: close\\r\\n\\r\\n' >&3
  local answer=; read -r -t 2 answer <&3; exec 3>&-
  case $answer in HTTP/*" 5"*) return 1 ;; esac
}}
for _ in $(seq 600); do
  if ! kill -0 $! 2>/dev/null; then
    cat /tmp/log; told >/dev/termination-log; exit 1
  fi
  if ready 2>/dev/null; then sleep 0.2; kill -0 $! 2>/dev/null && exit 0; fi
  sleep 0.05
done
cat /tmp/log; exit 2
"""
)

CHECK_SLURMD: Final = (
    _COMMON
    + f"""\
mkdir -p /tmp/slurm {_DEVICES_ROOT}
cp -rL {ETC_SLURM}/. /tmp/slurm/ && chmod -R u+rwX /tmp/slurm && cd /tmp/slurm
while read -r device; do mkdir -p "{_DEVICES_ROOT}${{device%/*}}" && : >"{_DEVICES_ROOT}$device"; done <{CHECK_DEVICES}
cat {CHECK_NODE} >>slurm.conf
# Its keys are slurmctld's to check; which plugin works is decided by the machine, and this one is not the worker's.
echo CgroupPlugin=disabled >cgroup.conf
for gres in {CHECK_GRES}.*; do
  cp "$gres" {GRES_CONF}
  timeout 60 slurmd -G -N {HOST} -f /tmp/slurm/slurm.conf >/tmp/log 2>&1 && continue
  cat /tmp/log; grep -q 'fatal: ' /tmp/log || exit 2
  told >/dev/termination-log; exit 1
done
"""
)


@dataclass(frozen=True)
class Verdict:
    """What a check found. `pending`: not done; `stuck`: it could not be done; messages are Slurm's or Kubernetes'."""

    state: Literal["good", "refused", "pending", "stuck"]
    message: str = ""


def digest(files: ConfFiles, worker_image: str) -> str:
    """Names a candidate: the same content was checked by the same images, once is enough."""
    return canonical_hash([files.text, files.binary, bool(worker_image)])


def check_name(cluster: Cluster, name: str) -> str:
    """Of the pod and its ConfigMap; `name` is the digest."""
    return f"{cluster.name}-config-check-{name[:8]}"


def candidate(pod: Object, cluster: Cluster, files: ConfFiles) -> Object:
    """ConfigMap with the candidate as the scratch daemons read it. It goes with the pod."""
    name, namespace = pod["metadata"]["name"], cluster.namespace
    made: Object = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {**meta(name, namespace, _own(cluster), owner=None), "ownerReferences": [owner_reference(pod)]},
        "data": scratch_files(files),
    }
    if files.binary:
        made["binaryData"] = dict(files.binary)
    return made


def scratch_files(files: ConfFiles) -> dict[str, str]:
    """The files of a candidate, changed as the module's docstring says."""
    jwks = f",jwks={ETC_SLURM}/{JWKS_FILE}" if JWKS_FILE in files.text else ""
    kept = [_BILLING.sub("", line) for line in files.text[SLURM_CONF].splitlines() if _key(line) not in _DROPPED]
    adapted = [
        Setting("SlurmctldHost", f"{HOST}(127.0.0.1)"),
        Setting("SlurmctldPort", str(SLURMCTLD_PORT)),
        Setting("StateSaveLocation", "/tmp/state"),  # noqa: S108 - in the pod
        Setting("SlurmctldPidFile", "/tmp/slurmctld.pid"),  # noqa: S108
        Setting("AuthAltParameters", f"jwt_key=/tmp/jwt.key{jwks}"),
    ]
    gres, devices = made_up_devices(files.text.get(GRES_CONF, ""))
    types = next((line.split("=", 1)[1] for line in reversed(kept) if _key(line) == "grestypes"), "")
    amounts = ",".join(f"{kind}:1" for kind in types.strip('"').split(",") if kind)
    node = f"NodeName={HOST} CPUs=1 State=UNKNOWN{f' Gres={amounts}' if amounts else ''}\n"
    return {
        **files.text,
        SLURM_CONF: "\n".join([*kept, *map(str, adapted), ""]),
        CHECK_CONF: files.text[SLURM_CONF],
        **{f"{CHECK_GRES}.{number}": text for number, text in enumerate(as_nodes_read(gres))},
        CHECK_DEVICES: "".join(f"{device}\n" for device in devices),
        CHECK_NODE: node,
    }


def _key(line: str) -> str:
    return line.split("=", 1)[0].strip().lower()


_FILE = re.compile(r"\b((?:Multiple)?Files?)\s*=\s*(/[^\s#]*)", re.IGNORECASE)


def made_up_devices(gres: str) -> tuple[str, list[str]]:
    """gres.conf with its File= below a directory of the pod, and the files to make there.

    slurmd waits for a device that is missing, and then refuses the line; the worker has it, this pod has not.
    """
    devices: list[str] = []

    def moved(match: re.Match[str]) -> str:
        try:
            names = expand(match[2])
        except ValueError:
            return match[0]  # Slurm says what is wrong with it
        devices.extend(names)
        return f"{match[1]}={_DEVICES_ROOT}{match[2]}"

    text = "\n".join(line if line.lstrip().startswith("#") else _FILE.sub(moved, line) for line in gres.splitlines())
    return f"{text}\n", list(dict.fromkeys(devices))[:_MAX_DEVICES]


_NODES = re.compile(r"^\s*NodeName\s*=\s*(\S+)", re.IGNORECASE | re.MULTILINE)


def as_nodes_read(gres: str) -> list[str]:
    """gres.conf as it is, and once for each of its NodeName= as if the node of the check were meant by that.

    slurmd looks closely only at the lines for its own node.
    """
    meant = list(dict.fromkeys(match[1] for match in _NODES.finditer(gres)))[:_MAX_NODE_LINES]

    def for_us(wanted: str) -> str:
        return _NODES.sub(lambda match: f"NodeName={HOST}" if match[1] == wanted else match[0], gres)

    return [gres, *map(for_us, meant)]


def check_pod(owner: Object, cluster: Cluster, name: str, worker: Mapping[str, Any]) -> Object:
    """The pod; `worker` is the slurmd container of a NodeSet (empty: there is none, and gres.conf has no reader)."""
    containers = [_container("slurmctld", cluster.spec.slurmctld, CHECK_SLURMCTLD)]
    if worker.get("image"):
        containers.append(_container("slurmd", worker, CHECK_SLURMD))
    template = cluster.spec.template.spec
    wanted = ("imagePullSecrets", "nodeSelector", "tolerations", "priorityClassName", "runtimeClassName")
    own = check_name(cluster, name)
    metadata = meta(own, cluster.namespace, _own(cluster), owner=owner)
    metadata["annotations"] = {ANNOTATION_CONFIG_DIGEST: name}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {
            **{field: template[field] for field in wanted if template.get(field)},
            "hostname": HOST,
            "restartPolicy": "Never",
            "activeDeadlineSeconds": DEADLINE_SECONDS,
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": slurm_pod_security(),
            "containers": containers,
            "volumes": [
                {"name": "etc-slurm", "configMap": {"name": own, "defaultMode": 0o555}},
                *({"name": f"{place}-{one['name']}", "emptyDir": {}} for place in ("run", "tmp") for one in containers),
            ],
        },
    }


def _container(name: str, like: Mapping[str, Any], script: str) -> Map:
    made: Map = {
        "name": name,
        "image": like.get("image"),
        "command": ["bash", "-c", script],
        "securityContext": LOCKED_DOWN,
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}},
        "volumeMounts": [
            {"name": "etc-slurm", "mountPath": ETC_SLURM, "readOnly": True},
            {"name": f"run-{name}", "mountPath": "/run"},
            {**TMP_MOUNT, "name": f"tmp-{name}"},
        ],
    }
    if like.get("imagePullPolicy"):
        made["imagePullPolicy"] = like["imagePullPolicy"]
    return made


def _own(cluster: Cluster) -> dict[str, str]:
    return labels(APP_CONFIG_CHECK, cluster.name, cluster.name, "config-check")


def digest_of(pod: Object) -> str:
    return annotations_of(pod).get(ANNOTATION_CONFIG_DIGEST, "")


def verdict(pod: Object, problem: str) -> Verdict:
    """What the pod found; `problem` is why it does not get on, if it does not (desired.status.pod_problem)."""
    status = pod.get("status") or {}
    ended = {one["name"]: (one.get("state") or {}).get("terminated") for one in status.get("containerStatuses") or ()}
    refused = [
        f"{name}: {_sentence(str(end.get('message') or 'it ended without a word'))}"
        for name, end in ended.items()
        if end and end.get("exitCode") == 1
    ]
    if refused:  # what slurmctld refuses, slurmd does for the same reason
        return Verdict("refused", refused[0])
    broken = [
        f"{name} ended with exit code {end.get('exitCode')} ({end.get('reason', 'Error')})"
        for name, end in ended.items()
        if end and end.get("exitCode")
    ]
    if broken or status.get("phase") == "Failed":
        return Verdict("stuck", "; ".join(broken) or problem or "the pod failed")
    if ended and all(ended.values()):
        return Verdict("good")
    return Verdict("stuck" if problem else "pending", problem)


def _sentence(text: str) -> str:
    """Slurm's lines as one, each said once."""
    return " / ".join(dict.fromkeys(line.strip() for line in text.splitlines() if line.strip()))


def clashing(names: Iterable[str]) -> list[str]:
    """Names of the user's files that the check needs for itself."""
    return sorted(name for name in names if name.startswith(f"{HOST}."))
