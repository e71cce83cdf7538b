"""What AWS refuses and moto accepts, as one function for each operation; and what AWS cleans up and moto leaves.

A guard reads, and raises AwsError with AWS's code; it changes nothing. An effect runs after a success.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from localcloud.aws.lookup import Lookup
from localcloud.aws.request import AwsRequest


@dataclass(frozen=True)
class World:
    """What guards may look at. eks_users: names of the EKS things that use a subnet, group or role (id or ARN)."""

    lookup: Lookup
    eks_users: Callable[[str], list[str]]


Guard = Callable[[World, AwsRequest], None]
Table = dict[tuple[str, str], Guard]


def all_guards() -> Table:
    from localcloud.aws.guards import ec2, iam, keys

    return {**ec2.GUARDS, **iam.GUARDS, **keys.GUARDS}


def all_effects() -> Table:
    from localcloud.aws.guards import ec2, iam

    return {**ec2.EFFECTS, **iam.EFFECTS}
