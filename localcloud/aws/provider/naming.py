"""Automatic names, as Pulumi gives them."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping

from localcloud.aws.provider.schema import Prop, Values

SUFFIX = 7
DEFAULTS = "__defaults"
"""Inputs that were filled here and not by the program, in Pulumi's own way of noting it."""


def name_property(props: Mapping[str, Prop]) -> str | None:
    return next((name for name, prop in props.items() if prop.name), None)


def with_name(
    props: Mapping[str, Prop],
    news: Values,
    olds: Values,
    logical: str,
    seed: bytes,
    proposed: str = "",
    off: bool = False,
) -> tuple[Values, str]:
    """The inputs with a name, and a problem if none can be given.

    A name chosen before stays. Otherwise it is <logical name>-<7 hex digits of the seed>, or <prefix><26 digits>, or
    what the engine proposes.
    """
    prop = name_property(props)
    if prop is None or news.get(prop) is not None:
        return news, ""
    if prop in (olds.get(DEFAULTS) or []) and olds.get(prop) and olds.get(f"{prop}Prefix") == news.get(f"{prop}Prefix"):
        return {**news, prop: olds[prop], DEFAULTS: [prop]}, ""
    digits = hashlib.sha256(seed).hexdigest() if seed else secrets.token_hex(32)
    prefix_name = "bucketPrefix" if prop == "bucket" else f"{prop}Prefix"
    limit = props[prop].name
    if news.get(prefix_name):
        name = f"{news[prefix_name]}{digits[:26]}"[:limit]
    elif proposed:
        name = proposed
    elif off:
        return news, f"automatic names are off (pulumi:autonaming), so {prop} is required"
    else:
        name = f"{logical[: limit - SUFFIX - 1]}-{digits[:SUFFIX]}"
    if prop == "bucket":
        name = name.lower()
    if props is not None and news.get("targetKeyId") and not name.startswith("alias/"):
        name = f"alias/{name}"
    return {**news, prop: name, DEFAULTS: [prop]}, ""
