"""HTTP to the API server: deadlines, retries, one pause for all on 429, typed errors.

- Every request has a deadline. Only what may safely be sent twice is retried after a lost answer.
- A 429 pauses the whole client for the time the server asked for, not just the call that met it.
- `fence` is asked before every write: it raises when this process may no longer act (kube/lease.py).
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any, Self

import aiohttp
import msgspec

from slurm_operator import __version__
from slurm_operator.kube import rbac
from slurm_operator.kube.auth import Access
from slurm_operator.kube.errors import (
    EvictionRefused,
    KubeError,
    OutsideTable,
    TooLate,
    TooManyRequests,
    Unauthorized,
    Unreachable,
    error_for,
)
from slurm_operator.kube.resources import Object, Resource

REQUEST_SECONDS = 20.0
CONNECT_SECONDS = 5.0
ATTEMPTS = 4  # per call, the first included
CONCURRENT = 48  # ordinary requests in flight; watches do not count
JSON = "application/json"
_METHODS = {"get": "GET", "list": "GET", "create": "POST", "update": "PUT", "patch": "PATCH", "delete": "DELETE"}
Observe = Callable[[str, int, float], None]

_decode_status = msgspec.json.Decoder(Object).decode


@dataclass(frozen=True, slots=True)
class _Call:
    """One request, ready to be sent as often as needed. `target` is its name in errors."""

    verb: str
    url: str
    target: str
    body: bytes | None
    params: dict[str, str] | None
    headers: dict[str, str]
    idempotent: bool
    seconds: float
    begin_by: float


class Transport:
    """Connections to one API server, shared by everything the process asks of it."""

    def __init__(self, access: Access, *, guard: bool = False, observe: Observe | None = None) -> None:
        """`guard`: raise OutsideTable for calls that the RBAC table does not hold. `observe(method, status, seconds)`
        hears of every answer; status 0 means there was none."""
        self.access = access
        self.fence: Callable[[], None] | None = None
        self._guard = guard
        self._observe = observe
        self._session: aiohttp.ClientSession | None = None
        self._slots = asyncio.Semaphore(CONCURRENT)
        self._paused_until = 0.0

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self.access.tls or False, limit=0, keepalive_timeout=60),
            headers={"User-Agent": f"slurm-operator/{__version__}", "Accept-Encoding": "identity"},
            auto_decompress=False,
        )
        # aiohttp repeats PUT and DELETE by itself when a kept connection breaks; only we know what may be repeated.
        self._session._retry_connection = False
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def send(
        self,
        verb: str,
        resource: Resource,
        namespace: str,
        name: str,
        *,
        subresource: str = "",
        body: bytes | None = None,
        params: dict[str, str] | None = None,
        content_type: str = JSON,
        accept: str = JSON,
        idempotent: bool | None = None,
        shown: str = "",
        seconds: float = REQUEST_SECONDS,
        begin_by: float = math.inf,
    ) -> bytes:
        """Body of a successful answer. `idempotent` (default: reads only): may be sent again after a lost answer.

        It is not sent, and not sent again, after `begin_by` (time.monotonic()): then TooLate is raised.
        """
        self._check_table(verb, resource, subresource, namespace)
        reading = verb in ("get", "list")
        call = _Call(
            verb=verb,
            url=self.access.server + resource.path(namespace, name, subresource),
            target=_target(resource, namespace, shown or name, subresource),
            body=body,
            params=params,
            headers={"Accept": accept} if body is None else {"Accept": accept, "Content-Type": content_type},
            idempotent=reading if idempotent is None else idempotent,
            seconds=seconds,
            begin_by=begin_by,
        )
        for attempt in range(1, ATTEMPTS + 1):
            await self._pause()
            if self.fence is not None and not reading:
                self.fence()
            answer, again = await self._once(call, attempt)
            if isinstance(answer, bytes):
                return answer
            if not again or attempt == ATTEMPTS:
                raise answer
            if not isinstance(answer, TooManyRequests):
                await asyncio.sleep(0.1 * 2**attempt * random.uniform(0.5, 1.0))  # noqa: S311
        raise AssertionError("the last attempt returns or raises")

    async def _once(self, call: _Call, attempt: int) -> tuple[bytes | KubeError, bool]:
        """(body, False), or (error, whether another attempt is safe and may help)."""
        assert self._session is not None, "use `async with KubeClient(...)`"
        method = _METHODS[call.verb]
        timeout = aiohttp.ClientTimeout(total=call.seconds, sock_connect=CONNECT_SECONDS)
        async with self._slots:
            began = time.monotonic()
            if began > call.begin_by:
                why = "not sent: what it rests on is too old by now"
                return TooLate(0, "TooLate", why, verb=call.verb, target=call.target), False
            try:
                async with self._session.request(
                    method,
                    call.url,
                    params=call.params,
                    data=call.body,
                    headers=self._authorized(call.headers),
                    timeout=timeout,
                ) as answer:
                    data = await answer.read()
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                self._seen(method, 0, began)
                lost = Unreachable(0, "Unreachable", _why(error), verb=call.verb, target=call.target)
                lost.__cause__ = error
                return lost, call.idempotent or isinstance(error, aiohttp.ClientConnectorError)  # the latter: not sent
        self._seen(method, answer.status, began)
        if answer.status < 300:
            return data, False
        failure = self._error(answer, data, call.verb, call.target)
        if isinstance(failure, TooManyRequests):
            return failure, True  # the server turned it away before doing anything
        if isinstance(failure, Unauthorized) and attempt == 1 and self.access.token is not None:
            self.access.token(force=True)
            return failure, True
        # An eviction's 500 means that several budgets cover the pod: asking again cannot help.
        return failure, answer.status >= 500 and call.idempotent and not call.url.endswith("/eviction")

    def _authorized(self, headers: dict[str, str]) -> dict[str, str]:
        if self.access.token is None:
            return headers
        return {**headers, "Authorization": f"Bearer {self.access.token()}"}

    def _error(self, answer: aiohttp.ClientResponse, data: bytes, verb: str, target: str) -> KubeError:
        try:
            status = _decode_status(data)
        except msgspec.DecodeError:
            status = {"message": data[:300].decode("utf-8", "replace").strip()}
        reason, message = str(status.get("reason", "")), str(status.get("message", ""))
        details = status.get("details") or {}
        if answer.status == 429:
            causes = details.get("causes") or ()
            if any(cause.get("reason") == "DisruptionBudget" for cause in causes):
                return EvictionRefused(429, "DisruptionBudget", message, verb=verb, target=target)
            failure = TooManyRequests(429, reason, message, verb=verb, target=target)
            failure.retry_after = _seconds(answer.headers.get("Retry-After"), details.get("retryAfterSeconds"))
            self._paused_until = max(self._paused_until, time.monotonic() + failure.retry_after)
            return failure
        return error_for(answer.status, reason, message, verb=verb, target=target)

    async def _pause(self) -> None:
        """Wait while the server wants to be left alone; those who waited do not all come back at once."""
        while (wait := self._paused_until - time.monotonic()) > 0:  # noqa: ASYNC110 - a time, not an event
            await asyncio.sleep(wait * random.uniform(1.0, 1.2))  # noqa: S311

    def _check_table(self, verb: str, resource: Resource, subresource: str, namespace: str) -> None:
        if self._guard and not rbac.allows(verb, resource, subresource, cluster_wide=not namespace):
            raise OutsideTable(
                0,
                "OutsideTable",
                "this call is not in the RBAC table; add it to kube/rbac.py or do without",
                verb=verb,
                target=_target(resource, namespace, "", subresource),
            )

    def _seen(self, method: str, status: int, began: float) -> None:
        if self._observe is not None:
            self._observe(method, status, time.monotonic() - began)

    async def stream(
        self, resource: Resource, namespace: str | None, params: dict[str, str], accept: str, inactivity: float
    ) -> AsyncGenerator[list[bytes], None]:
        """Lines of a watch as they arrive; raises Unreachable when it breaks or is silent for `inactivity` seconds."""
        assert self._session is not None, "use `async with KubeClient(...)`"
        target = _target(resource, namespace or "", "")
        self._check_table("watch", resource, "", namespace or "")
        await self._pause()
        total = float(params["timeoutSeconds"]) + 30
        timeout = aiohttp.ClientTimeout(total=total, sock_connect=CONNECT_SECONDS, sock_read=inactivity)
        began = time.monotonic()
        try:
            async with self._session.get(
                self.access.server + resource.path(namespace),
                params=params,
                headers=self._authorized({"Accept": accept}),
                timeout=timeout,
            ) as answer:
                self._seen("GET", answer.status, began)
                if answer.status == 401 and self.access.token is not None:
                    self.access.token(force=True)
                if answer.status != 200:
                    raise self._error(answer, await answer.read(), "watch", target)
                rest = b""
                async for chunk in answer.content.iter_any():
                    *lines, rest = (rest + chunk).split(b"\n")
                    if lines:
                        yield lines
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unreachable(0, "Unreachable", _why(error), verb="watch", target=target) from error


def _target(resource: Resource, namespace: str, name: str, subresource: str = "") -> str:
    what = f"{resource}/{subresource}" if subresource else str(resource)
    where = f"{namespace}/{name}" if namespace and name else namespace or name
    return f"{what} {where}".strip()


def _why(error: BaseException) -> str:
    return "timed out" if isinstance(error, TimeoutError) else str(error) or type(error).__name__


def _seconds(header: str | None, detail: Any) -> float:
    """Seconds to wait as the server asked, 1 when it did not say, at most a minute."""
    try:
        asked = float(header if header is not None else detail)
    except (TypeError, ValueError):
        asked = 1.0
    return min(max(asked, 0.05), 60.0)
