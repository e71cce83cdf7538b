"""Instances of the tests' own on this machine, and fixtures with them; import those in a conftest.py to use them."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

import pytest

from localcloud.kubernetes import cgroups, cluster
from localcloud.kubernetes.specs import NodeSpec
from localcloud.paths import Instance

FIRST_NET, LAST_NET = 180, 237
"""Networks (SLIPWAY_NET) that tests use; a user's own instances stay below."""


@contextmanager
def own_instance() -> Iterator[Instance]:
    """An instance that nobody else uses, with an empty state; everything of it is removed at the end.

    A lock keeps it from other test runs on this machine. What a killed run left behind is removed first.
    """
    for net in range(FIRST_NET, LAST_NET + 1, 3):
        handle = _claim(net)
        if handle is None:
            continue
        inst = instance_of(net)
        try:
            cluster.stop_all(inst=inst)
            yield inst
        finally:
            cluster.stop_all(inst=inst)
            os.close(handle)
        return
    raise RuntimeError(f"all networks from {FIRST_NET} to {LAST_NET} are in use by other test runs")


def remove_abandoned() -> None:
    """Remove what was left behind by test runs that were killed too hard to do it themselves."""
    for net in range(FIRST_NET, LAST_NET + 1, 3):
        inst = instance_of(net)
        if not inst.state.exists() and not cgroups.existing(inst.cgroup):
            continue
        handle = _claim(net)
        if handle is not None:
            cluster.stop_all(inst=inst)
            os.close(handle)


def instance_of(net: int) -> Instance:
    """The tests' instance with that network."""
    return Instance(name=f"test-{net}", net=net, state=Path(f"/var/lib/slipway/test-{net}"))


def _claim(net: int) -> int | None:
    """The handle that keeps other test runs from a network until it is closed; None if one of them has it."""
    handle = os.open(Path(tempfile.gettempdir()) / f"slipway-test-{net}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return handle


@contextmanager
def own_control_plane() -> Iterator[Instance]:
    """A running control plane without nodes that nobody else uses."""
    with own_instance() as inst:
        cluster.start_control_plane(inst=inst)
        yield inst


def add_nodes(inst: Instance, *specs: NodeSpec) -> None:
    """Add nodes side by side, and wait until pods can run on them."""
    with ThreadPoolExecutor(len(specs)) as pool:
        list(pool.map(lambda spec: cluster.add_node(spec, inst=inst), specs))
    cluster.wait_ready([spec.name for spec in specs], inst=inst)


_at_the_end = ExitStack()


@cache
def _shared_control_plane() -> Instance:
    return _at_the_end.enter_context(own_control_plane())


@pytest.fixture(scope="session")
def control_plane() -> Iterator[Instance]:
    """A running control plane without nodes. Yields its instance: its administrator's kubeconfig is `.kubeconfig`.

    All tests of a pytest run share it, whichever conftest.py they have the fixture from: each uses a namespace of its
    own, adds no node, and leaves the API server running.
    """
    yield _shared_control_plane()
    _at_the_end.close()  # the first one's end is everybody's: the session is over
    _shared_control_plane.cache_clear()
