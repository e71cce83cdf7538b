"""Our Helm charts as Pulumi releases."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pulumi
import pulumi_kubernetes as kubernetes

CHARTS = Path("charts")  # Pulumi runs the program in the project's folder
TIMEOUT_S = 900  # pulling images onto fresh nodes takes minutes


def release(
    name: str, chart: str, namespace: pulumi.Input[str], values: dict[str, Any], opts: pulumi.ResourceOptions
) -> kubernetes.helm.v3.Release:
    """Installs charts/<chart> as Helm release `name` and waits until what it made is ready.

    The path is relative, since it is part of the state and must be the same on every machine. Pulumi compares a local
    chart by its version only; the hash of its files in the description makes each edit an upgrade.
    """
    return kubernetes.helm.v3.Release(
        name,
        name=name,
        chart=str(CHARTS / chart),
        namespace=namespace,
        values=values,
        description=f"{CHARTS / chart} {content_hash(CHARTS / chart)}",
        timeout=TIMEOUT_S,
        max_history=5,
        opts=opts,
    )


def content_hash(folder: Path) -> str:
    """Twelve hexadecimal digits that change with any file below a folder. Raises FileNotFoundError if there is none."""
    digest = hashlib.sha256()
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    if not files:
        raise FileNotFoundError(f"no chart in {folder}")
    for path in files:
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder)}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:12]
