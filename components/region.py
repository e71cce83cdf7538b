"""What an AWS region's name tells: its partition and the domain of its services."""

from __future__ import annotations


def partition(region: str) -> str:
    """Second part of the ARNs of a region: aws, aws-cn or aws-us-gov."""
    if region.startswith("cn-"):
        return "aws-cn"
    return "aws-us-gov" if region.startswith("us-gov-") else "aws"


def domain(region: str) -> str:
    """Domain of the service endpoints of a region, as in the names of ECR registries."""
    return "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"


def managed_policy(region: str, name: str) -> str:
    """ARN of a policy that AWS manages; `name` with its path, as in service-role/AmazonEBSCSIDriverPolicy."""
    return f"arn:{partition(region)}:iam::aws:policy/{name}"
