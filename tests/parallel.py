"""Runs commands as jobs, several at a time, and shows the output of each in one piece."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

GRACE = 120.0
"""Seconds that jobs may take to clean up after an interrupt, before they are killed."""


class Interrupted(Exception):
    """A signal ended the run. Its number is the argument."""


@dataclass(frozen=True)
class Job:
    """A command to run. weight: how much it takes of what is scarce, out of the run's budget (0: nothing)."""

    name: str
    command: tuple[str, ...]
    weight: int = 0


@dataclass(frozen=True)
class Outcome:
    """A job that has ended. seconds: wall time. code: its exit code, negative for a signal."""

    job: Job
    code: int
    seconds: float


class _Running:
    """A job under way, in a session of its own: it can be signalled with all it started."""

    def __init__(self, job: Job, environment: Mapping[str, str]) -> None:
        self.job = job
        self.began = time.monotonic()
        self.output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (lives as long as the job)
        # When this process dies however hard, the job is interrupted as by Ctrl-C and cleans up.
        setpriv = shutil.which("setpriv")
        guard = (setpriv, "--pdeathsig", "INT", "--") if setpriv else ()
        self.process = subprocess.Popen(
            [*guard, *job.command], stdin=subprocess.DEVNULL, stdout=self.output, stderr=subprocess.STDOUT,
            env=dict(environment), start_new_session=True,
        )  # fmt: skip

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def has_ended(self) -> bool:
        """Whether the job's own process has ended; whatever it left in its process group is killed then."""
        if self.process.returncode is None:
            if os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return False
            self.send(signal.SIGKILL)  # before it is reaped: until then the group's number is nobody else's
            self.process.wait()
        return True

    def send(self, number: signal.Signals) -> None:
        if self.process.returncode is None:
            os.killpg(self.process.pid, number)

    def text(self) -> bytes:
        self.output.seek(0)
        return self.output.read()


def run(
    jobs: Sequence[Job],
    at_once: int,
    budget: int,
    environment: Mapping[str, str],
    ended: Callable[[Outcome, bytes], None],
) -> list[Outcome]:
    """Run all jobs, at most `at_once` at a time, and return how they ended, in the order in which they did.

    They start in the order given, but one whose weight does not fit into what is left of `budget` is overtaken; one
    that is heavier than the whole budget runs while no other with a weight does. `ended` is called with each outcome
    and all that the job wrote. Raises Interrupted at SIGINT, SIGTERM or SIGHUP, once every job has cleaned up and
    ended; a second signal kills them.
    """
    waiting, running, done = list(jobs), list[_Running](), list[Outcome]()

    def collect() -> None:
        for one in [one for one in running if one.has_ended()]:
            running.remove(one)
            done.append(Outcome(one.job, one.process.returncode, one.seconds))
            ended(done[-1], one.text())
            one.output.close()

    with _signals() as caught:
        try:
            while waiting or running:
                while len(running) < at_once and (job := _next(waiting, running, budget)):
                    waiting.remove(job)
                    running.append(_Running(job, environment))
                time.sleep(0.05)
                collect()
                if caught:
                    raise Interrupted(caught[0])
        finally:
            for one in running:
                one.send(signal.SIGINT)
            deadline, before = time.monotonic() + GRACE, len(caught)
            while running and time.monotonic() < deadline and len(caught) == before:
                time.sleep(0.05)
                collect()
            for one in running:
                one.send(signal.SIGKILL)
                one.process.wait()
            collect()
    return done


def _next(waiting: Sequence[Job], running: Sequence[_Running], budget: int) -> Job | None:
    taken = sum(one.job.weight for one in running)
    return next((job for job in waiting if not job.weight or not taken or taken + job.weight <= budget), None)


@contextmanager
def _signals() -> Iterator[list[int]]:
    """The signals that were sent to end this process meanwhile; they only take effect where the list is looked at."""
    caught: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, lambda number, frame: caught.append(number)) for number in numbers}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def show(title: str, text: bytes) -> None:
    """One job's output in one piece."""
    sys.stdout.write(f"\n== {title}\n")
    sys.stdout.flush()
    sys.stdout.buffer.write(text.strip(b"\n") + b"\n" if text.strip() else b"")
    sys.stdout.flush()
