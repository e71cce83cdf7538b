"""Where the clusters and nodes of the EKS stand-in come from: the local control plane and its nodes."""

from __future__ import annotations

import base64
import threading
import time
from dataclasses import dataclass

from localcloud.aws.kube import Object, connect, node_path, node_ready
from localcloud.kubernetes import cluster
from localcloud.kubernetes.errors import ClusterError, Log
from localcloud.kubernetes.specs import NodeSpec, Taint

NODE_LABEL = "eks.amazonaws.com/nodegroup"
CLAIM, GIVEN = "slipway.dev/node", "slipway.dev/labels"
"""Label and annotation of a claimed node of an existing cluster: as which node, and which labels it was given."""


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

    def kube_name(self, name: str) -> str:
        """The name that a node has in Kubernetes."""
        return name

    def node_names(self) -> list[str]:
        return cluster.node_names()

    def wait_ready(self, names: list[str], seconds: float) -> None:
        """Raises ClusterError that says what is wrong with which node."""
        cluster.wait_ready(names, seconds=seconds)

    def restart(self, log: Log) -> None:
        """After a restart of the machine, or a kill: the control plane and all nodes that are not switched off."""
        cluster.ensure_all(log)

    def wipe(self, log: Log) -> None:
        """End the control plane and delete what it stored, so that a new cluster is empty."""
        cluster.wipe(log)


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
            mine = [n for n in nodes if n["metadata"]["labels"].get(CLAIM) == order.name]
            free = [n for n in nodes if NODE_LABEL not in n["metadata"]["labels"] and not _control_plane(n)]
            if not mine and not free:
                raise ClusterError(
                    f"the existing cluster at {kube.endpoint} has no free node left for {order.name}. "
                    "Next: add nodes to it, or ask for fewer in the node group"
                )
            node = (mine or free)[0]
            before = (node["metadata"].get("annotations") or {}).get(GIVEN, "").split()
            labels: dict[str, str | None] = {**dict.fromkeys(before), **order.labels, CLAIM: order.name}
            kube.merge(
                node_path(node["metadata"]["name"]),
                {
                    "metadata": {"labels": labels, "annotations": {GIVEN: " ".join(order.labels)}},
                    "spec": {"taints": [{"key": k, "value": v, "effect": e} for k, v, e in order.taints]},
                },
            )

    def remove_node(self, name: str) -> None:
        kube = connect()
        for node in kube.items("/api/v1/nodes", labelSelector=f"{CLAIM}={name}"):
            given = (node["metadata"].get("annotations") or {}).get(GIVEN, "").split()
            body = {
                "metadata": {"labels": dict.fromkeys([*given, CLAIM]), "annotations": {GIVEN: None}},
                "spec": {"taints": None, "unschedulable": None},
            }
            kube.merge(node_path(node["metadata"]["name"]), body)

    def kube_name(self, name: str) -> str:
        claimed = connect().items("/api/v1/nodes", labelSelector=f"{CLAIM}={name}")
        return str(claimed[0]["metadata"]["name"]) if claimed else name

    def node_names(self) -> list[str]:
        return [node["metadata"]["labels"][CLAIM] for node in connect().items("/api/v1/nodes", labelSelector=CLAIM)]

    def wait_ready(self, names: list[str], seconds: float) -> None:
        """Raises ClusterError that names the nodes which are not Ready in time."""
        end = time.monotonic() + seconds
        while True:
            ready = {n["metadata"]["labels"].get(CLAIM) for n in connect().items("/api/v1/nodes") if node_ready(n)}
            missing = set(names) - ready
            if not missing:
                return
            if time.monotonic() > end:
                raise ClusterError(f"not Ready after {seconds:.0f} s: {', '.join(sorted(missing))}")
            time.sleep(0.2)

    def restart(self, log: Log) -> None:
        cluster.start_control_plane(log)

    def wipe(self, log: Log) -> None:
        cluster.wipe(log)


Compute = LocalCompute | ExistingCluster


def compute() -> Compute:
    """The source that the environment chooses."""
    return ExistingCluster() if cluster.external_kubeconfig() else LocalCompute()


def _control_plane(node: Object) -> bool:
    return "node-role.kubernetes.io/control-plane" in node["metadata"]["labels"]
