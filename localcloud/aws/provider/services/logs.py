"""CloudWatch log groups."""

from __future__ import annotations

from typing import Any

from localcloud.aws.provider.model import CREATE_TAG, Call, Resource, absent
from localcloud.aws.provider.schema import TAGS, Values, flag, number, text

MISSING = "ResourceNotFoundException"


def _group(call: Call, name: str) -> dict[str, Any] | None:
    for page in call.client("logs").get_paginator("describe_log_groups").paginate(logGroupNamePrefix=name):
        for group in page["logGroups"]:
            if group["logGroupName"] == name:
                return dict(group)
    return None


def _arn(group: dict[str, Any]) -> str:
    return str(group["arn"]).removesuffix(":*")


def _tags(call: Call, group: dict[str, Any]) -> dict[str, str]:
    return dict(call.client("logs").list_tags_for_resource(resourceArn=_arn(group))["tags"])


def _find(call: Call) -> str | None:
    group = _group(call, call.inputs["name"])
    if group is None or _tags(call, group).get(CREATE_TAG) != call.token:
        return None
    return str(group["logGroupName"])


def _create(call: Call) -> str:
    inputs = call.inputs
    arguments = {
        aws: inputs[n] for aws, n in (("kmsKeyId", "kmsKeyId"), ("logGroupClass", "logGroupClass")) if inputs.get(n)
    }
    call.client("logs").create_log_group(logGroupName=inputs["name"], tags=call.tags, **arguments)
    return str(inputs["name"])


def _finish(call: Call, name: str) -> None:
    logs, days = call.client("logs"), call.inputs.get("retentionInDays")
    if days:
        logs.put_retention_policy(logGroupName=name, retentionInDays=days)
    elif call.old.get("retentionInDays"):
        logs.delete_retention_policy(logGroupName=name)


def _read(call: Call, name: str) -> Values | None:
    group = _group(call, name)
    if group is None:
        return None
    return {
        "name": name, "arn": _arn(group), "retentionInDays": group.get("retentionInDays", 0),
        "kmsKeyId": group.get("kmsKeyId"), "tags": _tags(call, group),
        "logGroupClass": group.get("logGroupClass", "STANDARD"),
    }  # fmt: skip


def _update(call: Call, name: str) -> None:
    logs, group = call.client("logs"), _group(call, name)
    _finish(call, name)
    if call.changed("kmsKeyId"):
        if call.inputs.get("kmsKeyId"):
            logs.associate_kms_key(logGroupName=name, kmsKeyId=call.inputs["kmsKeyId"])
        else:
            logs.disassociate_kms_key(logGroupName=name)
    wanted, old = call.all_tags, call.old_tags
    gone = [key for key in old if key not in wanted]
    if group and gone:
        logs.untag_resource(resourceArn=_arn(group), tagKeys=gone)
    added = {key: value for key, value in wanted.items() if old.get(key) != value}
    if group and added:
        logs.tag_resource(resourceArn=_arn(group), tags=added)


def _delete(call: Call, name: str) -> None:
    if not call.inputs.get("skipDestroy"):
        absent(lambda: call.client("logs").delete_log_group(logGroupName=name), MISSING)


RESOURCES = {
    "aws:cloudwatch/logGroup:LogGroup": Resource(
        props={
            "name": text(replace=True, name=512), "namePrefix": text(replace=True), "retentionInDays": number(),
            "kmsKeyId": text(), "skipDestroy": flag(),
            "logGroupClass": text("STANDARD", "INFREQUENT_ACCESS", replace=True, computed=True), **TAGS,
        },
        outputs=("arn",), find=_find, create=_create, finish=_finish, read=_read, update=_update, delete=_delete,
        unique=("name",),
    ),
}  # fmt: skip
