"""The Slurm client reads slurmrestd's answers right and takes none of its failures for an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from aiohttp import web
from slurm_operator.errors import Unknown
from slurm_operator.kube.errors import NotLeader
from slurm_operator.slurm import client as client_module
from slurm_operator.slurm.client import SlurmClient
from slurm_operator.slurm.errors import (
    SlurmAuthError,
    SlurmBusy,
    SlurmError,
    SlurmException,
    SlurmNotFound,
    SlurmUnreachable,
    SlurmUnreadable,
)
from slurm_operator.slurm.types import NodesSnapshot, NotModified
from support.faulty_slurmrestd import Fault, FaultySlurmrestd, job


def answering(make: Callable[[], web.Response]) -> Fault:
    """A fault that answers every request alike."""

    async def fault(_: web.Request) -> web.StreamResponse | None:
        return make()

    return fault


async def test_reads_a_node(slurmrestd: FaultySlurmrestd, slurm: SlurmClient) -> None:
    slurmrestd.add_node("n1", "MIXED", "DRAIN", "DYNAMIC_NORM", reason="slurm-operator: scale-in", alloc_cpus=1)
    node = await slurm.node("n1")
    assert node.states == {"MIXED", "DRAIN", "DYNAMIC_NORM"}
    assert (node.reason, node.cpus, node.alloc_cpus, node.memory) == ("slurm-operator: scale-in", 2, 1, 2000)
    assert (node.features, node.partitions, node.gres) == (("gpu",), ("all",), "gpu:h100:8")
    assert node.slurmd_start.value() == 1_763_700_050
    assert node.address == "10.91.1.4"
    assert slurm.version == (26, 5, 5)


async def test_names_are_quoted_in_paths(slurmrestd: FaultySlurmrestd, slurm: SlurmClient) -> None:
    with pytest.raises(SlurmNotFound):
        await slurm.node("a[1-2]/b")
    assert slurmrestd.requests[0][1] == "node/a%5B1-2%5D%2Fb"


async def test_incremental_reads(slurmrestd: FaultySlurmrestd, slurm: SlurmClient) -> None:
    slurmrestd.add_node("n1")
    first = await slurm.nodes()
    assert isinstance(first, NodesSnapshot)
    assert isinstance(await slurm.nodes(first.last_update + 1), NotModified)
    # Slurm's clock has whole seconds: a change within the second of the last one is told again.
    again = await slurm.nodes(first.last_update)
    assert isinstance(again, NodesSnapshot)
    slurmrestd.add_node("n2")
    changed = await slurm.nodes(first.last_update + 1)
    assert isinstance(changed, NodesSnapshot)
    assert set(changed.nodes) == {"n1", "n2"}


async def test_servers_whose_update_time_lies_are_asked_for_everything(
    slurmrestd: FaultySlurmrestd, slurm: SlurmClient
) -> None:
    slurmrestd.release = ("26", "05", "2")
    slurmrestd.add_node("n1")
    first = await slurm.nodes()
    assert isinstance(first, NodesSnapshot)
    assert isinstance(await slurm.nodes(first.last_update + 1), NodesSnapshot)
    assert slurmrestd.requests[-1][1] == "nodes/"
    slurmrestd.faults.append(answering(lambda: web.Response(status=304)))
    with pytest.raises(SlurmUnreadable):
        await slurm.nodes()


async def test_an_empty_list_instead_of_not_modified_is_not_believed(
    slurmrestd: FaultySlurmrestd, slurm: SlurmClient
) -> None:
    slurmrestd.add_node("n1")
    await slurm.nodes()

    async def empty(request: web.Request) -> web.StreamResponse | None:
        return slurmrestd.answer(nodes=[]) if "update_time" in request.query else None

    slurmrestd.faults.append(empty)
    snapshot = await slurm.nodes(slurmrestd.updated + 5)
    assert isinstance(snapshot, NodesSnapshot)
    assert set(snapshot.nodes) == {"n1"}


READS = ["nodes", "jobs_state", "jobs", "reservations", "diag", "ping"]


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b""),
        (200, b"{}"),
        (200, b"<html>proxy</html>"),
        (200, b'{"errors":[{"error_number":1800,"description":"no contact"}],"nodes":[],"jobs":[],"pings":[]}'),
        (200, b'{"errors":[{"description":"odd"}],"nodes":[],"jobs":[],"reservations":[],"statistics":{},"pings":[]}'),
        (204, b""),
        (302, b""),
        (401, b"no"),
        (404, b"Unable find requested URL"),
        (500, b'{"errors":[{"error_number":1900,"description":"Unable to query partitions"}],"nodes":[]}'),
        (502, b""),
        (511, b""),
    ],
)
async def test_no_failure_is_an_empty_answer(
    slurmrestd: FaultySlurmrestd, slurm: SlurmClient, read: str, status: int, body: bytes
) -> None:
    slurmrestd.faults.append(answering(lambda: web.Response(status=status, body=body)))
    with pytest.raises(SlurmException):
        await getattr(slurm, read)()


async def test_an_empty_cluster_is_an_answer(slurm: SlurmClient) -> None:
    snapshot = await slurm.nodes()
    assert isinstance(snapshot, NodesSnapshot)
    assert snapshot.nodes == {}
    assert await slurm.jobs_state() == []


async def test_ping_that_did_not_respond(slurmrestd: FaultySlurmrestd, slurm: SlurmClient) -> None:
    assert (await slurm.ping())[0].primary
    slurmrestd.responding = False
    with pytest.raises(SlurmUnreachable, match="slurm-controller-0"):
        await slurm.ping()
    with pytest.raises(SlurmUnreachable, match="connect failure"):
        await slurm.nodes()


async def test_wrong_key(slurmrestd: FaultySlurmrestd) -> None:
    client = SlurmClient(slurmrestd.url, b"another key")
    with pytest.raises(SlurmAuthError) as caught:
        await client.nodes()
    assert isinstance(caught.value, Unknown)
    with pytest.raises(SlurmUnreachable):
        await client.ping()  # slurmrestd says 200 here
    await client.close()


async def test_a_refused_token_is_replaced_once(slurmrestd: FaultySlurmrestd, slurm: SlurmClient) -> None:
    refused = 0

    async def refuse_first(_: web.Request) -> web.StreamResponse | None:
        nonlocal refused
        refused += 1
        return slurmrestd.failure(511, 1007, "Protocol authentication error") if refused == 1 else None

    slurmrestd.faults.append(refuse_first)
    slurmrestd.add_node("n1")
    await slurm.update_node("n1", state="DRAIN", reason="r")
    assert len(slurmrestd.requests) == 2


async def test_errors_are_typed(slurmrestd: FaultySlurmrestd, slurm: SlurmClient) -> None:
    slurmrestd.add_node("busy", "ALLOCATED")
    with pytest.raises(SlurmBusy):
        await slurm.delete_node("busy")
    with pytest.raises(SlurmNotFound, match="Invalid node name") as missing:
        await slurm.delete_node("none")
    assert (missing.value.code, missing.value.status) == (2018, 422)
    assert not isinstance(missing.value, Unknown)
    with pytest.raises(SlurmNotFound):
        await slurm.job(7)
    slurmrestd.faults.append(answering(lambda: slurmrestd.failure(422, 2178, "Invalid topology")))
    with pytest.raises(SlurmError, match="2178"):
        await slurm.update_node("busy", topology="topo-block:b9")


async def test_an_error_without_a_number_is_no_proof_that_a_node_is_gone(
    slurmrestd: FaultySlurmrestd, slurm: SlurmClient
) -> None:
    """slurmrestd says 200 and error 0 of an unknown node, and perhaps of other trouble."""
    slurmrestd.add_node("n1", "ALLOCATED")

    async def trouble(request: web.Request) -> web.StreamResponse | None:
        return slurmrestd.failure(200, 0, "Failure to query node") if "/node/" in request.path else None

    slurmrestd.faults.append(trouble)
    assert "ALLOCATED" in (await slurm.node("n1")).states
    with pytest.raises(SlurmNotFound):
        await slurm.node("none")
    slurmrestd.faults.append(answering(lambda: slurmrestd.failure(200, 0, "Failure to query nodes")))
    with pytest.raises(SlurmError) as caught:
        await slurm.node("none")
    assert not isinstance(caught.value, SlurmNotFound)


async def test_connections_are_kept_and_dropped_after_errors(slurmrestd: FaultySlurmrestd, slurm: SlurmClient) -> None:
    slurmrestd.add_node("n1")
    for _ in range(20):
        await slurm.node("n1")
    assert len(slurmrestd.peers) == 1
    for _ in range(3):
        with pytest.raises(SlurmNotFound):
            await slurm.delete_node("none")
        await slurm.node("n1")  # the second half of the error is not taken for this answer
    assert 3 <= len(slurmrestd.peers) <= 4
    await asyncio.gather(*(slurm.node("n1") for _ in range(50)))
    assert len(slurmrestd.peers) <= 4 + client_module.CONCURRENT


RAW = [
    (b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n7\r\n{"jobs"\r\n5;x\r\n: []}\r\n0\r\n\r\n', None),
    (b'HTTP/1.1 200 OK\r\n\r\n{"jobs": []}', None),
    (b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"jobs": []}', SlurmUnreachable),
    (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", SlurmUnreachable),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", SlurmUnreachable),
    (b"SSH-2.0-OpenSSH\r\n\r\n", SlurmUnreachable),
    (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 2_000_000, SlurmUnreachable),
    (b"", SlurmUnreachable),
]


@pytest.mark.parametrize(("raw", "error"), RAW)
async def test_odd_servers(raw: bytes, error: type[Exception] | None) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(raw)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = SlurmClient(f"http://127.0.0.1:{port}", b"k")
    if error is None:
        assert await client.jobs_state() == []
    else:
        with pytest.raises(error):
            await client.jobs_state()
    await client.close()
    server.close()


def test_strange_addresses_are_refused() -> None:
    for url in ("slurmrestd:6820", "ftp://x", ""):
        with pytest.raises(ValueError, match="is allowed"):
            SlurmClient(url, b"k")


async def test_unspecified_error_of_a_read_is_unknown(slurmrestd: FaultySlurmrestd, slurm: SlurmClient) -> None:
    slurmrestd.faults.append(answering(lambda: slurmrestd.failure(500, -1, "Unspecified error")))
    with pytest.raises(SlurmUnreachable):
        await slurm.jobs_state()
    with pytest.raises(SlurmError, match="error -1"):
        await slurm.reconfigure()


async def test_bulk_update_is_one_call(slurmrestd: FaultySlurmrestd, slurm: SlurmClient) -> None:
    for number in range(300):
        slurmrestd.add_node(f"n{number}")
    await slurm.update_nodes([f"n{number}" for number in range(300)], state="DRAIN", reason="slurm-operator: x")
    assert len(slurmrestd.requests) == 1
    method, path, body = slurmrestd.requests[0]
    assert (method, path, body["state"], len(body["name"])) == ("POST", "nodes/", ["DRAIN"], 300)
    assert all("DRAIN" in node["state"] for node in slurmrestd.nodes.values())
    await slurm.update_nodes([], state="DRAIN", reason="r")
    assert len(slurmrestd.requests) == 1
    with pytest.raises(ValueError, match="something to change"):
        await slurm.update_nodes(["n1"])


async def test_update_sends_only_what_is_given(slurmrestd: FaultySlurmrestd, slurm: SlurmClient) -> None:
    slurmrestd.add_node("n1")
    await slurm.update_node("n1", features=["a", "b"], topology="topo-tree:l1", weight=3, extra="{}", state=None)
    assert slurmrestd.requests[-1][2] == {
        "features": ["a", "b"],
        "topology_str": "topo-tree:l1",
        "weight": {"set": True, "number": 3},
        "extra": "{}",
    }


async def test_jobs(slurmrestd: FaultySlurmrestd, slurm: SlurmClient) -> None:
    slurmrestd.jobs[7] = job(7, ["RUNNING"], nodes="gpu-[0-1],login")
    slurmrestd.jobs[8] = job(8, ["PENDING"])
    states = {one.id: one.states for one in await slurm.jobs_state()}
    assert states == {"7": frozenset({"RUNNING"}), "8": frozenset({"PENDING"})}
    running = await slurm.job(7)
    assert running.nodes == ["gpu-0", "gpu-1", "login"]
    assert (running.user, running.uid, running.limit.value()) == ("alice", 1001, 10)
    assert len(await slurm.jobs()) == 2


async def test_other_calls(slurmrestd: FaultySlurmrestd, slurm: SlurmClient) -> None:
    await slurm.reconfigure()
    await slurm.create_node("NodeName=x1 CPUs=8 State=EXTERNAL")
    await slurm.create_reservation("m", nodes=["n1"], users=["root"], start=5, minutes=60, flags=["MAINT"])
    assert slurmrestd.requests[-1][2]["duration"] == {"set": True, "number": 60}
    assert await slurm.reservations() == []
    assert (await slurm.diag())["jobs_running"] == 0


async def test_the_fence_stops_writes(slurmrestd: FaultySlurmrestd) -> None:
    def fence() -> None:
        raise NotLeader(0, "NotLeader", "not ours", verb="lead", target="lease")

    client = SlurmClient(slurmrestd.url, slurmrestd.key, fence=fence)
    await client.nodes()
    for write in (client.update_node("n", state="DRAIN", reason="r"), client.delete_node("n"), client.reconfigure()):
        with pytest.raises(NotLeader):
            await write
    assert len(slurmrestd.requests) == 1
    await client.close()


async def test_no_answer_is_unreachable_and_a_write_is_sent_once(
    slurmrestd: FaultySlurmrestd, slurm: SlurmClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurmrestd.add_node("n1")
    await slurm.node("n1")  # the connection is kept, so that it can break

    async def cut(request: web.Request) -> web.StreamResponse | None:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    slurmrestd.faults.append(cut)
    before = len(slurmrestd.requests)
    with pytest.raises(SlurmUnreachable):
        await slurm.delete_node("n1")
    assert len(slurmrestd.requests) == before + 1
    slurmrestd.faults[:] = [slow]
    monkeypatch.setattr(client_module, "REQUEST_SECONDS", 0.1)
    with pytest.raises(SlurmUnreachable, match="timed out"):
        await slurm._send("GET", "node/n1", 0.1)
    nobody = SlurmClient("http://127.0.0.1:1", b"k")
    with pytest.raises(SlurmUnreachable):
        await nobody.nodes()
    await nobody.close()


async def slow(_: web.Request) -> web.StreamResponse | None:
    await asyncio.sleep(30)
    return None
