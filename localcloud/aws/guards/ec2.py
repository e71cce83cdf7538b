"""EC2: nothing that others depend on can be deleted, nothing can refer to what does not exist."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from localcloud.aws.errors import AwsError
from localcloud.aws.guards import Table, World
from localcloud.aws.request import AwsRequest, members


def _violation(message: str, holders: Iterable[str]) -> AwsError:
    # AWS does not say what the dependants are; a stand-in that is there to find mistakes does.
    return AwsError("DependencyViolation", f"{message} (held by {', '.join(sorted(holders))})")


def _live_nats(ec2: Any) -> list[Any]:
    return [nat for nat in ec2.nat_gateways.values() if nat.state != "deleted"]


def _enis(ec2: Any, subnet: str) -> list[str]:
    return [eni.id for eni in ec2.enis.values() if eni.subnet.id == subnet]


def delete_vpc(world: World, request: AwsRequest) -> None:
    ec2, vpc = world.lookup.ec2, request.params.get("VpcId", "")
    if vpc not in ec2.vpcs:
        return
    holders = [subnet.id for subnet in world.lookup.subnets() if subnet.vpc == vpc]
    holders += [gateway.id for gateway in ec2.internet_gateways.values() if gateway.vpc and gateway.vpc.id == vpc]
    holders += [group.id for group in ec2.groups.get(vpc, {}).values() if group.name != "default"]
    holders += [t.id for t in ec2.route_tables.values() if t.vpc_id == vpc and t.main_association_id is None]
    holders += [endpoint.id for endpoint in ec2.vpc_end_points.values() if endpoint.vpc_id == vpc]
    holders += [nat.id for nat in _live_nats(ec2) if nat.vpc_id == vpc]
    if holders:
        raise _violation(f"The vpc '{vpc}' has dependencies and cannot be deleted.", holders)


def delete_subnet(world: World, request: AwsRequest) -> None:
    ec2, subnet = world.lookup.ec2, request.params.get("SubnetId", "")
    holders = [nat.id for nat in _live_nats(ec2) if nat.subnet_id == subnet] + _enis(ec2, subnet)
    holders += world.eks_users(subnet)
    if holders:
        raise _violation(f"The subnet '{subnet}' has dependencies and cannot be deleted.", holders)


def delete_security_group(world: World, request: AwsRequest) -> None:
    ec2, group = world.lookup.ec2, request.params.get("GroupId", "")
    vpc = world.lookup.security_group_vpc(group)
    if vpc is None:
        return
    if ec2.groups[vpc][group].name == "default":
        raise AwsError("CannotDelete", f'the specified group: "{group}" name: "default" cannot be deleted by a user')
    holders = world.eks_users(group)
    for other in ec2.groups[vpc].values():
        rules = [*other.ingress_rules, *other.egress_rules]
        if other.id != group and any(rule.source_group.get("GroupId") == group for rule in rules):
            holders.append(other.id)
    holders += [e.id for e in ec2.vpc_end_points.values() if group in (e.security_group_ids or [])]
    holders += [eni.id for eni in ec2.enis.values() if any(g.id == group for g in eni.group_set)]
    if holders:
        raise _violation(f"resource {group} has a dependent object", holders)


def detach_internet_gateway(world: World, request: AwsRequest) -> None:
    vpc = request.params.get("VpcId", "")
    nats = [nat for nat in _live_nats(world.lookup.ec2) if nat.vpc_id == vpc and nat.connectivity_type != "private"]
    if nats:
        raise _violation(
            f"Network {vpc} has some mapped public address(es). "
            "Please unmap those public address(es) before detaching the gateway.",
            [nat.id for nat in nats],
        )


def release_address(world: World, request: AwsRequest) -> None:
    allocation = request.params.get("AllocationId", "")
    for address in world.lookup.ec2.addresses:
        if address.allocation_id == allocation and address.association_id:
            raise AwsError("InvalidIPAddress.InUse", f"Address {address.public_ip} is in use.")


def create_nat_gateway(world: World, request: AwsRequest) -> None:
    ec2, params = world.lookup.ec2, request.params
    subnet = world.lookup.subnet(params.get("SubnetId", ""))
    if subnet is None:
        raise AwsError("InvalidSubnetID.NotFound", f"The subnet ID '{params.get('SubnetId')}' does not exist")
    if params.get("ConnectivityType") == "private":
        return
    allocation = params.get("AllocationId", "")
    address = next((a for a in ec2.addresses if a.allocation_id == allocation), None)
    if address is None:
        raise AwsError("InvalidAllocationID.NotFound", f"The allocation ID '{allocation}' does not exist")
    if address.association_id:
        raise AwsError("Resource.AlreadyAssociated", f"resource {allocation} is already associated")
    if not any(gateway.vpc and gateway.vpc.id == subnet.vpc for gateway in ec2.internet_gateways.values()):
        raise AwsError("Gateway.NotAttached", f"Network {subnet.vpc} has no Internet gateway attached")


def create_route(world: World, request: AwsRequest) -> None:
    nat = request.params.get("NatGatewayId")
    if nat and nat not in [found.id for found in _live_nats(world.lookup.ec2)]:
        raise AwsError("InvalidNatGatewayID.NotFound", f"The natGateway ID '{nat}' does not exist")
    gateway, ec2 = request.params.get("GatewayId"), world.lookup.ec2
    table = ec2.route_tables.get(request.params.get("RouteTableId", ""))
    found = ec2.internet_gateways.get(gateway)
    if found and table and (not found.vpc or found.vpc.id != table.vpc_id):
        raise AwsError(
            "InvalidParameterValue",
            f"route table {table.id} and network gateway {gateway} belong to different networks",
        )


def associate_route_table(world: World, request: AwsRequest) -> None:
    subnet_id = request.params.get("SubnetId")
    if not subnet_id:
        return
    subnet, table = world.lookup.subnet(subnet_id), request.params.get("RouteTableId", "")
    if subnet is None:
        raise AwsError("InvalidSubnetID.NotFound", f"The subnet ID '{subnet_id}' does not exist")
    for other in world.lookup.ec2.route_tables.values():
        if subnet_id in other._associations.values() and other.id != table:
            raise AwsError(
                "Resource.AlreadyAssociated",
                f"the specified association for route table {other.id} conflicts with an existing association",
            )


def create_vpc_endpoint(world: World, request: AwsRequest) -> None:
    ec2, params = world.lookup.ec2, request.params
    vpc = ec2.vpcs.get(params.get("VpcId", ""))
    if vpc is None:
        raise AwsError("InvalidVpcId.NotFound", f"The Vpc Id {params.get('VpcId')} does not exist")
    for table in members(params, "RouteTableId"):
        if table not in ec2.route_tables:
            raise AwsError("InvalidRouteTableId.NotFound", f"The routeTable ID '{table}' does not exist")
    for group in members(params, "SecurityGroupId"):
        if world.lookup.security_group_vpc(group) != vpc.id:
            raise AwsError(
                "InvalidSecurityGroupId.NotFound", f"The security group '{group}' does not exist in VPC '{vpc.id}'"
            )
    zones: set[str] = set()
    for subnet_id in members(params, "SubnetId"):
        subnet = world.lookup.subnet(subnet_id)
        if subnet is None or subnet.vpc != vpc.id:
            raise AwsError("InvalidSubnetId.NotFound", f"The subnet ID '{subnet_id}' does not exist")
        if subnet.zone in zones:
            raise AwsError("DuplicateSubnetsInSameZone", "Found another VPC endpoint subnet in the availability zone.")
        zones.add(subnet.zone)
    if params.get("VpcEndpointType") == "Interface" and params.get("PrivateDnsEnabled") == "true":
        # moto keeps these as text or as bool, by how they were set
        if {str(vpc.enable_dns_support).lower(), str(vpc.enable_dns_hostnames).lower()} != {"true"}:
            raise AwsError(
                "InvalidParameter",
                "Enabling private DNS requires both enableDnsSupport and enableDnsHostnames VPC attributes set to true "
                f"for {vpc.id}",
            )
        for other in ec2.vpc_end_points.values():
            if (other.vpc_id, other.service_name) == (vpc.id, params.get("ServiceName")) and other.private_dns_enabled:
                raise AwsError(
                    "InvalidParameter",
                    f"private-dns-enabled cannot be set because there is already a conflicting DNS domain for "
                    f"{other.service_name} in the VPC {vpc.id}",
                )


def create_security_group(world: World, request: AwsRequest) -> None:
    vpc = request.params.get("VpcId")
    if vpc and not world.lookup.vpc_exists(vpc):
        raise AwsError("InvalidVpcID.NotFound", f"The vpc ID '{vpc}' does not exist")


def authorize_rule(world: World, request: AwsRequest) -> None:
    """The groups that a rule refers to exist. A rule names them as IpPermissions.N.Groups.M.GroupId."""
    for name, value in request.params.items():
        refers = name.startswith("IpPermissions.") and name.endswith(".GroupId")
        if refers and world.lookup.security_group_vpc(value) is None:
            raise AwsError("InvalidGroup.NotFound", f"The security group '{value}' does not exist")


def create_flow_logs(world: World, request: AwsRequest) -> None:
    arn = request.params.get("DeliverLogsPermissionArn")
    if arn:
        role = world.lookup.role(arn)
        if role is None or not role.trusts("vpc-flow-logs.amazonaws.com"):
            raise AwsError(
                "InvalidParameter",
                f"LogsPermission role {arn} does not exist or does not trust vpc-flow-logs.amazonaws.com",
            )


def release_nat_gateway(world: World, request: AwsRequest) -> None:
    """moto leaves the network interface and the address association of a deleted NAT gateway."""
    ec2 = world.lookup.ec2
    nat = ec2.nat_gateways[request.params["NatGatewayId"]]
    for address in ec2.addresses:
        if address.eni is not None and address.eni.id == nat._eni.id:
            address.eni, address.association_id = None, None
    ec2.enis.pop(nat._eni.id, None)


def release_endpoints(world: World, request: AwsRequest) -> None:
    """moto leaves the network interfaces of deleted endpoints, in subnets that then cannot be deleted."""
    ec2 = world.lookup.ec2
    live = {eni for e in ec2.vpc_end_points.values() if e.state != "deleted" for eni in e.network_interface_ids}
    for eni in [eni for eni in ec2.enis.values() if eni.id not in live]:
        if eni.description == ENDPOINT_INTERFACE:
            del ec2.enis[eni.id]
    for endpoint in list(ec2.vpc_end_points.values()):
        if endpoint.state == "deleted":
            del ec2.vpc_end_points[endpoint.id]


ENDPOINT_INTERFACE = "VPC Endpoint Interface"


def describe_endpoint_interfaces(world: World, request: AwsRequest) -> None:
    """Give the interfaces of endpoints the description that AWS gives them; release_endpoints goes by it."""
    ec2 = world.lookup.ec2
    for endpoint in ec2.vpc_end_points.values():
        for eni in endpoint.network_interface_ids:
            ec2.enis[eni].description = ENDPOINT_INTERFACE


GUARDS: Table = {
    ("ec2", "DeleteVpc"): delete_vpc,
    ("ec2", "DeleteSubnet"): delete_subnet,
    ("ec2", "DeleteSecurityGroup"): delete_security_group,
    ("ec2", "DetachInternetGateway"): detach_internet_gateway,
    ("ec2", "ReleaseAddress"): release_address,
    ("ec2", "CreateNatGateway"): create_nat_gateway,
    ("ec2", "CreateRoute"): create_route,
    ("ec2", "ReplaceRoute"): create_route,
    ("ec2", "AssociateRouteTable"): associate_route_table,
    ("ec2", "CreateVpcEndpoint"): create_vpc_endpoint,
    ("ec2", "CreateSecurityGroup"): create_security_group,
    ("ec2", "AuthorizeSecurityGroupIngress"): authorize_rule,
    ("ec2", "AuthorizeSecurityGroupEgress"): authorize_rule,
    ("ec2", "CreateFlowLogs"): create_flow_logs,
}

EFFECTS: Table = {
    ("ec2", "DeleteNatGateway"): release_nat_gateway,
    ("ec2", "CreateVpcEndpoint"): describe_endpoint_interfaces,
    ("ec2", "ModifyVpcEndpoint"): describe_endpoint_interfaces,
    ("ec2", "DeleteVpcEndpoints"): release_endpoints,
}
