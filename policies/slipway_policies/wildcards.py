"""No identity may do everything in a service, and none may do everything at all."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from pulumi_policy import Severity

from .iam import ATTACHMENTS, DOCUMENTS, ROLE, TAKEN_OVER, Statement, allowed, documents
from .rule import Finding, Findings, Resource, Rule
from .values import items, several

TOO_MUCH = {"AdministratorAccess", "PowerUserAccess", "IAMFullAccess"}


def check(resource: Resource) -> Findings:
    """Policy documents and attached managed policies of any identity."""
    for title, document in documents(resource):
        yield from check_document(title, document)
    if resource.kind in ATTACHMENTS:
        yield from check_managed(resource.title, several(resource.inputs.get(ATTACHMENTS[resource.kind])))
    elif resource.kind == ROLE:
        yield from check_managed(resource.title, items(resource.inputs.get("managedPolicyArns")))


def check_document(title: str, document: Any) -> Iterator[Finding]:
    """A policy document, as JSON text or as plain values; one that is not known yet is judged when it is."""
    if isinstance(document, str):
        try:
            json.loads(document)
        except ValueError as error:
            yield Finding(
                f"{title} has a policy that is no JSON: {error}.",
                "AWS would refuse it in the middle of a deployment, after other resources were made.",
                "build the document with Output.json_dumps.",
            )
            return
    for statement in allowed(title, document):
        yield from check_statement(statement)


def check_statement(statement: Statement) -> Iterator[Finding]:
    """One statement that allows something."""
    if "NotAction" in statement.body:
        yield Finding(
            f"{statement.where} allows all but some actions (NotAction).",
            "Every action that AWS adds later is allowed at once, in services nobody thought of.",
            "list the actions that are needed under Action.",
        )
    for action in filter(is_wildcard, statement.actions):
        service = action.partition(":")[0]
        may = "may do anything in the account" if "*" in service else f"may do anything in {service}, deleting included"
        yield Finding(
            f'{statement.where} allows "{action}".',
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
    consequence=f"{TAKEN_OVER} may do anything that the wildcard covers, deleting included.",
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
