"""What the program registers for each stack, in which order, and what it never does."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from ipaddress import IPv4Network
from typing import Any

import pytest

from tests.program import golden
from tests.program.harness import Recording, Registered, run, stack_config

Recorded = Callable[[str, str], Recording]
STACKS = golden.STACKS


@pytest.mark.parametrize("stack", STACKS)
def test_graph_is_the_reviewed_one(stack: str, recorded: Recorded) -> None:
    actual = golden.graph(recorded(stack, "update"))
    expected = golden.path(stack).read_text()
    assert actual == expected, "if the change is intended: python -m tests.program.golden, and review the diff"


@pytest.mark.parametrize("stack", STACKS)
def test_preview_registers_the_same_resources(stack: str, recorded: Recorded) -> None:
    preview, update = recorded(stack, "preview"), recorded(stack, "update")
    assert {r.urn for r in preview.resources} == {r.urn for r in update.resources}


@pytest.mark.parametrize("stack", STACKS)
def test_two_runs_register_the_same(stack: str, recorded: Recorded) -> None:
    assert golden.graph(run(stack)) == golden.graph(recorded(stack, "update"))


@pytest.mark.parametrize("stack", STACKS)
def test_urns_are_unique(stack: str, recorded: Recorded) -> None:
    urns = [r.urn for r in recorded(stack, "update").resources]
    assert len(urns) == len(set(urns))


@pytest.mark.parametrize("stack", STACKS)
def test_everything_in_a_cloud_uses_an_explicit_provider(stack: str, recorded: Recorded) -> None:
    for resource in recorded(stack, "update").resources:
        if resource.custom and not resource.type.startswith("pulumi:providers:"):
            assert "::default" not in resource.provider and resource.provider, resource.urn


# (later, earlier): the earlier is made first and destroyed last.
ORDER = [
    ("kubernetes:helm.sh/v3:Release::slurm", "kubernetes:helm.sh/v3:Release::slurm-operator"),
    ("kubernetes:helm.sh/v3:Release::slurm-operator", "kubernetes:core/v1:Namespace::slurm"),
    ("kubernetes:core/v1:Namespace::slurm", "aws:eks/nodeGroup:NodeGroup::debug"),
    ("kubernetes:helm.sh/v3:Release::slurm", "aws:eks/nodeGroup:NodeGroup::debug"),
    ("kubernetes:helm.sh/v3:Release::slurm", "aws:eks/nodeGroup:NodeGroup::system"),
    ("kubernetes:helm.sh/v3:Release::slurm", "kubernetes:storage.k8s.io/v1:StorageClass::gp3"),
    ("kubernetes:helm.sh/v3:Release::slurm", "kubernetes:scheduling.k8s.io/v1:PriorityClass::slipway-worker"),
    ("kubernetes:helm.sh/v3:Release::slurm-operator", "aws:eks/nodeGroup:NodeGroup::system"),
    ("kubernetes:helm.sh/v3:Release::slurm-operator", "aws:eks/addon:Addon::coredns"),
    ("kubernetes:helm.sh/v3:Release::slurm-operator", "aws:ecr/repository:Repository::slurm-operator"),
    ("kubernetes:core/v1:Namespace::slurm", "aws:eks/addon:Addon::aws-ebs-csi-driver"),
    ("kubernetes:core/v1:Namespace::slurm-operator", "aws:eks/accessPolicyAssociation:AccessPolicyAssociation"),
    ("kubernetes:storage.k8s.io/v1:StorageClass::gp3", "aws:eks/accessPolicyAssociation:AccessPolicyAssociation"),
    ("aws:eks/addon:Addon::coredns", "aws:eks/nodeGroup:NodeGroup::system"),
    ("aws:eks/addon:Addon::aws-ebs-csi-driver", "aws:iam/rolePolicyAttachment:RolePolicyAttachment::ebs-csi"),
    ("aws:eks/nodeGroup:NodeGroup::debug", "aws:eks/addon:Addon::vpc-cni"),
    ("aws:eks/nodeGroup:NodeGroup::debug", "aws:eks/addon:Addon::kube-proxy"),
    ("aws:eks/nodeGroup:NodeGroup::debug", "aws:eks/addon:Addon::eks-pod-identity-agent"),
    ("aws:eks/nodeGroup:NodeGroup::debug", "aws:eks/cluster:Cluster::cluster"),
    ("aws:eks/nodeGroup:NodeGroup::system", "aws:ec2/route:Route::private-"),
    ("aws:eks/nodeGroup:NodeGroup::system", "aws:ec2/natGateway:NatGateway"),
    ("aws:eks/nodeGroup:NodeGroup::system", "aws:ec2/vpcEndpoint:VpcEndpoint::s3"),
    ("aws:eks/nodeGroup:NodeGroup::system", "aws:iam/rolePolicyAttachment:RolePolicyAttachment::node-"),
    ("aws:eks/addon:Addon::vpc-cni", "aws:iam/rolePolicyAttachment:RolePolicyAttachment::vpc-cni"),
    ("aws:eks/cluster:Cluster::cluster", "aws:cloudwatch/logGroup:LogGroup::control-plane"),
    ("aws:eks/cluster:Cluster::cluster", "aws:iam/rolePolicyAttachment:RolePolicyAttachment::control-plane"),
    ("aws:eks/cluster:Cluster::cluster", "aws:ec2/subnet:Subnet::private-"),
    ("aws:ec2/natGateway:NatGateway", "aws:ec2/internetGateway:InternetGateway"),
    ("aws:ec2/eip:Eip", "aws:ec2/internetGateway:InternetGateway"),
]


def named(resource: Registered, which: str) -> bool:
    """`type::name`, `type::beginning-` or `type` for all of a type."""
    name = golden.short(resource.urn)
    return name == which or (which.endswith("-") and name.startswith(which)) or name.startswith(f"{which}::")


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize(("later", "earlier"), ORDER)
def test_order(stack: str, later: str, earlier: str, recorded: Recorded) -> None:
    recording = recorded(stack, "update")
    later_ones = [r for r in recording.resources if named(r, later)]
    earlier_ones = {r.urn for r in recording.resources if named(r, earlier)}
    assert later_ones and earlier_ones
    for resource in later_ones:
        assert earlier_ones <= recording.needs(resource), f"{resource.urn} does not wait for all {earlier}"


@pytest.mark.parametrize("stack", STACKS)
def test_graph_can_be_destroyed(stack: str, recorded: Recorded) -> None:
    """There is no cycle: each resource has something that may be destroyed before it, until nothing is left."""
    recording = recorded(stack, "update")
    left = {r.urn: recording.needs(r) for r in recording.resources}
    destroyed: list[str] = []
    while left:
        leaves = [urn for urn in left if not any(urn in needs for other, needs in left.items() if other != urn)]
        assert leaves
        destroyed += leaves
        for urn in leaves:
            del left[urn]
    order = [golden.short(urn) for urn in destroyed]
    assert order.index("kubernetes:helm.sh/v3:Release::slurm") < order.index(
        "kubernetes:helm.sh/v3:Release::slurm-operator"
    )
    assert order.index("aws:eks/nodeGroup:NodeGroup::debug") < order.index("aws:eks/cluster:Cluster::cluster")
    assert order.index("aws:eks/cluster:Cluster::cluster") < order.index("aws:ec2/vpc:Vpc::network")


@pytest.mark.parametrize("stack", STACKS)
def test_only_what_holds_nothing_outside_vanishes_with_the_cluster(stack: str, recorded: Recorded) -> None:
    """deleted_with skips the deletion: volumes and custom resources with finalizers would be left behind."""
    skipped = {golden.short(r.urn) for r in recorded(stack, "update").resources if "deletedWith" in r.options}
    assert skipped == {
        "kubernetes:storage.k8s.io/v1:StorageClass::gp3",
        "kubernetes:scheduling.k8s.io/v1:PriorityClass::slipway-critical",
        "kubernetes:scheduling.k8s.io/v1:PriorityClass::slipway-worker",
        "kubernetes:core/v1:Namespace::slurm-operator",
    }


@pytest.mark.parametrize("stack", STACKS)
def test_cluster_is_closed(stack: str, recorded: Recorded) -> None:
    recording = recorded(stack, "update")
    inputs = recording.one("eks/cluster:Cluster").inputs
    assert inputs["accessConfig"] == {
        "authenticationMode": "API",
        "bootstrapClusterCreatorAdminPermissions": False,
    }
    assert inputs["vpcConfig"]["endpointPrivateAccess"] is True
    cidrs = stack_config(stack).get("slipway:access", {}).get("apiFrom")
    assert inputs["vpcConfig"]["endpointPublicAccess"] is bool(cidrs)
    assert inputs["vpcConfig"].get("publicAccessCidrs") == cidrs
    assert inputs["encryptionConfig"]["resources"] == ["secrets"]
    assert len(inputs["enabledClusterLogTypes"]) == 5
    assert len(inputs["vpcConfig"]["subnetIds"]) >= 2


@pytest.mark.parametrize("stack", STACKS)
def test_deployer_is_the_only_administrator(stack: str, recorded: Recorded) -> None:
    recording = recorded(stack, "update")
    entry = recording.one("eks/accessEntry:AccessEntry")
    assert entry.inputs["principalArn"] == "arn:aws:iam::123456789012:role/ci/deployer"
    policy = recording.one("AccessPolicyAssociation").inputs["policyArn"]
    assert policy == "arn:aws:eks::aws:cluster-access-policy/AmazonEKSClusterAdminPolicy"


@pytest.mark.parametrize("stack", STACKS)
def test_instances_are_tight(stack: str, recorded: Recorded) -> None:
    for template in recorded(stack, "update").all("LaunchTemplate"):
        options = template.inputs["metadataOptions"]
        assert (options["httpTokens"], options["httpPutResponseHopLimit"]) == ("required", 1)
        assert all(
            mapping["ebs"]["encrypted"] == "true" and mapping["ebs"]["volumeType"] == "gp3"
            for mapping in template.inputs["blockDeviceMappings"]
        )


def test_instances_and_volumes_carry_cost_tags(recorded: Recorded) -> None:
    template = recorded("dev", "update").one("LaunchTemplate", "gpu")
    for specification in template.inputs["tagSpecifications"]:
        tags = specification["tags"]
        assert tags["slipway:stack"] == "dev"
        assert tags["slipway:partition"] == "gpu"
    assert {s["resourceType"] for s in template.inputs["tagSpecifications"]} == {
        "instance",
        "volume",
        "network-interface",
    }


def test_provider_tags_everything(recorded: Recorded) -> None:
    provider = recorded("dev", "update").one("providers:aws")
    tags = json.loads(provider.inputs["defaultTags"])["tags"]
    assert tags == {"slipway:stack": "dev", "slipway:cluster": "slipway-dev"}
    assert provider.inputs["region"] == "us-west-2"


def test_kubeconfig_holds_no_credentials(recorded: Recorded) -> None:
    provider = recorded("local", "update").one("providers:kubernetes")
    kubeconfig = json.loads(provider.inputs["kubeconfig"])
    user = kubeconfig["users"][0]["user"]
    assert set(user) == {"exec"}
    assert user["exec"]["args"] == ["eks", "get-token", "--cluster-name", "slipway-local", "--region", "us-east-1"]
    assert provider.inputs["clusterIdentifier"].endswith(":cluster/made")


def test_partitions_nodes_are_their_own(recorded: Recorded) -> None:
    recording = recorded("dev", "update")
    gpu = recording.one("nodeGroup:NodeGroup", "gpu").inputs
    assert gpu["labels"] == {"slipway.dev/partition": "gpu"}
    assert gpu["taints"] == [
        {"key": "slipway.dev/partition", "value": "gpu", "effect": "NO_SCHEDULE"},
        {"key": "nvidia.com/gpu", "value": "true", "effect": "NO_SCHEDULE"},
    ]
    assert (gpu["amiType"], gpu["capacityType"]) == ("AL2023_x86_64_NVIDIA", "SPOT")
    assert len(gpu["subnetIds"]) == 1
    system = recording.one("nodeGroup:NodeGroup", "system").inputs
    assert system["taints"] == [{"key": "CriticalAddonsOnly", "value": "true", "effect": "NO_SCHEDULE"}]
    assert len(system["subnetIds"]) == 2


def test_who_scales_owns_the_number(recorded: Recorded) -> None:
    ranged = recorded("dev", "update").one("nodeGroup:NodeGroup", "debug")
    fixed = recorded("local", "update").one("nodeGroup:NodeGroup", "debug")
    assert ranged.options["ignoreChanges"] == ["scalingConfig.desiredSize"]
    assert "ignoreChanges" not in fixed.options


def test_workers_fit_their_nodes_and_tolerate_them(recorded: Recorded) -> None:
    values = recorded("dev", "update").one("Release", "slurm").inputs["values"]
    gpu = values["nodesets"]["gpu"]
    assert gpu["slurmd"]["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert gpu["extraConf"] == "Gres=gpu:l4:1"
    assert gpu["podSpec"]["nodeSelector"] == {"slipway.dev/partition": "gpu"}
    assert {t["key"] for t in gpu["podSpec"]["tolerations"]} == {"slipway.dev/partition", "nvidia.com/gpu"}
    assert "GresTypes=gpu" in values["controller"]["extraConf"]
    assert values["configFiles"]["gres.conf"] == "AutoDetect=nvidia\n"
    assert "Default=YES" in values["nodesets"]["debug"]["partition"]["config"]


def test_without_cgroups_no_privileges(recorded: Recorded) -> None:
    recording = recorded("local", "update")
    values = recording.one("Release", "slurm").inputs["values"]
    assert values["configFiles"] == {}
    assert "ProctrackType=proctrack/linuxproc" in values["controller"]["extraConf"]
    operator = recording.one("Namespace", "slurm-operator").inputs["metadata"]["labels"]
    assert operator == {"pod-security.kubernetes.io/enforce": "restricted"}


def test_users_and_home_reach_the_chart(recorded: Recorded) -> None:
    values = recorded("local", "update").one("Release", "slurm").inputs["values"]
    alice = {"name": "alice", "uid": 2001, "gid": 2001, "shell": "/bin/bash", "sshAuthorizedKeys": []}
    assert values["users"] == [alice]
    assert values["home"] == {"hostPath": {"path": "/mnt/home", "type": "Directory"}}


def policy_documents(recording: Recording) -> Iterator[tuple[Registered, dict[str, Any]]]:
    """Every IAM policy document of a run, trust policies too."""
    for resource in recording.resources:
        for key in ("policy", "assumeRolePolicy"):
            if resource.type.startswith("aws:iam/") and key in resource.inputs:
                yield resource, json.loads(resource.inputs[key])


@pytest.mark.parametrize("stack", STACKS)
def test_iam_documents_grant_single_actions_on_named_things(stack: str, recorded: Recorded) -> None:
    documents = list(policy_documents(recorded(stack, "update")))
    assert documents
    for resource, document in documents:
        assert document["Version"] == "2012-10-17"
        for statement in document["Statement"]:
            actions = statement["Action"]
            for action in actions if isinstance(actions, list) else [actions]:
                assert "*" not in action, resource.urn
            if "Principal" not in statement:
                assert statement["Resource"] != "*", resource.urn


@pytest.mark.parametrize("stack", STACKS)
def test_pod_identity_roles_are_for_this_cluster_only(stack: str, recorded: Recorded) -> None:
    trusts = [
        statement
        for _, document in policy_documents(recorded(stack, "update"))
        for statement in document["Statement"]
        if statement.get("Principal") == {"Service": "pods.eks.amazonaws.com"}
    ]
    assert len(trusts) == 2
    for trust in trusts:
        assert trust["Action"] == ["sts:AssumeRole", "sts:TagSession"]
        assert trust["Condition"]["StringEquals"] == {"aws:SourceAccount": "123456789012"}
        assert trust["Condition"]["ArnEquals"]["aws:SourceArn"].endswith(":cluster/made")


@pytest.mark.parametrize("stack", STACKS)
def test_repositories_are_tight(stack: str, recorded: Recorded) -> None:
    repositories = recorded(stack, "update").all("ecr/repository:Repository")
    assert {r.inputs["name"] for r in repositories} == {
        f"slipway/{image}" for image in ("slurmctld", "slurmd", "slurmdbd", "slurmrestd", "login", "slurm-operator")
    }
    for repository in repositories:
        assert repository.inputs["imageTagMutability"] == "IMMUTABLE"
        assert repository.inputs["imageScanningConfiguration"] == {"scanOnPush": True}
        assert repository.inputs["encryptionConfigurations"][0]["encryptionType"] == "KMS"


@pytest.mark.parametrize("stack", STACKS)
def test_logs_expire_and_are_encrypted(stack: str, recorded: Recorded) -> None:
    for group in recorded(stack, "update").all("LogGroup"):
        assert group.inputs["retentionInDays"] == stack_config(stack)["slipway:cluster"]["logRetentionDays"]
        assert group.inputs["kmsKeyId"] == "made-arn-of-key"


@pytest.mark.parametrize("stack", STACKS)
def test_subnets_lie_in_the_vpc_and_apart(stack: str, recorded: Recorded) -> None:
    recording = recorded(stack, "update")
    vpc = IPv4Network(recording.one("Vpc").inputs["cidrBlock"])
    subnets = [IPv4Network(s.inputs["cidrBlock"]) for s in recording.all("Subnet")]
    assert len(subnets) == 4
    assert all(subnet.subnet_of(vpc) for subnet in subnets)
    assert not any(a.overlaps(b) for i, a in enumerate(subnets) for b in subnets[i + 1 :])
