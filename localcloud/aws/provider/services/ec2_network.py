"""VPC, its further CIDR blocks, subnets, and single tags."""

from __future__ import annotations

from localcloud.aws.provider.model import Call, ProviderError, Resource, absent, from_pairs, pairs
from localcloud.aws.provider.schema import TAGS, Values, flag, text
from localcloud.aws.provider.services.ec2_common import arn, describe, finder, given, retag, specification

VPC_FLAGS = {
    "enableDnsSupport": "EnableDnsSupport",
    "enableDnsHostnames": "EnableDnsHostnames",
    "enableNetworkAddressUsageMetrics": "EnableNetworkAddressUsageMetrics",
}


def _vpc_create(call: Call) -> str:
    arguments = given(call.inputs, CidrBlock="cidrBlock", InstanceTenancy="instanceTenancy")
    answer = call.client("ec2").create_vpc(**arguments, TagSpecifications=specification("vpc", call))
    return str(answer["Vpc"]["VpcId"])


def _vpc_finish(call: Call, vpc: str) -> None:
    ec2 = call.client("ec2")
    for name, attribute in VPC_FLAGS.items():
        wanted = call.inputs.get(name)
        if wanted is not None or name in call.old:
            value = bool(wanted) if wanted is not None else name == "enableDnsSupport"
            ec2.modify_vpc_attribute(VpcId=vpc, **{attribute: {"Value": value}})


def _vpc_read(call: Call, identifier: str) -> Values | None:
    ec2 = call.client("ec2")
    vpc = describe(call, "describe_vpcs", "Vpcs", "InvalidVpcID.NotFound", VpcIds=[identifier])
    if vpc is None:
        return None
    values: Values = {
        "cidrBlock": vpc["CidrBlock"], "instanceTenancy": vpc["InstanceTenancy"], "ownerId": vpc["OwnerId"],
        "dhcpOptionsId": vpc["DhcpOptionsId"], "arn": arn(call, "vpc", identifier), "tags": from_pairs(vpc.get("Tags")),
    }  # fmt: skip
    for name, attribute in VPC_FLAGS.items():
        answer = ec2.describe_vpc_attribute(VpcId=identifier, Attribute=name)
        values[name] = answer[attribute]["Value"]
    inside = [{"Name": "vpc-id", "Values": [identifier]}]
    for table in ec2.describe_route_tables(Filters=inside)["RouteTables"]:
        if any(association.get("Main") for association in table["Associations"]):
            values["mainRouteTableId"] = values["defaultRouteTableId"] = table["RouteTableId"]
    for group in ec2.describe_security_groups(Filters=inside)["SecurityGroups"]:
        if group["GroupName"] == "default":
            values["defaultSecurityGroupId"] = group["GroupId"]
    for acl in ec2.describe_network_acls(Filters=inside)["NetworkAcls"]:
        if acl["IsDefault"]:
            values["defaultNetworkAclId"] = acl["NetworkAclId"]
    return values


def _vpc_update(call: Call, vpc: str) -> None:
    _vpc_finish(call, vpc)
    retag(call, vpc)


def _vpc_delete(call: Call, vpc: str) -> None:
    absent(lambda: call.client("ec2").delete_vpc(VpcId=vpc), "InvalidVpcID.NotFound")


def _subnet_create(call: Call) -> str:
    arguments = given(
        call.inputs, VpcId="vpcId", CidrBlock="cidrBlock", AvailabilityZone="availabilityZone",
        AvailabilityZoneId="availabilityZoneId",
    )  # fmt: skip
    answer = call.client("ec2").create_subnet(**arguments, TagSpecifications=specification("subnet", call))
    return str(answer["Subnet"]["SubnetId"])


def _subnet_finish(call: Call, subnet: str) -> None:
    wanted = call.inputs.get("mapPublicIpOnLaunch")
    if wanted is not None or call.old.get("mapPublicIpOnLaunch"):
        value = {"Value": bool(wanted)}
        call.client("ec2").modify_subnet_attribute(SubnetId=subnet, MapPublicIpOnLaunch=value)


def _subnet_read(call: Call, identifier: str) -> Values | None:
    found = describe(call, "describe_subnets", "Subnets", "InvalidSubnetID.NotFound", SubnetIds=[identifier])
    if found is None:
        return None
    return {
        "vpcId": found["VpcId"], "cidrBlock": found["CidrBlock"], "availabilityZone": found["AvailabilityZone"],
        "availabilityZoneId": found["AvailabilityZoneId"], "mapPublicIpOnLaunch": found["MapPublicIpOnLaunch"],
        "arn": found["SubnetArn"], "ownerId": found["OwnerId"], "tags": from_pairs(found.get("Tags")),
        "ipv6CidrBlockAssociationId": "",
    }  # fmt: skip


def _subnet_update(call: Call, subnet: str) -> None:
    _subnet_finish(call, subnet)
    retag(call, subnet)


def _subnet_delete(call: Call, subnet: str) -> None:
    absent(lambda: call.client("ec2").delete_subnet(SubnetId=subnet), "InvalidSubnetID.NotFound")


def _block_find(call: Call) -> str | None:
    vpc = describe(call, "describe_vpcs", "Vpcs", "InvalidVpcID.NotFound", VpcIds=[call.inputs["vpcId"]])
    for association in (vpc or {}).get("CidrBlockAssociationSet", []):
        if (
            association["CidrBlock"] == call.inputs.get("cidrBlock")
            and association["CidrBlock"] != (vpc or {})["CidrBlock"]
        ):
            return str(association["AssociationId"])
    return None


def _block_create(call: Call) -> str:
    arguments = given(call.inputs, VpcId="vpcId", CidrBlock="cidrBlock")
    answer = call.client("ec2").associate_vpc_cidr_block(**arguments)
    return str(answer["CidrBlockAssociation"]["AssociationId"])


def _block_read(call: Call, identifier: str) -> Values | None:
    for vpc in call.client("ec2").describe_vpcs()["Vpcs"]:
        for association in vpc.get("CidrBlockAssociationSet", []):
            if association["AssociationId"] == identifier and association["CidrBlockState"]["State"] != "disassociated":
                return {"vpcId": vpc["VpcId"], "cidrBlock": association["CidrBlock"]}
    return None


def _block_delete(call: Call, identifier: str) -> None:
    if _block_read(call, identifier) is not None:
        call.client("ec2").disassociate_vpc_cidr_block(AssociationId=identifier)


def _tag_create(call: Call) -> str:
    resource, key = call.inputs["resourceId"], call.inputs["key"]
    call.client("ec2").create_tags(Resources=[resource], Tags=pairs({key: call.inputs["value"]}))
    return f"{resource},{key}"


def _tag_parts(identifier: str) -> tuple[str, str]:
    resource, comma, key = identifier.partition(",")
    if not comma:
        raise ProviderError(f"id {identifier!r} of an aws:ec2/tag:Tag: <resource id>,<key> is expected")
    return resource, key


def _tag_read(call: Call, identifier: str) -> Values | None:
    resource, key = _tag_parts(identifier)
    filters = [{"Name": "resource-id", "Values": [resource]}]
    for tag in call.client("ec2").describe_tags(Filters=filters)["Tags"]:
        if tag["Key"] == key:
            return {"resourceId": resource, "key": key, "value": tag["Value"]}
    return None


def _tag_update(call: Call, identifier: str) -> None:
    _tag_create(call)


def _tag_delete(call: Call, identifier: str) -> None:
    resource, key = _tag_parts(identifier)
    call.client("ec2").delete_tags(Resources=[resource], Tags=[{"Key": key}])


RESOURCES = {
    "aws:ec2/vpc:Vpc": Resource(
        props={
            "cidrBlock": text(replace=True, required=True),
            "instanceTenancy": text("default", "dedicated", replace=True),
            "enableDnsSupport": flag(computed=True), "enableDnsHostnames": flag(computed=True),
            "enableNetworkAddressUsageMetrics": flag(computed=True), **TAGS,
        },
        outputs=("arn", "ownerId", "dhcpOptionsId", "mainRouteTableId", "defaultRouteTableId",
                 "defaultSecurityGroupId", "defaultNetworkAclId"),
        find=finder("describe_vpcs", "Vpcs", "VpcId"), create=_vpc_create, finish=_vpc_finish, read=_vpc_read,
        update=_vpc_update, delete=_vpc_delete,
    ),
    "aws:ec2/subnet:Subnet": Resource(
        props={
            "vpcId": text(replace=True, required=True), "cidrBlock": text(replace=True, required=True),
            "availabilityZone": text(replace=True, computed=True),
            "availabilityZoneId": text(replace=True, computed=True), "mapPublicIpOnLaunch": flag(computed=True), **TAGS,
        },
        outputs=("arn", "ownerId", "ipv6CidrBlockAssociationId"),
        find=finder("describe_subnets", "Subnets", "SubnetId"), create=_subnet_create, finish=_subnet_finish,
        read=_subnet_read, update=_subnet_update, delete=_subnet_delete, unique=("vpcId", "cidrBlock"),
    ),
    "aws:ec2/vpcIpv4CidrBlockAssociation:VpcIpv4CidrBlockAssociation": Resource(
        props={"vpcId": text(replace=True, required=True), "cidrBlock": text(replace=True, required=True)},
        outputs=(), find=_block_find, create=_block_create, read=_block_read, delete=_block_delete,
        unique=("vpcId", "cidrBlock"),
    ),
    "aws:ec2/tag:Tag": Resource(
        props={"resourceId": text(replace=True, required=True), "key": text(replace=True, required=True),
               "value": text(required=True)},
        outputs=(), create=_tag_create, read=_tag_read, update=_tag_update, delete=_tag_delete,
    ),
}  # fmt: skip
