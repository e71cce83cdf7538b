"""Typed reading of custom resources: defaults applied, values checked."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from slurm_operator.api.common import Base, KeySelector

Spec = TypeVar("Spec", bound=Base)


class InvalidSpec(ValueError):
    """A resource that cannot be acted upon; the message names the field and what is allowed."""


def load_spec(kind: type[Spec], obj: dict[str, Any]) -> Spec:
    """The spec of a resource. Raises InvalidSpec where the CRD's schema was not enough to refuse it."""
    try:
        return msgspec.convert(obj.get("spec") or {}, kind)
    except msgspec.ValidationError as error:
        text = str(error)
        # msgspec says: Expected `int`, got `str` - at `$.replicas`
        message, _, path = text.partition(" - at `$")
        where = f"spec{path.rstrip('`')}" if path else "spec"
        raise InvalidSpec(f"{where}: {message.replace('`', '')}") from None


def jwt_key_of(spec: Any) -> KeySelector | None:
    """The JWT key reference of a Controller, Accounting or Token, by its new or its old name."""
    reference: KeySelector | None = spec.jwt_key_ref or spec.jwt_hs256_key_ref
    return reference
