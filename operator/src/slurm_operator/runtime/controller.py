"""What a controller is: a kind, what else it looks at, and one reconcile per key."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from slurm_operator.kube.client import PatchContent
from slurm_operator.kube.informer import EventType, Informer, Transform
from slurm_operator.kube.objects import controller_of, key_of
from slurm_operator.kube.resources import Key, Object, Resource
from slurm_operator.kube.workqueue import WorkQueue
from slurm_operator.runtime.writer import Writer

if TYPE_CHECKING:
    from slurm_operator.runtime.manager import Manager

MapToKeys = Callable[[Object], Iterable[Key]]
Matters = Callable[[Object, Object], bool]
"""(before, after): whether a change is of any interest."""


class Controller(ABC):
    """Reconciles one kind.

    Subclasses set `name` and `resource`, say in `setup` what they look at, and implement `reconcile`. The runtime calls
    `reconcile` on the leader only, for one key once at a time, after the caches are filled and show what this
    controller wrote for the key before.
    """

    name: ClassVar[str]
    resource: ClassVar[Resource]
    workers: ClassVar[int | None] = None
    """Reconciles at a time; None: as many as the settings say."""

    def __init__(self, manager: Manager) -> None:
        self.manager = manager
        self.kube = manager.kube
        self.slurm = manager.slurm
        self.events = manager.events
        self.log = logging.getLogger(self.name)
        self.queue: WorkQueue[Key] = WorkQueue(manager.metrics.queue(self.name))
        self.writer = Writer(manager.kube, f"slurm-operator/{self.name}", manager.informers_of)

    @abstractmethod
    def setup(self) -> None:
        """Declare what is watched, with `watch` and `owns`. Runs once, before any cache is filled."""

    @abstractmethod
    async def reconcile(self, key: Key) -> float | None:
        """Bring the world nearer to what the object `key` asks for (it may be gone).

        Returns the seconds until it should be looked at again; None: when something changes. Raise Unknown for what
        could not be found out; any exception means another try with growing delays.
        """

    def rest(self, key: Key) -> float:
        """Seconds for which events of `key` are gathered after a reconcile, before they mean another one."""
        return 0.0

    # --- declaring ---

    def watch(
        self,
        resource: Resource,
        map: MapToKeys | None = None,
        *,
        label_selector: str = "",
        metadata_only: bool = False,
        transform: Transform | None = None,
        status_too: bool = True,
        matters: Matters | None = None,
    ) -> Informer:
        """Look at `resource`: each event enqueues what `map` makes of the object before and after it.

        Without `map` the object's own key is enqueued: that is for the controller's own kind, whose changes in the
        status only (mostly our own) then enqueue nothing. `status_too=False` asks for the same with a `map`, and
        `matters` draws the line elsewhere.
        """
        informer = self.manager.informer(resource, label_selector, metadata_only=metadata_only, transform=transform)
        keys_of = map or _own_key
        skip_status = map is None or not status_too

        def handler(event: EventType, old: Object | None, new: Object | None) -> None:
            if event == "DELETED" and old is not None:
                self.writer.forget(resource, key_of(old))
            if old is not None and new is not None:
                if skip_status and _only_status_changed(old, new):
                    return
                if matters is not None and not matters(old, new):
                    return
            for obj in (old, new):
                if obj is not None:
                    for key in keys_of(obj):
                        self.queue.add(key)

        informer.add_handler(handler)
        return informer

    def owns(
        self,
        resource: Resource,
        *,
        label_selector: str = "",
        metadata_only: bool = False,
        transform: Transform | None = None,
        matters: Matters | None = None,
    ) -> Informer:
        """Look at `resource`: each event enqueues the object's controlling owner, if that is of this kind."""

        def owner(obj: Object) -> Iterable[Key]:
            ref = controller_of(obj)
            if ref is None or ref.get("kind") != self.resource.kind:
                return ()
            if str(ref.get("apiVersion", "")).rpartition("/")[0] != self.resource.group:
                return ()
            return (Key(obj["metadata"].get("namespace", ""), ref["name"]),)

        return self.watch(
            resource,
            owner,
            label_selector=label_selector,
            metadata_only=metadata_only,
            transform=transform,
            matters=matters,
        )

    def enqueue(self, key: Key, after: float = 0.0) -> None:
        """Reconcile `key` now or in `after` seconds; the earliest of several times wins."""
        self.queue.add_after(key, after)

    # --- writing, on behalf of `owner`: the key being reconciled ---

    async def ensure(self, owner: Key, wish: Object) -> Object:
        """See Writer.ensure."""
        return await self.writer.ensure(owner, wish)

    async def apply_status(self, owner: Key, obj: Object) -> Object | None:
        """See Writer.apply_status."""
        return await self.writer.apply_status(owner, obj)

    async def create(self, owner: Key, obj: Object) -> Object:
        """See Writer.create."""
        return await self.writer.create(owner, obj)

    async def patch(
        self, owner: Key, obj: Object, body: Any, *, content: PatchContent = "merge", subresource: str = ""
    ) -> Object:
        """See Writer.patch."""
        return await self.writer.patch(owner, obj, body, content=content, subresource=subresource)

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
        """See Writer.delete."""
        return await self.writer.delete(
            owner,
            obj,
            unchanged=unchanged,
            propagation=propagation,
            grace_seconds=grace_seconds,
            begin_by=begin_by,
        )

    async def evict(self, owner: Key, pod: Object, *, grace_seconds: int | None = None) -> bool:
        """See Writer.evict."""
        return await self.writer.evict(owner, pod, grace_seconds=grace_seconds)


def _own_key(obj: Object) -> Iterable[Key]:
    return (key_of(obj),)


_UNIMPORTANT = frozenset({"resourceVersion", "managedFields"})


def _only_status_changed(old: Object, new: Object) -> bool:
    """True if spec and metadata are the same. Works for kinds with a generation (all of ours)."""
    before, after = old["metadata"], new["metadata"]
    if "generation" not in after:
        return False
    return all(before.get(name) == after.get(name) for name in {*before, *after} - _UNIMPORTANT)
