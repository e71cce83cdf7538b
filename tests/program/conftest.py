"""One run of the program per stack and mode, shared by all tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.program.harness import Recording, recorded_run


@pytest.fixture
def recorded() -> Callable[[str, str], Recording]:
    """`recorded(stack, mode)`: the recording of a successful run."""
    return recorded_run
