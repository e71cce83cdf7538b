"""No identity may do everything in a service, and none may do everything at all."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from pulumi_policy import Severity

from .rule import UNKNOWN, Finding, Resource, Rule, at, items, mapping

DOCUMENTS = {
    "aws:iam/policy:Policy": "policy",
    "aws:iam/rolePolicy:RolePolicy": "policy",
    "aws:iam/userPolicy:UserPolicy": "policy",
    "aws:iam/groupPolicy:GroupPolicy": "policy",
    "aws:eks/podIdentityAssociation:PodIdentityAssociation": "policy",
    "aws:ssoadmin/permissionSetInlinePolicy:PermissionSetInlinePolicy": "inlinePolicy",
}
ATTACHMENTS = {
    "aws:iam/rolePolicyAttachment:RolePolicyAttachment": "policyArn",
    "aws:iam/userPolicyAttachment:UserPolicyAttachment": "policyArn",
    "aws:iam/groupPolicyAttachment:GroupPolicyAttachment": "policyArn",
    "aws:iam/policyAttachment:PolicyAttachment": "policyArn",
    "aws:iam/rolePolicyAttachmentsExclusive:RolePolicyAttachmentsExclusive": "policyArns",
    "aws:ssoadmin/managedPolicyAttachment:ManagedPolicyAttachment": "managedPolicyArn",
}
ROLE = "aws:iam/role:Role"
TOO_MUCH = {"AdministratorAccess", "PowerUserAccess", "IAMFullAccess"}
TAKEN_OVER = "Whoever gets hold of this identity, by one leaky pod for example,"


def check(resource: Resource) -> Iterator[Finding]:
    """Policy documents and attached managed policies of any identity."""
    inputs = resource.inputs
    if resource.kind in DOCUMENTS:
        yield from check_document(resource.title, inputs.get(DOCUMENTS[resource.kind]))
    elif resource.kind in ATTACHMENTS:
        arns = inputs.get(ATTACHMENTS[resource.kind])
        yield from check_managed(resource.title, arns if isinstance(arns, list) else [arns])
    else:
        for index, inline in enumerate(items(inputs.get("inlinePolicies"))):
            named = at(inline, "name")
            which = named if isinstance(named, str) else str(index)
            yield from check_document(f"{resource.title}, inline policy {which},", at(inline, "policy"))
        yield from check_managed(resource.title, items(inputs.get("managedPolicyArns")))


def check_document(title: str, document: Any) -> Iterator[Finding]:
    """A policy document, as JSON text or as plain values; one that is not known yet is judged when it is."""
    if document is UNKNOWN or document is None:
        return
    if isinstance(document, str):
        try:
            document = json.loads(document)
        except ValueError as error:
            yield Finding(
                f"{title} has a policy that is no JSON: {error}.",
                "AWS would refuse it in the middle of a deployment, after other resources were made.",
                "build the document with Output.json_dumps.",
            )
            return
    statements = at(document, "Statement")
    for statement in statements if isinstance(statements, list) else [statements]:
        if mapping(statement).get("Effect") == "Allow":
            yield from check_statement(title, mapping(statement))


def check_statement(title: str, statement: dict[str, Any]) -> Iterator[Finding]:
    """One statement that allows something."""
    sid = statement.get("Sid")
    where = f"{title} statement {sid}" if isinstance(sid, str) else title
    if "NotAction" in statement:
        yield Finding(
            f"{where} allows all but some actions (NotAction).",
            "Every action that AWS adds later is allowed at once, in services nobody thought of.",
            "list the actions that are needed under Action.",
        )
    actions = statement.get("Action")
    for action in actions if isinstance(actions, list) else [actions]:
        if isinstance(action, str) and is_wildcard(action):
            service = action.partition(":")[0]
            may = (
                "may do anything in the account"
                if "*" in service
                else f"may do anything in {service}, deleting included"
            )
            yield Finding(
                f'{where} allows "{action}".',
                f"{TAKEN_OVER} {may}.",
                "list the actions that are needed, such as those that CloudTrail shows in use.",
            )


def is_wildcard(action: str) -> bool:
    """Whether an action stands for all of a service, or of all services: `*`, `s3:*`, `s3:?*`, `*:Get*`."""
    service, colon, name = action.partition(":")
    return "*" in service or "?" in service or (bool(colon) and re.fullmatch(r"[*?]*\*[*?]*", name) is not None)


def check_managed(title: str, arns: list[Any]) -> Iterator[Finding]:
    """ARNs of managed policies. Only AWS's own are judged by name: `iam::aws:policy/…`."""
    for arn in arns:
        name = arn.rpartition("/")[2] if isinstance(arn, str) and ":iam::aws:policy/" in arn else None
        if name in TOO_MUCH:
            yield Finding(
                f"{title} attaches {name}.",
                f"{TAKEN_OVER} may do anything in the account, or give itself the right to.",
                "attach a policy with the actions that are needed.",
            )


IAM_NO_WILDCARD_ACTION = Rule(
    id="iam-no-wildcard-action",
    severity=Severity.HIGH,
    kinds="|".join(re.escape(kind) for kind in (*DOCUMENTS, *ATTACHMENTS, ROLE)),
    summary="No IAM policy allows all actions of a service.",
    why="A wildcard grants what exists today and what AWS adds tomorrow. It turns one leaked credential or one "
    "compromised pod into the loss of the service's data, or of the account.",
    remediation="List actions one by one; a wildcard inside a name, such as ec2:Describe*, is allowed.",
    example=(
        "aws:iam/rolePolicy:RolePolicy",
        {
            "role": "loader",
            "policy": json.dumps(
                {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
            ),
        },
    ),
    check=check,
)
