"""Fixtures that start a real control plane of their own; import them in a conftest.py to use them."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from localcloud.kubernetes import cluster
from localcloud.paths import Instance

FIRST_NET, LAST_NET = 180, 237
"""Networks (SLIPWAY_NET) that tests use; a user's own instances stay below."""


@contextmanager
def own_instance() -> Iterator[Instance]:
    """An instance that nobody else uses, with an empty state; everything of it is removed at the end.

    A lock keeps it from other test runs on this machine. What a killed run left behind is removed first.
    """
    for net in range(FIRST_NET, LAST_NET + 1, 3):
        handle = os.open(Path(tempfile.gettempdir()) / f"slipway-test-{net}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            continue
        inst = Instance(name=f"test-{net}", net=net, state=Path(f"/var/lib/slipway/test-{net}"))
        try:
            cluster.stop_all(inst=inst)
            yield inst
        finally:
            cluster.stop_all(inst=inst)
            os.close(handle)
        return
    raise RuntimeError(f"all networks from {FIRST_NET} to {LAST_NET} are in use by other test runs")


@pytest.fixture(scope="package")
def control_plane() -> Iterator[Instance]:
    """A running control plane without nodes, for one folder of tests. Yields its instance.

    Its administrator's kubeconfig is at `control_plane.kubeconfig`.
    """
    with own_instance() as inst:
        cluster.start_control_plane(inst=inst)
        yield inst
