"""Stands in for the network between the operator and the two servers: it delays, loses, repeats and refuses.

The operator's own clients run unchanged above it; what is replaced are aiohttp's session and the connection to
slurmrestd. Only what those two use of them is here.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, Self
from urllib.parse import urlsplit

import aiohttp
from slurm_operator.kube.auth import Access
from slurm_operator.kube.client import KubeClient

from tests.faults.kube_model import KubeModel, Object, Refused, Target, target_of
from tests.faults.slurm_model import SlurmModel

KUBE_FAULTS = ("lost", "cut", "500", "409", "429", "hang", "crash-before", "crash-after")
SLURM_FAULTS = ("lost", "cut", "500", "404", "garbage", "empty", "hang", "crash-before", "crash-after")


class Process(Protocol):
    """One life of the operator. Nothing that a dead process sends arrives anywhere."""

    dead: bool

    def die(self) -> None: ...


@dataclass
class Weather:
    """What is wrong with the network now. Faults in the queues meet one call each."""

    kube_down: bool = False
    rest_down: bool = False
    lag: float = 0.0
    kube: deque[str] = field(default_factory=deque)
    slurm: deque[str] = field(default_factory=deque)
    repeat_events: bool = False

    def clear(self) -> None:
        self.__init__()  # type: ignore[misc]


@dataclass
class Network:
    """The two servers and the way to them. `deleted(pod)` hears of every pod that the operator deletes."""

    kube: KubeModel
    slurm: SlurmModel
    weather: Weather = field(default_factory=Weather)
    dropped: asyncio.Event = field(default_factory=asyncio.Event)
    about_to_delete: Any = None
    hanging: int = 0
    """Calls that will not be answered and whose callers have not given up yet."""

    async def hang(self, seconds: float) -> None:
        self.hanging += 1
        try:
            await asyncio.sleep(seconds)
        finally:
            self.hanging -= 1
        raise TimeoutError

    def drop_watches(self) -> None:
        self.dropped.set()
        self.dropped = asyncio.Event()


class Answer:
    """As much of aiohttp's ClientResponse as the client reads."""

    def __init__(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.status, self.headers, self._body = status, headers or {}, body
        self.content: Any = None

    async def read(self) -> bytes:
        return self._body


def failure(status: int, reason: str, message: str) -> Answer:
    body = {"kind": "Status", "status": "Failure", "code": status, "reason": reason, "message": message}
    return Answer(status, json.dumps(body).encode(), {"Retry-After": "1"} if status == 429 else {})


class Session:
    """aiohttp's ClientSession, for one process."""

    def __init__(self, network: Network, process: Process) -> None:
        self._net, self._process = network, process

    async def close(self) -> None:
        return

    @asynccontextmanager
    async def request(
        self, method: str, url: str, *, params: Mapping[str, str] | None, data: bytes | None, timeout: Any, **_: Any
    ) -> AsyncIterator[Answer]:
        await alive(self._process)
        await asyncio.sleep(random.uniform(0.001, 0.02))
        yield await self._ask(method, url, dict(params or {}), data, float(timeout.total))

    async def _ask(self, method: str, url: str, params: dict[str, str], data: bytes | None, seconds: float) -> Answer:
        weather = self._net.weather
        if weather.kube_down:
            raise aiohttp.ClientConnectionError("connection refused")
        target = target_of(urlsplit(url).path)
        fault = weather.kube.popleft() if weather.kube and target.resource.plural != "events" else ""
        if fault == "crash-before":
            self._process.die()
        await alive(self._process)
        if fault == "cut":
            raise aiohttp.ClientConnectionError("connection reset")
        if fault == "hang":
            await self._net.hang(seconds)
        if fault == "500":
            return failure(500, "InternalError", "etcdserver: request timed out")
        if fault == "429":
            return failure(429, "TooManyRequests", "too many requests")
        if fault == "409" and method in ("PATCH", "PUT", "DELETE"):
            return failure(409, "Conflict", "the object has been modified; please apply your changes to the latest")
        try:
            result = self._serve(method, target, params, json.loads(data) if data else {})
        except Refused as error:
            return failure(error.status, error.reason, error.message)
        if fault == "crash-after":
            self._process.die()
        await alive(self._process)
        if fault == "lost":
            raise aiohttp.ClientConnectionError("connection reset by peer")
        return Answer(200, json.dumps(result).encode())

    def _serve(self, method: str, target: Target, params: dict[str, str], body: Object) -> Object:
        kube = self._net.kube
        if target.resource.plural == "events":
            return {"kind": "Event", "apiVersion": "events.k8s.io/v1", "metadata": {"name": "event"}}
        if method == "GET" and not target.name:
            items = kube.select(target, params.get("labelSelector", ""))
            return {"metadata": {"resourceVersion": str(kube.version)}, "items": items}
        if method == "GET":
            found = kube.objects.get(target.ident)
            if found is None:
                raise Refused(404, "NotFound", f"{target.resource} {target.name} not found")
            return found
        if method == "POST" and not target.name:
            return kube.create(target.resource, body)
        if method == "PATCH" and "fieldManager" in params:
            return kube.apply(target, body, params["fieldManager"])
        if method == "PATCH":
            return kube.patch(target, body)
        assert method == "DELETE", f"the model has no {method} of {target}"
        pod = kube.objects.get(target.ident) if target.resource.plural == "pods" else None
        lingers = kube.delete(target.ident, body.get("preconditions"), grace=pod is not None)
        if pod is not None:
            self._net.about_to_delete(pod)
        return lingers or {"kind": "Status", "status": "Success", "metadata": {}}

    @asynccontextmanager
    async def get(self, url: str, *, params: dict[str, str], timeout: Any, **_: Any) -> AsyncIterator[Answer]:
        """A watch."""
        await alive(self._process)
        await asyncio.sleep(random.uniform(0.001, 0.02))
        if self._net.weather.kube_down:
            raise aiohttp.ClientConnectionError("connection refused")
        answer = Answer(200, b"")
        answer.content = _Stream(self._net, self._process, target_of(urlsplit(url).path), params)
        yield answer


class _Stream:
    """The events of one watch."""

    def __init__(self, network: Network, process: Process, target: Target, params: Mapping[str, str]) -> None:
        self._net, self._process, self._target = network, process, target
        self._at = int(params["resourceVersion"])
        self._selector = params.get("labelSelector", "")
        self._seconds = float(params["timeoutSeconds"])

    async def iter_any(self) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        ends, bookmark = loop.time() + self._seconds, loop.time() + 50
        dropped = self._net.dropped
        while loop.time() < ends:
            await alive(self._process)
            if dropped.is_set() or self._net.weather.kube_down:
                raise aiohttp.ClientConnectionError("connection reset")
            try:
                events = self._net.kube.events_after(self._at, self._target, self._selector)
            except Refused as error:
                status = {"kind": "Status", "code": error.status, "reason": error.reason, "message": error.message}
                yield _line("ERROR", status)
                return
            if events:
                if self._net.weather.lag:
                    await asyncio.sleep(self._net.weather.lag)
                self._at = events[-1][0]
                lines = [_line(kind, obj) for _, kind, obj in events]
                yield b"".join(lines * 2 if self._net.weather.repeat_events else lines)
            elif loop.time() > bookmark:
                bookmark = loop.time() + 50
                mark = {"metadata": {"resourceVersion": str(self._net.kube.version)}}
                self._at = self._net.kube.version
                yield _line("BOOKMARK", mark)
            await asyncio.sleep(0.05)


class SlurmWire:
    """The operator's HttpClient, for one process."""

    def __init__(self, network: Network, process: Process) -> None:
        self._net, self._process = network, process

    def __call__(self, base_url: str) -> Self:
        return self

    async def close(self) -> None:
        return

    async def request(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None, seconds: float
    ) -> tuple[int, bytes]:
        await alive(self._process)
        await asyncio.sleep(random.uniform(0.001, 0.02))
        weather = self._net.weather
        if weather.rest_down:
            raise ConnectionRefusedError("connection refused")
        fault = weather.slurm.popleft() if weather.slurm else ""
        if fault == "crash-before":
            self._process.die()
        await alive(self._process)
        if fault == "cut":
            raise ConnectionResetError("connection reset")
        if fault == "hang":
            await self._net.hang(seconds)
        if fault == "500":
            return 500, b'{"errors":[{"error_number":1,"error":"Unspecified error"}]}'
        if fault == "404":
            return 404, b"Unable find requested URL"
        if fault == "garbage":
            return 200, b"<html>502 Bad Gateway</html>"
        if fault == "empty":
            return 200, b"{}"
        answer = self._net.slurm.answer(method, path, body)
        if fault == "crash-after":
            self._process.die()
        await alive(self._process)
        if fault == "lost":
            raise ConnectionResetError("connection reset by peer")
        return answer


class Kube(KubeClient):
    """The operator's client, wired to the model."""

    def __init__(self, network: Network, process: Process) -> None:
        super().__init__(Access("http://model", namespace="slurm-operator"), guard=True)
        self._wire = Session(network, process)

    async def __aenter__(self) -> Self:
        self._session = self._wire  # type: ignore[assignment]
        return self


async def alive(process: Process) -> None:
    """A dead process waits here for ever."""
    if process.dead:
        await asyncio.Event().wait()


def _line(kind: str, obj: Object) -> bytes:
    return json.dumps({"type": kind, "object": obj}).encode() + b"\n"
