"""The stack's own encryption key."""

from __future__ import annotations

import pulumi
import pulumi_aws as aws

from components.context import Context, asked
from components.region import domain, partition


class EncryptionKey(pulumi.ComponentResource):
    """One KMS key for Kubernetes secrets, log groups and image repositories of a platform; AWS rotates it yearly.

    Volumes of nodes are encrypted with AWS's own EBS key: a key policy that names the Auto Scaling service role is
    refused in an account that has never used Auto Scaling.
    """

    arn: pulumi.Output[str]

    def __init__(self, name: str, context: Context, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("slipway:aws:EncryptionKey", name, asked(cluster=context.name), opts)
        child = pulumi.ResourceOptions(parent=self)
        key = aws.kms.Key(
            name,
            description=f"{context.name}: Kubernetes secrets, logs and images",
            key_usage="ENCRYPT_DECRYPT",
            enable_key_rotation=True,
            deletion_window_in_days=30,
            policy=key_policy(context),
            opts=child,
        )
        aws.kms.Alias(name, name=f"alias/{context.name}", target_key_id=key.key_id, opts=child)
        self.arn = key.arn
        self.register_outputs({"arn": key.arn})


def key_policy(context: Context) -> pulumi.Output[str]:
    """Key policy: the account's IAM policies decide, and CloudWatch Logs may use the key for our log groups only."""
    prefix = f"arn:{partition(context.region)}"
    logs = pulumi.Output.concat(prefix, ":logs:", context.region, ":", context.account, ":log-group:")
    return pulumi.Output.json_dumps(
        {
            "Version": "2012-10-17",
            "Statement": [
                {
                    "Sid": "DecidedByIamPoliciesOfTheAccount",
                    "Effect": "Allow",
                    "Principal": {"AWS": pulumi.Output.concat(prefix, ":iam::", context.account, ":root")},
                    "Action": "kms:*",
                    "Resource": "*",
                },
                {
                    "Sid": "LogGroupsOfThisPlatform",
                    "Effect": "Allow",
                    "Principal": {"Service": f"logs.{context.region}.{domain(context.region)}"},
                    "Action": [
                        "kms:Encrypt",
                        "kms:Decrypt",
                        "kms:ReEncryptFrom",
                        "kms:ReEncryptTo",
                        "kms:GenerateDataKey",
                        "kms:GenerateDataKeyWithoutPlaintext",
                        "kms:DescribeKey",
                    ],
                    "Resource": "*",
                    "Condition": {
                        "ArnLike": {
                            "kms:EncryptionContext:aws:logs:arn": [
                                pulumi.Output.concat(logs, f"/aws/eks/{context.name}/cluster"),
                                pulumi.Output.concat(logs, f"/slipway/{context.name}/flow-logs"),
                            ]
                        }
                    },
                },
            ],
        }
    )
