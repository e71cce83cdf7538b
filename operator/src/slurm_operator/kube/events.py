"""Events (events.k8s.io/v1): what `kubectl describe` shows. Best effort, never in the way.

The same event again within six minutes becomes a count on the first one, written at most every 30 s. Each object may
cause 25 events at once and one every 12 s after that; what is more is dropped and counted.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from slurm_operator.kube.client import KubeClient
from slurm_operator.kube.errors import AlreadyExists, KubeError, NotFound
from slurm_operator.kube.resources import EVENTS, Object

SERIES_SECONDS = 360.0
REPEAT_SECONDS = 30.0
BURST = 25
REFILL_SECONDS = 12.0
REMEMBERED = 1000  # series and buckets; the oldest are forgotten first
NOTE_LIMIT = 1024  # characters, the API's limit

EventKind = Literal["Normal", "Warning"]
_log = logging.getLogger("events")


@dataclass(slots=True)
class _Series:
    """An event that was told before: its object, how often since, and what of that was written."""

    body: Object
    first: float
    count: int = 1
    written: int = 0
    written_at: float = float("-inf")
    last: str = ""


class EventRecorder:
    """`component` and `instance` (the pod) are who reports. `run` writes; `event` only notes."""

    def __init__(
        self, client: KubeClient, component: str, instance: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.dropped = 0
        self._client = client
        self._component = component
        self._instance = instance
        self._clock = clock
        self._series: OrderedDict[str, _Series] = OrderedDict()
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._due: dict[str, None] = {}
        self._wake = asyncio.Event()

    def event(
        self,
        regarding: Object,
        kind: EventKind,
        reason: str,
        note: str,
        *,
        action: str = "Reconcile",
        related: Object | None = None,
    ) -> None:
        """Tell of something that happened to `regarding`: `reason` in one CamelCase word, `note` for a person."""
        note = note if len(note) <= NOTE_LIMIT else note[: NOTE_LIMIT - 1] + "…"
        meta = regarding["metadata"]
        source = str(meta.get("uid") or f"{meta.get('namespace')}/{meta['name']}")
        name = _hash(source, kind, reason, note, action)
        now = self._clock()
        series = self._series.get(name)
        if series is not None and now - series.first < SERIES_SECONDS:
            series.count += 1
            series.last = _now()
        else:
            if not self._allowed(source, now):
                self.dropped += 1
                return
            body = self._body(regarding, kind, reason, note, action, related, f"{name}.{int(time.time()):x}")
            self._series[name] = _Series(body, now)
            _trim(self._series)
        self._due[name] = None
        self._wake.set()

    async def run(self) -> None:
        """Write what was noted, until cancelled. Failures are dropped: an event is not worth a fight."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self.flush()
            if self._due:
                asyncio.get_running_loop().call_later(REPEAT_SECONDS / 3, self._wake.set)

    async def flush(self) -> None:
        """Write everything that may be written now."""
        for name in list(self._due):
            series = self._series.get(name)
            if series is None or series.written == series.count:
                del self._due[name]
            elif series.written == 0 or self._clock() - series.written_at >= REPEAT_SECONDS:
                await self._write(series)
                if series.written == series.count:
                    self._due.pop(name, None)

    async def _write(self, series: _Series) -> None:
        count, first = series.count, series.written == 0
        series.written, series.written_at = count, self._clock()
        meta = series.body["metadata"]
        try:
            if not first:
                change = {"series": {"count": count, "lastObservedTime": series.last}}
                await self._client.patch(EVENTS, meta["namespace"], meta["name"], change)
            else:
                await self._client.create(series.body)
        except (AlreadyExists, NotFound):
            pass
        except KubeError as error:
            self.dropped += 1
            _log.info("an event was not written: %s", error)

    def _allowed(self, source: str, now: float) -> bool:
        tokens, since = self._buckets.get(source, (float(BURST), now))
        tokens = min(float(BURST), tokens + (now - since) / REFILL_SECONDS)
        allowed = tokens >= 1
        self._buckets[source] = (tokens - 1 if allowed else tokens, now)
        self._buckets.move_to_end(source)
        _trim(self._buckets)
        return allowed

    def _body(
        self, regarding: Object, kind: str, reason: str, note: str, action: str, related: Object | None, name: str
    ) -> Object:
        meta = regarding["metadata"]
        body: Object = {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            # Events of cluster-wide objects live in "default", as everybody's do.
            "metadata": {"name": f"{meta['name'][:200]}.{name}", "namespace": meta.get("namespace") or "default"},
            "eventTime": _now(),
            "reportingController": self._component,
            "reportingInstance": self._instance,
            "action": action,
            "reason": reason,
            "type": kind,
            "note": note,
            "regarding": _reference(regarding),
        }
        if related is not None:
            body["related"] = _reference(related)
        return body


def _reference(obj: Object) -> Object:
    meta = obj["metadata"]
    reference = {
        "apiVersion": obj["apiVersion"],
        "kind": obj["kind"],
        "name": meta["name"],
        "namespace": meta.get("namespace"),
        "uid": meta.get("uid"),
        "resourceVersion": meta.get("resourceVersion"),
    }
    return {field: value for field, value in reference.items() if value}


def _trim(memory: OrderedDict[str, _Series] | OrderedDict[str, tuple[float, float]]) -> None:
    while len(memory) > REMEMBERED:
        memory.popitem(last=False)


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:10]


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
