"""Stands in for the API endpoint of an EKS cluster where the cluster is an existing one, which knows no token of AWS.

It speaks TLS with the instance's own authority, finds out who calls, as the cluster's webhook would, and hands the
request on to `kubectl proxy`, which has the existing cluster's credentials: as that identity (impersonation), or with
those rights themselves for the administrator's certificate. What is handed on is bytes, so watches, logs, exec and
port-forward work. What it does not do: anonymous requests and tokens of service accounts (pods have their own way to
the API server), HTTP/2, and more than one request for each connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import ssl
import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from localcloud.aws.eks import authenticate
from localcloud.aws.eks.compute import ExistingCluster
from localcloud.aws.eks.core import Eks
from localcloud.kubernetes import existing
from localcloud.paths import Instance, instance

log = logging.getLogger(__name__)

HEAD_BYTES = 1 << 20
CHUNK_BYTES = 1 << 16
ADMINISTRATORS = "system:masters"
OURS = ("authorization", "host", "connection")
"""Headers that are written anew, beside every Impersonate-…: whom a request is for is not for the caller to say."""
Header = tuple[str, str]
_starting = threading.Lock()


def ensure(eks: Eks) -> None:
    """Serve from now on, where the cluster is an existing one. Its start has made the address and the certificates."""
    if not isinstance(eks.compute, ExistingCluster):
        return
    with _starting:
        if any(thread.name == "endpoint" for thread in threading.enumerate()):
            return
        ready = threading.Event()
        threading.Thread(target=lambda: asyncio.run(_serve(eks, ready.set)), name="endpoint", daemon=True).start()
        if not ready.wait(10):
            raise RuntimeError(f"{instance().apiserver_url} cannot be served, see {instance().run}/aws.log")


def _tls(inst: Instance) -> ssl.SSLContext:
    pki = inst.state / "pki"
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pki / "apiserver.crt", pki / "apiserver.key")
    tls.load_verify_locations(pki / "ca.crt")
    tls.verify_mode = ssl.CERT_OPTIONAL
    return tls


async def _serve(eks: Eks, ready: Callable[[], None]) -> None:
    inst = instance()

    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A caller that hangs up in the middle is no error.
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            await _hand_on(eks, inst, reader, writer)
        writer.close()

    server = await asyncio.start_server(serve_one, str(inst.host_ip), 6443, ssl=_tls(inst), limit=HEAD_BYTES)
    ready()
    await server.serve_forever()


async def _hand_on(eks: Eks, inst: Instance, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    request, headers = parse_head(head)
    try:
        identity = await asyncio.to_thread(_identity, eks, headers, writer.get_extra_info("peercert"))
    except authenticate.Refused as reason:
        log.info("%s refused: %s", request, reason)
        await _refuse(writer, 401, "Unauthorized", "Unauthorized")
        return
    try:
        above, below = await asyncio.open_unix_connection(str(existing.socket(inst)))
    except OSError as error:
        await _refuse(writer, 503, "ServiceUnavailable", f"no way to the existing cluster ({error}): make up")
        return
    below.write(render_head(request, headers, identity))
    # The answer's end is the request's end; a caller that hangs up ends it, too.
    pumps = [asyncio.create_task(_pump(above, writer)), asyncio.create_task(_pump(reader, below))]
    await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
    for pump in pumps:
        pump.cancel()
    below.close()


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(CHUNK_BYTES):
            target.write(data)
            await target.drain()


def parse_head(head: bytes) -> tuple[str, list[Header]]:
    """Request line and headers of an HTTP/1.1 request."""
    request, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return request, [(name.strip(), value.strip()) for name, _, value in pairs]


def render_head(request: str, headers: list[Header], identity: list[Header]) -> bytes:
    """The request as the existing cluster gets it: as `identity`, and the last one of its connection."""
    given = {name.lower(): value for name, value in headers}
    kept = [(n, v) for n, v in headers if n.lower() not in OURS and not n.lower().startswith("impersonate-")]
    connection = "Upgrade, close" if "upgrade" in given.get("connection", "").lower() else "close"
    lines = [("Host", "localhost"), ("Connection", connection), *identity, *kept]
    return "\r\n".join([request, *(f"{name}: {value}" for name, value in lines), "", ""]).encode("latin-1")


def _identity(eks: Eks, headers: list[Header], certificate: dict[str, Any] | None) -> list[Header]:
    """Headers that make a request one of its caller; none for the administrator. Raises Refused."""
    if certificate:
        subject = dict(pair for parts in certificate["subject"] for pair in parts)
        if subject.get("organizationName") != ADMINISTRATORS:
            raise authenticate.Refused(f"the certificate of {subject.get('commonName')} is no administrator's")
        return []
    kind, _, token = next((value for name, value in headers if name.lower() == "authorization"), "").partition(" ")
    if kind.lower() != "bearer":
        raise authenticate.Refused("there is neither a token nor a certificate")
    with eks.store.lock:
        return impersonation(authenticate.authenticate(eks, token))


def impersonation(user: dict[str, Any]) -> list[Header]:
    """Kubernetes' headers for acting as a user (username, uid, groups, extra)."""
    extra = [
        (f"Impersonate-Extra-{quote(key, safe='')}", value) for key, values in user["extra"].items() for value in values
    ]
    groups = [("Impersonate-Group", group) for group in user["groups"]]
    found = [("Impersonate-User", user["username"]), ("Impersonate-Uid", user["uid"]), *groups, *extra]
    if any(not value.isprintable() for _, value in found):
        raise authenticate.Refused(f"{user['username']!r} has characters that no name may have")
    return found


async def _refuse(writer: asyncio.StreamWriter, code: int, reason: str, message: str) -> None:
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure"}
    body = json.dumps({**status, "message": message, "reason": reason, "code": code})
    head = f"HTTP/1.1 {code} {reason}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    writer.write(f"{head}Connection: close\r\n\r\n{body}".encode())
    await writer.drain()
