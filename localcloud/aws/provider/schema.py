"""Properties of resource types: what is allowed, what is equal, what forces a replacement."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

UNKNOWN = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
"""Pulumi's sign for a value that is not known before the deployment."""

Values = dict[str, Any]


@dataclass(frozen=True)
class Prop:
    """One property.

    kind: text, number, flag, map, json (a document as text, compared by content), object, list or set.
    replace: whether a change needs a new resource. computed: AWS chooses when it is not given.
    fields: of an object, or of the objects in a list or set. name: the property that Pulumi fills with an automatic
    name of at most this many characters. choices: the allowed texts.
    """

    kind: str
    replace: bool = False
    computed: bool = False
    required: bool = False
    fields: Mapping[str, Prop] = field(default_factory=dict)
    name: int = 0
    choices: tuple[str, ...] = ()


def text(*choices: str, replace: bool = False, computed: bool = False, required: bool = False, name: int = 0) -> Prop:
    return Prop("text", replace, computed, required, name=name, choices=choices)


def number(replace: bool = False, computed: bool = False, required: bool = False) -> Prop:
    return Prop("number", replace, computed, required)


def flag(replace: bool = False, computed: bool = False) -> Prop:
    return Prop("flag", replace, computed)


def strings(replace: bool = False, computed: bool = False, required: bool = False) -> Prop:
    """A list of texts whose order means nothing."""
    return Prop("set", replace, computed, required)


def ordered(replace: bool = False, fields: Mapping[str, Prop] | None = None) -> Prop:
    """A list whose order counts."""
    return Prop("list", replace, fields=fields or {})


def objects(fields: Mapping[str, Prop], replace: bool = False, computed: bool = False) -> Prop:
    """A list of objects whose order means nothing."""
    return Prop("set", replace, computed, fields=fields)


def mapping(replace: bool = False) -> Prop:
    return Prop("map", replace)


def document(replace: bool = False, computed: bool = False, required: bool = False) -> Prop:
    return Prop("json", replace, computed, required)


def block(fields: Mapping[str, Prop], replace: bool = False, computed: bool = False, required: bool = False) -> Prop:
    return Prop("object", replace, computed, required, fields)


TAGS = {"tags": mapping()}
REGION = {"region": text(replace=True, computed=True)}


@dataclass(frozen=True)
class Problem:
    """What is wrong with a property; path as `vpcConfig.subnetIds[0]`."""

    path: str
    message: str


def problems(props: Mapping[str, Prop], values: Mapping[str, Any], path: str = "") -> Iterator[Problem]:
    """Everything that is wrong with values; properties that begin with "__" are Pulumi's own."""
    for name, value in values.items():
        at = f"{path}{name}"
        if name.startswith("__") or value is None:
            continue
        if name not in props:
            yield Problem(at, f"the stand-in does not know it. It knows: {', '.join(sorted(props))}")
        elif value != UNKNOWN:
            yield from _value_problems(props[name], value, at)
    for name, prop in props.items():
        if prop.required and values.get(name) is None:
            yield Problem(f"{path}{name}", "it is required")


FORMS: dict[str, Any] = {
    "text": (str, bool, int, float),
    "json": (str, dict),
    "number": (int, float, str),
    "flag": (bool, str),
    "map": dict,
    "object": dict,
    "list": list,
    "set": list,
}
"""Python types that a kind's values may have; Pulumi's engine passes some numbers and flags as text."""


def _value_problems(prop: Prop, value: Any, path: str) -> Iterator[Problem]:
    if not isinstance(value, FORMS[prop.kind]):
        yield Problem(path, f"{json.dumps(value)[:60]} is no {prop.kind}")
    elif prop.kind == "object":
        yield from problems(prop.fields, value, f"{path}.")
    elif prop.kind in ("list", "set") and prop.fields:
        for index, item in enumerate(value):
            if item != UNKNOWN:
                if isinstance(item, dict):
                    yield from problems(prop.fields, item, f"{path}[{index}].")
                else:
                    yield Problem(f"{path}[{index}]", f"{json.dumps(item)[:60]} is no object")
    elif prop.kind == "json" and isinstance(value, str) and UNKNOWN not in value:
        try:
            json.loads(value)
        except ValueError as error:
            yield Problem(path, f"it is no JSON: {error}")
    elif prop.choices and value not in prop.choices:
        yield Problem(path, f"{value!r} is not allowed; allowed are {', '.join(prop.choices)}")


@dataclass(frozen=True)
class Change:
    """A difference at a path; kind: add, delete or update. replace: it needs a new resource."""

    path: str
    kind: str
    replace: bool


def changes(props: Mapping[str, Prop], old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """What differs between two sets of inputs, by meaning."""
    found: list[Change] = []
    for name in sorted(set(old) | set(new)):
        if not name.startswith("__") and name in props:
            found += _value_changes(props[name], old.get(name), new.get(name), name, props[name].replace)
    return found


def _value_changes(prop: Prop, old: Any, new: Any, path: str, replace: bool) -> list[Change]:
    if same(prop, old, new):
        return []
    if prop.computed and new is None:
        return []  # no longer asked for: AWS keeps what it has
    if prop.kind == "object" and isinstance(old, dict) and isinstance(new, dict):
        inner: list[Change] = []
        for name in sorted(set(old) | set(new)):
            part = prop.fields.get(name, Prop("text"))
            inner += _value_changes(part, old.get(name), new.get(name), f"{path}.{name}", replace or part.replace)
        return inner
    if prop.kind == "map" and isinstance(old, dict) and isinstance(new, dict):
        inner = []
        for name in sorted(set(old) | set(new)):
            key = f"{path}.{name}" if name.isidentifier() else f'{path}["{name}"]'
            inner += _value_changes(Prop("text"), old.get(name), new.get(name), key, replace)
        return inner
    kind = "add" if empty(old) else "delete" if empty(new) else "update"
    nested = any(part.replace for part in prop.fields.values()) and prop.kind == "object"
    return [Change(path, kind, replace or nested)]


def empty(value: Any) -> bool:
    return value is None or value == [] or value == {}


def same(prop: Prop, old: Any, new: Any) -> bool:
    """Whether two values mean the same to AWS."""
    return bool(normal(prop, old) == normal(prop, new))


def normal(prop: Prop, value: Any) -> Any:
    """A form in which values that mean the same are equal."""
    if empty(value):
        return None
    if value == UNKNOWN:
        return UNKNOWN
    if prop.kind == "json":
        try:
            return _normal_document(json.loads(value) if isinstance(value, str) else value)
        except ValueError:
            return value
    if prop.kind == "object":
        parts = {k: normal(prop.fields.get(k, Prop("text")), v) for k, v in value.items() if not k.startswith("__")}
        return {k: v for k, v in parts.items() if v is not None} or None
    if prop.kind == "map":
        return {k: str(v) for k, v in value.items() if v is not None}
    if prop.kind in ("list", "set"):
        item = block(prop.fields) if prop.fields else Prop("text")
        items = [normal(item, v) for v in value]
        return sorted(items, key=lambda v: json.dumps(v, sort_keys=True)) if prop.kind == "set" else items
    if prop.kind == "flag":
        return str(value).lower() == "true"
    if prop.kind == "number":
        return float(value)
    return str(value).lower() if isinstance(value, bool) else str(value) if isinstance(value, int) else value


def _normal_document(value: Any) -> Any:
    """IAM's reading of a policy: a single value and a list of one are the same, order in lists means nothing."""
    if isinstance(value, dict):
        return {k: _normal_document(v) for k, v in value.items()}
    if isinstance(value, list):
        items = [_normal_document(v) for v in value]
        if len(items) == 1:
            return items[0]
        return sorted(items, key=lambda v: json.dumps(v, sort_keys=True))
    return value


def plain(value: Any) -> Any:
    """A value from protobuf with whole floats as ints."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [plain(v) for v in value]
    return value


def has_unknown(value: Any) -> bool:
    if isinstance(value, dict):
        return any(has_unknown(v) for v in value.values())
    if isinstance(value, list):
        return any(has_unknown(v) for v in value)
    return bool(value == UNKNOWN)
