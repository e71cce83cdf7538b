"""All checks as jobs that run side by side: lint, types, charts, and the tests of every folder.

A folder that is new is a job of its own without being named here.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree

from localcloud.kubernetes import inotify
from localcloud.paths import REPOSITORY, cache_dir
from tests.clusters import remove_abandoned
from tests.parallel import Interrupted, Job, Outcome, run, show

ROOTS = ("tests", "operator/tests")

CHECKS = ("lint", "types", "charts")
"""Parts of tests/run that are no tests."""

FILE_BY_FILE = ("tests/e2e", "operator/tests/controllers")
"""Folders of which each file is a job: most of their time is waiting."""

TOGETHER = (
    ("tests/charts", "operator/tests/api", "operator/tests/kube", "operator/tests/runtime"),  # a control plane
    ("tests/e2e/test_slurm_client.py", "tests/e2e/test_user_path.py"),  # a cloud
)
"""Files and folders that are one job, since they share what takes long to start."""


def room(control_planes: int, nodes: int) -> int:
    """How many inotify instances clusters take: what a machine runs out of first, with 128 as the usual limit."""
    return control_planes * inotify.CONTROL_PLANE + nodes * inotify.PER_NODE


CLUSTER = room(1, 3)
"""What a job is taken for that is not in ROOM."""

ROOM = {
    "tests/charts": room(1, 0),
    "tests/e2e/test_helm_only.py": room(1, 2),
    "tests/e2e/test_wrong_use.py": 0,
    "tests/engine": 0,
    "tests/images": room(1, 2),
    "tests/k8s_provider": room(1, 1),
    "tests/kubernetes": room(2, 4),
    "tests/policies": 0,
    "tests/program": 0,
    "tests/runner": 0,
    "operator/tests/desired": 0,
    "tests/faults": 0,
    "operator/tests/slurm": 0,
}
"""What tests take at most at one time; a group (TOGETHER) is found by its first path."""


def targets(root: Path = REPOSITORY) -> list[tuple[str, ...]]:
    """The paths that each pytest run gets: every test file below ROOTS is in exactly one of them."""
    found = dict.fromkeys(_target(path.relative_to(root)) for path in _files(root))
    return list(found)


def _files(root: Path) -> Iterator[Path]:
    for top in ROOTS:
        yield from sorted((root / top).rglob("test_*.py"))


def _target(file: Path) -> tuple[str, ...]:
    folder = str(file.parent)
    alone = str(file) if folder in FILE_BY_FILE else folder
    return next((group for group in TOGETHER if alone in group), (alone,))


def pytest_job(paths: tuple[str, ...], reports: Path) -> Job:
    name = " ".join(paths)
    report = reports / f"{name.replace('/', '-')}.xml"
    command = (sys.executable, "-m", "pytest", f"--junitxml={report}", *paths)
    return Job(name, command, ROOM.get(paths[0], CLUSTER))


def budget() -> int:
    """inotify instances for the clusters of all jobs: what is free, and leaves a `make up` beside the tests its own."""
    return min(inotify.free(inotify.limit()), inotify.limit() - CLUSTER)


def longest_first(jobs: Iterable[Job], seconds: dict[str, float]) -> list[Job]:
    """Jobs in the order in which the whole takes least: the longest first, by what they took before.

    Those that nobody knows yet come first of all, and of these the ones with a cluster.
    """
    return sorted(jobs, key=lambda job: (-seconds.get(job.name, float("inf")), not job.weight))


def remembered() -> Path:
    """What each job took the last time, in seconds by its name (JSON)."""
    return cache_dir() / "test-seconds.json"


def recall() -> dict[str, float]:
    try:
        return {name: float(seconds) for name, seconds in json.loads(remembered().read_text()).items()}
    except (OSError, ValueError, AttributeError):
        return {}


def remember(outcomes: Iterable[Outcome]) -> None:
    known = recall() | {one.job.name: round(one.seconds, 1) for one in outcomes if one.code == 0}
    scratch = remembered().with_suffix(f".{os.getpid()}")
    scratch.write_text(json.dumps(known, indent=1, sort_keys=True))
    scratch.replace(remembered())


def merged(reports: Path) -> ElementTree.Element:
    """The reports of all pytest runs as one (JUnit's XML)."""
    suites = ElementTree.Element("testsuites")
    for path in sorted(reports.glob("*.xml")):
        suites.extend(ElementTree.parse(path).getroot())
    return suites


def summary(
    outcomes: Sequence[Outcome],
    unfinished: Sequence[Job],
    suites: ElementTree.Element,
    seconds: float,
    stopped: str = "",
) -> str:
    """Each job with its time, and what failed. stopped: the name of the signal that ended the run before its time."""
    lines = [f"   {one.seconds:6.0f} s  {_verdict(one.code):<10}  {one.job.name}" for one in outcomes]
    lines += [f"        -    not run     {job.name}" for job in unfinished]
    failed = [
        case for case in suites.iter("testcase") if case.find("failure") is not None or case.find("error") is not None
    ]
    lines += [f"   failed: {case.get('classname')}::{case.get('name')}" for case in failed]
    total = sum(int(suite.get("tests", 0)) for suite in suites)
    bad = [one.job.name for one in outcomes if one.code]
    verdict = f"FAILED: {', '.join(bad)}" if bad else "all is well"
    if stopped:
        verdict = f"stopped by {stopped}; jobs that it ended count as failed"
    lines.append(f"{total} tests, {len(failed)} failed, in {seconds // 60:.0f} min {seconds % 60:.0f} s: {verdict}")
    return "\n".join(lines)


def _verdict(code: int) -> str:
    return "ok" if code == 0 else "FAILED" if code > 0 else f"signal {-code}"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="tests/run all", description=__doc__)
    at_once = (os.cpu_count() or 1) + 1  # some wait while others compute
    parser.add_argument("-j", "--jobs", type=int, default=at_once, help="how many at a time (default: %(default)s)")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write one JUnit report of all tests")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="slipway-tests-") as folder:
        reports = Path(folder)
        checks = [Job(check, ("tests/run", check)) for check in CHECKS]
        jobs = checks + longest_first((pytest_job(paths, reports) for paths in targets()), recall())
        outcomes: list[Outcome] = []

        def ended(outcome: Outcome, text: bytes) -> None:
            outcomes.append(outcome)
            show(f"{outcome.job.name}: {_verdict(outcome.code)} after {outcome.seconds:.0f} s", text)

        code, stopped = 0, ""
        try:
            run(jobs, options.jobs, budget(), os.environ, ended)
        except Interrupted as interrupted:
            code, stopped = 128 + interrupted.args[0], signal.Signals(interrupted.args[0]).name
        remove_abandoned()
        remember(outcomes)
        suites = merged(reports)
        if options.junit:
            ElementTree.ElementTree(suites).write(options.junit, encoding="unicode", xml_declaration=True)
        unfinished = [job for job in jobs if job not in [one.job for one in outcomes]]
        outcomes.sort(key=lambda one: -one.seconds)
        text = summary(outcomes, unfinished, suites, time.monotonic() - began, stopped)
        show("summary", text.encode())
    return code or int(any(one.code for one in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
