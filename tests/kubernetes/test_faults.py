"""Whatever dies, and whenever: the next start brings it back, and nothing that was stored is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from localcloud import tools
from localcloud.kubernetes import cgroups, cluster, controlplane, leftovers, network, nodes, processes
from localcloud.kubernetes import node as node_module
from localcloud.kubernetes.errors import ClusterError
from localcloud.kubernetes.specs import NodeSpec
from localcloud.paths import REPOSITORY
from tests.clusters import own_instance
from tests.kubernetes import machine
from tests.kubernetes.conftest import Cluster
from tests.kubernetes.pods import eventually, fetch_from_pod, ready

pytestmark = pytest.mark.cluster

MEMO = "/api/v1/namespaces/default/configmaps/memo"


@pytest.fixture
def memo(own: Cluster) -> str:
    """Something stored before the fault; the test asks for it after."""
    text = os.urandom(8).hex()
    own.api.apply(MEMO, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "memo"}, "data": {"text": text}})
    return text


def remembered(own: Cluster) -> str:
    return str(own.api.request("GET", MEMO)["data"]["text"])


@pytest.mark.parametrize("number", range(4), ids=["etcd", "apiserver", "controller-manager", "scheduler"])
def test_a_killed_daemon_of_the_control_plane_comes_back(own: Cluster, memo: str, number: int) -> None:
    bin_dir = tools.ensure_tools()
    daemons = controlplane.daemons(own.inst, bin_dir)
    before = [processes.running(daemon) for daemon in daemons]
    victim = before[number]
    assert victim is not None
    os.kill(victim, signal.SIGKILL)
    eventually(lambda: processes.running(daemons[number]) is None, "the daemon to die")
    cluster.start_control_plane(inst=own.inst)
    after = [processes.running(daemon) for daemon in daemons]
    assert None not in after
    assert [a == b for a, b in zip(before, after, strict=True)] == [i != number for i in range(4)]
    assert remembered(own) == memo


@pytest.mark.parametrize("program", ["containerd", "kubelet", "kube-proxy"])
def test_a_killed_daemon_of_a_node_comes_back_and_its_pods_run_on(own: Cluster, program: str) -> None:
    pods = {p["metadata"]["name"]: p["status"]["containerStatuses"][0]["containerID"] for p in own.ready_web_pods()}
    node = nodes.find(own.inst, "n1")
    first = node_module.first_process(node)
    assert first
    daemon = node_module.daemons(node, tools.ensure_tools(), first)[program]
    victim = processes.running(daemon)
    assert victim
    os.kill(victim, signal.SIGKILL)
    eventually(lambda: processes.running(daemon) is None, "the daemon to die")
    cluster.ensure_all(inst=own.inst)
    assert processes.running(daemon) not in (None, victim)
    assert node_module.first_process(node) == first
    after = {p["metadata"]["name"]: p["status"]["containerStatuses"][0]["containerID"] for p in own.ready_web_pods()}
    assert after == pods
    here = next(p["metadata"]["name"] for p in own.web_pods() if p["spec"]["nodeName"] == "n1")
    assert fetch_from_pod(own.inst, here, ["http://web/"])["http://web/"].startswith("web-")


def test_a_node_that_lost_its_power_comes_back_with_its_pods(own: Cluster) -> None:
    own.ready_web_pods()
    node = nodes.find(own.inst, "n1")
    cluster.kill_node("n1", own.inst)
    assert node_module.first_process(node) is None
    assert cgroups.existing(node.group) == []
    assert f"{own.inst.bridge}n{node.index}" not in machine.snapshot().links
    # The host's way to services leads through another node now.
    assert str(own.inst.node_ip(node.index)) not in " ".join(network.routes_of(own.inst))
    cluster.ensure_all(inst=own.inst)
    # The old pods count as ready in the API until the kubelet has reported: new containers prove that they run.
    eventually(
        lambda: [p for p in own.web_pods() if p["spec"]["nodeName"] == "n1" and restarts(p) > 0], "the pod again"
    )
    own.ready_web_pods()


def restarts(pod: dict[str, Any]) -> int:
    return sum(status["restartCount"] for status in pod["status"].get("containerStatuses", []))


def test_a_node_that_is_switched_off_stays_off(own: Cluster) -> None:
    cluster.stop_node("n2", inst=own.inst)
    assert "n2" not in cluster.ensure_all(inst=own.inst)
    assert node_module.first_process(nodes.find(own.inst, "n2")) is None
    assert any("n2" in line and "switched off" in line for line in cluster.status(own.inst))
    cluster.start_node("n2", inst=own.inst)
    cluster.wait_ready(["n2"], own.inst)


def test_after_a_reboot_everything_comes_back(own: Cluster, memo: str) -> None:
    # A reboot leaves the files, and of the rest nothing: no process, no group, no link, no route.
    leftovers.kill_all(own.inst)
    leftovers.remove_all(own.inst, lambda line: None)
    assert sorted(cluster.ensure_all(inst=own.inst)) == sorted(own.names)
    assert remembered(own) == memo
    eventually(lambda: len([p for p in own.web_pods() if restarts(p) > 0 and ready(p)]) == 3, "the pods again")


def test_a_start_that_was_killed_at_any_moment_can_be_repeated(own: Cluster, memo: str) -> None:
    variables = {"SLIPWAY_INSTANCE": own.inst.name, "SLIPWAY_NET": str(own.inst.net), "HOME": os.environ["HOME"]}
    for moment in (0.3, 0.5, 1.0):
        leftovers.kill_all(own.inst)
        leftovers.remove_all(own.inst, lambda line: None)
        start = subprocess.Popen(
            [sys.executable, "-m", "localcloud.kubernetes", "start"],
            env=variables,
            cwd=REPOSITORY,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(moment)
        start.kill()
        start.wait()
        assert sorted(cluster.ensure_all(inst=own.inst)) == sorted(own.names)
        assert remembered(own) == memo


def test_two_starts_at_once_make_one_cluster(own: Cluster) -> None:
    cluster.kill_node("n1", own.inst)
    variables = {"SLIPWAY_INSTANCE": own.inst.name, "SLIPWAY_NET": str(own.inst.net), "HOME": os.environ["HOME"]}
    argv = [sys.executable, "-m", "localcloud.kubernetes", "start"]
    runs = [subprocess.Popen(argv, env=variables, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    assert [run.communicate()[1] for run in runs if run.wait()] == []
    assert len(processes.members(f"{nodes.find(own.inst, 'n1').group}/kubelet", "kubelet")) == 1


def test_stop_leaves_nothing() -> None:
    before = machine.snapshot()
    with own_instance() as inst:
        cluster.start_control_plane(inst=inst)
        cluster.start_registry(inst=inst)
        cluster.add_node(NodeSpec("n1"), inst=inst)
        cluster.wait_ready(["n1"], inst)
        assert cluster.leftovers(inst) != []
        cluster.stop_all(inst=inst)
        assert cluster.leftovers(inst) == []
        after = machine.snapshot()
        assert not {mount for mount in after.mounts if inst.name in mount or inst.bridge in mount}
        assert not {link for link in after.links if link.startswith(inst.bridge)}
        assert after.rules == before.rules
        assert after.forwarding == before.forwarding
        assert after.directories == before.directories
        cluster.stop_all(inst=inst)


def test_damaged_data_is_told_with_the_way_out() -> None:
    with own_instance() as inst:
        cluster.start_control_plane(inst=inst)
        cluster.add_node(NodeSpec("n1"), inst=inst)
        leftovers.kill_all(inst)
        log = next((inst.state / "etcd/member/wal").glob("*.wal"))
        with log.open("r+b") as file:
            file.seek(8192)
            file.write(os.urandom(65536))
        with pytest.raises(ClusterError, match=r"(?s)etcd is not running.*is damaged.*stop the cluster"):
            cluster.ensure_all(inst=inst)


def test_a_node_without_a_control_plane_says_so() -> None:
    with own_instance() as inst, pytest.raises(ClusterError, match=r"etcd is not running\. Next: start the control"):
        cluster.add_node(NodeSpec("n1"), inst=inst)
