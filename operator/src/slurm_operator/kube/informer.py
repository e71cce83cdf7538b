"""A cache of one kind that follows the API server, whatever happens to the connection.

List, then watch from the list's resourceVersion. After a gap (410, a restored etcd) it lists again, swaps the store in
one step and tells handlers the difference, deletions included: nothing that vanished during the gap stays behind.

Read-your-writes: `note_write` remembers the resourceVersion that a write returned; until the cache has seen it,
`is_stale` is true and a reconcile of that object would act on the past.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal

from slurm_operator.errors import Unknown
from slurm_operator.kube.client import KubeClient, WatchEvent
from slurm_operator.kube.errors import Gone, KubeError, TooManyRequests, Unreachable
from slurm_operator.kube.objects import is_deleting, key_of, labels_of, resource_version_of, uid_of
from slurm_operator.kube.resources import Key, Object, Resource
from slurm_operator.kube.store import IndexFn, Store, label_index

EventType = Literal["ADDED", "MODIFIED", "DELETED"]
Handler = Callable[[EventType, Object | None, Object | None], None]
Transform = Callable[[Object], Object]

BACKOFF_FIRST_SECONDS = 0.2
BACKOFF_MAX_SECONDS = 10.0
STALE_SECONDS = 10.0  # a write not seen for so long means that the watch is broken: list again
HEALTHY_SECONDS = 5.0  # a watch that lasted so long resets the back-off

_log = logging.getLogger("informer")


def drop_managed_fields(obj: Object) -> Object:
    """The default transform: field ownership is a third of an object and nobody here reads it."""
    obj["metadata"].pop("managedFields", None)
    return obj


@dataclass(slots=True)
class _Pending:
    """A write that the cache has not shown yet: by resourceVersion, or for deletions by the uid that must go."""

    since: float
    version: int = 0
    deleted_uid: str = ""


class Informer:
    """`namespace`: one, several, or None for all. `transform` slims objects before they are stored (in place is fine).

    Objects handed out are the stored ones: read, never change.
    """

    def __init__(
        self,
        client: KubeClient,
        resource: Resource,
        namespace: str | Sequence[str] | None = None,
        label_selector: str = "",
        transform: Transform | None = None,
        *,
        metadata_only: bool = False,
        inactivity: float = 120.0,
    ) -> None:
        self.resource = resource
        self.label_selector = label_selector
        self.metadata_only = metadata_only
        self.synced = asyncio.Event()
        self.relists = 0
        self.last_event = time.monotonic()
        self._client = client
        self._transform = transform or drop_managed_fields
        self._inactivity = inactivity
        self._store = Store()
        self._handlers: list[Handler] = []
        self._pending: dict[Key, _Pending] = {}
        self._waiters: list[tuple[Key, asyncio.Future[None]]] = []
        self._required = _equalities(label_selector)
        spaces = [namespace] if isinstance(namespace, str) else list(namespace or ())
        if not resource.namespaced or not any(spaces):
            self._scopes: dict[str, _Scope] = {"": _Scope(self, None)}
        else:
            self._scopes = {space: _Scope(self, space) for space in spaces}

    # --- reading ---

    def __len__(self) -> int:
        return len(self._store)

    def get(self, namespace: str, name: str) -> Object | None:
        return self._store.get(Key(namespace, name))

    def list(self, namespace: str | None = None) -> Sequence[Object]:
        return self._store.list(namespace)

    def by_index(self, name: str, value: str) -> Sequence[Object]:
        """Built in: "by_owner" (uid of the controlling owner), "by_node" (spec.nodeName)."""
        return self._store.by_index(name, value)

    def add_index(self, name: str, function: IndexFn) -> None:
        self._store.add_index(name, function)

    def add_label_index(self, label: str) -> None:
        """Index by the value of a label; its name is the label."""
        self._store.add_index(*label_index(label))

    def add_handler(self, handler: Handler) -> None:
        """`handler(event, old, new)`, called in order and after the store has changed. It must return at once."""
        self._handlers.append(handler)

    # --- read your writes ---

    def note_write(self, obj: Object) -> None:
        """The API server answered a write with `obj`: the cache is behind until it has seen that version."""
        labels = labels_of(obj)
        version = resource_version_of(obj)
        key = key_of(obj)
        if not version or any(labels.get(name) != value for name, value in self._required.items()):
            return
        if self._scope(key) is not None and self._behind(key, _Pending(0, version)):
            self._pending[key] = _Pending(time.monotonic(), version)

    def note_delete(self, key: Key, uid: str) -> None:
        """A delete of that object was accepted: the cache is behind while it shows it as living."""
        if self._scope(key) is not None and self._behind(key, _Pending(0, deleted_uid=uid)):
            self._pending[key] = _Pending(time.monotonic(), deleted_uid=uid)

    def is_stale(self, key: Key) -> bool:
        """True while the cache is behind what we wrote to `key` ourselves."""
        pending = self._pending.get(key)
        if pending is None:
            return False
        if not self._behind(key, pending):
            del self._pending[key]
            return False
        scope = self._scope(key)
        if scope is not None and time.monotonic() - pending.since > STALE_SECONDS:
            scope.relist("a write was not seen in the watch", written=pending.since)
        return True

    async def caught_up(self, key: Key, timeout: float = STALE_SECONDS) -> None:  # noqa: ASYNC109 - raises Unknown
        """Returns when the cache shows what we wrote to `key`. Raises Unknown after `timeout` seconds."""
        if not self.is_stale(key):
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append((key, waiter))
        try:
            await asyncio.wait_for(waiter, timeout)
        except TimeoutError:
            raise Unknown(f"the cache of {self.resource} does not show the last write to {key} yet") from None
        finally:
            self._waiters = [entry for entry in self._waiters if entry[1] is not waiter]

    def _behind(self, key: Key, pending: _Pending) -> bool:
        obj = self._store.get(key)
        if pending.deleted_uid:
            return obj is not None and uid_of(obj) == pending.deleted_uid and not is_deleting(obj)
        if obj is not None and resource_version_of(obj) >= pending.version:
            return False
        scope = self._scope(key)
        return scope is not None and scope.seen < pending.version

    def _scope(self, key: Key) -> _Scope | None:
        return self._scopes.get("") or self._scopes.get(key.namespace)

    def _release(self) -> None:
        for key, waiter in self._waiters:
            if not waiter.done() and not self.is_stale(key):
                waiter.set_result(None)

    # --- following ---

    async def run(self) -> None:
        """Follow the API server until cancelled. Nothing but cancellation ends it."""
        async with asyncio.TaskGroup() as group:
            for scope in self._scopes.values():
                group.create_task(scope.run())

    def _replace(self, namespace: str | None, fresh: dict[Key, Object]) -> None:
        """A complete list of one scope: swap it in, then tell the difference."""
        gone = [key for key in self._store if (not namespace or key.namespace == namespace) and key not in fresh]
        told: list[tuple[EventType, Object | None, Object | None]] = [
            ("DELETED", self._store.remove(key), None) for key in gone
        ]
        for key, new in fresh.items():
            old = self._store.get(key)
            if old is not None and _same_version(old, new):
                continue
            self._store.put(key, new)
            if old is None:
                told.append(("ADDED", None, new))
            elif uid_of(old) == uid_of(new):
                told.append(("MODIFIED", old, new))
            else:
                told += [("DELETED", old, None), ("ADDED", None, new)]
        self.relists += 1
        self.last_event = time.monotonic()
        for event in told:
            self._tell(*event)
        if all(scope.listed for scope in self._scopes.values()):
            self.synced.set()

    def _event(self, kind: str, obj: Object) -> None:
        """One event of a watch. An event older than what is stored (a replay) changes nothing."""
        if self.metadata_only:
            obj["apiVersion"], obj["kind"] = self.resource.api_version, self.resource.kind
        key = key_of(obj)
        old = self._store.get(key)
        if old is not None:
            stored, told = resource_version_of(old), resource_version_of(obj)
            if told < stored or (told == stored and kind != "DELETED"):
                return
        if kind == "DELETED":
            if self._store.remove(key) is not None:
                self._tell("DELETED", old, None)
            return
        new = self._transform(obj)
        self._store.put(key, new)
        if old is None:
            self._tell("ADDED", None, new)
        elif uid_of(old) == uid_of(new):
            self._tell("MODIFIED", old, new)
        else:
            self._tell("DELETED", old, None)
            self._tell("ADDED", None, new)

    def _tell(self, kind: EventType, old: Object | None, new: Object | None) -> None:
        for handler in self._handlers:
            try:
                handler(kind, old, new)
            except Exception:  # a handler's mistake must not stop the cache of everybody else
                _log.exception("handler of %s failed", self.resource)


class _Scope:
    """List and watch of one namespace (or all); `seen` is the newest resourceVersion the cache includes."""

    def __init__(self, informer: Informer, namespace: str | None) -> None:
        self.namespace = namespace
        self.listed = False
        self.seen = 0
        self._informer = informer
        self._from = ""  # where the next watch starts; "" asks for a list
        self._failures = 0
        self._problem = ""
        self._moved = False  # the current watch brought something
        self._limit: asyncio.Timeout | None = None  # of the current watch
        self._relist_began = 0.0

    def relist(self, why: str, written: float) -> None:
        """End the watch and list again because `why`, unless that was done for something `written` as long ago."""
        if self._relist_began < written + STALE_SECONDS:
            _log.warning("listing %s again: %s", self._informer.resource, why)
            self._relist_began = time.monotonic()
            self._from = ""
            if self._limit is not None:
                self._limit.reschedule(asyncio.get_running_loop().time())

    async def run(self) -> None:
        while True:
            delay = await self._round()
            if delay:
                await asyncio.sleep(delay)

    async def _round(self) -> float:
        """List if needed, watch until it ends; returns the seconds to wait before the next round."""
        began = time.monotonic()
        self._moved = False
        try:
            if not self._from:
                await self._list()
            async with asyncio.timeout(None) as self._limit:
                await self._watch()
        except TimeoutError:
            return 0.0  # relist() ended it
        except (Unreachable, TooManyRequests) as error:
            # Old servers send no bookmarks: where nothing changes a watch is as silent as a dead connection.
            quiet = isinstance(error, Unreachable) and time.monotonic() - began >= self._informer._inactivity
            return self._failed(None if quiet and self._from else error, began)
        except KubeError as error:
            self._from = ""  # too old, or from the future after a restore: only a list helps
            return self._failed(error, began)
        finally:
            self._limit = None
        return self._failed(None, began)

    def _failed(self, error: KubeError | None, began: float) -> float:
        """Delay before the next round: none after a watch that worked, else doubling and spread."""
        dropped = error is None or isinstance(error, Unreachable)
        if time.monotonic() - began > HEALTHY_SECONDS or (self._moved and dropped):
            self._failures = 0
        if error is not None:
            problem = f"{type(error).__name__}: {error}"
            if problem != self._problem and not (self._moved and dropped):
                _log.warning("cannot follow %s: %s", self._informer.resource, problem)
            self._problem = problem
        if self._failures == 0 and dropped and self._moved:
            return 0.0 if error is None else random.uniform(0, BACKOFF_FIRST_SECONDS)  # noqa: S311
        delay = min(BACKOFF_FIRST_SECONDS * 2.0 ** min(self._failures, 16), BACKOFF_MAX_SECONDS)
        self._failures += 1
        return delay * random.uniform(0.5, 1.0)  # noqa: S311

    async def _list(self) -> None:
        informer = self._informer
        began = time.monotonic()
        fresh: dict[Key, Object] = {}
        pages = informer._client.pages(
            informer.resource,
            self.namespace,
            label_selector=informer.label_selector,
            metadata_only=informer.metadata_only,
        )
        version = ""
        async for page in pages:
            version = page.resource_version
            fresh |= {key_of(item): informer._transform(item) for item in page.items}
        self._from = version
        self.seen = int(version) if version.isdigit() else 0
        self.listed = True
        # A list is a consistent read: what was written before it began is in it, whatever its version says.
        for key, pending in list(informer._pending.items()):
            if informer._scope(key) is self and pending.since < began:
                del informer._pending[key]
        informer._replace(self.namespace, fresh)
        informer._release()

    async def _watch(self) -> None:
        informer = self._informer
        batches = informer._client.watch(
            informer.resource,
            self.namespace,
            self._from,
            label_selector=informer.label_selector,
            seconds=random.randint(300, 600),  # noqa: S311 - so that replicas do not come back together
            inactivity=informer._inactivity,
            metadata_only=informer.metadata_only,
        )
        async with aclosing(batches):
            async for batch in batches:
                self._take(batch)

    def _take(self, batch: Sequence[WatchEvent]) -> None:
        informer = self._informer
        informer.last_event = time.monotonic()
        for event in batch:
            obj = event.object
            if event.type == "ERROR":
                code, message = int(obj.get("code") or 0), str(obj.get("message", ""))
                kind = Gone if code == 410 else KubeError
                raise kind(code, str(obj.get("reason", "")), message, verb="watch", target=str(informer.resource))
            if event.type != "BOOKMARK":
                informer._event(event.type, obj)
            self._from = obj["metadata"].get("resourceVersion", "")
            self.seen = resource_version_of(obj) or self.seen
            self._moved = True
        if self._problem:
            _log.info("following %s again", informer.resource)
            self._problem = ""
        if informer._waiters:
            informer._release()


def _equalities(selector: str) -> dict[str, str]:
    """The `label=value` parts of a label selector."""
    parts = (part.partition("=") for part in selector.split(",") if "=" in part and "!=" not in part)
    return {name.strip(): value.lstrip("=").strip() for name, _, value in parts if "(" not in name}


def _same_version(old: Object, new: Object) -> bool:
    return uid_of(old) == uid_of(new) and resource_version_of(old) == resource_version_of(new) != 0
