"""A TCP relay in front of slurmrestd that counts requests and bytes, notes drains, and can be cut.

It also stands in for kube-proxy: it listens at the cluster address of slurmrestd's Service. It does not change,
buffer or answer anything itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import subprocess
import time
from collections import Counter
from dataclasses import dataclass, field
from urllib.parse import unquote

from slurm_operator.slurm.hostlist import expand

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


@dataclass
class Counts:
    """Bytes from slurmrestd to the operator, and requests by method and path (numbers and names cut off)."""

    received: int = 0
    requests: Counter[str] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        return sum(self.requests.values())


@dataclass
class _Requests:
    """The requests of one connection, put together from what arrives."""

    data: bytes = b""

    def take(self, data: bytes) -> list[tuple[str, list[str], bytes]]:
        """(method, parts of the path behind the API's version, body) of those that are whole now."""
        self.data += data
        found = []
        while (end := self.data.find(b"\r\n\r\n")) >= 0:
            length = _LENGTH.search(self.data, 0, end)
            total = end + 4 + (int(length[1]) if length else 0)
            if len(self.data) < total:
                break
            method, path, *_ = self.data[: self.data.index(b"\r\n")].decode("latin-1").split(" ")
            parts = [unquote(part) for part in path.partition("?")[0].split("/")[3:]]
            found.append((method, parts, self.data[end + 4 : total]))
            self.data = self.data[total:]
        return found


class Proxy:
    """`upstream` is slurmrestd's address; `device` gets the addresses that are listened at."""

    def __init__(self, upstream: tuple[str, int], device: str) -> None:
        self.counts = Counts()
        self.first_request = asyncio.Event()
        self.drained: dict[str, float] = {}
        """Slurm node -> time at which slurmrestd answered the first write that asked for its drain."""
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
                    asked: list[str] = []
                    group.create_task(self._up(reader, far_writer, asked))
                    group.create_task(self._down(far_reader, writer, asked))
        finally:
            for one in (writer, far_writer):
                self._open.discard(one)
                one.close()

    async def _up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: list[str]) -> None:
        requests = _Requests()
        while data := await reader.read(1 << 16):
            for method, parts, body in requests.take(data):
                self.first_request.set()
                self.counts.requests[f"{method} {parts[0]}{'/*' if len(parts) > 1 and parts[1] else '/'}"] += 1
                if method == "POST" and parts[0] in ("node", "nodes"):
                    asked += _drains(parts, body)
            writer.write(data)
            await writer.drain()
        writer.close()

    async def _down(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: list[str]) -> None:
        while data := await reader.read(1 << 18):
            for name in asked:
                self.drained.setdefault(name, time.monotonic())
            asked.clear()
            self.counts.received += len(data)
            writer.write(data)
            await writer.drain()
        writer.close()


def _drains(parts: list[str], body: bytes) -> list[str]:
    """The nodes that an update wants drained."""
    try:
        update = json.loads(body or b"{}")
    except ValueError:
        return []
    if "DRAIN" not in (update.get("state") or ()):
        return []
    names = update.get("name") or []
    names = [names] if isinstance(names, str) else names
    return [host for name in ([*parts[1:2], *names]) if name for host in expand(name)]
