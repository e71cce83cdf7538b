"""Configuration, keys and backups with a real Slurm: what must not stop a cluster, while a job runs on it.

The tests share one cluster and run in this order.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
from support.commands import eventually
from support.lab import NAMESPACE, NODES, Lab, running_lab, usual_values

pytestmark = pytest.mark.cluster

FILES = "user-files"
IN_NAMESPACE = ("-n", NAMESPACE)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with running_lab(tmp_path_factory.mktemp("lab")) as here:
        shared_volume(here)
        put(here, **{"topology.yaml": "- topology: flat\n  cluster_default: true\n  flat: true\n"})
        install(here)
        here.wait_ready()
        yield here


def install(lab: Lab, **controller: Any) -> None:
    usual = usual_values(lab.inst)["controller"]
    state = {"persistence": {"enabled": True, "existingClaim": "shared"}}
    lab.install_slurm(controller={**usual, **state, **controller})
    patch_controller(lab, configFileRefs=[{"name": FILES}])


def put(lab: Lab, **files: str) -> None:
    """The user's ConfigMap with just these files."""
    meta = {"name": FILES, "namespace": NAMESPACE}
    lab.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": files})


def patch_controller(lab: Lab, **spec: Any) -> None:
    body = json.dumps({"spec": spec})
    lab.kubectl(*IN_NAMESPACE, "patch", "controllers.slinky.slurm.net", "slurm", "--type=merge", "-p", body)


def fault(lab: Lab) -> str:
    found = lab.condition("slurmctld", "slurm", "Degraded")
    return str(found["message"]) if found["status"] == "True" else ""


def daemons(lab: Lab) -> dict[str, tuple[str, int]]:
    """Pod of slurmctld or slurmd -> (uid, restarts of its containers)."""
    pods = lab.ours("pods", "-l", "app.kubernetes.io/name in (slurmctld,slurmd)")["items"]
    return {
        pod["metadata"]["name"]: (
            pod["metadata"]["uid"],
            sum(one["restartCount"] for one in pod["status"]["containerStatuses"]),
        )
        for pod in pods
    }


def start_job(lab: Lab, name: str) -> None:
    """A job on both workers that ends when its file `NAME.go` is removed."""
    script = f"touch {name}.go; srun sh -c 'while [ -e {name}.go ]; do sleep 0.3; done; hostname'"
    lab.alice(f'sbatch -N2 -o {name}.txt --wrap "{script}"')
    eventually(lambda: lab.alice(f"ls {name}.go"), "the job runs")
    eventually(lambda: {state for state, _ in lab.nodes().values()} <= {"allocated", "mixed"}, "both workers are busy")


def end_job(lab: Lab, name: str) -> None:
    lab.alice(f"rm {name}.go")
    eventually(lambda: lab.alice(f"cat {name}.txt").split() and not lab.alice("squeue -h"), "the job ends")
    assert sorted(lab.alice(f"cat {name}.txt").split()) == ["debug-0", "debug-1"]


BAD_FILES = {
    "gres.conf": ("Name=gpu Fil=/dev/nvidia0\n", "unrecognized key: Fil"),
    "cgroup.conf": ("CgroupPlugin=disabled\nConstrainSwap=yes\n", "unrecognized key: ConstrainSwap"),
    "topology.yaml": ("- topology: a\n  treee: {}\n", "cannot create topo context"),
}


def test_what_slurm_refuses_is_told_in_its_words_and_reaches_nobody(lab: Lab) -> None:
    start_job(lab, "bad")
    before, installed = daemons(lab), lab.ours("configmap", "slurm-config")["data"]
    for name, (text, says) in BAD_FILES.items():
        put(lab, **{name: text})
        eventually(lambda says=says: says in fault(lab), f"{name} is refused")  # type: ignore[misc]
        assert "fatal" in fault(lab)
        assert lab.condition("slurmctld", "slurm", "Degraded")["reason"] == "InvalidConfiguration"
        assert lab.condition("slurmctld", "slurm")["status"] == "True"
        assert lab.ours("configmap", "slurm-config")["data"] == installed
    put(lab)
    extra = "TaskPlugin=task/none\nSelectTypeParameters=CR_Foo\n"  # a known name with a value that only Slurm can judge
    patch_controller(lab, extraConf=extra)
    eventually(lambda: "Bad SelectTypeParameter: CR_Foo" in fault(lab), "slurm.conf is refused")
    events = lab.kubectl(*IN_NAMESPACE, "get", "events", "--field-selector", "reason=InvalidConfiguration")
    assert "CR_Foo" in events
    assert daemons(lab) == before
    assert "CR_Foo" not in lab.scontrol("show", "config")
    end_job(lab, "bad")


def test_a_good_edit_is_in_effect_without_a_restart(lab: Lab) -> None:
    before = daemons(lab)
    start_job(lab, "good")
    put(lab, **{"gres.conf": "AutoDetect=off\nNodeName=g[1-4] Name=gpu Type=h100 File=/dev/nvidia[0-7] Cores=0-63\n"})
    patch_controller(lab, extraConf="TaskPlugin=task/none\nSlurmdTimeout=88\n")
    eventually(lambda: "= 88 sec" in lab.scontrol("show", "config"), "slurmctld has it")
    cached = ("exec", "debug-0", "-c", "slurmd", "--", "sh", "-c", "cat /run/slurm/conf/gres.conf")
    eventually(lambda: "h100" in lab.kubectl(*IN_NAMESPACE, *cached, check=False), "slurmd has it")
    eventually(lambda: fault(lab) == "", "no fault is left")
    assert daemons(lab) == before
    assert (
        lab.kubectl(*IN_NAMESPACE, "get", "pods", "-l", "app.kubernetes.io/name=slurm-config-check", "-o", "name") == ""
    )
    end_job(lab, "good")


def test_a_service_monitor_is_made_when_kubernetes_knows_what_that_is(lab: Lab) -> None:
    patch_controller(lab, metrics={"enabled": True, "serviceMonitor": {"enabled": True}})
    eventually(lambda: "does not know ServiceMonitor" in fault(lab), "it says so")
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": "servicemonitors", "singular": "servicemonitor", "kind": "ServiceMonitor"}
    lab.apply(
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": "servicemonitors.monitoring.coreos.com"},
            "spec": {"group": "monitoring.coreos.com", "scope": "Namespaced", "names": names, "versions": [version]},
        }
    )
    eventually(lambda: lab.ours("servicemonitors", "slurm-controller")["spec"]["endpoints"], "it is made")
    patch_controller(lab, metrics={"serviceMonitor": {"enabled": False}})
    eventually(lambda: lab.ours("servicemonitors")["items"] == [], "and removed")


def test_keys_are_exchanged_while_a_job_runs(lab: Lab) -> None:
    before = daemons(lab)
    start_job(lab, "keys")
    old = key_ids(lab)
    tokens = lab.ours("secret", "slurm-auth-jwt")["data"]
    lab.kubectl(*IN_NAMESPACE, "delete", "secret", "slurm-auth-slurm", "slurm-auth-jwt")
    eventually(lambda: len(key_ids(lab)) == 2, "both keys are accepted")
    assert key_ids(lab)[0] == old[0]  # the old one still signs
    assert lab.condition("slurmctld", "slurm", "Progressing")["status"] == "True"
    assert "debug-0" in lab.alice("srun --overlap --mem=1 -w debug-0 --jobid $(squeue -h -o %i) hostname")
    eventually(lambda: key_ids(lab)[0] != old[0], "the new key signs", 150)
    eventually(lambda: len(key_ids(lab)) == 1 and key_ids(lab) != old, "the old key is gone", 150)
    eventually(lambda: lab.condition("slurmctld", "slurm", "Progressing")["status"] == "False", "done", 90)
    assert lab.ours("secret", "slurm-auth-jwt")["data"] != tokens
    assert "debug-0" in lab.alice("srun --overlap --mem=1 -w debug-0 --jobid $(squeue -h -o %i) hostname")
    lab.wait_ready("nodeset/debug")  # slurmrestd takes tokens of the new key
    assert daemons(lab) == before
    end_job(lab, "keys")


def key_ids(lab: Lab) -> list[str]:
    """Ids of the keys that the daemons are given; the first one signs."""
    text = base64.b64decode(lab.ours("secret", "slurm-keys")["data"]["slurm.jwks"])
    return [one["kid"] for one in json.loads(text)["keys"]]


def test_with_inplace_reconfigure_off_a_change_makes_a_new_pod(lab: Lab) -> None:
    patch_controller(lab, inplaceReconfigure=False)
    eventually(lambda: "reconfigure" not in containers(lab), "a pod without the sidecar", 90)
    lab.wait_ready("slurmctld/slurm")
    uid = daemons(lab)["slurm-controller-0"][0]
    start_job(lab, "restart")
    patch_controller(lab, extraConf="TaskPlugin=task/none\nSlurmdTimeout=99\n")
    eventually(lambda: daemons(lab)["slurm-controller-0"][0] != uid, "a new pod")
    lab.wait_ready("slurmctld/slurm")
    assert "= 99 sec" in lab.scontrol("show", "config")
    end_job(lab, "restart")


def containers(lab: Lab) -> set[str]:
    spec = lab.ours("pod", "slurm-controller-0")["spec"]
    return {one["name"] for one in [*spec["containers"], *spec.get("initContainers", [])]}


def test_a_slurmctld_outside_gets_workers_and_is_asked(lab: Lab) -> None:
    """The one of this cluster plays the one outside: a second Controller knows it by its address only."""
    image = {
        kind: lab.ours(f"{kind}s.slinky.slurm.net")["items"][0]["spec"][container]["image"]
        for kind, container in (("restapi", "slurmrestd"), ("nodeset", "slurmd"))
    }
    keys = {f"{kind}KeyRef": {"name": f"slurm-auth-{kind}", "key": f"{kind}.key"} for kind in ("slurm", "jwt")}
    where = {"external": True, "externalConfig": {"host": f"slurm-controller.{NAMESPACE}"}, "clusterName": "lab"}
    reference = {"controllerRef": {"name": "outside"}}
    workers = {"replicas": 1, "oversubscribeNode": True, "slurmd": {"image": image["nodeset"]}}
    specs = {
        ("Controller", "outside"): {**where, **keys},
        ("RestApi", "outside"): {**reference, "slurmrestd": {"image": image["restapi"]}},
        ("NodeSet", "outer"): {**reference, **workers},
    }
    for (kind, name), spec in specs.items():
        meta = {"name": name, "namespace": NAMESPACE}
        lab.apply({"apiVersion": "slinky.slurm.net/v1beta1", "kind": kind, "metadata": meta, "spec": spec})
    lab.wait_ready("slurmctld/outside", "slurmrestd/outside", "nodeset/outer")
    assert set(lab.ours("configmap", "outside-config")["data"]) == {"slurm.conf"}
    eventually(lambda: "State=IDLE" in lab.scontrol("show", "node", "outer-0"), "its worker is a Slurm node")
    lab.scale(0, "outer")
    eventually(lambda: "outer-0" not in lab.scontrol("show", "nodes"), "drained, removed and forgotten")
    for kind, name in reversed(specs):
        lab.kubectl(*IN_NAMESPACE, "delete", f"{kind.lower()}s.slinky.slurm.net", name)


def test_a_backup_takes_over_while_a_job_runs_and_gives_back(lab: Lab) -> None:
    lab.helm("uninstall", "slurm", *IN_NAMESPACE)
    eventually(lambda: lab.ours("pods")["items"] == [], "everything is gone", 90)
    install(lab, ha={"enabled": True, "backups": 1})
    lab.wait_ready(seconds=150)
    eventually(lambda: "1 of 1 backups ready" in lab.condition("slurmctld", "slurm")["message"], "a backup")
    assert at_work(lab) == ["slurm-controller-0"]
    start_job(lab, "ha")
    for machine in NODES:  # so that the first one cannot come back at once
        lab.kubectl("cordon", machine)
    lab.kubectl(*IN_NAMESPACE, "delete", "pod", "slurm-controller-0", "--wait=false")
    eventually(lambda: at_work(lab) == ["slurm-controller-1"], "the backup works")
    eventually(lambda: "RUNNING" in lab.alice("timeout 20 squeue -h -o %T"), "commands reach it", 90)
    for machine in NODES:
        lab.kubectl("uncordon", machine)
    eventually(lambda: at_work(lab) == ["slurm-controller-0"], "the first one works again", 120)
    eventually(lambda: "RUNNING" in lab.alice("timeout 20 squeue -h -o %T"), "commands reach it", 90)
    end_job(lab, "ha")


def at_work(lab: Lab) -> list[str]:
    pods = lab.ours("pods", "-l", "controller.slinky.slurm.net/active=true")["items"]
    return [pod["metadata"]["name"] for pod in pods]


def shared_volume(lab: Lab) -> None:
    """All nodes are on this machine, so a directory of it is a volume that several of them can write."""
    folder = lab.inst.state / "shared"
    folder.mkdir()
    os.chown(folder, 401, 401)
    size, modes = {"storage": "1Gi"}, ["ReadWriteMany"]
    claim = {"namespace": NAMESPACE, "name": "shared"}
    common = {"accessModes": modes, "storageClassName": ""}
    lab.apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": "shared"},
            "spec": {**common, "capacity": size, "hostPath": {"path": str(folder)}, "claimRef": claim},
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": claim,
            "spec": {**common, "resources": {"requests": size}, "volumeName": "shared"},
        },
    )
