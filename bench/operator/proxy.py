"""A TCP relay in front of slurmrestd that counts requests and bytes, and that can be cut.

It also stands in for kube-proxy: it listens at the cluster address of slurmrestd's Service. It does not change,
buffer or answer anything itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import subprocess
from collections import Counter
from dataclasses import dataclass, field

_REQUEST = re.compile(rb"(GET|POST|DELETE|PUT) (/[^ ?]*)[^ ]* HTTP/1\.1\r\n")


@dataclass
class Counts:
    """Bytes from slurmrestd to the operator, and requests by method and path (numbers and names cut off)."""

    received: int = 0
    requests: Counter[str] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        return sum(self.requests.values())


class Proxy:
    """`upstream` is slurmrestd's address; `device` gets the addresses that are listened at."""

    def __init__(self, upstream: tuple[str, int], device: str) -> None:
        self.counts = Counts()
        self.first_request = asyncio.Event()
        self._upstream = upstream
        self._device = device
        self._at: tuple[str, int] | None = None
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    def take(self) -> Counts:
        """Counts since the last time."""
        counts, self.counts = self.counts, Counts()
        return counts

    async def listen(self, address: str, port: int) -> None:
        """Serve at a Service's address, which is added to the instance's bridge and goes with it."""
        command = ["ip", "address", "replace", f"{address}/32", "dev", self._device]
        await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)
        self._at = address, port
        await self.restore()

    async def restore(self) -> None:
        """Serve again after `cut`."""
        assert self._at is not None, "listen() comes first"
        self._server = await asyncio.start_server(self._client, *self._at)

    async def cut(self) -> None:
        """As if slurmrestd had died: connections break and new ones are refused."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._open):
            writer.transport.abort()
        await asyncio.sleep(0)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._upstream)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, far_writer}
        try:
            with contextlib.suppress(OSError, ExceptionGroup):
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._up(reader, far_writer))
                    group.create_task(self._down(far_reader, writer))
        finally:
            for one in (writer, far_writer):
                self._open.discard(one)
                one.close()

    async def _up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            for method, path in _REQUEST.findall(data):
                self.first_request.set()
                parts = path.decode().split("/")
                self.counts.requests[
                    f"{method.decode()} {'/'.join(parts[3:4] + ['*' for part in parts[4:5] if part])}"
                ] += 1
            writer.write(data)
            await writer.drain()
        writer.close()

    async def _down(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 18):
            self.counts.received += len(data)
            writer.write(data)
            await writer.drain()
        writer.close()
