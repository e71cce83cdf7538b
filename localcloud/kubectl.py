"""kubectl as a function: what the command line asks the cluster, in one place."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from typing import Any

from localcloud.console import UserError

TIMEOUT_SECONDS = 60


def text(environment: Mapping[str, str], *arguments: str, stdin: str | None = None) -> str:
    """Run kubectl and return what it printed. It reads `stdin`, never the terminal.

    Raises UserError with kubectl's own words when it fails.
    """
    done = subprocess.run(
        ["kubectl", *arguments], env=dict(environment), input=stdin or "",
        capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False,
    )  # fmt: skip
    if done.returncode:
        raise UserError(f"kubectl {' '.join(arguments[:6])} …: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def items(environment: Mapping[str, str], *arguments: str) -> list[dict[str, Any]]:
    """The objects that `kubectl get ARGUMENTS` finds."""
    found: list[dict[str, Any]] = json.loads(text(environment, "get", *arguments, "-o", "json"))["items"]
    return found
