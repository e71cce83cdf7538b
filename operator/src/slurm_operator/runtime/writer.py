"""Writes of a reconcile: skipped when there is nothing to write, remembered until the caches show them.

Every write belongs to the object whose reconcile made it (`owner`). The next reconcile of that owner starts when the
caches show all of them, so it never decides on a state from before its own doing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from slurm_operator.kube.client import KubeClient, PatchContent
from slurm_operator.kube.informer import Informer
from slurm_operator.kube.objects import canonical_hash, holds, key_of, uid_of
from slurm_operator.kube.resources import PODS, Key, Object, Resource, resource_of

InformersOf = Callable[[Resource], Iterable[Informer]]


class Writer:
    """One per controller; `manager` is its name as field manager."""

    def __init__(self, client: KubeClient, manager: str, informers: InformersOf) -> None:
        self._client = client
        self._manager = manager
        self._informers = informers
        self._applied: dict[tuple[Resource, Key, str], tuple[str, str]] = {}
        self._written: dict[Key, set[tuple[Informer, Key]]] = {}

    def stale(self, owner: Key) -> list[tuple[Informer, Key]]:
        """What `owner` wrote and the caches do not show yet."""
        written = self._written.get(owner)
        if not written:
            return []
        still = {(informer, key) for informer, key in written if informer.is_stale(key)}
        if still:
            self._written[owner] = still
        else:
            del self._written[owner]
        return list(still)

    async def ensure(self, owner: Key, wish: Object) -> Object:
        """Server-side apply of `wish`, unless it is what was applied last and the live object is as that left it.

        Returns the live object (from the cache when nothing was sent: then as the informer's transform made it).
        """
        resource, key = resource_of(wish), key_of(wish)
        memory = (resource, key, "")
        digest = canonical_hash(wish)
        known = self._applied.get(memory)
        if known is not None and known[0] == digest:
            live = self._cached(resource, key)
            if live is not None and _fingerprint(live) == known[1]:
                return live
        result = await self._client.apply(wish, self._manager)
        self._applied[memory] = (digest, _fingerprint(result))
        self._note(owner, resource, result)
        return result

    async def apply_status(self, owner: Key, obj: Object) -> Object | None:
        """Server-side apply of the status of `obj`, unless the live object holds it already; None if nothing was sent.

        `obj` may be the object as read: only its name and status are sent, and with its uid, so that the status cannot
        land on another object of that name. Fields left out that were applied before are removed.
        """
        resource, key = resource_of(obj), key_of(obj)
        status = obj.get("status") or {}
        memory = (resource, key, "status")
        digest = canonical_hash([uid_of(obj), status])
        live = self._cached(resource, key)
        known = self._applied.get(memory)
        if known is not None and known[0] == digest and live is not None and holds(live.get("status") or {}, status):
            return None
        meta = {"name": key.name, "namespace": key.namespace, "uid": obj["metadata"].get("uid")}
        wish = {
            "apiVersion": obj["apiVersion"],
            "kind": obj["kind"],
            "metadata": {field: value for field, value in meta.items() if value},
            "status": status,
        }
        result = await self._client.apply_status(wish, self._manager)
        self._applied[memory] = (digest, "")
        self._note(owner, resource, result)
        return result

    async def create(self, owner: Key, obj: Object) -> Object:
        """POST; raises AlreadyExists."""
        result = await self._client.create(obj)
        self._note(owner, resource_of(obj), result)
        return result

    async def patch(
        self,
        owner: Key,
        obj: Object,
        body: Any,
        *,
        content: PatchContent = "merge",
        subresource: str = "",
    ) -> Object:
        """PATCH of `obj`."""
        resource, key = resource_of(obj), key_of(obj)
        result = await self._client.patch(
            resource, key.namespace, key.name, body, content=content, subresource=subresource
        )
        self._note(owner, resource, result)
        return result

    async def delete(
        self,
        owner: Key,
        obj: Object,
        *,
        unchanged: bool = False,
        propagation: str = "Background",
        grace_seconds: int | None = None,
        begin_by: float = math.inf,
    ) -> bool:
        """Delete this very object (by uid), with `unchanged` only as it was read (by resourceVersion).

        False: it was gone. Raises Conflict when the precondition fails, TooLate when it could not be sent by
        `begin_by` (time.monotonic()).
        """
        resource, key = resource_of(obj), key_of(obj)
        deleted = await self._client.delete(
            resource,
            key.namespace,
            key.name,
            uid=uid_of(obj),
            resource_version=obj["metadata"]["resourceVersion"] if unchanged else None,
            propagation=propagation,
            grace_seconds=grace_seconds,
            begin_by=begin_by,
        )
        self._gone(owner, resource, obj)
        return deleted is not None

    async def evict(self, owner: Key, pod: Object, *, grace_seconds: int | None = None) -> bool:
        """Evict this very pod. False: it was gone. Raises EvictionRefused while a disruption budget forbids it."""
        key = key_of(pod)
        evicted = await self._client.evict(key.namespace, key.name, uid=uid_of(pod), grace_seconds=grace_seconds)
        self._gone(owner, PODS, pod)
        return evicted

    def forget(self, resource: Resource, key: Key) -> None:
        """The object is gone: what was applied to it says nothing any more."""
        self._applied.pop((resource, key, ""), None)
        self._applied.pop((resource, key, "status"), None)

    def _cached(self, resource: Resource, key: Key) -> Object | None:
        for informer in self._informers(resource):
            obj = informer.get(*key)
            if obj is not None:
                return obj
        return None

    def _note(self, owner: Key, resource: Resource, result: Object) -> None:
        key = key_of(result)
        for informer in self._informers(resource):
            informer.note_write(result)
            self._remember(owner, informer, key)

    def _gone(self, owner: Key, resource: Resource, obj: Object) -> None:
        key = key_of(obj)
        for informer in self._informers(resource):
            informer.note_delete(key, uid_of(obj))
            self._remember(owner, informer, key)

    def _remember(self, owner: Key, informer: Informer, key: Key) -> None:
        if informer.is_stale(key):
            self._written.setdefault(owner, set()).add((informer, key))


def _fingerprint(obj: Object) -> str:
    """What of an object others may change against our wish. The generation stands for the spec where there is one."""
    meta = obj["metadata"]
    version = meta.get("generation") or meta.get("resourceVersion")
    return canonical_hash(
        [meta.get("uid"), version, meta.get("labels"), meta.get("annotations"), meta.get("ownerReferences")]
    )
