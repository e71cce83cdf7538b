"""Jobs side by side: what starts when, what is told, and that nothing stays behind however the run ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from localcloud.paths import REPOSITORY
from tests.parallel import Job, Outcome, run


def shell(name: str, script: str, weight: int = 0) -> Job:
    return Job(name, ("bash", "-c", script), weight)


def run_all(jobs: list[Job], at_once: int = 4, budget: int = 4) -> dict[str, tuple[int, str]]:
    """Exit code and output by name."""
    told: dict[str, tuple[int, str]] = {}

    def ended(outcome: Outcome, text: bytes) -> None:
        told[outcome.job.name] = (outcome.code, text.decode())

    outcomes = run(jobs, at_once, budget, os.environ, ended)
    assert [one.job.name for one in outcomes] == list(told)
    return told


def eventually(check: Callable[[], object], what: str) -> None:
    end = time.monotonic() + 30
    while not check():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def test_each_output_is_in_one_piece_with_its_exit_code() -> None:
    told = run_all([shell("good", "echo one; sleep 0.2; echo two"), shell("bad", "echo oops >&2; exit 3"),
                    shell("killed", "kill -9 $$")])  # fmt: skip
    assert told == {"good": (0, "one\ntwo\n"), "bad": (3, "oops\n"), "killed": (-9, "")}


def test_jobs_run_side_by_side_but_not_more_than_allowed(tmp_path: Path) -> None:
    meet = f"cd {tmp_path}; touch $0; until [ -e a ] && [ -e b ]; do sleep 0.05; done; ls | wc -l; sleep 0.3"
    jobs = [Job(name, ("bash", "-c", meet, name)) for name in ("a", "b")]
    told = run_all([*jobs, shell("c", f"touch {tmp_path}/c")], at_once=2)
    assert told["a"] == told["b"] == (0, "2\n")
    assert list(told)[-1] == "c"


def test_weights_share_the_budget_and_light_jobs_overtake(tmp_path: Path) -> None:
    # Each heavy one finds itself alone, and ends once the light one, which is last in the list, has run.
    wait = f"for _ in {{1..400}}; do [ ! -e {tmp_path}/light ] || break; sleep 0.05; done; [ -e {tmp_path}/light ]"
    alone = f"mkdir {tmp_path}/busy && {wait} && sleep 0.2 && rmdir {tmp_path}/busy"
    heavy = [shell(f"heavy{number}", alone, weight) for number, weight in enumerate((3, 2, 9))]
    told = run_all([*heavy, shell("light", f"touch {tmp_path}/light")], budget=4)
    assert {name: code for name, (code, _) in told.items()} == dict.fromkeys(("heavy0", "heavy1", "heavy2", "light"), 0)


RUNNER = """
import os, sys
from tests.parallel import Interrupted, Job, run
try:
    run([Job("job", ("bash", "-c", sys.argv[1])), Job("next", ("touch", "next"))], 1, 1, os.environ,
        lambda outcome, text: print(outcome.job.name, outcome.code, text.decode(), end="", flush=True))
except Interrupted as error:
    print("interrupted by", error.args[0])
"""
CAREFUL = "trap 'sleep 0.3; rm here; echo cleaned up; exit 5' INT; touch here; sleep 60 & echo $! >child; wait"
STUBBORN = "trap '' INT; touch here; sleep 60 & echo $! >child; wait"


def start(folder: Path, script: str) -> subprocess.Popen[str]:
    """A run of one job and another after it; returns when the job is under way."""
    process = subprocess.Popen(
        [sys.executable, "-c", RUNNER, script], cwd=folder, text=True, stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    eventually(lambda: (folder / "child").exists() and (folder / "child").read_text(), "the job runs")
    return process


def child_is_gone(folder: Path) -> bool:
    status = Path(f"/proc/{(folder / 'child').read_text().strip()}/status")
    try:
        return "State:\tZ" in status.read_text()
    except OSError:
        return True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_run_lets_its_jobs_clean_up(tmp_path: Path, number: signal.Signals) -> None:
    process = start(tmp_path, CAREFUL)
    process.send_signal(number)
    output, _ = process.communicate(timeout=30)
    assert output == f"job 5 cleaned up\ninterrupted by {number.value}\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["child"]
    assert child_is_gone(tmp_path)


def test_the_second_signal_kills(tmp_path: Path) -> None:
    process = start(tmp_path, STUBBORN)
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=30)
    assert output == "job -9 interrupted by 2\n"
    eventually(lambda: child_is_gone(tmp_path), "its children die with it")


def test_jobs_of_a_run_that_was_killed_are_interrupted(tmp_path: Path) -> None:
    process = start(tmp_path, CAREFUL.replace("rm here", "rm here; kill $(cat child)"))
    process.kill()
    process.communicate(timeout=30)
    eventually(lambda: not (tmp_path / "here").exists(), "the job cleans up")
