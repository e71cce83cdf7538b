"""HTTP to slurmrestd, which needs a client that forgives.

slurmrestd 26.05 answers every error twice on one connection: a JSON body with the error's number, at once followed by a
second response in plain text. Strict parsers (aiohttp's among them) then refuse both and the number is lost. Here the
first response counts, and a connection is kept only after a clean success.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

CONNECT_SECONDS = 3.0
KEEP_SECONDS = 4.0  # slurmrestd may close an idle connection at any time; a write that meets this fails without need
BUFFER_BYTES = 1 << 20
HEAD_BYTES = 64 << 10
BODY_BYTES = 512 << 20


class BadResponse(Exception):
    """What came is no HTTP/1.1 response."""


@dataclass(slots=True)
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    idle_since: float = 0.0

    @property
    def usable(self) -> bool:
        """Nothing came and nobody hung up since it was put aside."""
        quiet = not self.reader.at_eof() and not self.writer.is_closing()
        return quiet and time.monotonic() - self.idle_since < KEEP_SECONDS


class HttpClient:
    """Requests to one server, http or https; idle connections are used again."""

    def __init__(self, base_url: str) -> None:
        url = urlsplit(base_url)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError(f"{base_url!r}: http://HOST:PORT or https://HOST:PORT is allowed")
        self._host = url.hostname
        self._port = url.port or (443 if url.scheme == "https" else 80)
        self._tls = ssl.create_default_context() if url.scheme == "https" else None
        self._authority = url.netloc
        self._prefix = url.path.rstrip("/")
        self._idle: deque[_Connection] = deque()

    async def request(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None, seconds: float
    ) -> tuple[int, bytes]:
        """(status, body). Raises OSError, TimeoutError, EOFError or BadResponse; it is sent once.

        Only a GET is sent again, when a kept connection turns out to be dead before the first byte of an answer.
        """
        lines = [f"{method} {self._prefix}{path} HTTP/1.1", f"Host: {self._authority}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body is not None or method != "GET":
            lines.append(f"Content-Length: {len(body or b'')}")
        data = "\r\n".join([*lines, "", ""]).encode("ascii") + (body or b"")
        async with asyncio.timeout(seconds):
            while self._idle:
                connection = self._idle.pop()
                if not connection.usable:
                    connection.writer.close()
                    continue
                try:
                    return await self._exchange(connection, data)
                except (ConnectionError, asyncio.IncompleteReadError) as error:
                    partial = getattr(error, "partial", b"")
                    if method != "GET" or partial:
                        raise
            return await self._exchange(await self._connect(), data)

    async def close(self) -> None:
        """Close what is kept. The client may be used again."""
        while self._idle:
            self._idle.pop().writer.close()

    async def _connect(self) -> _Connection:
        async with asyncio.timeout(CONNECT_SECONDS):
            opened = await asyncio.open_connection(self._host, self._port, ssl=self._tls, limit=BUFFER_BYTES)
        return _Connection(*opened)

    async def _exchange(self, connection: _Connection, data: bytes) -> tuple[int, bytes]:
        keep = False
        try:
            connection.writer.write(data)
            await connection.writer.drain()
            status, fields = await _head(connection.reader)
            body = await _body(connection.reader, status, fields)
            keep = status < 400 and fields.get("connection", "").lower() != "close" and "content-length" in fields
            return status, body
        finally:
            if keep:
                connection.idle_since = time.monotonic()
                self._idle.append(connection)
            else:
                connection.writer.close()


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.LimitOverrunError as error:
        raise BadResponse("the header does not end") from error
    if len(head) > HEAD_BYTES:
        raise BadResponse("the header is too long")
    first, *lines = head.split("\r\n")[:-2]
    words = first.split(" ", 2)
    if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
        raise BadResponse(f"{first[:60]!r} is no status line")
    fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return int(words[1]), fields


async def _body(reader: asyncio.StreamReader, status: int, fields: Mapping[str, str]) -> bytes:
    if status in (204, 304):
        return b""
    if fields.get("transfer-encoding", "").lower() == "chunked":
        return await _chunks(reader)
    length = fields.get("content-length")
    if length is None:
        return await reader.read(BODY_BYTES)
    if not length.isdigit() or int(length) > BODY_BYTES:
        raise BadResponse(f"Content-Length {length[:20]!r}")
    return await reader.readexactly(int(length))


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    """A chunked body: slurmrestd sends none, a proxy in front of it may."""
    parts: list[bytes] = []
    while True:
        line = (await reader.readuntil(b"\r\n")).split(b";")[0].strip()
        try:
            size = int(line, 16)
        except ValueError as error:
            raise BadResponse(f"chunk of size {line[:20]!r}") from error
        if size == 0:
            while await reader.readuntil(b"\r\n") != b"\r\n":
                pass
            return b"".join(parts)
        if size > BODY_BYTES:
            raise BadResponse("a chunk is too long")
        parts.append(await reader.readexactly(size))
        await reader.readexactly(2)
