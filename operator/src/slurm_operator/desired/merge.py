"""Overlay of what a user wrote over what the operator builds.

The rules are those of a strategic merge patch, with a table of the lists that Kubernetes merges by key. Two lists that
Kubernetes would replace are joined, since replacing them is never what is meant: tolerations, and added capabilities.
"""

from __future__ import annotations

import copy
from typing import Any, Final

# Name of the list -> the field that tells its entries apart.
_KEYS: Final = {
    "containers": ("name",),
    "initContainers": ("name",),
    "volumes": ("name",),
    "env": ("name",),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "imagePullSecrets": ("name",),
    "hostAliases": ("ip",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "resourceClaims": ("name",),
    "ports": ("containerPort", "protocol"),
}
_SERVICE_KEYS: Final = {**_KEYS, "ports": ("port", "protocol")}
_DEFAULT_PROTOCOL: Final = "TCP"
_JOINED: Final = frozenset({"tolerations", "add"})


def overlay(base: dict[str, Any], patch: dict[str, Any], *, service: bool = False) -> dict[str, Any]:
    """`base` with `patch` over it; neither is changed. None in the patch removes a field."""
    return _merge(copy.deepcopy(base), copy.deepcopy(patch), _SERVICE_KEYS if service else _KEYS)


def _merge(base: dict[str, Any], patch: dict[str, Any], keys: dict[str, tuple[str, ...]]) -> dict[str, Any]:
    for name, value in patch.items():
        old = base.get(name)
        if value is None:
            base.pop(name, None)
        elif isinstance(value, dict) and isinstance(old, dict):
            base[name] = _merge(old, value, keys)
        elif isinstance(value, list) and isinstance(old, list) and name in keys and _is_maps(old) and _is_maps(value):
            base[name] = _merge_list(old, value, keys[name], keys)
        elif isinstance(value, list) and isinstance(old, list) and name in _JOINED:
            base[name] = old + [item for item in value if item not in old]
        else:
            base[name] = value
    return base


def _merge_list(
    old: list[Any], new: list[Any], by: tuple[str, ...], keys: dict[str, tuple[str, ...]]
) -> list[dict[str, Any]]:
    result = list(old)
    places = {_identity(item, by): index for index, item in enumerate(result)}
    for item in new:
        place = places.get(_identity(item, by))
        if place is None:
            result.append(item)
        else:
            result[place] = _merge(result[place], item, keys)
    return result


def _identity(item: dict[str, Any], by: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(item.get(field, _DEFAULT_PROTOCOL if field == "protocol" else None) for field in by)


def _is_maps(items: list[Any]) -> bool:
    return all(isinstance(item, dict) for item in items)
