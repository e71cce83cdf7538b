"""Kill any part at any moment: the next `make up` converges and no job is lost."""

from __future__ import annotations

import os
import signal

import pytest

from .conftest import Cloud, wait_until

pytestmark = pytest.mark.e2e


def running_job(cloud: Cloud) -> str:
    """Submit a job that runs until it is told to end, and wait until it runs."""
    script = 'srun bash -c "until [ -e ~/end-\\$SLURM_JOB_ID ]; do sleep 0.2; done"'
    job = cloud.login(f"sbatch --parsable -N2 --wrap='{script}'").strip()
    wait_until(lambda: "RUNNING" in cloud.login(f"squeue -h -j {job} -o %T"), f"job {job} runs")
    return job


def finish(cloud: Cloud, job: str) -> None:
    """Tell the job to end and prove that it was never started a second time."""
    cloud.login(f"touch end-{job}")
    wait_until(lambda: "COMPLETED" in cloud.login(f"scontrol show job {job} -o"), f"job {job} completes")
    assert "Restarts=0" in cloud.login(f"scontrol show job {job} -o")


@pytest.mark.parametrize("daemon", ["aws", "apiserver", "etcd", "controller-manager", "scheduler"])
def test_killed_daemon_comes_back_and_the_job_goes_on(cloud: Cloud, daemon: str) -> None:
    job = running_job(cloud)
    os.kill(cloud.pid_of(daemon), signal.SIGKILL)
    cloud.run("up")
    finish(cloud, job)


@pytest.mark.parametrize(
    "selector",
    ["-n slurm-operator -l app.kubernetes.io/name=slurm-operator", "-n slurm -l app.kubernetes.io/name=slurmrestd"],
)
def test_killed_pods_come_back_and_the_job_goes_on(cloud: Cloud, selector: str) -> None:
    job = running_job(cloud)
    cloud.kubectl("delete", "pod", "--grace-period=0", "--force", *selector.split())
    cloud.run("up")
    finish(cloud, job)


def test_killed_slurmctld_pod_keeps_its_jobs(cloud: Cloud) -> None:
    job = running_job(cloud)
    cloud.kubectl(
        "delete", "pod", "-n", "slurm", "-l", "app.kubernetes.io/name=slurmctld", "--grace-period=0", "--force"
    )
    cloud.run("up")
    finish(cloud, job)


def test_killed_node_comes_back(cloud: Cloud) -> None:
    nodes = cloud.get("nodes")["items"]
    worker = next(n["metadata"]["name"] for n in nodes if "slipway.dev/partition" in n["metadata"]["labels"])
    cloud.run("node", "kill", worker)
    output = cloud.run("up")
    assert "ready" in output.lower()
    assert "hello from" in cloud.run("job")
