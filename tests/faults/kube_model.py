"""Stands in for kube-apiserver in tests of faults: versions, watches, preconditions, finalizers, owners; no validation.

Objects are plain dicts. An apply is a merge that also takes away what the same manager applied before and left out;
lists of conditions merge by type, all others are replaced. It does not default, admit, convert or check access. A
request it does not know raises, and fails the test.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from slurm_operator.kube.resources import ALL, Resource

Object = dict[str, Any]
Ident = tuple[str, str, str]  # plural.group, namespace, name
HISTORY = 4000

_BY_PATH = {(one.group, one.version, one.plural): one for one in ALL}


class Refused(Exception):
    """An answer that is no success, as the API server words it."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message


@dataclass(frozen=True)
class Target:
    """What a URL names."""

    resource: Resource
    namespace: str
    name: str
    subresource: str

    @property
    def ident(self) -> Ident:
        return str(self.resource), self.namespace, self.name


def target_of(path: str) -> Target:
    """Raises AssertionError for a path of a kind that the operator has no business with."""
    parts = path.strip("/").split("/")
    group, rest = ("", parts[1:]) if parts[0] == "api" else (parts[1], parts[2:])
    version, rest = rest[0], rest[1:]
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    resource = _BY_PATH.get((group, version, rest[0]))
    assert resource is not None, f"the model has no {path}"
    rest += ["", ""]
    return Target(resource, namespace, rest[1], rest[2])


class KubeModel:
    """The store. `now` gives UNIX seconds; `changed(kind, object)` hears ADDED, MODIFIED and DELETED."""

    def __init__(self, now: Callable[[], str]) -> None:
        self.version = 100
        self.compacted = 0
        self.objects: dict[Ident, Object] = {}
        self.history: list[tuple[int, str, str, Object]] = []  # version, event, plural.group, object
        self.changed: Callable[[], None] = lambda: None
        self._now = now
        self._uids = itertools.count(1)
        self._applied: dict[tuple[Ident, str, str], Object] = {}

    # --- reading ---

    def get(self, resource: Resource, namespace: str, name: str) -> Object | None:
        return self.objects.get((str(resource), namespace, name))

    def all(self, resource: Resource) -> list[Object]:
        return [obj for ident, obj in self.objects.items() if ident[0] == str(resource)]

    def select(self, target: Target, selector: str) -> list[Object]:
        wanted = dict(part.split("=", 1) for part in selector.split(",") if part)
        return [
            obj
            for (kind, space, _), obj in self.objects.items()
            if kind == str(target.resource)
            and target.namespace in ("", space)
            and wanted.items() <= (obj["metadata"].get("labels") or {}).items()
        ]

    def events_after(self, version: int, target: Target, selector: str) -> list[tuple[int, str, Object]]:
        """Raises Refused 410 when they are forgotten."""
        if version < self.compacted:
            raise Refused(410, "Expired", f"too old resource version: {version} ({self.compacted})")
        wanted = dict(part.split("=", 1) for part in selector.split(",") if part)
        return [
            (at, kind, obj)
            for at, kind, what, obj in self.history
            if at > version
            and what == str(target.resource)
            and target.namespace in ("", obj["metadata"].get("namespace", ""))
            and wanted.items() <= (obj["metadata"].get("labels") or {}).items()
        ]

    def compact(self) -> None:
        self.compacted = self.version
        self.history.clear()

    # --- writing ---

    def create(self, resource: Resource, obj: Object) -> Object:
        obj = copy.deepcopy(obj)
        meta = obj["metadata"]
        if not meta.get("name"):
            meta["name"] = f"{meta['generateName']}{next(self._uids):05d}"
        ident = (str(resource), meta.get("namespace", ""), meta["name"])
        if ident in self.objects:
            raise Refused(409, "AlreadyExists", f"{resource} {meta['name']} already exists")
        obj.setdefault("apiVersion", resource.api_version)
        obj.setdefault("kind", resource.kind)
        meta |= {"uid": f"uid-{next(self._uids)}", "creationTimestamp": self._now(), "generation": 1}
        return self._store(ident, obj, "ADDED")

    def change(self, resource: Resource, obj: Object, edit: Callable[[Object], None]) -> Object:
        """`edit` a copy of the object as it is now and store it; nothing happens when that changes nothing."""
        meta = obj["metadata"]
        ident = (str(resource), meta.get("namespace", ""), meta["name"])
        old = self.objects[ident]
        new = copy.deepcopy(old)
        edit(new)
        return self._replace(ident, old, new)

    def apply(self, target: Target, body: Object, manager: str) -> Object:
        old = self.objects.get(target.ident)
        memory = (target.ident, manager, target.subresource)
        before = self._applied.get(memory, {})
        if old is None:
            if target.subresource:
                raise Refused(404, "NotFound", f"{target.resource} {target.name} not found")
            if body["metadata"].get("uid"):
                raise Refused(409, "Conflict", "uid mismatch: the object is gone")
            self._applied[memory] = body
            return self.create(target.resource, body)
        self._check_uid(old, body["metadata"].get("uid"))
        parts = ("status",) if target.subresource == "status" else tuple(part for part in body if part != "status")
        wish = {part: body[part] for part in parts if part in body}
        wish.get("metadata", {}).pop("uid", None)
        new = copy.deepcopy(old)
        _take_away(new, {part: before.get(part) for part in parts if before.get(part) is not None}, wish)
        _merge(new, wish, nulls=False)
        self._applied[memory] = copy.deepcopy(wish)
        return self._replace(target.ident, old, new)

    def patch(self, target: Target, body: Object) -> Object:
        """JSON merge patch."""
        old = self.objects.get(target.ident)
        if old is None:
            raise Refused(404, "NotFound", f"{target.resource} {target.name} not found")
        body = copy.deepcopy(body)
        self._check_uid(old, body.get("metadata", {}).pop("uid", None))
        version = body.get("metadata", {}).pop("resourceVersion", None)
        if version is not None and version != old["metadata"]["resourceVersion"]:
            raise Refused(409, "Conflict", "the object has been modified")
        new = copy.deepcopy(old)
        _merge(new, body, nulls=True)
        return self._replace(target.ident, old, new)

    def delete(self, ident: Ident, preconditions: Object | None = None, *, grace: bool = False) -> Object | None:
        """The object if it lingers (finalizers, or `grace`: its kubelet has to end it), None if it is gone."""
        old = self.objects.get(ident)
        if old is None:
            raise Refused(404, "NotFound", f"{ident[0]} {ident[2]} not found")
        for field, value in (preconditions or {}).items():
            if old["metadata"][field] != value:
                raise Refused(409, "Conflict", f"precondition on {field} failed")
        if old["metadata"].get("finalizers") or grace:
            if "deletionTimestamp" in old["metadata"]:
                return old
            new = copy.deepcopy(old)
            new["metadata"]["deletionTimestamp"] = self._now()
            return self._store(ident, new, "MODIFIED")
        self.remove(ident)
        return None

    def remove(self, ident: Ident) -> None:
        """Gone at once, whatever holds it."""
        obj = copy.deepcopy(self.objects.pop(ident))
        for memory in [one for one in self._applied if one[0] == ident]:
            del self._applied[memory]
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)
        self._told(ident, "DELETED", obj)

    def orphans(self) -> list[Ident]:
        """What the garbage collector would delete now: objects whose owners are all gone."""
        uids = {obj["metadata"]["uid"] for obj in self.objects.values()}
        return [
            ident
            for ident, obj in self.objects.items()
            if (owners := obj["metadata"].get("ownerReferences")) and not any(one["uid"] in uids for one in owners)
        ]

    # --- inside ---

    def _check_uid(self, old: Object, uid: str | None) -> None:
        if uid is not None and uid != old["metadata"]["uid"]:
            raise Refused(409, "Conflict", "uid mismatch: it is another object")

    def _replace(self, ident: Ident, old: Object, new: Object) -> Object:
        if new == old:
            return old
        if new.get("spec") != old.get("spec"):
            new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
        if "deletionTimestamp" in new["metadata"] and not new["metadata"].get("finalizers") and ident[0] != "pods":
            self.remove(ident)
            return new
        return self._store(ident, new, "MODIFIED")

    def _store(self, ident: Ident, obj: Object, event: str) -> Object:
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)
        self.objects[ident] = obj
        self._told(ident, event, obj)
        return obj

    def _told(self, ident: Ident, event: str, obj: Object) -> None:
        self.history.append((self.version, event, ident[0], obj))
        if len(self.history) > HISTORY:
            self.compacted = self.history[HISTORY // 2][0]
            del self.history[: HISTORY // 2]
        self.changed()


def _by_type(items: Iterable[Object]) -> dict[str, Object]:
    return {item["type"]: item for item in items}


def _merge(into: Object, patch: Object, *, nulls: bool) -> None:
    for name, value in patch.items():
        if value is None and nulls:
            into.pop(name, None)
        elif isinstance(value, dict) and isinstance(into.get(name), dict):
            _merge(into[name], value, nulls=nulls)
        elif name == "conditions" and isinstance(into.get(name), list):
            into[name] = list((_by_type(into[name]) | _by_type(value)).values())
        elif isinstance(value, dict) and nulls:
            into[name] = {}
            _merge(into[name], value, nulls=nulls)
        else:
            into[name] = copy.deepcopy(value)


def _take_away(live: Object, before: Object, wish: Object) -> None:
    """Remove from `live` what was applied `before` and is not in the `wish`."""
    for name, value in before.items():
        if name not in live:
            continue
        if name not in wish and name not in ("apiVersion", "kind", "metadata"):
            if name == "conditions":
                kept = set(_by_type(live[name])) - set(_by_type(value))
                live[name] = [one for one in live[name] if one["type"] in kept]
            else:
                del live[name]
        elif name == "conditions":
            gone = set(_by_type(value)) - set(_by_type(wish[name]))
            live[name] = [one for one in live[name] if one["type"] not in gone]
        elif isinstance(value, dict) and isinstance(wish.get(name), dict):
            _take_away(live[name], value, wish[name])
