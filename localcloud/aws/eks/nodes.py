"""The nodes of node groups: which there should be, and making it so."""

from __future__ import annotations

import logging
import secrets
from concurrent.futures import ThreadPoolExecutor

from localcloud.aws.eks.compute import NODE_LABEL, NodeOrder
from localcloud.aws.eks.core import Eks
from localcloud.aws.eks.store import Document
from localcloud.kubernetes.errors import ClusterError
from localcloud.paths import AWS_REGION

log = logging.getLogger(__name__)

READY_SECONDS = 120
DRAIN_SECONDS = 60
"""EKS gives pods 15 minutes to leave; pods that a disruption budget holds longer lose their node here after this."""
EFFECTS = {"NO_SCHEDULE": "NoSchedule", "NO_EXECUTE": "NoExecute", "PREFER_NO_SCHEDULE": "PreferNoSchedule"}


def labels_of(group: Document, node: Document) -> dict[str, str]:
    """The group's labels and those that EKS and the cloud provider give."""
    labels = {
        **group["labels"],
        NODE_LABEL: group["nodegroupName"],
        "eks.amazonaws.com/capacityType": group["capacityType"],
        "topology.kubernetes.io/region": AWS_REGION,
        "topology.kubernetes.io/zone": node["zone"],
        "node.kubernetes.io/instance-type": node["instanceType"],
    }
    template = group.get("launchTemplate")
    if template:
        labels["eks.amazonaws.com/sourceLaunchTemplateId"] = template["id"]
        labels["eks.amazonaws.com/sourceLaunchTemplateVersion"] = template["version"]
    return labels


def order(group: Document, node: Document) -> NodeOrder:
    return NodeOrder(
        name=node["name"],
        labels=labels_of(group, node),
        taints=tuple((t["key"], t.get("value", ""), EFFECTS[t["effect"]]) for t in group["taints"]),
        instance_type=node["instanceType"],
        zone=node["zone"],
        provider_id=f"aws:///{node['zone']}/{node['instanceId']}",
    )


def of_group(eks: Eks, group: Document) -> list[Document]:
    name = group["nodegroupName"]
    return [node for node in eks.store.all("nodes", group["clusterName"]) if node["nodegroup"] == name]


def settle(eks: Eks, group: Document, refresh: bool = True) -> None:
    """Give the group as many nodes as it wants, all Ready; the newest leave first. Raises ClusterError.

    refresh: nodes that were there before get the group's labels and taints, and start if they do not run.
    The record of a node is written before the node is made and removed after it is gone, so a kill in between
    leaves nothing unknown.
    """
    nodes, wanted = of_group(eks, group), group["scalingConfig"]["desiredSize"]
    before = 0 if refresh else len(nodes)
    while len(nodes) < wanted:
        nodes.append(_record(eks, group, nodes))
    surplus = [node["name"] for node in nodes[wanted:]]
    if surplus:
        remove(eks, surplus, DRAIN_SECONDS)
    bring_up(eks, group, nodes[before:wanted])


def restore(eks: Eks, group: Document) -> None:
    """After a restart: nodes that the records have and nobody started. Those switched off on purpose stay off."""
    known = eks.compute.node_names()
    bring_up(eks, group, [node for node in of_group(eks, group) if node["name"] not in known])


def bring_up(eks: Eks, group: Document, nodes: list[Document]) -> None:
    """Make the nodes exist and wait until they are Ready; nodes that exist are made as the group wants them."""
    if not nodes:
        return
    with ThreadPoolExecutor(len(nodes)) as pool:
        for done in [pool.submit(eks.compute.add_node, order(group, node)) for node in nodes]:
            done.result()
    eks.compute.wait_ready([node["name"] for node in nodes], READY_SECONDS)


def _record(eks: Eks, group: Document, others: list[Document]) -> Document:
    """A new node's record: the first free name, in the zone that has the fewest of the group."""
    taken, number = {node["name"] for node in eks.store.all("nodes")}, 1
    prefix = group["nodegroupName"].lower().replace("_", "-")  # a node's name is a DNS name
    while f"{prefix}-{number}" in taken:
        number += 1
    subnets = [subnet for s in group["subnets"] if (subnet := eks.lookup.subnet(s)) is not None]
    if not subnets:
        raise ClusterError(f"none of the subnets {', '.join(group['subnets'])} exists any more")
    subnet = min(subnets, key=lambda s: sum(node["subnet"] == s.id for node in others))
    node: Document = {
        "name": f"{prefix}-{number}", "nodegroup": group["nodegroupName"], "zone": subnet.zone,
        "subnet": subnet.id, "instanceId": f"i-{secrets.token_hex(8)}{secrets.randbelow(16):x}",
        "instanceType": group["_instanceType"],
    }  # fmt: skip
    eks.store.put("nodes", f"{group['clusterName']}/{node['name']}", node)
    return node


def remove(eks: Eks, names: list[str], drain_seconds: float) -> None:
    """Drain (unless drain_seconds is 0) and remove nodes, and forget them. Raises ClusterError."""

    def one(name: str) -> None:
        if drain_seconds:
            left = eks.compute.drain(name, drain_seconds)
            if left:
                log.warning(
                    "node %s ends with pods that did not leave in %s s: %s", name, drain_seconds, ", ".join(left)
                )
        eks.compute.remove_node(name)

    if not names:
        return
    with ThreadPoolExecutor(len(names)) as pool:
        for done in [pool.submit(one, name) for name in names]:
            done.result()
    with eks.store.lock:
        keys = [f"{cluster['name']}/{name}" for cluster in eks.store.all("clusters") for name in names]
        eks.store.remove("nodes", *keys)


def replace(eks: Eks, group: Document) -> None:
    """Exchange every node of the group for a new one, one at a time, new before old. Raises ClusterError."""
    for old in of_group(eks, group):
        new = _record(eks, group, of_group(eks, group))
        bring_up(eks, group, [new])
        remove(eks, [old["name"]], DRAIN_SECONDS)
