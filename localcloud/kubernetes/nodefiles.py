"""The files that a node's programs read: pure functions from a node to text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from localcloud.kubernetes.specs import NodeSpec
from localcloud.paths import Instance

PAUSE_IMAGE = "slipway.local/pause:1"
"""The container that holds a pod's namespaces. It is in every node's image store from the start."""

SHARED_HOME = "/mnt/home"
"""Where every node mounts the one directory that stands in for a shared file system of home directories."""


@dataclass(frozen=True)
class Node:
    """A node of an instance: what it is to be, its number (1-200, gives its addresses), whether it is switched off."""

    inst: Instance
    spec: NodeSpec
    index: int
    stopped: bool = False

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def home(self) -> Path:
        """Its directory in the state: files below, and var/, which it sees as /var."""
        return self.inst.state / "nodes" / self.name

    @property
    def group(self) -> str:
        return f"{self.inst.cgroup}/n{self.index}"

    @property
    def address(self) -> str:
        return str(self.inst.node_ip(self.index))

    def log(self, program: str) -> Path:
        return self.inst.run / f"{self.name}-{program}.log"


def files(node: Node, visible: tuple[Path, ...], hybrid: bool) -> dict[str, str]:
    """All files of a node: path below its home -> text.

    visible: directories of the host below /var that the node must see at the same place.
    hybrid: whether controllers are mounted as cgroup v1 beside a cgroup2 hierarchy.
    """
    return {
        "containerd.toml": _containerd(node),
        "registries/_default/hosts.toml": _registry(node),
        "cni/10-pods.conflist": json.dumps(_pod_network(node), indent=1) + "\n",
        "kubelet.yaml": yaml.safe_dump(_kubelet(node), sort_keys=False),
        "kube-proxy.yaml": yaml.safe_dump(_kube_proxy(node), sort_keys=False),
        "resolv.conf": "",
        "init.sh": _init(node, visible, hybrid),
    }


def _containerd(node: Node) -> str:
    return f"""version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
oom_score = 0
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  # Lower scores than one's own need CAP_SYS_RESOURCE, which a container or sandbox may lack.
  restrict_oom_score_adj = true
  disable_tcp_service = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "{node.home}/registries"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{node.home}/cni"
"""


def _registry(node: Node) -> str:
    """Every image, whatever registry its name begins with, comes from the one that stands in for ECR."""
    address = f"http://{node.inst.registry}"
    return f'server = "{address}"\n[host."{address}"]\n  capabilities = ["pull", "resolve"]\n'


def _pod_network(node: Node) -> dict[str, Any]:
    """Routed, one veth pair per pod, as the VPC CNI of EKS does it: no bridge in the node, no NAT between pods."""
    ipam = {
        "type": "host-local",
        "dataDir": "/run/cni-addresses",  # gone after a restart, as the pods are
        "ranges": [[{"subnet": str(node.inst.node_pods(node.index))}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    return {
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [
            {"type": "ptp", "ipMasq": False, "mtu": 1500, "ipam": ipam},
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ],
    }


def _kubelet(node: Node) -> dict[str, Any]:
    pki = node.inst.state / "pki"
    never = dict.fromkeys(
        ("memory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available", "imagefs.inodesFree"), "0%"
    )
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True, "cacheTTL": "2m"},
            "x509": {"clientCAFile": f"{pki}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": f"{pki}/node-{node.name}.crt",
        "tlsPrivateKeyFile": f"{pki}/node-{node.name}.key",
        "address": "0.0.0.0",  # noqa: S104  (of the node's own network namespace)
        "port": 10250,
        "healthzPort": 10248,
        "clusterDomain": "cluster.local",
        "clusterDNS": [str(node.inst.dns_ip)],
        "resolvConf": f"{node.home}/resolv.conf",
        "registerNode": True,
        "registerWithTaints": [taint.as_json() for taint in node.spec.taints],
        **({"providerID": node.spec.provider_id} if node.spec.provider_id else {}),
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": node.group,
        "cgroupsPerQOS": True,
        "enforceNodeAllocatable": [],
        "protectKernelDefaults": False,
        "oomScoreAdj": 0,
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,  # for kube-proxy's iptables mode only
        # All nodes share one disk and one memory: a full one would make each of them throw its pods out.
        "evictionHard": never,
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "maxPods": node.spec.max_pods,
        "serializeImagePulls": False,
        "maxParallelImagePulls": 4,
        # A dead node is noticed after 16 s (controller manager), so it must report more often than that.
        "nodeStatusUpdateFrequency": "4s",
        "nodeLeaseDurationSeconds": 12,
        "syncFrequency": "10s",
        "rotateCertificates": False,
        "serverTLSBootstrap": False,
        "containerLogMaxSize": "10Mi",
    }


def _kube_proxy(node: Node) -> dict[str, Any]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": f"{node.inst.state}/pki/kube-proxy.kubeconfig"},
        "mode": "nftables",
        "hostnameOverride": node.name,
        "clusterCIDR": str(node.inst.pod_network),
        "oomScoreAdj": 0,
        "bindAddress": "0.0.0.0",  # noqa: S104
        "healthzBindAddress": "0.0.0.0:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        # These limits of the kernel belong to the host's namespace: not writable from here.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "nftables": {"syncPeriod": "30s", "minSyncPeriod": "100ms"},
    }


def _init(node: Node, visible: tuple[Path, ...], hybrid: bool) -> str:
    """What the node's first process does in its new namespaces before it becomes the program given to it."""
    own = f"{node.home}/var"
    binds = "".join(f"mount --rbind '{path}' '{own}{path.as_posix().removeprefix('/var')}'\n" for path in visible)
    # The programs in a node would take a second hierarchy for a sign that they may use it.
    drop = "umount -l /sys/fs/cgroup/unified\n" if hybrid else ""
    return f"""set -e
hostname '{node.name}'
mount --make-rprivate /
{binds}mount -t tmpfs -o mode=755 tmpfs /mnt
mkdir {SHARED_HOME}
mount --bind '{node.inst.state}/home' {SHARED_HOME}
mount --rbind '{own}' /var
mount -t proc proc /proc
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/lock /run/netns /run/cgroup
mount --rbind /sys/fs/cgroup /run/cgroup
mount -t sysfs sysfs /sys
mount --rbind /run/cgroup /sys/fs/cgroup
umount -l /run/cgroup
rmdir /run/cgroup
{drop}mount --make-rshared /
cd /proc/sys/net/ipv4
echo 1 >ip_forward
echo 0 >conf/all/rp_filter
echo 0 >conf/default/rp_filter
echo 1 >conf/all/route_localnet
echo 1 >conf/default/proxy_arp
cd /
exec "$@"
"""
