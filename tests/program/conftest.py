"""One run of the program per stack and mode, shared by all tests."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from tests.program.harness import Recording, run


@cache
def _recorded(stack: str, mode: str) -> Recording:
    recording = run(stack, mode)
    assert recording.exit_code == 0, recording.output
    return recording


@pytest.fixture
def recorded() -> Callable[[str, str], Recording]:
    """`recorded(stack, mode)`: the recording of a successful run."""
    return _recorded
