"""The cache follows the API server through every fault a watch can have, and never forgets a deletion."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from slurm_operator.errors import Unknown
from slurm_operator.kube import informer as informer_module
from slurm_operator.kube.client import KubeClient
from slurm_operator.kube.informer import Informer
from slurm_operator.kube.resources import PODS, Key
from support.faulty_apiserver import FaultyApiServer, cut, line, on, slow, status, times

PODS_PATH = "api/v1/pods"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short back-offs; what is tested is that they exist and grow, not how long they are."""
    monkeypatch.setattr(informer_module, "BACKOFF_FIRST_SECONDS", 0.02)
    monkeypatch.setattr(informer_module, "BACKOFF_MAX_SECONDS", 0.3)


@asynccontextmanager
async def following(kube: KubeClient, *args: Any, **kwargs: Any) -> AsyncIterator[tuple[Informer, list[str]]]:
    """A running, filled informer of pods and the list of what its handlers heard."""
    informer = Informer(kube, PODS, *args, **kwargs)
    heard: list[str] = []
    informer.add_handler(lambda kind, old, new: heard.append(f"{kind} {(new or old or {})['metadata']['name']}"))
    task = asyncio.create_task(informer.run())
    await asyncio.wait_for(informer.synced.wait(), 5)
    try:
        yield informer, heard
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(true: Callable[[], bool], seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not true():
            await asyncio.sleep(0.005)


async def test_lists_pages_then_watches(api: FaultyApiServer, kube: KubeClient) -> None:
    for number in range(1203):
        await api.put(PODS_PATH, f"p{number}")
    async with following(kube) as (informer, heard):
        assert len(informer) == 1203
        assert api.seen("GET", "limit=500") == 3
        pod = informer.get("ns", "p7")
        assert pod is not None
        assert (pod["kind"], pod["apiVersion"]) == ("Pod", "v1")
        await api.put(PODS_PATH, "p7", spec={"nodeName": "n1"})
        await api.put(PODS_PATH, "new")
        await api.remove(PODS_PATH, "p8")
        await until(lambda: "DELETED p8" in heard)
        assert heard[-3:] == ["MODIFIED p7", "ADDED new", "DELETED p8"]
        assert [one["metadata"]["name"] for one in informer.by_index("by_node", "n1")] == ["p7"]


async def test_410_in_the_stream_lists_again_and_tells_deletions(api: FaultyApiServer, kube: KubeClient) -> None:
    for name in ("stays", "changes", "goes", "reborn"):
        await api.put(PODS_PATH, name)
    async with following(kube) as (informer, heard):
        heard.clear()
        # While the watch is away: three changes that it will never hear of.
        api.faults.append(times(3, on("GET", "watch=true", lambda: status(503, "Unavailable", "not now"))))
        api.drop_watches()
        await api.remove(PODS_PATH, "goes")
        await api.put(PODS_PATH, "changes", spec={"nodeName": "n2"})
        await api.remove(PODS_PATH, "reborn")
        await api.put(PODS_PATH, "reborn")
        await api.put(PODS_PATH, "comes")
        api.compact()
        await until(lambda: "ADDED comes" in heard)
        assert sorted(heard) == ["ADDED comes", "ADDED reborn", "DELETED goes", "DELETED reborn", "MODIFIED changes"]
        assert heard.index("DELETED reborn") < heard.index("ADDED reborn")
        assert informer.get("ns", "goes") is None
        assert informer.by_index("by_node", "n2")


async def test_a_server_that_always_says_410_is_not_hammered(api: FaultyApiServer, kube: KubeClient) -> None:
    gone = line("ERROR", {"kind": "Status", "code": 410, "message": "too old"})
    api.faults.append(on("GET", "watch=true", lambda: web.Response(body=gone)))
    async with following(kube):
        await asyncio.sleep(1.0)
        assert 3 <= api.seen("GET", "watch=true") <= 25  # growing pauses: 0.02, 0.04, … at most 0.3 s


@pytest.mark.parametrize("code", [401, 403, 429, 500])
async def test_refused_watches_back_off_and_recover(api: FaultyApiServer, kube: KubeClient, code: int) -> None:
    await api.put(PODS_PATH, "a")
    refuse = times(5, on("GET", "watch=true", lambda: status(code, "No", "no", {"Retry-After": "0.05"})))
    api.faults.append(refuse)
    async with following(kube) as (informer, _):
        await api.put(PODS_PATH, "b")
        await until(lambda: informer.get("ns", "b") is not None)
        assert api.seen("GET", "watch=true") < 12


async def test_dropped_connections_resume_without_a_new_list(api: FaultyApiServer, kube: KubeClient) -> None:
    async with following(kube) as (informer, heard):
        for number in range(10):
            await api.put(PODS_PATH, f"p{number}")
            await until(lambda number=number: informer.get("ns", f"p{number}") is not None)  # type: ignore[misc]
            api.drop_watches()
        await api.put(PODS_PATH, "last")
        await until(lambda: informer.get("ns", "last") is not None)
        assert api.seen("GET", "limit=") == 1
        assert len(heard) == 11
        assert len(set(heard)) == 11  # nothing was told twice


async def test_a_watch_on_which_nothing_happens_is_no_trouble(
    api: FaultyApiServer, kube: KubeClient, caplog: pytest.LogCaptureFixture
) -> None:
    """Servers without bookmarks are silent where nothing changes."""
    async with following(kube, inactivity=0.1):
        await asyncio.sleep(0.5)
    assert api.seen("GET", "watch=true") > 1
    assert [record.message for record in caplog.records if "cannot follow" in record.message] == []


async def test_a_silent_connection_is_given_up(api: FaultyApiServer, kube: KubeClient) -> None:
    async def hang(request: web.Request) -> web.StreamResponse | None:
        if api.seen("GET", "watch=true") != 1:
            return None
        stream = web.StreamResponse()
        await stream.prepare(request)
        await asyncio.sleep(3600)
        return stream

    api.faults.append(hang)
    async with following(kube, inactivity=0.2) as (informer, _):
        await api.put(PODS_PATH, "p")
        await until(lambda: informer.get("ns", "p") is not None)


async def test_replayed_and_late_events_change_nothing(api: FaultyApiServer, kube: KubeClient) -> None:
    await api.put(PODS_PATH, "p", spec={"nodeName": "old"})
    first = api.objects[PODS_PATH, "ns", "p"]
    second = await api.put(PODS_PATH, "p", spec={"nodeName": "new"})
    replay = line("MODIFIED", first) + line("ADDED", second) + line("DELETED", first)
    api.faults.append(times(1, on("GET", "watch=true", lambda: web.Response(body=replay))))
    async with following(kube) as (informer, heard):
        await api.put(PODS_PATH, "q")
        await until(lambda: "ADDED q" in heard)
        assert heard == ["ADDED p", "ADDED q"]
        pod = informer.get("ns", "p")
        assert pod is not None
        assert pod["spec"]["nodeName"] == "new"


async def test_list_that_outlives_its_pages_starts_over(api: FaultyApiServer, kube: KubeClient) -> None:
    for number in range(700):
        await api.put(PODS_PATH, f"p{number}")
    api.faults.append(times(1, on("GET", "continue=", lambda: status(410, "Expired", "continue token expired"))))
    async with following(kube) as (informer, _):
        assert len(informer) == 700


async def test_restored_server_with_older_versions_is_believed(api: FaultyApiServer, kube: KubeClient) -> None:
    await api.put(PODS_PATH, "lost")
    await api.put(PODS_PATH, "kept", spec={"nodeName": "n1"})
    async with following(kube) as (informer, _):
        api.faults.append(
            times(1, on("GET", "watch=true", lambda: status(504, "Timeout", "Too large resource version: 102")))
        )
        del api.objects[PODS_PATH, "ns", "lost"]
        api.objects[PODS_PATH, "ns", "kept"]["metadata"]["resourceVersion"] = "50"
        api.version = 60
        api.history.clear()
        api.drop_watches()
        await until(lambda: informer.get("ns", "lost") is None)
        kept = informer.get("ns", "kept")
        assert kept is not None
        assert kept["metadata"]["resourceVersion"] == "50"


async def test_several_namespaces_share_one_cache(api: FaultyApiServer, kube: KubeClient) -> None:
    for namespace in ("a", "b", "c"):
        await api.put(PODS_PATH, "p", namespace)
    async with following(kube, ["a", "b"]) as (informer, _):
        assert {pod["metadata"]["namespace"] for pod in informer.list()} == {"a", "b"}
        await api.put(PODS_PATH, "q", "b")
        await until(lambda: informer.get("b", "q") is not None)
        api.faults.append(times(1, on("GET", "namespaces/a/pods?watch", lambda: status(410, "Expired", "old"))))
        api.drop_watches()  # only a lists again; b's objects stay
        await until(lambda: api.seen("GET", "namespaces/a/pods?limit") == 2)
        assert len(informer.list("b")) == 2


async def test_own_writes_are_waited_for(api: FaultyApiServer, kube: KubeClient) -> None:
    await api.put(PODS_PATH, "p")
    async with following(kube) as (informer, _):
        key = Key("ns", "p")
        api.faults.append(slow("GET", "watch=true", 0.3))
        api.drop_watches()
        written = await kube.patch(PODS, "ns", "p", {"metadata": {"labels": {"a": "b"}}})
        informer.note_write(written)
        assert informer.is_stale(key)
        await informer.caught_up(key)
        assert not informer.is_stale(key)
        pod = informer.get("ns", "p")
        assert pod is not None
        assert pod["metadata"]["labels"] == {"a": "b"}


async def test_a_write_that_never_shows_makes_the_cache_list_again(
    api: FaultyApiServer, kube: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(informer_module, "STALE_SECONDS", 0.1)
    async with following(kube) as (informer, _):
        api.objects[PODS_PATH, "ns", "p"] = {
            "metadata": {"name": "p", "namespace": "ns", "uid": "u", "resourceVersion": "101"}
        }
        api.version = 101  # stored, but no watch will ever tell
        informer.note_write(api.objects[PODS_PATH, "ns", "p"])
        assert informer.is_stale(Key("ns", "p"))
        with pytest.raises(Unknown, match="does not show"):
            await informer.caught_up(Key("ns", "p"), timeout=0.05)
        await asyncio.sleep(0.1)
        await until(lambda: not informer.is_stale(Key("ns", "p")))
        assert informer.get("ns", "p") is not None


async def test_own_deletes_are_waited_for(api: FaultyApiServer, kube: KubeClient) -> None:
    await api.put(PODS_PATH, "p")
    async with following(kube) as (informer, _):
        pod = informer.get("ns", "p")
        assert pod is not None
        informer.note_delete(Key("ns", "p"), pod["metadata"]["uid"])
        assert informer.is_stale(Key("ns", "p"))
        await api.remove(PODS_PATH, "p")
        await informer.caught_up(Key("ns", "p"))
        assert informer.get("ns", "p") is None


async def test_bookmarks_prove_that_the_cache_is_current(api: FaultyApiServer, kube: KubeClient) -> None:
    async with following(kube) as (informer, _):
        informer.note_write({"metadata": {"name": "gone-already", "namespace": "ns", "resourceVersion": "140"}})
        api.version = 150
        await api.bookmark()
        await informer.caught_up(Key("ns", "gone-already"))


async def test_lost_answer_after_the_write_took_effect(api: FaultyApiServer, kube: KubeClient) -> None:
    """The write is repeated when that is safe; the cache then shows it once."""
    await api.put(PODS_PATH, "p")
    async with following(kube) as (informer, heard):
        api.after_commit.append(times(1, cut("PATCH")))
        written = await kube.patch(PODS, "ns", "p", {"metadata": {"labels": {"a": "b"}}})
        informer.note_write(written)
        await informer.caught_up(Key("ns", "p"))
        assert heard == ["ADDED p", "MODIFIED p"]
