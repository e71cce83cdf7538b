"""The base of all settings models and the small types they share."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from ipaddress import IPv4Network
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError


class Model(BaseModel):
    """Immutable, camelCase in the stack's file, and every unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel)


def refuse(wrong: str, fix: str) -> PydanticCustomError:
    """The error of a validator: what is wrong with the value, and what to do."""
    return PydanticCustomError("slipway", "{wrong}\n{fix}", {"wrong": wrong, "fix": fix})


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that `word` most likely means, if any is close."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return close[0] if close else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`Did you mean "x"? ` or nothing; to put before a list of what is allowed."""
    near = nearest(word, known)
    return f'Did you mean "{near}"? ' if near else ""


_UNITS = {"Mi": 1, "Gi": 1024, "Ti": 1024 * 1024}
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)(Mi|Gi|Ti)")


def mebibytes(quantity: str) -> float:
    """A memory quantity ("512Mi", "1.5Gi", "2Ti") in MiB. Expects a checked one."""
    match = _QUANTITY.fullmatch(quantity)
    if match is None:
        raise ValueError(f"{quantity!r} is no memory quantity")
    return float(match[1]) * _UNITS[match[2]]


def _memory(value: str) -> str:
    if not _QUANTITY.fullmatch(value) or mebibytes(value) == 0:
        raise refuse(f'"{value}" is no amount of memory.', "Write a number above 0 and Mi, Gi or Ti, for example 4Gi.")
    return value


def _cidr(value: str) -> str:
    try:
        network = IPv4Network(value)
    except ValueError:
        try:
            fixed = f"Use {IPv4Network(value, strict=False)}."
        except ValueError:
            fixed = "Write an IPv4 network such as 10.1.0.0/20."
        raise refuse(f'"{value}" is no network in CIDR notation.', fixed) from None
    return str(network)


def _quoted(value: Any) -> Any:
    """Versions and times look like numbers to YAML, which then loses digits: 1.30 becomes 1.3, 12:00:00 43200."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise refuse(f"YAML reads it as the number {value}, and this is text.", 'Put it in quotes: "…".')
    return value


Memory = Annotated[str, AfterValidator(_memory)]
Cidr = Annotated[str, AfterValidator(_cidr)]
QuotedText = Annotated[str, BeforeValidator(_quoted)]


class Resources(Model):
    """What one pod gets, and may not exceed in memory."""

    cpu: float = Field(gt=0, description="CPUs, 0.5 is half of one.")
    memory: Memory = Field(description="Memory with its unit: Mi, Gi or Ti.")


class Range(Model):
    """How many nodes there may be."""

    min: int = Field(ge=0, le=1000, description="Nodes that always run.")
    max: int = Field(
        ge=1,
        le=1000,
        description=(
            "Most nodes that scaling may reach, at least 1 (EKS). While it is above `min`, `up` leaves the number of "
            "nodes to who scales, and EKS refuses a `min` above that number: to have more nodes at once, set both to "
            "the new number, run `up`, and raise `max` after that."
        ),
    )

    @model_validator(mode="after")
    def _order(self) -> Self:
        if self.min > self.max:
            raise refuse(f"min is {self.min} and max is {self.max}.", "min may not be above max.")
        return self
