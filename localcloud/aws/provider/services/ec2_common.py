"""What the EC2 tables share: tags at creation, finding by tag, changing tags."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from localcloud.aws.provider.model import CREATE_TAG, Call, absent, from_pairs, pairs
from localcloud.aws.provider.schema import Values

Found = dict[str, Any]


def specification(kind: str, call: Call) -> list[Found]:
    """TagSpecifications of a create call."""
    return [{"ResourceType": kind, "Tags": pairs(call.tags)}]


def finder(operation: str, items: str, identifier: str, gone: tuple[str, ...] = ()) -> Callable[[Call], str | None]:
    """A `find`: the id of the thing that carries this create request's tag, unless its State is in `gone`."""

    def find(call: Call) -> str | None:
        # moto ignores tag filters for some kinds, so the whole list is looked at.
        for item in getattr(call.client("ec2"), operation)()[items]:
            if from_pairs(item.get("Tags")).get(CREATE_TAG) == call.token and item.get("State") not in gone:
                return str(item[identifier])
        return None

    return find


def describe(call: Call, operation: str, items: str, missing: str, **arguments: Any) -> Found | None:
    """The one thing that a describe call answers, or None when it says `missing` or nothing."""
    answer = absent(lambda: getattr(call.client("ec2"), operation)(**arguments), missing)
    found = answer[items] if answer else []
    return found[0] if found else None


def retag(call: Call, identifier: str) -> None:
    """Make the tags what the inputs and the provider's defaults say."""
    ec2, wanted, old = call.client("ec2"), call.all_tags, call.old_tags
    gone = [{"Key": key} for key in old if key not in wanted]
    if gone:
        ec2.delete_tags(Resources=[identifier], Tags=gone)
    added = {key: value for key, value in wanted.items() if old.get(key) != value}
    if added:
        ec2.create_tags(Resources=[identifier], Tags=pairs(added))


def arn(call: Call, kind: str, identifier: str) -> str:
    return f"arn:aws:ec2:{call.region}:{call.session.account}:{kind}/{identifier}"


def given(values: Values, **names: str) -> dict[str, Any]:
    """AWS arguments from inputs: given(inputs, CidrBlock="cidrBlock"); what is not given is left out."""
    return {aws: values[name] for aws, name in names.items() if values.get(name) is not None}
