"""How workers leave, with a real Slurm: deletion, policies for jobs, administrators' drains, and what fails meanwhile.

The tests share one cluster and run in this order; each leaves two idle workers behind.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from support.commands import eventually
from support.lab import NAMESPACE, Lab, running_lab

pytestmark = pytest.mark.cluster

OURS = "slurm-operator: "
LOOP = "touch {0}; while [ -e {0} ]; do sleep 0.2; done; echo done"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with running_lab(tmp_path_factory.mktemp("drains")) as here:
        here.install_slurm()
        here.wait_ready()
        yield here


def start(lab: Lab, node: str, *options: str, flag: str = "started") -> str:
    """A job of alice on that node that runs until the file `flag` is gone; its id."""
    out = lab.alice(f"sbatch --parsable -w {node} -o {flag}.txt {' '.join(options)} --wrap '{LOOP.format(flag)}'")
    eventually(lambda: lab.nodes()[node][0] in ("allocated", "mixed"), f"the job runs on {node}")
    return out.strip()


def state_of(lab: Lab, job: str) -> str:
    return lab.alice(f"squeue -h -t all -j {job} -o %T").strip()


def again(lab: Lab, replicas: int = 2) -> None:
    """Everything as it was, whatever was deleted."""
    lab.install_slurm()
    lab.wait_ready("slurmctld/slurm", "loginsets/slurm-login")
    lab.alice("scancel -u alice; rm -f started* kept*")
    lab.settle(replicas)
    eventually(lambda: {state for state, _ in lab.nodes().values()} == {"idle"}, f"idle workers\n{lab.state()}")


def message(lab: Lab, kind: str = "nodeset", name: str = "debug") -> str:
    return str(lab.condition(kind, name)["message"])


def there(lab: Lab, kind: str, name: str) -> bool:
    return bool(lab.kubectl("-n", NAMESPACE, "get", kind, name, "--ignore-not-found"))


def policy(name: str, **spec: Any) -> dict[str, Any]:
    meta = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": "slipway.dev/v1alpha1", "kind": "DrainPolicy", "metadata": meta, "spec": spec}


def test_a_deleted_nodeset_waits_for_its_job_and_says_so(lab: Lab) -> None:
    job = start(lab, "debug-1")
    lab.kubectl("-n", NAMESPACE, "delete", "nodeset", "debug", "--wait=false")
    eventually(lambda: set(lab.workers()) == {"debug-1"}, "the idle worker goes")
    eventually(lambda: f"debug-1 (job {job})" in message(lab), f"it says what it waits for\n{lab.state()}")
    assert lab.condition("nodeset", "debug")["reason"] == "Deleting"
    assert f"kubectl annotate -n {NAMESPACE} nodeset debug slipway.dev/skip-drain=true" in message(lab)
    assert lab.nodes()["debug-1"][0] == "draining"
    lab.operator.kill()
    lab.operator.start()
    time.sleep(5)
    assert set(lab.workers()) == {"debug-1"}
    assert state_of(lab, job) == "RUNNING"
    lab.alice("rm started")
    eventually(lambda: not there(lab, "nodeset", "debug"), f"it goes when the job has ended\n{lab.state()}")
    assert lab.workers() == {}
    assert lab.alice("cat started.txt").split() == ["done"]
    eventually(lambda: "NodeName=debug" not in lab.scontrol("show", "nodes"), "Slurm forgets its nodes")
    again(lab)


def test_the_wait_can_be_ended_and_the_job_is_requeued(lab: Lab) -> None:
    job = start(lab, "debug-0")
    lab.kubectl("-n", NAMESPACE, "delete", "nodeset", "debug", "--wait=false")
    eventually(lambda: "skip-drain" in message(lab), "it waits")
    lab.kubectl("-n", NAMESPACE, "annotate", "nodeset", "debug", "slipway.dev/skip-drain=true")
    eventually(lambda: not there(lab, "nodeset", "debug"), f"it goes\n{lab.state()}", 30)
    # Its partition went with the NodeSet, and Slurm ends what waits in a partition that is gone.
    assert "Restarts=1" in lab.scontrol("show", "job", job)
    again(lab)


def test_a_cluster_that_is_deleted_as_a_whole_serves_until_its_jobs_have_ended(lab: Lab) -> None:
    job = start(lab, "debug-1")
    lab.helm("uninstall", "slurm", "-n", NAMESPACE)
    eventually(lambda: set(lab.workers()) == {"debug-1"}, f"the idle worker goes\n{lab.state()}")
    time.sleep(20)  # longer than a RestApi stays when it alone is deleted
    shown = lab.scontrol("show", "job", job)
    assert "JobState=RUNNING" in shown, shown
    assert set(lab.workers()) == {"debug-1"}
    for kind in ("slurmctld", "slurmrestd"):
        assert "stays until the workers have left" in message(lab, kind, "slurm")
    lab.scontrol("update", f"jobid={job}", "timelimit=1")  # the login node went; nobody can remove the file
    lab.kubectl(
        "-n", NAMESPACE, "exec", "slurm-controller-0", "-c", "slurmctld", "--", "scancel", "--signal=TERM", "-b", job
    )
    kinds = "pods,services,statefulsets,deployments,poddisruptionbudgets,nodesets,loginsets,restapis,slurmctld"
    eventually(lambda: lab.ours(kinds)["items"] == [], f"then all of it goes\n{lab.state()}", 90)
    again(lab)


def test_jobs_are_requeued_by_policy_and_those_that_cannot_be_are_named(lab: Lab) -> None:
    lab.apply(policy("hurry", nodeSets=["debug"], scaleIn={"mode": "Requeue"}))
    job, stuck = start(lab, "debug-0"), start(lab, "debug-1", "--no-requeue", flag="kept")
    lab.scale(0)
    eventually(lambda: set(lab.workers()) == {"debug-1"}, f"the requeued job's worker goes\n{lab.state()}")
    assert state_of(lab, job) == "PENDING"
    assert "Restarts=1" in lab.scontrol("show", "job", job)
    eventually(lambda: f"job {stuck} of uid 2001 on debug-1 cannot" in message(lab), "it says which one waits")
    assert state_of(lab, stuck) == "RUNNING"
    assert lab.ours("drainpolicy", "hurry")["status"]["nodeSets"] == ["debug"]
    lab.apply(policy("later", nodeSets=["debug"]))
    eventually(lambda: lab.condition("drainpolicy", "later")["reason"] == "Conflict", "two policies for one NodeSet")
    lab.alice("rm kept")
    eventually(lambda: lab.workers() == {}, "then the last one goes")
    lab.kubectl("-n", NAMESPACE, "delete", "drainpolicy", "--all")
    again(lab)


def test_an_administrators_drain_survives_the_pod(lab: Lab) -> None:
    reason = "bad dimm [slot 3]"
    lab.scontrol("update", "nodename=debug-1", "state=drain", f"reason={reason}")

    def drained() -> list[str]:
        conditions = lab.workers()["debug-1"]["status"]["conditions"]
        return [str(one["message"]) for one in conditions if one["type"] == "SlurmNodeStateDrain"]

    def kept() -> bool:
        """Between two pods the node may be DOWN, too."""
        shown = lab.scontrol("--oneliner", "show", "node", "debug-1")
        return "DRAIN" in shown.partition("State=")[2].split()[0] and f"Reason={reason} [" in shown

    eventually(
        lambda: any(one.startswith(f"{reason} [slurm@") for one in drained()),
        "the pod says by whom it was drained and why",
    )
    for how in (("--wait=false",), ("--force", "--grace-period=0")):
        uid = lab.workers()["debug-1"]["metadata"]["uid"]
        lab.kubectl("-n", NAMESPACE, "delete", "pod", "debug-1", *how)

        def renewed(uid: str = uid) -> bool:
            return str(lab.workers()["debug-1"]["metadata"]["uid"]) != uid

        eventually(renewed, "a new pod")
        lab.kubectl("-n", NAMESPACE, "wait", "--for=condition=Ready", "--timeout=90s", "pod/debug-1")
        eventually(kept, f"still drained ({how})\n{lab.nodes()}")
    time.sleep(5)
    assert kept(), lab.nodes()
    lab.scontrol("update", "nodename=debug-1", "state=resume")
    eventually(lambda: lab.nodes()["debug-1"][0] == "idle", "resumed")
    # Whoever cordons a machine now is not taken for the operator, which cordons those of drained workers below.
    eventually(lambda: not drained(), "the operator has seen it")


def test_by_option_a_drain_in_slurm_cordons_the_machine_and_no_more_than_that(lab: Lab) -> None:
    def cordoned(name: str) -> bool:
        return bool(lab.get("node", name)["spec"].get("unschedulable"))

    lab.apply(policy("both-ways", cordonKubernetesNode=True))
    machine = lab.workers()["debug-0"]["spec"]["nodeName"]
    other = lab.workers()["debug-1"]["spec"]["nodeName"]
    lab.kubectl("cordon", other)  # by a person: never undone
    eventually(lambda: lab.nodes()["debug-1"][0] == "drained", "drained because of the cordon")
    lab.scontrol("update", "nodename=debug-0", "state=drain", "reason=xid 79")
    eventually(lambda: cordoned(machine), f"the machine is cordoned\n{lab.state()}")
    assert lab.get("node", machine)["metadata"]["annotations"]["slipway.dev/cordoned-for"] == "slurm/debug/debug-0"
    assert lab.nodes()["debug-0"] == ("drained", "xid 79")
    lab.scontrol("update", "nodename=debug-0", "state=resume")
    eventually(lambda: not cordoned(machine), "and may be used again with the end of the drain")
    eventually(lambda: lab.nodes()["debug-0"][0] == "idle", "idle")
    assert cordoned(other)
    assert "slipway.dev/cordoned-for" not in lab.get("node", machine)["metadata"].get("annotations", {})
    lab.kubectl("uncordon", other)
    lab.kubectl("-n", NAMESPACE, "delete", "drainpolicy", "both-ways")
    eventually(lambda: {state for state, _ in lab.nodes().values()} == {"idle"}, "idle workers")


def test_a_taint_drains_like_a_cordon(lab: Lab) -> None:
    machine = lab.workers()["debug-0"]["spec"]["nodeName"]
    lab.kubectl("taint", "node", machine, "example.com/leaving=soon:NoSchedule")
    reason = f"{OURS}Node ({machine}) has taint example.com/leaving=soon:NoSchedule"
    eventually(lambda: lab.nodes()["debug-0"][1].startswith(reason), f"drained\n{lab.nodes()}")
    lab.kubectl("taint", "node", machine, "example.com/leaving-")
    eventually(lambda: lab.nodes()["debug-0"][0] == "idle", "used again")


def test_slurmrestd_is_gone_for_a_minute_in_the_middle_of_a_scale_in(lab: Lab) -> None:
    start(lab, "debug-0")
    start(lab, "debug-1", flag="started2")
    lab.scale(0)
    eventually(lambda: {state for state, _ in lab.nodes().values()} == {"draining"}, "both drain")

    def restapi(replicas: int) -> None:
        patch = json.dumps({"spec": {"replicas": replicas}})
        lab.kubectl("-n", NAMESPACE, "patch", "restapi", "slurm", "--type=merge", "-p", patch)

    restapi(0)
    eventually(lambda: lab.condition("nodeset", "debug")["reason"] == "SlurmUnknown", "the outage is seen", 30)
    lab.alice("rm started")
    began = time.monotonic()
    while time.monotonic() < began + 60:
        assert set(lab.workers()) == {"debug-0", "debug-1"}
        time.sleep(3)
    restapi(1)
    lab.kubectl("-n", NAMESPACE, "rollout", "status", "deployment/slurm-restapi", "--timeout=60s")
    eventually(lambda: set(lab.workers()) == {"debug-1"}, f"it goes on at once\n{lab.state()}", 30)
    lab.alice("rm started2")
    eventually(lambda: lab.workers() == {}, "and comes to its end")
    assert lab.alice("cat started.txt started2.txt").split() == ["done", "done"]
    again(lab)


def test_an_update_in_a_maintenance_window(lab: Lab) -> None:
    before = {name: pod["metadata"]["uid"] for name, pod in lab.workers().items()}
    job = start(lab, "debug-1")
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 15))
    spec = {
        "updateStrategy": {"type": "ScheduledUpdate", "scheduledUpdate": {"startTime": moment, "duration": "30m"}},
        "template": {"metadata": {"labels": {"example.com/build": "2"}}},
    }
    lab.kubectl("-n", NAMESPACE, "patch", "nodeset", "debug", "--type=merge", "-p", json.dumps({"spec": spec}))
    eventually(lambda: lab.condition("nodeset", "debug", "ReservationCreated")["status"] == "True", "the reservation")
    assert "SlurmOperatorMaint-debug" in lab.scontrol("show", "reservations")
    assert {name: pod["metadata"]["uid"] for name, pod in lab.workers().items()} == before

    def uid(name: str) -> str:
        return str(lab.workers()[name]["metadata"]["uid"])

    eventually(lambda: uid("debug-0") != before["debug-0"], f"replaced in the window\n{lab.state()}")
    assert uid("debug-1") == before["debug-1"]
    assert state_of(lab, job) == "RUNNING"
    lab.alice("rm started")
    eventually(lambda: uid("debug-1") != before["debug-1"], f"the busy one when its job has ended\n{lab.state()}")
    eventually(lambda: "SlurmOperatorMaint" not in lab.scontrol("show", "reservations"), "the reservation goes")
    lab.wait_ready("nodeset/debug")
    remove = [{"op": "remove", "path": "/spec/updateStrategy"}, {"op": "remove", "path": "/spec/template/metadata"}]
    lab.kubectl("-n", NAMESPACE, "patch", "nodeset", "debug", "--type=json", "-p", json.dumps(remove))
    again(lab)


def test_a_deleted_namespace_wedges_nothing(lab: Lab) -> None:
    start(lab, "debug-0")
    lab.kubectl("delete", "namespace", NAMESPACE, "--wait=false")
    eventually(
        lambda: not lab.kubectl("get", "namespace", NAMESPACE, "--ignore-not-found"), f"it goes\n{lab.state()}", 120
    )
