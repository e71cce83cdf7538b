"""All resource types that the provider knows."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from localcloud.aws.provider.model import ProviderError, Resource
from localcloud.aws.provider.schema import REGION
from localcloud.aws.provider.services import (
    ec2_endpoints,
    ec2_gateways,
    ec2_network,
    ec2_routes,
    ec2_security,
    ec2_templates,
    ecr,
    eks_access,
    eks_cluster,
    eks_nodes,
    iam,
    kms,
    logs,
    s3,
)

TABLES = (
    ec2_network, ec2_gateways, ec2_routes, ec2_security, ec2_endpoints, ec2_templates, iam, kms, logs, eks_cluster,
    eks_nodes, eks_access, ecr, s3,
)  # fmt: skip
GLOBAL = "aws:iam/"
"""Types of this service have no region."""


@cache
def resources() -> dict[str, Resource]:
    """Type token -> table entry, each with the `region` property that every regional type has."""
    found: dict[str, Resource] = {}
    for table in TABLES:
        for token, resource in table.RESOURCES.items():
            where = table.__name__.replace(".", "/") + ".py"
            props = resource.props if token.startswith(GLOBAL) else {**resource.props, **REGION}
            found[token] = replace(resource, props=props, where=where)
    return found


def lookup(token: str) -> Resource:
    """Raises ProviderError that names a type which no table has."""
    try:
        return resources()[token]
    except KeyError:
        service = token.split(":")[1].split("/")[0] if token.count(":") == 2 else ""
        known = sorted(t for t in resources() if t.startswith(f"aws:{service}/")) or sorted(resources())
        raise ProviderError(
            f"the local AWS provider has no resource type {token}. It has: {', '.join(known)}. "
            "Add it to a table in localcloud/aws/provider/services/"
        ) from None
