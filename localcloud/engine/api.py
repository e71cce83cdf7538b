"""What the rest of localcloud uses: one call per operation, done by the pulumi CLI where it is on PATH, else here."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from localcloud.engine import cli, operations, urns
from localcloud.engine.operations import DEFAULT_PARALLEL, Order, Result, Stack
from localcloud.engine.values import masked, plain
from localcloud.paths import REPOSITORY

__all__ = ["Result", "environment", "outputs", "run", "uses_cli"]

Operation = Literal["preview", "up", "destroy", "refresh"]


def environment(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment with `env` over it, and with our providers and this interpreter first on PATH."""
    merged = {**os.environ, **(env or {})}
    first = [str(REPOSITORY / "localcloud" / "bin"), str(Path(sys.executable).parent)]
    merged["PATH"] = os.pathsep.join([*first, merged.get("PATH", os.defpath)])
    return merged


def uses_cli(env: Mapping[str, str]) -> str | None:
    """The pulumi CLI that an operation would use. SLIPWAY_ENGINE=embedded keeps to the embedded engine."""
    return None if env.get("SLIPWAY_ENGINE") == "embedded" else shutil.which("pulumi", path=env.get("PATH"))


def run(
    operation: Operation,
    stack: str,
    env: Mapping[str, str] | None = None,
    policy_packs: Sequence[Path] = (),
    log: Callable[[str], None] | None = None,
    *,
    policy_pack_configs: Sequence[Path] = (),
    cwd: Path = REPOSITORY,
    parallel: int = DEFAULT_PARALLEL,
    diff: bool = False,
    quiet: bool = False,
    clear_pending_creates: bool = False,
) -> Result:
    """Runs an operation on a stack of the project in `cwd`, without asking.

    log gets plain lines; without it they go to the terminal (live, when it is one). quiet shows nothing.
    A run that failed is a Result with an exit code other than 0; EngineError is raised only for what stops it before
    it begins (an unknown stack, a wrong config, a lock). Its text is meant for the user.
    Result.outputs hold `[secret]` where a value is one: `outputs` gives them in plain text.
    """
    merged = environment(env)
    order = Order(
        operation=operation, stack=stack, directory=cwd, environment=merged, packs=tuple(policy_packs),
        pack_configs=tuple(policy_pack_configs), parallel=parallel, diff=diff, quiet=quiet, emit=log,
        clear_pending_creates=clear_pending_creates,
    )  # fmt: skip
    pulumi = uses_cli(merged)
    if pulumi:
        return cli.run(order, pulumi)
    result = operations.run(order)
    return Result(result.exit_code, result.changes, masked(result.outputs), result.document)


def outputs(
    stack: str, env: Mapping[str, str] | None = None, *, show_secrets: bool = False, cwd: Path = REPOSITORY
) -> dict[str, Any]:
    """The stack's outputs from its state, without running the program."""
    merged = environment(env)
    opened = Stack(cwd, stack, merged)
    pulumi = uses_cli(merged)
    if pulumi:
        return cli.outputs_of(cwd, opened.name, merged, pulumi, show_secrets=show_secrets)
    live = opened.store.load().live
    root = next((r for r in live.values() if r.type == urns.STACK_TYPE), None)
    if root is None:
        return {}
    return dict(plain(root.outputs) if show_secrets else masked(root.outputs))
