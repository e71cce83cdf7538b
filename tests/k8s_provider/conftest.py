"""A real control plane, a provider process connected to it, and a namespace of its own for each test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from localcloud.kubernetes import cluster
from localcloud.kubernetes.api import Api
from localcloud.kubernetes.specs import NodeSpec
from localcloud.paths import Instance
from tests.clusters import own_control_plane
from tests.k8s_provider.harness import Provider, running

_numbers = itertools.count(1)


@pytest.fixture(scope="package")
def control_plane() -> Iterator[Instance]:
    """Not the one that others share: a node is added to it."""
    with own_control_plane() as inst:
        yield inst


@pytest.fixture(scope="package")
def kubeconfig(control_plane: Instance) -> str:
    return control_plane.kubeconfig.read_text()


@pytest.fixture(scope="package")
def api(control_plane: Instance) -> Api:
    """A client apart from the provider's, to look at what it did and to stand in for other programs."""
    return cluster.api(control_plane)


@pytest.fixture(scope="package")
def provider(kubeconfig: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Provider]:
    with running(tmp_path_factory.mktemp("program"), kubeconfig=kubeconfig) as found:
        yield found


@pytest.fixture(scope="package")
def node(control_plane: Instance) -> str:
    """A real node, for tests that need pods to run."""
    cluster.add_node(NodeSpec("n1"), inst=control_plane)
    cluster.wait_ready(["n1"], inst=control_plane)
    return "n1"


@pytest.fixture
def namespace(api: Api) -> Iterator[str]:
    name = f"test-{next(_numbers)}"
    api.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    yield name
    api.request("DELETE", f"/api/v1/namespaces/{name}")


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A folder for a program's files: charts, values."""
    return tmp_path
