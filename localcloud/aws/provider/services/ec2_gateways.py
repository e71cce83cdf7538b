"""Ways out of a VPC: internet gateways, elastic addresses, NAT gateways."""

from __future__ import annotations

from localcloud.aws.provider.model import Call, ProviderError, Resource, absent, from_pairs
from localcloud.aws.provider.schema import TAGS, Values, text
from localcloud.aws.provider.services.ec2_common import arn, describe, finder, given, retag, specification

NAT_SECONDS = 600
NO_GATEWAY = "InvalidInternetGatewayID.NotFound"
NO_ADDRESS = "InvalidAllocationID.NotFound"


def _igw_create(call: Call) -> str:
    answer = call.client("ec2").create_internet_gateway(TagSpecifications=specification("internet-gateway", call))
    return str(answer["InternetGateway"]["InternetGatewayId"])


def _igw_attached(call: Call, identifier: str) -> str | None:
    found = describe(
        call, "describe_internet_gateways", "InternetGateways", NO_GATEWAY, InternetGatewayIds=[identifier]
    )
    attachments = (found or {}).get("Attachments") or []
    return str(attachments[0]["VpcId"]) if attachments else None


def _igw_attach(call: Call, identifier: str) -> None:
    ec2, wanted, present = call.client("ec2"), call.inputs.get("vpcId"), _igw_attached(call, identifier)
    if present and present != wanted:
        ec2.detach_internet_gateway(InternetGatewayId=identifier, VpcId=present)
    if wanted and present != wanted:
        ec2.attach_internet_gateway(InternetGatewayId=identifier, VpcId=wanted)


def _igw_read(call: Call, identifier: str) -> Values | None:
    found = describe(
        call, "describe_internet_gateways", "InternetGateways", NO_GATEWAY, InternetGatewayIds=[identifier]
    )
    if found is None:
        return None
    attachments = found.get("Attachments") or []
    return {
        "vpcId": attachments[0]["VpcId"] if attachments else None, "ownerId": call.session.account,
        "arn": arn(call, "internet-gateway", identifier), "tags": from_pairs(found.get("Tags")),
    }  # fmt: skip


def _igw_update(call: Call, identifier: str) -> None:
    _igw_attach(call, identifier)
    retag(call, identifier)


def _igw_delete(call: Call, identifier: str) -> None:
    ec2, vpc = call.client("ec2"), _igw_attached(call, identifier)
    if vpc:
        ec2.detach_internet_gateway(InternetGatewayId=identifier, VpcId=vpc)
    absent(lambda: ec2.delete_internet_gateway(InternetGatewayId=identifier), NO_GATEWAY)


def _eip_create(call: Call) -> str:
    answer = call.client("ec2").allocate_address(Domain="vpc", TagSpecifications=specification("elastic-ip", call))
    return str(answer["AllocationId"])


def _eip_read(call: Call, identifier: str) -> Values | None:
    found = describe(call, "describe_addresses", "Addresses", NO_ADDRESS, AllocationIds=[identifier])
    if found is None:
        return None
    return {
        "allocationId": identifier, "publicIp": found["PublicIp"], "domain": found["Domain"],
        "associationId": found.get("AssociationId", ""), "privateIp": found.get("PrivateIpAddress", ""),
        "arn": arn(call, "elastic-ip", identifier), "tags": from_pairs(found.get("Tags")),
        "publicDns": f"ec2-{found['PublicIp'].replace('.', '-')}.compute-1.amazonaws.com",
    }  # fmt: skip


def _eip_delete(call: Call, identifier: str) -> None:
    absent(lambda: call.client("ec2").release_address(AllocationId=identifier), NO_ADDRESS)


def _nat_create(call: Call) -> str:
    arguments = given(
        call.inputs, SubnetId="subnetId", AllocationId="allocationId", ConnectivityType="connectivityType",
        PrivateIpAddress="privateIp",
    )  # fmt: skip
    tags = specification("natgateway", call)
    answer = call.client("ec2").create_nat_gateway(**arguments, TagSpecifications=tags, ClientToken=call.token)
    return str(answer["NatGateway"]["NatGatewayId"])


def _nat(call: Call, identifier: str) -> Values | None:
    found = describe(call, "describe_nat_gateways", "NatGateways", "NatGatewayNotFound", NatGatewayIds=[identifier])
    return None if found is None or found["State"] == "deleted" else found


def _nat_wait(call: Call, identifier: str) -> None:
    def available() -> bool | None:
        found = _nat(call, identifier)
        if found is None or found["State"] == "failed":
            raise ProviderError(f"NAT gateway {identifier} failed: {(found or {}).get('FailureMessage', 'it is gone')}")
        return True if found["State"] == "available" else None

    call.wait(f"waiting for NAT gateway {identifier}", available, NAT_SECONDS)


def _nat_read(call: Call, identifier: str) -> Values | None:
    found = _nat(call, identifier)
    if found is None:
        return None
    address = (found.get("NatGatewayAddresses") or [{}])[0]
    return {
        "subnetId": found["SubnetId"], "allocationId": address.get("AllocationId"),
        "connectivityType": found.get("ConnectivityType", "public"), "privateIp": address.get("PrivateIp", ""),
        "publicIp": address.get("PublicIp", ""), "networkInterfaceId": address.get("NetworkInterfaceId", ""),
        "associationId": address.get("AssociationId", ""), "tags": from_pairs(found.get("Tags")),
    }  # fmt: skip


def _nat_delete(call: Call, identifier: str) -> None:
    if _nat(call, identifier) is None:
        return
    call.client("ec2").delete_nat_gateway(NatGatewayId=identifier)
    call.wait(f"waiting for NAT gateway {identifier} to end", lambda: True if _nat(call, identifier) is None else None,
              NAT_SECONDS)  # fmt: skip


RESOURCES = {
    "aws:ec2/internetGateway:InternetGateway": Resource(
        props={"vpcId": text(), **TAGS}, outputs=("arn", "ownerId"),
        find=finder("describe_internet_gateways", "InternetGateways", "InternetGatewayId"), create=_igw_create,
        finish=_igw_attach, read=_igw_read, update=_igw_update, delete=_igw_delete,
    ),
    "aws:ec2/eip:Eip": Resource(
        props={"domain": text("vpc", replace=True, computed=True), **TAGS},
        outputs=("allocationId", "arn", "associationId", "privateIp", "publicDns", "publicIp"),
        find=finder("describe_addresses", "Addresses", "AllocationId"), create=_eip_create, read=_eip_read,
        update=retag,
        delete=_eip_delete,
    ),
    "aws:ec2/natGateway:NatGateway": Resource(
        props={
            "subnetId": text(replace=True, required=True), "allocationId": text(replace=True),
            "connectivityType": text("public", "private", replace=True, computed=True),
            "privateIp": text(replace=True, computed=True), **TAGS,
        },
        outputs=("associationId", "networkInterfaceId", "publicIp"),
        find=finder("describe_nat_gateways", "NatGateways", "NatGatewayId", gone=("deleted", "failed")),
        create=_nat_create, finish=_nat_wait, read=_nat_read, update=retag, delete=_nat_delete,
        unique=("allocationId",),
    ),
}  # fmt: skip
