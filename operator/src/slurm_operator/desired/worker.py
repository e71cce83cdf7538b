"""Worker pods of a NodeSet, and what all workers of a cluster share: a headless Service and a disruption budget."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from slurm_operator.api.load import InvalidSpec
from slurm_operator.api.names import (
    ANNOTATION_MACHINE,
    APP_WORKER,
    ETC_SLURM,
    LABEL_CLUSTER,
    LABEL_NAME,
    LABEL_POD_HOSTNAME,
    LABEL_POD_INDEX,
    LABEL_POD_NAME,
    LABEL_POD_PROTECT,
    LABEL_REVISION,
    LABEL_SCALING_MODE,
    RUN_SLURM,
    SLURMD_PORT,
    TAINT_WORKER,
    worker_host_keys,
    worker_ssh_config,
    workers_pdb,
    workers_service,
)
from slurm_operator.api.nodeset import NodeSetSpec
from slurm_operator.desired import sshd
from slurm_operator.desired.claims import template_names, volumes
from slurm_operator.desired.conf_syntax import BadConf, Setting, check_node, parse
from slurm_operator.desired.parts import (
    Cluster,
    Map,
    container,
    dns,
    http_probe,
    key_volume,
    labels,
    log_arguments,
    log_container,
    log_mounts,
    log_volumes,
    meta,
    pod_template,
    quantity,
    selector,
)
from slurm_operator.kube.objects import canonical_hash, owner_reference
from slurm_operator.kube.resources import Object
from slurm_operator.slurm.states import PREFIX

# What slurmd needs to start tasks as their users, and no more (proved with Slurm 26.05).
CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID")

# Jobs of a worker that ends are over: DOWN lets Slurm requeue them at once instead of after SlurmdTimeout. The reason
# of a drain is kept word for word, whoever set it: a node that comes back is drained as it was. (Slurm shows it as
# `Reason=bad dimm [slot 3] [root@2026-11-21T13:14:00] Comment=…`.) A pod that was deleted by force ends after its
# successor has begun: a node that is at another address by now is not ours to take down.
PRE_STOP = r"""
node=$(hostname)
shown=$(timeout 5 scontrol --oneliner show node "$node" 2>/dev/null) || exit 0
address=${shown#* NodeAddr=}; address=${address%% *}; own=$(hostname -I 2>/dev/null) || own=
case $address in *[.:]*) case " ${own:-$address} " in *" $address "*) ;; *) exit 0 ;; esac ;; esac
state=${shown#*State=}; state=${state%% *}
case $shown in *\ Reason=*) reason=${shown#* Reason=}; reason=${reason% \[*@20[0-9][0-9]-*} ;; *) reason= ;; esac
case $state in *DRAIN*) ;; *) reason= ;; esac
timeout 5 scontrol update "NodeName=$node" State=DOWN "Reason=${reason:-slurm-operator: Pod is terminating}" || true
"""

# Kubernetes gives DaemonSet pods the same: what a machine goes through passes by, and a cordon is for Slurm to heed.
DAEMON_TOLERATIONS = (
    *({"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute"}
      for key in ("not-ready", "unreachable")),
    *({"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoSchedule"}
      for key in ("disk-pressure", "memory-pressure", "pid-pressure", "unschedulable")),
)  # fmt: skip
HOST_NETWORK_TOLERATION = {
    "key": "node.kubernetes.io/network-unavailable", "operator": "Exists", "effect": "NoSchedule",
}  # fmt: skip
# Labels that a chart's own version writes; they say nothing about the worker.
CHART_LABELS = ("helm.sh/chart", "app.kubernetes.io/version")

_HOSTNAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
_MAX_HOSTNAME = 63


@dataclass(frozen=True)
class Seat:
    """The name of a worker and where it may run."""

    pod: str
    slurm_name: str
    """"" with hostNetwork in scalingMode StatefulSet: it is known when the pod is placed."""
    index: str = ""
    """The ordinal as text; "" in scalingMode DaemonSet."""
    machine: str = ""
    """The only Kubernetes node it may run on; "" for any."""
    drained: bool = False
    """It registers drained: Slurm is to be told something about its machine before the first job."""

    @property
    def suffix(self) -> str:
        """Last part of the names of its claims."""
        return self.index or self.slurm_name


def group_name(name: str, spec: NodeSetSpec) -> str:
    """The NodeSet's name in Slurm: node feature, Slurm NodeSet and partition."""
    return str(spec.template.spec.get("hostname") or name).rstrip("-")


def host_prefix(name: str, spec: NodeSetSpec) -> str:
    """What comes before the number in the name of a Slurm node."""
    return str(spec.template.spec.get("hostname") or f"{name}-")


def ordinal_text(ordinal: int, spec: NodeSetSpec) -> str:
    return str(ordinal).zfill(spec.ordinal_padding)


def numbered(name: str, spec: NodeSetSpec, ordinal: int, machine: str = "") -> Seat:
    """Seat of a worker in scalingMode StatefulSet. Raises InvalidSpec where the name is no host name."""
    index = ordinal_text(ordinal, spec)
    hostname = f"{host_prefix(name, spec)}{index}"
    if not _HOSTNAME.match(hostname) or len(hostname) > _MAX_HOSTNAME:
        raise InvalidSpec(f"spec.template.spec.hostname: {hostname!r} is no host name ({_MAX_HOSTNAME} characters)")
    return Seat(f"{name}-{index}", "" if host_network(spec) else hostname, index, machine)


def on_machine(name: str, machine: str, slurm_name: str) -> Seat:
    """Seat of the worker of a Kubernetes node in scalingMode DaemonSet."""
    pod = f"{name}-{slurm_name}"
    if len(pod) > _MAX_HOSTNAME:  # it is the value of a label, too
        digest = hashlib.sha256(pod.encode()).hexdigest()[:10]
        pod = f"{pod[: _MAX_HOSTNAME - 11].rstrip('-')}-{digest}"
    return Seat(pod, slurm_name, machine=machine)


def host_network(spec: NodeSetSpec) -> bool:
    """The pod has the host name of its machine."""
    return bool(spec.template.spec.get("hostNetwork"))


def short_name(machine: str) -> str:
    """Slurm's name of a Kubernetes node: up to the first dot, as slurmd names itself."""
    return machine.split(".", 1)[0]


def ordinal_of(node: str, name: str, spec: NodeSetSpec) -> int | None:
    """The number in the name of a Slurm node of this NodeSet; None if the name is not one of its names."""
    prefix = host_prefix(name, spec)
    digits = node.removeprefix(prefix)
    if node == digits or not digits.isascii() or not digits.isdigit():
        return None
    ordinal = int(digits)
    return ordinal if ordinal_text(ordinal, spec) == digits else None


def pod_selector(name: str) -> str:
    """Label selector of a NodeSet's pods as text, for autoscalers."""
    return ",".join(f"{key}={value}" for key, value in selector(APP_WORKER, name).items())


def revision(name: str, spec: NodeSetSpec, cluster: Cluster) -> str:
    """Hash of what users say about a worker, and of what it is told about its cluster: another one rolls the workers.

    What the operator itself adds is left out: a new version of it must not drain every worker. So are the labels in
    which charts write their version.
    """
    return canonical_hash([revision_data(spec), cluster.conf_server, msgspec.to_builtins(cluster.slurm_key), name])[:10]


def revision_data(spec: NodeSetSpec) -> Map:
    """The fields that workers are made of. One that says nothing is left out, so that new fields change no hash."""
    everything: Map = msgspec.to_builtins(spec)
    kept = ("template", "slurmd", "logfile", "extraConf", "ordinalPadding", "oversubscribeNode")
    data = {field: everything[field] for field in kept}
    if spec.ssh.enabled:  # its settings are taken over by the running workers
        data["ssh"] = {"sssdConfRef": everything["ssh"]["sssdConfRef"]}
    data["template"]["metadata"]["labels"] = {
        key: value for key, value in spec.template.metadata.labels.items() if key not in CHART_LABELS
    }
    data["volumes"] = template_names(spec)
    return {field: value for field, value in data.items() if value}


def worker(owner: Object, spec: NodeSetSpec, cluster: Cluster, seat: Seat) -> Object:
    """The pod of one worker. Raises InvalidSpec where no valid pod can be made."""
    name, namespace = owner["metadata"]["name"], owner["metadata"]["namespace"]
    pod = template(name, spec, cluster, drained=seat.drained)
    own = {
        LABEL_POD_NAME: seat.pod,
        LABEL_POD_INDEX: seat.index,
        LABEL_POD_HOSTNAME: seat.slurm_name,
        LABEL_REVISION: revision(name, spec, cluster),
    }
    pod["metadata"]["labels"] |= {label: value for label, value in own.items() if value}
    pod["metadata"] |= {"name": seat.pod, "namespace": namespace, "ownerReferences": [owner_reference(owner)]}
    if seat.machine:
        pod["metadata"].setdefault("annotations", {})[ANNOTATION_MACHINE] = seat.machine
        _pin(pod["spec"], seat.machine, alone=spec.scaling_mode == "DaemonSet")
    if seat.slurm_name:
        pod["spec"]["hostname"] = seat.slurm_name
    claimed = volumes(name, spec, seat.suffix)
    taken = {volume["name"] for volume in claimed}
    pod["spec"]["volumes"] = [*(one for one in pod["spec"]["volumes"] if one["name"] not in taken), *claimed]
    return {"apiVersion": "v1", "kind": "Pod", **pod}


def _pin(pod: Map, machine: str, *, alone: bool) -> None:
    """Required node affinity to one machine: `alone` in place of the user's terms (they hold for it), else on top."""
    pin = {"key": "metadata.name", "operator": "In", "values": [machine]}
    affinity = pod.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms = [] if alone else required.get("nodeSelectorTerms") or []
    affinity["requiredDuringSchedulingIgnoredDuringExecution"] = {
        "nodeSelectorTerms": [{**term, "matchFields": [*(term.get("matchFields") or []), pin]} for term in terms]
        or [{"matchFields": [pin]}]
    }


def cluster_service(controller: Object, cluster: Cluster) -> Object:
    """Names for all workers of the cluster, before they are ready too: slurmctld talks to them first."""
    own = {LABEL_NAME: APP_WORKER, LABEL_CLUSTER: cluster.name}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": meta(workers_service(cluster.name), cluster.namespace, own, owner=controller),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": own,
            "ports": [{"name": "slurmd", "port": SLURMD_PORT, "targetPort": SLURMD_PORT, "protocol": "TCP"}],
        },
    }


def cluster_budget(controller: Object, cluster: Cluster) -> Object:
    """No worker that runs a job may be evicted: such pods carry the label `pod-protect`."""
    own = {LABEL_NAME: APP_WORKER, LABEL_CLUSTER: cluster.name}
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": meta(workers_pdb(cluster.name), cluster.namespace, own, owner=controller),
        "spec": {
            "maxUnavailable": 0,
            "selector": {"matchLabels": {LABEL_CLUSTER: cluster.name, LABEL_POD_PROTECT: "true"}},
        },
    }


def node_conf(name: str, spec: NodeSetSpec, *, drained: bool = False) -> str:
    """Value of slurmd's --conf. Raises BadConf, naming the field.

    `drained`: how the node begins; Slurm reads that when it makes the record, and not when slurmd is restarted.
    """
    settings = [setting for line in parse(spec.extra_conf, "spec.extraConf") for setting in line.settings]
    check_node(settings, "spec.extraConf")
    features = [group_name(name, spec)]
    others: dict[str, Setting] = {}
    for setting in settings:
        if setting.name in ("feature", "features"):
            features += setting.value.strip('"').split(",")
        elif setting.name in ("nodename", "state", "reason"):
            raise BadConf(f"spec.extraConf: {setting.key} is not for slurmd --conf")
        else:
            others[setting.name] = setting
    unique = list(dict.fromkeys(feature for feature in features if feature))
    state = [f'State=DRAIN Reason="{PREFIX}Pod is starting"'] if drained else []
    return " ".join([f"Features={','.join(unique)}", *(str(others[key]) for key in sorted(others)), *state])


def template(name: str, spec: NodeSetSpec, cluster: Cluster, *, drained: bool = False) -> Map:
    """metadata and spec of a worker pod, without what is one worker's own; `drained` as in Seat."""
    own = labels(APP_WORKER, name, cluster.name, "worker") | {LABEL_SCALING_MODE: spec.scaling_mode}
    base: Map = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        # After preStop a worker has nothing to save; slurmd would wait half a minute for a slurmctld that is gone.
        "terminationGracePeriodSeconds": 15,
        "subdomain": workers_service(cluster.name),
        "dnsConfig": dns(cluster.worker_domain),
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [_slurmd(name, spec, cluster, drained=drained)],
        "tolerations": [{"key": TAINT_WORKER, "operator": "Exists", "effect": "NoExecute"}],
        "volumes": [
            key_volume("etc-slurm", cluster, mode=0o400),
            # slurmd wants this to be root's own; in an image it may be SlurmUser's.
            {"name": "run-slurm", "emptyDir": {"medium": "Memory"}},
            # The container runtime's own /dev/shm has 64 MiB: too little for NCCL and data loaders.
            {"name": "dshm", "emptyDir": {"medium": "Memory"}},
            *log_volumes(spec.logfile),
        ],
    }
    if sidecar := log_container(spec.logfile, "slurmd", spec.slurmd):
        base["initContainers"] = sidecar
    if spec.ssh.enabled:
        base["volumes"] += sshd.volumes(worker_ssh_config(name), worker_host_keys(name), spec.ssh.sssd_conf_ref)
    if spec.scaling_mode == "DaemonSet":
        base["tolerations"] += [*DAEMON_TOLERATIONS, *([HOST_NETWORK_TOLERATION] if host_network(spec) else [])]
    if host_network(spec):
        base["dnsPolicy"] = "ClusterFirstWithHostNet"
    if not spec.oversubscribe_node:
        term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {LABEL_NAME: APP_WORKER}}}
        base["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    made = pod_template(own, base, spec.template)
    made["spec"].pop("hostname", None)  # a prefix there, see host_prefix
    _keep_apart(made["spec"], base)
    return made


def _keep_apart(pod: Map, base: Map) -> None:
    """A user's own anti-affinity comes on top of ours, not in its place: lists in `affinity` would be replaced."""
    ours = _terms(base)
    theirs = _terms(pod)
    if ours and theirs is not ours:
        rules = pod["affinity"].setdefault("podAntiAffinity", {})
        rules["requiredDuringSchedulingIgnoredDuringExecution"] = [
            *ours, *(term for term in theirs if term not in ours)
        ]  # fmt: skip


def _terms(pod: Map) -> list[Map]:
    anti = ((pod.get("affinity") or {}).get("podAntiAffinity") or {}) if pod.get("affinity") else {}
    return list(anti.get("requiredDuringSchedulingIgnoredDuringExecution") or [])


def _slurmd(name: str, spec: NodeSetSpec, cluster: Cluster, *, drained: bool) -> Map:
    cpus, memory = limits(spec)
    base: Map = {
        "name": "slurmd",
        # Quoted for a shell: images that join their arguments and images that do not both understand it.
        "args": [
            "-Z",
            "--conf-server",
            cluster.conf_server,
            *log_arguments(spec.logfile, "slurmd"),
            "--conf",
            f"'{node_conf(name, spec, drained=drained)}'",
        ],
        "env": [{"name": "POD_CPUS", "value": str(cpus)}, {"name": "POD_MEMORY", "value": str(memory)}],
        "ports": [{"name": "slurmd", "containerPort": SLURMD_PORT, "protocol": "TCP"}],
        "startupProbe": http_probe("/livez", SLURMD_PORT, period=1, failures=600),
        "readinessProbe": http_probe("/readyz", SLURMD_PORT, period=5),
        "livenessProbe": http_probe("/livez", SLURMD_PORT, period=10, failures=6),
        "lifecycle": {"preStop": {"exec": {"command": ["/bin/sh", "-c", PRE_STOP]}}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"], "add": list(CAPABILITIES)},
        },
        "volumeMounts": [
            {"name": "etc-slurm", "mountPath": ETC_SLURM, "readOnly": True},
            {"name": "run-slurm", "mountPath": RUN_SLURM},
            {"name": "dshm", "mountPath": "/dev/shm"},  # noqa: S108 - the mount point of shared memory
            *log_mounts(spec.logfile),
        ],
    }
    if spec.ssh.enabled:
        sshd.add_to(base, spec.ssh.sssd_conf_ref)
    return container(base, spec.slurmd, "spec.slurmd")


def limits(spec: NodeSetSpec) -> tuple[int, int]:
    """CPUs and MiB that the pod may use, from the container's limits or else the pod's; 0 where there is no limit."""

    def given() -> Iterable[tuple[str, Map]]:
        yield "spec.template.spec.resources.limits", (spec.template.spec.get("resources") or {}).get("limits") or {}
        yield "spec.slurmd.resources.limits", (spec.slurmd.get("resources") or {}).get("limits") or {}

    cpus = memory = 0
    for where, values in given():
        if values.get("cpu"):
            cpus = max(1, math.floor(quantity(values["cpu"], f"{where}.cpu")))
        if values.get("memory"):
            memory = math.floor(quantity(values["memory"], f"{where}.memory") / 2**20)
    return cpus, memory
