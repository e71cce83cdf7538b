"""Launch templates. Their content is not read back: a template version cannot change, a new version is made instead."""

from __future__ import annotations

from typing import Any

from localcloud.aws.provider.model import Call, Resource, absent, from_pairs, pairs, pascal
from localcloud.aws.provider.schema import TAGS, Prop, Values, block, flag, mapping, number, ordered, strings, text
from localcloud.aws.provider.services.ec2_common import arn, describe, finder, retag, specification

NO_TEMPLATE = ("InvalidLaunchTemplateId.NotFound", "InvalidLaunchTemplateId.Malformed",
               "InvalidLaunchTemplateName.NotFoundException")  # fmt: skip
EBS: dict[str, Prop] = {
    "deleteOnTermination": flag(), "encrypted": flag(), "iops": number(), "kmsKeyId": text(), "snapshotId": text(),
    "throughput": number(), "volumeSize": number(),
    "volumeType": text("gp2", "gp3", "io1", "io2", "st1", "sc1", "standard"),
}  # fmt: skip
INTERFACE: dict[str, Prop] = {
    "associatePublicIpAddress": flag(), "deleteOnTermination": flag(), "description": text(), "deviceIndex": number(),
    "interfaceType": text("interface", "efa", "efa-only"), "networkCardIndex": number(), "securityGroups": strings(),
    "subnetId": text(),
}  # fmt: skip
DATA: dict[str, Prop] = {
    "imageId": text(), "instanceType": text(), "keyName": text(), "userData": text(), "ebsOptimized": flag(),
    "vpcSecurityGroupIds": strings(), "monitoring": block({"enabled": flag()}),
    "blockDeviceMappings": ordered(
        fields={"deviceName": text(), "noDevice": text(), "virtualName": text(), "ebs": block(EBS)}
    ),
    "metadataOptions": block({
        "httpEndpoint": text("enabled", "disabled"), "httpTokens": text("required", "optional"),
        "httpPutResponseHopLimit": number(), "httpProtocolIpv6": text(), "instanceMetadataTags": text(),
    }),
    "tagSpecifications": ordered(fields={"resourceType": text(), "tags": mapping()}),
    "networkInterfaces": ordered(fields=INTERFACE), "iamInstanceProfile": block({"arn": text(), "name": text()}),
    "instanceMarketOptions": block({"marketType": text("spot", "capacity-block"), "spotOptions": block({
        "maxPrice": text(), "spotInstanceType": text(), "instanceInterruptionBehavior": text(), "validUntil": text(),
    })}),
    "capacityReservationSpecification": block({
        "capacityReservationPreference": text("open", "none", "capacity-reservations-only"),
        "capacityReservationTarget": block(
            {"capacityReservationId": text(), "capacityReservationResourceGroupArn": text()}
        ),
    }),
    "placement": block({"availabilityZone": text(), "groupName": text(), "groupId": text(), "tenancy": text(),
                        "partitionNumber": number()}),
    "cpuOptions": block({"coreCount": number(), "threadsPerCore": number()}),
}  # fmt: skip
BOOLEANS = {"DeleteOnTermination", "Encrypted", "AssociatePublicIpAddress", "EbsOptimized", "Enabled"}


def _data(inputs: Values) -> dict[str, Any]:
    """LaunchTemplateData of the inputs."""
    data: dict[str, Any] = _booleans(pascal({k: v for k, v in inputs.items() if k in DATA}))
    if "VpcSecurityGroupIds" in data:
        data["SecurityGroupIds"] = data.pop("VpcSecurityGroupIds")
    for interface in data.get("NetworkInterfaces", []):
        if "SecurityGroups" in interface:
            interface["Groups"] = interface.pop("SecurityGroups")
    given = inputs.get("tagSpecifications") or []
    if given:
        data["TagSpecifications"] = [
            {"ResourceType": s["resourceType"], "Tags": pairs(s.get("tags") or {})} for s in given
        ]
    return data


def _booleans(value: Any) -> Any:
    """Pulumi has some flags of templates as text."""
    if isinstance(value, dict):
        return {k: str(v).lower() == "true" if k in BOOLEANS else _booleans(v) for k, v in value.items()}
    return [_booleans(v) for v in value] if isinstance(value, list) else value


def _create(call: Call) -> str:
    arguments = {"VersionDescription": call.inputs["description"]} if call.inputs.get("description") else {}
    answer = call.client("ec2").create_launch_template(
        LaunchTemplateName=call.inputs["name"], LaunchTemplateData=_data(call.inputs), ClientToken=call.token,
        TagSpecifications=specification("launch-template", call), **arguments,
    )  # fmt: skip
    return str(answer["LaunchTemplate"]["LaunchTemplateId"])


def _read(call: Call, identifier: str) -> Values | None:
    found = None
    for code in NO_TEMPLATE[:1]:
        found = describe(call, "describe_launch_templates", "LaunchTemplates", code, LaunchTemplateIds=[identifier])
    if found is None:
        return None
    return {
        "name": found["LaunchTemplateName"], "defaultVersion": found["DefaultVersionNumber"],
        "latestVersion": found["LatestVersionNumber"], "arn": arn(call, "launch-template", identifier),
        "tags": from_pairs(found.get("Tags")),
    }  # fmt: skip


def _update(call: Call, identifier: str) -> None:
    ec2 = call.client("ec2")
    if call.changed(*DATA, "description"):
        arguments = {"VersionDescription": call.inputs["description"]} if call.inputs.get("description") else {}
        answer = ec2.create_launch_template_version(
            LaunchTemplateId=identifier, LaunchTemplateData=_data(call.inputs), **arguments
        )
        if call.inputs.get("updateDefaultVersion"):
            version = str(answer["LaunchTemplateVersion"]["VersionNumber"])
            ec2.modify_launch_template(LaunchTemplateId=identifier, DefaultVersion=version)
    if call.inputs.get("defaultVersion") and call.changed("defaultVersion"):
        ec2.modify_launch_template(LaunchTemplateId=identifier, DefaultVersion=str(call.inputs["defaultVersion"]))
    retag(call, identifier)


def _delete(call: Call, identifier: str) -> None:
    absent(lambda: call.client("ec2").delete_launch_template(LaunchTemplateId=identifier), *NO_TEMPLATE)


RESOURCES = {
    "aws:ec2/launchTemplate:LaunchTemplate": Resource(
        props={
            "name": text(replace=True, name=128), "namePrefix": text(replace=True), "description": text(),
            "updateDefaultVersion": flag(), "defaultVersion": number(computed=True), **DATA, **TAGS,
        },
        outputs=("arn", "latestVersion"),
        find=finder("describe_launch_templates", "LaunchTemplates", "LaunchTemplateId"),
        create=_create, read=_read, update=_update, delete=_delete, unique=("name",),
    ),
}  # fmt: skip
