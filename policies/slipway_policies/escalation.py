"""Rights over more than a thing at hand, and rights by which an identity gives itself more rights."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from pulumi_policy import Severity

from .iam import DOCUMENTS, IDENTITY_KINDS, TAKEN_OVER, Statement, identity_statements
from .rule import Finding, Parameter, Resource, Rule
from .values import texts

# Actions that AWS lets nobody limit to a resource (service authorization reference); reading is judged apart.
UNLIMITED = (
    "cloudwatch:PutMetricData",
    "ecr:GetAuthorizationToken",
    "ec2:CreateNetworkInterface",
    "eks-auth:AssumeRoleForPodIdentity",
    "logs:PutResourcePolicy",
    "sts:GetCallerIdentity",
    "xray:PutTelemetryRecords",
    "xray:PutTraceSegments",
)
READING = re.compile(r"(?i)[a-z0-9-]+:(describe|list|get|batchget|lookup|search|view)[a-z0-9*?]*")
# Reading that is a right in itself, not a look at what exists.
SECRETS = re.compile(
    r"(?i)(secretsmanager:(getsecretvalue|get\*|batchget.*)|ssm:get(parameter.*|\*)|s3:get(object.*|\*))"
)
NARROWING = (
    "aws:resourcetag/",
    "aws:requesttag/",
    "ec2:resourcetag/",
    "kms:",
    "cloudwatch:namespace",
    "aws:resourceaccount",
)
ALONE = {
    "iam:AddUserToGroup": "may join a group of administrators",
    "iam:AttachGroupPolicy": "may attach AdministratorAccess to a group of its own",
    "iam:AttachRolePolicy": "may attach AdministratorAccess to a role of its own",
    "iam:AttachUserPolicy": "may attach AdministratorAccess to a user of its own",
    "iam:CreateAccessKey": "may make keys of any user, administrators included",
    "iam:CreateLoginProfile": "may set the password of a user who has none",
    "iam:CreatePolicyVersion": "may rewrite a policy that is attached to it",
    "iam:PutGroupPolicy": "may write a policy for a group of its own",
    "iam:PutRolePolicy": "may write any policy into a role of its own",
    "iam:PutUserPolicy": "may write any policy into a user of its own",
    "iam:SetDefaultPolicyVersion": "may bring an older, wider version of its policy back",
    "iam:UpdateAssumeRolePolicy": "may let itself assume any role",
    "iam:UpdateLoginProfile": "may change the password of an administrator",
}
# With a role that may be passed at will, each of these runs code that has the role's rights.
RUNS_WITH_A_ROLE = (
    "ec2:RunInstances",
    "lambda:CreateFunction",
    "ecs:RunTask",
    "glue:CreateJob",
    "codebuild:CreateProject",
    "cloudformation:CreateStack",
    "sagemaker:CreateTrainingJob",
    "eks:CreatePodIdentityAssociation",
    "ssm:StartAutomationExecution",
)


def anything(statement: Statement) -> bool:
    """Whether a statement holds for all resources there are."""
    return any(pattern in ("*", "arn:*") or pattern.endswith(":*:*:*:*") for pattern in statement.resources)


def any_role(statement: Statement) -> bool:
    """Whether a statement on roles leaves open which: `*`, `…:role/*`."""
    return any(re.search(r"(^|[:/])\*$", pattern) for pattern in statement.resources)


def narrowed(statement: Statement) -> bool:
    """Whether a condition limits what a statement holds for."""
    return any(key.startswith(NARROWING) or "resourcetag/" in key for key in statement.condition_keys)


def check_resources(resource: Resource) -> Iterator[Finding]:
    """Statements that change or read out things, on everything."""
    allowed = {action.lower() for action in (*UNLIMITED, *texts(resource.parameters["allowed"]))}
    for statement in identity_statements(resource):
        if not anything(statement) or narrowed(statement):
            continue
        wide = [
            action
            for action in statement.actions
            if action.lower() not in allowed and (not READING.fullmatch(action) or SECRETS.fullmatch(action))
        ]
        if wide:
            more = f" and {len(wide) - 1} more" if len(wide) > 1 else ""
            yield Finding(f"{statement.where} allows {wide[0]}{more} on every resource.")


def check_escalation(resource: Resource) -> Iterator[Finding]:
    """Single rights, and pairs of rights, that are as good as administrator's."""
    statements = identity_statements(resource)
    for statement in statements:
        if not any_role(statement) or narrowed(statement):
            continue
        for action, may in ALONE.items():
            if statement.allows(action):
                yield Finding(f"{statement.where} allows {action} on any target.", f"{TAKEN_OVER} {may}.")
    entry = [s for s in statements if s.allows("eks:CreateAccessEntry") and anything(s) and not narrowed(s)]
    if entry and any(s.allows("eks:AssociateAccessPolicy") for s in statements):
        yield Finding(
            f"{entry[0].where} allows eks:CreateAccessEntry with eks:AssociateAccessPolicy on any cluster.",
            f"{TAKEN_OVER} may make itself administrator of every EKS cluster of the account.",
        )
    passing = next((s for s in statements if s.allows("iam:PassRole") and any_role(s)), None)
    runs = [action for action in RUNS_WITH_A_ROLE if any(s.allows(action) for s in statements)]
    if passing is not None and runs:
        yield Finding(
            f"{passing.where} allows iam:PassRole of any role together with {runs[0]}.",
            f"{TAKEN_OVER} may start something that runs with an administrator's role.",
            "name the one role that may be passed, and the service in a condition on iam:PassedToService.",
        )
    assuming = next(
        (s for s in statements if s.allows("sts:AssumeRole") and any_role(s) and not s.condition_keys), None
    )
    if assuming is not None:
        yield Finding(
            f"{assuming.where} allows sts:AssumeRole of any role.",
            f"{TAKEN_OVER} may become every role whose trust policy names the account.",
            "list the ARNs of the roles that it takes on.",
        )


def check_pass_role(resource: Resource) -> Iterator[Finding]:
    """iam:PassRole by which service and which role."""
    for statement in identity_statements(resource):
        if not statement.allows("iam:PassRole"):
            continue
        if any_role(statement):
            yield Finding(f"{statement.where} allows iam:PassRole of any role.")
        elif "iam:passedtoservice" not in statement.condition_keys:
            yield Finding(f"{statement.where} allows iam:PassRole to any service.")


def _example(**statement: Any) -> tuple[str, dict[str, Any]]:
    kind = next(kind for kind in DOCUMENTS if kind.endswith(":RolePolicy"))
    body = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", **statement}]}
    return kind, {"role": "autoscaler", "policy": body}


IAM_NO_WILDCARD_RESOURCE = Rule(
    id="iam-no-wildcard-resource",
    severity=Severity.HIGH,
    kinds=IDENTITY_KINDS,
    summary="What changes things, or reads secrets, is limited to resources or by a condition.",
    why="An account holds more than this cluster. An action on `*` reaches the volumes, queues and secrets of "
    "everybody else in it. Looking (Describe, List, Get) is left alone, and so are the actions that AWS lets nobody "
    f"limit: {', '.join(UNLIMITED)}.",
    consequence=f"{TAKEN_OVER} may do it to everything of that kind in the account, other teams' included.",
    remediation="Name the resources by ARN, or add a condition on aws:ResourceTag.",
    example=_example(Action=["ec2:TerminateInstances"], Resource="*"),
    check=check_resources,
    parameters={"allowed": Parameter([], "Further actions that may be allowed on every resource.")},
)
IAM_NO_PRIVILEGE_ESCALATION = Rule(
    id="iam-no-privilege-escalation",
    severity=Severity.CRITICAL,
    kinds=IDENTITY_KINDS,
    summary="No identity can give itself more rights than it was given.",
    why="Some rights are worth all others: to write policies, to make keys of other users, to start machines with any "
    "role, to let itself into an EKS cluster. A reviewer who reads the list of actions sees nothing unusual.",
    consequence=f"{TAKEN_OVER} may make itself administrator of the account.",
    remediation="Remove the action, or limit it to named roles and users that have few rights themselves.",
    example=_example(Action=["iam:PassRole", "ec2:RunInstances"], Resource="*"),
    check=check_escalation,
)
IAM_PASS_ROLE_LIMITED = Rule(
    id="iam-pass-role-limited",
    severity=Severity.HIGH,
    kinds=IDENTITY_KINDS,
    summary="iam:PassRole names the roles, and the service that they are passed to.",
    why="Who may pass a role to a service may use it: the machine or function that is started with it acts with its "
    "rights. Node autoscalers need the right for one role and for EC2 alone.",
    consequence=f"{TAKEN_OVER} may start something with a stronger role than its own, in a service nobody thought of.",
    remediation="Name the role's ARN under Resource, and add StringEquals iam:PassedToService: ec2.amazonaws.com.",
    example=_example(Action="iam:PassRole", Resource="arn:aws:iam::123456789012:role/node"),
    check=check_pass_role,
)
RULES = (IAM_NO_WILDCARD_RESOURCE, IAM_NO_PRIVILEGE_ESCALATION, IAM_PASS_ROLE_LIMITED)
