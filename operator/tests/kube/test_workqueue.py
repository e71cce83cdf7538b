"""The queue's promises, for any order of calls: no key is lost, none is in work twice, the earliest delay wins."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slurm_operator.kube import workqueue
from slurm_operator.kube.workqueue import QueueShutDown, WorkQueue

KEYS = st.sampled_from("abcd")
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), KEYS),
        st.tuples(st.just("later"), KEYS, st.sampled_from([0.001, 0.003])),
        st.tuples(st.just("fail"), KEYS),
        st.tuples(st.just("turn"), st.integers(1, 3)),
    ),
    max_size=40,
)


@given(ACTIONS, st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_every_add_is_followed_by_a_round_that_begins_after_it(actions: list[Any], workers: int) -> None:
    """Each key's last add is followed by the begin of a round, and rounds of a key never overlap."""
    asyncio.run(_run(actions, workers))


async def _run(actions: list[Any], workers: int) -> None:
    queue: WorkQueue[str] = WorkQueue()
    moment = 0
    added: dict[str, int] = {}
    begun: dict[str, int] = {}
    active: set[str] = set()

    async def worker() -> None:
        nonlocal moment
        while True:
            try:
                key = await queue.get()
            except QueueShutDown:
                return
            assert key not in active
            active.add(key)
            moment += 1
            begun[key] = moment
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            active.remove(key)
            queue.done(key, rest=0.002 if key in "ab" else 0.0)

    tasks = [asyncio.create_task(worker()) for _ in range(workers)]
    for kind, *rest in actions:
        moment += 1
        if kind == "turn":
            for _ in range(rest[0]):
                await asyncio.sleep(0)
            continue
        added[rest[0]] = moment
        if kind == "add":
            queue.add(rest[0])
        elif kind == "later":
            queue.add_after(rest[0], rest[1])
        else:
            queue.add_rate_limited(rest[0])
            queue.forget(rest[0])
    async with asyncio.timeout(5):
        while queue.delayed:
            await asyncio.sleep(0.002)
        await queue.drained()
    assert all(begun[key] > added[key] for key in added)
    queue.shut_down()
    await asyncio.gather(*tasks)


async def test_a_key_added_while_in_work_comes_once_more_and_not_twice() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    assert await queue.get() == "a"
    queue.add("a")
    queue.add("a")
    assert len(queue) == 0  # not given to a second worker
    queue.done("a")
    assert await queue.get() == "a"
    queue.done("a")
    assert len(queue) == 0


async def test_the_earliest_delay_wins() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add_after("a", 30)
    queue.add_after("a", 0.01)
    queue.add_after("a", 20)
    assert await asyncio.wait_for(queue.get(), 1) == "a"
    queue.done("a")
    assert queue.delayed == 0  # and the others are gone: there is one time per key


async def test_failures_grow_the_delay_up_to_the_limit_and_forget_resets(monkeypatch: pytest.MonkeyPatch) -> None:
    queue: WorkQueue[str] = WorkQueue()
    delays = [queue.add_rate_limited("a") for _ in range(14)]
    assert all(later > earlier for earlier, later in pairwise(delays[:9]))
    assert all(delay <= workqueue.BACKOFF_MAX_SECONDS for delay in delays)
    assert queue.failures("a") == 14
    queue.forget("a")
    assert queue.add_rate_limited("a") <= workqueue.BACKOFF_FIRST_SECONDS
    queue.shut_down()


async def test_an_event_is_not_held_up_by_the_back_off() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for _ in range(10):
        queue.add_rate_limited("a")
    queue.add("a")
    assert await asyncio.wait_for(queue.get(), 1) == "a"
    queue.shut_down()


async def test_shut_down_ends_waiting_workers_and_forgets_the_rest() -> None:
    queue: WorkQueue[str] = WorkQueue()
    waiting = [asyncio.create_task(queue.get()) for _ in range(3)]
    await asyncio.sleep(0)
    queue.add("a")
    done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    assert [task.result() for task in done] == ["a"]
    queue.add("b")
    queue.add_after("c", 0.01)
    queue.shut_down()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert sum(isinstance(result, QueueShutDown) for result in results) >= 1
    queue.add("d")
    queue.done("a")
    for key in [result for result in results if result == "b"]:
        queue.done(str(key))
    await asyncio.wait_for(queue.drained(), 1)


async def test_a_cancelled_worker_does_not_take_a_wake_up_with_it() -> None:
    queue: WorkQueue[str] = WorkQueue()
    first, second = asyncio.create_task(queue.get()), asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.add("a")  # wakes the first …
    first.cancel()  # … which goes away before it runs
    assert await asyncio.wait_for(second, 1) == "a"


async def test_what_comes_while_a_key_rests_is_one_round() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    assert await queue.get() == "a"
    queue.done("a", rest=0.05)
    for _ in range(3):
        queue.add("a")
        queue.add("b")
        await asyncio.sleep(0)
    assert await queue.get() == "b"  # others do not wait for it
    assert not len(queue)
    assert await asyncio.wait_for(queue.get(), 5) == "a"
    queue.done("a", rest=0.01)
    queue.done("b")
    await asyncio.sleep(0.05)
    assert not len(queue)  # a rest by itself calls nobody
    queue.add("a")
    assert len(queue) == 1


async def test_a_resting_key_is_forgotten_when_the_queue_closes() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    queue.done(await queue.get(), rest=0.01)
    queue.add("a")
    queue.shut_down()
    await asyncio.sleep(0.05)
    await asyncio.wait_for(queue.drained(), 1)
    with pytest.raises(QueueShutDown):
        await queue.get()
