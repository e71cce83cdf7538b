"""`python -m localcloud.kubernetes`: the local cluster by command."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from localcloud.kubernetes import cluster
from localcloud.kubernetes.errors import ClusterError
from localcloud.kubernetes.specs import NodeSpec, Taint
from localcloud.paths import InstanceError


def _log(line: str) -> None:
    sys.stderr.write(line + "\n")


def _start(_: argparse.Namespace) -> int:
    cluster.ensure_all(_log)
    return 0


def _stop(_: argparse.Namespace) -> int:
    cluster.stop_all(_log)
    return 0


def _status(_: argparse.Namespace) -> int:
    sys.stdout.write("".join(f"{line}\n" for line in cluster.status()))
    return 0


def _pss(_: argparse.Namespace) -> int:
    memory = cluster.pss()
    for name, (count, mebibytes) in sorted(memory.items(), key=lambda item: -item[1][1]):
        sys.stdout.write(f"{name:<28} {count:>3} {mebibytes:>7.0f} MiB\n")
    sys.stdout.write(f"{'all':<28} {'':>3} {sum(m for _, m in memory.values()):>7.0f} MiB\n")
    return 0


def _registry(_: argparse.Namespace) -> int:
    cluster.start_registry(_log)
    return 0


def _node_add(arguments: argparse.Namespace) -> int:
    labels = dict(_pair(text) for text in arguments.label)
    spec = NodeSpec(
        name=arguments.name,
        labels=labels,
        taints=tuple(Taint.parse(text) for text in arguments.taint),
        instance_type=arguments.instance_type,
        zone=arguments.zone,
        provider_id=arguments.provider_id,
    )
    cluster.add_node(spec, _log)
    cluster.wait_ready([spec.name])
    return 0


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise ClusterError(f"label {text!r}: key=value is expected")
    return key, value


def _node_start(name: str) -> None:
    cluster.start_node(name, _log)
    cluster.wait_ready([name])


def _node_exec(arguments: argparse.Namespace) -> int:
    argv = cluster.node_command(arguments.name, arguments.argv or ["/bin/sh"])
    os.execvp(argv[0], argv)  # noqa: S606


def _node_list(_: argparse.Namespace) -> int:
    sys.stdout.write("".join(f"{name}\n" for name in cluster.node_names()))
    return 0


def _by_name(action: Callable[[str], object], done: str) -> Callable[[argparse.Namespace], int]:
    """A command on one node that exists. done: what is said when it has ended."""

    def run(arguments: argparse.Namespace) -> int:
        name: str = arguments.name
        names = cluster.node_names()
        if name not in names:
            raise ClusterError(f"there is no Kubernetes node {name!r}; there is: {', '.join(names) or 'none'}")
        action(name)
        sys.stdout.write(f"{name}: {done}\n")
        return 0

    return run


_NODE_ACTIONS: dict[str, tuple[Callable[[argparse.Namespace], int], str]] = {
    "remove": (
        _by_name(lambda name: cluster.remove_node(name, _log), "removed"),
        "end a node and remove it with its data",
    ),
    "start": (_by_name(_node_start, "started"), "start what does not run of a node"),
    "stop": (
        _by_name(lambda name: cluster.stop_node(name, _log), "switched off; `node start` switches it on"),
        "switch a node off",
    ),
    "kill": (
        _by_name(cluster.kill_node, "killed; `node start` and `make up` bring it back"),
        "end everything in a node at once, as a power failure would",
    ),
    "cordon": (
        _by_name(cluster.cordon_node, "cordoned; `node uncordon` lets pods in again"),
        "keep new pods from a node",
    ),
    "uncordon": (_by_name(lambda name: cluster.cordon_node(name, False), "takes pods again"), "let new pods in again"),
    "drain": (
        _by_name(cluster.drain_node, "drained; `node uncordon` lets pods in again"),
        "cordon a node and evict its pods",
    ),
}


def parser(prog: str = "python -m localcloud.kubernetes") -> argparse.ArgumentParser:
    """The command line. prog: how it was called, for its help."""
    top = argparse.ArgumentParser(prog=prog, description=__doc__)
    commands = top.add_subparsers(dest="command", required=True)

    def command(name: str, run: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(run=run)
        return sub

    command("start", _start, "start what does not run: control plane, registry, nodes that were added")
    command("stop", _stop, "end everything and remove it, data included")
    command("status", _status, "what runs and what does not")
    command("pss", _pss, "memory by program (proportional share)")
    command("registry", _registry, "start the image registry")

    node = commands.add_parser("node", help="add, remove, stop, kill … a node").add_subparsers(required=True)
    add = node.add_parser("add", help="add a node, or change one")
    add.add_argument("name")
    add.add_argument("--label", action="append", default=[], metavar="KEY=VALUE")
    add.add_argument("--taint", action="append", default=[], metavar="KEY=VALUE:EFFECT")
    add.add_argument("--instance-type")
    add.add_argument("--zone")
    add.add_argument("--provider-id")
    add.set_defaults(run=_node_add)
    for name, (run, text) in _NODE_ACTIONS.items():
        action = node.add_parser(name, help=text, description=text)
        action.add_argument("name")
        action.set_defaults(run=run)
    execute = node.add_parser("exec", help="run a program inside a node")
    execute.add_argument("name")
    execute.add_argument("argv", nargs=argparse.REMAINDER, metavar="command")
    execute.set_defaults(run=_node_exec)
    node.add_parser("list", help="names of all nodes").set_defaults(run=_node_list)
    return top


def main(argv: Sequence[str] | None = None, prog: str = "python -m localcloud.kubernetes") -> int:
    """Run one command; returns the exit code. Errors are lines on stderr."""
    arguments = parser(prog).parse_args(argv)
    try:
        code: int = arguments.run(arguments)
    except (ClusterError, InstanceError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return code


if __name__ == "__main__":
    sys.exit(main())
