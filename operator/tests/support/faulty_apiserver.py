"""Stands in for kube-apiserver where a test needs a fault at an exact moment: real HTTP, a version counter, watches.

It stores plain objects with uid and resourceVersion, pages lists, keeps a history for watches, checks preconditions and
answers with the API's Status. It does not validate, default, track field owners (an apply is a merge), know status
apart from spec, collect garbage or check access: those are tested against the real one. Unknown requests are 400.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, Self

from aiohttp import web

Object = dict[str, Any]
Fault = Callable[[web.Request], Awaitable[web.StreamResponse | None]]

KINDS = {"pods": "Pod", "configmaps": "ConfigMap", "leases": "Lease", "nodes": "Node", "nodesets": "NodeSet"}


class FaultyApiServer:
    """`async with` it; `url` is where it listens. `faults` are asked in turn before each request is served."""

    def __init__(self) -> None:
        self.url = ""
        self.version = 100
        self.lag = 0.0
        """Seconds by which watches tell late."""
        self.objects: dict[tuple[str, str, str], Object] = {}  # (collection path without namespace, namespace, name)
        self.history: list[tuple[int, str, str, Object]] = []
        self.compacted = 0
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.faults: list[Fault] = []
        self.after_commit: list[Fault] = []
        """Asked after a write took effect, before its answer is sent."""
        self._changed = asyncio.Condition()
        self._streams: set[web.StreamResponse] = set()

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.drop_watches()
        await self._runner.cleanup()

    # --- what a test does to it ---

    async def put(self, collection: str, name: str, namespace: str = "ns", **fields: Any) -> Object:
        """Create or change an object as another client would."""
        key = (collection, namespace, name)
        old = self.objects.get(key)
        meta = {"name": name, "namespace": namespace, "uid": f"uid-{self.version}", **fields.pop("metadata", {})}
        if old is not None:
            meta["uid"] = old["metadata"]["uid"]
        kind = KINDS[collection.rsplit("/", 1)[-1]]
        return await self._store(key, {"apiVersion": "v1", "kind": kind, "metadata": meta, **fields})

    async def remove(self, collection: str, name: str, namespace: str = "ns") -> None:
        await self._drop((collection, namespace, name))

    def compact(self) -> None:
        """Watches from an older version get 410 from now on."""
        self.compacted = self.version

    def drop_watches(self) -> None:
        """Reset the connection of every watch."""
        for stream in list(self._streams):
            transport = stream._req.transport if stream._req is not None else None
            if transport is not None:
                transport.abort()

    async def bookmark(self) -> None:
        """Tell every watch how far it is."""
        async with self._changed:
            self.history.append((self.version, "BOOKMARK", "", {}))
            self._changed.notify_all()

    def seen(self, method: str, part: str = "") -> int:
        """Requests of that method whose path and query hold `part`."""
        return sum(1 for verb, url, _ in self.requests if verb == method and part in url)

    # --- serving ---

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.method, str(request.rel_url), dict(request.headers)))
        for fault in list(self.faults):
            answer = await fault(request)
            if answer is not None:
                return answer
        parts = request.path.strip("/").split("/")
        base = 2 if parts[0] == "api" else 3
        prefix, rest = "/".join(parts[:base]), parts[base:]
        namespace = ""
        if rest and rest[0] == "namespaces":
            namespace, rest = rest[1], rest[2:]
        if not rest or len(rest) > 3:
            return status(400, "BadRequest", f"cannot serve {request.path}")
        collection = f"{prefix}/{rest[0]}"
        if len(rest) == 1:
            if request.method == "GET":
                return await (self._watch if "watch" in request.query else self._list)(request, collection, namespace)
            if request.method == "POST":
                return await self._create(request, collection, namespace)
            return status(405, "MethodNotAllowed", request.method)
        return await self._one(request, (collection, namespace, rest[1]), rest[2] if len(rest) == 3 else "")

    async def _list(self, request: web.Request, collection: str, namespace: str) -> web.StreamResponse:
        found = self._matching(collection, namespace, request.query.get("labelSelector", ""))
        limit, offset = int(request.query.get("limit", 0)), int(request.query.get("continue", 0))
        page = found[offset : offset + limit] if limit else found
        meta = {"resourceVersion": str(self.version)}
        if limit and offset + limit < len(found):
            meta["continue"] = str(offset + limit)
        items = [{name: value for name, value in obj.items() if name not in ("apiVersion", "kind")} for obj in page]
        return web.json_response({"kind": "List", "apiVersion": "v1", "metadata": meta, "items": items})

    async def _watch(self, request: web.Request, collection: str, namespace: str) -> web.StreamResponse:
        since = int(request.query["resourceVersion"])
        stream = web.StreamResponse(headers={"Content-Type": "application/json"})
        await stream.prepare(request)
        if since < self.compacted:
            gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
            await stream.write(line("ERROR", gone))
            return stream
        self._streams.add(stream)
        sent = 0
        try:
            while True:
                async with self._changed:
                    while len(self.history) == sent:
                        await self._changed.wait()
                    events, sent = self.history[sent:], len(self.history)
                await asyncio.sleep(self.lag)
                for version, kind, where, obj in events:
                    if kind == "BOOKMARK":
                        await stream.write(line(kind, {"metadata": {"resourceVersion": str(version)}}))
                    elif version > since and where == collection and namespace in ("", obj["metadata"]["namespace"]):
                        await stream.write(line(kind, obj))
        except (ConnectionError, asyncio.CancelledError):
            return stream
        finally:
            self._streams.discard(stream)

    async def _create(self, request: web.Request, collection: str, namespace: str) -> web.StreamResponse:
        obj = await request.json()
        key = (collection, namespace, obj["metadata"]["name"])
        if key in self.objects:
            return status(409, "AlreadyExists", f"{key[2]} already exists")
        obj["metadata"]["uid"] = f"uid-{self.version}"
        stored = await self._store(key, obj)
        return await self._committed(request) or web.json_response(stored, status=201)

    async def _one(self, request: web.Request, key: tuple[str, str, str], subresource: str) -> web.StreamResponse:
        old = self.objects.get(key)
        body = await request.json() if request.can_read_body else {}
        if request.method == "PATCH" and old is None and "apply" in request.headers["Content-Type"]:
            old = {**body, "metadata": {**body["metadata"], "uid": f"uid-{self.version}"}}
        if old is None:
            return status(404, "NotFound", f"{key[2]} not found")
        if request.method == "GET":
            return web.json_response(old)
        if request.method == "DELETE":
            for field, value in (body.get("preconditions") or {}).items():
                if old["metadata"][field] != value:
                    return status(409, "Conflict", f"precondition on {field} failed")
            await self._drop(key)
            return await self._committed(request) or web.json_response({"kind": "Status", "status": "Success"})
        if request.method == "PUT":
            if body["metadata"].get("resourceVersion") not in (None, old["metadata"]["resourceVersion"]):
                return status(409, "Conflict", "the object has been modified")
            stored = await self._store(key, body)
        elif request.method == "PATCH":
            new = merge(old, body)
            stored = old if new == self.objects.get(key) else await self._store(key, new)
        elif request.method == "POST" and subresource == "eviction":
            await self._drop(key)
            return await self._committed(request) or web.json_response({"kind": "Status", "status": "Success"})
        else:
            return status(405, "MethodNotAllowed", request.method)
        return await self._committed(request) or web.json_response(stored)

    async def _committed(self, request: web.Request) -> web.StreamResponse | None:
        for fault in list(self.after_commit):
            answer = await fault(request)
            if answer is not None:
                return answer
        return None

    async def _store(self, key: tuple[str, str, str], obj: Object) -> Object:
        async with self._changed:
            self.version += 1
            obj = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self.version)}}
            kind = "MODIFIED" if key in self.objects else "ADDED"
            self.objects[key] = obj
            self.history.append((self.version, kind, key[0], obj))
            self._changed.notify_all()
        return obj

    async def _drop(self, key: tuple[str, str, str]) -> None:
        async with self._changed:
            self.version += 1
            obj = self.objects.pop(key)
            obj = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self.version)}}
            self.history.append((self.version, "DELETED", key[0], obj))
            self._changed.notify_all()

    def _matching(self, collection: str, namespace: str, selector: str) -> list[Object]:
        wanted = dict(part.split("=") for part in selector.split(",") if part)
        return [
            obj
            for (where, space, _), obj in sorted(self.objects.items())
            if where == collection
            and namespace in ("", space)
            and wanted.items() <= (obj["metadata"].get("labels") or {}).items()
        ]


def line(kind: str, obj: Object) -> bytes:
    return json.dumps({"type": kind, "object": obj}).encode() + b"\n"


def status(code: int, reason: str, message: str, headers: dict[str, str] | None = None, **details: Any) -> web.Response:
    body = {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}
    return web.json_response(body | ({"details": details} if details else {}), status=code, headers=headers)


def merge(old: Object, new: Object) -> Object:
    """JSON merge patch."""
    result = dict(old)
    for name, value in new.items():
        if value is None:
            result.pop(name, None)
        elif isinstance(value, dict) and isinstance(result.get(name), dict):
            result[name] = merge(result[name], value)
        else:
            result[name] = value
    return result


# --- faults ---


def times(count: int, fault: Fault) -> Fault:
    """The fault, for the first `count` requests it applies to."""
    left = count

    async def limited(request: web.Request) -> web.StreamResponse | None:
        nonlocal left
        if left <= 0:
            return None
        answer = await fault(request)
        left -= answer is not None
        return answer

    return limited


def on(method: str, part: str, make: Callable[[], web.StreamResponse]) -> Fault:
    """Answer requests of that method whose URL holds `part` with what `make` returns."""

    async def fault(request: web.Request) -> web.StreamResponse | None:
        return make() if request.method == method and part in str(request.rel_url) else None

    return fault


def cut(method: str, part: str = "") -> Fault:
    """Reset the connection instead of answering."""

    async def fault(request: web.Request) -> web.StreamResponse | None:
        if request.method != method or part not in str(request.rel_url):
            return None
        if request.transport is not None:
            request.transport.abort()
        return web.Response(status=599)

    return fault


def slow(method: str, part: str, seconds: float) -> Fault:
    """Answer late."""

    async def fault(request: web.Request) -> web.StreamResponse | None:
        if request.method == method and part in str(request.rel_url):
            await asyncio.sleep(seconds)
        return None

    return fault
