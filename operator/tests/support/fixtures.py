"""Fixtures of the operator's tests: stand-ins that speak real HTTP and fail on demand, and a real control plane."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from slurm_operator.kube.auth import Access
from slurm_operator.kube.client import KubeClient
from slurm_operator.slurm.client import SlurmClient

from support.faulty_apiserver import FaultyApiServer
from support.faulty_slurmrestd import FaultySlurmrestd
from tests.clusters import control_plane

__all__ = ["control_plane"]


@pytest.fixture
async def api() -> AsyncIterator[FaultyApiServer]:
    async with FaultyApiServer() as server:
        yield server


@pytest.fixture
async def kube(api: FaultyApiServer) -> AsyncIterator[KubeClient]:
    async with KubeClient(Access(api.url)) as client:
        yield client


@pytest.fixture
async def slurmrestd() -> AsyncIterator[FaultySlurmrestd]:
    async with FaultySlurmrestd() as server:
        yield server


@pytest.fixture
async def slurm(slurmrestd: FaultySlurmrestd) -> AsyncIterator[SlurmClient]:
    client = SlurmClient(slurmrestd.url, slurmrestd.key)
    yield client
    await client.close()
