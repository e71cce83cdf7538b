"""The charts' objects on a real API server: accepted, and restricted where that is claimed."""

from __future__ import annotations

import json

import pytest

from localcloud.paths import Instance
from tests.charts.helm import CHARTS, kubectl, template
from tests.charts.test_slurm import FULL

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def installed(control_plane: Instance) -> Instance:
    """Namespaces as `make up` has them, and the CRDs."""
    for name, level in (("slurm-operator", "restricted"), ("slurm", "baseline")):
        labels = {f"pod-security.kubernetes.io/{mode}": level for mode in ("enforce", "warn")}
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
        kubectl(control_plane, "apply", "-f", "-", stdin=json.dumps(namespace))
    crds = CHARTS / "slurm-operator" / "files" / "crds"
    kubectl(control_plane, "apply", "--server-side", "-f", str(crds))
    kubectl(control_plane, "wait", "--for=condition=Established", "--timeout=30s", "crd", "--all")
    return control_plane


def test_the_operator_keeps_to_the_restricted_level(installed: Instance) -> None:
    values = {"watchNamespaces": ["slurm"], "networkPolicy": {"enabled": True}, "crds": {"install": False}}
    text = template("slurm-operator", values, namespace="slurm-operator", release="slurm-operator")
    out = kubectl(installed, "apply", "--dry-run=server", "-f", "-", stdin=text)
    assert "deployment.apps/slurm-operator created" in out
    assert "Warning" not in out


@pytest.mark.parametrize("values", [{}, FULL], ids=["defaults", "full"])
def test_the_cluster_is_accepted_without_a_warning(installed: Instance, values: dict[str, object]) -> None:
    """`--validate=strict`: a field that the CRDs do not know would be an error."""
    out = kubectl(
        installed,
        "-n",
        "slurm",
        "apply",
        "--dry-run=server",
        "--validate=strict",
        "-f",
        "-",
        stdin=template("slurm", values),
    )
    assert "controller.slinky.slurm.net/slurm created" in out
    assert "Warning" not in out
