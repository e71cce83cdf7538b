"""For any sequence of changes, drops and compactions the cache, its indexes and its events equal the truth."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from slurm_operator.kube import informer as informer_module
from slurm_operator.kube.auth import Access
from slurm_operator.kube.client import KubeClient
from slurm_operator.kube.informer import EventType, Informer
from slurm_operator.kube.objects import key_of
from slurm_operator.kube.resources import PODS, Key, Object
from support.faulty_apiserver import FaultyApiServer, on, status, times

PATH = "api/v1/pods"
NAMES = st.sampled_from(["a", "b", "c", "d", "e"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), NAMES, st.sampled_from(["n1", "n2"])),
        st.tuples(st.just("remove"), NAMES, st.just("")),
        st.tuples(st.sampled_from(["drop", "compact", "refuse", "settle", "bookmark"]), st.just(""), st.just("")),
    ),
    max_size=25,
)


@given(STEPS)
@settings(max_examples=20, deadline=None)
def test_cache_indexes_and_events_tell_the_truth(steps: list[tuple[str, str, str]]) -> None:
    asyncio.run(_run(steps))


async def _run(steps: list[tuple[str, str, str]]) -> None:
    informer_module.BACKOFF_FIRST_SECONDS, before = 0.005, informer_module.BACKOFF_FIRST_SECONDS
    told: dict[Key, Object] = {}

    def follow(kind: EventType, old: Object | None, new: Object | None) -> None:
        """What somebody knows who only hears events; each must fit to what was told before."""
        if kind == "ADDED":
            assert new is not None
            assert told.setdefault(key_of(new), new) is new
        elif kind == "MODIFIED":
            assert old is not None
            assert new is not None
            assert told[key_of(old)] is old
            told[key_of(new)] = new
        else:
            assert old is not None
            assert told.pop(key_of(old)) is old

    try:
        async with FaultyApiServer() as api, KubeClient(Access(api.url)) as kube:
            informer = Informer(kube, PODS)
            informer.add_handler(follow)
            task = asyncio.create_task(informer.run())
            for step, name, node in steps:
                await _step(api, step, name, node)
            await api.put(PATH, "last")
            async with asyncio.timeout(10):
                while informer.get("ns", "last") is None or not _same(api, informer):
                    await asyncio.sleep(0.005)
            assert {key: _version(obj) for key, obj in told.items()} == _truth(api)
            for node in ("n1", "n2"):
                on_node = {key_of(obj) for obj in informer.by_index("by_node", node)}
                assert on_node == {
                    Key(space, name)
                    for (_, space, name), obj in api.objects.items()
                    if obj.get("spec", {}).get("nodeName") == node
                }
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    finally:
        informer_module.BACKOFF_FIRST_SECONDS = before


async def _step(api: FaultyApiServer, step: str, name: str, node: str) -> None:
    if step == "put":
        await api.put(PATH, name, spec={"nodeName": node})
    elif step == "remove" and (PATH, "ns", name) in api.objects:
        await api.remove(PATH, name)
    elif step == "drop":
        api.drop_watches()
    elif step == "compact":
        api.compact()
        api.drop_watches()
    elif step == "refuse":
        api.faults.append(times(1, on("GET", "watch=true", lambda: status(500, "InternalError", "etcd"))))
        api.drop_watches()
    elif step == "bookmark":
        await api.bookmark()
    else:
        await asyncio.sleep(0.01)


def _version(obj: dict[str, Any]) -> str:
    return str(obj["metadata"]["resourceVersion"])


def _truth(api: FaultyApiServer) -> dict[Key, str]:
    return {Key(space, name): _version(obj) for (_, space, name), obj in api.objects.items()}


def _same(api: FaultyApiServer, informer: Informer) -> bool:
    return {key_of(obj): _version(obj) for obj in informer.list()} == _truth(api)
