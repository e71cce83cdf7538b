"""Who may do what in a cluster, and what its pods may do in AWS: access entries, policies, pod identities."""

from __future__ import annotations

from typing import Any

from localcloud.aws.provider.model import CREATE_TAG, Call, ProviderError, Resource, absent
from localcloud.aws.provider.schema import TAGS, Values, block, flag, strings, text
from localcloud.aws.provider.services.eks_common import MISSING, Found, clean, date, retag


def _entry(call: Call, identifier: str) -> Found | None:
    cluster, colon, principal = identifier.partition(":")
    if not colon:
        raise ProviderError(f"id {identifier!r} of an access entry: <cluster>:<principal ARN> is expected")
    answer = absent(
        lambda: call.client("eks").describe_access_entry(clusterName=cluster, principalArn=principal), MISSING
    )
    return dict(answer["accessEntry"]) if answer else None


def _entry_id(call: Call) -> str:
    return f"{call.inputs['clusterName']}:{call.inputs['principalArn']}"


def _entry_find(call: Call) -> str | None:
    found = _entry(call, _entry_id(call))
    return _entry_id(call) if found and found["tags"].get(CREATE_TAG) == call.token else None


def _entry_create(call: Call) -> str:
    inputs = call.inputs
    names = {"kubernetesGroups": "kubernetesGroups", "type": "type", "userName": "username"}
    arguments = {aws: inputs[name] for name, aws in names.items() if inputs.get(name)}
    call.client("eks").create_access_entry(
        clusterName=inputs["clusterName"], principalArn=inputs["principalArn"], tags=call.tags,
        clientRequestToken=call.token, **arguments,
    )  # fmt: skip
    return _entry_id(call)


def _entry_read(call: Call, identifier: str) -> Values | None:
    found = _entry(call, identifier)
    if found is None:
        return None
    return {
        "clusterName": found["clusterName"], "principalArn": found["principalArn"], "type": found["type"],
        "kubernetesGroups": found["kubernetesGroups"], "userName": found["username"], "tags": found["tags"],
        "accessEntryArn": found["accessEntryArn"], "createdAt": date(found["createdAt"]),
        "modifiedAt": date(found["modifiedAt"]),
    }  # fmt: skip


def _entry_update(call: Call, identifier: str) -> None:
    cluster, principal = identifier.split(":", 1)
    eks, inputs = call.client("eks"), call.inputs
    if call.changed("kubernetesGroups", "userName"):
        username = {"username": inputs["userName"]} if inputs.get("userName") else {}
        eks.update_access_entry(
            clusterName=cluster,
            principalArn=principal,
            kubernetesGroups=inputs.get("kubernetesGroups") or [],
            **username,
        )
    retag(call, str(call.outputs["accessEntryArn"]))


def _entry_delete(call: Call, identifier: str) -> None:
    cluster, principal = identifier.split(":", 1)
    absent(lambda: call.client("eks").delete_access_entry(clusterName=cluster, principalArn=principal), MISSING)


def _policy_parts(identifier: str) -> tuple[str, str, str]:
    parts = identifier.split("#")
    if len(parts) != 3:
        raise ProviderError(f"id {identifier!r}: <cluster>#<principal ARN>#<policy ARN> is expected")
    return parts[0], parts[1], parts[2]


def _policy_create(call: Call) -> str:
    inputs = call.inputs
    cluster, principal, policy = inputs["clusterName"], inputs["principalArn"], inputs["policyArn"]
    call.client("eks").associate_access_policy(
        clusterName=cluster, principalArn=principal, policyArn=policy, accessScope=clean(inputs["accessScope"])
    )
    return f"{cluster}#{principal}#{policy}"


def _policy_read(call: Call, identifier: str) -> Values | None:
    cluster, principal, policy = _policy_parts(identifier)
    eks = call.client("eks")
    answer: Any = absent(
        lambda: eks.list_associated_access_policies(clusterName=cluster, principalArn=principal), MISSING
    )
    for found in (answer or {}).get("associatedAccessPolicies", []):
        if found["policyArn"] == policy:
            return {
                "clusterName": cluster, "principalArn": principal, "policyArn": policy,
                "accessScope": {k: v for k, v in found["accessScope"].items() if v},
                "associatedAt": date(found["associatedAt"]), "modifiedAt": date(found["modifiedAt"]),
            }  # fmt: skip
    return None


def _policy_delete(call: Call, identifier: str) -> None:
    cluster, principal, policy = _policy_parts(identifier)
    eks = call.client("eks")
    absent(
        lambda: eks.disassociate_access_policy(clusterName=cluster, principalArn=principal, policyArn=policy), MISSING
    )


def _identity(call: Call, identifier: str) -> Found | None:
    cluster, eks = call.inputs["clusterName"], call.client("eks")
    answer = absent(
        lambda: eks.describe_pod_identity_association(clusterName=cluster, associationId=identifier), MISSING
    )
    return dict(answer["association"]) if answer else None


def _identity_find(call: Call) -> str | None:
    inputs, eks = call.inputs, call.client("eks")
    listed = eks.list_pod_identity_associations(
        clusterName=inputs["clusterName"], namespace=inputs["namespace"], serviceAccount=inputs["serviceAccount"]
    )["associations"]
    for item in listed:
        found = _identity(call, item["associationId"])
        if found and found["tags"].get(CREATE_TAG) == call.token:
            return str(item["associationId"])
    return None


def _identity_create(call: Call) -> str:
    inputs = call.inputs
    options = {k: inputs[k] for k in ("disableSessionTags", "targetRoleArn") if inputs.get(k) is not None}
    answer = call.client("eks").create_pod_identity_association(
        clusterName=inputs["clusterName"], namespace=inputs["namespace"], serviceAccount=inputs["serviceAccount"],
        roleArn=inputs["roleArn"], tags=call.tags, clientRequestToken=call.token, **options,
    )  # fmt: skip
    return str(answer["association"]["associationId"])


def _identity_read(call: Call, identifier: str) -> Values | None:
    found = _identity(call, identifier)
    if found is None:
        return None
    names = ("clusterName", "namespace", "serviceAccount", "roleArn", "associationArn", "associationId", "tags",
             "disableSessionTags")  # fmt: skip
    optional = {name: found[name] for name in ("targetRoleArn", "externalId") if found.get(name)}
    return {**{name: found[name] for name in names}, "externalId": "", **optional}


def _identity_update(call: Call, identifier: str) -> None:
    if call.changed("roleArn", "disableSessionTags", "targetRoleArn"):
        options = {k: call.inputs[k] for k in ("disableSessionTags", "targetRoleArn") if call.inputs.get(k) is not None}
        call.client("eks").update_pod_identity_association(
            clusterName=call.inputs["clusterName"], associationId=identifier, roleArn=call.inputs["roleArn"], **options
        )
    retag(call, str(call.outputs["associationArn"]))


def _identity_delete(call: Call, identifier: str) -> None:
    cluster, eks = call.inputs["clusterName"], call.client("eks")
    absent(lambda: eks.delete_pod_identity_association(clusterName=cluster, associationId=identifier), MISSING)


RESOURCES = {
    "aws:eks/accessEntry:AccessEntry": Resource(
        props={
            "clusterName": text(replace=True, required=True), "principalArn": text(replace=True, required=True),
            "kubernetesGroups": strings(computed=True), "userName": text(computed=True),
            "type": text("STANDARD", "EC2_LINUX", "EC2_WINDOWS", "FARGATE_LINUX", "EC2", "HYBRID_LINUX",
                         replace=True, computed=True),
            **TAGS,
        },
        outputs=("accessEntryArn", "createdAt", "modifiedAt"), find=_entry_find, create=_entry_create, read=_entry_read,
        update=_entry_update, delete=_entry_delete, unique=("clusterName", "principalArn"),
    ),
    "aws:eks/accessPolicyAssociation:AccessPolicyAssociation": Resource(
        props={
            "clusterName": text(replace=True, required=True), "principalArn": text(replace=True, required=True),
            "policyArn": text(replace=True, required=True),
            "accessScope": block({"type": text("cluster", "namespace", replace=True, required=True),
                                  "namespaces": strings(replace=True)}, required=True),
        },
        outputs=("associatedAt", "modifiedAt"), create=_policy_create, read=_policy_read, delete=_policy_delete,
        unique=("clusterName", "principalArn", "policyArn"),
    ),
    "aws:eks/podIdentityAssociation:PodIdentityAssociation": Resource(
        props={
            "clusterName": text(replace=True, required=True), "namespace": text(replace=True, required=True),
            "serviceAccount": text(replace=True, required=True), "roleArn": text(required=True),
            "disableSessionTags": flag(computed=True), "targetRoleArn": text(), **TAGS,
        },
        outputs=("associationArn", "associationId", "externalId"), find=_identity_find, create=_identity_create,
        read=_identity_read, update=_identity_update, delete=_identity_delete,
        unique=("clusterName", "namespace", "serviceAccount"),
    ),
}  # fmt: skip
