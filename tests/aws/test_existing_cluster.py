"""EKS over a cluster that somebody else made ($SLIPWAY_KUBECONFIG): its nodes are claimed, and given back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from localcloud.kubernetes import cluster
from localcloud.kubernetes.api import Api
from localcloud.kubernetes.specs import NodeSpec
from tests.aws.conftest import Server
from tests.aws.test_cluster import NAME, World, until
from tests.aws.test_constraints import Network, trust
from tests.clusters import own_instance

pytestmark = pytest.mark.cluster


class Existing(World):
    """The cluster belongs to another instance than the AWS stand-in."""

    other: Any

    @property
    def kube(self) -> Api:
        return Api(self.other.kubeconfig)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[Existing]:
    with own_instance() as other, own_instance() as inst:
        cluster.start_control_plane(inst=other)
        cluster.add_node(NodeSpec("theirs"), inst=other)
        cluster.wait_ready(["theirs"], inst=other)
        server = Server(inst)
        with monkeypatch.context() as patch:
            patch.setenv("SLIPWAY_KUBECONFIG", str(other.kubeconfig))
            server.start()
        iam = server.client("iam")
        roles = {}
        for service, policy in (("eks", "AmazonEKSClusterPolicy"), ("ec2", "AmazonEKSWorkerNodePolicy")):
            document = trust(f"{service}.amazonaws.com")
            roles[service] = iam.create_role(RoleName=service, AssumeRolePolicyDocument=document)["Role"]["Arn"]
            iam.attach_role_policy(RoleName=service, PolicyArn=f"arn:aws:iam::aws:policy/{policy}")
        made = Existing(server, Network(server.client("ec2")), roles["eks"], roles["ec2"])
        made.other = other
        yield made


def test_a_node_group_claims_free_nodes_and_gives_them_back(world: Existing) -> None:
    before = world.kube.request("GET", "/api/v1/nodes/theirs")
    assert world.create_cluster()["endpoint"] == world.other.apiserver_url
    world.create_group("workers", 1, labels={"a": "b"}, taints=[{"key": "t", "value": "v", "effect": "NO_SCHEDULE"}])
    group = world.settled("workers")
    assert group["status"] == "ACTIVE", group["health"]
    node = world.nodes()["theirs"]
    assert node["metadata"]["labels"]["eks.amazonaws.com/nodegroup"] == "workers"
    assert node["metadata"]["labels"]["a"] == "b"
    assert [taint["key"] for taint in node["spec"]["taints"]] == ["t"]
    world.create_group("more", 1)
    failed = world.settled("more")
    assert failed["status"] == "CREATE_FAILED"
    assert "has no free node left for more-1" in failed["health"]["issues"][0]["message"]
    world.delete_group("more")
    world.delete_group("workers")
    after = world.kube.request("GET", "/api/v1/nodes/theirs")
    assert {key for key in after["metadata"]["labels"] if "eks." in key or "slipway" in key or key == "a"} == set()
    assert after["spec"] == before["spec"]
    world.eks.delete_cluster(name=NAME)
    until(lambda: not world.eks.list_clusters()["clusters"], "the cluster is forgotten")
    assert world.kube.ready()
