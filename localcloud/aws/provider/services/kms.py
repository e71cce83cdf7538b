"""KMS keys and aliases."""

from __future__ import annotations

from typing import Any

from localcloud.aws.provider.model import CREATE_TAG, Call, ProviderError, Resource, absent, from_pairs, pairs
from localcloud.aws.provider.schema import TAGS, Values, document, flag, number, text

MISSING = "NotFoundException"
GONE = ("PendingDeletion", "PendingReplicaDeletion")


def _tags(call: Call, key: str) -> dict[str, str]:
    answer = call.client("kms").list_resource_tags(KeyId=key)
    return from_pairs(answer.get("Tags"), "TagKey", "TagValue")


def _key(call: Call, key: str) -> dict[str, Any] | None:
    answer = absent(lambda: call.client("kms").describe_key(KeyId=key), MISSING)
    found = dict(answer["KeyMetadata"]) if answer else None
    return None if found is None or found["KeyState"] in GONE else found


def _find(call: Call) -> str | None:
    for item in call.client("kms").list_keys(Limit=1000)["Keys"]:
        found = _key(call, item["KeyId"])
        if found and found["KeyManager"] == "CUSTOMER" and _tags(call, item["KeyId"]).get(CREATE_TAG) == call.token:
            return str(item["KeyId"])
    return None


def _create(call: Call) -> str:
    inputs = call.inputs
    names = {"Description": "description", "KeyUsage": "keyUsage", "KeySpec": "customerMasterKeySpec",
             "Policy": "policy",
             "MultiRegion": "multiRegion",
             "BypassPolicyLockoutSafetyCheck": "bypassPolicyLockoutSafetyCheck"}  # fmt: skip
    arguments = {aws: inputs[name] for aws, name in names.items() if inputs.get(name) is not None}
    answer = call.client("kms").create_key(Tags=pairs(call.tags, "TagKey", "TagValue"), **arguments)
    return str(answer["KeyMetadata"]["KeyId"])


def _finish(call: Call, key: str) -> None:
    kms, inputs = call.client("kms"), call.inputs
    if inputs.get("enableKeyRotation"):
        period = {"RotationPeriodInDays": inputs["rotationPeriodInDays"]} if inputs.get("rotationPeriodInDays") else {}
        kms.enable_key_rotation(KeyId=key, **period)
    elif call.old.get("enableKeyRotation"):
        kms.disable_key_rotation(KeyId=key)
    if inputs.get("isEnabled") is False:
        kms.disable_key(KeyId=key)
    elif call.old.get("isEnabled") is False:
        kms.enable_key(KeyId=key)


def _read(call: Call, key: str) -> Values | None:
    found, kms = _key(call, key), call.client("kms")
    if found is None:
        return None
    rotation = kms.get_key_rotation_status(KeyId=key)
    return {
        "keyId": found["KeyId"], "arn": found["Arn"], "description": found.get("Description"),
        "keyUsage": found.get("KeyUsage") or "ENCRYPT_DECRYPT",
        "customerMasterKeySpec": found.get("KeySpec"), "isEnabled": found["KeyState"] == "Enabled",
        "multiRegion": bool(found.get("MultiRegion")), "enableKeyRotation": bool(rotation["KeyRotationEnabled"]),
        "rotationPeriodInDays": rotation.get("RotationPeriodInDays"), "tags": _tags(call, key),
        "policy": kms.get_key_policy(KeyId=key, PolicyName="default")["Policy"],
    }  # fmt: skip


def _update(call: Call, key: str) -> None:
    kms, inputs = call.client("kms"), call.inputs
    if call.changed("description"):
        kms.update_key_description(KeyId=key, Description=inputs.get("description") or "")
    if call.changed("policy") and inputs.get("policy"):
        kms.put_key_policy(KeyId=key, PolicyName="default", Policy=inputs["policy"])
    _finish(call, key)
    wanted, old = call.all_tags, call.old_tags
    gone = [name for name in old if name not in wanted]
    if gone:
        kms.untag_resource(KeyId=key, TagKeys=gone)
    added = {name: value for name, value in wanted.items() if old.get(name) != value}
    if added:
        kms.tag_resource(KeyId=key, Tags=pairs(added, "TagKey", "TagValue"))


def _delete(call: Call, key: str) -> None:
    if _key(call, key) is not None:
        days = call.inputs.get("deletionWindowInDays") or 30
        call.client("kms").schedule_key_deletion(KeyId=key, PendingWindowInDays=days)


def _alias_target(call: Call, name: str) -> str | None:
    for page in call.client("kms").get_paginator("list_aliases").paginate():
        for alias in page["Aliases"]:
            if alias["AliasName"] == name:
                return str(alias.get("TargetKeyId", ""))
    return None


def _alias_find(call: Call) -> str | None:
    """An alias has no tags: one of this name for this key is what a killed create left."""
    target, name = call.inputs["targetKeyId"].split("key/")[-1], call.inputs["name"]
    return str(name) if _alias_target(call, name) == target else None


def _alias_create(call: Call) -> str:
    name = call.inputs["name"]
    if not name.startswith("alias/"):
        raise ProviderError(f"the name of a KMS alias begins with alias/, not {name!r}")
    call.client("kms").create_alias(AliasName=name, TargetKeyId=call.inputs["targetKeyId"])
    return str(name)


def _alias_read(call: Call, name: str) -> Values | None:
    target = _alias_target(call, name)
    if target is None:
        return None
    prefix = f"arn:aws:kms:{call.region}:{call.session.account}:"
    wanted = call.inputs.get("targetKeyId") or target
    return {
        "name": name, "arn": prefix + name, "targetKeyArn": f"{prefix}key/{target}",
        "targetKeyId": wanted if wanted.split("key/")[-1] == target else target,
    }  # fmt: skip


def _alias_update(call: Call, name: str) -> None:
    call.client("kms").update_alias(AliasName=name, TargetKeyId=call.inputs["targetKeyId"])


def _alias_delete(call: Call, name: str) -> None:
    absent(lambda: call.client("kms").delete_alias(AliasName=name), MISSING)


RESOURCES = {
    "aws:kms/key:Key": Resource(
        props={
            "description": text(computed=True), "keyUsage": text(replace=True, computed=True),
            "customerMasterKeySpec": text(replace=True, computed=True), "policy": document(computed=True),
            "deletionWindowInDays": number(), "enableKeyRotation": flag(),
            "rotationPeriodInDays": number(computed=True),
            "isEnabled": flag(), "multiRegion": flag(replace=True, computed=True),
            "bypassPolicyLockoutSafetyCheck": flag(), **TAGS,
        },
        outputs=("arn", "keyId"), find=_find, create=_create, finish=_finish, read=_read, update=_update,
        delete=_delete,
    ),
    "aws:kms/alias:Alias": Resource(
        props={"name": text(replace=True, name=256), "namePrefix": text(replace=True),
               "targetKeyId": text(required=True)},
        outputs=("arn", "targetKeyArn"), find=_alias_find, create=_alias_create, read=_alias_read, update=_alias_update,
        delete=_alias_delete, unique=("name",),
    ),
}  # fmt: skip
