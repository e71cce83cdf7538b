"""Running a program to its end."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from localcloud.kubernetes.errors import ClusterError

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/lib/cni"


def clean_environment(bin_dir: Path | None = None) -> dict[str, str]:
    """A small environment that does not depend on who started us. `bin_dir` comes first on PATH."""
    path = f"{bin_dir}:{SYSTEM_PATH}" if bin_dir else SYSTEM_PATH
    return {"PATH": path, "HOME": os.environ.get("HOME", "/root"), "LANG": "C.UTF-8"}


def run(
    argv: Sequence[str | Path],
    *,
    stdin: str | None = None,
    check: bool = True,
    timeout: float = 120,
    env: Mapping[str, str] | None = None,
) -> str:
    """Run a program and return what it wrote to stdout.

    Raises ClusterError with the command and its last words if it fails (unless check is False), is missing or
    takes longer than `timeout` seconds.
    """
    words = [str(word) for word in argv]
    try:
        done = subprocess.run(
            words,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=timeout,
            env=dict(env) if env is not None else clean_environment(),
            check=False,
        )
    except FileNotFoundError:
        raise ClusterError(f"{words[0]}: program not found") from None
    except subprocess.TimeoutExpired:
        raise ClusterError(f"`{shlex.join(words)}` did not end within {timeout:.0f} s") from None
    if check and done.returncode:
        said = (done.stderr or done.stdout).strip()[-1000:]
        raise ClusterError(f"`{shlex.join(words)}` failed ({done.returncode}): {said}")
    return done.stdout
