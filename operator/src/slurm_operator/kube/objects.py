"""Small pure helpers on Kubernetes objects."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec

from slurm_operator.kube.resources import Key, Object

_canonical = msgspec.json.Encoder(order="deterministic")


def key_of(obj: Object) -> Key:
    meta = obj["metadata"]
    return Key(meta.get("namespace", ""), meta["name"])


def uid_of(obj: Object) -> str:
    return str(obj["metadata"].get("uid", ""))


def resource_version_of(obj: Object) -> int:
    """resourceVersion as a number: comparable within one API server (promised since Kubernetes 1.35, true before).

    0 when the object has none (it was never stored).
    """
    text = obj["metadata"].get("resourceVersion", "")
    return int(text) if text.isdigit() else 0


def labels_of(obj: Object) -> dict[str, str]:
    return obj["metadata"].get("labels") or {}


def annotations_of(obj: Object) -> dict[str, str]:
    return obj["metadata"].get("annotations") or {}


def controller_of(obj: Object) -> dict[str, Any] | None:
    """The owner reference with `controller: true`, or None."""
    for ref in obj["metadata"].get("ownerReferences") or ():
        if ref.get("controller"):
            return dict(ref)
    return None


def owner_reference(owner: Object) -> dict[str, Any]:
    """A controlling owner reference to `owner`: it is garbage collected with it, and blocks foreground deletion."""
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def is_deleting(obj: Object) -> bool:
    return "deletionTimestamp" in obj["metadata"]


def timestamp(moment: datetime | None = None) -> str:
    """Kubernetes' time format (RFC 3339, whole seconds, Z)."""
    return (moment or datetime.now(UTC)).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def condition(obj: Object, kind: str) -> dict[str, Any] | None:
    """The condition of that type in the object's status, or None."""
    for entry in (obj.get("status") or {}).get("conditions") or ():
        if entry.get("type") == kind:
            return dict(entry)
    return None


def set_conditions(
    old: Iterable[dict[str, Any]], new: Iterable[dict[str, Any]], now: datetime | None = None
) -> list[dict[str, Any]]:
    """`new`, with the lastTransitionTime of `old` wherever the status did not change."""
    before = {entry["type"]: entry for entry in old}
    result = []
    for entry in new:
        previous = before.get(entry["type"])
        if previous and previous.get("status") == entry["status"] and previous.get("lastTransitionTime"):
            since = previous["lastTransitionTime"]
        else:
            since = timestamp(now)
        result.append({**entry, "lastTransitionTime": since})
    return result


def canonical_hash(value: Any) -> str:
    """Hash of a JSON value that does not depend on the order of keys (20 hex digits)."""
    return hashlib.sha256(_canonical.encode(value)).hexdigest()[:20]


def holds(live: Any, wish: Any) -> bool:
    """True if everything in `wish` is in `live` already: maps may hold more, lists and scalars must be equal."""
    if isinstance(wish, dict):
        return isinstance(live, dict) and all(name in live and holds(live[name], value) for name, value in wish.items())
    if isinstance(wish, list):
        return isinstance(live, list) and len(live) == len(wish) and all(map(holds, live, wish))
    return bool(live == wish)
