"""What a NodeSet's plan does about drains: in Slurm, with jobs whose time is up, and on Kubernetes nodes."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from slurm_operator.api.names import ANNOTATION_CORDONED_FOR
from slurm_operator.desired.drain import Policy, still_busy
from slurm_operator.desired.maintenance import Window, change
from slurm_operator.desired.scale import Plan, Worker
from slurm_operator.errors import Unknown
from slurm_operator.kube.errors import Conflict, Forbidden, NotFound, TooLate
from slurm_operator.kube.objects import annotations_of
from slurm_operator.kube.resources import Key, Object
from slurm_operator.slurm.client import REQUEUE_WORKS
from slurm_operator.slurm.errors import SlurmError, SlurmNotFound
from slurm_operator.slurm.jobs import is_active
from slurm_operator.slurm.registry import SlurmCluster
from slurm_operator.slurm.states import PREFIX, ours
from slurm_operator.slurm.types import JobInfo, NodeInfo

if TYPE_CHECKING:
    from slurm_operator.controllers.nodeset import NodeSetController

AT_ONCE = 32
"""Calls under way at a time."""


class DrainSteps:
    """One pass over one NodeSet: `pods` by name as planned from, `slurm` None when there is no way to ask."""

    def __init__(
        self,
        controller: NodeSetController,
        key: Key,
        nodeset: Object,
        pods: Mapping[str, Object],
        slurm: SlurmCluster | None,
    ) -> None:
        self._do = controller
        self._key = key
        self._nodeset = nodeset
        self._pods = pods
        self._slurm = slurm
        self._drained: set[str] = set()
        """Slurm nodes that this pass drained."""

    async def drains(self, plan: Plan) -> None:
        """Undo what has no cause any more, then drain. An administrator may have come first: look before each."""
        if not plan.undrain and not plan.drain:
            return
        slurm = self._asked()
        now = await slurm.cache.read_now([*plan.undrain, *plan.drain])
        back = [name for name in plan.undrain if _draining_by_us(now[name])]
        await slurm.client.update_nodes(back, state="UNDRAIN")
        by_reason: dict[str, list[str]] = {}
        for name, reason in plan.drain.items():
            node = now[name]
            if node is not None and ("DRAIN" not in node.states or (ours(node.reason) and node.reason != reason)):
                by_reason.setdefault(reason, []).append(name)
        await gather_all(
            slurm.client.update_nodes(names, state="DRAIN", reason=reason) for reason, names in by_reason.items()
        )
        self._drained.update(*by_reason.values())
        for reason, names in by_reason.items():
            self._event("NodeCordon", f"Slurm stops using {', '.join(names)}: {reason}")
        if back or by_reason:
            slurm.cache.poke()

    async def requeue(self, plan: Plan, policy: Policy) -> list[str]:
        """Put jobs that were waited for long enough back into the queue; returns what to say about those that stay."""
        if not plan.requeue:
            return []
        slurm = self._asked()
        now = await slurm.cache.read_now(plan.requeue)
        told: list[str] = []
        for name, force in plan.requeue.items():
            node = now[name]
            if node is None or not still_busy(node):
                continue
            jobs = [job for job in await self._jobs_on(slurm, name) if "COMPLETING" not in job.states]
            if force:
                await self._down(slurm, node, jobs)
            else:
                told += await self._requeue_on(slurm, node, jobs, policy)
        slurm.cache.poke()
        return told

    async def _jobs_on(self, slurm: SlurmCluster, node: str) -> list[JobInfo]:
        """The jobs of a node, as Slurm says at this moment. Those that began after the drain cannot exist."""
        found = await asyncio.gather(*(_job(slurm, job.id) for job in slurm.cache.book.by_node.get(node, ())))
        return [job for job in found if job is not None and is_active(job.states) and node in job.nodes]

    async def _requeue_on(self, slurm: SlurmCluster, node: NodeInfo, jobs: list[JobInfo], policy: Policy) -> list[str]:
        stuck = [job for job in jobs if not job.requeueable]
        if policy.cancel:
            for job in stuck:
                await slurm.client.cancel_job(job.id)
                note = f"Job {job.id} of {_user(job)} on {node.name} cannot be requeued: cancelled"
                self._event("JobCancelled", note)
            stuck = []
        one_by_one = slurm.client.version is not None and slurm.client.version >= REQUEUE_WORKS
        done, refused = [], []
        for job in jobs if one_by_one else ():
            if job.requeueable:
                try:
                    await slurm.client.requeue_job(job.id)
                    done.append(job)
                except SlurmError as error:
                    refused.append(f"Slurm does not requeue job {job.id} on {node.name}: {error.description}")
        if not one_by_one and jobs and not stuck:
            await self._down(slurm, node, jobs)
        if done:
            ids = ", ".join(str(job.id) for job in done)
            self._event("JobsRequeued", f"Requeued what ran on {node.name} (jobs {ids}): the time for it is up")
        # Jobs that cannot be requeued are waited for, and it is said which they are.
        return refused + [f"job {job.id} of {_user(job)} on {node.name} cannot be requeued" for job in stuck]

    async def _down(self, slurm: SlurmCluster, node: NodeInfo, jobs: list[JobInfo]) -> None:
        """Set the node DOWN: Slurm then requeues its jobs, or ends those that cannot be. Its reason stays."""
        await slurm.client.update_nodes([node.name], state="DOWN", reason=node.reason or f"{PREFIX}jobs requeued")
        told = ", ".join(f"{job.id}{'' if job.requeueable else ' (ended: it cannot be requeued)'}" for job in jobs)
        self._event("JobsRequeued", f"{node.name} is DOWN, so that Slurm requeues its jobs: {told or 'none is known'}")

    async def maintenance(self, window: Window | None, nodes: list[str], name: str) -> str:
        """Make, change or delete the reservation of updateStrategy ScheduledUpdate; returns why Slurm refused."""
        slurm = self._asked()
        found = [one for one in await slurm.client.reservations() if one.name == name]
        todo = change(window, nodes, found[0] if found else None, time.time())
        try:
            if todo in ("delete", "replace"):
                with suppress(SlurmNotFound):
                    await slurm.client.delete_reservation(name)
            if window is not None and todo in ("create", "replace"):
                await slurm.client.create_reservation(
                    name,
                    nodes=sorted(nodes),
                    users=["slurm"],
                    start=window.start,
                    minutes=window.minutes,
                    flags=window.flags,
                )
                self._event("ReservationCreated", f"Slurm reservation {name} holds {', '.join(sorted(nodes))}")
            if todo == "nodes":
                await slurm.client.move_reservation(name, sorted(nodes))
        except SlurmError as error:
            return error.description
        if todo:
            slurm.cache.poke()
        return ""

    async def let_go(self, plan: Plan) -> None:
        """Delete pods of a deleted NodeSet without asking Slurm, and say so."""
        if not plan.let_go:
            return
        names = ", ".join(sorted(worker.name for worker in plan.let_go))
        busy = [worker for worker in plan.let_go if worker.started and worker.placed]
        if busy:
            self._event("DrainGivenUp", f"Not waiting any longer for the jobs of {names}", warning=True)
        await gather_all(self._delete(worker) for worker in plan.let_go)

    async def machines(self, cordon: Mapping[str, str], undo: Iterable[str]) -> str:
        """Cordon Kubernetes nodes that an administrator drained in Slurm, uncordon those; returns what went wrong."""
        try:
            for name, cause in cordon.items():
                await self._machine(name, {"unschedulable": True}, cause)
                self._event("MachineCordoned", f"Cordoned Kubernetes node {name}: Slurm node {_last(cause)} is drained")
            for name in undo:
                # Uncordoned by hand before: then only our mark goes.
                await self._machine(name, {"unschedulable": None}, None)
                self._event("MachineUncordoned", f"Kubernetes node {name} may be used again: its drain is undone")
        except Forbidden as error:
            return f"cannot cordon Kubernetes nodes: {error.message}; set cordonKubernetesNodes in the operator's chart"
        return ""

    async def _machine(self, name: str, spec: Object, cause: str | None) -> None:
        node = self._do.nodes.get("", name)
        if node is None or (cause is None and not annotations_of(node).get(ANNOTATION_CORDONED_FOR)):
            return
        meta = {"uid": node["metadata"]["uid"], "annotations": {ANNOTATION_CORDONED_FOR: cause}}
        try:
            await self._do.patch(self._key, node, {"metadata": meta, "spec": spec})
        except (Conflict, NotFound):
            self._do.enqueue(self._key, 1.0)

    async def _delete(self, worker: Worker, begin_by: float = math.inf) -> None:
        pod = self._pods[worker.name]
        try:
            # A pod that was placed on a machine, or started, since it was read is not the pod that was decided on.
            unchanged = not (worker.placed and worker.started)
            await self._do.delete(self._key, pod, unchanged=unchanged, begin_by=begin_by)
        except (Conflict, NotFound, TooLate):
            self._do.enqueue(self._key, 0.5)

    def _asked(self) -> SlurmCluster:
        if self._slurm is None:
            raise Unknown("there is no way to ask Slurm")
        return self._slurm

    def _event(self, reason: str, note: str, *, warning: bool = False) -> None:
        self._do.events.event(self._nodeset, "Warning" if warning else "Normal", reason, note)


async def _job(slurm: SlurmCluster, number: int) -> JobInfo | None:
    try:
        return await slurm.client.job(number)
    except SlurmNotFound:
        return None


def _user(job: JobInfo) -> str:
    """slurmctld need not know the users' names."""
    return job.user or f"uid {job.uid}"


def _draining_by_us(node: NodeInfo | None) -> bool:
    return node is not None and "DRAIN" in node.states and ours(node.reason)


def _last(cause: str) -> str:
    return cause.rpartition("/")[2]


async def gather_all(calls: Iterable[Awaitable[object]], at_once: int = AT_ONCE) -> None:
    """All of them, some at a time. After a failure no more are begun; it is raised when those under way have ended."""
    limit = asyncio.Semaphore(at_once)
    failed: list[BaseException] = []

    async def one(call: Awaitable[object]) -> None:
        async with limit:
            if failed:
                if asyncio.iscoroutine(call):
                    call.close()
                return
            try:
                await call
            except BaseException as error:
                failed.append(error)
                raise

    await asyncio.gather(*(one(call) for call in calls), return_exceptions=True)
    if failed:
        raise failed[0]
