"""The benchmark of the operator counts and judges right; its figures themselves are no test."""

from __future__ import annotations

import asyncio
from pathlib import Path

from bench.operator import report
from bench.operator.proxy import Proxy
from bench.sections import replace_section

POST = b"POST /slurm/v0.0.44/nodes/ HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s"
DRAIN = b'{"name": ["w-[1-2]", "w-7"], "state": ["DRAIN"], "reason": "r"}'


async def exchange(*chunks: bytes) -> Proxy:
    """Chunks through the proxy to a server that answers each with OK, as the client sees it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1 << 16):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    proxy = Proxy(server.sockets[0].getsockname()[:2], "lo")
    proxy._at = ("127.0.0.1", 0)
    await proxy.restore()
    assert proxy._server is not None
    reader, writer = await asyncio.open_connection(*proxy._server.sockets[0].getsockname()[:2])
    for chunk in chunks:
        writer.write(chunk)
        await writer.drain()
        await reader.readexactly(40)
    writer.close()
    await proxy.cut()
    server.close()
    return proxy


async def test_requests_and_bytes_are_counted_and_drains_noted() -> None:
    update = POST % (len(DRAIN), DRAIN)
    get = b"GET /slurm/v0.0.44/node/w-1?update_time=5 HTTP/1.1\r\nHost: x\r\n\r\n"
    proxy = await exchange(get, update[:90], update[90:])
    assert dict(proxy.counts.requests) == {"GET node/*": 1, "POST nodes/": 1}
    assert proxy.counts.received == 3 * 40
    assert proxy.drained.keys() == {"w-1", "w-2", "w-7"}


async def test_other_writes_are_no_drains() -> None:
    body = b'{"name": "w-1", "state": ["UNDRAIN"]}'
    proxy = await exchange(POST % (len(body), body), POST % (len(b'{"comment": "c"}'), b'{"comment": "c"}'))
    assert proxy.drained == {}
    assert proxy.counts.total == 2


def test_the_table_says_what_was_missed_and_what_failed() -> None:
    results: report.Results = {
        "scale-out": {"pods_per_second": 99.0, "status_after_last_worker_seconds": 2.0, "all_registered_seconds": 3.0},
        "outage": {"error": "not within 600 s: something"},
    }
    text = report.table({"operator": "", "workers": 1000, "cores": 2, "load": 1.0, "date": "2026-01-01"}, results)
    assert "| pods created per second | 99 /s | ≥ 100: **missed** |" in text
    assert "| status true after the last worker | 2 s | ≤ 2: met |" in text
    assert "failed: not within 600 s" in text
    assert "idle" not in text


def test_only_the_own_section_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "results.md"
    replace_section(file, "a", "one")
    replace_section(file, "b", "two")
    replace_section(file, "a", r"three \1")
    text = file.read_text()
    assert "one" not in text
    assert text.index(r"three \1") < text.index("two")
