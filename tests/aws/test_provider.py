"""The provider through its gRPC interface, against a real server."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from pulumi.runtime.proto import provider_pb2

from localcloud.aws.provider.schema import Change, block, changes, document, flag, mapping, number, strings, text
from tests.aws.conftest import Server
from tests.aws.plugin import UNKNOWN, Plugin, Refused, Resource, struct, urn

NONE, SOME = provider_pb2.DiffResponse.DIFF_NONE, provider_pb2.DiffResponse.DIFF_SOME
VPC, SUBNET = "aws:ec2/vpc:Vpc", "aws:ec2/subnet:Subnet"
GROUP, RULE = "aws:ec2/securityGroup:SecurityGroup", "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule"
ROLE = "aws:iam/role:Role"


def trust(service: str) -> str:
    statement = {"Effect": "Allow", "Principal": {"Service": service}, "Action": "sts:AssumeRole"}
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


def policy(*actions: str) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": actions, "Resource": "*"}]})


class Deployment:
    """Resources in the order they were made; each is made twice, as after a kill, and looked at again."""

    def __init__(self, plugin: Plugin) -> None:
        self.plugin = plugin
        self.made: list[tuple[str, str, Resource]] = []

    def create(self, token: str, name: str, /, **inputs: Any) -> Resource:
        found = self.plugin.create(token, name, inputs)
        self.made.append((token, name, found))
        again = self.plugin.create(token, name, inputs)
        assert again.id == found.id, f"{name} was made twice"
        assert self.plugin.diff(token, name, found, inputs).changes == NONE
        fresh = self.plugin.read(token, name, found)
        assert fresh is not None
        after_refresh = self.plugin.diff(token, name, fresh, inputs)
        assert after_refresh.changes == NONE, dict(after_refresh.detailedDiff)
        return found

    def destroy(self) -> None:
        for token, name, resource in reversed(self.made):
            self.plugin.delete(token, name, resource)
            self.plugin.delete(token, name, resource)  # a killed delete is repeated
            if not token.endswith(":DefaultSecurityGroup"):
                assert self.plugin.read(token, name, resource) is None


def _inventory(server: Server) -> list[dict[str, str]]:
    done = subprocess.run(
        [sys.executable, "-m", "localcloud.aws", "inventory"], capture_output=True, text=True, check=True,
        env={"PATH": "/usr/bin:/bin", **server.environment},
    )  # fmt: skip
    found: list[dict[str, str]] = json.loads(done.stdout)
    return found


def test_a_network_and_its_roles_come_and_go(server: Server, plugin: Plugin) -> None:
    before = _inventory(server)
    deployment = Deployment(plugin)
    make = deployment.create
    vpc = make(
        VPC, "net", cidrBlock="10.1.0.0/16", enableDnsHostnames=True, enableDnsSupport=True, tags={"Name": "net"}
    )
    assert vpc.state["tagsAll"] == {"Name": "net", "project": "slipway"}
    assert vpc.state["tags"] == {"Name": "net"}
    make(
        "aws:ec2/vpcIpv4CidrBlockAssociation:VpcIpv4CidrBlockAssociation",
        "second",
        vpcId=vpc.id,
        cidrBlock="100.64.0.0/16",
    )
    gateway = make("aws:ec2/internetGateway:InternetGateway", "gateway", vpcId=vpc.id)
    subnets = [
        make(SUBNET, f"subnet-{zone}", vpcId=vpc.id, cidrBlock=f"10.1.{i}.0/24", availabilityZone=f"us-east-1{zone}")
        for i, zone in enumerate("ab")
    ]
    address = make("aws:ec2/eip:Eip", "nat", domain="vpc")
    nat = make("aws:ec2/natGateway:NatGateway", "nat", subnetId=subnets[0].id, allocationId=address.id)
    everywhere = {"cidrBlock": "0.0.0.0/0", "gatewayId": gateway.id}
    make("aws:ec2/routeTable:RouteTable", "public", vpcId=vpc.id, routes=[everywhere])
    table = make("aws:ec2/routeTable:RouteTable", "private", vpcId=vpc.id)
    make("aws:ec2/route:Route", "out", routeTableId=table.id, destinationCidrBlock="0.0.0.0/0", natGatewayId=nat.id)
    make("aws:ec2/routeTableAssociation:RouteTableAssociation", "a", routeTableId=table.id, subnetId=subnets[1].id)
    make("aws:ec2/defaultSecurityGroup:DefaultSecurityGroup", "none", vpcId=vpc.id)
    https = {"protocol": "tcp", "fromPort": 443, "toPort": 443, "cidrBlocks": ["10.0.0.0/8"], "description": "API"}
    out = {"protocol": "-1", "fromPort": 0, "toPort": 0, "cidrBlocks": ["0.0.0.0/0"]}
    inline = make(
        GROUP, "inline", vpcId=vpc.id, description="x", ingress=[https, {**https, "self": True}], egress=[out]
    )
    nodes = make(GROUP, "nodes", vpcId=vpc.id, description="nodes")
    make(RULE, "self", securityGroupId=nodes.id, referencedSecurityGroupId=nodes.id, ipProtocol="-1", description="EFA")
    make(RULE, "https", securityGroupId=nodes.id, cidrIpv4="10.1.0.0/16", ipProtocol="tcp", fromPort=443, toPort=443)
    make(
        "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule", "all", securityGroupId=nodes.id, ipProtocol="-1",
        cidrIpv4="0.0.0.0/0",
    )  # fmt: skip
    make(
        "aws:ec2/vpcEndpoint:VpcEndpoint", "s3", vpcId=vpc.id, serviceName="com.amazonaws.us-east-1.s3",
        routeTableIds=[table.id],
    )  # fmt: skip
    make(
        "aws:ec2/vpcEndpoint:VpcEndpoint", "sts", vpcId=vpc.id, serviceName="com.amazonaws.us-east-1.sts",
        vpcEndpointType="Interface", privateDnsEnabled=True, subnetIds=[s.id for s in subnets],
        securityGroupIds=[inline.id],
    )  # fmt: skip
    logs = {
        "Effect": "Allow",
        "Principal": {"Service": "logs.us-east-1.amazonaws.com"},
        "Action": "kms:*",
        "Resource": "*",
    }
    key = make(
        "aws:kms/key:Key",
        "key",
        enableKeyRotation=True,
        deletionWindowInDays=7,
        policy=json.dumps({"Statement": [logs]}),
    )
    make("aws:kms/alias:Alias", "key", name="alias/slipway", targetKeyId=key.id)
    group = make(
        "aws:cloudwatch/logGroup:LogGroup", "flow", name="/vpc/flow", retentionInDays=30, kmsKeyId=key.state["arn"]
    )
    role = make(ROLE, "flow", assumeRolePolicy=trust("vpc-flow-logs.amazonaws.com"))
    make("aws:iam/rolePolicy:RolePolicy", "flow", role=role.id, policy=policy("logs:PutLogEvents"))
    managed = make("aws:iam/policy:Policy", "more", policy=policy("logs:CreateLogStream", "logs:DescribeLogGroups"))
    make("aws:iam/rolePolicyAttachment:RolePolicyAttachment", "more", role=role.id, policyArn=managed.state["arn"])
    make("aws:iam/instanceProfile:InstanceProfile", "profile", role=role.id)
    make(
        "aws:ec2/flowLog:FlowLog", "flow", vpcId=vpc.id, trafficType="ALL", logDestination=group.state["arn"],
        iamRoleArn=role.state["arn"],
    )  # fmt: skip
    make(
        "aws:ec2/launchTemplate:LaunchTemplate", "nodes", metadataOptions={"httpTokens": "required"},
        blockDeviceMappings=[{"deviceName": "/dev/xvda", "ebs": {"volumeSize": 50, "encrypted": "true"}}],
    )  # fmt: skip
    repository = make(
        "aws:ecr/repository:Repository", "slurmd", name="slipway/slurmd", imageTagMutability="IMMUTABLE",
        encryptionConfigurations=[{"encryptionType": "KMS", "kmsKey": key.state["arn"]}],
    )  # fmt: skip
    assert repository.state["repositoryUrl"] == "123456789012.dkr.ecr.us-east-1.amazonaws.com/slipway/slurmd"
    make("aws:s3/bucket:Bucket", "data", forceDestroy=True)
    make("aws:ec2/tag:Tag", "elb", resourceId=subnets[0].id, key="kubernetes.io/role/elb", value="1")

    deployment.destroy()

    assert _inventory(server) == before


def test_names_are_automatic_stay_and_follow_the_seed(plugin: Plugin) -> None:
    inputs = {"assumeRolePolicy": trust("ec2.amazonaws.com")}
    first = plugin.checked(ROLE, "node", inputs)
    assert first["name"].startswith("node-") and len(first["name"]) == len("node-") + 7
    assert plugin.checked(ROLE, "node", inputs)["name"] == first["name"]
    assert plugin.checked(ROLE, "other", inputs, first)["name"] == first["name"]
    assert plugin.checked(ROLE, "node", {**inputs, "name": "mine"}, first)["name"] == "mine"
    explicit = plugin.checked(ROLE, "node", {**inputs, "name": "mine"})
    assert plugin.checked(ROLE, "node", inputs, explicit)["name"] == first["name"]
    assert plugin.checked(ROLE, "node", {**inputs, "namePrefix": "slurm-"})["name"].startswith("slurm-")
    assert len(plugin.checked(ROLE, "n" * 80, inputs)["name"]) == 64
    mode = provider_pb2.CheckRequest.AutonamingOptions
    proposed = plugin.check(ROLE, "node", inputs, autonaming=mode(proposed_name="proposed", mode=mode.PROPOSE))
    assert proposed.inputs["name"] == "proposed"
    off = plugin.check(ROLE, "node", inputs, autonaming=mode(mode=mode.DISABLE))
    assert "name is required" in off.failures[0].reason


def test_what_is_unknown_or_wrong_is_named_with_its_place(plugin: Plugin) -> None:
    def failures(token: str, **inputs: Any) -> dict[str, str]:
        return {failure.property: failure.reason for failure in plugin.check(token, "x", inputs).failures}

    found = failures(VPC, cidrBlock="10.0.0.0/16", ipv6IpamPoolId="pool", enableDnsSupport=[1])
    assert set(found) == {"ipv6IpamPoolId", "enableDnsSupport"}
    assert "localcloud/aws/provider/services/ec2_network.py" in found["ipv6IpamPoolId"]
    assert failures(VPC)["cidrBlock"].endswith("it is required (localcloud/aws/provider/services/ec2_network.py)")
    cluster = failures(
        "aws:eks/cluster:Cluster", roleArn="r", vpcConfig={"subnetIds": ["a"], "vpcID": "x"},
        accessConfig={"authenticationMode": "IAM"},
    )  # fmt: skip
    assert "allowed are CONFIG_MAP, API_AND_CONFIG_MAP, API" in cluster["accessConfig.authenticationMode"]
    assert "vpcConfig.vpcID" in cluster
    assert "is no JSON" in failures(ROLE, assumeRolePolicy="{")["assumeRolePolicy"]
    with pytest.raises(grpc.RpcError) as error:
        plugin.check("aws:eks/fargateProfile:FargateProfile", "x", {})
    details = str(error.value.details())
    assert "no resource type aws:eks/fargateProfile:FargateProfile" in details
    assert "aws:eks/cluster:Cluster" in details and "localcloud/aws/provider/services/" in details
    with pytest.raises(grpc.RpcError, match="no function aws:ec2/getAmi:getAmi"):
        plugin.invoke("aws:ec2/getAmi:getAmi", {})


def test_a_preview_knows_the_inputs_and_nothing_that_aws_chooses(plugin: Plugin) -> None:
    foreseen = plugin.preview(SUBNET, "a", {"vpcId": UNKNOWN, "cidrBlock": "10.0.0.0/24", "tags": {"a": "b"}})
    assert foreseen["vpcId"] == UNKNOWN and foreseen["cidrBlock"] == "10.0.0.0/24"
    assert foreseen["arn"] == UNKNOWN and foreseen["availabilityZone"] == UNKNOWN
    assert foreseen["tagsAll"] == {"a": "b", "project": "slipway"}
    cluster = plugin.preview(
        "aws:eks/cluster:Cluster", "c", {"roleArn": UNKNOWN, "vpcConfig": {"subnetIds": [UNKNOWN, "subnet-1"]}}
    )
    assert cluster["vpcConfig"]["clusterSecurityGroupId"] == UNKNOWN
    assert cluster["endpoint"] == cluster["certificateAuthority"] == UNKNOWN
    assert cluster["name"].startswith("c-")


@pytest.fixture
def vpc(plugin: Plugin) -> Iterator[Resource]:
    inputs = {"cidrBlock": "10.7.0.0/16", "tags": {"team": "hpc"}}
    found = plugin.create(VPC, "changing", inputs)
    yield found
    plugin.delete(VPC, "changing", found)


def test_a_change_in_place_a_replacement_and_an_unknown(plugin: Plugin, vpc: Resource) -> None:
    kind = provider_pb2.PropertyDiff
    found = plugin.diff(VPC, "changing", vpc, {**vpc.inputs, "enableDnsHostnames": True, "tags": {"team": "ml"}})
    assert found.changes == SOME and not found.replaces
    assert {path: d.kind for path, d in found.detailedDiff.items()} == {
        "enableDnsHostnames": kind.ADD, "tags.team": kind.UPDATE,
    }  # fmt: skip
    moved = plugin.diff(VPC, "changing", vpc, {**vpc.inputs, "cidrBlock": "10.8.0.0/16"})
    assert list(moved.replaces) == ["cidrBlock"] and not moved.deleteBeforeReplace
    assert moved.detailedDiff["cidrBlock"].kind == kind.UPDATE_REPLACE
    unknown = plugin.diff(VPC, "changing", vpc, {**vpc.inputs, "cidrBlock": UNKNOWN})
    assert list(unknown.replaces) == ["cidrBlock"]
    ignored = plugin.stub.Diff(
        provider_pb2.DiffRequest(
            id=vpc.id, urn=urn(VPC, "changing"), olds=struct(vpc.state), old_inputs=struct(vpc.inputs),
            news=struct({**vpc.inputs, "tags": {}}), ignoreChanges=["tags"],
        )
    )  # fmt: skip
    assert ignored.changes == NONE


def test_an_ignored_path_hides_itself_and_not_its_neighbours(plugin: Plugin) -> None:
    def scaling(low: int, high: int, wanted: int) -> Any:
        return struct({"scalingConfig": {"minSize": low, "maxSize": high, "desiredSize": wanted}})

    def changed(news: Any) -> list[str]:
        request = provider_pb2.DiffRequest(
            id="c:g", urn=urn("aws:eks/nodeGroup:NodeGroup", "g"), olds=scaling(1, 2, 1), old_inputs=scaling(1, 2, 1),
            news=news, ignoreChanges=["scalingConfig.desiredSize"],
        )  # fmt: skip
        return sorted(plugin.stub.Diff(request).detailedDiff)

    assert changed(scaling(2, 3, 1)) == ["scalingConfig.maxSize", "scalingConfig.minSize"]
    assert changed(scaling(1, 2, 2)) == []


def test_an_update_changes_aws_and_the_state(plugin: Plugin, vpc: Resource, ec2: Any) -> None:
    changed = plugin.update(VPC, "changing", vpc, {"cidrBlock": "10.7.0.0/16", "tags": {"owner": "me"}})
    assert changed.state["tagsAll"] == {"owner": "me", "project": "slipway"}
    tags = {tag["Key"]: tag["Value"] for tag in ec2.describe_vpcs(VpcIds=[vpc.id])["Vpcs"][0]["Tags"]}
    assert tags.pop("slipway:create")
    assert tags == {"owner": "me", "project": "slipway"}


def test_default_tags_reach_what_exists(server: Server, plugin: Plugin, vpc: Resource) -> None:
    other = Plugin(server.environment, {"project": "slipway", "stage": "dev"}, sys.executable)
    try:
        other.configure()
        found = other.diff(VPC, "changing", vpc, vpc.inputs)
        assert list(found.detailedDiff) == ["tagsAll"] and not found.replaces
        changed = other.update(VPC, "changing", vpc, vpc.inputs)
        assert changed.state["tagsAll"] == {"team": "hpc", "project": "slipway", "stage": "dev"}
        assert changed.state["tags"] == {"team": "hpc"}
    finally:
        other.stop()


def test_a_refresh_sees_what_others_changed(plugin: Plugin, vpc: Resource, ec2: Any) -> None:
    ec2.create_tags(Resources=[vpc.id], Tags=[{"Key": "team", "Value": "else"}])
    fresh = plugin.read(VPC, "changing", vpc)
    assert fresh is not None and fresh.inputs["tags"] == {"team": "else"}
    found = plugin.diff(VPC, "changing", fresh, vpc.inputs)
    assert list(found.detailedDiff) == ["tags.team"]


def test_a_fixed_name_is_freed_before_its_successor_takes_it(plugin: Plugin) -> None:
    inputs = {"name": "fixed", "description": "a", "vpcId": UNKNOWN}
    old = Resource("sg-1", plugin.checked(GROUP, "g", inputs), {})
    assert plugin.diff(GROUP, "g", old, {**inputs, "description": "b"}).deleteBeforeReplace
    automatic = Resource("sg-1", plugin.checked(GROUP, "g", {"description": "a"}), {})
    assert not plugin.diff(GROUP, "g", automatic, {"description": "b", "name": "new"}).deleteBeforeReplace


def test_what_is_only_half_made_comes_into_the_state(plugin: Plugin, vpc: Resource) -> None:
    rule = {"protocol": "tcp", "fromPort": 22, "toPort": 22, "securityGroups": ["sg-none"]}
    inputs = {"vpcId": vpc.id, "description": "x", "ingress": [rule]}
    with pytest.raises(Refused, match=r"InvalidGroup\.NotFound") as error:
        plugin.create(GROUP, "half", inputs)
    partial = error.value.partial
    assert partial is not None and partial.id.startswith("sg-")
    mended = plugin.update(
        GROUP, "half", partial, {**inputs, "ingress": [{**rule, "securityGroups": None, "self": True}]}
    )
    assert mended.state["ingress"][0]["self"] is True
    plugin.delete(GROUP, "half", mended)


def test_a_name_that_somebody_else_took_is_an_error(plugin: Plugin, iam: Any) -> None:
    iam.create_role(RoleName="taken", AssumeRolePolicyDocument=trust("ec2.amazonaws.com"))
    with pytest.raises(Refused, match="EntityAlreadyExists"):
        plugin.create(ROLE, "role", {"name": "taken", "assumeRolePolicy": trust("ec2.amazonaws.com")})


def test_functions(plugin: Plugin) -> None:
    assert plugin.invoke("aws:index/getCallerIdentity:getCallerIdentity", {}) == {
        "accountId": "123456789012", "id": "123456789012", "userId": "AIDASLIPWAYLOCALUSER0",
        "arn": "arn:aws:iam::123456789012:user/slipway",
    }  # fmt: skip
    zones = plugin.invoke("aws:index/getAvailabilityZones:getAvailabilityZones", {"state": "available"})
    assert zones["names"][:2] == ["us-east-1a", "us-east-1b"]
    assert plugin.invoke("aws:index/getRegion:getRegion", {})["region"] == "us-east-1"
    assert plugin.invoke("aws:index/getPartition:getPartition", {})["partition"] == "aws"
    user = "arn:aws:iam::123456789012:user/slipway"
    context = "aws:iam/getSessionContext:getSessionContext"
    assert plugin.invoke(context, {"arn": user})["issuerArn"] == user
    role = plugin.create(ROLE, "session", {"path": "/hpc/", "assumeRolePolicy": trust("ec2.amazonaws.com")})
    session = f"arn:aws:sts::123456789012:assumed-role/{role.id}/anna"
    answer = plugin.invoke(context, {"arn": session})
    assert (answer["issuerArn"], answer["sessionName"]) == (role.state["arn"], "anna")
    plugin.delete(ROLE, "session", role)
    made = plugin.invoke("aws:iam/getPolicyDocument:getPolicyDocument", {"statements": [{"actions": ["a:B"]}]})
    assert json.loads(made["json"])["Statement"] == [{"Effect": "Allow", "Action": "a:B"}]


@pytest.mark.parametrize(
    ("url", "words"),
    [("", "AWS_ENDPOINT_URL is not set.*make up"), ("https://ec2.us-east-1.amazonaws.com", "is AWS itself")],
)
def test_it_never_talks_to_aws(server: Server, url: str, words: str) -> None:
    plugin = Plugin({**server.environment, "AWS_ENDPOINT_URL": url}, None, sys.executable)
    try:
        with pytest.raises(grpc.RpcError, match=words):
            plugin.configure()
    finally:
        plugin.stop()


def test_a_server_that_is_down_is_told_so(server: Server) -> None:
    plugin = Plugin({**server.environment, "AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, None, sys.executable)
    try:
        plugin.configure()
        with pytest.raises(Refused, match=r"does not answer.*make up"):
            plugin.create(VPC, "net", {"cidrBlock": "10.0.0.0/16"})
    finally:
        plugin.stop()


def test_it_ends_when_its_engine_was_killed(server: Server) -> None:
    starter = (
        "import subprocess, sys\n"
        "made = subprocess.Popen([sys.argv[1]], stdout=subprocess.PIPE, text=True)\n"
        "made.stdout.readline()\n"
        "print(made.pid, flush=True)\n"
    )
    plugin = Plugin(server.environment, None, sys.executable)
    command = plugin.process.args[0]  # type: ignore[index]
    plugin.stop()
    path = {"PATH": f"{sys.prefix}/bin:/usr/bin:/bin", **server.environment}
    started = subprocess.run(
        [sys.executable, "-c", starter, str(command)], stdout=subprocess.PIPE, text=True, env=path, check=True
    )
    pid, ended = int(started.stdout), threading.Event()
    for _ in range(200):
        if not _alive(pid):
            break
        ended.wait(0.05)
    assert not _alive(pid)


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_differences_by_meaning() -> None:
    props = {
        "ids": strings(), "policy": document(), "size": number(), "on": flag(), "labels": mapping(),
        "config": block({"mode": text(), "fixed": text(replace=True), "chosen": text(computed=True)}),
    }  # fmt: skip
    old = {
        "ids": ["a", "b"], "policy": '{"Action": ["x", "y"], "R": ["*"]}', "size": 3, "on": True, "labels": {"a": "1"},
        "config": {"mode": "API", "fixed": "f", "chosen": "c"},
    }  # fmt: skip
    same = {
        "ids": ["b", "a"], "policy": '{"R": "*", "Action": ["y", "x"]}', "size": "3", "on": "true", "labels": {"a": 1},
        "config": {"mode": "API", "fixed": "f"},
    }  # fmt: skip
    assert changes(props, old, same) == []
    assert changes(props, old, {**same, "ids": ["a"], "labels": {"a": "1", "b/c": "2"}}) == [
        Change("ids", "update", False), Change('labels["b/c"]', "add", False),
    ]  # fmt: skip
    assert changes(props, old, {**same, "config": {"mode": "X", "fixed": "g"}}) == [
        Change("config.fixed", "update", True), Change("config.mode", "update", False),
    ]  # fmt: skip
    assert changes(props, old, {**same, "config": None}) == [Change("config", "delete", True)]
