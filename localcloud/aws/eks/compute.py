"""Where the clusters and nodes of the EKS stand-in come from: the local control plane and its nodes."""

from __future__ import annotations

import base64
import shutil
import threading
import time
from dataclasses import dataclass

from localcloud.aws.kube import Object, connect, node_path, node_ready
from localcloud.kubernetes import cluster, controlplane
from localcloud.kubernetes.errors import ClusterError, Log
from localcloud.kubernetes.locks import hold
from localcloud.kubernetes.specs import NodeSpec, Taint
from localcloud.paths import instance
from localcloud.tools import ensure_tools

NODE_LABEL = "eks.amazonaws.com/nodegroup"


@dataclass(frozen=True)
class NodeOrder:
    """A node as a node group wants it. taints: (key, value, effect) in Kubernetes' words."""

    name: str
    labels: dict[str, str]
    taints: tuple[tuple[str, str, str], ...]
    instance_type: str
    zone: str
    provider_id: str


class LocalCompute:
    """The cluster that this instance runs itself."""

    def start(self, log: Log) -> None:
        """Returns when the API server is ready. Raises ClusterError."""
        cluster.start_control_plane(log)

    def endpoint(self) -> str:
        return cluster.endpoint()

    def ca_data(self) -> str:
        """The certificate authority as EKS gives it: PEM in base64."""
        return base64.b64encode(cluster.ca_data()).decode()

    def add_node(self, order: NodeOrder) -> None:
        """Start a node, or make it as described if it exists. Raises ClusterError."""
        cluster.add_node(
            NodeSpec(
                name=order.name,
                labels=order.labels,
                taints=tuple(Taint(*taint) for taint in order.taints),
                instance_type=order.instance_type,
                zone=order.zone,
                provider_id=order.provider_id,
            )
        )

    def remove_node(self, name: str) -> None:
        cluster.remove_node(name)

    def wipe(self, log: Log) -> None:
        """End the control plane and delete what it stored, so that a new cluster is empty."""
        inst = instance()
        with cluster.using(inst, log), hold(inst.run / "control-plane.lock", log=log, what="the control plane"):
            controlplane.stop(inst, ensure_tools(log))
            shutil.rmtree(inst.state / "etcd", ignore_errors=True)
        shutil.rmtree(inst.state / "volumes", ignore_errors=True)


class ExistingCluster:
    """A cluster that somebody else made (kind, k3d), by $SLIPWAY_KUBECONFIG: a node group claims free nodes of it.

    Its nodes keep their names, zones and provider ids; they get the group's labels and taints, and lose them again.
    """

    _claiming = threading.Lock()

    def start(self, log: Log) -> None:
        cluster.start_control_plane(log)

    def endpoint(self) -> str:
        return cluster.endpoint()

    def ca_data(self) -> str:
        return base64.b64encode(cluster.ca_data()).decode()

    def add_node(self, order: NodeOrder) -> None:
        kube = connect()
        with self._claiming:
            nodes = kube.items("/api/v1/nodes")
            mine = [n for n in nodes if n["metadata"]["labels"].get("slipway.dev/node") == order.name]
            free = [n for n in nodes if NODE_LABEL not in n["metadata"]["labels"] and not _control_plane(n)]
            if not mine and not free:
                raise ClusterError(
                    f"the existing cluster at {kube.endpoint} has no free node left for {order.name}. "
                    "Next: add nodes to it, or ask for fewer in the node group"
                )
            node = (mine or free)[0]
            taints = [{"key": k, "value": v, "effect": e} for k, v, e in order.taints]
            labels = {**order.labels, "slipway.dev/node": order.name}
            path = node_path(node["metadata"]["name"])
            kube.merge(path, {"metadata": {"labels": labels}, "spec": {"taints": taints}})

    def remove_node(self, name: str) -> None:
        kube = connect()
        for node in kube.items("/api/v1/nodes", labelSelector=f"slipway.dev/node={name}"):
            ours = [k for k in node["metadata"]["labels"] if k.startswith(("eks.amazonaws.com/", "slipway.dev/"))]
            spec = {"taints": None, "unschedulable": None}
            path = node_path(node["metadata"]["name"])
            kube.merge(path, {"metadata": {"labels": dict.fromkeys(ours)}, "spec": spec})

    def wipe(self, log: Log) -> None:
        log("the existing cluster is not wiped: it belongs to somebody else")


Compute = LocalCompute | ExistingCluster


def compute() -> Compute:
    """The source that the environment chooses."""
    return ExistingCluster() if cluster.external_kubeconfig() else LocalCompute()


def _control_plane(node: Object) -> bool:
    return "node-role.kubernetes.io/control-plane" in node["metadata"]["labels"]


def kube_node(name: str) -> Object | None:
    """The Node object that stands for a node of a group."""
    kube = connect()
    if cluster.external_kubeconfig():
        return next(iter(kube.items("/api/v1/nodes", labelSelector=f"slipway.dev/node={name}")), None)
    return kube.get(node_path(name))


def wait_ready(names: list[str], seconds: float) -> None:
    """Return when all nodes are Ready. Raises ClusterError that names those that are not."""
    end = time.monotonic() + seconds
    while True:
        missing = [name for name in names if not node_ready(kube_node(name) or {})]
        if not missing:
            return
        if time.monotonic() > end:
            raise ClusterError(f"not Ready after {seconds:.0f} s: {', '.join(missing)}")
        time.sleep(0.2)
