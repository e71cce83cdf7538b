"""Starting and stopping the AWS stand-in as a process of its own."""

from __future__ import annotations

import hashlib
import json
import sys
import time
import urllib.request
from typing import Any

from localcloud.kubernetes import existing, processes
from localcloud.kubernetes.errors import ClusterError, Log, quiet
from localcloud.kubernetes.processes import Daemon
from localcloud.paths import REPOSITORY, Instance, cache_dir, instance

START_SECONDS = 30


def daemon(inst: Instance | None = None) -> Daemon:
    """The server's process; its output goes to run/aws.log."""
    inst = inst or instance()
    environment = {
        "SLIPWAY_INSTANCE": inst.name, "SLIPWAY_NET": str(inst.net), "SLIPWAY_STATE": str(inst.state),
        "SLIPWAY_CACHE": str(cache_dir()), "PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": "1",
        # Fewer arenas: a server with many short threads otherwise keeps 60 MB more.
        "MALLOC_ARENA_MAX": "2",
    }  # fmt: skip
    if external := existing.kubeconfig(inst):
        environment[existing.VARIABLE] = str(external)
    argv = (sys.executable, "-m", "localcloud.aws", "serve", "--sources", _sources())
    return Daemon(group=f"{inst.cgroup}/aws", argv=argv, log=inst.run / "aws.log", env=environment)


def _sources() -> str:
    """Digest of what the server runs. As an argument of its process, it makes a server of older sources be replaced."""
    digest = hashlib.sha256()
    for part in ("aws", "kubernetes"):
        for path in sorted((REPOSITORY / "localcloud" / part).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def health(inst: Instance | None = None) -> dict[str, Any] | None:
    """What the server says about itself; None when it does not answer, or when the answer is another instance's."""
    inst = inst or instance()
    try:
        with urllib.request.urlopen(f"{inst.aws_url}/slipway/health", timeout=5) as response:  # noqa: S310
            answer: dict[str, Any] = json.loads(response.read())
    except (OSError, ValueError):
        return None
    return answer if answer.get("instance") == inst.name else None


def is_running(inst: Instance | None = None) -> bool:
    """Whether the server answers."""
    return health(inst) is not None


def start(log: Log = quiet, inst: Instance | None = None) -> None:
    """Start the server unless it runs; returns when it answers. Raises ClusterError with the end of its log."""
    inst = inst or instance()
    server, began = daemon(inst), time.monotonic()
    started = processes.ensure(server)
    while (answer := health(inst)) is None:
        if time.monotonic() - began > 1 and processes.running(server) is None:
            if not started and (started := processes.ensure(server)):
                began = time.monotonic()  # the one that ran was ending
                continue
            raise ClusterError(
                f"the AWS stand-in ended at once. The end of {server.log}:\n{processes.last_words(server.log)}"
            )
        if time.monotonic() - began > START_SECONDS:
            raise ClusterError(
                f"the AWS stand-in does not answer at {inst.aws_url} after {START_SECONDS} s; see {server.log}"
            )
        time.sleep(0.02)
    if started:
        restored = f", {answer['replayed']} earlier requests restored" if answer["replayed"] else ""
        log(f"AWS stand-in ready at {inst.aws_url} after {time.monotonic() - began:.1f} s{restored}")


def stop(log: Log = quiet, inst: Instance | None = None) -> None:
    """End the server; its state stays until the instance is removed."""
    inst = inst or instance()
    if is_running(inst) or processes.running(daemon(inst)) is not None:  # also one of older sources
        processes.stop(daemon(inst), grace=2)
        log("AWS stand-in ended")
