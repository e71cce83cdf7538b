"""helm and kubectl as programs, and charts rendered into objects."""

from __future__ import annotations

import json
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from localcloud import tools
from localcloud.paths import REPOSITORY, Instance

CHARTS = REPOSITORY / "charts"
Values = dict[str, Any]


class HelmError(AssertionError):
    """helm said no; the text is what it said."""


@cache
def programs() -> Path:
    return tools.ensure_tools()


def helm(*argv: str, stdin: str = "") -> str:
    done = subprocess.run([str(programs() / "helm"), *argv], input=stdin, capture_output=True, text=True)
    if done.returncode:
        raise HelmError(done.stderr + done.stdout)
    return done.stdout


def template(chart: str, values: Values | None = None, *, namespace: str = "slurm", release: str = "slurm") -> str:
    """Everything that the chart renders, as text."""
    text = json.dumps(values or {})
    return helm("template", release, str(CHARTS / chart), "-n", namespace, "-f", "-", stdin=text)


def render(chart: str, values: Values | None = None, **where: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Objects by kind and name."""
    documents = [one for one in yaml.safe_load_all(template(chart, values, **where)) if one]
    return {(one["kind"], one["metadata"]["name"]): one for one in documents}


def kubectl(inst: Instance, *argv: str, stdin: str = "") -> str:
    done = subprocess.run(
        [str(programs() / "kubectl"), "--kubeconfig", str(inst.kubeconfig), *argv],
        input=stdin,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout + done.stderr
