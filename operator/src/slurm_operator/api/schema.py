"""Structural OpenAPI v3 schemas, as CustomResourceDefinitions want them, from the types of this package.

Differences to JSON Schema that the CRD rules force: everything is inline (no $ref), `X | None` is just an optional X,
`int | str` is x-kubernetes-int-or-string, a free object keeps unknown fields, and there are no titles.
"""

from __future__ import annotations

from typing import Any

from msgspec import NODEFAULT, inspect


class SchemaError(TypeError):
    """A type that no CRD schema can express; the message names it."""


def schema_of(kind: type) -> dict[str, Any]:
    """Schema of a Struct type. Raises SchemaError on a field type that is not supported."""
    return _schema(inspect.type_info(kind), kind.__name__)


def _schema(info: inspect.Type, where: str) -> dict[str, Any]:
    match info:  # one line per kind of type
        case inspect.Metadata():
            inner = _schema(info.type, where)
            extra = dict(info.extra_json_schema or {})
            # The description of a field is more to the point than that of its type.
            return {**inner, **extra}
        case inspect.StructType():
            return _struct(info, where)
        case inspect.StrType():
            return _bounds(
                {"type": "string"}, minLength=info.min_length, maxLength=info.max_length, pattern=info.pattern
            )
        case inspect.BoolType():
            return {"type": "boolean"}
        case inspect.IntType():
            return _bounds({"type": "integer"}, minimum=info.ge, maximum=info.le)
        case inspect.ListType():
            return {"type": "array", "items": _schema(info.item_type, f"{where}[]")}
        case inspect.DictType() if isinstance(info.value_type, inspect.AnyType):
            return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        case inspect.DictType():
            return {"type": "object", "additionalProperties": _schema(info.value_type, f"{where}{{}}")}
        case inspect.LiteralType():
            return {"type": "string", "enum": list(info.values)}
        case inspect.UnionType():
            return _union(info, where)
    raise SchemaError(f"{where}: {type(info).__name__} has no place in a CRD; use a Struct, str, int, bool, list, dict")


def _union(info: inspect.UnionType, where: str) -> dict[str, Any]:
    members = [member for member in info.types if not isinstance(member, inspect.NoneType)]
    if len(members) == 1:
        return _schema(members[0], where)
    if {type(member) for member in members} == {inspect.IntType, inspect.StrType}:
        return {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]}
    raise SchemaError(f"{where}: a choice of {len(members)} types has no place in a CRD")


def _struct(info: inspect.StructType, where: str) -> dict[str, Any]:
    properties = {}
    for field in info.fields:
        name = field.encode_name
        schema = _schema(field.type, f"{where}.{name}")
        if note := _default_note(field, schema):
            schema["description"] = f"{schema['description']} {note}"
        properties[name] = dict(sorted(schema.items()))
    result: dict[str, Any] = {"type": "object", "properties": dict(sorted(properties.items()))}
    if required := sorted(field.encode_name for field in info.fields if field.required):
        result["required"] = required
    return result


def _default_note(field: inspect.Field, schema: dict[str, Any]) -> str:
    """Most defaults are applied by the operator, not the API server: then the description has to tell."""
    value = field.default
    if "description" not in schema or "default" in schema or value in (NODEFAULT, None, "", 0):
        return "" if value is not False or "description" not in schema else "Default: false."
    if isinstance(value, bool):
        return f"Default: {str(value).lower()}."
    return f"Default: {value}." if isinstance(value, int | str) else ""


def _bounds(schema: dict[str, Any], **bounds: Any) -> dict[str, Any]:
    return schema | {key: value for key, value in bounds.items() if value is not None}
