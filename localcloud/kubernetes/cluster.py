"""The local cluster as others use it: start, stop, nodes, and how to reach it."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

from localcloud.kubernetes import controlplane, processes
from localcloud.kubernetes import leftovers as leftovers_of
from localcloud.kubernetes.api import Api
from localcloud.kubernetes.commands import run
from localcloud.kubernetes.errors import ClusterError, Log, quiet
from localcloud.kubernetes.locks import hold
from localcloud.paths import Instance, instance
from localcloud.tools import ensure_tools, installed


def external_kubeconfig() -> Path | None:
    """The kubeconfig of an existing cluster that is to be used instead ($SLIPWAY_KUBECONFIG), or None."""
    value = os.environ.get("SLIPWAY_KUBECONFIG")
    return Path(value) if value else None


def kubeconfig_path(inst: Instance | None = None) -> Path:
    """Kubeconfig of the administrator."""
    return external_kubeconfig() or (inst or instance()).kubeconfig


def endpoint(inst: Instance | None = None) -> str:
    """Address of the API server, as "https://10.90.0.1:6443"."""
    if external := external_kubeconfig():
        return Api(external).endpoint
    return (inst or instance()).apiserver_url


def ca_data(inst: Instance | None = None) -> bytes:
    """Certificate (PEM) of the authority that signed the API server's certificate."""
    return Api(kubeconfig_path(inst)).ca


def api(inst: Instance | None = None) -> Api:
    """A client with the administrator's rights."""
    return Api(kubeconfig_path(inst))


@contextlib.contextmanager
def using(inst: Instance, log: Log = quiet) -> Iterator[None]:
    """Keeps stop_all() of another process away while the body starts or changes something."""
    with hold(inst.run / "instance.lock", shared=True, log=log, what=f"local cluster {inst.name!r}"):
        _claim(inst)
        yield


_PARTS = {"etcd", "nodes", "pki", "run", "aws", "pulumi", "volumes", "home", "kubeconfig", "instance.json"}


def _claim(inst: Instance) -> None:
    """Mark the state directory as ours; refuse one that was made for other addresses, or that is somebody else's.

    Certificates and stored objects carry the addresses. stop_all() removes a directory that is marked.
    """
    file = inst.state / "instance.json"
    if not file.exists():
        strange = sorted(path.name for path in inst.state.iterdir() if path.name not in _PARTS)
        if strange:
            raise ClusterError(
                f"{inst.state} is no state of a local cluster: it holds {', '.join(strange[:5])}. "
                "Next: let SLIPWAY_STATE name a new or empty directory"
            )
        scratch = inst.run / f"instance.json.{os.getpid()}.{os.urandom(4).hex()}"
        scratch.write_text(json.dumps({"name": inst.name, "net": inst.net}))
        scratch.replace(file)
        return
    made_for = json.loads(file.read_text())["net"]
    if made_for != inst.net:
        raise ClusterError(
            f"{inst.state} belongs to a cluster with SLIPWAY_NET={made_for}, and now it is {inst.net}. "
            f"Next: set SLIPWAY_NET={made_for}, or stop that cluster with it first, or choose another SLIPWAY_INSTANCE"
        )


def start_control_plane(log: Log = quiet, inst: Instance | None = None) -> None:
    """Start what does not run of etcd, API server, controller manager and scheduler; returns when it is ready.

    With $SLIPWAY_KUBECONFIG it only checks that the cluster answers.
    """
    if external_kubeconfig():
        _check_external()
        return
    inst = inst or instance()
    bin_dir = ensure_tools(log)
    with using(inst, log), hold(inst.run / "control-plane.lock", log=log, what="the control plane"):
        controlplane.start(inst, bin_dir, log)


def _check_external() -> None:
    client = api()
    if not client.ready():
        raise ClusterError(
            f"the cluster at {client.endpoint} (SLIPWAY_KUBECONFIG={external_kubeconfig()}) is not ready. "
            "Next: start it, or unset SLIPWAY_KUBECONFIG to use a local one"
        )


def stop_all(log: Log = quiet, inst: Instance | None = None) -> None:
    """End every process of the instance and remove all that it has on this machine, its data included.

    An existing cluster ($SLIPWAY_KUBECONFIG) is not touched. Raises ClusterError if something cannot be removed.
    """
    inst = inst or instance()
    lock = inst.run / "instance.lock"
    with hold(lock, log=log, what=f"local cluster {inst.name!r}"):
        leftovers_of.kill_all(inst)
        leftovers_of.remove_all(inst, log)
        _remove_state(inst)


def _remove_state(inst: Instance) -> None:
    ours = (inst.state / "instance.json").exists()
    for path in inst.state.iterdir():
        if path.name != "instance.json" and (ours or path.name in _PARTS):
            run(["rm", "-rf", "--one-file-system", path])
    (inst.state / "instance.json").unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # it holds what is not ours: leftovers() tells
        inst.state.rmdir()


def leftovers(inst: Instance | None = None) -> list[str]:
    """Everything of the instance that exists on this machine, one line each; empty after stop_all()."""
    return leftovers_of.find(inst or instance())


def pss(inst: Instance | None = None) -> dict[str, tuple[int, float]]:
    """Memory by program: number of processes and their proportional share (PSS) in MiB, pods included."""
    return leftovers_of.memory(inst or instance())


def status(inst: Instance | None = None) -> list[str]:
    """What runs and what does not, one line each."""
    if external := external_kubeconfig():
        client = api()
        return [f"existing cluster at {client.endpoint} ({external}): {'ready' if client.ready() else 'not ready'}"]
    inst = inst or instance()
    bin_dir = installed()
    if bin_dir is None or not inst.kubeconfig.exists():
        return [f"local cluster {inst.name!r} is not set up"]
    lines = []
    for daemon in controlplane.daemons(inst, bin_dir):
        pid = processes.running(daemon)
        lines.append(f"{daemon.name}: {f'running (process {pid})' if pid else 'not running'}")
    lines.append(f"API server {inst.apiserver_url}: {'ready' if api(inst).ready() else 'does not answer'}")
    return lines
