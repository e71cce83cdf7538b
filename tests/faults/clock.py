"""Time that jumps: an event loop that never waits, so that hours of an operator's life pass in seconds.

Whenever nothing is ready to run, the clock moves to the next timer. `time.monotonic`, `time.time` and the clock of the
Lease are the loop's own while it is in use. What runs in it must do no real I/O and use no threads.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

START = 1_900_000_000.0


class Stuck(AssertionError):
    """Nothing is left that could ever happen: somebody waits for an event that nobody will send."""


class _Selector(selectors.DefaultSelector):
    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise Stuck("no timer is left and nothing can happen any more")
        self._clock.now += timeout
        return []


class Clock:
    """`now`: seconds since the start."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return START + self.now


@contextmanager
def virtual_time() -> Iterator[tuple[Clock, asyncio.AbstractEventLoop]]:
    """A clock and its loop; inside, the whole process goes by them."""
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", clock.monotonic)
        patch.setattr(time, "time", clock.time)
        patch.setattr(time, "clock_gettime", lambda _: clock.now)
        loop = asyncio.SelectorEventLoop(_Selector(clock))
        asyncio.set_event_loop(loop)
        try:
            yield clock, loop
        finally:
            asyncio.set_event_loop(None)
            loop.close()
