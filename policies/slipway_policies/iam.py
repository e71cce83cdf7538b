"""Where IAM policy documents and managed policies stand in resources, and what a statement says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from .rule import Resource
from .values import UNKNOWN, at, from_json, items, mapping, several, texts

ROLE = "aws:iam/role:Role"
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
# Resource policies: who may use a thing of the account.
RESOURCE_DOCUMENTS = {
    "aws:kms/key:Key": "policy",
    "aws:kms/keyPolicy:KeyPolicy": "policy",
    "aws:s3/bucket:Bucket": "policy",
    "aws:s3/bucketPolicy:BucketPolicy": "policy",
    "aws:sqs/queue:Queue": "policy",
    "aws:sqs/queuePolicy:QueuePolicy": "policy",
    "aws:sns/topic:Topic": "policy",
    "aws:sns/topicPolicy:TopicPolicy": "policy",
    "aws:secretsmanager/secretPolicy:SecretPolicy": "policy",
    "aws:ecr/repositoryPolicy:RepositoryPolicy": "policy",
}
IDENTITY_KINDS = "|".join(re.escape(kind) for kind in (*DOCUMENTS, ROLE))
TAKEN_OVER = "Whoever gets hold of this identity, by one leaky pod for example,"


@dataclass(frozen=True)
class Statement:
    """One statement that allows something. where: how messages call it."""

    where: str
    body: dict[str, Any]

    @property
    def actions(self) -> list[str]:
        """Patterns of what is allowed."""
        return texts(self.body.get("Action"))

    @property
    def resources(self) -> list[str]:
        """Patterns of what it is allowed on."""
        return texts(self.body.get("Resource"))

    @property
    def condition_keys(self) -> set[str]:
        """Keys of all conditions, in lower case."""
        return {key.lower() for test in mapping(self.body.get("Condition")).values() for key in mapping(test)}

    def allows(self, action: str) -> bool:
        """Whether an action is allowed; conditions and resources are not looked at."""
        if excluded := texts(self.body.get("NotAction")):
            return not any(fnmatchcase(action.lower(), pattern.lower()) for pattern in excluded)
        return any(fnmatchcase(action.lower(), pattern.lower()) for pattern in self.actions)


def documents(resource: Resource) -> Iterator[tuple[str, Any]]:
    """Title and document (JSON text, plain values or UNKNOWN) of each policy that gives an identity rights."""
    if resource.kind in DOCUMENTS:
        yield resource.title, resource.inputs.get(DOCUMENTS[resource.kind])
    elif resource.kind == ROLE:
        for index, inline in enumerate(items(resource.inputs.get("inlinePolicies"))):
            named = at(inline, "name")
            which = named if isinstance(named, str) else str(index)
            yield f"{resource.title}, inline policy {which},", at(inline, "policy")


def allowed(title: str, document: Any) -> list[Statement]:
    """The statements of a document that allow something; none of one that is not known yet or is no JSON."""
    found = []
    for statement in several(at(from_json(document), "Statement")):
        body = mapping(statement)
        if body.get("Effect") == "Allow":
            sid = body.get("Sid")
            found.append(Statement(f"{title} statement {sid}" if isinstance(sid, str) else title, body))
    return found


def identity_statements(resource: Resource) -> list[Statement]:
    """All that a resource allows its identity."""
    return [statement for title, document in documents(resource) for statement in allowed(title, document)]


def principals(statement: Statement) -> dict[str, list[str]]:
    """Who is meant, by kind: AWS, Service, Federated. `"*"` alone is {"AWS": ["*"]}."""
    principal = statement.body.get("Principal")
    if principal == "*":
        return {"AWS": ["*"]}
    return {kind: texts(value) for kind, value in mapping(principal).items() if value is not UNKNOWN}
