"""The EKS control plane and who may use it."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pulumi
import pulumi_aws as aws

from components.context import Context, asked, assume_role
from components.region import managed_policy, partition
from components.settings.model import Access
from components.settings.model import Cluster as ClusterSettings

LOG_TYPES = ["api", "audit", "authenticator", "controllerManager", "scheduler"]
ADMIN_POLICY = "eks::aws:cluster-access-policy/AmazonEKSClusterAdminPolicy"


class Cluster(pulumi.ComponentResource):
    """An EKS cluster that nobody administers by accident.

    Access is by access entries only (mode API) and the creator gets none implicitly; the API is private unless
    `access.apiFrom` names networks; Kubernetes secrets are encrypted with the stack's key; all control plane logs go
    to a log group that exists first, since EKS would make one that never expires.

    cluster: the EKS cluster. access: what must exist before anything talks to its API.
    """

    cluster: aws.eks.Cluster
    access: list[pulumi.Resource]

    def __init__(
        self,
        name: str,
        settings: ClusterSettings,
        access: Access,
        context: Context,
        *,
        subnets: Mapping[str, pulumi.Input[str]],
        key_arn: pulumi.Input[str],
        deployer: pulumi.Output[str],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        """subnets: private subnet by zone. deployer: ARN of the IAM principal that runs Pulumi."""
        super().__init__(
            "slipway:aws:Cluster",
            name,
            asked(name=settings.name, version=settings.version, access=access.model_dump(mode="json", by_alias=True)),
            opts,
        )
        child = pulumi.ResourceOptions(parent=self)
        logs = aws.cloudwatch.LogGroup(
            "control-plane",
            name=f"/aws/eks/{context.name}/cluster",
            retention_in_days=settings.log_retention_days,
            kms_key_id=key_arn,
            opts=child,
        )
        role = aws.iam.Role("control-plane", assume_role_policy=assume_role("eks.amazonaws.com"), opts=child)
        attached = aws.iam.RolePolicyAttachment(
            "control-plane",
            role=role.name,
            policy_arn=managed_policy(context.region, "AmazonEKSClusterPolicy"),
            opts=child,
        )
        secrets = aws.iam.RolePolicy(
            "secrets-encryption",
            role=role.id,
            policy=pulumi.Output.json_dumps(
                {
                    "Version": "2012-10-17",
                    "Statement": [
                        {
                            "Effect": "Allow",
                            "Action": ["kms:Encrypt", "kms:Decrypt", "kms:ListGrants", "kms:DescribeKey"],
                            "Resource": key_arn,
                        }
                    ],
                }
            ),
            opts=child,
        )
        self.cluster = aws.eks.Cluster(
            name,
            name=context.name,
            version=settings.version,
            role_arn=role.arn,
            bootstrap_self_managed_addons=False,
            deletion_protection=settings.deletion_protection,
            access_config={"authentication_mode": "API", "bootstrap_cluster_creator_admin_permissions": False},
            vpc_config={
                "subnet_ids": list(subnets.values()),
                "endpoint_private_access": True,
                "endpoint_public_access": bool(access.api_from),
                "public_access_cidrs": list(access.api_from) or None,
            },
            encryption_config={"resources": ["secrets"], "provider": {"key_arn": key_arn}},
            enabled_cluster_log_types=LOG_TYPES,
            upgrade_policy={"support_type": "STANDARD"},
            opts=pulumi.ResourceOptions(parent=self, depends_on=[logs, attached, secrets]),
        )
        administrators = {_slug(arn): pulumi.Output.from_input(arn) for arn in access.admins} or {"deployer": deployer}
        self.access = []
        for who, arn in administrators.items():
            entry = aws.eks.AccessEntry(
                f"admin-{who}", cluster_name=self.cluster.name, principal_arn=arn, type="STANDARD", opts=child
            )
            self.access.append(
                aws.eks.AccessPolicyAssociation(
                    f"admin-{who}",
                    cluster_name=self.cluster.name,
                    principal_arn=entry.principal_arn,
                    policy_arn=f"arn:{partition(context.region)}:{ADMIN_POLICY}",
                    access_scope={"type": "cluster"},
                    opts=child,
                )
            )
        self.register_outputs({"name": self.cluster.name, "endpoint": self.cluster.endpoint})


def _slug(arn: str) -> str:
    """A resource name from the account and name in an ARN; ARNs differ in nothing else."""
    account, _, name = arn.split(":", 4)[4].partition(":")
    return re.sub(r"[^A-Za-z0-9]+", "-", f"{account}-{name}")


def principal_of(caller_arn: str) -> str | None:
    """IAM principal behind the ARN that STS reports, or None where only IAM knows it.

    A session's ARN (`…:assumed-role/<role>/<session>`) leaves out the role's path, which an access entry needs.
    """
    return None if ":assumed-role/" in caller_arn else caller_arn
