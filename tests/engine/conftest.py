"""Fixtures of the engine's tests."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engine.harness import Project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    directory = tmp_path / "project"
    (directory / "stacks").mkdir(parents=True)
    (tmp_path / "cloud").mkdir()
    made = Project(directory, tmp_path / "cloud", tmp_path / "backend")
    made.config("config: {}\n", "description: a test\n")
    made.program("")
    return made


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], None]:
    """Waits for something that another process does."""

    def wait(test: Callable[[], bool], limit: float = 30.0) -> None:
        end = time.monotonic() + limit
        while not test():
            assert time.monotonic() < end, "it did not happen"
            time.sleep(0.01)

    return wait
