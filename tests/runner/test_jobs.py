"""The list of all checks: no test is forgotten or run twice, what fails is named, and nothing is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from localcloud.kubernetes import cluster, inotify
from localcloud.paths import REPOSITORY
from tests import jobs
from tests.clusters import instance_of, own_instance, remove_abandoned
from tests.parallel import Job, Outcome, run


def test_every_test_file_is_in_exactly_one_job() -> None:
    found = (path.relative_to(REPOSITORY) for path in REPOSITORY.rglob("test_*.py"))
    files = [str(path) for path in found if not any(part.startswith(".") for part in path.parts)]
    assert files
    paths = [path for target in jobs.targets() for path in target]
    for file in files:
        folder = str(Path(file).parent)
        assert len([path for path in paths if path in (file, folder)]) == 1, file


def test_what_is_named_in_the_list_exists() -> None:
    named = {*jobs.FILE_BY_FILE, *jobs.ROOM, *(path for group in jobs.TOGETHER for path in group)}
    assert [path for path in sorted(named) if not (REPOSITORY / path).exists()] == []


def test_a_new_folder_is_a_job_that_may_start_a_cluster(tmp_path: Path) -> None:
    for name in ("tests/new/test_a.py", "tests/new/test_b.py", "operator/tests/kube/test_c.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    new, group = jobs.targets(tmp_path)
    assert new == ("tests/new",)
    assert "tests/charts" in group
    assert jobs.pytest_job(new, tmp_path).weight == jobs.CLUSTER


def test_with_the_usual_limit_two_clouds_and_a_small_cluster_run_beside_a_user_s_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inotify, "limit", lambda: 128)
    for free in (128, 128 - jobs.CLUSTER):
        monkeypatch.setattr(inotify, "free", lambda enough, free=free: min(free, enough))
        assert jobs.budget() >= 2 * jobs.CLUSTER + jobs.ROOM["tests/k8s_provider"]
    assert max(jobs.ROOM.values()) <= jobs.budget()


def test_the_longest_job_is_first_and_an_unknown_one_before_it() -> None:
    known = [Job(name, ()) for name in ("short", "new", "long")] + [Job("new cluster", (), 1)]
    order = ["new cluster", "new", "long", "short"]
    assert [job.name for job in jobs.longest_first(known, {"short": 1, "long": 9})] == order


def test_what_failed_is_named_and_counted(tmp_path: Path) -> None:
    good, bad = tmp_path / "test_good.py", tmp_path / "test_bad.py"
    good.write_text("def test_fine() -> None: pass\n")
    bad.write_text("def test_fine() -> None: pass\ndef test_wrong() -> None: assert 1 == 2, 'the reason'\n")
    reports = tmp_path / "reports"
    reports.mkdir()
    shown: list[str] = []
    outcomes = run(
        [jobs.pytest_job((str(path),), reports) for path in (good, bad)], 2, 100,
        os.environ, lambda outcome, text: shown.append(text.decode()),
    )  # fmt: skip
    assert sorted(one.code for one in outcomes) == [0, 1]
    assert "the reason" in "".join(shown)
    text = jobs.summary(outcomes, [], jobs.merged(reports), 62.0)
    assert "test_bad::test_wrong" in text
    assert text.splitlines()[-1] == f"3 tests, 1 failed, in 1 min 2 s: FAILED: {bad}"


def test_a_run_that_was_stopped_says_what_was_not_run(tmp_path: Path) -> None:
    text = jobs.summary(
        [Outcome(Job("lint", ()), 0, 1.0)], [Job("tests/e2e", ())], jobs.merged(tmp_path), 1.0, "SIGINT"
    )
    assert "not run     tests/e2e" in text
    assert "stopped by SIGINT" in text.splitlines()[-1]


ABANDON = """
import os, signal
from localcloud.kubernetes import processes
from tests.clusters import own_instance
with own_instance() as inst:
    processes.ensure(processes.Daemon(f"{inst.cgroup}/sleep", ("/bin/sleep", "600"), inst.run / "sleep.log"))
    print(inst.net, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_run_left_behind_is_removed_and_what_runs_is_not() -> None:
    with own_instance() as mine:
        inside = mine.state / "run"
        inside.mkdir(parents=True, exist_ok=True)
        killed = subprocess.run(
            [sys.executable, "-c", ABANDON], capture_output=True, text=True, cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, check=False,
        )  # fmt: skip
        left = instance_of(int(killed.stdout))
        assert cluster.leftovers(left) != []
        remove_abandoned()
        assert cluster.leftovers(left) == []
        assert inside.exists()
