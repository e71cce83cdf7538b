"""Two operator processes on a real API server: one acts at a time, whatever happens to the other."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from slurm_operator.kube.auth import load_access
from slurm_operator.kube.client import KubeClient
from slurm_operator.kube.resources import CONFIGMAPS, EVENTS, LEASES, Resource

from localcloud.paths import Instance

pytestmark = pytest.mark.cluster

PROBE = Path(__file__).parent.parent / "support" / "probe.py"
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)


class Candidate:
    """One process; its stdout and stderr go to files."""

    def __init__(
        self, folder: Path, kubeconfig: Path, namespace: str, identity: str, times: tuple[str, str, str]
    ) -> None:
        self.out = folder / f"{identity}.out"
        self.err = folder / f"{identity}.err"
        source = Path(__file__).parents[2] / "src"
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, str(PROBE), str(kubeconfig), namespace, identity, *times],
                stdout=out,
                stderr=err,
                env={**os.environ, "PYTHONPATH": str(source)},
            )

    def log(self) -> str:
        return self.err.read_text()

    def writes(self) -> list[str]:
        return [line for line in self.out.read_text().splitlines() if line.startswith("wrote")]

    @property
    def leading(self) -> bool:
        return "leading as" in self.log()


@pytest.fixture
def start(tmp_path: Path, control_plane: Instance) -> Iterator[Callable[..., Candidate]]:
    started: list[Candidate] = []

    def launch(namespace: str, identity: str, *times: str) -> Candidate:
        one = Candidate(tmp_path, control_plane.kubeconfig, namespace, identity, times or ("4", "3", "0.5"))  # type: ignore[arg-type]
        started.append(one)
        return one

    yield launch
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
        one.process.wait()


@pytest.fixture
async def real(control_plane: Instance) -> AsyncIterator[KubeClient]:
    async with KubeClient(load_access(control_plane.kubeconfig)) as client:
        yield client


async def namespace(real: KubeClient, name: str) -> str:
    await real.send(
        "create", NAMESPACES, "", "",
        body=f'{{"apiVersion":"v1","kind":"Namespace","metadata":{{"name":"{name}"}}}}'.encode(),
    )  # fmt: skip
    return name


async def say(real: KubeClient, space: str, value: str) -> None:
    meta = {"name": "c", "namespace": space, "labels": {"probe": "yes"}}
    await real.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"value": value}}, "test")


async def seen(real: KubeClient, space: str) -> tuple[str, str, str]:
    found = await real.get(CONFIGMAPS, space, "c-seen")
    data = (found or {}).get("data") or {}
    return data.get("of", ""), data.get("by", ""), data.get("count", "")


async def until(true: Callable[[], bool], seconds: float = 30.0) -> None:
    async with asyncio.timeout(seconds):
        while not true():
            await asyncio.sleep(0.02)


async def until_seen(real: KubeClient, space: str, wanted: tuple[str, str, str]) -> None:
    async with asyncio.timeout(30):
        while await seen(real, space) != wanted:
            await asyncio.sleep(0.02)


async def test_hand_over_by_kill_and_by_a_clean_stop(real: KubeClient, start: Callable[..., Candidate]) -> None:
    space = await namespace(real, "handover")
    await say(real, space, "1")
    first = start(space, "first")
    await until_seen(real, space, ("1", "first", "1"))
    second = start(space, "second")
    await until(lambda: "first is leading" in second.log())

    first.process.send_signal(signal.SIGKILL)
    await say(real, space, "2")
    await until_seen(real, space, ("2", "second", "2"))

    third = start(space, "third")
    await until(lambda: "second is leading" in third.log())
    second.process.send_signal(signal.SIGTERM)
    assert second.process.wait(10) == 0
    lease = await real.get(LEASES, space, "slurm-operator")
    assert lease is not None
    assert lease["spec"]["holderIdentity"] in ("", "third")  # released, or taken since
    await say(real, space, "3")
    await until_seen(real, space, ("3", "third", "3"))
    third.process.send_signal(signal.SIGTERM)
    assert third.process.wait(10) == 0
    assert third.writes() == ["wrote handover/c 3 3"]
    events = await real.list(EVENTS, space)
    notes = {event["note"] for event in events.items if event["reason"] == "Copied"}
    assert "value '3'" in notes  # events are written out on a clean stop


async def test_a_suspended_leader_does_nothing_when_it_wakes_up(
    real: KubeClient, start: Callable[..., Candidate]
) -> None:
    space = await namespace(real, "suspended")
    await say(real, space, "1")
    first = start(space, "first")
    await until_seen(real, space, ("1", "first", "1"))
    second = start(space, "second")
    await until(lambda: "first is leading" in second.log())
    first.process.send_signal(signal.SIGSTOP)
    await until(lambda: second.leading)
    # The first finds work as soon as it wakes: a change it has not seen, and it still believes to lead.
    await say(real, space, "2")
    first.process.send_signal(signal.SIGCONT)
    await until_seen(real, space, ("2", "second", "2"))
    assert first.process.wait(10) == 1
    assert first.writes() == ["wrote suspended/c 1 1"]
    assert "second holds the lease" in first.log() or "not renewed" in first.log()


async def test_an_operator_without_an_api_server_says_so_and_goes_on(tmp_path: Path) -> None:
    config = tmp_path / "kubeconfig"
    config.write_text(
        "current-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n"
        "clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\nusers: [{name: u, user: {}}]\n"
    )
    one = Candidate(tmp_path, config, "ns", "alone", ("4", "3", "0.5"))
    try:
        await until(lambda: "cannot follow configmaps" in one.log())
        one.process.send_signal(signal.SIGTERM)
        assert one.process.wait(10) == 0
    finally:
        one.process.kill()
        one.process.wait()
