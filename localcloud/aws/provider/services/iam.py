"""IAM: roles, their policies, managed policies, instance profiles."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from localcloud.aws.provider.model import CREATE_TAG, Call, ProviderError, Resource, absent, from_pairs, pairs
from localcloud.aws.provider.schema import TAGS, Values, document, flag, number, objects, strings, text

MISSING = "NoSuchEntity"
Operation = Callable[..., Any]


def _text(policy: Any) -> str:
    """A policy as IAM takes it: the program may give an object or text."""
    return policy if isinstance(policy, str) else json.dumps(policy)


def _owned(call: Call, tags: dict[str, str], identifier: str) -> str | None:
    """The id, if the tags say that this create request made it."""
    return identifier if tags.get(CREATE_TAG) == call.token else None


def retag(call: Call, tag: Operation, untag: Operation, **target: str) -> None:
    wanted, old = call.all_tags, call.old_tags
    gone = [key for key in old if key not in wanted]
    if gone:
        untag(**target, TagKeys=gone)
    added = {key: value for key, value in wanted.items() if old.get(key) != value}
    if added:
        tag(**target, Tags=pairs(added))


def _role(call: Call, name: str) -> dict[str, Any] | None:
    answer = absent(lambda: call.client("iam").get_role(RoleName=name), MISSING)
    return dict(answer["Role"]) if answer else None


def _role_find(call: Call) -> str | None:
    found = _role(call, call.inputs["name"])
    return _owned(call, from_pairs(found.get("Tags")), found["RoleName"]) if found else None


def _role_create(call: Call) -> str:
    inputs = call.inputs
    names = {"Description": "description", "MaxSessionDuration": "maxSessionDuration", "Path": "path",
             "PermissionsBoundary": "permissionsBoundary"}  # fmt: skip
    arguments = {aws: inputs[name] for aws, name in names.items() if inputs.get(name) is not None}
    policy = _text(inputs["assumeRolePolicy"])
    call.client("iam").create_role(
        RoleName=inputs["name"], AssumeRolePolicyDocument=policy, Tags=pairs(call.tags), **arguments
    )
    return str(inputs["name"])


def _role_finish(call: Call, name: str) -> None:
    """Inline and managed policies given with the role itself are the only ones it may have."""
    iam, inputs = call.client("iam"), call.inputs
    if inputs.get("inlinePolicies") is not None:
        wanted = {p["name"]: _text(p["policy"]) for p in inputs["inlinePolicies"] if p.get("name")}
        for extra in set(iam.list_role_policies(RoleName=name)["PolicyNames"]) - set(wanted):
            iam.delete_role_policy(RoleName=name, PolicyName=extra)
        for policy, body in wanted.items():
            iam.put_role_policy(RoleName=name, PolicyName=policy, PolicyDocument=body)
    if inputs.get("managedPolicyArns") is not None:
        attached = {p["PolicyArn"] for p in iam.list_attached_role_policies(RoleName=name)["AttachedPolicies"]}
        for arn in attached - set(inputs["managedPolicyArns"]):
            iam.detach_role_policy(RoleName=name, PolicyArn=arn)
        for arn in set(inputs["managedPolicyArns"]) - attached:
            iam.attach_role_policy(RoleName=name, PolicyArn=arn)


def _role_read(call: Call, name: str) -> Values | None:
    found = _role(call, name)
    if found is None:
        return None
    iam = call.client("iam")
    inline = iam.list_role_policies(RoleName=name)["PolicyNames"]
    attached = iam.list_attached_role_policies(RoleName=name)["AttachedPolicies"]
    return {
        "name": found["RoleName"], "arn": found["Arn"], "uniqueId": found["RoleId"], "path": found["Path"],
        "assumeRolePolicy": _text(found["AssumeRolePolicyDocument"]), "description": found.get("Description"),
        "maxSessionDuration": found.get("MaxSessionDuration", 3600), "createDate": found["CreateDate"].isoformat(),
        "permissionsBoundary": (found.get("PermissionsBoundary") or {}).get("PermissionsBoundaryArn"),
        "tags": from_pairs(found.get("Tags")),
        "managedPolicyArns": [p["PolicyArn"] for p in attached],
        "inlinePolicies": [{"name": policy, "policy": _text(
            iam.get_role_policy(RoleName=name, PolicyName=policy)["PolicyDocument"])} for policy in inline],
    }  # fmt: skip


def _role_update(call: Call, name: str) -> None:
    iam, inputs = call.client("iam"), call.inputs
    if call.changed("assumeRolePolicy"):
        iam.update_assume_role_policy(RoleName=name, PolicyDocument=_text(inputs["assumeRolePolicy"]))
    if call.changed("description", "maxSessionDuration"):
        iam.update_role(
            RoleName=name,
            Description=inputs.get("description") or "",
            MaxSessionDuration=inputs.get("maxSessionDuration") or 3600,
        )
    if call.changed("permissionsBoundary"):
        if inputs.get("permissionsBoundary"):
            iam.put_role_permissions_boundary(RoleName=name, PermissionsBoundary=inputs["permissionsBoundary"])
        else:
            iam.delete_role_permissions_boundary(RoleName=name)
    _role_finish(call, name)
    retag(call, iam.tag_role, iam.untag_role, RoleName=name)


def _role_delete(call: Call, name: str) -> None:
    iam = call.client("iam")
    if _role(call, name) is None:
        return
    if call.inputs.get("forceDetachPolicies") or call.inputs.get("managedPolicyArns"):
        for policy in iam.list_attached_role_policies(RoleName=name)["AttachedPolicies"]:
            iam.detach_role_policy(RoleName=name, PolicyArn=policy["PolicyArn"])
    if call.inputs.get("forceDetachPolicies") or call.inputs.get("inlinePolicies"):
        for inline in iam.list_role_policies(RoleName=name)["PolicyNames"]:
            iam.delete_role_policy(RoleName=name, PolicyName=inline)
    absent(lambda: iam.delete_role(RoleName=name), MISSING)


def _inline_parts(identifier: str) -> tuple[str, str]:
    role, colon, name = identifier.partition(":")
    if not colon:
        raise ProviderError(f"id {identifier!r} of an aws:iam/rolePolicy:RolePolicy: <role>:<name> is expected")
    return role, name


def _inline_create(call: Call) -> str:
    inputs = call.inputs
    policy = _text(inputs["policy"])
    call.client("iam").put_role_policy(RoleName=inputs["role"], PolicyName=inputs["name"], PolicyDocument=policy)
    return f"{inputs['role']}:{inputs['name']}"


def _inline_read(call: Call, identifier: str) -> Values | None:
    role, name = _inline_parts(identifier)
    found = absent(lambda: call.client("iam").get_role_policy(RoleName=role, PolicyName=name), MISSING)
    return {"role": role, "name": name, "policy": _text(found["PolicyDocument"])} if found else None


def _inline_update(call: Call, identifier: str) -> None:
    _inline_create(call)


def _inline_delete(call: Call, identifier: str) -> None:
    role, name = _inline_parts(identifier)
    absent(lambda: call.client("iam").delete_role_policy(RoleName=role, PolicyName=name), MISSING)


def _attachment_create(call: Call) -> str:
    role, arn = call.inputs["role"], call.inputs["policyArn"]
    call.client("iam").attach_role_policy(RoleName=role, PolicyArn=arn)
    return f"{role}-{arn}"


def _attachment_read(call: Call, identifier: str) -> Values | None:
    role, arn = call.inputs["role"], call.inputs["policyArn"]
    answer = absent(lambda: call.client("iam").list_attached_role_policies(RoleName=role), MISSING)
    attached = [policy["PolicyArn"] for policy in (answer or {"AttachedPolicies": []})["AttachedPolicies"]]
    return {"role": role, "policyArn": arn} if arn in attached else None


def _attachment_delete(call: Call, identifier: str) -> None:
    role, arn = call.inputs["role"], call.inputs["policyArn"]
    absent(lambda: call.client("iam").detach_role_policy(RoleName=role, PolicyArn=arn), MISSING)


def _policy(call: Call, arn: str) -> dict[str, Any] | None:
    answer = absent(lambda: call.client("iam").get_policy(PolicyArn=arn), MISSING)
    return dict(answer["Policy"]) if answer else None


def _policy_find(call: Call) -> str | None:
    path = call.inputs.get("path") or "/"
    found = _policy(call, f"arn:aws:iam::{call.session.account}:policy{path}{call.inputs['name']}")
    return _owned(call, from_pairs(found.get("Tags")), found["Arn"]) if found else None


def _policy_create(call: Call) -> str:
    inputs = call.inputs
    arguments = {aws: inputs[n] for aws, n in (("Description", "description"), ("Path", "path")) if inputs.get(n)}
    answer = call.client("iam").create_policy(
        PolicyName=inputs["name"], PolicyDocument=_text(inputs["policy"]), Tags=pairs(call.tags), **arguments
    )
    return str(answer["Policy"]["Arn"])


def _policy_read(call: Call, arn: str) -> Values | None:
    found = _policy(call, arn)
    if found is None:
        return None
    version = call.client("iam").get_policy_version(PolicyArn=arn, VersionId=found["DefaultVersionId"])["PolicyVersion"]
    return {
        "name": found["PolicyName"], "arn": arn, "policyId": found["PolicyId"], "path": found["Path"],
        "attachmentCount": found["AttachmentCount"], "policy": _text(version["Document"]),
        "description": found.get("Description"), "tags": from_pairs(found.get("Tags")),
    }  # fmt: skip


def _policy_update(call: Call, arn: str) -> None:
    iam = call.client("iam")
    if call.changed("policy"):
        # A policy keeps five versions at most; the oldest makes room.
        versions = [v for v in iam.list_policy_versions(PolicyArn=arn)["Versions"] if not v["IsDefaultVersion"]]
        if len(versions) >= 4:
            oldest = min(versions, key=lambda v: int(v["VersionId"][1:]))["VersionId"]
            iam.delete_policy_version(PolicyArn=arn, VersionId=oldest)
        iam.create_policy_version(PolicyArn=arn, PolicyDocument=_text(call.inputs["policy"]), SetAsDefault=True)
    retag(call, iam.tag_policy, iam.untag_policy, PolicyArn=arn)


def _policy_delete(call: Call, arn: str) -> None:
    iam = call.client("iam")
    if _policy(call, arn) is None:
        return
    for version in iam.list_policy_versions(PolicyArn=arn)["Versions"]:
        if not version["IsDefaultVersion"]:
            iam.delete_policy_version(PolicyArn=arn, VersionId=version["VersionId"])
    absent(lambda: iam.delete_policy(PolicyArn=arn), MISSING)


def _profile(call: Call, name: str) -> dict[str, Any] | None:
    answer = absent(lambda: call.client("iam").get_instance_profile(InstanceProfileName=name), MISSING)
    return dict(answer["InstanceProfile"]) if answer else None


def _profile_find(call: Call) -> str | None:
    found = _profile(call, call.inputs["name"])
    return _owned(call, from_pairs(found.get("Tags")), found["InstanceProfileName"]) if found else None


def _profile_create(call: Call) -> str:
    arguments = {"Path": call.inputs["path"]} if call.inputs.get("path") else {}
    name = call.inputs["name"]
    call.client("iam").create_instance_profile(InstanceProfileName=name, Tags=pairs(call.tags), **arguments)
    return str(name)


def _profile_finish(call: Call, name: str) -> None:
    iam, wanted = call.client("iam"), call.inputs.get("role")
    present = [role["RoleName"] for role in (_profile(call, name) or {"Roles": []})["Roles"]]
    for role in present:
        if role != wanted:
            iam.remove_role_from_instance_profile(InstanceProfileName=name, RoleName=role)
    if wanted and wanted not in present:
        iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=wanted)


def _profile_read(call: Call, name: str) -> Values | None:
    found = _profile(call, name)
    if found is None:
        return None
    return {
        "name": name, "arn": found["Arn"], "uniqueId": found["InstanceProfileId"], "path": found["Path"],
        "role": next((role["RoleName"] for role in found["Roles"]), None),
        "createDate": found["CreateDate"].isoformat(),
        "tags": from_pairs(found.get("Tags")),
    }  # fmt: skip


def _profile_update(call: Call, name: str) -> None:
    iam = call.client("iam")
    _profile_finish(call, name)
    retag(call, iam.tag_instance_profile, iam.untag_instance_profile, InstanceProfileName=name)


def _profile_delete(call: Call, name: str) -> None:
    iam, found = call.client("iam"), _profile(call, name)
    for role in (found or {"Roles": []})["Roles"]:
        iam.remove_role_from_instance_profile(InstanceProfileName=name, RoleName=role["RoleName"])
    absent(lambda: iam.delete_instance_profile(InstanceProfileName=name), MISSING)


RESOURCES = {
    "aws:iam/role:Role": Resource(
        props={
            "name": text(replace=True, name=64), "namePrefix": text(replace=True),
            "path": text(replace=True, computed=True),
            "assumeRolePolicy": document(required=True), "description": text(),
            "maxSessionDuration": number(computed=True),
            "permissionsBoundary": text(), "forceDetachPolicies": flag(), "managedPolicyArns": strings(computed=True),
            "inlinePolicies": objects({"name": text(), "policy": document()}, computed=True), **TAGS,
        },
        outputs=("arn", "createDate", "uniqueId"), find=_role_find, create=_role_create, finish=_role_finish,
        read=_role_read, update=_role_update, delete=_role_delete, unique=("name",),
    ),
    "aws:iam/rolePolicy:RolePolicy": Resource(
        props={"name": text(replace=True, name=128), "namePrefix": text(replace=True),
               "role": text(replace=True, required=True), "policy": document(required=True)},
        outputs=(), create=_inline_create, read=_inline_read, update=_inline_update, delete=_inline_delete,
        unique=("role", "name"),
    ),
    "aws:iam/rolePolicyAttachment:RolePolicyAttachment": Resource(
        props={"role": text(replace=True, required=True), "policyArn": text(replace=True, required=True)},
        outputs=(), create=_attachment_create, read=_attachment_read, delete=_attachment_delete,
        unique=("role", "policyArn"),
    ),
    "aws:iam/policy:Policy": Resource(
        props={"name": text(replace=True, name=128), "namePrefix": text(replace=True),
               "path": text(replace=True, computed=True), "description": text(replace=True),
               "policy": document(required=True), **TAGS},
        outputs=("arn", "attachmentCount", "policyId"), find=_policy_find, create=_policy_create, read=_policy_read,
        update=_policy_update, delete=_policy_delete, unique=("name", "path"),
    ),
    "aws:iam/instanceProfile:InstanceProfile": Resource(
        props={"name": text(replace=True, name=128), "namePrefix": text(replace=True),
               "path": text(replace=True, computed=True), "role": text(), **TAGS},
        outputs=("arn", "createDate", "uniqueId"), find=_profile_find, create=_profile_create, finish=_profile_finish,
        read=_profile_read, update=_profile_update, delete=_profile_delete, unique=("name",),
    ),
}  # fmt: skip
