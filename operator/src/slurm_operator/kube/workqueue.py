"""Work queue of keys, with the semantics of client-go's.

A key is never processed twice at the same time; adding it while it is processed means one more round after that;
adding it twice means once. Delays: the earliest wins, so a short one is never hidden behind a long one. A key may rest
after it was processed: what is added meanwhile becomes one round when the rest is over.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

K = TypeVar("K", bound=Hashable)

BACKOFF_FIRST_SECONDS = 0.05
BACKOFF_MAX_SECONDS = 30.0


class QueueShutDown(Exception):
    """The queue is closed: the worker ends."""


class Meter(Protocol):
    """What the queue tells about itself; runtime/metrics.py turns it into Prometheus series."""

    def added(self, depth: int) -> None: ...
    def started(self, depth: int, waited: float) -> None: ...
    def finished(self, depth: int, worked: float) -> None: ...
    def retried(self) -> None: ...


class WorkQueue(Generic[K]):
    """`get` a key, work, `done(key)`. All methods but `get` and `drained` return at once."""

    def __init__(self, meter: Meter | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._queue: deque[K] = deque()
        self._dirty: dict[K, float] = {}  # waiting to be processed, and since when
        self._processing: dict[K, float] = {}
        self._timers: dict[K, tuple[float, asyncio.TimerHandle]] = {}
        self._resting: dict[K, asyncio.TimerHandle] = {}
        self._failures: dict[K, int] = {}
        self._getters: deque[asyncio.Future[None]] = deque()
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False
        self._meter = meter
        self._clock = clock

    def __len__(self) -> int:
        """Keys ready to be processed."""
        return len(self._queue)

    @property
    def processing(self) -> dict[K, float]:
        """Keys in work and when each was taken."""
        return self._processing

    @property
    def delayed(self) -> int:
        """Keys that wait for their time."""
        return len(self._timers)

    def add(self, key: K) -> None:
        """Process `key` as soon as a worker is free."""
        if self._closed or key in self._dirty:
            return
        self._dirty[key] = self._clock()
        self._idle.clear()
        if key not in self._processing and key not in self._resting:
            self._push(key)

    def add_after(self, key: K, seconds: float) -> None:
        """Process `key` in `seconds`, or earlier if an earlier time was asked for before."""
        if self._closed:
            return
        if seconds <= 0:
            self.add(key)
            return
        loop = asyncio.get_running_loop()
        due = loop.time() + seconds
        pending = self._timers.get(key)
        if pending is not None:
            if pending[0] <= due:
                return
            pending[1].cancel()
        self._timers[key] = due, loop.call_at(due, self._ring, key)

    def add_rate_limited(self, key: K) -> float:
        """Process `key` after a delay that doubles with each failure since `forget`; returns the delay in seconds.

        The delay is spread by a quarter, so that keys that failed together do not come back together.
        """
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay = min(BACKOFF_FIRST_SECONDS * 2.0 ** min(failures, 20), BACKOFF_MAX_SECONDS)
        delay *= random.uniform(0.75, 1.0)  # noqa: S311
        if self._meter is not None:
            self._meter.retried()
        self.add_after(key, delay)
        return delay

    def forget(self, key: K) -> None:
        """The key went well: its next failure starts with the shortest delay again."""
        self._failures.pop(key, None)

    def failures(self, key: K) -> int:
        """Failures in a row."""
        return self._failures.get(key, 0)

    async def get(self) -> K:
        """The next key, which is ours until `done`. Raises QueueShutDown when the queue is closed."""
        while not self._queue:
            if self._closed:
                raise QueueShutDown
            getter = asyncio.get_running_loop().create_future()
            self._getters.append(getter)
            try:
                await getter
            except asyncio.CancelledError:
                # Woken and cancelled at once: pass the wake-up on, or the key would wait for the next add.
                if getter.done() and not getter.cancelled() and self._queue:
                    self._wake()
                raise
        key = self._queue.popleft()
        now = self._clock()
        since = self._dirty.pop(key, now)
        self._processing[key] = now
        if self._meter is not None:
            self._meter.started(len(self._queue), now - since)
        return key

    def done(self, key: K, rest: float = 0.0) -> None:
        """The work on `key` is over; if it was added meanwhile it is up again, after `rest` seconds."""
        began = self._processing.pop(key)
        if rest > 0 and not self._closed:
            self._resting[key] = asyncio.get_running_loop().call_later(rest, self._rested, key)
        elif key in self._dirty:
            self._push(key)
        if self._meter is not None:
            self._meter.finished(len(self._queue), self._clock() - began)
        if not self._dirty and not self._processing:
            self._idle.set()

    def shut_down(self) -> None:
        """Take and give nothing more; workers finish what they hold, then end.

        What is queued is forgotten: keys say where to look, and whoever runs next looks everywhere.
        """
        self._closed = True
        for timer in (*(timer for _, timer in self._timers.values()), *self._resting.values()):
            timer.cancel()
        self._timers.clear()
        self._resting.clear()
        self._queue.clear()
        self._dirty.clear()
        if not self._processing:
            self._idle.set()
        while self._getters:
            self._wake()

    async def drained(self) -> None:
        """Returns when nothing is queued or in work."""
        await self._idle.wait()

    def _push(self, key: K) -> None:
        self._queue.append(key)
        if self._meter is not None:
            self._meter.added(len(self._queue))
        self._wake()

    def _wake(self) -> None:
        while self._getters:
            getter = self._getters.popleft()
            if not getter.done():
                getter.set_result(None)
                return

    def _rested(self, key: K) -> None:
        del self._resting[key]
        if key in self._dirty:
            self._push(key)

    def _ring(self, key: K) -> None:
        self._timers.pop(key, None)
        self.add(key)
