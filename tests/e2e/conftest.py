"""A whole local cloud of its own for the end-to-end tests: brought up by the same command as a user's."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.clusters import own_instance

REPOSITORY = Path(__file__).resolve().parents[2]
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass
class Cloud:
    """One instance, driven by `./slipway` in processes of its own, as a person would."""

    instance: str
    net: int
    first_up: str = ""
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "SLIPWAY_INSTANCE": self.instance, "SLIPWAY_NET": str(self.net)}

    @property
    def state(self) -> Path:
        return Path(f"/var/lib/slipway/{self.instance}")

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command in a process group of its own and do not wait for it."""
        process = subprocess.Popen(
            [str(REPOSITORY / "slipway"), *arguments],
            cwd=REPOSITORY, env=self.environment, text=True, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self.started.append(process)
        return process

    def run(self, *arguments: str, ok: bool = True, timeout: float = 600) -> str:
        """Run a command and return what it printed. ok: whether it must succeed (True) or fail (False)."""
        process = self.start(*arguments)
        output = ANSI.sub("", process.communicate(timeout=timeout)[0])
        assert (process.returncode == 0) is ok, f"{arguments} ended with {process.returncode}:\n{output[-6000:]}"
        return output

    def end_started(self) -> None:
        """Kill the commands that still run, as they do when a test was interrupted."""
        for process in self.started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()

    def kubectl(self, *arguments: str, ok: bool = True) -> str:
        # Not by way of ./slipway: its start is most of the time of a short command that tests repeat.
        done = subprocess.run(
            ["kubectl", *arguments], env={**os.environ, "KUBECONFIG": str(self.state / "kubeconfig")},
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert (done.returncode == 0) is ok, f"kubectl {arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    def get(self, *arguments: str) -> Any:
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))

    def login(self, command: str) -> str:
        """Run a shell command as alice on the login node."""
        pods = self.get("pods", "-n", "slurm", "-l", "app.kubernetes.io/name=login")["items"]
        name = next(p["metadata"]["name"] for p in pods if p["status"]["phase"] == "Running")
        return self.kubectl("exec", "-n", "slurm", name, "-c", "login", "--", "su", "-", "alice", "-c", command)

    def pid_of(self, daemon: str) -> int:
        """The process id of one of the instance's daemons; each runs in a control group of its own."""
        group = next(Path("/sys/fs/cgroup").glob(f"*/slipway-{self.instance}/{daemon}"))
        return int((group / "cgroup.procs").read_text().split()[0])


def wait_until(true: Callable[[], object], what: str, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"not so after {seconds:.0f} s: {what}"
        time.sleep(0.5)


@contextmanager
def own_cloud() -> Iterator[Cloud]:
    """A cloud of nobody else's, not up yet. At the end it is brought down, and must have left nothing behind."""
    with own_instance() as inst:
        cloud = Cloud(inst.name, inst.net)
        try:
            yield cloud
        finally:
            cloud.end_started()
        cloud.run("down")
        assert list(cloud.state.parent.glob(f"*{cloud.instance}*")) == []


@pytest.fixture(scope="package")
def cloud() -> Iterator[Cloud]:
    with own_cloud() as cloud:
        cloud.first_up = cloud.run("up", timeout=1800)
        yield cloud


@pytest.fixture
def empty_cloud() -> Iterator[Cloud]:
    """A cloud that is not up."""
    with own_cloud() as cloud:
        yield cloud
