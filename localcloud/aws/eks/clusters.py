"""EKS clusters: create, describe, update, delete."""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Callable
from typing import Any

from localcloud.aws.eks import access, nodes
from localcloud.aws.eks import endpoint as endpoint_of
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
from localcloud.aws.errors import AwsError
from localcloud.aws.kube import connect
from localcloud.aws.request import AwsRequest
from localcloud.paths import AWS_REGION, instance

log = logging.getLogger(__name__)

VERSIONS = ("1.33", "1.34", "1.35", "1.36")
"""What EKS offers in November 2026, standard and extended support together."""
LOG_TYPES = ("api", "audit", "authenticator", "controllerManager", "scheduler")
AUTHENTICATION_MODES = ("CONFIG_MAP", "API_AND_CONFIG_MAP", "API")
VPC_FIELDS = ("subnetIds", "securityGroupIds", "endpointPublicAccess", "endpointPrivateAccess", "publicAccessCidrs")
CREATE_FIELDS = (
    "name", "version", "roleArn", "resourcesVpcConfig", "kubernetesNetworkConfig", "logging", "tags",
    "encryptionConfig",
    "accessConfig", "bootstrapSelfManagedAddons", "upgradePolicy", "zonalShiftConfig", "deletionProtection",
)  # fmt: skip


def create(eks: Eks, request: AwsRequest) -> Document:
    body = request.params
    only(body, CREATE_FIELDS, "CreateCluster")
    name = body.get("name", "")
    if not re.fullmatch(r"[0-9A-Za-z][A-Za-z0-9_-]{0,99}", name):
        raise invalid(
            f"The cluster name {name!r} must match ^[0-9A-Za-z][A-Za-z0-9-_]* and have at most 100 characters"
        )
    if eks.store.get("clusters", name):
        raise in_use(f"Cluster already exists with name: {name}", clusterName=name)
    other = [c["name"] for c in eks.store.all("clusters")]
    if other:
        raise AwsError(
            "ResourceLimitExceededException",
            f"The EKS stand-in runs one cluster at a time, and {other[0]} exists. Delete it first, or use another "
            "instance (SLIPWAY_INSTANCE, SLIPWAY_NET).",
        )
    version = body.get("version") or VERSIONS[-1]
    if version not in VERSIONS:
        raise invalid(f"unsupported Kubernetes version {version}; supported: {', '.join(VERSIONS)}", clusterName=name)
    assumable_role(eks, body.get("roleArn", ""), "eks.amazonaws.com")
    vpc_config = _vpc_config(eks, body.get("resourcesVpcConfig") or {})
    mode = one_of((body.get("accessConfig") or {}).get("authenticationMode") or "CONFIG_MAP", AUTHENTICATION_MODES,
                  "accessConfig.authenticationMode")  # fmt: skip
    bootstrap = (body.get("accessConfig") or {}).get("bootstrapClusterCreatorAdminPermissions", True)
    support = one_of((body.get("upgradePolicy") or {}).get("supportType") or "EXTENDED", ("STANDARD", "EXTENDED"),
                     "upgradePolicy.supportType")  # fmt: skip
    document: Document = {
        "name": name, "arn": arn(f"cluster/{name}"), "createdAt": now(), "version": version, "status": "CREATING",
        "roleArn": body["roleArn"], "resourcesVpcConfig": vpc_config,
        "kubernetesNetworkConfig": _network_config(body.get("kubernetesNetworkConfig") or {}),
        "logging": _logging(body.get("logging") or {}), "tags": tags_of(body), "health": {"issues": []},
        "encryptionConfig": _encryption(eks, body.get("encryptionConfig") or []),
        "accessConfig": {"authenticationMode": mode, "bootstrapClusterCreatorAdminPermissions": bootstrap},
        "upgradePolicy": {"supportType": support}, "deletionProtection": bool(body.get("deletionProtection")),
        "zonalShiftConfig": {"enabled": bool((body.get("zonalShiftConfig") or {}).get("enabled"))},
        "identity": {"oidc": {"issuer": f"https://oidc.eks.{AWS_REGION}.amazonaws.com/id/{secrets.token_hex(16).upper()}"}},
        "certificateAuthority": {},
        "_creator": eks.lookup.caller(request.access_key).arn if bootstrap and mode != "CONFIG_MAP" else "",
    }  # fmt: skip
    vpc_config["clusterSecurityGroupId"] = _security_group(eks, name, vpc_config["vpcId"])
    eks.store.put("clusters", name, document)
    eks.run(f"cluster {name}", lambda: bring_up(eks, name))
    return {"cluster": public(document)}


def _vpc_config(eks: Eks, given: dict[str, Any]) -> dict[str, Any]:
    only(given, VPC_FIELDS, "resourcesVpcConfig")
    subnets = []
    for subnet_id in given.get("subnetIds") or []:
        subnet = eks.lookup.subnet(subnet_id)
        if subnet is None:
            raise invalid(f"The subnet ID '{subnet_id}' does not exist")
        subnets.append(subnet)
    if len({subnet.vpc for subnet in subnets}) > 1:
        raise invalid("Subnets are not in the same VPC")
    if len({subnet.zone for subnet in subnets}) < 2:
        raise invalid("Subnets specified must be in at least two different AZs")
    for group in given.get("securityGroupIds") or []:
        if eks.lookup.security_group_vpc(group) != subnets[0].vpc:
            raise invalid(f"The security group '{group}' does not exist in VPC '{subnets[0].vpc}'")
    public_access, private_access = given.get("endpointPublicAccess", True), given.get("endpointPrivateAccess", False)
    if not public_access and not private_access:
        raise invalid("Private and public endpoint access cannot both be false")
    return {
        "subnetIds": list(given["subnetIds"]), "securityGroupIds": list(given.get("securityGroupIds") or []),
        "vpcId": subnets[0].vpc, "endpointPublicAccess": public_access, "endpointPrivateAccess": private_access,
        "publicAccessCidrs": list(given.get("publicAccessCidrs") or (["0.0.0.0/0"] if public_access else [])),
    }  # fmt: skip


def _network_config(given: dict[str, Any]) -> dict[str, Any]:
    """What was asked for; the local cluster keeps its own service network, which is the default."""
    only(given, ("serviceIpv4Cidr", "ipFamily", "elasticLoadBalancing"), "kubernetesNetworkConfig")
    family = one_of(given.get("ipFamily") or "ipv4", ("ipv4",), "kubernetesNetworkConfig.ipFamily")
    balancing = {"enabled": bool((given.get("elasticLoadBalancing") or {}).get("enabled"))}
    cidr = given.get("serviceIpv4Cidr") or str(instance().service_network)
    return {"serviceIpv4Cidr": cidr, "ipFamily": family, "elasticLoadBalancing": balancing}


def _logging(given: dict[str, Any]) -> dict[str, Any]:
    enabled: set[str] = set()
    for setup in given.get("clusterLogging") or []:
        for kind in setup.get("types") or []:
            one_of(kind, LOG_TYPES, "logging.clusterLogging.types")
        enabled |= set(setup.get("types") or []) if setup.get("enabled") else set()
    rest = [kind for kind in LOG_TYPES if kind not in enabled]
    on = [{"types": [kind for kind in LOG_TYPES if kind in enabled], "enabled": True}] if enabled else []
    return {"clusterLogging": on + ([{"types": rest, "enabled": False}] if rest else [])}


def _encryption(eks: Eks, given: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for config in given:
        if config.get("resources") != ["secrets"]:
            raise invalid('encryptionConfig.resources: the only supported value is ["secrets"]')
        key_arn = (config.get("provider") or {}).get("keyArn", "")
        key = eks.lookup.key(key_arn)
        if key is None or key.state != "Enabled" or not key.symmetric:
            raise invalid(f"The keyArn in encryptionConfig provider is invalid: no enabled symmetric key {key_arn}")
    return given


def _security_group(eks: Eks, cluster: str, vpc: str) -> str:
    """The group that EKS makes for a cluster's control plane and nodes."""
    group = eks.lookup.moto.query("ec2", {
        "Action": "CreateSecurityGroup", "Version": "2016-11-15", "VpcId": vpc,
        "GroupName": f"eks-cluster-sg-{cluster}-{secrets.randbelow(10**10)}",
        "GroupDescription": "EKS created security group applied to ENI that is attached to EKS Control Plane master "
                            "nodes, as well as any managed workloads.",
        "TagSpecification.1.ResourceType": "security-group",
        "TagSpecification.1.Tag.1.Key": f"kubernetes.io/cluster/{cluster}", "TagSpecification.1.Tag.1.Value": "owned",
        "TagSpecification.1.Tag.2.Key": "aws:eks:cluster-name", "TagSpecification.1.Tag.2.Value": cluster,
    }).findtext(".//groupId") or ""  # fmt: skip
    eks.lookup.moto.query("ec2", {
        "Action": "AuthorizeSecurityGroupIngress", "Version": "2016-11-15", "GroupId": group,
        "IpPermissions.1.IpProtocol": "-1", "IpPermissions.1.Groups.1.GroupId": group,
    })  # fmt: skip
    return group


def bring_up(eks: Eks, name: str) -> None:
    """Start the real cluster; ends ACTIVE, or FAILED with the reason in health.issues."""
    cluster = eks.store.get("clusters", name)
    if cluster is None:
        return
    try:
        role = eks.lookup.role(cluster["roleArn"])
        if role is None or not (role.policies or role.inline):
            raise RuntimeError(
                f"{cluster['roleArn']} has no policies: EKS needs arn:aws:iam::aws:policy/AmazonEKSClusterPolicy"
            )
        eks.compute.start(log.info)
        endpoint_of.ensure(eks)
        endpoint, authority = eks.compute.endpoint(), {"data": eks.compute.ca_data()}
        if cluster["_creator"]:
            access.admit_creator(eks, name, cluster["_creator"])
        access.sync(eks, name)
        version = connect().request("GET", "/version")["gitVersion"]
    except Exception as error:
        log.exception("cluster %s", name)
        issue = {"code": "InternalFailure", "message": str(error), "resourceIds": []}
        eks.store.patch("clusters", name, status="FAILED", health={"issues": [issue]})
        return
    eks.store.patch("clusters", name, status="ACTIVE", endpoint=endpoint, certificateAuthority=authority,
                    platformVersion=f"eks.local-{version}")  # fmt: skip
    eks.changed.set()


def describe(eks: Eks, name: str) -> Document:
    return {"cluster": public(eks.cluster(name))}


def list_all(eks: Eks) -> Document:
    return {"clusters": [cluster["name"] for cluster in eks.store.all("clusters")]}


def delete(eks: Eks, name: str) -> Document:
    cluster = eks.cluster(name)
    if cluster["deletionProtection"]:
        raise invalid_request(
            f"Cluster {name} cannot be deleted because deletion protection is enabled", clusterName=name
        )
    groups = [group["nodegroupName"] for group in eks.store.all("nodegroups", name)]
    if groups:
        raise in_use("Cluster has nodegroups attached", clusterName=name, nodegroupName=groups[0])
    if cluster["status"] in ("CREATING", "UPDATING"):
        raise in_use(f"Cluster has status {cluster['status']} and cannot be deleted now", clusterName=name)
    document = eks.store.patch("clusters", name, status="DELETING") or cluster
    eks.changed.set()
    if cluster["status"] != "DELETING":
        eks.run(f"cluster {name}", lambda: tear_down(eks, name))
    return {"cluster": public(document)}


def tear_down(eks: Eks, name: str) -> None:
    """End the real cluster with all it stored, then forget everything that belonged to it."""
    try:
        nodes.remove(eks, [node["name"] for node in eks.store.all("nodes", name)], drain_seconds=0)
        access.clear()
        eks.compute.wipe(log.info)
    except Exception as error:
        log.exception("deletion of cluster %s", name)
        issue = {"code": "InternalFailure", "message": f"deletion failed: {error}", "resourceIds": []}
        eks.store.patch("clusters", name, status="FAILED", health={"issues": [issue]})
        return
    cluster = eks.store.get("clusters", name) or {}
    for kind in ("nodes", "addons", "entries", "pod_identities", "updates"):
        eks.store.remove(kind, *eks.store.keys(kind, name))
    eks.store.remove("clusters", name)
    group = cluster.get("resourcesVpcConfig", {}).get("clusterSecurityGroupId")
    if group and eks.lookup.security_group_vpc(group):
        try:
            _forget_rules(eks, group)
            eks.lookup.moto.query("ec2", {"Action": "DeleteSecurityGroup", "Version": "2016-11-15", "GroupId": group})
        except AwsError as error:  # as in AWS: the group then stays and holds its VPC, and somebody has to look
            log.warning("the cluster's security group %s stays: %s", group, error)
    eks.changed.set()


def _forget_rules(eks: Eks, group: str) -> None:
    """Remove the group's rule for itself; rules of other groups that name it are their owners' business."""
    params = {
        "Action": "RevokeSecurityGroupIngress", "Version": "2016-11-15", "GroupId": group,
        "IpPermissions.1.IpProtocol": "-1", "IpPermissions.1.Groups.1.GroupId": group,
    }  # fmt: skip
    try:
        eks.lookup.moto.query("ec2", params)
    except AwsError as error:
        if error.code != "InvalidPermission.NotFound":
            raise


def update_config(eks: Eks, name: str, body: dict[str, Any]) -> Document:
    """One kind of change for each call, as in AWS."""
    only(body, UPDATES, "UpdateClusterConfig")
    given = [key for key in body if key != "clientRequestToken" and body[key] is not None]
    if len(given) != 1:
        raise invalid_request("Only one type of update can be allowed.", clusterName=name)
    with eks.store.lock:
        cluster = eks.cluster(name)
        if cluster["status"] != "ACTIVE":
            raise in_use(f"Cluster is not in ACTIVE status, it is {cluster['status']}", clusterName=name)
        kind, change = UPDATES[given[0]](eks, cluster, body[given[0]])
        if all(cluster[key] == value for key, value in change.items()):
            raise invalid(f"No changes needed for the {given[0]} config provided", clusterName=name)
        update = update_of(eks, name, kind, change)
        eks.store.patch("clusters", name, **change)
    finish_update(eks, name, update["id"])
    return {"update": public(update)}


Change = tuple[str, dict[str, Any]]


def _change_vpc(eks: Eks, cluster: Document, given: Any) -> Change:
    before = {key: value for key, value in cluster["resourcesVpcConfig"].items() if key in VPC_FIELDS}
    after = _vpc_config(eks, {**before, **given})
    if after["vpcId"] != cluster["resourcesVpcConfig"]["vpcId"]:
        raise invalid("Provided subnets belong to a different VPC than the cluster", clusterName=cluster["name"])
    after["clusterSecurityGroupId"] = cluster["resourcesVpcConfig"]["clusterSecurityGroupId"]
    kind = "VpcConfigUpdate" if "subnetIds" in given or "securityGroupIds" in given else "EndpointAccessUpdate"
    return kind, {"resourcesVpcConfig": after}


def _change_logging(eks: Eks, cluster: Document, given: Any) -> Change:
    return "LoggingUpdate", {"logging": _logging(given)}


def _change_access(eks: Eks, cluster: Document, given: Any) -> Change:
    before = cluster["accessConfig"]["authenticationMode"]
    after = one_of(given.get("authenticationMode") or before, AUTHENTICATION_MODES, "accessConfig.authenticationMode")
    if AUTHENTICATION_MODES.index(after) < AUTHENTICATION_MODES.index(before):
        raise invalid(f"Unsupported authentication mode update from {before} to {after}", clusterName=cluster["name"])
    return "AccessConfigUpdate", {"accessConfig": {**cluster["accessConfig"], "authenticationMode": after}}


def _change_support(eks: Eks, cluster: Document, given: Any) -> Change:
    return "UpgradePolicyUpdate", {
        "upgradePolicy": {"supportType": one_of(given.get("supportType", ""), ("STANDARD", "EXTENDED"), "supportType")}
    }


def _change_zonal_shift(eks: Eks, cluster: Document, given: Any) -> Change:
    return "ZonalShiftConfigUpdate", {"zonalShiftConfig": {"enabled": bool(given.get("enabled"))}}


def _change_protection(eks: Eks, cluster: Document, given: Any) -> Change:
    return "DeletionProtectionUpdate", {"deletionProtection": bool(given)}


UPDATES: dict[str, Callable[[Eks, Document, Any], Change]] = {
    "resourcesVpcConfig": _change_vpc,
    "logging": _change_logging,
    "accessConfig": _change_access,
    "upgradePolicy": _change_support,
    "zonalShiftConfig": _change_zonal_shift,
    "deletionProtection": _change_protection,
}


def update_version(eks: Eks, name: str, body: dict[str, Any]) -> Document:
    """One minor version forward at a time. The API server itself stays what it is (see localcloud.aws.eks)."""
    only(body, ("version", "force"), "UpdateClusterVersion")
    with eks.store.lock:
        cluster, version = eks.cluster(name), body.get("version", "")
        if cluster["status"] != "ACTIVE":
            raise in_use(f"Cluster is not in ACTIVE status, it is {cluster['status']}", clusterName=name)
        if version not in VERSIONS:
            raise invalid(
                f"unsupported Kubernetes version {version}; supported: {', '.join(VERSIONS)}", clusterName=name
            )
        if VERSIONS.index(version) != VERSIONS.index(cluster["version"]) + 1:
            raise invalid(
                f"Unsupported Kubernetes minor version update from {cluster['version']} to {version}", clusterName=name
            )
        update = update_of(eks, name, "VersionUpdate", {"Version": version})
        eks.store.patch("clusters", name, version=version)
    finish_update(eks, name, update["id"])
    return {"update": public(update)}


def describe_update(eks: Eks, name: str, update_id: str) -> Document:
    eks.cluster(name)
    found = eks.store.get("updates", f"{name}/{update_id}")
    if found is None:
        raise not_found(f"No update found for ID: {update_id}", clusterName=name)
    return {"update": public(found)}


def list_updates(eks: Eks, name: str, query: dict[str, str]) -> Document:
    eks.cluster(name)
    wanted = (query.get("nodegroupName", ""), query.get("addonName", ""))
    updates = eks.store.all("updates", name)
    return {"updateIds": [u["id"] for u in updates if (u["_nodegroup"], u["_addon"]) == wanted]}
