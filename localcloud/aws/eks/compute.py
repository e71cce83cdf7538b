"""Where the clusters and nodes of the EKS stand-in come from: the local control plane, or an existing cluster."""

from __future__ import annotations

import base64
import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from localcloud.aws import ebs
from localcloud.aws.kube import Kube, Object, connect, drain, node_path, node_ready
from localcloud.kubernetes import cluster
from localcloud.kubernetes.api import ApiError
from localcloud.kubernetes.errors import ClusterError, Log
from localcloud.kubernetes.specs import NodeSpec, Taint

log = logging.getLogger(__name__)

NODE_LABEL = "eks.amazonaws.com/nodegroup"
CLAIM, GIVEN = "slipway.dev/node", "slipway.dev/given"
"""Label and annotation of a claimed node of an existing cluster: as which node, and what it was given (JSON)."""


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

    def drain(self, name: str, seconds: float) -> list[str]:
        """Let pods leave a node; returns those (namespace/name) that are still there after `seconds`."""
        return drain(connect(), name, seconds)

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

    Its nodes keep what they have, labels of zone and instance type included, and get beside it the group's labels and
    taints; they lose exactly these when they are given back. Only pods that were put there by such labels are evicted.
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
            free = [n for n in nodes if is_free(n)]
            if not mine and not free:
                raise ClusterError(
                    f"the existing cluster has no free node left for {order.name}: one that is Ready, without "
                    "NoSchedule taint and no control plane. Next: add nodes to it, or ask for fewer in the node group"
                )
            node = (mine or free)[0]
            _change(kube, node, lambda now: claimed(now, order))
        if not mine:
            log.info("%s of the existing cluster stands in for node %s", node["metadata"]["name"], order.name)

    def remove_node(self, name: str) -> None:
        kube = connect()
        for node in kube.items("/api/v1/nodes", labelSelector=f"{CLAIM}={name}"):
            _change(kube, node, given_back)

    def drain(self, name: str, seconds: float) -> list[str]:
        kube = connect()
        left = []
        for node in kube.items("/api/v1/nodes", labelSelector=f"{CLAIM}={name}"):
            left += drain(
                kube, node["metadata"]["name"], seconds, partial(_is_there_by, {*_given(node)["labels"], CLAIM})
            )
        return left

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
        """Remove what the stand-in itself made there; the cluster stays."""
        ebs.reclaim_all(connect())


def _change(kube: Kube, node: Object, patch: Callable[[Object], Object]) -> None:
    """Patch a node as it is now: its kubelet and the controllers change it, too."""
    path = node_path(node["metadata"]["name"])
    for last in (False, False, False, False, True):
        try:
            kube.merge(path, patch(kube.request("GET", path)))
            return
        except ApiError as error:
            if error.status != 409 or last:
                raise


def is_free(node: Object) -> bool:
    """Whether a node of an existing cluster may be claimed: Ready, not claimed, and open to any pod."""
    closed = any(taint["effect"] != "PreferNoSchedule" for taint in node["spec"].get("taints") or [])
    control_plane = "node-role.kubernetes.io/control-plane" in node["metadata"]["labels"]
    return node_ready(node) and not closed and not control_plane and CLAIM not in node["metadata"]["labels"]


def _is_there_by(labels: set[str], pod: Object) -> bool:
    return not labels.isdisjoint(pod["spec"].get("nodeSelector") or {})


def _given(node: Object) -> Object:
    """What a claimed node was given: names of labels, and taints."""
    text = (node["metadata"].get("annotations") or {}).get(GIVEN)
    return dict(json.loads(text)) if text else {"labels": [], "taints": []}


def claimed(node: Object, order: NodeOrder) -> Object:
    """The patch that makes a node what a node group wants, as far as it has no say of its own."""
    before, have = _given(node), node["metadata"]["labels"]
    labels = {key: value for key, value in order.labels.items() if key not in have or key in before["labels"]}
    theirs = [taint for taint in node["spec"].get("taints") or [] if taint not in before["taints"]]
    taints = [{"key": k, "value": v, "effect": e} for k, v, e in order.taints]
    given = json.dumps({"labels": sorted(labels), "taints": taints})
    return {
        "metadata": {
            "labels": {**dict.fromkeys(before["labels"]), **labels, CLAIM: order.name},
            "annotations": {GIVEN: given}, "resourceVersion": node["metadata"]["resourceVersion"],
        },
        "spec": {"taints": [*theirs, *taints]},
    }  # fmt: skip


def given_back(node: Object) -> Object:
    """The patch that takes back exactly what a claimed node was given."""
    given = _given(node)
    theirs = [taint for taint in node["spec"].get("taints") or [] if taint not in given["taints"]]
    return {
        "metadata": {
            "labels": dict.fromkeys([*given["labels"], CLAIM]), "annotations": {GIVEN: None},
            "resourceVersion": node["metadata"]["resourceVersion"],
        },
        "spec": {"taints": theirs or None, "unschedulable": None},
    }  # fmt: skip


Compute = LocalCompute | ExistingCluster


def compute() -> Compute:
    """The source that the environment chooses."""
    return ExistingCluster() if cluster.external_kubeconfig() else LocalCompute()
