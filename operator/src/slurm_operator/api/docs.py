"""Tables of every kind's fields, written into docs/operator.md between `<!-- fields: KIND -->` and `<!-- end -->`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from msgspec import NODEFAULT, inspect

from slurm_operator.api.common import Condition, External, KeySelector, LocalRef, Metadata, PodTemplate, Service
from slurm_operator.api.controller import NamedRef
from slurm_operator.api.drainpolicy import DrainRule, LabelSelector
from slurm_operator.api.kinds import KINDS, Kind

SHARED: tuple[type, ...] = (
    LocalRef, NamedRef, KeySelector, PodTemplate, Metadata, Service, External, DrainRule, LabelSelector, Condition,
)  # fmt: skip
"""Types with a table of their own, which fields refer to by name."""
SHARED_BLOCK = "shared types"
_BLOCK = re.compile(r"(<!-- fields: ([A-Za-z ]+) -->\n).*?(<!-- end -->)", re.DOTALL)


class DocsError(ValueError):
    """A document whose marks do not fit the kinds; the message names them."""


def document(text: str) -> str:
    """The document with all tables as the types say. Raises DocsError when a kind has no place, or a mark no kind."""
    blocks = {kind.name: tables(kind) for kind in KINDS} | {SHARED_BLOCK: shared_tables()}
    found = [match[2] for match in _BLOCK.finditer(text)]
    if sorted(found) != sorted(blocks):
        raise DocsError(f"docs/operator.md has tables of {', '.join(found) or 'nothing'}; wanted: {', '.join(blocks)}")
    return _BLOCK.sub(lambda match: f"{match[1]}\n{blocks[match[2]]}\n{match[3]}", text)


def tables(kind: Kind) -> str:
    """Markdown: what is in spec and status of a kind, its columns and what the API server refuses."""
    names = ", ".join(f"`{name}`" for name in (f"{kind.name.lower()}s", *kind.short_names))
    scale = "; `kubectl scale` and autoscalers work" if kind.scale else ""
    columns = ", ".join(f"{column.name}{' (wide)' if column.wide else ''}" for column in kind.columns)
    if kind.plural != f"{kind.name.lower()}s":
        names = names.replace(f"{kind.name.lower()}s", kind.plural)
    parts = [f"`{kind.group}/{kind.version}`, names for kubectl: {names}{scale}. Columns: {columns}.", ""]
    parts += ["| `spec.` | type | default | meaning |", "|---|---|---|---|", *_rows(kind.spec)]
    rules = [rule["message"] for rule in (*kind.object_rules(), *kind.spec_rules)]
    if rules:
        parts += ["", "The API server refuses:", "", *(f"- {message}." for message in rules)]
    parts += ["", "| `status.` | type | meaning |", "|---|---|---|", *_rows(kind.status, default=False)]
    return "\n".join(parts) + "\n"


def shared_tables() -> str:
    """Markdown: the types that several fields have."""
    parts = []
    for shared in SHARED:
        parts += [f"**{shared.__name__}**", "", "| field | type | default | meaning |", "|---|---|---|---|"]
        parts += [*_rows(shared), ""]
    return "\n".join(parts)


def _rows(kind: type, *, default: bool = True) -> Iterator[str]:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType), f"{kind.__name__} is no Struct"
    yield from _struct(info, "", default)


def _struct(info: inspect.StructType, prefix: str, default: bool) -> Iterator[str]:
    for field in info.fields:
        name = f"{prefix}{field.encode_name}"
        inner, described = _bare(field.type)
        shown = _default(field, described)
        cells = [f"`{name}`", _type(inner), *([shown] if default else []), described.get("description", "")]
        yield f"| {' | '.join(map(_cell, cells))} |"
        element = inner.item_type if isinstance(inner, inspect.ListType) else inner
        element = _bare(element)[0]
        if isinstance(element, inspect.StructType) and element.cls not in SHARED:
            mark = "[]" if isinstance(inner, inspect.ListType) else ""
            yield from _struct(element, f"{name}{mark}.", default)


def _cell(text: str) -> str:
    """Text that a table of Markdown shows as it is; what is in backquotes needs nothing."""
    return text if "`" in text and "<" not in text else text.replace("<", "&lt;").replace("|", "\\|")


def _bare(info: inspect.Type) -> tuple[inspect.Type, dict[str, Any]]:
    """The type without its description and without `| None`, and what was said about it, from outside to inside."""
    said: dict[str, Any] = {}
    while True:
        if isinstance(info, inspect.Metadata):
            said = {**(info.extra_json_schema or {}), **said}
            info = info.type
        elif isinstance(info, inspect.UnionType):
            members = [one for one in info.types if not isinstance(one, inspect.NoneType)]
            if len(members) > 1:
                return info, said
            info = members[0]
        else:
            return info, said


def _type(info: inspect.Type) -> str:
    match _bare(info)[0]:
        case inspect.StructType() as found:
            return found.cls.__name__ if found.cls in SHARED else "object"
        case inspect.StrType():
            return "string"
        case inspect.BoolType():
            return "bool"
        case inspect.IntType():
            return "integer"
        case inspect.ListType(item_type=item):
            return f"list of {_type(item)}"
        case inspect.DictType(value_type=value):
            return "any fields" if isinstance(value, inspect.AnyType) else "map"
        case inspect.LiteralType(values=values):
            return ", ".join(str(value) for value in values)
        case inspect.UnionType(types=types):
            return " or ".join(_type(one) for one in types)
    raise DocsError(f"no name for {type(info).__name__}")


def _default(field: inspect.Field, described: dict[str, Any]) -> str:
    if field.required:
        return "required"
    if "default" in described:
        return f"`{described['default']}`"
    value = field.default
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if value is NODEFAULT or value in (None, "") or not isinstance(value, str | int):
        return ""
    return f"`{value}`"
