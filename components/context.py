"""What every component of one platform shares."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_aws as aws


@dataclass(frozen=True)
class Context:
    """Where a platform stands and how its things are named.

    name: name of the EKS cluster, first part of all names that other systems must know.
    region: AWS region. account: its 12-digit id, known once AWS has been asked. tags: on everything in AWS.
    """

    name: str
    region: str
    account: pulumi.Output[str]
    tags: dict[str, str]


def asked(**values: Any) -> dict[str, Any]:
    """Inputs of a component as the state and policies show them: what was asked for.

    Under one key: Pulumi makes an attribute of each input, and would set those of a component's own by the same name.
    """
    return {"asked": values}


def assume_role(service: str) -> str:
    """Trust policy by which a service of AWS (such as ec2.amazonaws.com) takes on a role."""
    statement = {"Effect": "Allow", "Principal": {"Service": service}, "Action": "sts:AssumeRole"}
    return document_json({"Version": "2012-10-17", "Statement": [statement]})


def document_json(document: object) -> str:
    """A policy document in the one form the program writes them: keys in their order, no spaces to differ in."""
    return json.dumps(document, separators=(",", ":"))


def tag_list(tags: dict[str, str]) -> list[aws.ec2.LaunchTemplateTagSpecificationArgs]:
    """Tag specifications for what a launch template makes; the provider's default tags do not reach it."""
    return [
        aws.ec2.LaunchTemplateTagSpecificationArgs(resource_type=kind, tags=tags)
        for kind in ("instance", "volume", "network-interface")
    ]
