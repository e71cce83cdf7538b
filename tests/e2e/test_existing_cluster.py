"""`up` on a cluster that somebody else made: the job ends, a second time changes nothing, and `down` gives it back."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from localcloud.kubernetes import addons, cluster
from localcloud.kubernetes.api import Api
from localcloud.kubernetes.specs import NodeSpec
from localcloud.paths import Instance
from tests.clusters import add_nodes, own_control_plane, own_instance

from .conftest import Cloud, wait_until

pytestmark = pytest.mark.e2e

NODES = ("one", "two", "three")
PASSING = ("events", "leases", "endpointslices", "endpoints")
"""Kinds whose objects come and go by themselves."""


@dataclass
class Attached(Cloud):
    """A cloud whose Kubernetes is somebody else's."""

    kubeconfig: str = ""

    @property
    def environment(self) -> dict[str, str]:
        return {**super().environment, "SLIPWAY_KUBECONFIG": self.kubeconfig}


@pytest.fixture(scope="module")
def theirs() -> Iterator[Instance]:
    """A plain cluster of three nodes that pull images from this machine."""
    with own_control_plane() as inst:
        cluster.start_registry(inst=inst)
        add_nodes(inst, *map(NodeSpec, NODES))
        addons.apply_coredns(inst)
        wait_until(lambda: coredns_runs(Api(inst.kubeconfig)), "CoreDNS runs")
        yield inst


@pytest.fixture(scope="module")
def attached(theirs: Instance) -> Iterator[Attached]:
    with own_instance() as inst:
        cloud = Attached(inst.name, inst.net, kubeconfig=str(theirs.kubeconfig))
        try:
            yield cloud
        finally:
            cloud.end_started()


def coredns_runs(api: Api) -> bool:
    found = api.get("/apis/apps/v1/namespaces/kube-system/deployments/coredns") or {}
    return bool(found["status"].get("availableReplicas"))


def everything(api: Api) -> dict[str, str]:
    """Every object of a cluster with its identity; of nodes also labels, annotations and spec."""
    found = {}
    groups = [f"/apis/{g['preferredVersion']['groupVersion']}" for g in api.request("GET", "/apis")["groups"]]
    for group in ("/api/v1", *groups):
        for kind in api.request("GET", group)["resources"]:
            if "list" not in kind["verbs"] or kind["name"] in PASSING:
                continue
            for item in api.request("GET", f"{group}/{kind['name']}")["items"]:
                meta = item["metadata"]
                node = [meta["labels"], meta.get("annotations"), item["spec"]] if kind["name"] == "nodes" else []
                name = f"{group} {kind['name']} {meta.get('namespace', '')}/{meta['name']}"
                found[name] = json.dumps([meta.get("uid"), *node], sort_keys=True)
    return found


def test_up_and_down_on_an_existing_cluster(theirs: Instance, attached: Attached) -> None:
    api = Api(theirs.kubeconfig)
    before = everything(api)

    output = attached.run("up", timeout=1200)
    assert output.count("hello from debug-") == 2
    for name in NODES:
        assert f"{name} of the existing cluster stands in for node" in output
    assert "Nothing to change" in attached.run("up")
    assert sorted(node["metadata"]["name"] for node in attached.get("nodes")["items"]) == sorted(NODES)

    # As a user of EKS: a token of AWS, a stream in both directions, and a watch.
    config = attached.state / "run" / "eks.kubeconfig"
    attached.run("aws", "eks", "update-kubeconfig", "--name", "slipway-local", "--kubeconfig", str(config))
    kubectl = ("kubectl", "--kubeconfig", str(config), "-n", "slurm")
    for protocol in ("true", "false"):
        os.environ["KUBECTL_REMOTE_COMMAND_WEBSOCKETS"] = protocol
        said = attached.run(*kubectl, "exec", "-i", "deploy/slurm-login", "-c", "login", "--", "sinfo", "--noheader")
        assert "debug" in said
    del os.environ["KUBECTL_REMOTE_COMMAND_WEBSOCKETS"]
    assert "condition met" in attached.run(*kubectl, "wait", "--for=condition=Ready", "pod/debug-0", "--timeout=60s")

    attached.run("down")
    assert not attached.state.exists()
    assert api.ready()
    wait_until(lambda: set(everything(api)) <= set(before), "what was deleted is gone", 60)
    assert everything(api) == before


def test_a_cluster_that_does_not_answer_is_not_forgotten(attached: Attached, theirs: Instance) -> None:
    attached.kubeconfig = str(theirs.state / "run" / "elsewhere")
    (theirs.state / "run" / "elsewhere").write_text(
        theirs.kubeconfig.read_text().replace(theirs.apiserver_url, "https://127.0.0.1:9")
    )
    output = attached.run("up", ok=False)
    assert "elsewhere is not ready" in output and "refused" in output
    assert "--abandon" in attached.run("down", ok=False)
    assert "Nothing is left" in attached.run("down", "--abandon")
