"""Security groups and their rules."""

from __future__ import annotations

from typing import Any

from localcloud.aws.provider.model import CREATE_TAG, Call, ProviderError, Resource, absent, from_pairs
from localcloud.aws.provider.schema import TAGS, Prop, Values, flag, number, objects, strings, text
from localcloud.aws.provider.services.ec2_common import Found, arn, describe, finder, given, retag, specification

NO_GROUP = "InvalidGroup.NotFound"
RULE: dict[str, Prop] = {
    "protocol": text(required=True), "fromPort": number(required=True), "toPort": number(required=True),
    "cidrBlocks": strings(), "ipv6CidrBlocks": strings(), "securityGroups": strings(), "self": flag(),
    "description": text(),
}  # fmt: skip
DIRECTIONS = {"ingress": "IpPermissions", "egress": "IpPermissionsEgress"}


def _group(call: Call, identifier: str) -> Found | None:
    return describe(call, "describe_security_groups", "SecurityGroups", NO_GROUP, GroupIds=[identifier])


def _group_create(call: Call) -> str:
    answer = call.client("ec2").create_security_group(
        GroupName=call.inputs["name"], Description=call.inputs.get("description") or "Managed by Pulumi",
        **given(call.inputs, VpcId="vpcId"), TagSpecifications=specification("security-group", call),
    )  # fmt: skip
    return str(answer["GroupId"])


def _permission(rule: Values, group: str) -> Found:
    """One inline rule as EC2's IpPermission."""
    note = {"Description": rule["description"]} if rule.get("description") else {}
    sources = [*(rule.get("securityGroups") or []), *([group] if rule.get("self") else [])]
    permission: Found = {"IpProtocol": str(rule["protocol"])}
    if permission["IpProtocol"] != "-1":
        permission |= {"FromPort": int(rule["fromPort"]), "ToPort": int(rule["toPort"])}
    if rule.get("cidrBlocks"):
        permission["IpRanges"] = [{"CidrIp": cidr, **note} for cidr in rule["cidrBlocks"]]
    if rule.get("ipv6CidrBlocks"):
        permission["Ipv6Ranges"] = [{"CidrIpv6": cidr, **note} for cidr in rule["ipv6CidrBlocks"]]
    if sources:
        permission["UserIdGroupPairs"] = [{"GroupId": source, **note} for source in sources]
    return permission


def _flat(permissions: list[Found]) -> dict[tuple[Any, ...], Found]:
    """Permissions split into single rules; the key is what EC2 holds two rules equal by."""
    kinds = (("IpRanges", "CidrIp"), ("Ipv6Ranges", "CidrIpv6"), ("UserIdGroupPairs", "GroupId"))
    flat: dict[tuple[Any, ...], Found] = {}
    for permission in permissions:
        base = {k: permission[k] for k in ("IpProtocol", "FromPort", "ToPort") if permission.get(k) is not None}
        if base["IpProtocol"] == "-1":
            base = {"IpProtocol": "-1"}
        for kind, name in kinds:
            for item in permission.get(kind) or []:
                keep = {k: item[k] for k in (name, "Description") if item.get(k)}
                flat[(*base.values(), kind, item[name])] = {**base, kind: [keep]}
    return flat


def set_rules(call: Call, group: str) -> None:
    """Make inline rules what `ingress` and `egress` say; where one is not given it is left alone.

    A new group loses the rule that lets everything out, as Terraform and Pulumi do it.
    """
    ec2 = call.client("ec2")
    found = _group(call, group)
    if found is None:
        raise ProviderError(f"security group {group} is gone")
    for direction, field in DIRECTIONS.items():
        if call.inputs.get(direction) is None and call.old.get(direction) is None:
            continue
        present = _flat(found[field])
        wanted = _flat([_permission(rule, group) for rule in call.inputs.get(direction) or []])
        gone = [rule for key, rule in present.items() if wanted.get(key) != rule]
        new = [rule for key, rule in wanted.items() if present.get(key) != rule]
        if gone:
            getattr(ec2, f"revoke_security_group_{direction}")(GroupId=group, IpPermissions=gone)
        if new:
            getattr(ec2, f"authorize_security_group_{direction}")(GroupId=group, IpPermissions=new)


def _group_finish(call: Call, group: str) -> None:
    set_rules(call, group)
    if call.inputs.get("egress") is None:
        found = _group(call, group) or {"IpPermissionsEgress": []}
        everything = {"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}
        if list(_flat(found["IpPermissionsEgress"]).values()) == [everything]:
            call.client("ec2").revoke_security_group_egress(GroupId=group, IpPermissions=[everything])


def _inline(permissions: list[Found], group: str) -> list[Values]:
    """EC2's permissions in the form of the inline properties, one entry for each protocol, ports and description."""
    merged: dict[tuple[Any, ...], Values] = {}
    for rule in _flat(permissions).values():
        kind = next(k for k in ("IpRanges", "Ipv6Ranges", "UserIdGroupPairs") if k in rule)
        item, ports = rule[kind][0], (rule.get("FromPort", 0), rule.get("ToPort", 0))
        entry = merged.setdefault((rule["IpProtocol"], *ports, item.get("Description", "")), {
            "protocol": rule["IpProtocol"], "fromPort": ports[0], "toPort": ports[1],
        })  # fmt: skip
        if item.get("Description"):
            entry["description"] = item["Description"]
        if item.get("GroupId") == group:
            entry["self"] = True
        else:
            name = {"IpRanges": "cidrBlocks", "Ipv6Ranges": "ipv6CidrBlocks", "UserIdGroupPairs": "securityGroups"}[
                kind
            ]
            entry.setdefault(name, []).append(next(item[k] for k in ("CidrIp", "CidrIpv6", "GroupId") if k in item))
    return list(merged.values())


def _seen(call: Call, found: Found, direction: str) -> list[Values]:
    """Inline rules as the program wrote them where they mean what EC2 has, else as EC2 has them."""
    group, given = str(found["GroupId"]), call.inputs.get(direction)
    if given and _flat([_permission(rule, group) for rule in given]) == _flat(found[DIRECTIONS[direction]]):
        return list(given)
    return _inline(found[DIRECTIONS[direction]], group)


def _group_read(call: Call, identifier: str) -> Values | None:
    found = _group(call, identifier)
    if found is None:
        return None
    return {
        "name": found["GroupName"], "description": found["Description"], "vpcId": found.get("VpcId"),
        "ownerId": found["OwnerId"], "arn": arn(call, "security-group", identifier),
        "ingress": _seen(call, found, "ingress"), "egress": _seen(call, found, "egress"),
        "tags": from_pairs(found.get("Tags")),
    }  # fmt: skip


def _group_update(call: Call, group: str) -> None:
    set_rules(call, group)
    retag(call, group)


def _group_delete(call: Call, group: str) -> None:
    if call.inputs.get("revokeRulesOnDelete"):
        _revoke_all(call, group)
    absent(lambda: call.client("ec2").delete_security_group(GroupId=group), NO_GROUP)


def _revoke_all(call: Call, group: str) -> None:
    found = _group(call, group)
    for direction, field in DIRECTIONS.items():
        rules = list(_flat(found[field]).values()) if found else []
        if rules:
            getattr(call.client("ec2"), f"revoke_security_group_{direction}")(GroupId=group, IpPermissions=rules)


def _default_create(call: Call) -> str:
    """The default group exists already: it is adopted, and its rules become those of the inputs."""
    filters = [{"Name": "group-name", "Values": ["default"]}]
    if call.inputs.get("vpcId"):
        filters.append({"Name": "vpc-id", "Values": [call.inputs["vpcId"]]})
    found = call.client("ec2").describe_security_groups(Filters=filters)["SecurityGroups"]
    if not found:
        raise ProviderError(f"VPC {call.inputs.get('vpcId')} has no default security group: does the VPC exist?")
    return str(found[0]["GroupId"])


def _default_finish(call: Call, group: str) -> None:
    inputs = {**call.inputs, "ingress": call.inputs.get("ingress") or [], "egress": call.inputs.get("egress") or []}
    set_rules(Call(call.session, call.urn, inputs, call.log, call.old, call.outputs, call.seconds), group)
    retag(call, group)


def _default_delete(call: Call, group: str) -> None:
    """It lives and ends with its VPC; Pulumi only stops to manage it."""


def _rule_permission(inputs: Values) -> Found:
    sources = given(
        inputs, cidrBlocks="cidrIpv4", ipv6CidrBlocks="cidrIpv6", securityGroups="referencedSecurityGroupId"
    )
    if len(sources) != 1:
        raise ProviderError("a rule has exactly one of cidrIpv4, cidrIpv6 and referencedSecurityGroupId")
    rule: Values = {name: [value] for name, value in sources.items()}
    rule |= {"protocol": inputs["ipProtocol"], "description": inputs.get("description")}
    if str(inputs["ipProtocol"]) != "-1":
        if inputs.get("fromPort") is None or inputs.get("toPort") is None:
            raise ProviderError(f"ipProtocol {inputs['ipProtocol']} needs fromPort and toPort")
        rule |= {"fromPort": inputs["fromPort"], "toPort": inputs["toPort"]}
    return _permission(rule, "")


def _rules(call: Call, group: str) -> list[Found]:
    filters = [{"Name": "group-id", "Values": [group]}]
    return list(call.client("ec2").describe_security_group_rules(Filters=filters)["SecurityGroupRules"])


def _rule_find(call: Call) -> str | None:
    for rule in _rules(call, call.inputs["securityGroupId"]):
        if from_pairs(rule.get("Tags")).get(CREATE_TAG) == call.token:
            return str(rule["SecurityGroupRuleId"])
    return None


def _rule_resource(direction: str) -> Resource:
    """Ingress and egress rules differ in the name of the calls only."""

    def create(call: Call) -> str:
        answer = getattr(call.client("ec2"), f"authorize_security_group_{direction}")(
            GroupId=call.inputs["securityGroupId"], IpPermissions=[_rule_permission(call.inputs)],
            TagSpecifications=specification("security-group-rule", call),
        )  # fmt: skip
        return str(answer["SecurityGroupRules"][0]["SecurityGroupRuleId"])

    def read(call: Call, identifier: str) -> Values | None:
        for rule in _rules(call, call.inputs["securityGroupId"]):
            if rule["SecurityGroupRuleId"] == identifier:
                protocol = rule["IpProtocol"]
                source = (rule.get("ReferencedGroupInfo") or {}).get("GroupId")
                return {
                    "securityGroupId": rule["GroupId"], "ipProtocol": protocol, "cidrIpv4": rule.get("CidrIpv4"),
                    "cidrIpv6": rule.get("CidrIpv6"), "referencedSecurityGroupId": source,
                    "fromPort": None if protocol == "-1" else rule.get("FromPort"),
                    "toPort": None if protocol == "-1" else rule.get("ToPort"),
                    "description": rule.get("Description") or None, "securityGroupRuleId": identifier,
                    "arn": arn(call, "security-group-rule", identifier), "tags": from_pairs(rule.get("Tags")),
                }  # fmt: skip
        return None

    def update(call: Call, identifier: str) -> None:
        if call.changed("description"):
            getattr(call.client("ec2"), f"update_security_group_rule_descriptions_{direction}")(
                GroupId=call.inputs["securityGroupId"], IpPermissions=[_rule_permission(call.inputs)]
            )
        retag(call, identifier)

    def delete(call: Call, identifier: str) -> None:
        if read(call, identifier) is not None:
            revoke = getattr(call.client("ec2"), f"revoke_security_group_{direction}")
            permissions = [_rule_permission(call.inputs)]
            revoke(GroupId=call.inputs["securityGroupId"], IpPermissions=permissions)

    return Resource(
        props={
            "securityGroupId": text(replace=True, required=True), "ipProtocol": text(replace=True, required=True),
            "fromPort": number(replace=True), "toPort": number(replace=True), "cidrIpv4": text(replace=True),
            "cidrIpv6": text(replace=True), "referencedSecurityGroupId": text(replace=True), "description": text(),
            **TAGS,
        },
        outputs=("arn", "securityGroupRuleId"), find=_rule_find, create=create, read=read, update=update, delete=delete,
        unique=("securityGroupId", "ipProtocol", "fromPort", "toPort", "cidrIpv4", "cidrIpv6",
                "referencedSecurityGroupId"),
    )  # fmt: skip


RESOURCES = {
    "aws:ec2/securityGroup:SecurityGroup": Resource(
        props={
            "name": text(replace=True, name=255), "namePrefix": text(replace=True), "description": text(replace=True),
            "vpcId": text(replace=True, computed=True), "ingress": objects(RULE, computed=True),
            "egress": objects(RULE, computed=True), "revokeRulesOnDelete": flag(), **TAGS,
        },
        outputs=("arn", "ownerId"), find=finder("describe_security_groups", "SecurityGroups", "GroupId"),
        create=_group_create, finish=_group_finish, read=_group_read, update=_group_update, delete=_group_delete,
        unique=("name", "vpcId"),
    ),
    "aws:ec2/defaultSecurityGroup:DefaultSecurityGroup": Resource(
        props={
            "vpcId": text(replace=True, computed=True), "ingress": objects(RULE), "egress": objects(RULE),
            "revokeRulesOnDelete": flag(), **TAGS,
        },
        outputs=("arn", "description", "name", "ownerId"), create=_default_create, finish=_default_finish,
        read=_group_read,
        update=_default_finish, delete=_default_delete,
    ),
    "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule": _rule_resource("ingress"),
    "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule": _rule_resource("egress"),
}  # fmt: skip
