"""What is measured, each as one function from a world to figures. They run in this order and leave N workers behind."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from slurm_operator.kube.resources import Object

from bench.operator.errors import BenchError
from bench.operator.process import Window
from bench.operator.world import NODESET, World, nodeset, quantile

Figures = dict[str, Any]
Measure = Callable[[World], Awaitable[Figures]]
IDLE_SECONDS = 60.0
OUTAGE_SECONDS = 60.0
PATIENCE = 600.0
"""Seconds that any single step may take."""


async def scale_out(world: World) -> Figures:
    """From no NodeSet to N workers in the status."""
    window = Window(world.operator)
    world.proxy.take()
    world.calls.take()
    began = time.monotonic()
    await world.kube.create(nodeset(world.workers))
    await world.until(lambda: len(world.kubelets.created) >= world.workers, "all pods are created", PATIENCE)
    await world.until(lambda: len(world.kubelets.ready_at) >= world.workers, "all pods are ready", PATIENCE)
    last = max(world.kubelets.ready_at.values())
    true = await world.until(lambda: world.status_says(world.workers), "the status tells of all workers", PATIENCE)
    seconds = max(world.kubelets.created.values()) - began
    return {
        "pods_created_seconds": seconds,
        "pods_per_second": world.workers / seconds,
        "all_registered_seconds": last - began,
        "status_after_last_worker_seconds": max(0.0, true - last),
        **await _totals(world, window),
    }


async def idle(world: World) -> Figures:
    """One minute in which nothing happens."""
    await _quiet(world)
    world.proxy.take()
    world.calls.take()
    window = Window(world.operator)
    await asyncio.sleep(IDLE_SECONDS)
    figures = await _totals(world, window)
    return {
        "cpu_seconds_per_minute": figures["cpu_seconds"] * 60 / figures["seconds"],
        "writes_per_minute": figures["api_writes"] * 60 / figures["seconds"],
        "reads_per_minute": figures["api_reads"] * 60 / figures["seconds"],
        "lease_writes_per_minute": figures["api_lease_writes"] * 60 / figures["seconds"],
        "slurm_mb_per_minute": figures["slurm_mb"] * 60 / figures["seconds"],
        "slurm_requests_per_minute": figures["slurm_requests"] * 60 / figures["seconds"],
        "rss_mib": world.operator.rss(),
        "rss_peak_mib": world.operator.peak(),
        "slurmrestd_rss_mib": world.slurmrestd.rss(),
        "calls": figures["api_calls"],
    }


async def job_conditions(world: World) -> Figures:
    """A job starts: until its worker's pod says so. Ten one by one, then one job on a tenth of all workers."""
    await _quiet(world)
    names = sorted(world.kubelets.workers())
    single = []
    for name in random.Random(1).sample(names, min(10, len(names))):
        job = await world.slurm.submit([world.host_of(name)])
        single.append(await _condition(world, [name], True))
        await world.slurm.cancel(job)
        await _condition(world, [name], False)
    many = names[:: max(1, len(names) // max(1, world.workers // 10))]
    job = await world.slurm.submit([world.host_of(name) for name in many])
    bulk = await _condition(world, many, True)
    await world.slurm.cancel(job)
    await _condition(world, many, False)
    return {"p50": quantile(single, 0.5), "p95": quantile(single, 0.95), "bulk": len(many), "bulk_last": bulk}


async def _condition(world: World, names: Sequence[str], busy: bool) -> float:
    began = time.monotonic()

    def shown() -> bool:
        pods = world.kubelets.workers()
        return all(name in pods and _says_busy(pods[name]) == busy for name in names)

    return (
        await world.until(shown, f"the pods of {len(names)} workers show {'a job' if busy else 'no job'}", 120) - began
    )


def _says_busy(pod: Object) -> bool:
    words = ("SlurmNodeStateAllocated", "SlurmNodeStateMixed")
    return any(one["type"] in words and one["status"] == "True" for one in pod["status"].get("conditions") or ())


async def cordon(world: World) -> Figures:
    """Cordon of a Kubernetes node until Slurm has the drain: 20 one by one, then 50 at once."""
    await _quiet(world)
    names = sorted(world.kubelets.workers())
    chosen = random.Random(2).sample(names, min(70, len(names)))
    single = []
    for name in chosen[:20]:
        single += await _drained(world, [name])
        await asyncio.sleep(0.2)
    await _uncordon(world, chosen[:20])
    window = Window(world.operator)
    together = await _drained(world, chosen[20:]) if chosen[20:] else single
    await _uncordon(world, chosen[20:])
    return {
        "p50": quantile(single, 0.5), "p95": quantile(single, 0.95), "count": len(single),
        "at_once_p50": quantile(together, 0.5), "at_once_p95": quantile(together, 0.95),
        "at_once_count": len(together), "cpu_seconds": window.close()["cpu_seconds"],
    }  # fmt: skip


async def _drained(world: World, names: Sequence[str]) -> list[float]:
    """Cordon all at once; seconds from each request until slurmrestd has answered the drain (60 where it never does).

    The proxy sees the answers; that the drains are in effect is checked afterwards, for asking Slurm all the time would
    be the load that is measured.
    """
    pods = world.kubelets.workers()
    machines = {world.host_of(name): world.kubelets.machine_of(pods[name]) for name in names}
    world.proxy.drained.clear()
    began = await asyncio.gather(*(world.cordon(machine, True) for machine in machines.values()))
    with contextlib.suppress(BenchError):
        await world.until(lambda: machines.keys() <= world.proxy.drained.keys(), "all nodes drain", 60)
    for host in machines:
        if host in world.proxy.drained and "DRAIN" not in (await world.slurm.node(host)).states:
            raise BenchError(f"the operator asked for a drain of {host}, but Slurm does not show it")
    seen = world.proxy.drained
    return [seen[host] - start if host in seen else 60.0 for host, start in zip(machines, began, strict=True)]


async def _uncordon(world: World, names: Sequence[str]) -> None:
    pods = world.kubelets.workers()
    for name in names:
        await world.cordon(world.kubelets.machine_of(pods[name]), False)
    for name in names:
        end = time.monotonic() + 60
        while "DRAIN" in (await world.slurm.node(world.host_of(name))).states and time.monotonic() < end:
            await asyncio.sleep(0.1)


async def scale_in(world: World) -> Figures:
    """To a half, while a tenth of the workers runs jobs; then back to N."""
    await _quiet(world)
    job, busy = await _occupy(world)
    window = Window(world.operator)
    world.proxy.take()
    world.calls.take()
    half = world.workers // 2
    world.kubelets.forget_times()
    began = await world.patch_nodeset({"replicas": half})
    gone = await world.until(lambda: len(world.kubelets.workers()) <= half, "half of the pods are gone", PATIENCE)
    true = await world.until(lambda: world.status_says(half), "the status tells of the half", PATIENCE)
    killed = len(busy & set(world.kubelets.deleted))
    figures = {
        "last_pod_gone_seconds": gone - began, "status_seconds": true - began, "busy": len(busy),
        "busy_pods_deleted": killed, **await _totals(world, window),
    }  # fmt: skip
    await world.slurm.cancel(job)
    world.kubelets.forget_times()
    began = await world.patch_nodeset({"replicas": world.workers})
    await world.until(lambda: len(world.kubelets.workers()) == world.workers, "the pods are back", PATIENCE)
    figures["back_pods_per_second"] = (world.workers - half) / (max(world.kubelets.created.values()) - began)
    await world.settle(world.workers, PATIENCE)
    return figures


async def rolling_update(world: World) -> Figures:
    """A change of the template with maxUnavailable 25 %."""
    await _quiet(world)
    old = {pod["metadata"]["uid"] for pod in world.kubelets.workers().values()}
    window = Window(world.operator)
    world.proxy.take()
    world.calls.take()
    world.kubelets.watch_lowest()
    environment = [{"name": "BENCH_REVISION", "value": str(time.time())}]
    began = await world.patch_nodeset({"slurmd": {"image": "none", "env": environment}})

    def replaced() -> bool:
        now = {pod["metadata"]["uid"] for pod in world.kubelets.workers().values()}
        return not now & old and len(world.kubelets.ready) == world.workers

    done = await world.until(replaced, "all workers have the new revision and are ready", PATIENCE)
    true = await world.settle(world.workers, PATIENCE)
    return {
        "seconds": done - began, "status_seconds": true - began, "lowest_ready": world.kubelets.lowest_ready,
        "allowed": world.workers - -(-world.workers // 4), **await _totals(world, window),
    }  # fmt: skip


async def outage(world: World) -> Figures:
    """slurmrestd is gone for a minute in the middle of a scale-in to a half, with a tenth of the workers busy."""
    await _quiet(world)
    job, busy = await _occupy(world)
    half = world.workers // 2
    world.kubelets.forget_times()
    await world.patch_nodeset({"replicas": half})
    await world.until(lambda: len(world.kubelets.deleted) >= world.workers // 20, "the scale-in has begun", PATIENCE)
    await world.proxy.cut()
    await asyncio.sleep(1)
    before = len(world.kubelets.deleted)
    await asyncio.sleep(OUTAGE_SECONDS - 1)
    during = len(world.kubelets.deleted) - before
    await world.proxy.restore()
    back = time.monotonic()
    done = await world.settle(half, PATIENCE)
    killed = len(busy & set(world.kubelets.deleted))
    await world.slurm.cancel(job)
    await world.patch_nodeset({"replicas": world.workers})
    await world.settle(world.workers, PATIENCE)
    return {
        "converged_seconds": done - back, "left_to_delete": half - before, "deleted_while_blind": during,
        "busy": len(busy), "busy_pods_deleted": killed,
    }  # fmt: skip


async def _occupy(world: World) -> tuple[int, set[str]]:
    """One job on a random tenth of the workers, running and seen by the operator or not: (its id, their pods)."""
    names = sorted(world.kubelets.workers())
    busy = set(random.Random(3).sample(names, max(1, len(names) // 10)))
    job = await world.slurm.submit([world.host_of(name) for name in busy])
    first = world.host_of(next(iter(busy)))
    end = time.monotonic() + 30
    while "ALLOCATED" not in (await world.slurm.node(first)).states and time.monotonic() < end:
        await asyncio.sleep(0.05)
    return job, busy


async def _quiet(world: World) -> None:
    """Until the operator has written nothing but its Lease for five seconds (at most a minute)."""
    world.calls.take()
    still = 0
    for _ in range(60):
        await asyncio.sleep(1)
        still = 0 if world.calls.take()["writes"] else still + 1
        if still >= 5:
            return
    world.say("the operator goes on writing; measured all the same")


async def _totals(world: World, window: Window) -> Figures:
    """What the operator used since the window opened."""
    figures: Figures = dict(window.close())
    await asyncio.sleep(0.6)  # the audit log is written in batches
    calls, slurm = world.calls.take(), world.proxy.take()
    totals = {name: calls.pop(name, 0) for name in ("reads", "writes", "lease writes")}
    return figures | {
        "api_reads": totals["reads"], "api_writes": totals["writes"], "api_lease_writes": totals["lease writes"],
        "api_calls": dict(calls), "slurm_requests": slurm.total, "slurm_mb": slurm.received / 1e6,
        "slurm_calls": dict(slurm.requests), "rss_mib": world.operator.rss(),
    }  # fmt: skip


ALL: dict[str, Measure] = {
    "scale-out": scale_out,
    "idle": idle,
    "jobs": job_conditions,
    "cordon": cordon,
    "scale-in": scale_in,
    "rolling-update": rolling_update,
    "outage": outage,
}
__all__ = ["ALL", "NODESET", "Figures"]
