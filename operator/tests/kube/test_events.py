"""Events are counted instead of repeated, limited per object, and never hold anybody up."""

from __future__ import annotations

import asyncio

import pytest
from slurm_operator.kube.client import KubeClient
from slurm_operator.kube.events import BURST, NOTE_LIMIT, EventRecorder
from slurm_operator.kube.resources import Object
from support.faulty_apiserver import FaultyApiServer, on, status

SUBJECT: Object = {
    "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "ns", "uid": "u", "resourceVersion": "7"},
}  # fmt: skip
PATH = "apis/events.k8s.io/v1/events"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def recorder(kube: KubeClient, clock: Clock) -> EventRecorder:
    return EventRecorder(kube, "op", "pod-1", clock=clock)


def stored(api: FaultyApiServer) -> list[Object]:
    return [obj for (path, _, _), obj in api.objects.items() if path == PATH]


async def test_an_event_says_what_who_and_about_what(api: FaultyApiServer, recorder: EventRecorder) -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "uid": "v"}}
    recorder.event(SUBJECT, "Warning", "Drained", "x" * 2000, related=node)
    recorder.event(node, "Normal", "Seen", "cluster-wide objects too")
    await recorder.flush()
    first, second = stored(api)
    assert (first["type"], first["reason"], first["reportingInstance"]) == ("Warning", "Drained", "pod-1")
    assert len(first["note"]) == NOTE_LIMIT
    assert first["regarding"]["uid"] == "u"
    assert first["related"]["name"] == "n1"
    assert second["metadata"]["namespace"] == "default"


async def test_repeats_become_a_count(api: FaultyApiServer, recorder: EventRecorder, clock: Clock) -> None:
    for _ in range(500):
        recorder.event(SUBJECT, "Normal", "Again", "the same")
    await recorder.flush()
    recorder.event(SUBJECT, "Normal", "Again", "the same")
    await recorder.flush()
    assert (api.seen("POST"), api.seen("PATCH")) == (1, 0)
    clock.now = 31
    await recorder.flush()
    await recorder.flush()
    assert (api.seen("POST"), api.seen("PATCH")) == (1, 1)
    assert stored(api)[0]["series"]["count"] == 501
    clock.now = 400
    recorder.event(SUBJECT, "Normal", "Again", "the same")
    await recorder.flush()
    assert api.seen("POST") == 2  # after six minutes it is news again


async def test_a_flood_is_cut_off(api: FaultyApiServer, recorder: EventRecorder, clock: Clock) -> None:
    for number in range(100):
        recorder.event(SUBJECT, "Normal", "Flood", f"{number}")
    await recorder.flush()
    assert len(stored(api)) == BURST
    assert recorder.dropped == 100 - BURST
    other = {**SUBJECT, "metadata": {**SUBJECT["metadata"], "uid": "other"}}
    recorder.event(other, "Normal", "Flood", "others are not affected")
    clock.now += 13
    recorder.event(SUBJECT, "Normal", "Flood", "after a while one more")
    await recorder.flush()
    assert len(stored(api)) == BURST + 2


async def test_the_api_server_may_refuse_or_be_away(api: FaultyApiServer, recorder: EventRecorder) -> None:
    api.faults.append(on("POST", "events", lambda: status(403, "Forbidden", "no")))
    task = asyncio.create_task(recorder.run())
    recorder.event(SUBJECT, "Normal", "A", "b")
    async with asyncio.timeout(5):
        while not recorder.dropped:
            await asyncio.sleep(0.005)
    api.faults.clear()
    recorder.event(SUBJECT, "Normal", "C", "d")
    async with asyncio.timeout(5):
        while not stored(api):
            await asyncio.sleep(0.005)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
