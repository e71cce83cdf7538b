"""Runs an operation with the real pulumi CLI, where that is on PATH: same program, plugins and state."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from localcloud.engine import config as configs
from localcloud.engine.backend import open_backend
from localcloud.engine.errors import EngineError
from localcloud.engine.operations import Order, Result

# Lines of the CLI's summary, such as `    + 12 created` and `    3 unchanged`.
_COUNT = re.compile(r"^\s+(?:[-+~=><]+\s*)?(\d+) (?:to )?(\w+)")
_OPS = {
    "create": "create", "created": "create", "update": "update", "updated": "update", "replace": "replace",
    "replaced": "replace", "delete": "delete", "deleted": "delete", "import": "import", "imported": "import",
    "unchanged": "same",
}  # fmt: skip


def command(order: Order, pulumi: str) -> list[str]:
    """The CLI's command line for an order."""
    words = [pulumi, order.operation, "--stack", order.stack, "--non-interactive", "--color", "never"]
    words += ["--parallel", str(order.parallel)]
    if order.operation != "preview":
        words.append("--yes")
    if order.operation in ("up", "destroy", "refresh"):
        words.append("--skip-preview")
    if order.operation in ("preview", "up"):
        for pack in order.packs:
            words += ["--policy-pack", str(pack)]
        for file in order.pack_configs:
            words += ["--policy-pack-config", str(file)]
    if order.diff:
        words.append("--diff")
    if order.clear_pending_creates and order.operation == "refresh":
        words.append("--clear-pending-creates")
    return words


def counts(lines: Sequence[str]) -> dict[str, int]:
    """Changes by kind from the CLI's summary."""
    found: dict[str, int] = {}
    inside = False
    for line in lines:
        if line.startswith("Resources:"):
            inside = True
        elif inside and (match := _COUNT.match(line)) and match[2] in _OPS:
            op = _OPS[match[2]]
            found[op] = found.get(op, 0) + int(match[1])
        elif inside and not line.strip():
            inside = False
    return found


def environment(order: Order) -> dict[str, str]:
    """The CLI's environment: never asks, never downloads, keeps state where the embedded engine does."""
    project = configs.load_project(order.directory)
    backend = open_backend(project.name, project.backend, order.environment)
    backend.prepare()
    return order.environment | {
        "PULUMI_BACKEND_URL": backend.root.as_uri(),
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
    }


def run(order: Order, pulumi: str) -> Result:
    """Runs the order. Raises EngineError when the stack cannot be opened."""
    env = environment(order)
    listed = _ask([pulumi, "stack", "ls", "--json", "--non-interactive"], order.directory, env)
    if order.stack not in {str(stack["name"]).rpartition("/")[2] for stack in json.loads(listed or "[]")}:
        _ask([pulumi, "stack", "init", order.stack, "--no-select", "--non-interactive"], order.directory, env)
    emit: Callable[[str], Any] = order.emit or _to_terminal
    lines: list[str] = []
    words = command(order, pulumi)
    with subprocess.Popen(
        words, cwd=order.directory, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout
        for line in process.stdout:
            lines.append(line.rstrip("\n"))
            if not order.quiet:
                emit(lines[-1])
    changes = counts(lines)
    document = {
        "operation": order.operation,
        "stack": order.stack,
        "result": "succeeded" if process.returncode == 0 else "failed",
        "changes": changes,
        "output": lines,
    }
    outputs = outputs_of(order.directory, order.stack, env, pulumi, show_secrets=False)
    return Result(process.returncode, changes, outputs, document)


def outputs_of(directory: Path, stack: str, env: dict[str, str], pulumi: str, *, show_secrets: bool) -> dict[str, Any]:
    words = [pulumi, "stack", "output", "--json", "--stack", stack, "--non-interactive"]
    text = _ask([*words, "--show-secrets"] if show_secrets else words, directory, env)
    return dict(json.loads(text or "{}"))


def _ask(words: Sequence[str], directory: Path, env: dict[str, str]) -> str:
    done = subprocess.run(words, cwd=directory, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise EngineError(f"{' '.join(['pulumi', *words[1:]])}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def _to_terminal(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
