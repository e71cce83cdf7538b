"""Pods that run jobs are not evicted, and Slurm's own services are not all evicted at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from pulumi_policy import Severity

from .rule import Finding, Resource, Rule
from .values import UNKNOWN, at, is_false, items, mapping

RELEASE = "kubernetes:helm.sh/v3:Release"
CHARTS = {"slurm", "slurm-operator"}
SWITCH = "workloadDisruptionProtection"
LOST = "A drained, replaced or consolidated node then takes its running jobs with it, without asking Slurm."


def check(resource: Resource) -> Iterator[Finding]:
    """A NodeSet, or a release of the slurm charts, that switches the protection of busy or single pods off."""
    if resource.kind == RELEASE:
        if chart_name(resource.inputs.get("chart")) in CHARTS:
            yield from check_release(resource)
    elif at(resource.inputs, "spec", SWITCH) is False:
        yield Finding(
            f"{resource.title} sets spec.{SWITCH}: false.",
            fix=f"remove {SWITCH}; the operator then keeps a PodDisruptionBudget over the workers that are busy.",
        )


def check_release(resource: Resource) -> Iterator[Finding]:
    """Values of a release. What a release makes cannot be seen in a preview, so what it is told is judged."""
    if items(resource.inputs.get("valueYamlFiles")):
        yield Finding(
            f"{resource.title} takes values from files, which policies cannot see.",
            "A value in such a file could switch the protection of running jobs off unnoticed.",
            "pass the values in `values` instead of `valueYamlFiles`.",
        )
    values = mapping(resource.inputs.get("values"))
    for path in switched_off(values, ()):
        where = ".".join(path)
        if path[-1] == SWITCH:
            yield Finding(f"{resource.title} sets {where}: false.", fix=f"remove {where}; its default is true.")
        else:
            yield Finding(
                f"{resource.title} sets {where}: false.",
                "All pods of that service may then be evicted at once, and Slurm stands still until they are back.",
                f"remove {where}; its default is true.",
            )


def switched_off(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Paths of the switches that are false, at any depth: charts have them per set, per default and per service."""
    for key, inner in mapping(value).items():
        here = (*path, key)
        if inner is UNKNOWN:
            continue
        if key == SWITCH and is_false(inner):
            yield here
        elif key in ("pdb", "podDisruptionBudget") and is_false(mapping(inner).get("enabled")):
            yield (*here, "enabled")
        else:
            yield from switched_off(inner, here)


def chart_name(chart: Any) -> str | None:
    """Last part of a chart's path or address: `slurm` of charts/slurm and of oci://…/charts/slurm."""
    return PurePosixPath(chart.rstrip("/")).name if isinstance(chart, str) else None


BUSY_PODS_HAVE_PDB = Rule(
    id="busy-pods-have-pdb",
    severity=Severity.CRITICAL,
    kinds=rf"kubernetes:slinky\.slurm\.net/v[0-9a-z]+:NodeSet|{RELEASE.replace('.', chr(92) + '.')}",
    summary="Workers that run jobs, and Slurm's own services, have a PodDisruptionBudget.",
    why="Kubernetes moves pods: nodes are drained for upgrades, replaced when they drift, and consolidated to save "
    "money. Only a PodDisruptionBudget makes it ask first. The operator keeps one over the workers that are busy, "
    "unless `workloadDisruptionProtection` is false; the charts have one for each service.",
    consequence=LOST,
    remediation=f"Leave {SWITCH} and the charts' podDisruptionBudget at their defaults.",
    example=(
        "kubernetes:slinky.slurm.net/v1beta1:NodeSet",
        {"metadata": {"name": "h100"}, "spec": {"replicas": 16, SWITCH: False}},
    ),
    check=check,
)
