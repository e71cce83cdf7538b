"""EKS over a cluster that somebody else made ($SLIPWAY_KUBECONFIG): its nodes are claimed, and given back."""

from __future__ import annotations

import base64
import json
import os
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from localcloud.aws.eks import authenticate, endpoint
from localcloud.kubernetes import chores
from localcloud.kubernetes.api import Api
from localcloud.kubernetes.errors import ClusterError
from localcloud.kubernetes.nodefiles import PAUSE_IMAGE
from localcloud.kubernetes.specs import NodeSpec, Taint
from localcloud.tools import installed
from tests.aws.conftest import Server
from tests.aws.test_cluster import NAME, OURSELVES, VIEW_POLICY, World, until
from tests.aws.test_constraints import Network, trust
from tests.clusters import add_nodes, own_control_plane, own_instance

pytestmark = pytest.mark.cluster

PODS = "/api/v1/namespaces/kube-system/pods"


class Existing(World):
    """The cluster belongs to another instance than the AWS stand-in."""

    other: Any

    @property
    def kube(self) -> Api:
        return Api(self.other.kubeconfig)


@pytest.fixture(scope="module")
def world() -> Iterator[Existing]:
    with own_control_plane() as other, own_instance() as inst:
        # A zone of its own, and taints: one that keeps nobody away, and on another node one that does.
        mild, strict = Taint("old", "", "PreferNoSchedule"), Taint("gpu", "yes", "NoSchedule")
        add_nodes(other, NodeSpec("closed", taints=(strict,)), NodeSpec("theirs", zone="somewhere-1", taints=(mild,)))
        server = Server(inst)
        with pytest.MonkeyPatch.context() as patch:
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


def pod(name: str, **spec: Any) -> dict[str, Any]:
    container = {"name": "c", "image": PAUSE_IMAGE}
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "kube-system"},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [container], **spec},
    }  # fmt: skip


def test_a_node_group_claims_free_nodes_and_gives_them_back(world: Existing) -> None:
    before = world.kube.request("GET", "/api/v1/nodes/theirs")
    assert world.create_cluster()["endpoint"] == world.server.inst.apiserver_url
    world.create_group("workers", 1, labels={"a": "b"}, taints=[{"key": "t", "value": "v", "effect": "NO_SCHEDULE"}])
    group = world.settled("workers")
    assert group["status"] == "ACTIVE", group["health"]
    node = world.nodes()["theirs"]
    labels = node["metadata"]["labels"]
    assert (labels["eks.amazonaws.com/nodegroup"], labels["a"]) == ("workers", "b")
    assert labels["topology.kubernetes.io/zone"] == "somewhere-1"
    assert {taint["key"] for taint in node["spec"]["taints"]} == {"old", "t"}

    world.eks.update_nodegroup_config(
        clusterName=NAME, nodegroupName="workers", labels={"addOrUpdateLabels": {"c": "d"}, "removeLabels": ["a"]}
    )
    until(lambda: world.group("workers")["status"] == "ACTIVE", "the group has its new labels")
    labels = world.nodes()["theirs"]["metadata"]["labels"]
    assert "a" not in labels and labels["c"] == "d"

    world.create_group("more", 1)
    failed = world.settled("more")
    assert failed["status"] == "CREATE_FAILED"
    assert "has no free node left for more-1" in failed["health"]["issues"][0]["message"]
    world.delete_group("more")

    anywhere = [{"operator": "Exists"}]
    for mine in (pod("put-there", nodeSelector={"c": "d"}, tolerations=anywhere),
                 pod("was-there", nodeName="theirs", tolerations=anywhere)):  # fmt: skip
        world.kube.request("POST", PODS, mine)
    until(lambda: all(p["status"]["phase"] == "Running" for p in world.kube.request("GET", PODS)["items"]), "pods run")
    world.delete_group("workers")
    assert [p["metadata"]["name"] for p in world.kube.request("GET", PODS)["items"]] == ["was-there"]

    def given_back() -> bool:  # the controllers take the taint of a cordoned node back in their own time
        node = world.kube.request("GET", "/api/v1/nodes/theirs")
        return bool(node["spec"] == before["spec"])

    until(given_back, "the node is as it was")
    after = world.kube.request("GET", "/api/v1/nodes/theirs")["metadata"]
    assert after["labels"] == before["metadata"]["labels"]
    assert after.get("annotations") == before["metadata"].get("annotations")
    world.eks.delete_cluster(name=NAME)
    until(lambda: not world.eks.list_clusters()["clusters"], "the cluster is forgotten")
    assert world.kube.ready()


def test_callers_are_who_their_token_says(world: Existing) -> None:
    cluster_made = world.create_cluster()
    environment = {**os.environ, **world.server.environment, "PATH": f"{installed()}:{os.environ['PATH']}"}
    command = [str(Path(sys.executable).parent / "aws"), "eks", "get-token", "--cluster-name", NAME]
    answer = json.loads(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)
    token = str(answer["status"]["token"])
    ca = ssl.create_default_context(cadata=base64.b64decode(cluster_made["certificateAuthority"]["data"]).decode())

    def ask(path: str, **headers: str) -> tuple[int, Any]:
        request = urllib.request.Request(f"{cluster_made['endpoint']}{path}", headers=headers)
        opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=ca), urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=30) as response:
                return response.status, json.loads(response.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    assert ask("/api")[0] == 401
    assert ask("/api", Authorization="Bearer nonsense")[0] == 401
    assert ask("/api", Authorization=f"Bearer {token}")[0] == 401  # no access entry yet
    world.eks.create_access_entry(clusterName=NAME, principalArn=OURSELVES)
    world.eks.associate_access_policy(
        clusterName=NAME, principalArn=OURSELVES, policyArn=VIEW_POLICY, accessScope={"type": "cluster"}
    )
    assert ask("/api/v1/namespaces/kube-system/pods", Authorization=f"Bearer {token}")[0] == 200
    code, said = ask("/api/v1/nodes", Authorization=f"Bearer {token}")
    assert code == 403 and f'User "{OURSELVES}"' in said["message"]
    # Nobody can say that they are somebody else.
    disguise = {"Impersonate-User": "admin", "Impersonate-Group": "system:masters"}
    assert ask("/api/v1/nodes", Authorization=f"Bearer {token}", **disguise)[0] == 403


def test_a_chore_that_cannot_run_says_why(world: Existing) -> None:
    with pytest.raises(ClusterError, match=r"node theirs: .*nowhere/image"):
        chores.run(world.kube, "theirs", "127.0.0.1:1/nowhere/image:1", "true", "/var/lib")
    with pytest.raises(ClusterError, match=r"node theirs: .*/nowhere is not a directory"):
        chores.run(world.kube, "theirs", PAUSE_IMAGE, "true", "/nowhere")
    assert not [p for p in world.kube.request("GET", PODS)["items"] if "chore" in p["metadata"]["name"]]


def test_a_request_is_handed_on_as_its_caller() -> None:
    request, headers = endpoint.parse_head(
        b"POST /x HTTP/1.1\r\nHost: a\r\nimpersonate-user: root\r\nAUTHORIZATION: Bearer x\r\n"
        b"Connection: keep-alive, Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n"
    )
    user = {"username": "u", "uid": "1", "groups": ["g", "h"], "extra": {"a/b": ["c"]}}
    head = endpoint.render_head(request, headers, endpoint.impersonation(user)).decode()
    assert head == (
        "POST /x HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, close\r\nImpersonate-User: u\r\n"
        "Impersonate-Uid: 1\r\nImpersonate-Group: g\r\nImpersonate-Group: h\r\nImpersonate-Extra-a%2Fb: c\r\n"
        "Upgrade: SPDY/3.1\r\n\r\n"
    )
    with pytest.raises(authenticate.Refused):
        endpoint.impersonation({**user, "username": "u\r\nImpersonate-Group: system:masters"})
