"""Runs the real helm: with a kubeconfig of its own, ended when this process ends, its failure in helm's own words."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from localcloud.kubernetes.provider import auth
from localcloud.kubernetes.provider.cluster import Cancelled, Cluster
from localcloud.kubernetes.provider.errors import Failure

# Starts a program that is killed when the thread that started it ends (PR_SET_PDEATHSIG): a helm that outlives its
# killed provider would go on beside the next run's. A small process of its own, because no code may run between fork
# and exec in a process that serves gRPC.
_DIE_WITH_PARENT = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""
TOKEN_CHECK = 20.0  # seconds between looks at whether the token is about to end


class HelmFailed(Exception):
    """Helm ended with an error; the message is what it said, without its ornaments."""


@dataclass(frozen=True)
class Workspace:
    """A private folder (mode 0700) for one operation: kubeconfig, token, values. Removed afterwards."""

    folder: Path
    kubeconfig: Path
    token: Path | None

    def write(self, name: str, content: bytes) -> Path:
        path = self.folder / name
        path.write_bytes(content)
        return path


@cache
def major_version() -> int:
    """The major version of the helm on PATH. Raises Failure where there is none."""
    done = subprocess.run([binary(), "version", "--short"], capture_output=True, text=True, timeout=30, check=False)
    match = re.search(r"v?(\d+)\.", done.stdout)
    if done.returncode or not match:
        raise Failure(f"`helm version` does not work: {(done.stderr or done.stdout).strip()}")
    return int(match[1])


def has_helm() -> bool:
    """Whether helm is on PATH."""
    return shutil.which("helm") is not None


def binary() -> str:
    """The path of helm. Raises Failure where there is none."""
    found = shutil.which("helm")
    if not found:
        raise Failure("helm is not on PATH; it is what installs charts. Install helm 3.14 or later, or 4.")
    return found


@contextmanager
def workspace(cluster: Cluster) -> Iterator[Workspace]:
    """A workspace with credentials for `cluster`. Raises Unreachable where they cannot be had."""
    with tempfile.TemporaryDirectory(prefix="slipway-helm-") as name:
        folder = Path(name)
        try:
            credential = cluster.client.credentials.get()
        except auth.AuthError as error:
            raise Failure(str(error)) from error
        token: Path | None = None
        if credential.token:
            # Read again by helm's client library every minute, so a token that ends can be followed by another.
            token = folder / "token"
            token.write_text(credential.token)
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(json.dumps(auth.single_user(cluster.client.config, credential, token)))
        yield Workspace(folder, kubeconfig, token)


def run(
    cluster: Cluster, space: Workspace | None, arguments: list[str], meanwhile: Callable[[float], None] | None = None
) -> str:
    """Run helm to its end and return what it printed. `meanwhile` is called about once a second with the seconds.

    Without a workspace helm gets no access to any cluster. Raises HelmFailed, Failure, Cancelled.
    """
    environment = _environment(cluster)
    environment["KUBECONFIG"] = str(space.kubeconfig) if space else os.devnull
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), binary(), *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
        )
        _wait(cluster, space, process, meanwhile)
        output.seek(0)
        errors.seek(0)
        text = output.read().decode("utf-8", "replace")
        if process.returncode:
            raise HelmFailed(clean(errors.read().decode("utf-8", "replace")) or f"exit code {process.returncode}")
    return text


def _wait(
    cluster: Cluster,
    space: Workspace | None,
    process: subprocess.Popen[bytes],
    meanwhile: Callable[[float], None] | None,
) -> None:
    started = renewed = time.monotonic()
    while True:
        try:
            process.wait(1.0)
        except subprocess.TimeoutExpired:
            pass
        else:
            return
        if cluster.cancelled.is_set():
            # On SIGTERM helm notes the release as failed, which the next run can go on from.
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            raise Cancelled("helm was stopped, because the run was cancelled")
        if space and space.token and time.monotonic() - renewed > TOKEN_CHECK:
            renewed = time.monotonic()
            _renew(cluster, space.token)
        if meanwhile:
            meanwhile(time.monotonic() - started)


def _renew(cluster: Cluster, path: Path) -> None:
    try:
        token = cluster.client.credentials.get().token
    except auth.AuthError:
        return  # helm's next request tells
    if token and token != path.read_text():
        fresh = path.with_suffix(".new")
        fresh.write_text(token)
        fresh.replace(path)


def _environment(cluster: Cluster) -> dict[str, str]:
    # A HELM_ variable of the user's shell (a namespace, a token) must not reach into the program's releases.
    kept = ("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HELM_") or key in kept}
    settings = cluster.settings.helm
    paths = {
        "HELM_PLUGINS": settings.plugins_path,
        "HELM_REGISTRY_CONFIG": settings.registry_config_path,
        "HELM_REPOSITORY_CACHE": settings.repository_cache,
        "HELM_REPOSITORY_CONFIG": settings.repository_config_path,
    }
    return environment | {key: value for key, value in paths.items() if value}


def clean(text: str) -> str:
    """Helm's error output without prefixes, log lines of its libraries and warnings."""
    lines = [
        line.removeprefix("Error: ").rstrip()
        for line in text.strip().splitlines()
        if line.strip() and not re.match(r"WARNING:|level=|time=|[IWE]\d{4} |\d{4}/\d\d/\d\d ", line)
    ]
    return "\n".join(lines)
