"""The example job: submitted with `sbatch` by an ordinary user on the login node, followed until it ends."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from localcloud import kubectl
from localcloud.console import Log, UserError

NAMESPACE = "slurm"
JOB_TIMEOUT_SECONDS = 120
FINAL_STATES = {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT"}

# Two tasks on two nodes; each says where it runs, so that the output proves both.
SCRIPT = """#!/bin/bash
#SBATCH --job-name=hello
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --time=5
#SBATCH --output=%x-%j.out
echo "job $SLURM_JOB_ID of $USER on $SLURM_JOB_NODELIST"
srun --label bash -c 'echo "hello from $(hostname), task $SLURM_PROCID of $SLURM_NTASKS, as $(id -un) (uid $(id -u))"'
sleep 1 # long enough to be seen in squeue
"""


@dataclass(frozen=True)
class JobResult:
    job_id: int
    state: str
    nodes: str
    output_file: str
    output: str
    squeue: str  # what squeue showed while the job was there


class Login:
    """Runs commands on the login node: a pod of the LoginSet, reached through the API server."""

    def __init__(self, environment: Mapping[str, str], user: str | None = None) -> None:
        self.environment = dict(environment)
        self.pod = self._ready_pod()
        self.user = user or self._first_user()

    def _ready_pod(self) -> str:
        pods = kubectl.items(self.environment, "pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/name=login")
        for pod in pods:
            conditions = pod["status"].get("conditions", [])
            if any(c["type"] == "Ready" and c["status"] == "True" for c in conditions):
                return str(pod["metadata"]["name"])
        seen = ", ".join(f"{p['metadata']['name']} is {p['status'].get('phase')}" for p in pods) or "there is none"
        raise UserError(
            f"no login pod is ready in namespace {NAMESPACE} ({seen}).\n"
            "Run `make up`, or look at it: ./slipway kubectl -n slurm describe pods -l app.kubernetes.io/name=login"
        )

    def _first_user(self) -> str:
        lines = self._exec("cat", "/var/lib/extrausers/passwd").splitlines()
        if not lines:
            raise UserError("the stack has no ordinary user: add one under `slipway:users` in stacks/Pulumi.local.yaml")
        return lines[0].split(":")[0]

    def run(self, command: str, stdin: str | None = None) -> str:
        """Run a shell command as the user, in the user's home directory, and return what it printed."""
        return self._exec("su", "-", self.user, "-c", command, stdin=stdin)

    def _exec(self, *command: str, stdin: str | None = None) -> str:
        where = ("-n", NAMESPACE, "exec", "-i", self.pod, "-c", "login", "--")
        return kubectl.text(self.environment, *where, *command, stdin=stdin)

    def shell_command(self, terminal: bool) -> Sequence[str]:
        """The command line of a login shell.

        On a terminal it ends well whatever the last command did; fed by a pipe or a file, with its exit code.
        """
        where = ["kubectl", "-n", NAMESPACE, "exec", "-it" if terminal else "-i", self.pod, "-c", "login", "--"]
        return [*where, "sh", "-c", 'su - "$0"; exit 0', self.user] if terminal else [*where, "su", "-", self.user]


def run_example(login: Login, say: Log) -> JobResult:
    """Submit the example and wait for its end. Raises UserError with Slurm's reason when it does not complete."""
    # Queued and shown at once: a short job may have ended when it is asked for the first time.
    submit = 'id=$(sbatch --parsable) && { echo "$id"; squeue --jobs="$id" 2>/dev/null || true; }'
    number, *queue = login.run(submit, stdin=SCRIPT).splitlines()
    job_id, squeue, told = int(number), "\n".join(queue), ""
    say(f"job {job_id} submitted by {login.user}")
    deadline = time.monotonic() + JOB_TIMEOUT_SECONDS
    while True:
        # One call for both: each costs an exec through the API server.
        shown = login.run(f"squeue --jobs={job_id} 2>/dev/null; scontrol show job {job_id} --oneliner")
        *queue, record = shown.rstrip("\n").splitlines()
        fields = dict(pair.split("=", 1) for pair in record.split() if "=" in pair)
        state = fields["JobState"]
        if state in FINAL_STATES:
            break
        if len(queue) > 1 and state == "RUNNING":
            squeue = "\n".join(queue)
        if state != told:
            say(f"job {job_id} is {state.lower()}")
            told = state
        if time.monotonic() > deadline:
            raise UserError(
                f"job {job_id} is still {state} after {JOB_TIMEOUT_SECONDS} s (reason {fields.get('Reason')}).\n"
                f"Look at it: ./slipway shell, then: scontrol show job {job_id}; sinfo -R"
            )
        time.sleep(0.3)
    path = fields["StdOut"]
    output = login.run(f"cat {path} 2>/dev/null || true")
    if state != "COMPLETED":
        raise UserError(f"job {job_id} ended as {state} (exit code {fields.get('ExitCode')}). Its output:\n{output}")
    return JobResult(job_id, state, fields["NodeList"], path, output, squeue)


def node_table(environment: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Slurm node, pod and Kubernetes node of every worker, by name."""
    rows = []
    for pod in kubectl.items(environment, "pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/name=slurmd"):
        name = pod["metadata"]["name"]
        rows.append((pod["spec"].get("hostname", name), name, pod["spec"].get("nodeName", "-")))
    return sorted(rows)
