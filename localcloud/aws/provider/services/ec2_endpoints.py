"""VPC endpoints and flow logs."""

from __future__ import annotations

from localcloud.aws.provider.model import Call, ProviderError, Resource, absent, from_pairs
from localcloud.aws.provider.schema import TAGS, Values, document, flag, number, strings, text
from localcloud.aws.provider.services.ec2_common import Found, arn, describe, finder, given, retag, specification

ENDPOINT_SECONDS = 600
NO_ENDPOINT = "InvalidVpcEndpointId.NotFound"


def _endpoint_create(call: Call) -> str:
    inputs = call.inputs
    kind = inputs.get("vpcEndpointType") or "Gateway"
    answer = call.client("ec2").create_vpc_endpoint(
        **given(inputs, VpcId="vpcId", ServiceName="serviceName", PolicyDocument="policy",
                RouteTableIds="routeTableIds", SubnetIds="subnetIds", SecurityGroupIds="securityGroupIds"),
        VpcEndpointType=kind, PrivateDnsEnabled=bool(inputs.get("privateDnsEnabled")), ClientToken=call.token,
        TagSpecifications=specification("vpc-endpoint", call),
    )  # fmt: skip
    return str(answer["VpcEndpoint"]["VpcEndpointId"])


def _endpoint(call: Call, identifier: str) -> Found | None:
    found = describe(call, "describe_vpc_endpoints", "VpcEndpoints", NO_ENDPOINT, VpcEndpointIds=[identifier])
    return None if found is None or found.get("State") == "deleted" else found


def _endpoint_wait(call: Call, identifier: str) -> None:
    def available() -> bool | None:
        found = _endpoint(call, identifier)
        if found is None or found["State"] in ("failed", "rejected"):
            raise ProviderError(f"VPC endpoint {identifier} is {found['State'] if found else 'gone'}")
        return True if found["State"] == "available" else None

    call.wait(f"waiting for VPC endpoint {identifier}", available, ENDPOINT_SECONDS)


def _endpoint_read(call: Call, identifier: str) -> Values | None:
    found = _endpoint(call, identifier)
    if found is None:
        return None
    return {
        "vpcId": found["VpcId"], "serviceName": found["ServiceName"], "vpcEndpointType": found["VpcEndpointType"],
        "policy": found.get("PolicyDocument"), "privateDnsEnabled": bool(found.get("PrivateDnsEnabled")),
        "routeTableIds": found.get("RouteTableIds") or [], "subnetIds": found.get("SubnetIds") or [],
        "securityGroupIds": [group["GroupId"] for group in found.get("Groups") or []], "state": found["State"],
        "networkInterfaceIds": found.get("NetworkInterfaceIds") or [], "ownerId": call.session.account,
        "dnsEntries": [{"dnsName": e.get("DnsName", ""), "hostedZoneId": e.get("HostedZoneId", "")}
                       for e in found.get("DnsEntries") or []],
        "requesterManaged": False, "cidrBlocks": [], "prefixListId": "", "tags": from_pairs(found.get("Tags")),
        "arn": arn(call, "vpc-endpoint", identifier),
    }  # fmt: skip


def _endpoint_update(call: Call, identifier: str) -> None:
    arguments: Found = {}
    for name, aws in (
        ("routeTableIds", "RouteTableIds"),
        ("subnetIds", "SubnetIds"),
        ("securityGroupIds", "SecurityGroupIds"),
    ):
        new, old = set(call.inputs.get(name) or []), set(call.old.get(name) or [])
        if new - old:
            arguments[f"Add{aws}"] = sorted(new - old)
        if old - new:
            arguments[f"Remove{aws}"] = sorted(old - new)
    if call.changed("policy"):
        arguments |= given(call.inputs, PolicyDocument="policy") or {"ResetPolicy": True}
    if call.changed("privateDnsEnabled"):
        arguments["PrivateDnsEnabled"] = bool(call.inputs.get("privateDnsEnabled"))
    if arguments:
        call.client("ec2").modify_vpc_endpoint(VpcEndpointId=identifier, **arguments)
    retag(call, identifier)


def _endpoint_delete(call: Call, identifier: str) -> None:
    if _endpoint(call, identifier) is None:
        return
    absent(lambda: call.client("ec2").delete_vpc_endpoints(VpcEndpointIds=[identifier]), NO_ENDPOINT)
    call.wait(f"waiting for VPC endpoint {identifier} to end",
              lambda: True if _endpoint(call, identifier) is None else None, ENDPOINT_SECONDS)  # fmt: skip


LOG_TARGETS = {"vpcId": "VPC", "subnetId": "Subnet", "eniId": "NetworkInterface"}


def _log_create(call: Call) -> str:
    inputs = call.inputs
    targets = [(kind, inputs[name]) for name, kind in LOG_TARGETS.items() if inputs.get(name)]
    if len(targets) != 1:
        raise ProviderError(f"a flow log has exactly one of {', '.join(LOG_TARGETS)}, not {len(targets)}")
    answer = call.client("ec2").create_flow_logs(
        ResourceType=targets[0][0], ResourceIds=[targets[0][1]], ClientToken=call.token,
        LogDestinationType=inputs.get("logDestinationType") or "cloud-watch-logs",
        **given(inputs, TrafficType="trafficType", DeliverLogsPermissionArn="iamRoleArn",
                LogDestination="logDestination", LogFormat="logFormat",
                MaxAggregationInterval="maxAggregationInterval"),
        **_group_name(inputs), TagSpecifications=specification("vpc-flow-log", call),
    )  # fmt: skip
    if answer.get("Unsuccessful"):
        raise ProviderError(answer["Unsuccessful"][0]["Error"]["Message"])
    return str(answer["FlowLogIds"][0])


def _group_name(inputs: Values) -> dict[str, str]:
    """moto wants to know the log group by its name as well."""
    if (inputs.get("logDestinationType") or "cloud-watch-logs") != "cloud-watch-logs":
        return {}
    return {"LogGroupName": str(inputs.get("logDestination", "")).split(":log-group:")[-1].removesuffix(":*")}


def _log_read(call: Call, identifier: str) -> Values | None:
    found = describe(call, "describe_flow_logs", "FlowLogs", "InvalidFlowLogId.NotFound", FlowLogIds=[identifier])
    if found is None:
        return None
    name = next((n for n, prefix in (("vpcId", "vpc-"), ("subnetId", "subnet-"), ("eniId", "eni-"))
                 if found["ResourceId"].startswith(prefix)), "vpcId")  # fmt: skip
    return {
        name: found["ResourceId"], "trafficType": found.get("TrafficType"),
        "iamRoleArn": found.get("DeliverLogsPermissionArn"),
        "logDestination": found.get("LogDestination"), "logDestinationType": found.get("LogDestinationType"),
        "logFormat": found.get("LogFormat"), "maxAggregationInterval": int(found.get("MaxAggregationInterval", 600)),
        "arn": arn(call, "vpc-flow-log", identifier), "tags": from_pairs(found.get("Tags")),
    }  # fmt: skip


def _log_delete(call: Call, identifier: str) -> None:
    absent(lambda: call.client("ec2").delete_flow_logs(FlowLogIds=[identifier]), "InvalidFlowLogId.NotFound")


RESOURCES = {
    "aws:ec2/vpcEndpoint:VpcEndpoint": Resource(
        props={
            "vpcId": text(replace=True, required=True), "serviceName": text(replace=True, required=True),
            "vpcEndpointType": text("Gateway", "Interface", replace=True, computed=True),
            "policy": document(computed=True),
            "privateDnsEnabled": flag(computed=True), "routeTableIds": strings(computed=True),
            "subnetIds": strings(computed=True), "securityGroupIds": strings(computed=True), **TAGS,
        },
        outputs=("arn", "cidrBlocks", "dnsEntries", "networkInterfaceIds", "ownerId", "prefixListId",
                 "requesterManaged", "state"),
        find=finder("describe_vpc_endpoints", "VpcEndpoints", "VpcEndpointId", gone=("deleted",)),
        create=_endpoint_create,
        finish=_endpoint_wait, read=_endpoint_read, update=_endpoint_update, delete=_endpoint_delete,
    ),
    "aws:ec2/flowLog:FlowLog": Resource(
        props={
            "vpcId": text(replace=True), "subnetId": text(replace=True), "eniId": text(replace=True),
            "trafficType": text("ALL", "ACCEPT", "REJECT", replace=True), "iamRoleArn": text(replace=True),
            "logDestination": text(replace=True),
            "logDestinationType": text("cloud-watch-logs", "s3", "kinesis-data-firehose", replace=True),
            "logFormat": text(replace=True, computed=True),
            "maxAggregationInterval": number(replace=True, computed=True),
            **TAGS,
        },
        outputs=("arn",), find=finder("describe_flow_logs", "FlowLogs", "FlowLogId"), create=_log_create,
        read=_log_read,
        update=retag, delete=_log_delete,
    ),
}  # fmt: skip
