"""Slurm as the benchmark uses it: the operator's own client, and jobs.

Jobs stand in for users' work: EXTERNAL_JOB placeholders, which occupy their nodes in slurmctld while nothing runs.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from slurm_operator.slurm.client import SlurmClient

from bench.operator.slurm import REST_PORT, Slurm


class _Submitted(msgspec.Struct):
    meta: object = None
    errors: list[object] | None = None
    job_id: int = 0


class BenchSlurm(SlurmClient):
    """Past the counting proxy."""

    def __init__(self, slurm: Slurm) -> None:
        super().__init__(f"http://{slurm.address}:{REST_PORT}", slurm.key)

    async def submit(self, nodes: Sequence[str], name: str = "bench") -> int:
        """One job that takes these nodes whole; returns its id once slurmctld has accepted it."""
        job = {
            "name": name,
            "current_working_directory": "/tmp",
            "environment": ["PATH=/usr/bin:/bin"],
            "flags": ["EXTERNAL_JOB"],
            "required_nodes": list(nodes),
            "nodes": str(len(nodes)),
            "shared": ["none"],
            "time_limit": {"set": True, "number": 60},
        }
        _, data = await self._send("POST", "job/submit", 30, {"job": job})
        return msgspec.json.decode(data, type=_Submitted).job_id

    async def cancel(self, job: int) -> None:
        await self._send("DELETE", f"job/{job}", 30)
