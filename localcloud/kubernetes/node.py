"""One node: a machine made of namespaces, with its own kubelet, containerd and kube-proxy.

Its first process (catatonit, which only reaps) holds mount, UTS, IPC, network and pid namespaces; the daemons are
started into them. When it dies, the kernel ends everything in the node, like a power failure.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from localcloud.kubernetes import cgroups, controlplane, inotify, network, processes, template
from localcloud.kubernetes.commands import clean_environment
from localcloud.kubernetes.errors import ClusterError, Log
from localcloud.kubernetes.locks import hold
from localcloud.kubernetes.nodefiles import Node, files
from localcloud.kubernetes.pki import ensure_certificate, node_subject, write_kubeconfig
from localcloud.kubernetes.processes import Daemon
from localcloud.paths import Instance, cache_dir

_VAR_DIRECTORIES = (
    "cache",
    "lib/cni",
    "lib/containerd",
    "lib/kubelet",
    "log/containers",
    "log/pods",
    "spool",
    "tmp",
)


def sandbox(node: Node, joins: Sequence[Path] = ()) -> Daemon:
    """The node's first process. It shows its final command once its namespaces are set up."""
    unshare = ("unshare", "--mount", "--uts", "--ipc", "--net", "--pid", "--fork", "--kill-child")
    return Daemon(
        group=f"{node.group}/init",
        argv=(str(template.catatonit()), "-P"),
        log=node.log("init"),
        prefix=(*unshare, "/bin/sh", str(node.home / "init.sh")),
        joins=tuple(joins),
    )


def first_process(node: Node) -> int | None:
    """Process id of a running node's first process, None if the node is off."""
    return processes.running(sandbox(node))


def daemons(node: Node, bin_dir: Path, first: int, joins: Sequence[Path] = ()) -> dict[str, Daemon]:
    """containerd, kubelet and kube-proxy of a node whose first process is `first`."""
    home, pki = node.home, node.inst.state / "pki"
    labels = ",".join(f"{key}={value}" for key, value in sorted(node.spec.kubelet_labels().items()))
    commands = {
        "containerd": (str(bin_dir / "containerd"), "--config", str(home / "containerd.toml")),
        "kubelet": (
            str(bin_dir / "kubelet"),
            f"--config={home}/kubelet.yaml",
            f"--kubeconfig={pki}/node-{node.name}.kubeconfig",
            f"--hostname-override={node.name}",
            f"--node-ip={node.address}",
            f"--node-labels={labels}",
        ),
        "kube-proxy": (str(bin_dir / "kube-proxy"), f"--config={home}/kube-proxy.yaml"),
    }
    # The shell ends at once, and with it nsenter: the daemon becomes a child of the node's first process.
    prefix = (*_enter(first), "/bin/sh", "-c", '"$@" &', "sh")
    return {
        name: Daemon(
            group=f"{node.group}/{name}",
            argv=argv,
            log=node.log(name),
            prefix=prefix,
            env=_environment(bin_dir),
            joins=tuple(joins),
        )
        for name, argv in commands.items()
    }


def _enter(first: int) -> tuple[str, ...]:
    return ("nsenter", f"--target={first}", "--mount", "--uts", "--ipc", "--net", "--pid")


def _environment(bin_dir: Path) -> dict[str, str]:
    return clean_environment(bin_dir) | {"HOME": "/root"}


def start(node: Node, bin_dir: Path, log: Log) -> None:
    """Start what does not run of a node: namespaces, network, containerd, kubelet, kube-proxy.

    Returns when all have been started; the kubelet still has to report that the node is ready. Waits for the API
    server before it starts the kubelet. The caller holds the node's lock.
    """
    inst = node.inst
    begin = time.monotonic()
    first = first_process(node)
    was_on = first is not None
    if first is None:
        first = _switch_on(node, bin_dir, log)
    if not network.is_connected(inst, node.index):
        network.connect_node(inst, node.index, first)
    parts = daemons(node, bin_dir, first, _v1_groups(node))
    started = [] if not processes.ensure(parts["containerd"]) else ["containerd"]
    if started:
        wait_containerd(Path(f"/proc/{first}/root/run/containerd/containerd.sock"), parts["containerd"])
    controlplane.wait_api(inst, controlplane.daemons(inst, bin_dir)[:2], others_start=True)
    started += [name for name in ("kubelet", "kube-proxy") if processes.ensure(parts[name])]
    if started:
        what = ", ".join(started) if was_on else "node"
        log(f"{node.name}: {what} started after {time.monotonic() - begin:.1f} s")


def _v1_groups(node: Node) -> list[Path]:
    hierarchies = cgroups.layout().v1
    return [hierarchy / node.group.lstrip("/") for hierarchy in hierarchies]


def _switch_on(node: Node, bin_dir: Path, log: Log) -> int:
    """Make the node's namespaces; returns its first process. Clears what a dead predecessor left."""
    inst = node.inst
    if short := inotify.problem(inotify.PER_NODE):
        raise ClusterError(f"{node.name} cannot start: {short}")
    cgroups.kill(node.group)
    cgroups.remove(node.group)
    network.disconnect_node(inst, node.index)
    images = template.ensure_template(inst, bin_dir, log)
    _write_files(node)
    template.clone(images, node.home / "var/lib/containerd", inst.state)
    with hold(inst.run / "pki.lock"):
        ensure_certificate(inst.state / "pki", node_subject(node.name, node.address))
        write_kubeconfig(inst, f"node-{node.name}", inst.state / "pki" / f"node-{node.name}.kubeconfig")
    daemon = sandbox(node, cgroups.create_for_pods(node.group))
    processes.ensure(daemon)
    end = time.monotonic() + 10
    while (first := processes.running(daemon)) is None:
        if time.monotonic() > end or not cgroups.pids(daemon.group):
            said = processes.last_words(daemon.log)
            raise ClusterError(f"{node.name}: its namespaces cannot be set up. The end of {daemon.log}:\n{said}")
        time.sleep(0.01)
    return first


def _write_files(node: Node) -> None:
    (node.inst.state / "home").mkdir(exist_ok=True)
    var = node.home / "var"
    for name in _VAR_DIRECTORIES:
        (var / name).mkdir(parents=True, exist_ok=True)
    (var / "tmp").chmod(0o1777)
    for name, target in (("run", "/run"), ("lock", "/run/lock")):
        if not (var / name).is_symlink():
            (var / name).symlink_to(target)
    below_var = [path.resolve() for path in (node.inst.state, cache_dir()) if path.resolve().is_relative_to("/var")]
    for path in below_var:
        (var / path.relative_to("/var")).mkdir(parents=True, exist_ok=True)
    layout = cgroups.layout()
    hybrid = not layout.unified and layout.tracking.name == "unified"
    for name, text in files(node, tuple(below_var), hybrid).items():
        file = node.home / name
        file.parent.mkdir(parents=True, exist_ok=True)
        scratch = file.with_name(f".{file.name}.new")
        scratch.write_text(text)
        scratch.replace(file)


def wait_containerd(address: Path, daemon: Daemon) -> None:
    """Wait until containerd serves kubelets: its socket answers some time before its CRI plugin does.

    A kubelet that comes in between ends ("server is not initialized yet").
    """
    import grpc  # not at the top: most commands start no node

    end = time.monotonic() + 30
    said = ""
    while time.monotonic() < end:
        with socket.socket(socket.AF_UNIX) as client, contextlib.suppress(OSError):
            client.connect(str(address))
            break
        time.sleep(0.02)
    with grpc.insecure_channel(f"unix:{address}") as channel:
        version = channel.unary_unary("/runtime.v1.RuntimeService/Version")
        while time.monotonic() < end:
            try:
                version(b"", timeout=5)
                return
            except grpc.RpcError as error:
                said = f" ({error.details()})"
            time.sleep(0.02)
    raise ClusterError(f"containerd does not start{said}. The end of {daemon.log}:\n{processes.last_words(daemon.log)}")


def kill(node: Node) -> None:
    """End everything in a node at once, as a power failure would. Its data stays."""
    cgroups.kill(node.group)
    network.disconnect_node(node.inst, node.index)
    cgroups.remove(node.group)


def command_in(node: Node, bin_dir: Path, argv: Sequence[str]) -> list[str]:
    """The command line that runs a program inside a node, with the local cloud's programs on its PATH.

    Raises ClusterError if the node is off.
    """
    first = first_process(node)
    if first is None:
        raise ClusterError(f"node {node.name} is not running. Next: start it (node start {node.name})")
    variables = [f"{key}={value}" for key, value in _environment(bin_dir).items()]
    terminal = [f"TERM={os.environ['TERM']}"] if "TERM" in os.environ else []
    return [*_enter(first), "--", "/usr/bin/env", "-i", *variables, *terminal, *argv]


def run_in(node: Node, bin_dir: Path, argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a program inside a node and return what it wrote."""
    return subprocess.run(command_in(node, bin_dir, argv), capture_output=True, text=True, check=False)


def route_services(inst: Instance, nodes: Sequence[Node]) -> None:
    """Lead the host's traffic to services through the running node with the lowest number."""
    with hold(inst.run / "network.lock"):
        on = [node.index for node in nodes if first_process(node) is not None]
        network.route_services(inst, min(on, default=None))
