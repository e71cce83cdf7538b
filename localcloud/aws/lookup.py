"""What exists in moto, asked by the checks and by EKS: small answers, no moto types."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from localcloud.aws.moto_cloud import MotoCloud
from localcloud.paths import AWS_ACCOUNT, AWS_REGION

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Subnet:
    id: str
    vpc: str
    zone: str


@dataclass(frozen=True)
class Role:
    """policies: ARNs of attached managed policies; inline: names of its own policies."""

    name: str
    arn: str
    trust: Any
    policies: tuple[str, ...]
    inline: tuple[str, ...]

    def trusts(self, service: str, action: str = "sts:AssumeRole") -> bool:
        """Whether the trust policy lets `service` (for example eks.amazonaws.com) do `action`."""
        for statement in _list(self.trust.get("Statement", [])):
            if statement.get("Effect") != "Allow" or action not in _list(statement.get("Action", [])):
                continue
            principal = statement.get("Principal", {})
            if principal == "*" or service in _list(
                principal.get("Service", []) if isinstance(principal, dict) else []
            ):
                return True
        return False


@dataclass(frozen=True)
class Key:
    arn: str
    state: str
    symmetric: bool
    policy: Any

    def admits(self, service: str) -> bool:
        """Whether the key policy names the service principal `service` (with or without region) in an Allow."""
        names = {service, service.replace(f".{AWS_REGION}.", ".")}
        for statement in _list(self.policy.get("Statement", [])):
            principal = statement.get("Principal", {})
            allowed = _list(principal.get("Service", [])) if isinstance(principal, dict) else []
            if statement.get("Effect") == "Allow" and names & set(allowed):
                return True
        return False


@dataclass(frozen=True)
class Caller:
    """Who made a request: an IAM user or an assumed role. secret: None where the stand-in does not know it."""

    arn: str
    user_id: str
    secret: str | None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _locked(method: Callable[P, T]) -> Callable[P, T]:
    """A method of Lookup under moto's lock: a request could change what it iterates over."""

    @wraps(method)
    def locked(*args: P.args, **kwargs: P.kwargs) -> T:
        lookup = args[0]
        assert isinstance(lookup, Lookup)
        with lookup.moto.lock:
            return method(*args, **kwargs)

    return locked


class Lookup:
    """Read access to moto's state in one region, from any thread."""

    def __init__(self, moto: MotoCloud, region: str = AWS_REGION) -> None:
        self.moto = moto
        self.region = region

    @property
    def ec2(self) -> Any:
        return self.moto.backend("ec2", self.region)

    @property
    def iam(self) -> Any:
        return self.moto.backend("iam", self.region)

    @_locked
    def vpc_exists(self, vpc_id: str) -> bool:
        return vpc_id in self.ec2.vpcs

    @_locked
    def subnets(self) -> list[Subnet]:
        zones = self.ec2.subnets.values()
        return [Subnet(s.id, s.vpc_id, s.availability_zone) for zone in zones for s in zone.values()]

    @_locked
    def subnet(self, subnet_id: str) -> Subnet | None:
        return next((subnet for subnet in self.subnets() if subnet.id == subnet_id), None)

    @_locked
    def security_group_vpc(self, group_id: str) -> str | None:
        """The VPC of a security group; None when there is no such group."""
        return next((str(vpc) for vpc, groups in self.ec2.groups.items() if group_id in groups), None)

    @_locked
    def launch_template(self, template_id: str, name: str) -> tuple[str, str, int, int, str | None] | None:
        """(id, name, default version, latest version, instance type of the default version) or None."""
        for template in self.ec2.launch_templates.values():
            if template.id == template_id or (name and template.name == name):
                default = template.get_version(template.default_version_number)
                kind = default.data.get("InstanceType") if default else None
                return template.id, template.name, template.default_version_number, template.latest_version_number, kind
        return None

    @_locked
    def instance_type_exists(self, name: str) -> bool:
        from moto.ec2.models.instance_types import INSTANCE_TYPES

        return name in INSTANCE_TYPES

    @_locked
    def role(self, arn: str) -> Role | None:
        for role in self.iam.roles.values():
            if role.arn == arn:
                trust = json.loads(role.assume_role_policy_document)
                return Role(role.name, role.arn, trust, tuple(role.managed_policies), tuple(role.policies))
        return None

    @_locked
    def role_named(self, name: str) -> str | None:
        """ARN of the role of this name, its path included."""
        return next((str(role.arn) for role in self.iam.roles.values() if role.name == name), None)

    @_locked
    def principal_exists(self, arn: str) -> bool:
        """Whether an IAM user or role of the account has this ARN; the stand-in's own caller always exists."""
        if arn == ROOT_CALLER.arn or arn == f"arn:aws:iam::{AWS_ACCOUNT}:root":
            return True
        return self.role(arn) is not None or any(user.arn == arn for user in self.iam.users.values())

    @_locked
    def key(self, key_id: str) -> Key | None:
        """A KMS key by id, ARN or alias."""
        kms = self.moto.backend("kms", self.region)
        name = key_id.split("key/", 1)[1] if ":key/" in key_id else key_id
        if "alias/" in name:
            alias = "alias/" + name.split("alias/", 1)[1]
            name = next((k.id for k in kms.keys.values() if alias in k.aliases), "")
        found = kms.keys.get(name)
        if found is None:
            return None
        return Key(found.arn, found.key_state, found.key_spec == "SYMMETRIC_DEFAULT", json.loads(found.policy))

    @_locked
    def caller(self, access_key: str) -> Caller:
        """The owner of an access key; keys that IAM and STS never gave out belong to ROOT_CALLER."""
        for assumed in self.moto.backend("sts", self.region).assumed_roles:
            if assumed.access_key_id == access_key:
                return Caller(assumed.arn, assumed.user_id, assumed.secret_access_key)
        for user in self.iam.users.values():
            for key in user.access_keys:
                if key.access_key_id == access_key and key.status == "Active":
                    return Caller(user.arn, user.id, key.secret_access_key)
        return ROOT_CALLER


# Whoever calls with keys that are not from CreateAccessKey or AssumeRole: the account's first user.
ROOT_CALLER = Caller(f"arn:aws:iam::{AWS_ACCOUNT}:user/slipway", "AIDASLIPWAYLOCALUSER0", None)
