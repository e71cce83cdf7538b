"""/healthz, /readyz and /metrics over HTTP, and the event loop's own pulse."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from aiohttp import web

from slurm_operator.runtime.metrics import Metrics

PULSE_SECONDS = 1.0
MAX_LAG_SECONDS = 10.0
MAX_WORK_SECONDS = 600.0  # every request has a deadline well below, so a reconcile that takes longer is stuck

Check = Callable[[], str]
"""Returns what is wrong, or ""."""


class Pulse:
    """Notes how late the event loop wakes up; something that blocks it shows as lag."""

    def __init__(self, metrics: Metrics | None = None) -> None:
        self.lag = 0.0
        self._metrics = metrics

    async def run(self) -> None:
        while True:
            due = time.monotonic() + PULSE_SECONDS
            await asyncio.sleep(PULSE_SECONDS)
            self.lag = max(0.0, time.monotonic() - due)
            if self._metrics is not None:
                self._metrics.loop_lag.set(self.lag)

    def check(self) -> str:
        return f"the event loop woke up {self.lag:.1f} s late" if self.lag > MAX_LAG_SECONDS else ""


class Server:
    """Serves the checks. `live` decides over restarts, `ready` over rollouts; a standby replica is ready."""

    def __init__(self, metrics: Metrics, live: Sequence[Check], ready: Sequence[Check]) -> None:
        self._metrics = metrics
        self._live = live
        self._ready = ready
        self._runners: list[web.AppRunner] = []

    async def start(self, health_port: int, metrics_port: int, host: str = "") -> None:
        """Listen; port 0 serves nothing. Raises OSError when a port is taken."""
        routes = [web.get("/healthz", self._healthz), web.get("/readyz", self._readyz)]
        scrape = [web.get("/metrics", self._scrape)]
        if health_port and health_port == metrics_port:
            await self._listen(health_port, routes + scrape, host)
            return
        if health_port:
            await self._listen(health_port, routes, host)
        if metrics_port:
            await self._listen(metrics_port, scrape, host)

    async def stop(self) -> None:
        for runner in self._runners:
            await runner.cleanup()
        self._runners.clear()

    async def _listen(self, port: int, routes: Sequence[web.RouteDef], host: str) -> None:
        app = web.Application()
        app.add_routes(routes)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        self._runners.append(runner)
        await web.TCPSite(runner, host or None, port).start()

    async def _healthz(self, _: web.Request) -> web.Response:
        return _verdict(self._live)

    async def _readyz(self, _: web.Request) -> web.Response:
        return _verdict(self._ready)

    async def _scrape(self, _: web.Request) -> web.Response:
        return web.Response(body=self._metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4"})


def _verdict(checks: Sequence[Check]) -> web.Response:
    wrong = [problem for check in checks if (problem := check())]
    return web.Response(status=503 if wrong else 200, text="\n".join(wrong) or "ok")
