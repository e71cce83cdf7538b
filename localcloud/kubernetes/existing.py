"""A cluster that somebody else made (kind, k3d, …), used by its kubeconfig instead of a control plane of our own.

`kubectl proxy` holds its credentials, whatever they are (certificates, exec plugins, proxies), behind a socket that
only root may open. Everything else here reaches the cluster through that socket.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from localcloud.kubernetes import processes
from localcloud.kubernetes.api import Api
from localcloud.kubernetes.errors import ClusterError, Log
from localcloud.kubernetes.locks import hold
from localcloud.kubernetes.processes import Daemon
from localcloud.paths import Instance

VARIABLE = "SLIPWAY_KUBECONFIG"
READY_SECONDS = 15


def kubeconfig(inst: Instance) -> Path | None:
    """The kubeconfig that $SLIPWAY_KUBECONFIG names, else the one that the instance was started with; None: none."""
    named = os.environ.get(VARIABLE)
    return Path(named).absolute() if named else recorded(inst)


def recorded(inst: Instance) -> Path | None:
    """The kubeconfig that the instance was started with."""
    try:
        path = json.loads((inst.state / "instance.json").read_text()).get("kubeconfig")
    except FileNotFoundError:
        return None
    return Path(path) if path else None


def socket(inst: Instance) -> Path:
    """Where requests have the administrator's rights. Its directory is root's alone."""
    return inst.state / "pki" / "existing.sock"


def _daemon(inst: Instance, bin_dir: Path, config: Path) -> Daemon:
    # Nothing is filtered: who may exec into pods is for the cluster to say.
    argv = (
        str(bin_dir / "kubectl"), "proxy", f"--kubeconfig={config}", f"--unix-socket={socket(inst)}",
        "--disable-filter", "--keepalive=30s",
    )  # fmt: skip
    # Exec plugins need what the person who starts this has in the environment.
    return Daemon(f"{inst.cgroup}/existing", argv, inst.run / "existing.log", env=dict(os.environ))


def start(inst: Instance, bin_dir: Path, config: Path, log: Log) -> None:
    """Returns when the cluster is ready. Raises ClusterError with its answer, or why there is none."""
    client = Api.of_socket(socket(inst))
    with hold(inst.run / "control-plane.lock", log=log, what="the way to the existing cluster"):
        daemon = _daemon(inst, bin_dir, config)
        if not client.ready():  # also where the kubeconfig now has other credentials than the running one
            processes.stop(daemon)
        started = processes.ensure(daemon)
        end = time.monotonic() + READY_SECONDS
        while not client.ready():
            if time.monotonic() > end or processes.running(daemon) is None:
                raise ClusterError(
                    f"the cluster of {VARIABLE}={config} is not ready: {_answer(client, daemon)}\n"
                    f"Next: start it, or unset {VARIABLE} to use a local one"
                )
            time.sleep(0.05)
    if started:
        log(f"existing cluster of {config} is ready")


def _answer(client: Api, daemon: Daemon) -> str:
    if processes.running(daemon) is None:
        return processes.last_words(daemon.log)
    try:
        return str(client.request("GET", "/readyz"))
    except ClusterError as error:
        return str(error)
