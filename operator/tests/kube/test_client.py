"""What the client does when the API server refuses, is overloaded, slow, or loses the answer."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from aiohttp import web
from slurm_operator.kube import transport
from slurm_operator.kube.auth import Access, TokenFile
from slurm_operator.kube.client import KubeClient
from slurm_operator.kube.errors import (
    AlreadyExists,
    Conflict,
    EvictionRefused,
    Forbidden,
    Invalid,
    NotLeader,
    OutsideTable,
    ServerError,
    TooLate,
    TooManyRequests,
    Unauthorized,
    Unreachable,
)
from slurm_operator.kube.resources import CONFIGMAPS, LEASES, NODES, PODS, SECRETS
from support.faulty_apiserver import FaultyApiServer, cut, on, slow, status, times

PATH = "api/v1/configmaps"
MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "ns"}, "data": {"a": "1"}}


async def test_missing_is_none_and_delete_of_missing_is_none(kube: KubeClient) -> None:
    assert await kube.get(CONFIGMAPS, "ns", "c") is None
    assert await kube.delete(CONFIGMAPS, "ns", "c") is None
    assert not await kube.evict("ns", "p")


async def test_create_is_not_repeated_after_a_lost_answer(api: FaultyApiServer, kube: KubeClient) -> None:
    api.after_commit.append(times(1, cut("POST")))
    with pytest.raises(Unreachable, match="create configmaps ns/c"):
        await kube.create(MAP)
    assert api.seen("POST") == 1
    assert await kube.get(CONFIGMAPS, "ns", "c") is not None
    with pytest.raises(AlreadyExists):
        await kube.create(MAP)


async def test_apply_is_repeated_after_a_lost_answer(api: FaultyApiServer, kube: KubeClient) -> None:
    api.after_commit.append(times(2, cut("PATCH")))
    applied = await kube.apply(MAP, "me")
    assert applied["data"] == {"a": "1"}
    assert api.seen("PATCH") == 3
    assert api.version == 101  # it changed the object once


async def test_nothing_is_sent_after_its_time(api: FaultyApiServer, kube: KubeClient) -> None:
    """A server that asks to come back later must not make us act on what was true before."""
    await api.put(PATH, "c")
    busy = {"Retry-After": "1"}
    api.faults.append(times(1, on("DELETE", "c", lambda: status(429, "TooManyRequests", "busy", busy))))
    with pytest.raises(TooLate):
        await kube.delete(CONFIGMAPS, "ns", "c", begin_by=time.monotonic() + 0.3)
    assert api.seen("DELETE") == 1
    assert await kube.get(CONFIGMAPS, "ns", "c") is not None
    with pytest.raises(TooLate):
        await kube.delete(CONFIGMAPS, "ns", "c", begin_by=time.monotonic() - 1)
    assert api.seen("DELETE") == 1


async def test_delete_by_uid_is_repeated_and_never_hits_a_namesake(api: FaultyApiServer, kube: KubeClient) -> None:
    old = await api.put(PATH, "c")
    api.after_commit.append(times(1, cut("DELETE")))
    assert await kube.delete(CONFIGMAPS, "ns", "c", uid=old["metadata"]["uid"]) is None  # the repeat found it gone
    await api.put(PATH, "c")
    with pytest.raises(Conflict, match="precondition"):
        await kube.delete(CONFIGMAPS, "ns", "c", uid=old["metadata"]["uid"])
    api.after_commit.append(times(1, cut("DELETE")))
    with pytest.raises(Unreachable):  # without a uid a repeat might delete something new
        await kube.delete(CONFIGMAPS, "ns", "c")


async def test_replace_with_an_old_version_is_a_conflict(api: FaultyApiServer, kube: KubeClient) -> None:
    stale = await api.put(PATH, "c")
    await api.put(PATH, "c", data={"a": "2"})
    with pytest.raises(Conflict):
        await kube.replace({**stale, "apiVersion": "v1"})


async def test_429_pauses_the_whole_client(api: FaultyApiServer, kube: KubeClient) -> None:
    api.faults.append(times(1, on("GET", "c1", lambda: status(429, "TooManyRequests", "busy", {"Retry-After": "0.4"}))))
    await api.put(PATH, "c1")
    await api.put(PATH, "c2")
    first = asyncio.create_task(kube.get(CONFIGMAPS, "ns", "c1"))
    while not api.seen("GET", "c1"):
        await asyncio.sleep(0.005)
    await asyncio.sleep(0.02)
    before = time.monotonic()
    assert await kube.get(CONFIGMAPS, "ns", "c2") is not None
    assert time.monotonic() - before > 0.2  # it had to wait although nobody told this call to
    assert await first is not None


async def test_429_for_ever_is_an_error(api: FaultyApiServer, kube: KubeClient) -> None:
    api.faults.append(on("GET", "", lambda: status(429, "TooManyRequests", "busy", {"Retry-After": "0.01"})))
    with pytest.raises(TooManyRequests):
        await kube.get(CONFIGMAPS, "ns", "c")
    assert api.seen("GET") == transport.ATTEMPTS


async def test_eviction_refused_by_a_budget_is_no_overload(api: FaultyApiServer, kube: KubeClient) -> None:
    await api.put("api/v1/pods", "p")

    def refuse() -> web.Response:
        causes = [{"reason": "DisruptionBudget", "message": "The disruption budget b needs 1 healthy pods"}]
        return status(429, "TooManyRequests", "Cannot evict pod", causes=causes, retryAfterSeconds=10)

    api.faults.append(times(1, on("POST", "eviction", refuse)))
    with pytest.raises(EvictionRefused):
        await kube.evict("ns", "p", uid="u")
    assert api.seen("POST") == 1
    assert await kube.evict("ns", "p", uid="u")  # and nothing is paused


async def test_eviction_is_not_repeated_on_500(api: FaultyApiServer, kube: KubeClient) -> None:
    await api.put("api/v1/pods", "p")
    api.faults.append(on("POST", "eviction", lambda: status(500, "InternalError", "more than one PDB")))
    with pytest.raises(ServerError, match="more than one PDB"):
        await kube.evict("ns", "p", uid="u")
    assert api.seen("POST") == 1


async def test_500_is_repeated_for_reads_only(api: FaultyApiServer, kube: KubeClient) -> None:
    await api.put(PATH, "c")
    api.faults.append(times(2, on("GET", "c", lambda: status(500, "InternalError", "etcd"))))
    assert await kube.get(CONFIGMAPS, "ns", "c") is not None
    api.faults.append(times(1, on("PUT", "c", lambda: status(500, "InternalError", "etcd"))))
    with pytest.raises(ServerError):
        await kube.replace(MAP)
    assert api.seen("PUT") == 1


async def test_slow_answers_end_at_the_deadline(
    api: FaultyApiServer, kube: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "ATTEMPTS", 1)
    api.faults.append(slow("GET", "", 30))
    with pytest.raises(Unreachable, match="timed out"):
        await kube.send("get", CONFIGMAPS, "ns", "c", seconds=0.1)


async def test_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "ATTEMPTS", 2)
    async with KubeClient(Access("http://127.0.0.1:1")) as client:
        with pytest.raises(Unreachable, match="get pods ns/p"):
            await client.get(PODS, "ns", "p")


async def test_forbidden_names_verb_and_resource(api: FaultyApiServer, kube: KubeClient) -> None:
    api.faults.append(on("GET", "secrets", lambda: status(403, "Forbidden", "user cannot list secrets")))
    with pytest.raises(Forbidden, match="list secrets") as caught:
        await kube.list(SECRETS, "ns")
    assert caught.value.verb == "list"
    api.faults.append(on("PATCH", "", lambda: status(422, "Invalid", "spec.x: must be y")))
    with pytest.raises(Invalid, match="must be y"):
        await kube.apply(MAP, "me")


async def test_a_token_that_was_replaced_is_read_again(api: FaultyApiServer, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("old\n")

    async def check(request: web.Request) -> web.StreamResponse | None:
        good = request.headers["Authorization"] == "Bearer new"
        return None if good else status(401, "Unauthorized", "Unauthorized")

    api.faults.append(check)
    await api.put(PATH, "c")
    async with KubeClient(Access(api.url, token=TokenFile(path))) as client:
        with pytest.raises(Unauthorized):
            await client.get(CONFIGMAPS, "ns", "c")
        path.write_text("new\n")
        assert await client.get(CONFIGMAPS, "ns", "c") is not None


async def test_the_fence_stops_writes_and_not_reads(api: FaultyApiServer, kube: KubeClient) -> None:
    def fence() -> None:
        raise NotLeader(0, "NotLeader", "not ours", verb="lead", target="lease")

    kube.fence = fence
    assert await kube.get(CONFIGMAPS, "ns", "c") is None
    for write in (kube.apply(MAP, "me"), kube.create(MAP), kube.delete(CONFIGMAPS, "ns", "c"), kube.evict("ns", "p")):
        with pytest.raises(NotLeader):
            await write
    assert api.seen("PATCH") + api.seen("POST") + api.seen("DELETE") == 0


async def test_guard_refuses_what_the_table_does_not_hold(api: FaultyApiServer) -> None:
    async with KubeClient(Access(api.url), guard=True) as client:
        assert await client.get(CONFIGMAPS, "ns", "c") is None
        assert (await client.list(NODES)).items == []
        with pytest.raises(OutsideTable, match="delete nodes"):
            await client.delete(NODES, "", "n1")
        with pytest.raises(OutsideTable):
            await client.replace(MAP)
        with pytest.raises(OutsideTable, match="list leases"):
            await client.list(LEASES)
    assert api.seen("DELETE") + api.seen("PUT") == 0
