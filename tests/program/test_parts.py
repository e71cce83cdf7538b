"""The pure functions behind the components."""

from __future__ import annotations

from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.charts import content_hash
from components.cluster import principal_of
from components.data import instance_types
from components.nodes import GPU_KEY, PARTITION_KEY, partition_group
from components.region import domain, managed_policy, partition
from components.settings import Partition, Settings
from components.settings.model import Home
from components.settings.partition import spare_cpu, spare_memory_mib
from components.slurm import home_volume, pod_security
from components.slurm_conf import config_files, default_memory_per_cpu, gres_type, node_options, slurm_conf
from components.subnets import private_size, shares
from tests.program.golden import shown
from tests.program.harness import run, stack_config


def a_partition(**keys: Any) -> Partition:
    raw = {"name": "debug", "instances": ["m7i.xlarge"], "nodes": {"min": 1, "max": 2}, **keys}
    return Partition.model_validate(raw)


def some_settings(**keys: Any) -> Settings:
    raw = {
        "home": {"ephemeral": True},
        "partitions": [{"name": "debug", "instances": ["g6.xlarge"], "nodes": {"min": 1, "max": 2}}],
        **keys,
    }
    return Settings.model_validate(raw)


@given(st.integers(16, 24), st.integers(2, 6))
def test_subnets_are_apart_and_in_the_vpc(prefix: int, zones: int) -> None:
    cidr = f"10.1.0.0/{prefix}"
    private, public = shares(cidr, zones)
    everything = [*private, *public]
    assert (len(private), len(public)) == (zones, zones)
    assert all(subnet.subnet_of(IPv4Network(cidr)) for subnet in everything)
    assert not any(a.overlaps(b) for i, a in enumerate(everything) for b in everything[i + 1 :])
    assert all(subnet.num_addresses == private_size(cidr, zones) for subnet in private)
    assert all(subnet.num_addresses >= 4 for subnet in public)


def test_a_third_zone_moves_no_subnet() -> None:
    """Subnets cannot be changed in place: another division would replace them, and all nodes in them."""
    (private2, public2), (private3, public3) = shares("10.1.0.0/20", 2), shares("10.1.0.0/20", 3)
    assert private3[:2] == private2
    assert public3[:2] == public2


@pytest.mark.parametrize(
    ("region", "parts"),
    [
        ("us-west-2", ("aws", "amazonaws.com")),
        ("cn-north-1", ("aws-cn", "amazonaws.com.cn")),
        ("us-gov-west-1", ("aws-us-gov", "amazonaws.com")),
    ],
)
def test_partitions_of_aws(region: str, parts: tuple[str, str]) -> None:
    assert (partition(region), domain(region)) == parts
    assert managed_policy(region, "X") == f"arn:{parts[0]}:iam::aws:policy/X"


def test_session_tells_no_principal() -> None:
    assert principal_of("arn:aws:iam::123456789012:user/me") == "arn:aws:iam::123456789012:user/me"
    assert principal_of("arn:aws:sts::123456789012:assumed-role/dev/me") is None


@pytest.mark.parametrize(
    "name", [n for n, k in instance_types().items() if k.accelerator == "nvidia" and k.arch == "x86_64"]
)
def test_gpu_nodes_are_tainted_as_such(name: str) -> None:
    group = partition_group(a_partition(instances=[name]))
    assert GPU_KEY in {taint.key for taint in group.taints}
    assert group.ami_type == "AL2023_x86_64_NVIDIA"


def test_other_nodes_belong_to_their_partition() -> None:
    group = partition_group(a_partition(capacity=["spot"]))
    assert [(taint.key, taint.value) for taint in group.taints] == [(PARTITION_KEY, "debug")]
    assert group.labels == {PARTITION_KEY: "debug"}
    assert (group.ami_type, group.capacity) == ("AL2023_x86_64_STANDARD", "spot")


def test_what_is_left_for_slurm() -> None:
    kind = instance_types()["m7i.large"]
    assert spare_cpu(kind) == pytest.approx(2 - 0.07 - 0.25)
    assert spare_memory_mib(kind) == int(8192 * 0.925) - (255 + 11 * 29) - 100 - 512


@pytest.mark.parametrize(
    ("gpu", "expected"), [("L4", "l4"), ("A10G", "a10g"), ("H100", "h100"), ("L40S", "l40s"), ("RTX PRO 4500", None)]
)
def test_gres_types_are_part_of_the_drivers_names(gpu: str, expected: str | None) -> None:
    assert gres_type(gpu) == expected


def test_node_options() -> None:
    assert node_options(a_partition(instances=["p5.48xlarge"])) == "Gres=gpu:h100:8"
    assert node_options(a_partition(instances=["p5.48xlarge"], resources={"gpus": 4})) == "Gres=gpu:h100:4"
    assert node_options(a_partition(instances=["g7.12xlarge"])) == "Gres=gpu:2"
    assert node_options(a_partition()) == ""


def test_jobs_get_their_share_of_memory() -> None:
    worker = a_partition(resources={"cpu": 2, "memory": "4Gi"})
    assert default_memory_per_cpu(worker) == int(4096 * 0.95 / 2)
    assert default_memory_per_cpu(a_partition(resources={"cpu": 0.5, "memory": "1Gi"})) == int(1024 * 0.95)


def test_cgroups_decide_on_plugins_and_files() -> None:
    confined = some_settings()
    assert "TaskPlugin=task/cgroup,task/affinity" in slurm_conf(confined.slurm, confined.partitions).splitlines()
    assert "ConstrainDevices=yes" in config_files(confined.slurm, confined.partitions)["cgroup.conf"]
    free = some_settings(slurm={"cgroups": False})
    assert "TaskPlugin=task/none" in slurm_conf(free.slurm, free.partitions).splitlines()
    assert list(config_files(free.slurm, free.partitions)) == ["gres.conf"]


def test_the_users_parameters_win() -> None:
    settings = some_settings(slurm={"conf": {"ReturnToService": 1, "SchedulerParameters": "bf_continue"}})
    lines = slurm_conf(settings.slurm, settings.partitions).splitlines()
    assert lines.count("ReturnToService=1") == 1
    assert "ReturnToService=2" not in lines
    assert lines[-1] == "SchedulerParameters=bf_continue"


@pytest.mark.parametrize(
    ("home", "volume"),
    [
        ({"nfs": {"server": "fs", "path": "/h"}}, {"nfs": {"server": "fs", "path": "/h"}}),
        ({"claim": "home"}, {"persistentVolumeClaim": {"claimName": "home"}}),
        ({"hostPath": "/mnt/home"}, {"hostPath": {"path": "/mnt/home", "type": "Directory"}}),
        ({"ephemeral": True}, {}),
    ],
)
def test_home_volumes(home: dict[str, Any], volume: dict[str, Any]) -> None:
    assert home_volume(Home.model_validate(home)) == volume


def test_pod_security_is_as_strict_as_it_can_be() -> None:
    assert pod_security(some_settings()) == "privileged"
    assert pod_security(some_settings(slurm={"cgroups": False})) == "baseline"
    assert pod_security(some_settings(slurm={"cgroups": False}, home={"hostPath": "/mnt"})) == "privileged"


def test_chart_hash_changes_with_any_file(tmp_path: Path) -> None:
    (tmp_path / "templates").mkdir()
    file = tmp_path / "templates" / "a.yaml"
    file.write_text("a")
    first = content_hash(tmp_path)
    file.write_text("b")
    second = content_hash(tmp_path)
    file.rename(tmp_path / "templates" / "b.yaml")
    assert len({first, second, content_hash(tmp_path)}) == 3
    with pytest.raises(FileNotFoundError):
        content_hash(tmp_path / "absent")


def test_images_can_be_replaced_by_others() -> None:
    digest = "sha256:" + "0" * 64
    config = stack_config("local") | {
        "slipway:images": {
            "overrides": {
                "slurmd": "ghcr.io/slinkyproject/slurmd:26.05-ubuntu26.04",
                "slurmctld": f"registry.example:5000/x/slurmctld@{digest}",
            }
        }
    }
    values = run("local", config=config).one("Release", "slurm").inputs["values"]
    assert values["nodesets"]["debug"]["slurmd"]["image"] == {
        "repository": "ghcr.io/slinkyproject/slurmd",
        "tag": "26.05-ubuntu26.04",
    }
    assert values["controller"]["slurmctld"]["image"] == {
        "repository": "registry.example:5000/x/slurmctld",
        "digest": digest,
    }


@pytest.mark.parametrize("images", [{"registry": "mirror.example/team"}, {"manageRepositories": False}])
def test_repositories_are_made_only_where_they_are_ours(images: dict[str, Any]) -> None:
    recording = run("local", config=stack_config("local") | {"slipway:images": images})
    assert recording.all("ecr/repository:Repository") == []
    registry = images.get("registry", "123456789012.dkr.ecr.us-east-1.amazonaws.com")
    operator = recording.one("Release", "slurm-operator").inputs["values"]["image"]
    assert operator["repository"] == f"{registry}/slipway/slurm-operator"


def test_a_nat_gateway_per_zone_where_it_is_asked_for() -> None:
    config = stack_config("local") | {"slipway:network": {"nat": "per-zone", "flowLogs": False}}
    recording = run("local", config=config)
    nats = recording.all("NatGateway")
    assert len(nats) == 2
    assert len({nat.inputs["subnetId"] for nat in nats}) == 2
    for zone in ("a", "b"):
        route = recording.one("ec2/route:Route", f"private-us-east-1{zone}")
        assert route.inputs["natGatewayId"] == f"nat-us-east-1{zone}-id"


def test_named_administrators_replace_the_deployer() -> None:
    arns = ["arn:aws:iam::123456789012:role/ops/platform", "arn:aws:iam::123456789012:user/alice"]
    recording = run("local", config=stack_config("local") | {"slipway:access": {"admins": arns}})
    entries = recording.all("AccessEntry")
    assert {entry.inputs["principalArn"] for entry in entries} == set(arns)
    assert len(recording.all("AccessPolicyAssociation")) == 2


def test_another_partition_adds_its_nodes_and_changes_no_other(recorded: Any) -> None:
    """Adding a partition is one list entry, and touches nothing but Slurm's own chart."""
    config = stack_config("dev")
    extra = {"name": "big", "instances": ["c7i.4xlarge"], "nodes": {"min": 0, "max": 3}}
    more = run("dev", config=config | {"slipway:partitions": [*config["slipway:partitions"], extra]})
    before = {r.urn: r for r in recorded("dev", "update").resources}
    after = {r.urn: r for r in more.resources}
    added = {urn.rpartition("$")[2] for urn in set(after) - set(before)}
    assert added == {
        "slipway:aws:NodeGroup::big",
        "aws:ec2/launchTemplate:LaunchTemplate::big",
        "aws:eks/nodeGroup:NodeGroup::big",
    }
    changed = {urn.rpartition("$")[2] for urn in before if shown(before[urn].inputs) != shown(after[urn].inputs)}
    assert changed == {"kubernetes:helm.sh/v3:Release::slurm"}
