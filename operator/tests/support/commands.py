"""kubectl and helm, as a user has them."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from localcloud import tools
from localcloud.paths import Instance

CHARTS = Path(__file__).resolve().parents[3] / "charts"


class Commands:
    """Runs the programs against one instance; a failure raises with what they said."""

    def __init__(self, inst: Instance) -> None:
        self.inst = inst
        self.bin = tools.ensure_tools()

    def run(self, *argv: str, stdin: str = "", check: bool = True, timeout: float = 120) -> str:
        """Output of kubectl or helm with the instance's kubeconfig; with check=False also that of a failure."""
        program = str(self.bin / argv[0])
        environment = {
            "KUBECONFIG": str(self.inst.kubeconfig),
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "HOME": "/nonexistent",
        }
        done = subprocess.run(
            [program, *argv[1:]], input=stdin, capture_output=True, text=True, timeout=timeout, env=environment
        )
        if check and done.returncode:
            raise AssertionError(f"{' '.join(argv)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout + ("" if check else done.stderr)

    def kubectl(self, *argv: str, stdin: str = "", check: bool = True) -> str:
        return self.run("kubectl", *argv, stdin=stdin, check=check)

    def helm(self, *argv: str, stdin: str = "", check: bool = True) -> str:
        return self.run("helm", *argv, stdin=stdin, check=check)

    def get(self, *argv: str) -> Any:
        """`kubectl get … -o json`."""
        return json.loads(self.kubectl("get", *argv, "-o", "json"))

    def apply(self, *objects: dict[str, Any]) -> None:
        self.kubectl("apply", "--server-side", "-f", "-", stdin="\n---\n".join(map(json.dumps, objects)))


def eventually(check: Callable[[], object], what: str, seconds: float = 60) -> None:
    """Waits until `check` says yes. Raises with `what`, and what it last saw, when it does not."""
    end = time.monotonic() + seconds
    last: object = None
    while time.monotonic() < end:
        try:
            last = check()
        except (AssertionError, KeyError, IndexError, TypeError) as error:
            last = error
        else:
            if last:
                return
        time.sleep(0.2)
    raise AssertionError(f"not within {seconds:g} s: {what} (last: {last!r})")
