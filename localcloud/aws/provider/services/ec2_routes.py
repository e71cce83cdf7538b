"""Route tables, their routes, and which subnet uses which."""

from __future__ import annotations

from typing import Any

from localcloud.aws.provider.model import Call, ProviderError, Resource, absent, from_pairs
from localcloud.aws.provider.schema import TAGS, Prop, Values, objects, text
from localcloud.aws.provider.services.ec2_common import Found, arn, describe, finder, given, retag, specification

NO_TABLE = "InvalidRouteTableID.NotFound"
TARGETS = {
    "GatewayId": "gatewayId", "NatGatewayId": "natGatewayId", "NetworkInterfaceId": "networkInterfaceId",
    "TransitGatewayId": "transitGatewayId", "EgressOnlyInternetGatewayId": "egressOnlyGatewayId",
    "VpcPeeringConnectionId": "vpcPeeringConnectionId",
}  # fmt: skip
INLINE: dict[str, Prop] = {"cidrBlock": text(), **{name: text() for name in TARGETS.values()}}


def _table(call: Call, identifier: str) -> Found | None:
    return describe(call, "describe_route_tables", "RouteTables", NO_TABLE, RouteTableIds=[identifier])


def _table_create(call: Call) -> str:
    tags = specification("route-table", call)
    answer = call.client("ec2").create_route_table(VpcId=call.inputs["vpcId"], TagSpecifications=tags)
    return str(answer["RouteTable"]["RouteTableId"])


def _inline_routes(table: Found) -> list[Values]:
    """The routes that a person made, in the form of the `routes` property."""
    return [
        {
            "cidrBlock": route["DestinationCidrBlock"],
            **{name: route[aws] for aws, name in TARGETS.items() if route.get(aws)},
        }
        for route in table["Routes"]
        if route.get("DestinationCidrBlock") and route.get("GatewayId") != "local"
    ]


def _table_finish(call: Call, identifier: str) -> None:
    """Make inline routes what `routes` says, where it is given; separate Route resources are left alone otherwise."""
    if call.inputs.get("routes") is None and not call.old.get("routes"):
        return
    ec2 = call.client("ec2")
    present = {route["cidrBlock"]: route for route in _inline_routes(_table(call, identifier) or {"Routes": []})}
    wanted = {route["cidrBlock"]: route for route in call.inputs.get("routes") or []}
    for cidr in present.keys() - wanted.keys():
        ec2.delete_route(RouteTableId=identifier, DestinationCidrBlock=cidr)
    for cidr, route in wanted.items():
        target = {aws: route[name] for aws, name in TARGETS.items() if route.get(name)}
        if cidr not in present:
            ec2.create_route(RouteTableId=identifier, DestinationCidrBlock=cidr, **target)
        elif present[cidr] != {"cidrBlock": cidr, **{TARGETS[aws]: value for aws, value in target.items()}}:
            ec2.replace_route(RouteTableId=identifier, DestinationCidrBlock=cidr, **target)


def _table_read(call: Call, identifier: str) -> Values | None:
    table = _table(call, identifier)
    if table is None:
        return None
    return {
        "vpcId": table["VpcId"], "ownerId": table["OwnerId"], "arn": arn(call, "route-table", identifier),
        "routes": _inline_routes(table), "tags": from_pairs(table.get("Tags")),
    }  # fmt: skip


def _table_update(call: Call, identifier: str) -> None:
    _table_finish(call, identifier)
    retag(call, identifier)


def _table_delete(call: Call, identifier: str) -> None:
    absent(lambda: call.client("ec2").delete_route_table(RouteTableId=identifier), NO_TABLE)


DESTINATIONS = {"DestinationCidrBlock": "destinationCidrBlock", "DestinationIpv6CidrBlock": "destinationIpv6CidrBlock"}


def _route(call: Call) -> Found | None:
    table = _table(call, call.inputs["routeTableId"])
    for route in (table or {"Routes": []})["Routes"]:
        if any(call.inputs.get(name) and route.get(aws) == call.inputs[name] for aws, name in DESTINATIONS.items()):
            return dict(route)
    return None


def _target(values: Values) -> dict[str, Any]:
    target = given(values, **TARGETS)
    if len(target) != 1:
        raise ProviderError(f"a route has exactly one target ({', '.join(TARGETS.values())}), not {len(target)}")
    return target


def _route_id(call: Call) -> str:
    destination = next((call.inputs[name] for name in DESTINATIONS.values() if call.inputs.get(name)), None)
    if destination is None:
        raise ProviderError(f"a route needs one of {', '.join(DESTINATIONS.values())}")
    return f"r-{call.inputs['routeTableId']}_{destination}"


def _route_find(call: Call) -> str | None:
    """A route has no tags: one to the same place by the same way is what a killed create left."""
    found, target = _route(call), _target(call.inputs)
    return _route_id(call) if found and all(found.get(aws) == value for aws, value in target.items()) else None


def _route_create(call: Call) -> str:
    destination = given(call.inputs, **DESTINATIONS)
    call.client("ec2").create_route(RouteTableId=call.inputs["routeTableId"], **destination, **_target(call.inputs))
    return _route_id(call)


def _route_read(call: Call, identifier: str) -> Values | None:
    found = _route(call)
    if found is None:
        return None
    return {
        "routeTableId": call.inputs["routeTableId"], "state": found.get("State", "active"),
        "origin": found.get("Origin", "CreateRoute"), "instanceId": "", "instanceOwnerId": "",
        **{name: found[aws] for aws, name in {**DESTINATIONS, **TARGETS}.items() if found.get(aws)},
    }  # fmt: skip


def _route_update(call: Call, identifier: str) -> None:
    destination = given(call.inputs, **DESTINATIONS)
    call.client("ec2").replace_route(RouteTableId=call.inputs["routeTableId"], **destination, **_target(call.inputs))


def _route_delete(call: Call, identifier: str) -> None:
    destination = given(call.inputs, **DESTINATIONS)
    ec2, table = call.client("ec2"), call.inputs["routeTableId"]
    absent(lambda: ec2.delete_route(RouteTableId=table, **destination), "InvalidRoute.NotFound", NO_TABLE)


def _associations(call: Call) -> list[Found]:
    tables = call.client("ec2").describe_route_tables()["RouteTables"]
    return [association for table in tables for association in table["Associations"]]


def _association_find(call: Call) -> str | None:
    for found in _associations(call):
        wanted = (call.inputs["routeTableId"], call.inputs.get("subnetId"))
        if (found["RouteTableId"], found.get("SubnetId")) == wanted and not found.get("Main"):
            return str(found["RouteTableAssociationId"])
    return None


def _association_create(call: Call) -> str:
    arguments = given(call.inputs, RouteTableId="routeTableId", SubnetId="subnetId", GatewayId="gatewayId")
    return str(call.client("ec2").associate_route_table(**arguments)["AssociationId"])


def _association_read(call: Call, identifier: str) -> Values | None:
    for found in _associations(call):
        if found["RouteTableAssociationId"] == identifier:
            return {"routeTableId": found["RouteTableId"], "subnetId": found.get("SubnetId")}
    return None


def _association_delete(call: Call, identifier: str) -> None:
    ec2 = call.client("ec2")
    absent(lambda: ec2.disassociate_route_table(AssociationId=identifier), "InvalidAssociationID.NotFound")


RESOURCES = {
    "aws:ec2/routeTable:RouteTable": Resource(
        props={"vpcId": text(replace=True, required=True), "routes": objects(INLINE, computed=True), **TAGS},
        outputs=("arn", "ownerId"), find=finder("describe_route_tables", "RouteTables", "RouteTableId"),
        create=_table_create, finish=_table_finish, read=_table_read, update=_table_update, delete=_table_delete,
    ),
    "aws:ec2/route:Route": Resource(
        props={
            "routeTableId": text(replace=True, required=True),
            **{name: text(replace=True) for name in DESTINATIONS.values()},
            **{name: text() for name in TARGETS.values()},
        },
        outputs=("state", "origin", "instanceId", "instanceOwnerId"), find=_route_find, create=_route_create,
        read=_route_read, update=_route_update, delete=_route_delete,
        unique=("routeTableId", *DESTINATIONS.values()),
    ),
    "aws:ec2/routeTableAssociation:RouteTableAssociation": Resource(
        props={"routeTableId": text(replace=True, required=True), "subnetId": text(replace=True)},
        outputs=(), find=_association_find, create=_association_create, read=_association_read,
        delete=_association_delete, unique=("subnetId",),
    ),
}  # fmt: skip
