"""The operator with a real Slurm: pods on real nodes, jobs of a user, and everything that may get in the way.

The tests share one cluster and run in this order; each leaves two idle workers behind.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from support.commands import eventually
from support.lab import NAMESPACE, OPERATOR, Lab, running_lab

pytestmark = pytest.mark.cluster

OURS = "slurm-operator: "


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with running_lab(tmp_path_factory.mktemp("lab")) as here:
        here.install_slurm()
        here.wait_ready()
        yield here


def versions(lab: Lab) -> dict[str, str]:
    """resourceVersion of every object in the namespace, events aside."""
    kinds = "pods,services,configmaps,secrets,statefulsets,deployments,poddisruptionbudgets"
    ours = "controllers.slinky.slurm.net,nodesets,loginsets,restapis,accountings,tokens"
    found = lab.ours(f"{kinds},{ours}")["items"]
    return {f"{one['kind']}/{one['metadata']['name']}": one["metadata"]["resourceVersion"] for one in found}


def test_a_user_runs_a_job_on_two_workers(lab: Lab) -> None:
    out = lab.alice("sbatch --wait -N2 -o out.txt --wrap 'srun sh -c \"hostname; id -un\"' >/dev/null; sort out.txt")
    assert out.split() == ["alice", "alice", "debug-0", "debug-1"]
    machines = {pod["spec"]["nodeName"] for pod in lab.workers().values()}
    assert len(machines) == 2


def test_the_operator_needed_no_more_rights_than_the_chart_gives(lab: Lab) -> None:
    assert [
        line["msg"] for line in lab.operator.lines() if "orbidden" in line["msg"] or "OutsideTable" in line["msg"]
    ] == []


def test_the_state_of_workers_is_on_their_pods_and_the_kubelets_word_stays(lab: Lab) -> None:
    def kinds() -> set[str]:
        conditions = lab.workers()["debug-0"]["status"]["conditions"]
        return {one["type"] for one in conditions if one["status"] == "True"}

    eventually(lambda: {"Ready", "ContainersReady", "PodScheduled", "SlurmNodeStateIdle"} <= kinds(), "all conditions")


def test_an_idle_cluster_is_left_alone(lab: Lab) -> None:
    eventually(lambda: {state for state, _ in lab.nodes().values()} == {"idle"}, "idle workers")
    time.sleep(6)  # Slurm is polled every 5 s: let it see the end of the last job
    before = versions(lab)
    time.sleep(7)
    assert versions(lab) == before


def test_scale_in_takes_the_idle_worker_and_waits_for_the_busy_one(lab: Lab) -> None:
    lab.alice(
        "sbatch -w debug-1 -o long.txt --wrap 'touch started; while [ -e started ]; do sleep 0.2; done; echo done'"
    )
    eventually(lambda: lab.nodes()["debug-1"][0] == "allocated", "the job runs")
    lab.scale(1)
    eventually(lambda: set(lab.workers()) == {"debug-1"}, "only the idle worker goes")
    lab.wait_ready("nodeset/debug")
    eventually(lambda: set(lab.nodes()) == {"debug-1"}, "Slurm forgets the worker that is gone")
    lab.scale(0)
    eventually(
        lambda: (
            lab.nodes()["debug-1"]
            == ("draining", f"{OURS}Pod ({NAMESPACE}/debug-1) is pending termination for scale-in")
        ),
        "drain",
    )
    eventually(lambda: "waiting for the jobs of debug-1" in lab.condition("nodeset", "debug")["message"], "it says so")
    assert lab.condition("nodeset", "debug")["reason"] == "ScalingIn"
    lab.alice("rm started")
    eventually(lambda: lab.workers() == {}, "the worker goes when its job has ended")
    assert lab.alice("cat long.txt").split() == ["done"]
    lab.settle(2)


def test_a_busy_worker_cannot_be_evicted(lab: Lab) -> None:
    lab.alice("sbatch -w debug-0 -o /dev/null --wrap 'sleep 300'")
    label = "nodeset.slinky.slurm.net/pod-protect"
    eventually(lambda: lab.workers()["debug-0"]["metadata"]["labels"].get(label) == "true", "the label")
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "debug-0", "namespace": NAMESPACE}}
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/debug-0/eviction"

    def refused() -> bool:
        out = lab.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(body), check=False)
        return "disruption budget" in out

    eventually(refused, "the eviction is refused")
    lab.alice("scancel -u alice")
    eventually(lambda: label not in lab.workers()["debug-0"]["metadata"]["labels"], "the label goes with the job")


def test_an_administrators_drain_survives_scaling_away_and_back(lab: Lab) -> None:
    lab.scontrol("update", "nodename=debug-1", "state=drain", "reason=bad dimm [slot 3]")
    drained = ("drained", "bad dimm [slot 3]")
    lab.scale(0)
    eventually(lambda: lab.workers() == {}, "no workers")
    eventually(lambda: lab.nodes().get("debug-1") == drained and "debug-0" not in lab.nodes(), "its record stays")
    lab.settle(2)
    eventually(lambda: lab.nodes()["debug-0"][0] == "idle", "the other one works again")
    assert lab.nodes()["debug-1"] == drained
    lab.scontrol("update", "nodename=debug-1", "state=resume")
    eventually(lambda: lab.nodes()["debug-1"][0] == "idle", "resumed")


def test_a_cordoned_machine_is_drained_and_used_again(lab: Lab) -> None:
    machine = lab.workers()["debug-0"]["spec"]["nodeName"]
    lab.kubectl("cordon", machine)
    reason = f"{OURS}Node ({machine}) was cordoned, Pod ({NAMESPACE}/debug-0) must be cordoned"
    eventually(lambda: lab.nodes()["debug-0"] == ("drained", reason), "drained")
    lab.kubectl("uncordon", machine)
    eventually(lambda: lab.nodes()["debug-0"][0] == "idle", "used again")


def test_a_new_nodeset_restarts_nothing(lab: Lab) -> None:
    before = lab.ours("pod", "slurm-controller-0")
    values = json.loads(lab.values.read_text())["nodesets"]
    lab.install_slurm(nodesets={**values, "extra": {"oversubscribeNode": True, "partition": {"enabled": True}}})
    lab.wait_ready("nodeset/extra")
    assert "extra-0" in lab.alice("srun -p extra hostname")
    after = lab.ours("pod", "slurm-controller-0")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert [one["restartCount"] for one in after["status"]["containerStatuses"]] == [
        one["restartCount"] for one in before["status"]["containerStatuses"]
    ]
    assert lab.alice("srun hostname").startswith("debug-")  # the default partition stays what it was
    lab.install_slurm()
    eventually(lambda: "extra-0" not in lab.workers("extra"), "it goes with its NodeSet")
    eventually(lambda: "extra-0" not in lab.scontrol("show", "nodes"), "Slurm forgets it")


def test_a_bad_configuration_never_reaches_slurmctld(lab: Lab) -> None:
    patch = {"spec": {"extraConf": "TaskPlugin=task/none\nSlurmdTimout=30\n"}}
    lab.kubectl(
        "-n", NAMESPACE, "patch", "controllers.slinky.slurm.net", "slurm", "--type=merge", "-p", json.dumps(patch)
    )

    def told() -> dict[str, Any]:
        return lab.condition("slurmctld", "slurm", "Degraded")

    eventually(lambda: told()["reason"] == "InvalidConfiguration", "it says so")
    assert "line 2: SlurmdTimout" in told()["message"]
    assert lab.condition("slurmctld", "slurm")["status"] == "True"  # the cluster goes on
    assert "SlurmdTimout" not in lab.ours("configmap", "slurm-config")["data"]["slurm.conf"]
    patch["spec"]["extraConf"] = "TaskPlugin=task/none\nSlurmdTimeout=77\n"
    lab.kubectl(
        "-n", NAMESPACE, "patch", "controllers.slinky.slurm.net", "slurm", "--type=merge", "-p", json.dumps(patch)
    )
    eventually(lambda: "= 77 sec" in lab.scontrol("show", "config"), "the good one is in effect")
    lab.wait_ready("slurmctld/slurm")


def test_an_update_waits_for_jobs_even_if_the_operator_is_killed(lab: Lab) -> None:
    lab.alice("sbatch -w debug-0 -o up.txt --wrap 'touch going; while [ -e going ]; do sleep 0.2; done; echo done'")
    eventually(lambda: lab.nodes()["debug-0"][0] == "allocated", "the job runs")
    uid = lab.workers()["debug-0"]["metadata"]["uid"]
    patch = json.dumps({"spec": {"extraConf": "Weight=9"}})
    lab.kubectl("-n", NAMESPACE, "patch", "nodeset", "debug", "--type=merge", "-p", patch)
    eventually(lambda: lab.nodes()["debug-0"][0] == "draining", "it waits for the job")
    lab.operator.kill()
    assert lab.workers()["debug-0"]["metadata"]["uid"] == uid
    lab.alice("rm going")
    eventually(lambda: lab.nodes()["debug-0"][0] == "drained", "the job has ended")
    lab.operator.start()
    eventually(lambda: lab.workers()["debug-0"]["metadata"]["uid"] != uid, "then it is replaced")
    lab.wait_ready("nodeset/debug")
    assert lab.alice("cat up.txt").split() == ["done"]
    eventually(lambda: {state for state, _ in lab.nodes().values()} == {"idle"}, "both work again")
    for name in ("debug-0", "debug-1"):
        assert "Weight=9" in lab.scontrol("show", "node", name)


@pytest.mark.parametrize("moment", [0.1, 0.8])
def test_killed_at_any_moment_it_goes_on(lab: Lab, moment: float) -> None:
    lab.scale(1)
    time.sleep(moment)
    lab.operator.kill()
    lab.operator.start()
    lab.settle(2)
    eventually(lambda: {state for state, _ in lab.nodes().values()} == {"idle"}, "two idle workers")
    assert set(lab.nodes()) == {"debug-0", "debug-1"}


def test_without_slurmrestd_no_worker_is_removed(lab: Lab) -> None:
    lab.alice("sbatch -N2 -o /dev/null --wrap 'srun sleep 300'")
    eventually(lambda: {state for state, _ in lab.nodes().values()} == {"allocated"}, "both busy")
    lab.kubectl("-n", NAMESPACE, "patch", "restapi", "slurm", "--type=merge", "-p", '{"spec":{"replicas":0}}')
    eventually(lambda: lab.condition("nodeset", "debug")["status"] == "Unknown", "it says that it does not know")
    lab.scale(0)
    eventually(
        lambda: "until Slurm can be asked" in lab.condition("nodeset", "debug", "Progressing")["message"], "it waits"
    )
    assert set(lab.workers()) == {"debug-0", "debug-1"}
    lab.kubectl("-n", NAMESPACE, "patch", "restapi", "slurm", "--type=merge", "-p", '{"spec":{"replicas":1}}')
    eventually(lambda: {state for state, _ in lab.nodes().values()} == {"draining"}, "it goes on where it was")
    assert set(lab.workers()) == {"debug-0", "debug-1"}
    lab.alice("scancel -u alice")
    eventually(lambda: lab.workers() == {}, "then they go")
    lab.settle(2)


def test_a_worker_whose_pod_is_deleted_comes_back(lab: Lab) -> None:
    uid = lab.workers()["debug-1"]["metadata"]["uid"]
    lab.kubectl("-n", NAMESPACE, "delete", "pod", "debug-1", "--wait=false")
    eventually(lambda: lab.workers()["debug-1"]["metadata"]["uid"] != uid, "a new pod")
    lab.wait_ready("nodeset/debug")
    eventually(lambda: lab.nodes()["debug-1"][0] == "idle", "idle again")


def test_a_token_is_signed_kept_and_works(lab: Lab) -> None:
    key = {"name": "slurm-auth-jwt", "key": "jwt.key"}
    spec = {"jwtKeyRef": key, "username": "alice", "lifetime": "1h"}
    meta = {"name": "ci", "namespace": NAMESPACE}
    lab.apply({"apiVersion": "slinky.slurm.net/v1beta1", "kind": "Token", "metadata": meta, "spec": spec})
    lab.wait_ready("tokens.slinky.slurm.net/ci")
    token = base64.b64decode(lab.ours("secret", "ci-jwt-alice")["data"]["SLURM_JWT"]).decode()
    assert "debug-0" in lab.alice(f"SLURM_JWT={token} sinfo -h -N")
    assert "debug-0" not in lab.alice(f"SLURM_JWT={token}x sinfo -h -N 2>&1 || true")
    lab.kubectl("-n", NAMESPACE, "delete", "tokens.slinky.slurm.net", "ci")
    eventually(lambda: not lab.kubectl("-n", NAMESPACE, "get", "secret", "ci-jwt-alice", "--ignore-not-found"), "gone")


def test_uninstalling_leaves_the_keys_and_nothing_else(lab: Lab) -> None:
    """In the order that is the wrong one: the operator first."""
    key = lab.ours("secret", "slurm-auth-slurm")["data"]
    assert "resources let go" in lab.operator.release()
    lab.helm("uninstall", OPERATOR, "-n", OPERATOR)
    lab.helm("uninstall", "slurm", "-n", NAMESPACE)
    kinds = "pods,services,statefulsets,deployments,poddisruptionbudgets,nodesets,loginsets,restapis"
    eventually(lambda: lab.ours(kinds)["items"] == [], "nothing is left", 90)
    assert lab.ours("secret", "slurm-auth-slurm")["data"] == key
    lab.install_operator()
    lab.operator.start()
    lab.install_slurm()
    lab.wait_ready()
    assert lab.ours("secret", "slurm-auth-slurm")["data"] == key
    assert "debug-0" in lab.alice("srun -N2 hostname")
