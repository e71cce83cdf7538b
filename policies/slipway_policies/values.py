"""Plain values of what Pulumi hands to a policy, and how rules read them without failing on odd shapes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pulumi_policy.proxy import UnknownValueError


class _Unknown:
    """A value that only the cloud knows, in a preview. False, so that `if value` asks for a known one."""

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN = _Unknown()


def thaw(value: Any) -> Any:
    """Plain dicts and lists of what Pulumi hands over; UNKNOWN where a value is not known yet.

    Pulumi's own proxies raise on the first touch of an unknown, and the rest of a rule is then skipped without a word
    but an advisory note: a mandatory rule would pass by not looking.
    """
    if isinstance(value, Mapping):
        return {str(key): _known(value, key) for key in value}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_known(value, index) for index in range(len(value))]
    return value


def _known(container: Any, key: Any) -> Any:
    try:
        return thaw(container[key])
    except UnknownValueError:
        return UNKNOWN


def mapping(value: Any) -> dict[str, Any]:
    """The value if it is a mapping, else an empty one."""
    return value if isinstance(value, dict) else {}


def items(value: Any) -> list[Any]:
    """The value if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def several(value: Any) -> list[Any]:
    """A list as it is, nothing as an empty one, and anything else as the list of it: IAM and YAML allow both."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def texts(value: Any) -> list[str]:
    """The texts among several values."""
    return [text for text in several(value) if isinstance(text, str)]


def at(value: Any, *path: str) -> Any:
    """What stands at a path of keys: None where there is nothing, UNKNOWN where that is not known yet."""
    for key in path:
        if value is UNKNOWN:
            return UNKNOWN
        value = mapping(value).get(key)
    return value


def has_unknown(value: Any) -> bool:
    """Whether anything in a value is not known yet."""
    if isinstance(value, dict):
        return any(map(has_unknown, value.values()))
    if isinstance(value, list):
        return any(map(has_unknown, value))
    return value is UNKNOWN


def is_true(value: Any) -> bool:
    """True, or the text that Terraform's providers and Helm take for it."""
    return value is True or value == "true"


def is_false(value: Any) -> bool:
    """False, or the text that Terraform's providers and Helm take for it."""
    return value is False or value == "false"


def number(value: Any) -> float | None:
    """The value as a number; None if it is none. Some providers write numbers as text."""
    if isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def from_json(value: Any) -> Any:
    """What a JSON text says; other values as they are, and None for a text that is no JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return None


def walk(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Every mapping in a value, with its path: itself first, then what is in it."""
    if isinstance(value, dict):
        yield path, value
        for key, inner in value.items():
            yield from walk(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from walk(inner, (*path, str(index)))
