"""Which jobs run on which node, and until when: read job by job as they appear.

The list of all jobs costs 14 kB each, the list of their states 80 bytes. So the states tell which jobs began, and only
those are read in detail; again when their end comes near, for limits can be extended, and now and then otherwise.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping

from slurm_operator.slurm.client import SlurmClient
from slurm_operator.slurm.errors import SlurmException
from slurm_operator.slurm.types import JobInfo, JobState

ACTIVE = frozenset({"RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "STOPPED", "SIGNALING", "STAGE_OUT"})
SINGLE_READS = 64  # above it one list is cheaper than so many single reads
AGAIN_SECONDS = 1800.0
NEAR_SECONDS = 60.0
AGAIN_AT_ONCE = 8


def is_active(states: frozenset[str]) -> bool:
    """The job holds nodes."""
    return bool(states & ACTIVE)


def ends_at(job: JobInfo) -> float:
    """When its time limit ends, in UNIX seconds; infinite where it has none, or where that is not known."""
    if job.limit.infinite:
        return math.inf
    end = job.end.value()
    return float(end) if end else math.inf


class JobBook:
    """The running jobs of one cluster, kept up by `update` after each look at the job states."""

    def __init__(self, client: SlurmClient) -> None:
        self.by_node: Mapping[str, tuple[JobInfo, ...]] = {}
        self._client = client
        self._jobs: dict[str, tuple[JobInfo, float]] = {}  # by the id that Slurm shows; with when it was read

    def deadlines(self) -> dict[str, float]:
        """Node -> when the last of its jobs ends at the latest; infinite where one has no limit."""
        return {node: max(map(ends_at, jobs)) for node, jobs in self.by_node.items()}

    async def update(self, states: Mapping[str, JobState]) -> frozenset[str]:
        """Follow the job states; returns the nodes whose jobs changed. A job that cannot be read is tried again."""
        active = {job.id for job in states.values() if is_active(job.states)}
        known = {name: entry for name, entry in self._jobs.items() if name in active}
        read = await self._read(active - set(known), self._due(known))
        if not read and len(known) == len(self._jobs):
            return frozenset()
        now = time.monotonic()
        self._jobs = known | {name: (job, now) for name, job in read.items()}
        before, after = self.by_node, self._grouped()
        self.by_node = after
        return frozenset(node for node in {*before, *after} if before.get(node) != after.get(node))

    def _due(self, known: Mapping[str, tuple[JobInfo, float]]) -> list[str]:
        """Jobs to read again, the longest unread first."""
        now, wall = time.monotonic(), time.time()
        due = [
            (read, name)
            for name, (job, read) in known.items()
            if now - read > AGAIN_SECONDS or (ends_at(job) < wall + NEAR_SECONDS and now - read > NEAR_SECONDS)
        ]
        return [name for _, name in sorted(due)[:AGAIN_AT_ONCE]]

    async def _read(self, new: set[str], due: list[str]) -> dict[str, JobInfo]:
        if len(new) > SINGLE_READS:
            try:
                listed = {job.id: job for job in await self._client.jobs()}
            except SlurmException:
                return {}
            return {name: listed[number] for name in new if (number := number_of(name)) in listed}
        names = [*new, *due]
        found = await asyncio.gather(*(self._one(name) for name in names))
        return {name: job for name, job in zip(names, found, strict=True) if job is not None}

    async def _one(self, name: str) -> JobInfo | None:
        number = number_of(name)
        if number is None:
            return None
        try:
            return await self._client.job(number)
        except SlurmException:
            return None  # it ended in between, or the next poll says what is the matter

    def _grouped(self) -> dict[str, tuple[JobInfo, ...]]:
        groups: dict[str, list[JobInfo]] = {}
        for job, _ in self._jobs.values():
            for node in job.nodes if is_active(job.states) else ():
                groups.setdefault(node, []).append(job)
        return {node: tuple(sorted(jobs, key=lambda job: job.id)) for node, jobs in groups.items()}


def number_of(name: str) -> int | None:
    """Number of a job that holds nodes: Slurm shows array tasks as "7_3", where 7 is the task's own number then."""
    head = name.partition("_")[0].partition("+")[0]
    return int(head) if head.isdigit() else None
