"""Worker pods."""

from __future__ import annotations

import re
from typing import Any

import pytest
from slurm_operator.api.load import InvalidSpec
from slurm_operator.api.nodeset import NodeSetSpec
from slurm_operator.desired import worker as build
from slurm_operator.desired.conf_syntax import BadConf
from slurm_operator.desired.observe import records
from slurm_operator.kube.resources import Object

from desired.things import cluster, node, nodeset_spec, owner


def seated(nodeset: Object, spec: NodeSetSpec, ordinal: int) -> Object:
    return build.worker(nodeset, spec, cluster(), build.numbered(nodeset["metadata"]["name"], spec, ordinal))


def pod(ordinal: int = 0, name: str = "gpu", **fields: Any) -> Object:
    return seated(owner("NodeSet", name), nodeset_spec(**fields), ordinal)


def slurmd(**fields: Any) -> Object:
    return dict(pod(**fields)["spec"]["containers"][0])


def test_names() -> None:
    one = pod(3)
    assert one["metadata"]["name"] == "gpu-3"
    assert one["spec"]["hostname"] == "gpu-3"
    assert one["spec"]["subdomain"] == "slurm-workers-lab"
    assert one["spec"]["dnsConfig"]["searches"] == ["slurm-workers-lab.slurm.svc.cluster.local"]
    assert pod(3, ordinalPadding=4)["metadata"]["name"] == "gpu-0003"


def test_a_host_name_prefix_names_the_slurm_node_and_the_group() -> None:
    """As the Go operator's chart has it: NodeSet slurm-worker-gpu, Slurm nodes gpu-0, …"""
    spec = {"template": {"spec": {"hostname": "gpu-"}}}
    one = pod(1, "slurm-worker-gpu", **spec)
    assert one["metadata"]["name"] == "slurm-worker-gpu-1"
    assert one["spec"]["hostname"] == "gpu-1"
    assert "'Features=gpu'" in one["spec"]["containers"][0]["args"]
    assert build.group_name("slurm-worker-gpu", nodeset_spec(**spec)) == "gpu"


@pytest.mark.parametrize("name", ["Gpu_", "x" * 70, "-"])
def test_an_impossible_host_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidSpec, match="hostname"):
        pod(template={"spec": {"hostname": name}})


def test_arguments() -> None:
    args = slurmd(extraConf="Weight=5 features=nvlink Gres=gpu:h100:8")["args"]
    assert args == [
        "-Z", "--conf-server", "lab-controller.slurm:6817", "--conf",
        "'Features=gpu,nvlink Gres=gpu:h100:8 Weight=5'",
    ]  # fmt: skip
    assert not any("Topology" in argument for argument in args)


@pytest.mark.parametrize("conf", ["Weigt=5", "word", "NodeName=x", "State=DOWN"])
def test_bad_node_parameters_are_refused(conf: str) -> None:
    with pytest.raises(BadConf, match=r"spec\.extraConf"):
        pod(extraConf=conf)


@pytest.mark.parametrize(
    ("limits", "cpus", "memory"),
    [
        ({}, "0", "0"),
        ({"cpu": 4, "memory": "16Gi"}, "4", "16384"),
        ({"cpu": "1500m", "memory": "512Mi"}, "1", "512"),
        ({"cpu": "500m", "memory": "1G"}, "1", "953"),
    ],
)
def test_limits_tell_slurm_the_size(limits: dict[str, Any], cpus: str, memory: str) -> None:
    env = {
        entry["name"]: entry["value"] for entry in slurmd(slurmd={"image": "x", "resources": {"limits": limits}})["env"]
    }
    assert (env["POD_CPUS"], env["POD_MEMORY"]) == (cpus, memory)


def test_no_quantity_is_refused() -> None:
    with pytest.raises(InvalidSpec, match=r"spec\.slurmd\.resources\.limits\.memory"):
        slurmd(slurmd={"image": "x", "resources": {"limits": {"memory": "lots"}}})


def test_no_privileges_unless_asked_for() -> None:
    security = slurmd()["securityContext"]
    assert security == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"], "add": ["CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID"]},
    }
    privileged = slurmd(slurmd={"image": "x", "securityContext": {"privileged": True}})["securityContext"]
    assert "allowPrivilegeEscalation" not in privileged
    more = slurmd(slurmd={"image": "x", "securityContext": {"capabilities": {"add": ["SYS_NICE"]}}})["securityContext"]
    assert "SETUID" in more["capabilities"]["add"]


def test_an_image_is_needed() -> None:
    with pytest.raises(InvalidSpec, match=r"spec\.slurmd\.image"):
        slurmd(slurmd={})


def test_one_worker_per_machine_unless_told_otherwise() -> None:
    def terms(**fields: Any) -> list[Any]:
        rules = (pod(**fields)["spec"].get("affinity") or {}).get("podAntiAffinity") or {}
        return list(rules.get("requiredDuringSchedulingIgnoredDuringExecution") or [])

    assert [term["topologyKey"] for term in terms()] == ["kubernetes.io/hostname"]
    assert terms(oversubscribeNode=True) == []
    own = {"topologyKey": "zone", "labelSelector": {}}
    user = {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [own]}}}
    assert [term["topologyKey"] for term in terms(template={"spec": user})] == ["kubernetes.io/hostname", "zone"]
    zones = {"affinity": {"nodeAffinity": {"x": 1}}}
    assert len(terms(template={"spec": zones})) == 1


def test_the_users_template_is_over_ours() -> None:
    mine = {"nodeSelector": {"a": "b"}, "tolerations": [{"key": "gpu"}], "volumes": [{"name": "home", "emptyDir": {}}]}
    spec = pod(template={"metadata": {"labels": {"team": "x"}}, "spec": mine})["spec"]
    assert spec["nodeSelector"] == {"a": "b"}
    assert {"key": "gpu"} in spec["tolerations"]
    assert {volume["name"] for volume in spec["volumes"]} == {"etc-slurm", "run-slurm", "dshm", "home"}


def test_the_revision_follows_what_a_worker_is_made_of() -> None:
    def revision(**fields: Any) -> str:
        return build.revision("gpu", nodeset_spec(**fields), cluster())

    same = revision()
    unchanged: list[dict[str, Any]] = [
        {"replicas": 7},
        {"partition": {"enabled": True}},
        {"updateStrategy": {"type": "OnDelete"}},
        {"minReadySeconds": 5},
    ]
    changed: list[dict[str, Any]] = [
        {"slurmd": {"image": "slurmd:2"}},
        {"extraConf": "Weight=2"},
        {"template": {"metadata": {"labels": {"a": "b"}}}},
        {"oversubscribeNode": True},
        {"ordinalPadding": 3},
    ]
    assert [fields for fields in unchanged if revision(**fields) != same] == []
    assert [fields for fields in changed if revision(**fields) == same] == []
    assert (
        pod()["metadata"]["labels"]["controller-revision-hash"]
        == pod(1)["metadata"]["labels"]["controller-revision-hash"]
    )


@pytest.mark.parametrize(
    ("name", "ordinal"),
    [("gpu-0", 0), ("gpu-12", 12), ("gpu-012", None), ("gpu-x", None), ("cpu-1", None), ("gpu-", None)],
)
def test_the_number_in_a_name(name: str, ordinal: int | None) -> None:
    assert build.ordinal_of(name, "gpu", nodeset_spec()) == ordinal


def test_records_are_those_with_our_name_and_feature() -> None:
    nodes = [node("gpu-0", features=("gpu",)), node("gpu-1", features=("other",)), node("x-2", features=("gpu",))]
    assert set(records(owner("NodeSet", "gpu"), nodeset_spec(), {one.name: one for one in nodes})) == {"gpu-0"}


def test_the_budget_protects_pods_with_the_label_and_the_service_names_pods_early() -> None:
    budget = build.cluster_budget(owner("Controller", "lab"), cluster())
    assert budget["metadata"]["name"] == "slurm-workers-pdb-lab"
    assert budget["spec"]["maxUnavailable"] == 0
    assert budget["spec"]["selector"]["matchLabels"]["nodeset.slinky.slurm.net/pod-protect"] == "true"
    assert build.cluster_service(owner("Controller", "lab"), cluster())["spec"]["publishNotReadyAddresses"]


@pytest.mark.parametrize(
    ("shown", "update"),
    [
        ("State=ALLOCATED Reason=none", "State=DOWN Reason=slurm-operator: Pod is terminating"),
        ("State=IDLE", "State=DOWN Reason=slurm-operator: Pod is terminating"),
        ("State=IDLE+DRAIN Reason=bad dimm [root@2026-01-01T00:00:00]", "State=DOWN Reason=bad dimm"),
        ("State=IDLE+DRAIN Reason=xid 79 [a] [root@2026-01-01T00:00:00]", "State=DOWN Reason=xid 79 [a]"),
        ("State=IDLE+DRAIN Reason=bad dimm [root@2026-01-01T00:00:00] Comment={}", "State=DOWN Reason=bad dimm"),
        ("State=MIXED+DRAIN Reason=slurm-operator: x [a@2026-01-01T00:00:00]", "State=DOWN Reason=slurm-operator: x"),
        ("NodeAddr=10.1.1.7 State=IDLE", "State=DOWN Reason=slurm-operator: Pod is terminating"),
        ("NodeAddr=fd00::7 State=IDLE", "State=DOWN Reason=slurm-operator: Pod is terminating"),
        ("NodeAddr=w-0 State=IDLE", "State=DOWN Reason=slurm-operator: Pod is terminating"),
        ("NodeAddr=10.1.1.8 State=ALLOCATED", ""),  # its successor's by now
    ],
)
def test_the_pre_stop_hook_keeps_the_reason_of_a_drain(tmp_path: Any, shown: str, update: str) -> None:
    import os
    import subprocess

    fake = tmp_path / "scontrol"
    fake.write_text(
        f'#!/bin/sh\ncase "$*" in *show*) echo "NodeName=x {shown}" ;; *) echo "$@" >>{tmp_path}/log ;; esac\n'
    )
    name = tmp_path / "hostname"
    name.write_text('#!/bin/sh\n[ "$1" = -I ] && echo "10.1.1.7 fd00::7 " || echo w-0\n')
    for program in (fake, name):
        program.chmod(0o755)
    (tmp_path / "log").touch()
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run(["/bin/sh", "-c", build.PRE_STOP], check=True, env=environment)
    log = (tmp_path / "log").read_text().strip()
    assert re.sub(r"^update NodeName=\S+ ?", "", log) == update
