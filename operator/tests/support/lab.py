"""A real Slurm on real nodes, run by the operator as a process with the rights of the chart and no more."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from images.tags import SLURM_IMAGES, image_tag
from localcloud.images.build import build, missing_in, tags
from localcloud.kubernetes import addons, cluster
from localcloud.kubernetes.specs import NodeSpec
from localcloud.paths import ECR_REGISTRY, Instance
from support.commands import CHARTS, Commands, eventually
from tests.clusters import add_nodes, own_instance

NODES = ("n1", "n2", "n3")
NAMESPACE = "slurm"
OPERATOR = "slurm-operator"
SOURCE = Path(__file__).resolve().parents[2] / "src"


class Operator:
    """The operator's process; it can be killed and started again."""

    def __init__(self, folder: Path, kubeconfig: Path) -> None:
        self.log = folder / "operator.log"
        self._kubeconfig = kubeconfig
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        arguments = ["--namespaces", NAMESPACE, "--no-leader-elect", "--health-port", "0", "--metrics-port", "0"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "slurm_operator", *arguments, "--kubeconfig", str(self._kubeconfig)],
                env={**os.environ, "PYTHONPATH": str(SOURCE), "SLURM_OPERATOR_RBAC_GUARD": "1"},
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        """As a machine that loses power."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def release(self) -> str:
        """What the chart's hook does before an uninstall, with the operator stopped; its log."""
        self.kill()
        done = subprocess.run(
            [sys.executable, "-m", "slurm_operator", "release", "--namespaces", NAMESPACE,
             "--deployment", f"{OPERATOR}/{OPERATOR}", "--kubeconfig", str(self._kubeconfig)],
            env={**os.environ, "PYTHONPATH": str(SOURCE), "SLURM_OPERATOR_RBAC_GUARD": "1"},
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]


class Lab(Commands):
    """One instance with the charts installed; `values` are those of charts/slurm."""

    def __init__(self, inst: Instance, folder: Path) -> None:
        super().__init__(inst)
        self.folder = folder
        self.values = folder / "values.json"
        self.operator = Operator(folder, folder / "operator.kubeconfig")

    # --- installing ---

    def install_operator(self) -> None:
        """CRDs, service account and roles from the chart; the process gets a token of that account."""
        for name in (NAMESPACE, OPERATOR):
            self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        chart = str(CHARTS / "slurm-operator")
        settings = (f"watchNamespaces={{{NAMESPACE}}}", "replicas=0", "cordonKubernetesNodes=true")
        values = [word for setting in settings for word in ("--set", setting)]
        self.helm("upgrade", "--install", OPERATOR, chart, "-n", OPERATOR, *values)
        token = self.kubectl("-n", OPERATOR, "create", "token", OPERATOR, "--duration=4h").strip()
        config = json.loads(self.kubectl("config", "view", "--raw", "-o", "json"))
        config["users"] = [{"name": config["users"][0]["name"], "user": {"token": token}}]
        (self.folder / "operator.kubeconfig").write_text(json.dumps(config))

    def install_slurm(self, **changes: Any) -> None:
        """Install or upgrade charts/slurm with the usual values and `changes` of top-level ones."""
        self.values.write_text(json.dumps({**usual_values(self.inst), **changes}))
        self.helm("upgrade", "--install", "slurm", str(CHARTS / "slurm"), "-n", NAMESPACE, "-f", str(self.values))

    def wait_ready(self, *what: str, seconds: int = 90) -> None:
        """Until the Ready condition of these (default: everything) holds."""
        names = what or ("slurmctld,nodesets,loginsets,slurmrestd", "--all")
        out = self.kubectl(
            "-n", NAMESPACE, "wait", "--for=condition=Ready", f"--timeout={seconds}s", *names, check=False
        )
        assert "timed out" not in out and "error" not in out.lower(), f"{out}\n{self.state()}"

    def state(self) -> str:
        """What a person would look at first."""
        shown = self.kubectl("-n", NAMESPACE, "get", "slurmctld,nodesets,loginsets,slurmrestd,pods", "-o", "wide")
        return f"{shown}\n{self.operator.log.read_text()[-3000:]}"

    # --- looking and doing ---

    def ours(self, *argv: str) -> Any:
        return self.get("-n", NAMESPACE, *argv)

    def workers(self, nodeset: str = "debug") -> dict[str, dict[str, Any]]:
        found = self.ours("pods", "-l", f"app.kubernetes.io/name=slurmd,app.kubernetes.io/instance={nodeset}")
        return {pod["metadata"]["name"]: pod for pod in found["items"]}

    def condition(self, kind: str, name: str, wanted: str = "Ready") -> dict[str, Any]:
        found = self.ours(kind, name)
        return next(dict(one) for one in found["status"]["conditions"] if one["type"] == wanted)

    def scontrol(self, *argv: str) -> str:
        return self.kubectl("-n", NAMESPACE, "exec", "slurm-controller-0", "-c", "slurmctld", "--", "scontrol", *argv)

    def nodes(self) -> dict[str, tuple[str, str]]:
        """Slurm node -> (state, reason)."""
        pod = ("-n", NAMESPACE, "exec", "slurm-controller-0", "-c", "slurmctld", "--")
        lines = self.kubectl(*pod, "sinfo", "-N", "-h", "-o", "%N|%T|%E").splitlines()
        return {name: (state.rstrip("*"), reason) for name, state, reason in (line.split("|", 2) for line in lines)}

    def alice(self, script: str) -> str:
        """A shell script run by alice on the login node."""
        login = ("-n", NAMESPACE, "exec", "-i", "deployment/slurm-login", "-c", "login", "--")
        return self.kubectl(*login, "su", "-", "alice", "-c", "bash -s", stdin=script)

    def scale(self, replicas: int, nodeset: str = "debug") -> None:
        self.kubectl("-n", NAMESPACE, "scale", "nodeset", nodeset, f"--replicas={replicas}")

    def settle(self, replicas: int) -> None:
        """Scale and wait until it is so, in Kubernetes and in Slurm."""
        self.scale(replicas)
        names = {f"debug-{number}" for number in range(replicas)}
        eventually(lambda: set(self.workers()) == names, f"the workers are {names}\n{self.state()}")
        self.wait_ready("nodeset/debug")


def usual_values(inst: Instance) -> dict[str, Any]:
    def image(name: str) -> dict[str, Any]:
        return {"image": {"tag": image_tag(name)}}

    size = {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "100m", "memory": "64Mi"}}
    return {
        "clusterName": "lab",
        "imageRegistry": ECR_REGISTRY,
        "users": [{"name": "alice", "uid": 2001}],
        "home": {"hostPath": {"path": str(inst.state / "home"), "type": "DirectoryOrCreate"}},
        "controller": {
            "slurmctld": image("slurmctld"),
            "extraConf": "TaskPlugin=task/none\n",
            "persistence": {"enabled": False},
        },
        "restapi": {"slurmrestd": image("slurmrestd")},
        "loginsetDefaults": {"login": image("login")},
        "nodesetDefaults": {"slurmd": {**image("slurmd"), "resources": size}},
        "nodesets": {"debug": {"replicas": 2, "partition": {"enabled": True, "config": "MaxTime=30"}}},
    }


@contextmanager
def running_lab(folder: Path) -> Iterator[Lab]:
    """Three nodes, DNS, the images, and the operator's process; nothing is installed in the namespace slurm yet."""
    with own_instance() as inst:
        cluster.start_control_plane(inst=inst)
        cluster.start_registry(inst=inst)
        if missing := missing_in(inst.registry, tags(SLURM_IMAGES)):
            build(missing, lambda _: None, inst.registry)
        add_nodes(inst, *map(NodeSpec, NODES))
        addons.apply_coredns(inst, cluster.api(inst))
        lab = Lab(inst, folder)
        lab.install_operator()
        lab.operator.start()
        try:
            yield lab
        finally:
            lab.operator.kill()
