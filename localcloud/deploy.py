"""From nothing to a ready Slurm cluster: what is prepared, started and deployed, and in which order."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from localcloud import existing_cluster, images, kubectl, tools
from localcloud.aws import service as aws
from localcloud.console import Console, Log, UserError
from localcloud.engine import api as engine
from localcloud.engine.operations import INTERRUPTED
from localcloud.kubernetes import cluster, preflight
from localcloud.paths import REPOSITORY, instance

POLICIES = REPOSITORY / "policies"
READY_TIMEOUT_SECONDS = 300
# A container that fails so often fails for a reason that waiting does not mend.
HOPELESS_RESTARTS = 4
CRASH_LOOK_SECONDS = 5
SLURM_KINDS = ("controllers", "restapis", "nodesets", "loginsets")


def check_machine() -> None:
    """Refuse early, before anything is touched. Raises UserError with all problems at once."""
    problems = preflight.problems()
    if problems:
        raise UserError("this machine cannot run the local cloud:\n" + "\n".join(f"  - {p}" for p in problems))


def start_stand_ins(console: Console) -> Path:
    """Tools, then registry with images, control plane and AWS side by side. Returns the folder of the tools."""
    with console.step("tools", quiet_below=1.0) as say:
        bin_dir = tools.ensure_tools(say)
    existing = cluster.external_kubeconfig() is not None

    def start_registry_and_images() -> None:
        with console.step("images", quiet_below=1.0) as say:
            cluster.start_registry(say)
            pushed_to = images.stack_registry() if existing else None
            images.ensure_images(say, pushed_to)

    def start_kubernetes() -> None:
        with console.step("Kubernetes", quiet_below=0.5) as say:
            cluster.ensure_all(say)

    def start_aws() -> None:
        with console.step("AWS stand-in", quiet_below=0.5) as say:
            aws.start(say)

    if existing:
        start_kubernetes()  # first and from here: exec plugins in its kubeconfig may need this environment
        parallel(start_registry_and_images, start_aws)
        with console.step("nodes of the existing cluster", quiet_below=1.0) as say:
            existing_cluster.note_before()
            existing_cluster.check_nodes(say)
    else:
        parallel(start_registry_and_images, start_kubernetes, start_aws)
    return bin_dir


def parallel(*tasks: Callable[[], None]) -> None:
    """Run the tasks side by side; when some fail, the first failure is raised after all have ended."""
    with ThreadPoolExecutor(len(tasks)) as pool:
        futures: list[Future[None]] = [pool.submit(task) for task in tasks]
    for future in futures:
        future.result()


def policy_config(stack: str) -> list[Path]:
    """The stack's config of the policy pack, if it has one: levels, parameters, exemptions."""
    file = POLICIES / "stacks" / f"{stack}.json"
    return [file] if file.is_file() else []


def deploy(console: Console, stack: str, environment: Mapping[str, str]) -> engine.Result:
    """Run the Pulumi program's `up` with the policy pack. Raises UserError when it fails."""
    console.title(f"pulumi up --stack {stack}")
    result = engine.run("up", stack, environment, policy_packs=[POLICIES], policy_pack_configs=policy_config(stack))
    if result.exit_code == INTERRUPTED:
        raise KeyboardInterrupt
    if result.exit_code:
        raise UserError(
            f"the deployment of stack {stack} did not finish; what it says is above.\n"
            "Mend it (docs/configuration.md tells what each key allows) and run `make up` again: it goes on from where "
            "it stopped."
        )
    return result


def wait_for_slurm(say: Log, environment: Mapping[str, str]) -> None:
    """Wait until every Slurm resource says Ready, telling what is missing meanwhile."""
    deadline = time.monotonic() + READY_TIMEOUT_SECONDS
    look_for_crashes = time.monotonic() + CRASH_LOOK_SECONDS
    told, crashed = "", None
    while True:
        missing = not_ready(environment)
        if not missing:
            return
        text = "; ".join(missing)
        if text != told:
            say(f"waiting for {text}")
            told = text
        if time.monotonic() > look_for_crashes:
            with suppress(UserError):  # an API server that does not answer now is asked again
                crashed = crash_looping(environment)
            if crashed:
                raise UserError(f"Slurm cannot become ready: {crashed}\nWaiting for: {text}")
            look_for_crashes = time.monotonic() + CRASH_LOOK_SECONDS
        if time.monotonic() > deadline:
            raise UserError(
                f"Slurm is not ready after {READY_TIMEOUT_SECONDS} s: {text}.\n"
                "Look at it: ./slipway kubectl -n slurm get pods,controllers,nodesets,loginsets,restapis; "
                "./slipway logs operator"
            )
        time.sleep(0.3)


def not_ready(environment: Mapping[str, str]) -> list[str]:
    """Every Slurm resource that is not ready, with the reason that the operator gives."""
    kinds = ",".join(f"{kind}.slinky.slurm.net" for kind in SLURM_KINDS)
    try:
        items = kubectl.items(environment, kinds, "-n", "slurm")
    except UserError as error:  # the API server or the definitions may not be there yet
        return [f"the API server ({str(error).splitlines()[-1]})"]
    if not items:
        return ["the Slurm resources to appear"]
    missing = []
    for item in items:
        meta, status = item["metadata"], item.get("status", {})
        ready = next((c for c in status.get("conditions", []) if c["type"] == "Ready"), None)
        current = ready is not None and ready.get("observedGeneration", meta["generation"]) == meta["generation"]
        if ready is None or not current or ready["status"] != "True":
            reason = ready.get("message") or ready.get("reason") if ready else None
            missing.append(f"{item['kind']} {meta['name']}: {reason or 'not looked at by the operator yet'}")
    return missing


def crash_looping(environment: Mapping[str, str]) -> str | None:
    """The first container of Slurm that fails again and again, with its last words; None when there is none."""
    for pod in kubectl.items(environment, "pods", "-n", "slurm"):
        status = pod["status"]
        for container in status.get("initContainerStatuses", []) + status.get("containerStatuses", []):
            waiting = container["state"].get("waiting", {}).get("reason")
            if waiting == "CrashLoopBackOff" and container["restartCount"] >= HOPELESS_RESTARTS:
                name = pod["metadata"]["name"]
                last_words = kubectl.text(environment, "-n", "slurm", "logs", name, "-c", container["name"], "--tail=5")
                failed = f"{container['name']} in pod {name} failed {container['restartCount']} times"
                return f"{failed}. It said:\n{last_words.strip()}"
    return None


def marker() -> Path:
    """Exists once the example job of this instance has finished: a later `up` that changes nothing runs none."""
    return instance().run / "job-done"
