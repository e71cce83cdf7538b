"""`python -m localcloud.kubernetes`: the local cluster by command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from localcloud.kubernetes import cluster
from localcloud.kubernetes.errors import ClusterError
from localcloud.paths import InstanceError


def _log(line: str) -> None:
    sys.stderr.write(line + "\n")


def _start(_: argparse.Namespace) -> int:
    cluster.start_control_plane(_log)
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


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="python -m localcloud.kubernetes", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True)

    def command(name: str, run: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(run=run)
        return sub

    command("start", _start, "start what does not run")
    command("stop", _stop, "end everything and remove it, data included")
    command("status", _status, "what runs and what does not")
    command("pss", _pss, "memory by program (proportional share)")
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. Errors are lines on stderr."""
    arguments = parser().parse_args(argv)
    try:
        code: int = arguments.run(arguments)
    except (ClusterError, InstanceError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return code


if __name__ == "__main__":
    sys.exit(main())
