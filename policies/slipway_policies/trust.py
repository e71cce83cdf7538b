"""Who may take on a role or use a thing of the account, and with what proof."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pulumi_policy import Severity

from .iam import RESOURCE_DOCUMENTS, ROLE, allowed, principals
from .rule import Finding, Resource, Rule
from .values import mapping, texts

POD_IDENTITY = "pods.eks.amazonaws.com"
CLUSTER_KEYS = ("aws:sourcearn", "aws:requesttag/eks-cluster-arn", "aws:requesttag/eks-cluster-name")
KEYS_THAT_NAME_WHO = ("aws:sourcearn", "aws:sourceaccount", "aws:principalarn", "aws:principalorgid", "aws:sourceorgid")
LASTING = {
    "aws:iam/user:User": "an IAM user",
    "aws:iam/accessKey:AccessKey": "an access key",
    "aws:iam/userLoginProfile:UserLoginProfile": "a password",
    "aws:iam/serviceSpecificCredential:ServiceSpecificCredential": "a service credential",
    "aws:iam/sshKey:SshKey": "an SSH key of an IAM user",
}


def check_pods(resource: Resource) -> Iterator[Finding]:
    """Trust of roles that pods take on, by Pod Identity or by the cluster's OIDC provider."""
    for statement in allowed(resource.title, resource.inputs.get("assumeRolePolicy")):
        who = principals(statement)
        if POD_IDENTITY in who.get("Service", []):
            if not statement.condition_keys & set(CLUSTER_KEYS):
                yield Finding(f"{statement.where} trusts the pods of any EKS cluster.")
            if not statement.allows("sts:TagSession"):
                yield Finding(
                    f"{statement.where} trusts {POD_IDENTITY} without sts:TagSession.",
                    "EKS tags each session with cluster, namespace and service account; without the right pods get no "
                    "credentials at all, and controllers fail at their first call.",
                    "add sts:TagSession to Action.",
                )
        for provider in who.get("Federated", []):
            if "oidc" not in provider:
                continue
            subjects = [
                value
                for test in mapping(statement.body.get("Condition")).values()
                for key, values in mapping(test).items()
                if key.endswith(":sub")
                for value in texts(values)
            ]
            if not subjects or any(re.fullmatch(r"(system:serviceaccount:)?[*:]*", subject) for subject in subjects):
                yield Finding(
                    f"{statement.where} trusts every service account of the OIDC provider.",
                    fix="add StringEquals <provider>:sub: system:serviceaccount:<namespace>:<name>.",
                )


def check_public(resource: Resource) -> Iterator[Finding]:
    """Trust and resource policies that everybody on AWS satisfies."""
    key = "assumeRolePolicy" if resource.kind == ROLE else RESOURCE_DOCUMENTS[resource.kind]
    for statement in allowed(resource.title, resource.inputs.get(key)):
        anyone = "*" in principals(statement).get("AWS", [])
        if anyone and not statement.condition_keys & set(KEYS_THAT_NAME_WHO):
            yield Finding(f'{statement.where} allows {", ".join(statement.actions) or "actions"} to everybody ("*").')


def check_lasting(resource: Resource) -> Iterator[str]:
    """Credentials that do not end by themselves."""
    yield f"{resource.title} makes {LASTING[resource.kind]}."


RULES = (
    Rule(
        id="pod-identity-trust-has-conditions",
        severity=Severity.HIGH,
        kinds=re.escape(ROLE),
        summary="A role for pods trusts one cluster, or one service account, by a condition.",
        why="The principal pods.eks.amazonaws.com is the same for every cluster of the account. "
        "Without a condition, who "
        "may associate a role in a test cluster has the rights of the production controllers.",
        consequence="Anybody who can associate a role in some other EKS cluster of the account gets its rights.",
        remediation="Add a condition: ArnEquals aws:SourceArn with the cluster's ARN.",
        example=(
            ROLE,
            {
                "assumeRolePolicy": {
                    "Version": "2012-10-17",
                    "Statement": [
                        {
                            "Effect": "Allow",
                            "Principal": {"Service": POD_IDENTITY},
                            "Action": ["sts:AssumeRole", "sts:TagSession"],
                        }
                    ],
                }
            },
        ),
        check=check_pods,
    ),
    Rule(
        id="no-policy-for-everybody",
        severity=Severity.CRITICAL,
        kinds="|".join(re.escape(kind) for kind in (ROLE, *RESOURCE_DOCUMENTS)),
        summary="No role, key, bucket, queue or secret is open to every AWS account.",
        why="`Principal: *` means everybody with an AWS account, not everybody in this one.",
        consequence="A stranger with any AWS account may use it, and CloudTrail shows it only afterwards.",
        remediation="Name the principals, or add a condition on aws:PrincipalOrgID, aws:SourceArn or "
        "aws:SourceAccount.",
        example=(
            "aws:sqs/queuePolicy:QueuePolicy",
            {"policy": {"Statement": [{"Effect": "Allow", "Principal": "*", "Action": "sqs:SendMessage"}]}},
        ),
        check=check_public,
    ),
    Rule(
        id="iam-no-long-lived-keys",
        severity=Severity.HIGH,
        kinds="|".join(re.escape(kind) for kind in LASTING),
        summary="No IAM users, access keys or passwords.",
        why="Pods get credentials by Pod Identity and people by single sign-on; both end within "
        "hours. A key lasts until "
        "somebody finds it, and lies in the stack's state besides.",
        consequence="A key that leaks, from a state file, an image or a shell history, works until somebody notices.",
        remediation="Use a role: Pod Identity for pods, IAM Identity Center for people, OIDC for CI.",
        example=("aws:iam/accessKey:AccessKey", {"user": "ci"}),
        check=check_lasting,
    ),
)
