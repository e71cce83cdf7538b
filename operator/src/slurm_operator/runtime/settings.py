"""What can be set from outside, all on the command line."""

from __future__ import annotations

import argparse
import os
import re
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slurm_operator import __version__
from slurm_operator.kube.lease import LEASE_SECONDS, RENEW_DEADLINE_SECONDS, RETRY_SECONDS
from slurm_operator.runtime.log import LEVELS

LEASE_NAME = "slurm-operator"


def _identity() -> str:
    pod = os.environ.get("POD_NAME") or socket.gethostname()
    return f"{pod}_{secrets.token_hex(4)}"


@dataclass(frozen=True)
class Settings:
    """`namespaces` empty: all. Ports 0: not served. `identity` differs between processes, also of the same pod.

    The lease's times can only be changed in code: they must be the same in all replicas.
    """

    namespaces: tuple[str, ...] = ()
    leader_elect: bool = True
    lease_namespace: str = ""
    health_port: int = 8081
    metrics_port: int = 8080
    log_level: str = "info"
    kubeconfig: Path | None = None
    workers: int = 4
    propagated_conditions: tuple[str, ...] = ()
    deployment: str = ""
    """For `release`: namespace/name of the operator's own Deployment, which is stopped first; "": none is."""
    drain_seconds: float = 20.0
    lease_seconds: float = LEASE_SECONDS
    deadline_seconds: float = RENEW_DEADLINE_SECONDS
    retry_seconds: float = RETRY_SECONDS
    identity: str = field(default_factory=_identity)
    rbac_guard: bool = field(default_factory=lambda: bool(os.environ.get("SLURM_OPERATOR_RBAC_GUARD")))


@dataclass(frozen=True)
class Command:
    """What to do: "run", "crds" (print the CRDs), "rbac" (print the roles), "release" (see slurm_operator.release)."""

    name: str
    settings: Settings


def parse(arguments: Sequence[str] | None = None) -> Command:
    """Exits with a message and code 2 on a wrong command line, with 0 on --help and --version."""
    parser = argparse.ArgumentParser(prog="slurm-operator", description="Runs Slurm on Kubernetes.")
    parser.add_argument("command", nargs="?", default="run", choices=("run", "crds", "rbac", "release"),
                        help="default: run; release: stop the operator and let its resources be deleted")  # fmt: skip
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument(
        "--namespaces",
        type=_names,
        default=(),
        metavar="A,B",
        help="watch these namespaces only (default: all)",
    )
    parser.add_argument("--leader-elect", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--lease-namespace", default="", help="namespace of the lease (default: the pod's own)")
    parser.add_argument("--health-port", type=_port, default=8081, help="/healthz and /readyz (default 8081, 0: off)")
    parser.add_argument("--metrics-port", type=_port, default=8080, help="/metrics (default 8080, 0: off)")
    parser.add_argument("--log-level", choices=LEVELS, default="info")
    parser.add_argument("--kubeconfig", type=Path, help="default: the pod's service account, then $KUBECONFIG")
    parser.add_argument("--workers", type=_workers, default=4, help="reconciles at a time per kind (default 4)")
    parser.add_argument("--deployment", default="", metavar="NAMESPACE/NAME", help="release: what to stop first")
    parser.add_argument(
        "--propagated-node-conditions",
        type=_conditions,
        default=(),
        dest="propagated_conditions",
        metavar="A,B",
        help="node conditions that tell the reason of a cordon in Slurm",
    )
    given = vars(parser.parse_args(arguments))
    return Command(given.pop("command"), Settings(**given))


def _names(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        if not (name.isascii() and name.replace("-", "").isalnum() and name == name.lower() and len(name) <= 63):
            raise argparse.ArgumentTypeError(f"{name!r} is no name of a namespace")
    return names


def _conditions(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_./]*[A-Za-z0-9])?", name):
            raise argparse.ArgumentTypeError(f"{name!r} is no type of a node condition")
    return names


def _port(text: str) -> int:
    if not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r}: a port from 1 to 65535, or 0 for none, is allowed")
    return int(text)


def _workers(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 64:
        raise argparse.ArgumentTypeError(f"{text!r}: 1 to 64 is allowed")
    return int(text)
