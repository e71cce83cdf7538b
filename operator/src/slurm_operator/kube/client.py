"""REST client of the API server: the verbs, on plain dicts."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Literal

import msgspec

from slurm_operator.kube.errors import Invalid, NotFound, Unreachable
from slurm_operator.kube.objects import key_of
from slurm_operator.kube.resources import PODS, Object, Resource, resource_of
from slurm_operator.kube.transport import JSON, Transport

LIST_SECONDS = 60.0
_PATCH_TYPES = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",  # JSON is YAML
}
_METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
PatchContent = Literal["merge", "json", "strategic"]


class ObjectList(msgspec.Struct):
    """What a list answered, all pages: `resource_version` is where a watch goes on without a gap."""

    items: list[Object]
    resource_version: str


class WatchEvent(msgspec.Struct):
    """ADDED, MODIFIED, DELETED, BOOKMARK or ERROR, and the object as of then (a Status for ERROR)."""

    type: str
    object: Object


class _ListMeta(msgspec.Struct, rename={"resource_version": "resourceVersion", "token": "continue"}):
    resource_version: str = ""
    token: str = ""


class _Page(msgspec.Struct):
    metadata: _ListMeta
    items: list[Object] | None = None


_decode_object = msgspec.json.Decoder(Object).decode
_decode_event = msgspec.json.Decoder(WatchEvent).decode
_decode_page = msgspec.json.Decoder(_Page).decode
_encode = msgspec.json.Encoder().encode


class KubeClient(Transport):
    """One API server. Use as `async with KubeClient(load_access()) as kube`."""

    # --- reads ---

    async def get(self, resource: Resource, namespace: str, name: str) -> Object | None:
        """The object as etcd holds it now; None if there is none."""
        try:
            return await self._send("get", resource, namespace, name)
        except NotFound:
            return None

    async def log(self, namespace: str, pod: str, container: str, *, lines: int) -> str:
        """The last lines that a container wrote; "" when there is no such pod or it has not started."""
        params = {"container": container, "tailLines": str(lines)}
        try:
            body = await self.send("get", PODS, namespace, pod, subresource="log", params=params, accept="*/*")
        except (NotFound, Invalid):
            return ""
        return body.decode(errors="replace")

    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        limit: int = 500,
        metadata_only: bool = False,
    ) -> ObjectList:
        """All objects. Raises Gone when the list took longer than the server keeps its pages."""
        items: list[Object] = []
        version = ""
        pages = self.pages(
            resource,
            namespace,
            label_selector=label_selector,
            field_selector=field_selector,
            limit=limit,
            metadata_only=metadata_only,
        )
        async for page in pages:
            items += page.items
            version = page.resource_version
        return ObjectList(items, version)

    async def pages(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        limit: int = 500,
        metadata_only: bool = False,
    ) -> AsyncGenerator[ObjectList, None]:
        """Like `list`, page after page, so that not all of it need be held at once."""
        params = {"limit": str(limit), **_selectors(label_selector, field_selector)}
        accept = _METADATA_LIST if metadata_only else JSON
        while True:
            body = await self.send(
                "list", resource, namespace or "", "", params=params, seconds=LIST_SECONDS, accept=accept
            )
            page = _decode_page(body)
            items = page.items or []
            for item in items:
                # Items of a list come without these two, although everything else needs them.
                item["apiVersion"], item["kind"] = resource.api_version, resource.kind
            yield ObjectList(items, page.metadata.resource_version)
            if not page.metadata.token:
                return
            params["continue"] = page.metadata.token

    async def watch(
        self,
        resource: Resource,
        namespace: str | None,
        resource_version: str,
        *,
        label_selector: str = "",
        seconds: int = 300,
        inactivity: float = 120.0,
        metadata_only: bool = False,
    ) -> AsyncGenerator[Sequence[WatchEvent], None]:
        """Events after `resource_version`, in batches as they arrive; ends when the server ends the watch.

        Bookmarks are asked for, and most servers send one about every minute. After `inactivity` seconds of silence the
        connection may be dead: then Unreachable is raised. Raises Gone on HTTP 410; an ERROR event inside the stream is
        yielded as such.
        """
        params = {
            "watch": "true",
            "resourceVersion": resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
            **_selectors(label_selector, ""),
        }
        accept = _METADATA if metadata_only else JSON
        async with aclosing(self.stream(resource, namespace, params, accept, inactivity)) as stream:
            async for lines in stream:
                try:
                    events = [_decode_event(line) for line in lines if line]
                except msgspec.DecodeError as error:
                    why = f"unreadable event: {error}"
                    raise Unreachable(0, "Unreachable", why, verb="watch", target=str(resource)) from error
                if events:
                    yield events

    # --- writes ---

    async def apply(self, obj: Object, field_manager: str, *, force: bool = True, dry_run: bool = False) -> Object:
        """Server-side apply: the fields in `obj` become ours, everything else stays. Repeating it changes nothing."""
        return await self._apply(obj, field_manager, force, "", dry_run)

    async def apply_status(self, obj: Object, field_manager: str, *, force: bool = True) -> Object:
        """Server-side apply of the status subresource; `obj` needs apiVersion, kind, metadata.name and status only."""
        return await self._apply(obj, field_manager, force, "status", False)

    async def create(self, obj: Object) -> Object:
        """POST. After a lost answer it raises Unreachable: the object may exist or not."""
        resource, key = resource_of(obj), key_of_or_generated(obj)
        return await self._send("create", resource, key[0], "", body=_encode(obj), shown=key[1])

    async def replace(self, obj: Object, subresource: str = "") -> Object:
        """PUT. With metadata.resourceVersion it raises Conflict if the object changed since it was read."""
        key = key_of(obj)
        return await self._send(
            "update", resource_of(obj), key.namespace, key.name, subresource=subresource, body=_encode(obj)
        )

    async def patch(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        body: Any,
        *,
        content: PatchContent = "merge",
        subresource: str = "",
    ) -> Object:
        """PATCH. A JSON patch is not sent twice: it may not be idempotent."""
        return await self._send(
            "patch",
            resource,
            namespace,
            name,
            subresource=subresource,
            body=_encode(body),
            content_type=_PATCH_TYPES[content],
            idempotent=content != "json",
        )

    async def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        propagation: str = "Background",
        grace_seconds: int | None = None,
        begin_by: float = math.inf,
    ) -> Object | None:
        """The object (with a deletionTimestamp if it lingers) or a Status; None if it was gone already.

        Raises Conflict when `uid` or `resource_version` no longer fit: it is another object, or it changed. Raises
        TooLate when it could not be sent by `begin_by` (time.monotonic()).
        """
        options: Object = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": propagation}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        if uid or resource_version:
            wanted = {"uid": uid, "resourceVersion": resource_version}
            options["preconditions"] = {field: value for field, value in wanted.items() if value}
        try:
            # Without a uid a repeated delete could hit a new object of the same name.
            return await self._send(
                "delete", resource, namespace, name, body=_encode(options), idempotent=bool(uid), begin_by=begin_by
            )
        except NotFound:
            return None

    async def evict(
        self, namespace: str, pod: str, *, uid: str | None = None, grace_seconds: int | None = None
    ) -> bool:
        """True: the pod is being deleted. False: it was gone. Raises EvictionRefused while a budget forbids it."""
        options: Object = {}
        if uid:
            options["preconditions"] = {"uid": uid}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": namespace},
            "deleteOptions": options,
        }
        try:
            await self._send(
                "create", PODS, namespace, pod, subresource="eviction", body=_encode(body), idempotent=bool(uid)
            )
        except NotFound:
            return False
        return True

    # --- the one way out ---

    async def _apply(self, obj: Object, manager: str, force: bool, subresource: str, dry_run: bool) -> Object:
        key = key_of(obj)
        params = {"fieldManager": manager, "force": "true" if force else "false"}
        if dry_run:
            params["dryRun"] = "All"
        return await self._send(
            "patch",
            resource_of(obj),
            key.namespace,
            key.name,
            subresource=subresource,
            body=_encode(obj),
            content_type=_PATCH_TYPES["apply"],
            params=params,
            idempotent=True,
        )

    async def _send(self, verb: str, resource: Resource, namespace: str, name: str, **kwargs: Any) -> Object:
        return _decode_object(await self.send(verb, resource, namespace, name, **kwargs))


def key_of_or_generated(obj: Object) -> tuple[str, str]:
    """Namespace and the name to show: the generateName prefix where the server chooses the name."""
    meta = obj["metadata"]
    return meta.get("namespace", ""), meta.get("name") or f"{meta.get('generateName', '')}*"


def _selectors(label_selector: str, field_selector: str) -> dict[str, str]:
    given = {"labelSelector": label_selector, "fieldSelector": field_selector}
    return {name: value for name, value in given.items() if value}
