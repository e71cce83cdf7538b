"""Turns pydantic's findings into problems a person can act on."""

from __future__ import annotations

from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from components.settings.base import Model, did_you_mean
from components.settings.errors import Key, Problem, dotted

KINDS = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "keys with values",
    "model_type": "keys with values",
    "model_attributes_type": "keys with values",
}
BOUNDS = {
    "greater_than": ("gt", "more than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}
LENGTHS = {
    "too_short": ("min_length", "at least", "entries"),
    "too_long": ("max_length", "at most", "entries"),
    "string_too_short": ("min_length", "at least", "letters"),
    "string_too_long": ("max_length", "at most", "letters"),
}


def problem(root: type[BaseModel], error: ErrorDetails) -> Problem:
    """The problem that one pydantic error of `root` tells of."""
    key: Key = tuple(error["loc"])
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    if kind == "slipway":
        return Problem(key, context["wrong"], context["fix"])
    if kind == "extra_forbidden":
        known = keys_at(root, key[:-1])
        return Problem(
            key, "there is no such key.", f"{did_you_mean(str(key[-1]), known)}Keys here: {', '.join(sorted(known))}."
        )
    if kind == "missing":
        return Problem(key, "this key is needed.", f"Add it: {description_at(root, key)}")
    # A union reports once per branch and puts the branch's name at the end of the location.
    key = tuple(part for part in key if not (isinstance(part, str) and part in ("str", "int")))
    if kind in KINDS:
        return Problem(
            key, f"{shown(value)} is not {KINDS[kind]}.", f"Write {KINDS[kind]}: {description_at(root, key)}"
        )
    if kind == "literal_error":
        allowed = context["expected"].replace("'", "")
        return Problem(
            key,
            f"{shown(value)} is not allowed.",
            f"{did_you_mean(str(value), allowed.split(' or '))}Allowed: {allowed}.",
        )
    if kind in BOUNDS:
        bound, words = BOUNDS[kind]
        return Problem(
            key, f"{shown(value)} is out of range.", f"Write {words} {context[bound]:g}: {description_at(root, key)}"
        )
    if kind in LENGTHS:
        bound, words, unit = LENGTHS[kind]
        return Problem(
            key, f"there are {len(value)} {unit}.", f"Write {words} {context[bound]}: {description_at(root, key)}"
        )
    if kind == "string_pattern_mismatch":
        return Problem(key, f"{shown(value)} has not the form it needs.", description_at(root, key))
    return Problem(key, f"{shown(value)}: {error['msg']}.", description_at(root, key))


def shown(value: Any) -> str:
    """A value as its writer would recognise it, short."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value[:60]}"'
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    return "nothing" if value is None else f"{value}"


def keys_at(root: type[BaseModel], key: Key) -> list[str]:
    """The keys that a model allows at `key`, as written in the stack's file."""
    model = model_at(root, key)
    return [field.alias or name for name, field in model.model_fields.items()] if model else []


def description_at(root: type[BaseModel], key: Key) -> str:
    """What the schema says of a key, or of the list it is an entry of."""
    names = [part for part in key if isinstance(part, str)]
    model: type[BaseModel] | None = root
    text = ""
    for name in names:
        field = _field(model, name) if model else None
        if field is None:
            break
        text = field.description or text
        model = model_of(field.annotation)
    return text or f"see docs/configuration.md#{dotted(key[:1])}."


def model_at(root: type[BaseModel], key: Key) -> type[BaseModel] | None:
    """The model whose keys stand at `key`; None where no model does."""
    model: type[BaseModel] | None = root
    for part in key:
        if isinstance(part, int):
            continue
        field = _field(model, part) if model else None
        model = model_of(field.annotation) if field else None
    return model


def _field(model: type[BaseModel], name: str) -> Any:
    return next((field for key, field in model.model_fields.items() if (field.alias or key) == name), None)


def model_of(annotation: Any) -> type[BaseModel] | None:
    """The model inside an annotation such as `tuple[User, ...]` or `Nfs | None`."""
    if isinstance(annotation, type) and issubclass(annotation, Model):
        return annotation
    return next((found for arg in get_args(annotation) if (found := model_of(arg))), None)
