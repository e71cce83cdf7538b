"""IAM: trust policies are sound, what is in use or attached cannot be deleted.

Stricter than AWS in one point: AWS lets the role of a living EKS cluster or node group be deleted, and strands it.
"""

from __future__ import annotations

import json
from typing import Any

from localcloud.aws.errors import AwsError
from localcloud.aws.guards import Table, World
from localcloud.aws.request import AwsRequest


def _trust_policy(text: str) -> None:
    """Raises MalformedPolicyDocument as IAM does, for what moto does not look at."""
    try:
        document: Any = json.loads(text)
    except ValueError:
        raise AwsError("MalformedPolicyDocument", "This policy contains invalid Json") from None
    statements = document.get("Statement", []) if isinstance(document, dict) else []
    for statement in statements if isinstance(statements, list) else [statements]:
        if "Principal" not in statement and "NotPrincipal" not in statement:
            raise AwsError("MalformedPolicyDocument", "AssumeRole policy must contain a Principal in every statement.")
        if "Resource" in statement:
            raise AwsError("MalformedPolicyDocument", "Has prohibited field Resource.")
        actions = statement.get("Action", [])
        for action in actions if isinstance(actions, list) else [actions]:
            if not action.lower().startswith("sts:"):
                raise AwsError("MalformedPolicyDocument", "AssumeRole policy may only specify STS AssumeRole actions.")


def create_role(world: World, request: AwsRequest) -> None:
    _trust_policy(request.params.get("AssumeRolePolicyDocument", ""))
    boundary = request.params.get("PermissionsBoundary")
    if boundary and boundary not in world.lookup.iam.managed_policies:
        raise AwsError("NoSuchEntity", f"Scope ARN: {boundary} does not exist or is not attachable.", 404)


def update_trust(world: World, request: AwsRequest) -> None:
    _trust_policy(request.params.get("PolicyDocument", ""))


def delete_role(world: World, request: AwsRequest) -> None:
    name = request.params.get("RoleName", "")
    role = next((role for role in world.lookup.iam.roles.values() if role.name == name), None)
    users = world.eks_users(role.arn) if role else []
    if users:
        raise AwsError(
            "DeleteConflict",
            f"Cannot delete entity, role {name} is in use by {', '.join(users)}, which needs it to be deleted.",
            409,
        )


def delete_policy(world: World, request: AwsRequest) -> None:
    arn = request.params.get("PolicyArn", "")
    policy = world.lookup.iam.managed_policies.get(arn)
    if arn.startswith("arn:aws:iam::aws:"):
        raise AwsError("AccessDenied", f"{arn} is a policy of AWS and cannot be deleted", 403)
    if policy is not None and policy.attachment_count:
        raise AwsError("DeleteConflict", "Cannot delete a policy attached to entities.", 409)


def add_role_to_profile(world: World, request: AwsRequest) -> None:
    profile = world.lookup.iam.instance_profiles.get(request.params.get("InstanceProfileName", ""))
    if profile is not None and profile.roles:
        raise AwsError("LimitExceeded", "Cannot exceed quota for InstanceSessionsPerInstanceProfile: 1", 409)


def count_attachments(world: World, request: AwsRequest) -> None:
    """moto counts a policy that is attached a second time twice, and then never lets it be deleted."""
    iam, arn = world.lookup.iam, request.params.get("PolicyArn", "")
    holders = [*iam.roles.values(), *iam.users.values(), *iam.groups.values()]
    iam.managed_policies[arn].attachment_count = sum(arn in holder.managed_policies for holder in holders)


GUARDS: Table = {
    ("iam", "CreateRole"): create_role,
    ("iam", "UpdateAssumeRolePolicy"): update_trust,
    ("iam", "DeleteRole"): delete_role,
    ("iam", "DeletePolicy"): delete_policy,
    ("iam", "AddRoleToInstanceProfile"): add_role_to_profile,
}

EFFECTS: Table = {("iam", f"Attach{holder}Policy"): count_attachments for holder in ("Role", "User", "Group")}
