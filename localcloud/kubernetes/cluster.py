"""The local cluster as others use it: start, stop, nodes, and how to reach it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from localcloud.kubernetes import controlplane, existing, network, nodes, pki, processes
from localcloud.kubernetes import leftovers as leftovers_of
from localcloud.kubernetes import node as machine
from localcloud.kubernetes import registry as registry_of
from localcloud.kubernetes.api import Api
from localcloud.kubernetes.commands import run
from localcloud.kubernetes.errors import ClusterError, Log, quiet
from localcloud.kubernetes.locks import hold
from localcloud.kubernetes.nodefiles import Node
from localcloud.kubernetes.specs import NodeSpec
from localcloud.paths import Instance, instance
from localcloud.tools import ensure_tools, installed


def external_kubeconfig(inst: Instance | None = None) -> Path | None:
    """The kubeconfig of an existing cluster that is used instead of one of our own, or None."""
    return existing.kubeconfig(inst or instance())


def endpoint(inst: Instance | None = None) -> str:
    """Address of the API server, as "https://10.90.0.1:6443". For an existing cluster the EKS stand-in serves there."""
    return (inst or instance()).apiserver_url


def ca_data(inst: Instance | None = None) -> bytes:
    """Certificate (PEM) of the authority that signed the certificate of endpoint()."""
    return Api((inst or instance()).kubeconfig).ca


def api(inst: Instance | None = None) -> Api:
    """A client with the administrator's rights."""
    inst = inst or instance()
    if external_kubeconfig(inst):
        return Api.of_socket(existing.socket(inst))
    return Api(inst.kubeconfig)


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
        external = external_kubeconfig(inst)
        scratch.write_text(
            json.dumps({"name": inst.name, "net": inst.net, "kubeconfig": str(external) if external else None})
        )
        scratch.replace(file)
        return
    made_with = existing.recorded(inst)
    if external_kubeconfig(inst) != made_with:
        raise ClusterError(
            f"instance {inst.name!r} was started with {made_with or 'a cluster of its own'}, and now "
            f"{existing.VARIABLE}={external_kubeconfig(inst)}. Next: unset it, or stop that instance first "
            f"(without {existing.VARIABLE}), or choose another SLIPWAY_INSTANCE and SLIPWAY_NET"
        )
    made_for = json.loads(file.read_text())["net"]
    if made_for != inst.net:
        raise ClusterError(
            f"{inst.state} belongs to a cluster with SLIPWAY_NET={made_for}, and now it is {inst.net}. "
            f"Next: set SLIPWAY_NET={made_for}, or stop that cluster with it first, or choose another SLIPWAY_INSTANCE"
        )


def _prepare(inst: Instance) -> None:
    """Certificates and the bridge: what control plane and nodes both need before anything else."""
    with hold(inst.run / "pki.lock"):
        pki.ensure_pki(inst)
    with hold(inst.run / "network.lock"):
        network.ensure_bridge(inst)


def start_control_plane(log: Log = quiet, inst: Instance | None = None) -> None:
    """Start what does not run of etcd, API server, controller manager and scheduler; returns when it is ready.

    An existing cluster is there already: what starts is the way to it.
    """
    inst = inst or instance()
    bin_dir = ensure_tools(log)
    with using(inst, log):
        _prepare(inst)
        _start_control_plane(inst, bin_dir, log)


def _start_control_plane(inst: Instance, bin_dir: Path, log: Log) -> None:
    if external := external_kubeconfig(inst):
        existing.start(inst, bin_dir, external, log)
        return
    with hold(controlplane.lock(inst), log=log, what="the control plane"):
        controlplane.start(inst, bin_dir, log)


def start_registry(log: Log = quiet, inst: Instance | None = None) -> None:
    """Start the registry that stands in for ECR, at 10.N.0.1:5000, unless it runs; returns when it answers."""
    inst = inst or instance()
    bin_dir = ensure_tools(log)
    with using(inst, log):
        registry_of.start(inst, bin_dir, log)


def ensure_all(log: Log = quiet, inst: Instance | None = None, seconds: float = 90) -> list[str]:
    """Start what does not run: registry, control plane and all nodes that were added and not switched off.

    Returns the names of these nodes once they are Ready (at most `seconds` after they were started); of an existing
    cluster none is ours.
    """
    inst = inst or instance()
    bin_dir = ensure_tools(log)
    with using(inst, log):
        _prepare(inst)
        with ThreadPoolExecutor(3) as pool:
            # Nodes wait for the API server, so its failure is told first: it is the reason of theirs.
            control_plane = pool.submit(_start_control_plane, inst, bin_dir, log)
            registry = pool.submit(registry_of.start, inst, bin_dir, log)
            started = pool.submit(nodes.start_all, inst, bin_dir, log)
            control_plane.result()
            registry.result()
            names = started.result()
        nodes.wait_ready(inst, names, api(inst), seconds)
    return names


def add_node(spec: NodeSpec, log: Log = quiet, inst: Instance | None = None) -> None:
    """Add a node, or make an existing one of that name what `spec` says, and start what does not run of it.

    Returns when it has registered; wait_ready() waits until pods can run on it. The control plane must run or be
    about to start. Many threads and processes may add nodes at the same time.
    An existing cluster keeps the nodes it has.
    """
    inst = inst or instance()
    if external_kubeconfig(inst):
        return
    bin_dir = ensure_tools(log)
    with using(inst, log):
        _prepare(inst)
        nodes.add(inst, spec, bin_dir, api(inst), log)


def remove_node(name: str, log: Log = quiet, inst: Instance | None = None) -> None:
    """End a node and remove it with its data, its Node object and its pods; no error if there is none.

    Drain it before, if what runs on it is to end in peace.
    """
    inst = inst or instance()
    if external_kubeconfig(inst) or not inst.kubeconfig.exists():
        return
    with using(inst, log):
        nodes.remove(inst, name, api(inst), log)


def start_node(name: str, log: Log = quiet, inst: Instance | None = None) -> None:
    """Start what does not run of a node that was added, for example after kill_node() or stop_node()."""
    inst = _own(inst)
    bin_dir = ensure_tools(log)
    with using(inst, log):
        _prepare(inst)
        nodes.start(inst, name, bin_dir, log)


def stop_node(name: str, log: Log = quiet, inst: Instance | None = None) -> None:
    """Switch a node off; it stays off, also over ensure_all(), until it is started or added again."""
    inst = _own(inst)
    with using(inst, log):
        nodes.stop(inst, name, log)


def kill_node(name: str, inst: Instance | None = None) -> None:
    """End everything in a node at once, as a power failure would; the next ensure_all() brings it back."""
    inst = _own(inst)
    with using(inst):
        nodes.kill(inst, name)


def cordon_node(name: str, unschedulable: bool = True, inst: Instance | None = None) -> None:
    """Keep new pods from a node, or with False let them in again."""
    nodes.cordon(name, api(inst), unschedulable)


def drain_node(name: str, inst: Instance | None = None, seconds: int = 120) -> None:
    """Cordon a node and evict its pods, except those of DaemonSets; returns when they are gone."""
    nodes.drain(name, (inst or instance()).kubeconfig, ensure_tools(), seconds)


def wait_ready(names: Iterable[str], inst: Instance | None = None, seconds: float = 90) -> None:
    """Wait until the nodes are Ready. Raises ClusterError that says what is wrong with which node."""
    own = None if external_kubeconfig(inst) else inst or instance()
    nodes.wait_ready(own, names, api(inst), seconds)


def node_names(inst: Instance | None = None) -> list[str]:
    """Names of all nodes: of those that were added, or of those that an existing cluster has."""
    if external_kubeconfig(inst):
        return [obj["metadata"]["name"] for obj in api(inst).request("GET", "/api/v1/nodes")["items"]]
    return [node.name for node in nodes.known(inst or instance())]


def node_command(name: str, argv: Sequence[str], inst: Instance | None = None) -> list[str]:
    """The command line that runs a program inside a node (on the host, as root)."""
    inst = _own(inst)
    return machine.command_in(nodes.find(inst, name), ensure_tools(), argv)


def run_in_node(name: str, argv: Sequence[str], inst: Instance | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program inside a node and return what it wrote."""
    return subprocess.run(node_command(name, argv, inst), capture_output=True, text=True, check=False)


def _own(inst: Instance | None) -> Instance:
    inst = inst or instance()
    if external := external_kubeconfig(inst):
        raise ClusterError(
            f"the nodes of an existing cluster ({existing.VARIABLE}={external}) are not ours to switch. "
            "Next: use the tool that made it"
        )
    if not inst.kubeconfig.exists():
        raise ClusterError(f"local cluster {inst.name!r} is not set up. Next: start it")
    return inst


def stop_all(log: Log = quiet, inst: Instance | None = None) -> None:
    """End every process of the instance and remove all that it has on this machine, its data included.

    An existing cluster is not touched. Raises ClusterError if something cannot be removed.
    """
    inst = inst or instance()
    lock = inst.run / "instance.lock"
    with hold(lock, log=log, what=f"local cluster {inst.name!r}"):
        leftovers_of.kill_all(inst)
        leftovers_of.remove_all(inst, log)
        _remove_state(inst)


def wipe(log: Log = quiet, inst: Instance | None = None) -> None:
    """End the control plane and all nodes and delete what they stored, volumes too: the next start is a new cluster.

    Registry, certificates and what other parts keep in the state stay. An existing cluster is not touched.
    """
    inst = inst or instance()
    if external_kubeconfig(inst):
        log("the existing cluster is not wiped: it belongs to somebody else")
        return
    bin_dir = ensure_tools(log)
    with hold(inst.run / "instance.lock", log=log, what=f"local cluster {inst.name!r}"):
        for node in nodes.known(inst):
            machine.kill(node)
        controlplane.stop(inst, bin_dir)
        network.route_services(inst, None)
        for part in ("etcd", "nodes", "volumes"):
            run(["rm", "-rf", inst.state / part])


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
    inst = inst or instance()
    if external := external_kubeconfig(inst):
        return [f"existing cluster of {external}: {'ready' if api(inst).ready() else 'does not answer'}"]
    bin_dir = installed()
    if bin_dir is None or not inst.kubeconfig.exists():
        return [f"local cluster {inst.name!r} is not set up"]
    lines = []
    for daemon in (*controlplane.daemons(inst, bin_dir), registry_of.daemon(inst, bin_dir)):
        pid = processes.running(daemon)
        lines.append(f"{daemon.name}: {f'running (process {pid})' if pid else 'not running'}")
    ready = api(inst).ready()
    lines.append(f"API server {inst.apiserver_url}: {'ready' if ready else 'does not answer'}")
    return lines + [f"node {n.name} ({n.address}): {_node_status(inst, n, ready)}" for n in nodes.known(inst)]


def _node_status(inst: Instance, node: Node, api_ready: bool) -> str:
    if machine.first_process(node) is None:
        return "switched off" if node.stopped else "dead"
    if not api_ready:
        return "running"
    try:
        nodes.wait_ready(inst, [node.name], api(inst), seconds=0)
    except ClusterError as error:
        return str(error)
    return "ready"
