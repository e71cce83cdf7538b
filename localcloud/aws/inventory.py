"""What exists in the stand-in that costs money in AWS or holds other things: for checks after a destroy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from localcloud.aws.eks.core import Eks

Item = dict[str, str]


def inventory(eks: Eks) -> list[Item]:
    """One entry {type, id, name} for each resource; what every account has by default is left out."""
    return [*_eks(eks), *_ec2(eks), *_others(eks)]


def _item(kind: str, identifier: str, name: str = "") -> Item:
    return {"type": kind, "id": identifier, "name": name}


def _eks(eks: Eks) -> Iterator[Item]:
    for cluster in eks.store.all("clusters"):
        yield _item("eks:cluster", cluster["name"], cluster["status"])
    for group in eks.store.all("nodegroups"):
        yield _item("eks:nodegroup", f"{group['clusterName']}/{group['nodegroupName']}", group["status"])
    for node in eks.store.all("nodes"):
        yield _item("eks:node", node["instanceId"], node["name"])
    for addon in eks.store.all("addons"):
        yield _item("eks:addon", f"{addon['clusterName']}/{addon['addonName']}", addon["status"])
    for identity in eks.store.all("pod_identities"):
        yield _item("eks:pod-identity-association", identity["associationId"], identity["serviceAccount"])


def _name(resource: Any) -> str:
    return next((tag["value"] for tag in resource.get_tags() if tag["key"] == "Name"), "")


def _ec2(eks: Eks) -> Iterator[Item]:
    ec2 = eks.lookup.ec2
    default = {vpc.id for vpc in ec2.vpcs.values() if vpc.is_default == "true" or vpc.is_default is True}
    for vpc in ec2.vpcs.values():
        if vpc.id not in default:
            yield _item("ec2:vpc", vpc.id, _name(vpc))
    for subnet in eks.lookup.subnets():
        if subnet.vpc not in default:
            yield _item("ec2:subnet", subnet.id)
    for gateway in ec2.internet_gateways.values():
        if not (gateway.vpc and gateway.vpc.id in default):
            yield _item("ec2:internet-gateway", gateway.id, _name(gateway))
    for nat in ec2.nat_gateways.values():
        if nat.state != "deleted":
            yield _item("ec2:nat-gateway", nat.id, _name(nat))
    for address in ec2.addresses:
        yield _item("ec2:elastic-ip", address.allocation_id, address.public_ip)
    for table in ec2.route_tables.values():
        if table.vpc_id not in default and table.main_association_id is None:
            yield _item("ec2:route-table", table.id, _name(table))
    for groups in ec2.groups.values():
        for group in groups.values():
            if group.name != "default":
                yield _item("ec2:security-group", group.id, group.name)
    for endpoint in ec2.vpc_end_points.values():
        yield _item("ec2:vpc-endpoint", endpoint.id, endpoint.service_name)
    for eni in ec2.enis.values():
        yield _item("ec2:network-interface", eni.id, eni.description)
    for log in ec2.flow_logs.values():
        yield _item("ec2:flow-log", log.id, log.resource_id)
    for template in ec2.launch_templates.values():
        yield _item("ec2:launch-template", template.id, template.name)


def _others(eks: Eks) -> Iterator[Item]:
    iam, moto = eks.lookup.iam, eks.lookup.moto
    for role in iam.roles.values():
        yield _item("iam:role", role.arn, role.name)
    for arn, policy in iam.managed_policies.items():
        if not arn.startswith("arn:aws:iam::aws:"):
            yield _item("iam:policy", arn, policy.name)
    for profile in iam.instance_profiles.values():
        yield _item("iam:instance-profile", profile.arn, profile.name)
    for key in moto.backend("kms").keys.values():
        if key.key_state != "PendingDeletion" and key.key_manager == "CUSTOMER":
            yield _item("kms:key", key.arn, next(iter(key.aliases), ""))
    for name in moto.backend("logs").groups:
        yield _item("logs:log-group", name)
    for repository in moto.backend("ecr").repositories.values():
        yield _item("ecr:repository", repository.arn, repository.name)
    for name in moto.backend("s3").buckets:
        yield _item("s3:bucket", name)
