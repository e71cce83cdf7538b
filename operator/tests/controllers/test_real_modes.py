"""Where and as what workers run, on real nodes with a real Slurm.

The tests share one cluster and run in this order. Machines with the label pool=gpu are for the NodeSet.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from support.commands import eventually
from support.lab import NAMESPACE, NODES, Lab, running_lab

from localcloud.kubernetes import cluster

pytestmark = pytest.mark.cluster

OURS = "slurm-operator: "
TOPOLOGY = """
- topology: tree
  cluster_default: true
  tree:
    switches:
      - switch: spine
        children: leaf[1-2]
      - {switch: leaf1, nodes: ""}
      - {switch: leaf2, nodes: ""}
"""
GPU: dict[str, Any] = {
    "scalingMode": "DaemonSet",
    "podSpec": {"nodeSelector": {"pool": "gpu"}},
    "partition": {"enabled": True, "config": "Default=YES MaxTime=30"},
}
LONG = "touch started; while [ -e started ]; do sleep 0.2; done; echo done"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with running_lab(tmp_path_factory.mktemp("lab")) as here:
        label(here, "n1", "gpu")
        install(here, **GPU)
        here.wait_ready()
        yield here


def install(lab: Lab, **gpu: Any) -> None:
    lab.install_slurm(nodesets={"gpu": gpu}, configFiles={"topology.yaml": TOPOLOGY})


def label(lab: Lab, machine: str, pool: str | None) -> None:
    lab.kubectl("label", "--overwrite", "node", machine, f"pool={pool}" if pool else "pool-")


def annotate(lab: Lab, machine: str, **values: str | None) -> None:
    names = {
        "topology": "topology.slinky.slurm.net/spec",
        "features": "features.slinky.slurm.net/spec",
        "hostname": "nodeset.slinky.slurm.net/hostname-override",
    }
    changes = [f"{names[key]}={value}" if value else f"{names[key]}-" for key, value in values.items()]
    lab.kubectl("annotate", "--overwrite", "node", machine, *changes)


def shown(lab: Lab, node: str) -> dict[str, str]:
    """Fields of `scontrol show node`."""
    text = lab.scontrol("--oneliner", "show", "node", node)
    return dict(word.split("=", 1) for word in text.split() if "=" in word)


def status(lab: Lab) -> dict[str, Any]:
    return dict(lab.ours("nodeset", "gpu")["status"])


def is_so(lab: Lab, **workers: str) -> None:
    """Slurm's nodes and their states are these, and there are as many pods."""
    wanted = {name.replace("_", "-"): state for name, state in workers.items()}

    def check() -> bool:
        states = {name: state for name, (state, _) in lab.nodes().items()}
        return states == wanted and len(lab.workers("gpu")) == len(wanted)

    eventually(check, f"Slurm has {wanted}\n{lab.state()}", 120)


def versions(lab: Lab) -> dict[str, str]:
    kinds = "pods,controllerrevisions,persistentvolumeclaims,nodesets,controllers.slinky.slurm.net"
    found = lab.ours(kinds)["items"]
    return {f"{one['kind']}/{one['metadata']['name']}": one["metadata"]["resourceVersion"] for one in found}


def test_a_machine_gets_its_worker_when_it_matches(lab: Lab) -> None:
    assert set(lab.workers("gpu")) == {"gpu-n1"}
    label(lab, "n2", "gpu")
    is_so(lab, n1="idle", n2="idle")
    lab.wait_ready("nodeset/gpu")
    counts = status(lab)
    assert [counts[name] for name in ("desired", "replicas", "updatedReplicas", "readyReplicas")] == [2, 2, 2, 2]
    columns = lab.kubectl("-n", NAMESPACE, "get", "nodeset", "gpu", "--no-headers").split()
    assert columns[:6] == ["gpu", "2", "2", "2", "2", "Ready"]
    info = json.loads(shown(lab, "n2")["Comment"])
    assert (info["namespace"], info["podName"], info["node"]) == (NAMESPACE, "gpu-n2", "n2")


def test_an_idle_cluster_is_left_alone(lab: Lab) -> None:
    time.sleep(6)
    before = versions(lab)
    time.sleep(8)
    assert versions(lab) == before
    assert len([name for name in before if name.startswith("ControllerRevision/gpu-")]) == 1


def test_a_name_of_ones_own(lab: Lab) -> None:
    annotate(lab, "n2", hostname="rack1-7")
    is_so(lab, n1="idle", rack1_7="idle")
    annotate(lab, "n2", hostname=None)
    is_so(lab, n1="idle", n2="idle")


def test_a_worker_lost_on_a_cordoned_machine_comes_back_drained(lab: Lab) -> None:
    lab.kubectl("cordon", "n2")
    uid = lab.workers("gpu")["gpu-n2"]["metadata"]["uid"]
    lab.kubectl("-n", NAMESPACE, "delete", "pod", "gpu-n2", "--wait=false")
    eventually(lambda: lab.workers("gpu")["gpu-n2"]["metadata"]["uid"] != uid, "a new pod")
    assert "State=DRAIN" in lab.workers("gpu")["gpu-n2"]["spec"]["containers"][0]["args"][-1]
    reason = f"{OURS}Node (n2) was cordoned, Pod ({NAMESPACE}/gpu-n2) must be cordoned"
    eventually(lambda: lab.nodes().get("n2") == ("drained", reason), "drained with the reason", 90)
    lab.kubectl("uncordon", "n2")
    is_so(lab, n1="idle", n2="idle")


def test_topology_and_features_come_from_the_machine(lab: Lab) -> None:
    annotate(lab, "n1", topology="tree:leaf2", features="nvme,rack1")

    def told() -> bool:
        node = shown(lab, "n1")
        return node.get("Topology") == "tree:leaf2" and node["ActiveFeatures"] == "gpu,k8s/nvme,k8s/rack1"

    eventually(told, "Slurm knows")
    uid = lab.workers("gpu")["gpu-n1"]["metadata"]["uid"]
    lab.kubectl("-n", NAMESPACE, "delete", "pod", "gpu-n1", "--wait=false")
    eventually(lambda: lab.workers("gpu")["gpu-n1"]["metadata"]["uid"] != uid, "a new pod")
    is_so(lab, n1="idle", n2="idle")
    assert told(), "no job comes before"
    annotate(lab, "n1", features=None, topology="block:none")
    eventually(lambda: shown(lab, "n1")["ActiveFeatures"] == "gpu", "the operator's features go")
    eventually(
        lambda: "refuses topology 'block:none'" in lab.condition("nodeset", "gpu", "Degraded")["message"], "said"
    )
    assert shown(lab, "n1")["Topology"] == "tree:leaf2"
    annotate(lab, "n1", topology="tree:leaf2")
    annotate(lab, "n2", topology="tree:leaf1")  # in a tree, Slurm runs nothing on a node without a place
    eventually(lambda: shown(lab, "n2").get("Topology") == "tree:leaf1", "both have a place")
    eventually(lambda: lab.condition("nodeset", "gpu", "Degraded")["status"] == "False", "no fault")


def test_a_machine_that_does_not_match_any_more_is_drained_first(lab: Lab) -> None:
    lab.alice(f"sbatch -w n1 -o long.txt --wrap '{LONG}'")
    eventually(lambda: lab.nodes()["n1"][0] == "allocated", "the job runs")
    label(lab, "n1", None)
    reason = f"Pod ({NAMESPACE}/gpu-n1) is pending termination: Kubernetes node n1 does not match the NodeSet any more"
    eventually(lambda: lab.nodes()["n1"] == ("draining", f"{OURS}{reason}"), "drains")
    time.sleep(3)
    assert set(lab.workers("gpu")) == {"gpu-n1", "gpu-n2"}
    lab.alice("rm started")
    is_so(lab, n2="idle")
    assert lab.alice("cat long.txt").split() == ["done"]
    label(lab, "n1", "gpu")
    is_so(lab, n1="idle", n2="idle")


def test_the_mode_changes_under_a_running_job(lab: Lab) -> None:
    lab.alice(f"sbatch -w n2 -o switch.txt --wrap '{LONG}'")
    eventually(lambda: lab.nodes()["n2"][0] == "allocated", "the job runs")
    install(lab, **{**GPU, "scalingMode": "StatefulSet", "replicas": 2, "pinToNode": True})
    eventually(
        lambda: lab.nodes().get("gpu-0", ("",))[0] == "idle", "a worker of the new mode has the idle machine", 90
    )
    assert lab.nodes()["n2"][0] == "draining"
    assert lab.condition("nodeset", "gpu")["reason"] == "ScalingIn"
    lab.alice("rm started")
    is_so(lab, gpu_0="idle", gpu_1="idle")
    assert lab.alice("cat switch.txt").split() == ["done"]
    lab.wait_ready("nodeset/gpu")


def test_a_pinned_worker_comes_back_to_its_machine(lab: Lab) -> None:
    where = {name: pod["spec"]["nodeName"] for name, pod in lab.workers("gpu").items()}
    eventually(lambda: status(lab).get("ordinalToNode") == {"0": where["gpu-0"], "1": where["gpu-1"]}, "remembered")
    for replicas in (0, 2):
        lab.scale(replicas, "gpu")

        def there(wanted: int = replicas) -> bool:
            return len(lab.workers("gpu")) == wanted

        eventually(there, f"{replicas} workers")
    eventually(lambda: status(lab)["readyReplicas"] == 2, "both are back")
    assert {name: pod["spec"]["nodeName"] for name, pod in lab.workers("gpu").items()} == where


def test_replicas_of_an_autoscaler_survive_an_upgrade(lab: Lab) -> None:
    install(lab, **{**GPU, "scalingMode": "StatefulSet", "autoscaled": True})
    lab.scale(2, "gpu")
    scale = json.loads(
        lab.kubectl("get", "--raw", f"/apis/slinky.slurm.net/v1beta1/namespaces/{NAMESPACE}/nodesets/gpu/scale")
    )
    assert scale["spec"]["replicas"] == 2
    assert scale["status"]["selector"] == "app.kubernetes.io/name=slurmd,app.kubernetes.io/instance=gpu"
    install(lab, **{**GPU, "scalingMode": "StatefulSet", "autoscaled": True, "minReadySeconds": 1})
    assert lab.ours("nodeset", "gpu")["spec"]["replicas"] == 2
    is_so(lab, gpu_0="idle", gpu_1="idle")


def test_claims_follow_their_policy(lab: Lab) -> None:
    folder = lab.inst.state / "volumes"
    for number in range(4):
        volume = {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "lab",
            "hostPath": {"path": str(folder / str(number)), "type": "DirectoryOrCreate"},
        }  # fmt: skip
        meta = {"name": f"lab-{number}"}
        lab.apply({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": meta, "spec": volume})
    template = {
        "metadata": {"name": "scratch"},
        "spec": {
            "storageClassName": "lab", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}
        },
    }  # fmt: skip
    slurmd = {**json.loads(lab.values.read_text())["nodesetDefaults"]["slurmd"]}
    slurmd["volumeMounts"] = [{"name": "scratch", "mountPath": "/scratch"}]
    claimed = {**GPU, "scalingMode": "StatefulSet", "volumeClaimTemplates": [template], "slurmd": slurmd}

    def names() -> set[str]:
        return {claim["metadata"]["name"] for claim in lab.ours("pvc")["items"]}

    install(lab, **claimed, replicas=2)
    eventually(lambda: names() == {"scratch-gpu-0", "scratch-gpu-1"}, "a claim each", 90)
    eventually(lambda: status(lab)["updatedReplicas"] == status(lab)["readyReplicas"] == 2, "both run", 90)
    lab.alice("srun -w gpu-0 true")
    install(lab, **claimed, replicas=1)
    eventually(lambda: set(lab.workers("gpu")) == {"gpu-0"}, "one worker")
    assert names() == {"scratch-gpu-0", "scratch-gpu-1"}
    install(
        lab,
        **claimed,
        replicas=1,
        persistentVolumeClaimRetentionPolicy={"whenScaled": "Delete", "whenDeleted": "Delete"},
    )
    eventually(lambda: names() == {"scratch-gpu-0"}, "what has no worker goes")
    (owner,) = lab.ours("pvc", "scratch-gpu-0")["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("NodeSet", "gpu")
    lab.kubectl("-n", NAMESPACE, "delete", "nodeset", "gpu", "--wait=false")
    eventually(lambda: names() == set(), "the last goes with the NodeSet", 90)
    eventually(lambda: lab.workers("gpu") == {}, "and the worker")


def test_with_a_machine_go_its_worker_and_its_record(lab: Lab) -> None:
    install(lab, **GPU)
    lab.wait_ready("slurmctld/slurm")
    machines = [name for name in NODES if name != lab.ours("pod", "slurm-controller-0")["spec"]["nodeName"]]
    for name in NODES:
        label(lab, name, "gpu" if name in machines else None)
        annotate(lab, name, topology=None)
    is_so(lab, **dict.fromkeys(machines, "idle"))
    stays, goes = machines
    cluster.kill_node(goes, inst=lab.inst)
    lab.kubectl("delete", "node", goes)
    is_so(lab, **{stays: "idle"})
    lab.wait_ready("nodeset/gpu")


def test_the_operator_needed_no_more_rights_than_the_chart_gives(lab: Lab) -> None:
    assert [
        line["msg"] for line in lab.operator.lines() if "orbidden" in line["msg"] or "OutsideTable" in line["msg"]
    ] == []
