"""kill -9 of each daemon in the middle of a scale-in, an update and a cordon at once, while jobs run on a real Slurm.

One NodeSet of two workers for each of the three, the first worker busy and the second idle, and a bystander that has a
job all the time. The tests share one cluster; each leaves the workers idle behind, and the bystander's job running.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.commands import eventually
from support.lab import NAMESPACE, Lab, running_lab

from localcloud.kubernetes import cgroups, cluster, processes

pytestmark = pytest.mark.cluster

OURS = "slurm-operator: "
CORDONED = "n3"
SCALE_IN = f"{OURS}Pod ({NAMESPACE}/scaled-0) is pending termination for scale-in"
UPDATE = f"{OURS}Pod ({NAMESPACE}/updated-0) is to be replaced by a new revision"
BUSY = ("scaled-0", "updated-0", "cordoned-0")
IDLE = ("scaled-1", "updated-1", "cordoned-1")
BYSTANDER = "steady-0"
SECONDS = 120
"""For everything to be as it should after a fault. Convergence takes a few of them on a machine that is not busy."""


@dataclass(frozen=True)
class Site:
    """The lab, and the job of the bystander."""

    lab: Lab
    job: str


def nodeset(pool: str, replicas: int = 2) -> dict[str, Any]:
    return {
        "replicas": replicas,
        "oversubscribeNode": True,
        "partition": {"enabled": True, "config": "MaxTime=60"},
        "podSpec": {"nodeSelector": {"pool": pool}},
    }


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running_lab(tmp_path_factory.mktemp("faults")) as lab:
        lab.kubectl("label", "node", "n1", "n2", "pool=shared")
        lab.kubectl("label", "node", CORDONED, "pool=cordoned")
        sets = {name: nodeset("shared") for name in ("scaled", "updated")}
        lab.install_slurm(nodesets={**sets, "cordoned": nodeset("cordoned"), "steady": nodeset("shared", 1)})
        lab.wait_ready(seconds=180)
        eventually(lambda: {state for state, _ in lab.nodes().values()} == {"idle"}, "idle workers")
        yield Site(lab, start(lab, BYSTANDER)[BYSTANDER])


# --- jobs ---


def start(lab: Lab, *nodes: str) -> dict[str, str]:
    """A job of alice on each of these nodes that runs until `finish`: node -> id."""
    script = "while [ -e {0}.runs ]; do sleep 0.5; done; echo done"
    submit = "touch {0}.runs; sbatch --parsable -p {1} -w {0} -o {0}.out --wrap '" + script + "'"
    ids = lab.alice("\n".join(submit.format(node, node.split("-")[0]) for node in nodes)).split()
    jobs = dict(zip(nodes, ids, strict=True))
    eventually(lambda: {lab.nodes()[node][0] for node in nodes} == {"allocated"}, f"jobs run on {nodes}")
    return jobs


def shown(lab: Lab, job: str) -> dict[str, str]:
    """Fields of `scontrol show job`."""
    words = lab.scontrol("--oneliner", "show", "job", job).split()
    return dict(word.split("=", 1) for word in words if "=" in word)


def keep(lab: Lab, jobs: Mapping[str, str]) -> None:
    """Until slurmctld has written that they run: it does so seconds later, and its kill -9 loses what is younger."""
    *_, job = jobs.values()
    lab.scontrol("update", f"jobid={job}", f"comment=kept-{job}")
    files = "$(scontrol show config | sed -n 's/^StateSaveLocation *= //p')/job_state"
    command = ("exec", "slurm-controller-0", "-c", "slurmctld", "--", "sh", "-c", f"grep -c 'kept-{job}' {files}")
    eventually(lambda: lab.kubectl("-n", NAMESPACE, *command).strip() != "0", "slurmctld has saved its jobs")


def check_running(lab: Lab, jobs: Mapping[str, str]) -> None:
    for node, job in jobs.items():
        fields = shown(lab, job)
        found = (fields["JobState"], fields["NodeList"], fields["Restarts"])
        assert found == ("RUNNING", node, "0"), f"job {job}: {fields}\n{lab.state()}"


def finish(lab: Lab, jobs: Mapping[str, str]) -> None:
    """Let these jobs end, and see that each did so well and at its first attempt."""
    lab.alice("rm " + " ".join(f"{node}.runs" for node in jobs))
    for node, job in jobs.items():

        def ended(job: str = job) -> bool:
            return shown(lab, job)["JobState"] not in ("RUNNING", "COMPLETING")

        eventually(ended, f"job {job} ends")
        fields = shown(lab, job)
        found = (fields["JobState"], fields["ExitCode"], fields["NodeList"], fields["Restarts"])
        assert found == ("COMPLETED", "0:0", node, "0"), f"job {job}: {fields}\n{lab.state()}"
        assert lab.alice(f"cat {node}.out").split() == ["done"]


# --- faults: each returns when what it killed has been started again ---


def kill(lab: Lab, program: str, *uids: str) -> None:
    """SIGKILL to all processes of the program in the instance, or in these pods of it."""
    hit = 0
    for pid in processes.members(lab.inst.cgroup, program):
        try:
            groups = Path(f"/proc/{pid}/cgroup").read_text()
        except OSError:
            continue
        if not uids or any(uid in groups for uid in uids):
            hit += cgroups.send(pid, signal.SIGKILL, lab.inst.cgroup)
    assert hit, f"no {program} runs"


def kill_operator(lab: Lab) -> None:
    """More than once: while it acts, while it starts, and when it has looked around."""
    for pause in (0, 1, 3):
        time.sleep(pause)
        lab.operator.kill()
        lab.operator.start()


def kill_pod(name: str) -> Callable[[Lab], None]:
    """The kubelet starts a container again in its pod."""

    def fault(lab: Lab) -> None:
        (pod,) = lab.ours("pods", "-l", f"app.kubernetes.io/name={name}")["items"]
        kill(lab, name, pod["metadata"]["uid"])

    return fault


def kill_idle_slurmds(lab: Lab) -> None:
    """Not those with a job, which would be the victims."""
    there = uids(lab)
    kill(lab, "slurmd", *(there[name] for name in IDLE if name in there))


def kill_daemon(name: str) -> Callable[[Lab], None]:
    """Of the control plane, or of all nodes at once."""

    def fault(lab: Lab) -> None:
        kill(lab, name)
        cluster.ensure_all(inst=lab.inst, seconds=180)

    return fault


def kill_all(lab: Lab) -> None:
    """At once, all but slurmd."""
    lab.operator.kill()
    for name in ("slurmctld", "slurmrestd"):
        kill_pod(name)(lab)
    for name in DAEMONS:
        kill(lab, name)
    cluster.ensure_all(inst=lab.inst, seconds=180)
    lab.operator.start()


DAEMONS = ("kubelet", "containerd", "kube-apiserver", "etcd")
FAULTS: Mapping[str, Callable[[Lab], None]] = {
    "operator": kill_operator,
    "slurmctld": kill_pod("slurmctld"),
    "slurmrestd": kill_pod("slurmrestd"),
    "slurmd": kill_idle_slurmds,
    **{name: kill_daemon(name) for name in DAEMONS},
    "all": kill_all,
}


# --- what there is ---


def uids(lab: Lab) -> dict[str, str]:
    """Pod -> uid of all workers, without those that are being deleted."""
    pods = lab.ours("pods", "-l", "app.kubernetes.io/name=slurmd")["items"]
    return {
        one["metadata"]["name"]: one["metadata"]["uid"] for one in pods if "deletionTimestamp" not in one["metadata"]
    }


def cordon_of(name: str) -> str:
    return f"{OURS}Node ({CORDONED}) was cordoned, Pod ({NAMESPACE}/{name}) must be cordoned"


def eventually_so(
    lab: Lab, old: Mapping[str, str], states: Mapping[str, tuple[str, str]], renewed: tuple[str, ...], what: str
) -> None:
    """Slurm's nodes are in these states with these reasons ("" for none); of the workers' pods, `renewed` are new."""
    seen: dict[str, object] = {}

    def check() -> bool:
        seen["nodes"] = found = {
            name: (state, "" if reason == "none" else reason) for name, (state, reason) in lab.nodes().items()
        }
        seen["pods"] = pods = uids(lab)
        new = {name for name in pods if name in old and pods[name] != old[name]}
        return found == states and set(pods) == set(states) and new == set(renewed)

    try:
        eventually(check, what, SECONDS)
    except AssertionError as error:
        raise AssertionError(f"{error}\nold pods {old}\nseen {seen}\n{lab.state()}") from error


@pytest.mark.parametrize("victim", FAULTS)
def test_a_killed_daemon_costs_no_job_and_everything_converges(site: Site, victim: str) -> None:
    lab = site.lab
    jobs = start(lab, *BUSY)
    if victim in ("slurmctld", "all"):
        keep(lab, jobs)
    old = uids(lab)
    lab.scale(0, "scaled")
    template = {"metadata": {"labels": {"example.com/build": victim}}}
    patch = json.dumps({"spec": {"template": template}})
    lab.kubectl("-n", NAMESPACE, "patch", "nodeset", "updated", "--type=merge", "-p", patch)
    lab.kubectl("cordon", CORDONED)
    FAULTS[victim](lab)

    cordoned = {"cordoned-1": ("drained", cordon_of("cordoned-1")), BYSTANDER: ("allocated", "")}
    middle = {
        **cordoned,
        "scaled-0": ("draining", SCALE_IN),
        "updated-0": ("draining", UPDATE),
        "updated-1": ("idle", ""),
        "cordoned-0": ("draining", cordon_of("cordoned-0")),
    }
    eventually_so(lab, old, middle, ("updated-1",), "idle workers went and were renewed, busy ones are waited for")
    check_running(lab, {**jobs, BYSTANDER: site.job})

    finish(lab, jobs)
    idle = {"updated-0": ("idle", ""), "updated-1": ("idle", "")}
    end = {**cordoned, **idle, "cordoned-0": ("drained", cordon_of("cordoned-0"))}
    eventually_so(lab, old, end, ("updated-0", "updated-1"), "what was waited for goes on")

    lab.kubectl("uncordon", CORDONED)
    lab.scale(2, "scaled")
    rest = dict.fromkeys((*BUSY, *IDLE), ("idle", ""))
    renewed = ("scaled-0", "scaled-1", "updated-0", "updated-1")
    eventually_so(lab, old, {**rest, BYSTANDER: ("allocated", "")}, renewed, "as before, without a stray drain")
    lab.wait_ready(seconds=SECONDS)
    check_running(lab, {BYSTANDER: site.job})
