"""The two charts on a plain cluster, with helm alone: no Pulumi, no AWS stand-in."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from images.tags import image_tags
from localcloud import images
from localcloud.kubernetes import addons, cluster
from localcloud.kubernetes.specs import NodeSpec
from localcloud.paths import Instance
from localcloud.tools import ensure_tools
from tests.clusters import add_nodes, own_instance

from .conftest import REPOSITORY

pytestmark = pytest.mark.e2e

VALUES = {
    "controller": {"persistence": {"enabled": False}},
    "users": [{"name": "bob", "uid": 2002}],
    "loginsets": {"login": {"enabled": True}},
    "nodesets": {
        "debug": {
            "replicas": 2,
            "slurmd": {"resources": {"limits": {"cpu": "1", "memory": "512Mi"}}},
            "partition": {"enabled": True, "configMap": {"Default": "YES"}},
        }
    },
}


@dataclass
class PlainCluster:
    instance: Instance
    environment: dict[str, str]

    def run(self, *command: str) -> str:
        done = subprocess.run(
            command, env=self.environment, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlainCluster]:
    """Control plane, CoreDNS, the registry with the images, and two nodes."""
    with own_instance() as inst:
        tools = ensure_tools(lambda _: None)
        cluster.start_registry(inst=inst)
        images.ensure_images(lambda _: None, registry=inst.registry)
        cluster.start_control_plane(inst=inst)
        add_nodes(inst, NodeSpec("one"), NodeSpec("two"))
        addons.apply_coredns(inst)
        yield PlainCluster(
            inst, {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "KUBECONFIG": str(inst.kubeconfig)}
        )


def test_both_charts_make_the_same_slurm(plain: PlainCluster, tmp_path: Path) -> None:
    values, tags = tmp_path / "values.json", image_tags()
    registry = "123456789012.dkr.ecr.us-east-1.amazonaws.com"
    wanted = json.loads(json.dumps(VALUES))
    wanted["imageRegistry"] = registry
    wanted["controller"]["slurmctld"] = {"image": {"tag": tags["slurmctld"]}}
    wanted["restapi"] = {"slurmrestd": {"image": {"tag": tags["slurmrestd"]}}}
    wanted["loginsets"]["login"]["login"] = {"image": {"tag": tags["login"]}}
    wanted["nodesets"]["debug"]["slurmd"]["image"] = {"tag": tags["slurmd"]}
    values.write_text(json.dumps(wanted))
    operator = f"--set=image.repository={registry}/slipway/slurm-operator,image.tag={tags['slurm-operator']},replicas=2"
    install = ("helm", "upgrade", "--install", "--create-namespace")

    plain.run(*install, "slurm-operator", "charts/slurm-operator", "-n", "slurm-operator", operator, "--wait")
    plain.run(*install, "slurm", "charts/slurm", "-n", "slurm", "-f", str(values))
    kinds = "controllers.slinky.slurm.net,restapis,nodesets,loginsets"
    plain.run("kubectl", "wait", "-n", "slurm", "--for=condition=Ready", "--timeout=180s", kinds, "--all")

    login = ("kubectl", "-n", "slurm", "exec", "deploy/slurm-login", "-c", "login", "--", "su", "-", "bob", "-c")
    hosts = {line.split(": ")[1] for line in plain.run(*login, "srun -N2 -l hostname").splitlines()}
    assert len(hosts) == 2
    pods = json.loads(plain.run("kubectl", "get", "pods", "-n", "slurm", "-o", "json"))["items"]
    node_of = {pod["spec"].get("hostname"): pod["spec"]["nodeName"] for pod in pods}
    assert {node_of[host] for host in hosts} == {"one", "two"}


def test_uninstall_in_either_order_wedges_nothing(plain: PlainCluster) -> None:
    plain.run("helm", "uninstall", "slurm-operator", "-n", "slurm-operator", "--wait")
    plain.run("helm", "uninstall", "slurm", "-n", "slurm", "--wait", "--timeout=120s")
    plain.run("kubectl", "delete", "namespace", "slurm", "slurm-operator", "--timeout=120s")
