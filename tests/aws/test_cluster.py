"""EKS with a real cluster: what it hands out works, and what it does is seen in Kubernetes."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from localcloud.aws import service
from localcloud.kubernetes.api import Api
from localcloud.kubernetes.nodefiles import PAUSE_IMAGE
from localcloud.tools import installed
from tests.aws.conftest import Server
from tests.aws.plugin import Plugin, Refused
from tests.aws.test_constraints import Network, refused, trust
from tests.clusters import own_instance

pytestmark = pytest.mark.cluster

NAME = "slurm"
ADMIN_POLICY = "arn:aws:eks::aws:cluster-access-policy/AmazonEKSClusterAdminPolicy"
VIEW_POLICY = "arn:aws:eks::aws:cluster-access-policy/AmazonEKSViewPolicy"
OURSELVES = "arn:aws:iam::123456789012:user/slipway"


def until(done: Callable[[], Any], what: str, seconds: float = 60) -> Any:
    end = time.monotonic() + seconds
    while not (answer := done()):
        assert time.monotonic() < end, f"not in {seconds} s: {what}"
        time.sleep(0.1)
    return answer


@dataclass
class World:
    """A cluster without nodes and all it rests on."""

    server: Server
    network: Network
    cluster_role: str
    node_role: str

    @property
    def eks(self) -> Any:
        return self.server.client("eks")

    @property
    def kube(self) -> Api:
        return Api(self.server.inst.kubeconfig)

    def create_cluster(self) -> dict[str, Any]:
        self.eks.create_cluster(
            name=NAME, roleArn=self.cluster_role, version="1.36",
            resourcesVpcConfig={"subnetIds": self.network.subnets},
            accessConfig={"authenticationMode": "API", "bootstrapClusterCreatorAdminPermissions": False},
        )  # fmt: skip
        self.eks.get_waiter("cluster_active").wait(name=NAME, WaiterConfig={"Delay": 1, "MaxAttempts": 90})
        return dict(self.eks.describe_cluster(name=NAME)["cluster"])

    def group(self, name: str) -> dict[str, Any]:
        return dict(self.eks.describe_nodegroup(clusterName=NAME, nodegroupName=name)["nodegroup"])

    def create_group(self, name: str, size: int, **more: Any) -> None:
        self.eks.create_nodegroup(
            clusterName=NAME, nodegroupName=name, nodeRole=self.node_role, subnets=self.network.subnets,
            scalingConfig={"minSize": 0, "maxSize": 3, "desiredSize": size}, **more,
        )  # fmt: skip

    def settled(self, name: str) -> dict[str, Any]:
        """The group once it is no longer being worked on."""
        busy = ("CREATING", "UPDATING")
        return dict(until(lambda: (g := self.group(name))["status"] not in busy and g, f"{name} settles", 120))

    def delete_group(self, name: str) -> None:
        self.eks.delete_nodegroup(clusterName=NAME, nodegroupName=name)
        until(lambda: name not in self.eks.list_nodegroups(clusterName=NAME)["nodegroups"], f"{name} is gone", 120)

    def nodes(self) -> dict[str, Any]:
        return {n["metadata"]["name"]: n for n in self.kube.request("GET", "/api/v1/nodes")["items"]}

    def token(self, cluster: str = NAME, key: str = "", secret: str = "") -> str:
        """What the real AWS command line gives a kubeconfig."""
        environment = {**os.environ, **self.server.environment}
        if key:
            environment |= {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret}
        command = [str(Path(sys.executable).parent / "aws"), "eks", "get-token", "--cluster-name", cluster]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return str(json.loads(done.stdout)["status"]["token"])

    def kubectl(self, token: str, *words: str) -> subprocess.CompletedProcess[str]:
        """kubectl with nothing but what EKS answers and a token, as a program's kubeconfig has it."""
        found = self.eks.describe_cluster(name=NAME)["cluster"]
        authority = {"server": found["endpoint"], "certificate-authority-data": found["certificateAuthority"]["data"]}
        config = {
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "users": [{"name": "u", "user": {"token": token}}],
            "clusters": [{"name": "c", "cluster": authority}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        }  # fmt: skip
        tools = installed()
        assert tools
        path = self.server.inst.state / "run" / "test-kubeconfig"
        path.write_text(json.dumps(config))
        command = [str(tools / "kubectl"), "--kubeconfig", str(path), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with own_instance() as inst:
        server = Server(inst)
        server.start()
        iam = server.client("iam")
        roles = {}
        for name, policy in (("eks", "AmazonEKSClusterPolicy"), ("ec2", "AmazonEKSWorkerNodePolicy")):
            role = {"eks": "cluster", "ec2": "node"}[name]
            document = trust(f"{name}.amazonaws.com")
            roles[role] = iam.create_role(RoleName=role, AssumeRolePolicyDocument=document)["Role"]["Arn"]
            iam.attach_role_policy(RoleName=role, PolicyArn=f"arn:aws:iam::aws:policy/{policy}")
        made = World(server, Network(server.client("ec2")), roles["cluster"], roles["node"])
        made.create_cluster()
        yield made
        service.stop(inst=inst)


def test_the_cluster_is_a_real_one_and_the_only_one(world: World) -> None:
    found = world.eks.describe_cluster(name=NAME)["cluster"]
    assert found["endpoint"] == world.server.inst.apiserver_url
    assert b"BEGIN CERTIFICATE" in base64.b64decode(found["certificateAuthority"]["data"])
    assert found["resourcesVpcConfig"]["vpcId"] == world.network.vpc
    ask = {"roleArn": world.cluster_role, "resourcesVpcConfig": {"subnetIds": world.network.subnets}}
    refused("ResourceInUseException", "already exists", world.eks.create_cluster, name=NAME, **ask)
    refused("ResourceLimitExceededException", "one cluster at a time", world.eks.create_cluster, name="other", **ask)


def test_what_the_cluster_uses_cannot_be_deleted(world: World) -> None:
    ec2, group = world.server.client("ec2"), world.eks.describe_cluster(name=NAME)["cluster"]["resourcesVpcConfig"]
    words = f"EKS cluster {NAME}"
    refused("DependencyViolation", words, ec2.delete_subnet, SubnetId=world.network.subnets[0])
    refused("DependencyViolation", words, ec2.delete_security_group, GroupId=group["clusterSecurityGroupId"])
    iam = world.server.client("iam")
    iam.detach_role_policy(RoleName="cluster", PolicyArn="arn:aws:iam::aws:policy/AmazonEKSClusterPolicy")
    refused("DeleteConflict", words, iam.delete_role, RoleName="cluster")


def test_updates_of_the_cluster(world: World) -> None:
    change = world.eks.update_cluster_config
    logging = {"clusterLogging": [{"types": ["api", "audit"], "enabled": True}]}
    update = change(name=NAME, logging=logging)["update"]
    assert update["type"] == "LoggingUpdate"
    assert world.eks.describe_update(name=NAME, updateId=update["id"])["update"]["status"] == "Successful"
    refused("InvalidParameterException", "No changes needed", change, name=NAME, logging=logging)
    refused(
        "InvalidParameterException", "from API to CONFIG_MAP", change, name=NAME,
        accessConfig={"authenticationMode": "CONFIG_MAP"},
    )  # fmt: skip
    two = {"logging": logging, "upgradePolicy": {"supportType": "STANDARD"}}
    refused("InvalidRequestException", "Only one type of update", change, name=NAME, **two)
    version = world.eks.update_cluster_version
    refused("InvalidParameterException", "from 1.36 to 1.35", version, name=NAME, version="1.35")
    change(name=NAME, deletionProtection=True)
    refused("InvalidRequestException", "deletion protection", world.eks.delete_cluster, name=NAME)
    change(name=NAME, deletionProtection=False)
    world.eks.tag_resource(resourceArn=world.eks.describe_cluster(name=NAME)["cluster"]["arn"], tags={"a": "b"})
    assert world.eks.describe_cluster(name=NAME)["cluster"]["tags"] == {"a": "b"}


def test_an_access_entry_lets_a_token_of_the_aws_cli_in(world: World) -> None:
    token = world.token()
    assert "must be logged in" in world.kubectl(token, "get", "pods", "-A").stderr
    world.eks.create_access_entry(clusterName=NAME, principalArn=OURSELVES)
    again = {"clusterName": NAME, "principalArn": OURSELVES}
    refused("ResourceInUseException", "already in use", world.eks.create_access_entry, **again)

    # The API server remembers a refusal of the same token for some seconds, so another one is used.
    def fresh() -> str:
        return world.token(key="any-other", secret="slipway-local")

    answer = world.kubectl(fresh(), "auth", "whoami", "-o", "json")
    assert answer.returncode == 0, answer.stderr
    info = json.loads(answer.stdout)["status"]["userInfo"]
    assert info["username"] == OURSELVES and "system:masters" not in info["groups"]
    assert "forbidden" in world.kubectl(fresh(), "get", "pods", "-A").stderr
    cluster_wide = {"type": "cluster"}
    world.eks.associate_access_policy(**again, policyArn=ADMIN_POLICY, accessScope=cluster_wide)
    assert world.kubectl(fresh(), "get", "pods", "-A").returncode == 0
    assert world.kubectl(fresh(), "create", "namespace", "made-by-token").returncode == 0
    world.eks.disassociate_access_policy(**again, policyArn=ADMIN_POLICY)
    assert "forbidden" in world.kubectl(fresh(), "get", "pods", "-A").stderr
    world.eks.associate_access_policy(**again, policyArn=ADMIN_POLICY, accessScope=cluster_wide)


def test_a_role_gets_its_session_name_and_a_policy_for_namespaces_follows_new_ones(world: World) -> None:
    iam, sts = world.server.client("iam"), world.server.client("sts")
    role = iam.create_role(RoleName="researchers", Path="/hpc/", AssumeRolePolicyDocument=trust("ec2.amazonaws.com"))[
        "Role"
    ]
    world.eks.create_access_entry(clusterName=NAME, principalArn=role["Arn"], kubernetesGroups=["researchers"])
    world.eks.associate_access_policy(
        clusterName=NAME, principalArn=role["Arn"], policyArn=VIEW_POLICY,
        accessScope={"type": "namespace", "namespaces": ["slurm-*"]},
    )  # fmt: skip
    keys = sts.assume_role(RoleArn=role["Arn"], RoleSessionName="anna")["Credentials"]

    def token() -> str:
        return world.token(key=keys["AccessKeyId"], secret=keys["SecretAccessKey"])

    info = json.loads(world.kubectl(token(), "auth", "whoami", "-o", "json").stdout)["status"]["userInfo"]
    assert info["username"] == "arn:aws:sts::123456789012:assumed-role/researchers/anna"
    assert "researchers" in info["groups"]
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "slurm-anna"}}
    world.kube.request("POST", "/api/v1/namespaces", body)
    allowed = ("auth", "can-i", "list", "pods", "-n")
    until(
        lambda: world.kubectl(token(), *allowed, "slurm-anna").stdout.strip() == "yes", "the new namespace is seen", 20
    )
    assert world.kubectl(token(), *allowed, "default").stdout.strip() == "no"
    refused("InvalidParameterException", "cannot start with system:", world.eks.update_access_entry, clusterName=NAME,
            principalArn=role["Arn"], kubernetesGroups=["system:masters"])  # fmt: skip
    refused("InvalidParameterException", "invalid principal", world.eks.create_access_entry, clusterName=NAME,
            principalArn="arn:aws:iam::123456789012:role/none")  # fmt: skip


def _review(world: World, token: str) -> dict[str, Any]:
    import urllib.request

    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
    url = f"{world.server.inst.aws_url}/slipway/authenticate"
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode())) as response:
        status: dict[str, Any] = json.loads(response.read())["status"]
    return status


def test_tokens_that_sts_would_refuse_let_nobody_in(world: World) -> None:
    good = world.token()
    assert _review(world, good)["authenticated"]
    url = base64.urlsafe_b64decode(good.removeprefix("k8s-aws-v1.") + "==").decode()

    def changed(pattern: str, value: str) -> str:
        encoded = base64.urlsafe_b64encode(re.sub(pattern, value, url, count=1).encode()).decode().rstrip("=")
        return f"k8s-aws-v1.{encoded}"

    old = (datetime.now(UTC) - timedelta(minutes=16)).strftime("%Y%m%dT%H%M%SZ")
    for token, reason in {
        world.token("another"): "another cluster's token",
        world.token(key="slipway-local", secret="guessed"): "signature",
        changed(r"http://127.0.0.1:\d+", "http://127.0.0.1:1"): "AWS_ENDPOINT_URL",
        changed("X-Amz-Date=[0-9TZ]+", f"X-Amz-Date={old}"): "expired",
        changed("GetCallerIdentity", "GetSessionToken"): "GetCallerIdentity",
        changed("%3Bx-k8s-aws-id", ""): "x-k8s-aws-id is not signed",
        changed("$", "&Action=GetCallerIdentity"): "twice",
        "k8s-aws-v1.a": "no presigned URL",
        "eyJhbGciOi": "no token",
    }.items():
        answer = _review(world, token)
        assert answer["authenticated"] is False and reason in answer["error"], (reason, answer)
    user = world.server.client("iam").create_user(UserName="nobody")["User"]["UserName"]
    key = world.server.client("iam").create_access_key(UserName=user)["AccessKey"]
    answer = _review(world, world.token(key=key["AccessKeyId"], secret=key["SecretAccessKey"]))
    assert "user/nobody has no access entry" in answer["error"]


def test_a_node_group_is_refused_for_what_aws_refuses(world: World) -> None:
    ask: dict[str, Any] = {
        "clusterName": NAME, "nodegroupName": "bad", "nodeRole": world.node_role, "subnets": world.network.subnets,
        "scalingConfig": {"minSize": 1, "maxSize": 2, "desiredSize": 1},
    }  # fmt: skip
    changes: dict[str, dict[str, Any]] = {
        "enum value set: [NO_SCHEDULE": {"taints": [{"key": "a", "value": "b", "effect": "NoSchedule"}]},
        "can't be greater than max size 2": {"scalingConfig": {"minSize": 1, "maxSize": 2, "desiredSize": 3}},
        "trust policy must allow ec2.amazonaws.com": {"nodeRole": world.cluster_role},
        "subnet ID 'subnet-none' does not exist": {"subnets": ["subnet-none"]},
        "do not exist: [m99.huge]": {"instanceTypes": ["m99.huge"]},
        "newer than the cluster's 1.36": {"version": "1.99"},
        "Couldn't find launch template lt-none": {"launchTemplate": {"id": "lt-none", "version": "1"}},
        "does not know remoteAccess": {"remoteAccess": {"ec2SshKey": "k"}},
    }
    for words, change in changes.items():
        refused("InvalidParameterException", words, world.eks.create_nodegroup, **{**ask, **change})
    refused(
        "ResourceNotFoundException", "No cluster found", world.eks.create_nodegroup, **{**ask, "clusterName": "none"}
    )


def test_nodes_come_change_and_go_with_their_group(world: World) -> None:
    world.create_group(
        "workers", 2, labels={"role": "worker"}, instanceTypes=["c7i.large"],
        taints=[{"key": "slurm", "value": "yes", "effect": "NO_SCHEDULE"}],
    )  # fmt: skip
    refused("ResourceInUseException", "nodegroups attached", world.eks.delete_cluster, name=NAME)
    group = world.settled("workers")
    assert group["status"] == "ACTIVE", group["health"]
    nodes = world.nodes()
    assert set(nodes) == {"workers-1", "workers-2"}
    zones = set()
    for node in nodes.values():
        labels = node["metadata"]["labels"]
        assert labels["eks.amazonaws.com/nodegroup"] == "workers" and labels["role"] == "worker"
        assert labels["eks.amazonaws.com/capacityType"] == "ON_DEMAND"
        assert labels["node.kubernetes.io/instance-type"] == "c7i.large"
        assert {"key": "slurm", "value": "yes", "effect": "NoSchedule"} in node["spec"]["taints"]
        assert re.fullmatch(r"aws:///us-east-1[ab]/i-[0-9a-f]{17}", node["spec"]["providerID"])
        zones.add(labels["topology.kubernetes.io/zone"])
    assert zones == {"us-east-1a", "us-east-1b"}
    assert (
        world.eks.describe_access_entry(clusterName=NAME, principalArn=world.node_role)["accessEntry"]["type"]
        == "EC2_LINUX"
    )

    update = world.eks.update_nodegroup_config(
        clusterName=NAME, nodegroupName="workers", scalingConfig={"minSize": 0, "maxSize": 3, "desiredSize": 1},
        labels={"addOrUpdateLabels": {"tier": "cpu"}, "removeLabels": ["role"]},
        taints={"removeTaints": [{"key": "slurm", "value": "yes", "effect": "NO_SCHEDULE"}]},
    )["update"]  # fmt: skip
    assert world.settled("workers")["scalingConfig"]["desiredSize"] == 1
    ended = world.eks.describe_update(name=NAME, nodegroupName="workers", updateId=update["id"])["update"]
    assert ended["status"] == "Successful"
    left = world.nodes()
    assert set(left) == {"workers-1"}
    labels = left["workers-1"]["metadata"]["labels"]
    assert labels["tier"] == "cpu" and "role" not in labels
    assert not [taint for taint in left["workers-1"]["spec"].get("taints", []) if taint["key"] == "slurm"]

    world.delete_group("workers")
    assert world.nodes() == {}
    refused("ResourceNotFoundException", "principalArn", world.eks.describe_access_entry, clusterName=NAME,
            principalArn=world.node_role)  # fmt: skip


def test_a_role_without_policies_is_no_node_role_and_health_says_so(world: World) -> None:
    iam = world.server.client("iam")
    policy = {"RoleName": "node", "PolicyArn": "arn:aws:iam::aws:policy/AmazonEKSWorkerNodePolicy"}
    iam.detach_role_policy(**policy)
    world.create_group("poor", 1)
    found = world.settled("poor")
    iam.attach_role_policy(**policy)
    assert found["status"] == "CREATE_FAILED"
    assert "failed to join" in found["health"]["issues"][0]["message"]
    world.delete_group("poor")


def test_addons(world: World) -> None:
    create = world.eks.create_addon
    refused("InvalidParameterException", "it knows: coredns", create, clusterName=NAME, addonName="no-such-addon")
    refused(
        "InvalidParameterException", "supported: v1", create, clusterName=NAME, addonName="vpc-cni", addonVersion="v0"
    )
    for name in ("vpc-cni", "kube-proxy", "eks-pod-identity-agent"):
        create(clusterName=NAME, addonName=name)
        waiter = world.eks.get_waiter("addon_active")
        waiter.wait(clusterName=NAME, addonName=name, WaiterConfig={"Delay": 1, "MaxAttempts": 30})
        assert "recorded only" in world.eks.describe_addon(clusterName=NAME, addonName=name)["addon"]["publisher"]
    refused("ResourceInUseException", "already exists", create, clusterName=NAME, addonName="vpc-cni")
    role = world.server.client("iam").create_role(
        RoleName="pods", AssumeRolePolicyDocument=trust("pods.eks.amazonaws.com", "sts:TagSession")
    )["Role"]["Arn"]
    ask = {"clusterName": NAME, "namespace": "kube-system", "serviceAccount": "karpenter"}
    made = world.eks.create_pod_identity_association(**ask, roleArn=role)["association"]
    refused(
        "ResourceInUseException", made["associationId"], world.eks.create_pod_identity_association, **ask, roleArn=role
    )
    refused(
        "InvalidParameterException", "sts:TagSession", world.eks.create_pod_identity_association,
        **{**ask, "serviceAccount": "other"}, roleArn=world.node_role,
    )  # fmt: skip
    world.eks.delete_pod_identity_association(clusterName=NAME, associationId=made["associationId"])


def _pod(claim: str) -> dict[str, Any]:
    container = {"name": "c", "image": PAUSE_IMAGE, "volumeMounts": [{"name": "v", "mountPath": "/v"}]}
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": claim}}
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": claim},
        "spec": {"containers": [container], "volumes": [volume], "terminationGracePeriodSeconds": 0},
    }  # fmt: skip


def test_a_claim_gets_its_volume_with_the_first_pod_and_loses_it_when_it_goes(world: World) -> None:
    kube, claims = world.kube, "/api/v1/namespaces/default/persistentvolumeclaims"
    world.create_group("storage", 1)
    world.eks.create_addon(clusterName=NAME, addonName="aws-ebs-csi-driver")
    kube.request("POST", "/apis/storage.k8s.io/v1/storageclasses", {
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "gp3"},
        "provisioner": "ebs.csi.aws.com", "volumeBindingMode": "WaitForFirstConsumer", "reclaimPolicy": "Delete",
    })  # fmt: skip
    claim = {"storageClassName": "gp3", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    kube.request("POST", claims, {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "state"}, "spec": claim,
    })  # fmt: skip
    world.settled("storage")
    assert kube.request("GET", f"{claims}/state")["status"]["phase"] == "Pending"
    pods = "/api/v1/namespaces/default/pods"
    until(lambda: kube.get("/api/v1/namespaces/default/serviceaccounts/default"), "the service account")
    kube.request("POST", pods, _pod("state"))
    until(lambda: kube.request("GET", f"{claims}/state")["status"]["phase"] == "Bound", "the claim is bound")
    until(lambda: kube.request("GET", f"{pods}/state")["status"]["phase"] == "Running", "the pod runs with its volume")
    volumes = world.server.inst.state / "volumes"
    assert [oct(path.stat().st_mode & 0o777) for path in volumes.iterdir()] == ["0o777"]
    kube.delete(f"{pods}/state")
    kube.delete(f"{claims}/state")
    until(lambda: not kube.request("GET", "/api/v1/persistentvolumes")["items"], "the volume is gone")
    until(lambda: not list(volumes.iterdir()), "its files are gone")
    world.delete_group("storage")


GROUP = "aws:eks/nodeGroup:NodeGroup"


@pytest.fixture
def plugins(world: World) -> Iterator[Callable[[], Plugin]]:
    """Starts providers that talk to this cluster's AWS."""
    started: list[Plugin] = []

    def start() -> Plugin:
        plugin = Plugin(world.server.environment, None, sys.executable)
        started.append(plugin)
        plugin.configure()
        return plugin

    yield start
    for plugin in started:
        plugin.stop()


def _group_inputs(world: World, **more: Any) -> dict[str, Any]:
    return {
        "clusterName": NAME, "nodeRoleArn": world.node_role, "subnetIds": world.network.subnets,
        "scalingConfig": {"minSize": 0, "maxSize": 2, "desiredSize": 1}, **more,
    }  # fmt: skip


def test_a_create_that_was_killed_is_found_again_and_makes_no_twin(world: World, plugins: Callable[[], Plugin]) -> None:
    first, inputs = plugins(), _group_inputs(world)

    def create() -> None:
        with pytest.raises(Refused):
            first.create(GROUP, "once", inputs)

    attempt = threading.Thread(target=create)
    attempt.start()
    name = str(until(lambda: next(iter(world.eks.list_nodegroups(clusterName=NAME)["nodegroups"]), None), "the create"))
    first.process.kill()
    attempt.join()
    second = plugins()
    found = second.create(GROUP, "once", inputs)
    assert found.id == f"{NAME}:{name}" and found.state["status"] == "ACTIVE"
    assert world.eks.list_nodegroups(clusterName=NAME)["nodegroups"] == [name]
    assert "slipway:create" not in found.state["tagsAll"]
    bigger = {"scalingConfig": {"minSize": 0, "maxSize": 2, "desiredSize": 2}, "labels": {"a": "b"}}
    changed = second.update(GROUP, "once", found, _group_inputs(world, **bigger))
    assert [n["metadata"]["labels"]["a"] for n in world.nodes().values()] == ["b", "b"]
    second.delete(GROUP, "once", changed)
    assert world.nodes() == {}


def test_a_group_that_failed_is_in_the_state_and_the_next_run_mends_it(
    world: World, plugins: Callable[[], Plugin]
) -> None:
    plugin, iam = plugins(), world.server.client("iam")
    policy = {"RoleName": "node", "PolicyArn": "arn:aws:iam::aws:policy/AmazonEKSWorkerNodePolicy"}
    iam.detach_role_policy(**policy)
    with pytest.raises(Refused, match=r"CREATE_FAILED: NodeCreationFailure: .*failed to join") as error:
        plugin.create(GROUP, "poor", _group_inputs(world))
    iam.attach_role_policy(**policy)
    assert error.value.partial is not None
    mended = plugin.update(GROUP, "poor", error.value.partial, _group_inputs(world))
    assert mended.state["status"] == "ACTIVE"
    plugin.delete(GROUP, "poor", mended)


def test_a_wait_ends_with_its_timeout_and_the_group_is_kept(world: World, plugins: Callable[[], Plugin]) -> None:
    plugin = plugins()
    with pytest.raises(Refused, match="not after 0 s, it is CREATING") as error:
        plugin.create(GROUP, "late", _group_inputs(world), timeout=0.01)
    assert error.value.partial is not None
    plugin.delete(GROUP, "late", error.value.partial)
    assert world.nodes() == {}


def test_a_killed_server_goes_on_where_it_was(world: World) -> None:
    before = world.eks.describe_cluster(name=NAME)["cluster"]
    world.create_group("survivors", 2)
    world.server.kill()
    with pytest.raises(Exception, match=r"(?i)connect"):
        world.group("survivors")
    world.server.start()
    assert world.eks.describe_cluster(name=NAME)["cluster"] == before
    assert world.settled("survivors")["status"] == "ACTIVE"
    assert set(world.nodes()) == {"survivors-1", "survivors-2"}
    world.eks.delete_nodegroup(clusterName=NAME, nodegroupName="survivors")
    world.server.kill()
    world.server.start()
    until(lambda: not world.eks.list_nodegroups(clusterName=NAME)["nodegroups"], "the deletion goes on", 120)
    assert world.nodes() == {}


def test_coredns_runs_as_pods_and_goes_with_its_addon(world: World) -> None:
    world.create_group("dns", 1)
    world.settled("dns")
    world.eks.create_addon(clusterName=NAME, addonName="coredns", configurationValues='{"replicaCount": 1}')
    waiter = world.eks.get_waiter("addon_active")
    waiter.wait(clusterName=NAME, addonName="coredns", WaiterConfig={"Delay": 1, "MaxAttempts": 90})
    path = "/apis/apps/v1/namespaces/kube-system/deployments/coredns"
    assert world.kube.request("GET", path)["status"]["availableReplicas"] == 1
    world.eks.delete_addon(clusterName=NAME, addonName="coredns")
    until(lambda: "coredns" not in world.eks.list_addons(clusterName=NAME)["addons"], "the add-on is gone")
    assert world.kube.get(path) is None
    world.delete_group("dns")


def test_a_deleted_cluster_leaves_nothing_and_the_next_one_is_empty(
    world: World, plugins: Callable[[], Plugin]
) -> None:
    def exists() -> bool:
        try:
            world.eks.describe_cluster(name=NAME)
        except ClientError as error:
            assert error.response["Error"]["Code"] == "ResourceNotFoundException"
            return False
        return True

    marker = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "of-the-first-cluster"}}
    world.kube.request("POST", "/api/v1/namespaces", marker)
    world.eks.delete_cluster(name=NAME)
    until(lambda: not exists(), "the cluster is gone", 120)
    assert not world.kube.ready()
    iam = world.server.client("iam")
    iam.attach_role_policy(RoleName="cluster", PolicyArn="arn:aws:iam::aws:policy/AmazonEKSClusterPolicy")
    plugin, token = plugins(), "aws:eks/cluster:Cluster"
    inputs = {"name": NAME, "roleArn": world.cluster_role, "vpcConfig": {"subnetIds": world.network.subnets}}
    cluster = plugin.create(token, NAME, inputs)
    assert world.kube.get("/api/v1/namespaces/of-the-first-cluster") is None
    assert cluster.state["endpoint"] == world.server.inst.apiserver_url
    assert any(f"waiting for cluster {NAME}" in line for _, line in plugin.engine.lines)
    plugin.delete(token, NAME, cluster)
    assert not exists()
    world.network.remove()
