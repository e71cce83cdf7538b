"""What is generated from the schema: JSON Schema for editors, a reference for people."""

from __future__ import annotations

import json
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from components.settings.explain import model_of
from components.settings.load import NAMESPACE
from components.settings.model import Settings

SCHEMA_FILE = "stacks/stack.schema.json"
DOCS_FILE = "docs/configuration.md"
COMMAND = "./slipway run python -m components.settings"
GENERATED = "Generated from components/settings by `make generate`"


def json_schema() -> str:
    """JSON Schema of a stack's file, `stacks/Pulumi.<stack>.yaml`."""
    schema = Settings.model_json_schema(by_alias=True)
    known = {f"{NAMESPACE}:{name}": value for name, value in schema["properties"].items()}
    config = {
        "type": "object",
        "properties": {
            "aws:region": {"type": "string", "description": "AWS region of everything in the stack."},
            **known,
        },
        # Keys of other namespaces are their providers' matter; ours are all listed.
        "patternProperties": {f"^{NAMESPACE}:(?!({'|'.join(schema['properties'])})$)": False},
        "required": ["aws:region", *(f"{NAMESPACE}:{name}" for name in schema["required"])],
    }
    whole = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "slipway stack",
        "description": f"{GENERATED}.",
        "type": "object",
        "properties": {"config": config},
        "required": ["config"],
        "$defs": schema["$defs"],
    }
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def documentation() -> str:
    """Reference of every key, Markdown."""
    parts = [
        "# Configuration\n",
        f"<!-- {GENERATED}; edit the schema, not this file. -->\n",
        "A stack is one file, `stacks/Pulumi.<stack>.yaml`. All that differs between stacks is in it.",
        "Defaults are what production wants: a small stack asks for cheapness by key. An editor that speaks the YAML",
        "language server completes and checks keys by `stacks/stack.schema.json`.\n",
        "Wrong keys, values and combinations are refused before anything is made, each with its file, line and remedy.",
        f"`{COMMAND} check stacks/Pulumi.<stack>.yaml` tells the same without Pulumi.\n",
        "Besides the keys below, `aws:region` is needed. Other `aws:` keys go to the AWS provider as they are.\n",
    ]
    for name, field in Settings.model_fields.items():
        model = model_of(field.annotation)
        key = f"{NAMESPACE}:{field.alias or name}"
        parts.append(f"## {key}\n")
        is_list = "tuple" in str(field.annotation)
        parts.append(f"{field.description} {_default(field)}{' A list; each entry has:' if is_list else ''}\n")
        if model:
            parts.append("| key | type | default | meaning |\n|---|---|---|---|\n" + "\n".join(_rows(model, "")) + "\n")
    return "\n".join(parts)


def _rows(model: type[BaseModel], prefix: str) -> list[str]:
    rows = []
    for name, field in model.model_fields.items():
        key = prefix + (field.alias or name)
        inner = model_of(field.annotation)
        rows.append(f"| `{key}` | {_type(field, inner)} | {_short_default(field, inner)} | {_text(field)} |")
        if inner:
            rows += _rows(inner, f"{key}.")
    return rows


def _text(field: FieldInfo) -> str:
    return (field.description or "").replace("|", "\\|")


def _default(field: FieldInfo) -> str:
    return "**Needed.**" if field.is_required() else "Optional."


def _short_default(field: FieldInfo, inner: type[BaseModel] | None) -> str:
    if field.is_required():
        return "**needed**"
    value = field.default
    if value is PydanticUndefined or value is None or value in ("", (), {}):
        return "-"
    if isinstance(value, BaseModel):
        shown = json.dumps(value.model_dump(mode="json", by_alias=True, exclude_defaults=True))
        return "see below" if shown == "{}" else f"`{shown}`".replace('"', "")
    if isinstance(value, tuple):
        return f"`[{', '.join(str(v) for v in value)}]`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _type(field: FieldInfo, inner: type[BaseModel] | None) -> str:
    annotation = str(field.annotation)
    if inner:
        return "list" if annotation.startswith("tuple") else "keys"
    if "Literal" in annotation:
        values = _literals(field.annotation)
        text = " \\| ".join(str(v) for v in values)
        return f"list of {text}" if annotation.startswith("tuple") else text
    if annotation.startswith("tuple"):
        return "list of text"
    if annotation.startswith("dict"):
        return "map"
    for word, shown in (("bool", "true \\| false"), ("int", "whole number"), ("float", "number")):
        if word in annotation:
            return shown
    return "text"


def _literals(annotation: Any) -> list[Any]:
    found: list[Any] = []
    for arg in get_args(annotation):
        found += _literals(arg) if get_args(arg) else [arg] if arg is not Ellipsis else []
    return found
