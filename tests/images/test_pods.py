"""The images in pods on a real cluster, without privileges: what a user and an operator rely on."""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from images.tags import SLURM_IMAGES
from localcloud import tools
from localcloud.images.build import build, missing_in, reference, tags
from localcloud.kubernetes import addons, cluster
from localcloud.kubernetes.specs import NodeSpec
from localcloud.paths import ECR_REGISTRY, Instance
from tests.clusters import add_nodes, own_instance

pytestmark = pytest.mark.cluster

NODES = ("n1", "n2")
SSH = "ssh -q -i /tmp/id -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o BatchMode=yes"


@dataclass
class Lab:
    """The running cluster with Slurm on it."""

    inst: Instance
    kubectl_path: Path

    def kubectl(self, *words: str, stdin: str | None = None, check: bool = True) -> str:
        done = subprocess.run(
            [self.kubectl_path, "--kubeconfig", self.inst.kubeconfig, "-n", "slurm", *words],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
        )
        assert not check or done.returncode == 0, f"kubectl {' '.join(words)}: {done.stderr}{done.stdout}"
        return done.stdout + ("" if check else done.stderr)

    def login(self, command: str, check: bool = True) -> str:
        """Run a command in the login pod as root."""
        return self.kubectl("exec", "deploy/login", "--", "bash", "-c", command, check=check)

    def ssh(self, user: str, command: str, check: bool = True) -> str:
        """Run a command through the pod's sshd."""
        return self.login(f"{SSH} {user}@localhost {shlex.quote(command)}", check)

    def pods(self, app: str) -> list[dict[str, Any]]:
        return list(json.loads(self.kubectl("get", "pods", "-l", f"app={app}", "-o", "json"))["items"])

    def rest(self, path: str, token: str | None, body: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """Ask slurmrestd: status and answer."""
        address = self.pods("slurmrestd")[0]["status"]["podIP"]
        headers = {"Content-Type": "application/json"} | ({"X-SLURM-USER-TOKEN": token} if token else {})
        data = json.dumps(body).encode() if body else None
        request = Request(f"http://{address}:6820/slurm/v0.0.44/{path}", data=data, headers=headers)
        try:
            with urlopen(request, timeout=20) as answer:
                return answer.status, json.load(answer)
        except HTTPError as error:
            return error.code, {}

    def token(self, user: str) -> str:
        out = self.kubectl("exec", "slurmctld-0", "--", "scontrol", "token", f"username={user}", "lifespan=600")
        return out.strip().removeprefix("SLURM_JWT=")


def eventually(check: Callable[[], bool], what: str, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.2)


def config_map(name: str, data: dict[str, str]) -> str:
    meta = {"name": name, "namespace": "slurm"}
    return json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data})


def users(*names: str) -> str:
    numbered = list(enumerate(names, 2001))
    return config_map(
        "users",
        {
            "passwd": "".join(f"{name}:x:{uid}:{uid}::/home/{name}:/bin/bash\n" for uid, name in numbered),
            "group": "".join(f"{name}:x:{uid}:\n" for uid, name in numbered),
            "shadow": "".join(f"{name}:*:20000:0:99999:7:::\n" for _, name in numbered),
        },
    )


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Two nodes, DNS, and the Slurm of slurm.yaml; user alice with an ssh key."""
    bin_dir = tools.ensure_tools()
    with own_instance() as inst:
        cluster.start_control_plane(inst=inst)
        cluster.start_registry(inst=inst)
        wanted = tags(SLURM_IMAGES)
        if missing := missing_in(inst.registry, wanted):
            build(missing, lambda _: None, inst.registry)
        add_nodes(inst, *map(NodeSpec, NODES))
        addons.apply_coredns(inst, cluster.api(inst))

        here = Lab(inst, bin_dir / "kubectl")
        key = tmp_path_factory.mktemp("ssh") / "id"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
        secrets = {name: base64.b64encode(os.urandom(64)).decode() for name in ("slurm.key", "jwt.key")}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "slurm-keys", "namespace": "slurm"}}
        manifest = (Path(__file__).parent / "slurm.yaml").read_text()
        replacements = {name: f"{ECR_REGISTRY}/{reference(name, tag)}" for name, tag in wanted.items()}
        for name, value in (replacements | {"home": str(inst.state / "home")}).items():
            manifest = manifest.replace(f"@{name}@", value)
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "slurm"}}
        keys = config_map("ssh-keys", {"alice": key.with_suffix(".pub").read_text()})
        documents = [json.dumps(namespace), json.dumps(secret | {"data": secrets}), users("alice"), keys, manifest]
        here.kubectl("apply", "-f", "-", stdin="\n---\n".join(documents))
        for workload in ("statefulset/slurmctld", "statefulset/slurmd", "deployment/slurmrestd", "deployment/login"):
            here.kubectl("rollout", "status", workload, "--timeout=120s")
        here.kubectl("exec", "-i", "deploy/login", "--", "sh", "-c", "umask 077; cat >/tmp/id", stdin=key.read_text())
        eventually(lambda: here.login("sinfo -h -t idle -o %D").strip() == "2", "two idle Slurm nodes")
        yield here


def test_a_user_runs_a_job_on_two_nodes_through_ssh(lab: Lab) -> None:
    job = "#!/bin/bash\n#SBATCH -N2 -o out\nsrun hostname; srun id -un\n"
    script = f"cat >job.sh <<'E'\n{job}E\nsbatch --wait job.sh; cat out"
    lines = lab.ssh("alice", f"pwd; srun -N2 hostname | sort; {script}").splitlines()
    assert lines[0] == "/home/alice"
    assert lines[1:3] == ["slurmd-0", "slurmd-1"]
    assert lines[3].startswith("Submitted batch job")
    assert sorted(lines[4:6]) == ["slurmd-0", "slurmd-1"]
    assert lines[6:] == ["alice", "alice"]
    placed = {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in lab.pods("slurmd")}
    assert sorted(placed) == ["slurmd-0", "slurmd-1"]
    assert sorted(placed.values()) == list(NODES)


def test_su_works_like_ssh(lab: Lab) -> None:
    assert lab.login("su - alice -c 'id -un; srun -N1 id -un'").splitlines() == ["alice", "alice"]


def test_the_limits_of_the_pod_are_the_size_of_the_node(lab: Lab) -> None:
    node = lab.login("scontrol show node slurmd-0")
    real, reserved = (int(re.findall(rf"{key}=(\d+)", node)[0]) for key in ("RealMemory", "MemSpecLimit"))
    assert real - reserved == 500
    cpus = os.cpu_count() or 1
    if cpus > 1:
        assert "CPUEfctv=1 " in node


def test_pods_have_no_privilege_and_no_root_where_it_is_not_needed(lab: Lab) -> None:
    for pod, uid in (("slurmctld-0", "401"), ("deploy/slurmrestd", "65534")):
        status = lab.kubectl("exec", pod, "--", "cat", "/proc/1/status")
        assert re.search(rf"^Uid:\s+{uid}\s", status, re.MULTILINE)
        assert re.search(r"^CapEff:\s+0+$", status, re.MULTILINE)
    sackd = lab.login("ps -o user= -C sackd").split()
    assert sackd == ["slurm"]
    for pod in ("slurmctld-0", "slurmd-0", "deploy/slurmrestd", "deploy/login"):
        assert "Read-only file system" in lab.kubectl("exec", pod, "--", "touch", "/usr/x", check=False)


def test_a_user_may_not_read_the_keys(lab: Lab) -> None:
    out = lab.ssh("alice", "cat /etc/slurm/slurm.key /run/slurm/sackd.key 2>&1; true")
    assert out.count("Permission denied") == 2
    assert "Permission denied" in lab.ssh("alice", "srun -N1 cat /etc/slurm/slurm.key 2>&1; true")


def test_only_a_key_opens_the_door(lab: Lab) -> None:
    assert "uid=" in lab.ssh("alice", "id")
    assert "uid=" not in lab.ssh("root", "id", check=False)
    refused = lab.login("ssh -v -o BatchMode=yes -o StrictHostKeyChecking=no alice@localhost id 2>&1", check=False)
    assert "uid=" not in refused
    assert re.findall(r"Authentications that can continue: (.*)", refused)[-1].strip() == "publickey"


def test_the_rest_api_wants_a_token_and_takes_jobs_of_users(lab: Lab) -> None:
    assert lab.rest("ping/", None)[0] == 401
    status, answer = lab.rest("ping/", lab.token("slurm"))
    assert (status, answer["pings"][0]["responding"]) == (200, True)
    job = {
        "script": "#!/bin/bash\nid -un >rest.out\n",
        "job": {"name": "rest", "current_working_directory": "/home/alice", "environment": ["PATH=/usr/bin:/bin"]},
    }
    status, answer = lab.rest("job/submit", lab.token("alice"), job)
    assert status == 200, answer
    eventually(lambda: lab.login("cat /home/alice/rest.out 2>/dev/null; true").strip() == "alice", "the job's output")


def test_a_reconfigure_reaches_every_daemon_and_restarts_no_container(lab: Lab) -> None:
    def restarts() -> list[int]:
        pods = [pod for app in ("slurmctld", "slurmd", "login") for pod in lab.pods(app)]
        return [state["restartCount"] for pod in pods for state in pod["status"]["containerStatuses"]]

    before = restarts()
    lab.kubectl("exec", "slurmctld-0", "--", "scontrol", "reconfigure")
    time.sleep(2)
    assert lab.ssh("alice", "srun -N2 hostname | sort").split() == ["slurmd-0", "slurmd-1"]
    assert restarts() == before


def test_a_user_added_later_gets_a_home_at_the_first_login(lab: Lab) -> None:
    lab.kubectl("apply", "-f", "-", stdin=users("alice", "bob"))
    key = lab.login("ssh-keygen -y -f /tmp/id")
    lab.kubectl("apply", "-f", "-", stdin=config_map("ssh-keys", {"alice": key, "bob": key}))
    # The kubelet brings changed ConfigMaps into running pods within about a minute, and at once when a pod changes.
    lab.kubectl("annotate", "pod", "-l", "app=login", f"test/now={time.time_ns()}")
    expected = ["/home/bob", "bob 700"]
    eventually(lambda: lab.ssh("bob", "pwd; stat -c '%U %a' .", check=False).splitlines() == expected, "a login", 150)


@pytest.mark.parametrize("daemon", ["sackd", "sshd"])
def test_when_one_daemon_of_the_login_pod_dies_the_kubelet_starts_both_again(lab: Lab, daemon: str) -> None:
    def count() -> int:
        return int(lab.pods("login")[0]["status"]["containerStatuses"][0]["restartCount"])

    before = count()
    lab.login(f"kill -9 $(pgrep -o -x {daemon})", check=False)
    eventually(lambda: count() == before + 1, "a restart of the container")
    assert f"{daemon} has ended with code 137" in lab.kubectl("logs", "deploy/login", "--previous")
    lab.kubectl("rollout", "status", "deployment/login", "--timeout=60s")
    eventually(lambda: lab.login("su - alice -c 'srun -N1 id -un'", check=False).strip() == "alice", "a job afterwards")
