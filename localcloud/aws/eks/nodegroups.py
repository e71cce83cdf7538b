"""EKS managed node groups: checks, and create, describe, update, delete."""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Callable
from typing import Any

from localcloud.aws.eks import access, nodes
from localcloud.aws.eks.core import (
    Eks,
    arn,
    assumable_role,
    finish_update,
    in_use,
    invalid,
    invalid_request,
    not_found,
    now,
    one_of,
    only,
    tags_of,
    update_of,
)
from localcloud.aws.eks.store import Document, public

log = logging.getLogger(__name__)

AMI_TYPES = (
    "AL2023_x86_64_STANDARD", "AL2023_ARM_64_STANDARD", "AL2023_x86_64_NVIDIA", "AL2023_ARM_64_NVIDIA",
    "AL2023_x86_64_NEURON", "BOTTLEROCKET_x86_64", "BOTTLEROCKET_ARM_64", "BOTTLEROCKET_x86_64_NVIDIA",
    "BOTTLEROCKET_ARM_64_NVIDIA", "CUSTOM",
)  # fmt: skip
CAPACITY_TYPES = ("ON_DEMAND", "SPOT", "CAPACITY_BLOCK")
NODE_POLICIES = ("AmazonEKSWorkerNodePolicy", "AmazonEKSWorkerNodeMinimalPolicy")
CREATE_FIELDS = (
    "nodegroupName", "scalingConfig", "diskSize", "subnets", "instanceTypes", "amiType", "nodeRole", "labels", "taints",
    "tags", "launchTemplate", "updateConfig", "nodeRepairConfig", "capacityType", "version", "releaseVersion",
)  # fmt: skip
REPAIR_FIELDS = (
    "enabled", "maxUnhealthyNodeThresholdCount", "maxUnhealthyNodeThresholdPercentage", "maxParallelNodesRepairedCount",
    "maxParallelNodesRepairedPercentage", "nodeRepairConfigOverrides",
)  # fmt: skip


def create(eks: Eks, cluster_name: str, body: dict[str, Any]) -> Document:
    only(body, CREATE_FIELDS, "CreateNodegroup")
    cluster, name = eks.active_cluster(cluster_name), body.get("nodegroupName", "")
    where = {"clusterName": cluster_name, "nodegroupName": name}
    if not re.fullmatch(r"[0-9A-Za-z][A-Za-z0-9_-]{0,62}", name):
        raise invalid(
            f"nodegroupName {name!r}: at most 63 letters, digits, hyphens and underscores are allowed", **where
        )
    if eks.store.get("nodegroups", f"{cluster_name}/{name}"):
        raise in_use(f"NodeGroup already exists with name {name} and cluster name {cluster_name}", **where)
    assumable_role(eks, body.get("nodeRole", ""), "ec2.amazonaws.com")
    template, template_type = _launch_template(eks, body)
    types = list(body.get("instanceTypes") or [])
    if types and template_type:
        raise invalid("Instance types can be given in the launch template or in the request, not in both", **where)
    types = types or ([template_type] if template_type else ["t3.medium"])
    for kind in types:
        if not eks.lookup.instance_type_exists(kind):
            raise invalid(f"The following supplied instance types do not exist: [{kind}]", **where)
    version = body.get("version") or cluster["version"]
    if _minor(version) > _minor(cluster["version"]):
        raise invalid(
            f"Nodegroup Kubernetes version {version} is newer than the cluster's {cluster['version']}", **where
        )
    group: Document = {
        "nodegroupName": name, "nodegroupArn": arn(f"nodegroup/{cluster_name}/{name}/{uuid.uuid4()}"),
        "clusterName": cluster_name, "version": version,
        "releaseVersion": body.get("releaseVersion") or f"{version}.0-local",
        "createdAt": now(), "modifiedAt": now(), "status": "CREATING",
        "capacityType": one_of(body.get("capacityType") or "ON_DEMAND", CAPACITY_TYPES, "capacityType"),
        "scalingConfig": _scaling(body.get("scalingConfig") or {}), "subnets": _subnets(eks, cluster, body),
        "amiType": one_of(body.get("amiType") or "AL2023_x86_64_STANDARD", AMI_TYPES, "amiType"),
        "nodeRole": body["nodeRole"], "labels": dict(body.get("labels") or {}),
        "taints": _taints(body.get("taints") or []),
        "resources": {"autoScalingGroups": [{"name": f"eks-{name}-{uuid.uuid4()}"}]}, "health": {"issues": []},
        "updateConfig": _update_config(body.get("updateConfig") or {}), "tags": tags_of(body),
        "_instanceType": types[0],
        "nodeRepairConfig": _repair(body.get("nodeRepairConfig") or {}),
    }  # fmt: skip
    if template:
        group["launchTemplate"] = template
    if not template_type:
        group["instanceTypes"] = types
    if not template:
        group["diskSize"] = body.get("diskSize") or 20
    eks.store.put("nodegroups", f"{cluster_name}/{name}", group)
    access.admit_nodes(eks, cluster_name, body["nodeRole"])
    eks.run(f"nodegroup {cluster_name}/{name}", lambda: bring_up(eks, cluster_name, name))
    return {"nodegroup": public(group)}


def _minor(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _subnets(eks: Eks, cluster: Document, body: dict[str, Any]) -> list[str]:
    if not body.get("subnets"):
        raise invalid("Subnets cannot be empty")
    for subnet_id in body["subnets"]:
        subnet = eks.lookup.subnet(subnet_id)
        if subnet is None:
            raise invalid(f"The subnet ID '{subnet_id}' does not exist")
        if subnet.vpc != cluster["resourcesVpcConfig"]["vpcId"]:
            raise invalid(
                f"Subnet {subnet_id} is not in the VPC of the cluster, {cluster['resourcesVpcConfig']['vpcId']}"
            )
    return list(body["subnets"])


def _scaling(given: dict[str, Any], before: dict[str, int] | None = None) -> dict[str, int]:
    only(given, ("minSize", "maxSize", "desiredSize"), "scalingConfig")
    scaling = {**(before or {"minSize": 1, "maxSize": 2, "desiredSize": 2}), **given}
    low, high, wanted = scaling["minSize"], scaling["maxSize"], scaling["desiredSize"]
    if low < 0 or high < 1:
        raise invalid(f"scalingConfig: minSize is at least 0 and maxSize at least 1, not {low} and {high}")
    if low > high:
        raise invalid(f"Minimum capacity {low} can't be greater than maximum size {high}")
    if wanted < low:
        raise invalid(f"Minimum capacity {low} can't be greater than desired size {wanted}")
    if wanted > high:
        raise invalid(f"desired capacity {wanted} can't be greater than max size {high}")
    return scaling


def _taints(given: list[dict[str, Any]]) -> list[Document]:
    taints: dict[tuple[str, str], Document] = {}
    for taint in given:
        only(taint, ("key", "value", "effect"), "taints")
        one_of(taint.get("effect", ""), nodes.EFFECTS, "taints.effect")
        if not re.fullmatch(
            r"([A-Za-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", taint.get("key", "")
        ):
            raise invalid(f"taints: {taint.get('key')!r} is no valid key of a Kubernetes taint")
        if (taint["key"], taint["effect"]) in taints:
            raise invalid(f"Duplicate taint {taint['key']}:{taint['effect']}")
        taints[taint["key"], taint["effect"]] = {k: v for k, v in taint.items() if v is not None}
    return list(taints.values())


def _update_config(given: dict[str, Any]) -> dict[str, Any]:
    only(given, ("maxUnavailable", "maxUnavailablePercentage", "updateStrategy"), "updateConfig")
    if given.get("maxUnavailable") and given.get("maxUnavailablePercentage"):
        raise invalid("maxUnavailable and maxUnavailablePercentage cannot both be given")
    return given or {"maxUnavailable": 1}


def _repair(given: dict[str, Any]) -> dict[str, Any]:
    only(given, REPAIR_FIELDS, "nodeRepairConfig")
    return {"enabled": False, **given}


def _launch_template(eks: Eks, body: dict[str, Any]) -> tuple[dict[str, str], str]:
    """The template with its version, and the instance type in it; empty when there is none."""
    given = body.get("launchTemplate") or {}
    if not given:
        return {}, ""
    only(given, ("id", "name", "version"), "launchTemplate")
    found = eks.lookup.launch_template(given.get("id") or "", given.get("name") or "")
    if found is None:
        raise invalid(f"Couldn't find launch template {given.get('id') or given.get('name')}")
    if body.get("diskSize"):
        raise invalid("Disk size must be specified within the launch template.")
    template_id, name, default, latest, kind = found
    version = str(given.get("version") or default)
    version = {"$Latest": str(latest), "$Default": str(default)}.get(version, version)
    if not version.isdigit() or not 1 <= int(version) <= latest:
        raise invalid(f"Launch template {name} has no version {version}; the latest is {latest}")
    return {"id": template_id, "name": name, "version": version}, kind or ""


def _failure(eks: Eks, group: Document) -> str:
    """Why nodes with this role could not join, or an empty string."""
    role = eks.lookup.role(group["nodeRole"])
    if role is None:
        return f"the node role {group['nodeRole']} no longer exists"
    names = {policy.rsplit("/", 1)[1] for policy in role.policies if policy.startswith("arn:aws:iam::aws:")}
    own = [policy for policy in role.policies if not policy.startswith("arn:aws:iam::aws:")]
    if not (names & set(NODE_POLICIES) or own or role.inline):
        return f"Instances failed to join the kubernetes cluster: {role.arn} has none of {', '.join(NODE_POLICIES)}"
    return ""


def bring_up(eks: Eks, cluster: str, name: str) -> None:
    """Make the group's nodes; ends ACTIVE, or CREATE_FAILED with the reason in health.issues."""
    key = f"{cluster}/{name}"
    group = eks.store.get("nodegroups", key)
    if group is None:
        return
    try:
        failure = _failure(eks, group)
        if failure:
            raise RuntimeError(failure)
        nodes.settle(eks, group)
    except Exception as error:
        log.exception("node group %s", key)
        eks.store.patch("nodegroups", key, status="CREATE_FAILED", health=_issue(eks, group, str(error)))
        return
    eks.store.patch("nodegroups", key, status="ACTIVE", health={"issues": []})


def _issue(eks: Eks, group: Document, message: str, code: str = "NodeCreationFailure") -> Document:
    instances = [node["instanceId"] for node in nodes.of_group(eks, group)]
    return {"issues": [{"code": code, "message": message, "resourceIds": instances}]}


def get(eks: Eks, cluster: str, name: str) -> Document:
    eks.cluster(cluster)
    found = eks.store.get("nodegroups", f"{cluster}/{name}")
    if found is None:
        raise not_found(f"No node group found for name: {name}.", clusterName=cluster, nodegroupName=name)
    return found


def list_all(eks: Eks, cluster: str) -> Document:
    eks.cluster(cluster)
    return {"nodegroups": [group["nodegroupName"] for group in eks.store.all("nodegroups", cluster)]}


def update_config(eks: Eks, cluster: str, name: str, body: dict[str, Any]) -> Document:
    only(body, ("labels", "taints", "scalingConfig", "updateConfig", "nodeRepairConfig"), "UpdateNodegroupConfig")
    group = get(eks, cluster, name)
    if group["status"] != "ACTIVE":
        raise in_use(f"Nodegroup cannot be updated as it is currently not in Active State: {group['status']}",
                     clusterName=cluster, nodegroupName=name)  # fmt: skip
    change: dict[str, Any] = {}
    if body.get("scalingConfig"):
        change["scalingConfig"] = _scaling(body["scalingConfig"], group["scalingConfig"])
    if body.get("labels"):
        removed = body["labels"].get("removeLabels") or []
        labels = {k: v for k, v in group["labels"].items() if k not in removed}
        change["labels"] = {**labels, **(body["labels"].get("addOrUpdateLabels") or {})}
    if body.get("taints"):
        gone = {(t["key"], t["effect"]) for part in ("removeTaints", "addOrUpdateTaints")
                for t in body["taints"].get(part) or []}  # fmt: skip
        kept = [t for t in group["taints"] if (t["key"], t["effect"]) not in gone]
        change["taints"] = _taints(kept + (body["taints"].get("addOrUpdateTaints") or []))
    if body.get("updateConfig"):
        change["updateConfig"] = _update_config(body["updateConfig"])
    if body.get("nodeRepairConfig"):
        change["nodeRepairConfig"] = _repair(body["nodeRepairConfig"])
    if not change:
        raise invalid_request("No changes needed for the node group config provided")
    return _begin(eks, group, "ConfigUpdate", change, lambda: apply_change(eks, group, change))


def apply_change(eks: Eks, before: Document, change: dict[str, Any]) -> None:
    """Make the nodes follow a changed group: their number, labels and taints. Raises ClusterError."""
    group = eks.store.get("nodegroups", f"{before['clusterName']}/{before['nodegroupName']}") or before
    nodes.settle(eks, group, refresh="labels" in change or "taints" in change)


def update_version(eks: Eks, cluster: str, name: str, body: dict[str, Any]) -> Document:
    """A new Kubernetes, AMI or launch template version: every node is exchanged for a new one."""
    only(body, ("version", "releaseVersion", "launchTemplate", "force"), "UpdateNodegroupVersion")
    group, control_plane = get(eks, cluster, name), eks.cluster(cluster)
    if group["status"] != "ACTIVE":
        raise in_use(f"Nodegroup cannot be updated as it is currently not in Active State: {group['status']}",
                     clusterName=cluster, nodegroupName=name)  # fmt: skip
    version = body.get("version") or (group["version"] if body.get("launchTemplate") else control_plane["version"])
    if _minor(version) > _minor(control_plane["version"]):
        raise invalid(f"Nodegroup Kubernetes version {version} is newer than the cluster's {control_plane['version']}")
    change: dict[str, Any] = {"version": version, "releaseVersion": body.get("releaseVersion") or f"{version}.0-local"}
    if body.get("launchTemplate"):
        template, kind = _launch_template(eks, body)
        change["launchTemplate"] = template
        change["_instanceType"] = kind or group["_instanceType"]

    def work() -> None:
        changed = eks.store.get("nodegroups", f"{cluster}/{name}")
        if changed is not None:
            nodes.replace(eks, changed)

    return _begin(eks, group, "VersionUpdate", change, work)


def _begin(eks: Eks, group: Document, kind: str, change: dict[str, Any], work: Callable[[], None]) -> Document:
    """Record a change and do its work in the background; the group is UPDATING meanwhile."""
    cluster, name = group["clusterName"], group["nodegroupName"]
    key = f"{cluster}/{name}"
    update = update_of(eks, cluster, kind, {k: v for k, v in change.items() if not k.startswith("_")}, nodegroup=name)

    def guarded() -> None:
        try:
            work()
        except Exception as error:
            log.exception("update of node group %s", key)
            eks.store.patch("nodegroups", key, status="DEGRADED", health=_issue(eks, group, str(error)))
            finish_update(eks, cluster, update["id"], str(error))
            return
        eks.store.patch("nodegroups", key, status="ACTIVE", health={"issues": []})
        finish_update(eks, cluster, update["id"])

    eks.wait_for(f"nodegroup {key}")
    eks.store.patch("nodegroups", key, **change, status="UPDATING", modifiedAt=now())
    eks.run(f"nodegroup {key}", guarded)
    return {"update": public(update)}


def delete(eks: Eks, cluster: str, name: str) -> Document:
    group, key = get(eks, cluster, name), f"{cluster}/{name}"
    if group["status"] in ("CREATING", "UPDATING"):
        raise in_use(f"Nodegroup has status {group['status']} and cannot be deleted now",
                     clusterName=cluster, nodegroupName=name)  # fmt: skip
    document = eks.store.patch("nodegroups", key, status="DELETING") or group
    if group["status"] != "DELETING":
        eks.run(f"nodegroup {key}", lambda: tear_down(eks, cluster, name))
    return {"nodegroup": public(document)}


def tear_down(eks: Eks, cluster: str, name: str) -> None:
    """Drain and remove the group's nodes, then forget the group; DELETE_FAILED when that cannot be done."""
    key = f"{cluster}/{name}"
    group = eks.store.get("nodegroups", key)
    if group is None:
        return
    try:
        nodes.remove(eks, [node["name"] for node in nodes.of_group(eks, group)], nodes.DRAIN_SECONDS)
    except Exception as error:
        log.exception("deletion of node group %s", key)
        eks.store.patch(
            "nodegroups", key, status="DELETE_FAILED", health=_issue(eks, group, str(error), "InternalFailure")
        )
        return
    eks.store.remove("nodegroups", key)
    access.dismiss_nodes(eks, cluster, group["nodeRole"])
