"""A run of `make up` from nothing that is killed: the next one goes on."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest

from .conftest import Cloud

pytestmark = pytest.mark.e2e


def test_killed_run_is_repeated(empty_cloud: Cloud) -> None:
    """Five runs from nothing, each killed at a random moment; the next one finishes the job."""
    seed = random.randrange(1 << 30)
    moments = random.Random(seed)
    for attempt in range(5):
        empty_cloud.run("down")
        run = empty_cloud.start("up")
        seconds = moments.uniform(0.5, 25.0)
        time.sleep(seconds)
        os.killpg(run.pid, signal.SIGKILL)
        run.communicate()
        output = empty_cloud.run("up")
        assert "hello from" in output or "Nothing to change" in output, (seed, attempt, seconds, output[-2000:])
