"""What each word of the command line does; every function returns the exit code."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from localcloud import deploy, existing_cluster, slurm_job, tools
from localcloud.aws import service as aws
from localcloud.console import Console, UserError
from localcloud.engine import api as engine
from localcloud.environment import program_environment
from localcloud.kubernetes import __main__ as kubernetes_cli
from localcloud.kubernetes import cluster
from localcloud.kubernetes.errors import ClusterError
from localcloud.paths import REPOSITORY, instance
from localcloud.runlock import exclusive

NOT_UP = "instance '{}' is not up. Start it: make up"


def up(arguments: argparse.Namespace, console: Console) -> int:
    started = time.monotonic()
    stack: str = arguments.stack
    check_stack(stack)
    if stack != "local":
        raise UserError(
            f"`up` starts the local stand-ins, which run stack local; {stack} is for AWS.\n"
            f"See what it would create: make preview STACK={stack}. Deploy it with the pulumi CLI: docs/deploy.md"
        )
    with exclusive("up"):
        deploy.check_machine()
        bin_dir = deploy.start_stand_ins(console)
        environment = program_environment(bin_dir)
        result = deploy.deploy(console, stack, environment)
        if cluster.external_kubeconfig():
            for line in existing_cluster.stand_ins():
                console.print(line)
        with console.step("Slurm ready") as say:
            deploy.wait_for_slurm(say, environment)
        changed = sum(count for what, count in result.changes.items() if what != "same")
        if not changed and deploy.marker().exists():
            show_cluster(console, slurm_job.Login(environment))
            console.print(
                f"\nNothing to change: everything was up already ({time.monotonic() - started:.1f} s).", "bold"
            )
            return 0
        if not arguments.no_job:
            run_job(console, environment)
            deploy.marker().touch()
    what_next(console)
    console.print(f"\nDone in {time.monotonic() - started:.0f} s.", "bold green")
    return 0


def down(arguments: argparse.Namespace, console: Console) -> int:
    with exclusive("down"):
        if cluster.external_kubeconfig() and instance().state.exists() and not arguments.abandon:
            give_back(console)
        with console.step("down") as say:
            aws.stop(say)
            cluster.stop_all(say)
        left = cluster.leftovers()
    if left:
        raise UserError("these remain and could not be removed:\n" + "\n".join(f"  - {item}" for item in left))
    console.print("Nothing is left of this instance but the cache.")
    return 0


def give_back(console: Console) -> None:
    """Remove what this instance has in an existing cluster. Raises UserError where that cannot be done."""
    try:
        with console.step("existing cluster", quiet_below=1.0) as say:
            bin_dir = tools.ensure_tools(say)
            cluster.start_control_plane(say)
            aws.start(say)
        failed = existing_cluster.destroy("local", program_environment(bin_dir)).exit_code
    except ClusterError as error:
        raise UserError(f"{error}\nIf that cluster is gone for good: ./slipway down --abandon") from None
    if failed:
        raise UserError(
            "what is in the existing cluster could not all be removed; why is above. Mend it and repeat.\n"
            "If that cluster is gone for good: ./slipway down --abandon"
        )


def job(arguments: argparse.Namespace, console: Console) -> int:
    run_job(console, running_environment())
    return 0


def status(arguments: argparse.Namespace, console: Console) -> int:
    report = cluster.status()
    console.title(f"instance {instance().name}")
    for line in report:
        console.print(f"  {line}")
    console.print(f"  AWS stand-in: {'running at ' + instance().aws_url if aws.is_running() else 'not running'}")
    memory = cluster.pss()
    if memory:
        rows = [
            (name, str(count), f"{mebibytes:.0f}")
            for name, (count, mebibytes) in sorted(memory.items(), key=lambda item: -item[1][1])
        ]
        count, mebibytes = (sum(part) for part in zip(*memory.values(), strict=True))
        console.table(("program", "processes", "PSS MiB"), [*rows, ("all together", str(count), f"{mebibytes:.0f}")])
    return 0


def preview(arguments: argparse.Namespace, console: Console) -> int:
    check_stack(arguments.stack)
    with aws_for_preview():
        result = engine.run(
            "preview",
            arguments.stack,
            any_environment(),
            policy_packs=[deploy.POLICIES],
            policy_pack_configs=deploy.policy_config(arguments.stack),
            diff=arguments.diff,
        )
    return result.exit_code


@contextmanager
def aws_for_preview() -> Iterator[None]:
    """The AWS stand-in, for as long as a preview asks it for the account and the zones; a running one is used."""
    if aws.is_running():
        yield
        return
    with exclusive("preview"):  # an `up` that begins meanwhile must not lose what is removed here
        fresh = not instance().state.exists()
        aws.start()
        try:
            yield
        finally:
            aws.stop()
            if fresh:
                cluster.stop_all()


def destroy(arguments: argparse.Namespace, console: Console) -> int:
    check_stack(arguments.stack)
    environment = running_environment()
    with exclusive("destroy"):
        if cluster.external_kubeconfig():
            result = existing_cluster.destroy(arguments.stack, environment)
        else:
            result = engine.run("destroy", arguments.stack, environment)
        deploy.marker().unlink(missing_ok=True)
    return result.exit_code


def shell(arguments: argparse.Namespace, console: Console) -> int:
    environment = running_environment()
    command = slurm_job.Login(environment).shell_command(terminal=sys.stdin.isatty())
    sys.stdout.flush()
    os.execvpe(command[0], list(command), environment)  # noqa: S606 - the terminal belongs to the shell from here


def logs(arguments: argparse.Namespace, console: Console) -> int:
    parts = {path.stem: path for path in sorted(instance().run.glob("*.log"))}
    pods = {"operator": ("slurm-operator", "slurm-operator")} | {
        name: ("slurm", name) for name in ("slurmctld", "slurmd", "slurmrestd", "login")
    }
    part: str | None = arguments.part
    if part in parts:
        viewer = "less" if sys.stdout.isatty() else "cat"
        os.execvp(viewer, [viewer, str(parts[part])])  # noqa: S606
    if part in pods:
        namespace, name = pods[part]
        selector = f"app.kubernetes.io/name={name}"
        return subprocess.call(
            ["kubectl", "-n", namespace, "logs", "-l", selector, "--tail=200", "--prefix", "--all-containers"],
            env=running_environment(),
        )
    if part is None:
        for name in [*parts, *(pods if instance().kubeconfig.exists() else ())]:
            console.print(name)
        return 0
    raise UserError(f"there is no log {part!r}. Which there are: ./slipway logs")


def check_stack(stack: str) -> None:
    known = sorted(p.stem.removeprefix("Pulumi.") for p in (REPOSITORY / "stacks").glob("Pulumi.*.yaml"))
    if stack not in known:
        raise UserError(
            f"there is no stack {stack!r}: stacks/Pulumi.{stack}.yaml is missing. There are: {', '.join(known)}"
        )


def any_environment() -> dict[str, str]:
    """The environment of what also works while nothing runs; kubectl and helm are in it where they are installed."""
    return program_environment(tools.installed() or Path(sys.executable).parent)


def running_environment() -> dict[str, str]:
    """The environment of a cloud that runs. Raises UserError when it does not."""
    bin_dir = tools.installed()
    if bin_dir is None or not instance().kubeconfig.exists():
        raise UserError(NOT_UP.format(instance().name))
    return program_environment(bin_dir)


def run_job(console: Console, environment: dict[str, str]) -> None:
    login = slurm_job.Login(environment)
    with console.step("example job") as say:
        result = slurm_job.run_example(login, say)
    console.title("squeue, while it ran")
    console.print(result.squeue)
    console.title(f"{login.user}@{login.pod}:~$ cat {Path(result.output_file).name}")
    console.print(result.output.rstrip())
    show_cluster(console, login)


def show_cluster(console: Console, login: slurm_job.Login) -> None:
    console.title(f"{login.user}@{login.pod}:~$ sinfo")
    console.print(login.run("sinfo").rstrip())
    console.print()
    console.table(("Slurm node", "pod", "Kubernetes node"), slurm_job.node_table(login.environment))


def what_next(console: Console) -> None:
    console.title("What next")
    for command, what in {
        "make shell": "a shell on the login node: sbatch, srun, squeue",
        "make job": "the example job once more",
        "./slipway kubectl get pods -A -o wide": "the cluster",
        "./slipway engine stack resources": "what the Pulumi program made",
        "./slipway node drain <node>": "be unkind to a node (./slipway node --help)",
        "make preview STACK=dev": "what the first real AWS stack would create",
        "make down": "remove all of it",
    }.items():
        console.print(f"  {command:<40} {what}")


def _pass_on(program: str) -> Callable[[argparse.Namespace, Console], int]:
    def run(arguments: argparse.Namespace, console: Console) -> int:
        environment = running_environment()
        os.execvpe(program, [program, *arguments.rest], environment)  # noqa: S606

    return run


def _engine(arguments: argparse.Namespace, console: Console) -> int:
    if not instance().state.exists() and {"-h", "--help"}.isdisjoint(arguments.rest):
        raise UserError(NOT_UP.format(instance().name))
    environment = any_environment() if instance().state.exists() else dict(os.environ)  # help alone makes no state
    environment.setdefault("PULUMI_STACK", "local")
    command = [sys.executable, "-m", "localcloud.engine", *arguments.rest]
    os.execvpe(command[0], command, environment)  # noqa: S606


def _node(arguments: argparse.Namespace, console: Console) -> int:
    if {"-h", "--help"}.isdisjoint(arguments.rest):
        running_environment()
    return kubernetes_cli.main(["node", *arguments.rest], prog="./slipway")


PASS_ON: dict[str, Callable[[argparse.Namespace, Console], int]] = {
    "kubectl": _pass_on("kubectl"),
    "helm": _pass_on("helm"),
    "aws": _pass_on("aws"),
    "engine": _engine,
    "node": _node,
}
