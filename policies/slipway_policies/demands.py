"""Rules that are a table: properties of cloud resources, and what they have to be."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from .rule import Check, Resource
from .values import UNKNOWN, at, is_false, is_true, number


@dataclass(frozen=True)
class Demand:
    """path: keys to the property. good: whether its value (None: not set) will do. wrong: what is told otherwise."""

    kind: str
    path: tuple[str, ...]
    good: Callable[[Any], bool]
    wrong: str


def kinds(demands: tuple[Demand, ...]) -> str:
    """Pattern of all types that a table has demands of."""
    return "|".join(sorted({re.escape(demand.kind) for demand in demands}))


def check_of(demands: tuple[Demand, ...]) -> Check:
    """A rule's check by a table; what is not known yet is judged when it is."""

    def check(resource: Resource) -> Iterator[str]:
        for demand in demands:
            if demand.kind == resource.kind:
                value = at(resource.inputs, *demand.path)
                if value is not UNKNOWN and not demand.good(value):
                    yield f"{resource.title} {demand.wrong}."

    return check


def given(value: Any) -> bool:
    """Set to something."""
    return value not in (None, "")


def not_true(value: Any) -> bool:
    """False, or not set."""
    return not is_true(value)


def not_false(value: Any) -> bool:
    """True, or not set."""
    return not is_false(value)


def at_least(least: float) -> Callable[[Any], bool]:
    """A number of at least so much."""
    return lambda value: (number(value) or 0) >= least
