"""What README promises a new user, seen through the same commands."""

from __future__ import annotations

import json
import re
import subprocess
import time
import urllib.request

import pytest

from .conftest import REPOSITORY, Cloud, wait_until

pytestmark = pytest.mark.e2e


def test_job_ran_on_two_pods_on_two_kubernetes_nodes(cloud: Cloud) -> None:
    hosts = re.findall(r"^\d: hello from (\S+), task \d of 2, as alice \(uid 2001\)", cloud.first_up, re.MULTILINE)
    assert len(set(hosts)) == 2, cloud.first_up[-3000:]
    pods = cloud.get("pods", "-n", "slurm", "-l", "app.kubernetes.io/name=slurmd")["items"]
    node_of = {p["spec"].get("hostname", p["metadata"]["name"]): p["spec"]["nodeName"] for p in pods}
    assert len({node_of[host] for host in hosts}) == 2


def test_up_says_what_to_try_next(cloud: Cloud) -> None:
    for hint in ("make shell", "make job", "kubectl", "make down"):
        assert hint in cloud.first_up


def versions(cloud: Cloud) -> dict[str, str]:
    """resourceVersion of all that a run of `make up` could touch, by uid."""
    kinds = "pods,statefulsets,deployments,nodesets,controllers,loginsets,restapis"
    return {o["metadata"]["uid"]: o["metadata"]["resourceVersion"] for o in cloud.get(kinds, "-A")["items"]}


def settled(cloud: Cloud) -> dict[str, str]:
    """The versions once nothing changes any more: the operator looks for the end of the last job every 5 s."""
    seen = [versions(cloud)]

    def same() -> bool:
        time.sleep(6)
        seen.append(versions(cloud))
        return seen[-1] == seen[-2]

    wait_until(same, "the cluster is at rest")
    return seen[-1]


def test_second_up_changes_nothing_and_says_so(cloud: Cloud) -> None:
    before = settled(cloud)
    output = cloud.run("up")
    assert "Nothing to change" in output
    assert versions(cloud) == before


def test_job_runs_again(cloud: Cloud) -> None:
    assert "hello from" in cloud.run("job")


def test_no_daemon_is_privileged(cloud: Cloud) -> None:
    for pod in cloud.get("pods", "-n", "slurm")["items"] + cloud.get("pods", "-n", "slurm-operator")["items"]:
        for container in pod["spec"].get("initContainers", []) + pod["spec"]["containers"]:
            context = container.get("securityContext", {})
            assert not context.get("privileged"), pod["metadata"]["name"]
            assert context.get("allowPrivilegeEscalation") is False, (pod["metadata"]["name"], container["name"])


def test_no_secret_in_plain_state(cloud: Cloud) -> None:
    state = "".join(p.read_text() for p in (cloud.state / "pulumi").rglob("*.json"))
    for secret in cloud.get("secrets", "-n", "slurm")["items"]:
        for value in secret.get("data", {}).values():
            assert len(value) < 20 or value not in state
    passphrase = (cloud.state / "pulumi" / "passphrase").read_text()
    assert passphrase not in state
    assert (cloud.state / "pulumi" / "passphrase").stat().st_mode & 0o077 == 0


def test_slipway_kubectl_is_kubectl_on_this_cluster(cloud: Cloud) -> None:
    assert (
        cloud.run("kubectl", "get", "nodes", "-o", "name").split()
        == cloud.kubectl("get", "nodes", "-o", "name").split()
    )


def test_shell_takes_commands_from_a_pipe_and_gives_the_last_ones_exit_code(cloud: Cloud) -> None:
    done = subprocess.run(
        [str(REPOSITORY / "slipway"), "shell"], input="id -un\nexit 7\n", env=cloud.environment,
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.stdout == "alice\n"
    assert done.returncode == 7
    assert "TTY" not in done.stderr


def test_a_node_that_is_not_there_is_answered_with_those_that_are(cloud: Cloud) -> None:
    output = cloud.run("node", "drain", "debug-0", ok=False)  # a Slurm node, not a Kubernetes node
    names = cloud.run("node", "list").split()
    assert f"there is no Kubernetes node 'debug-0'; there is: {', '.join(names)}" in output
    assert cloud.run("node", "uncordon", names[0]) == f"{names[0]}: takes pods again\n"


def test_refresh_after_up_finds_nothing_changed(cloud: Cloud) -> None:
    output = cloud.run("engine", "refresh", "--yes")
    assert "no changes" in output and "changed outside" not in output


def test_logs_lists_every_log(cloud: Cloud) -> None:
    names = cloud.run("logs").splitlines()
    assert {"aws", "apiserver", "slurmctld"} <= set(names)


def test_no_line_ends_in_spaces(cloud: Cloud) -> None:
    for output in (cloud.first_up, cloud.run("status")):
        assert [line for line in output.splitlines() if line != line.rstrip()] == []


def test_two_runs_at_once_name_each_other(cloud: Cloud) -> None:
    lock = cloud.state.parent / f".{cloud.instance}.lock"
    first = cloud.start("up")
    try:
        wait_until(lambda: '"up"' in lock.read_text(), "the first run holds the instance", 30)
        assert f"`up` (pid {first.pid}" in cloud.run("up", ok=False)
    finally:
        first.communicate()
    assert first.returncode == 0


def test_destroy_leaves_nothing_in_the_cloud_and_up_brings_it_back(cloud: Cloud) -> None:
    cloud.run("destroy")
    net = 20000 + cloud.net * 10 + 6
    with urllib.request.urlopen(f"http://127.0.0.1:{net}/slipway/inventory", timeout=30) as response:
        assert json.loads(response.read()) == []
    assert "hello from" in cloud.run("up")
