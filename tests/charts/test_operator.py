"""Chart slurm-operator: least rights, restricted pods, CRDs that stay."""

from __future__ import annotations

from typing import Any

import pytest
from slurm_operator.kube import rbac

from tests.charts.helm import HelmError, Values, render, template


def objects(values: Values | None = None) -> dict[tuple[str, str], dict[str, Any]]:
    return render("slurm-operator", values, namespace="slurm-operator", release="slurm-operator")


def test_what_is_installed() -> None:
    kinds = sorted(kind for kind, _ in objects())
    assert kinds == sorted(
        ["CustomResourceDefinition"] * 7
        + [
            "ServiceAccount",
            "ClusterRole",
            "ClusterRoleBinding",
            "Role",
            "RoleBinding",
            "Deployment",
            "Job",
            "PodDisruptionBudget",
        ]
    )


def test_crds_stay_when_the_chart_goes_and_can_be_left_out() -> None:
    for (kind, _), made in objects().items():
        if kind == "CustomResourceDefinition":
            assert made["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert not [kind for kind, _ in objects({"crds": {"install": False}}) if kind == "CustomResourceDefinition"]


def test_the_rights_are_those_of_the_table() -> None:
    made = objects()
    assert made["ClusterRole", "slurm-operator-slurm-operator"]["rules"] == rbac.rules("cluster", "watched")
    assert made["Role", "slurm-operator-leader-election"]["rules"] == rbac.rules("own")


def test_with_watched_namespaces_there_are_no_rights_elsewhere() -> None:
    made = render(
        "slurm-operator", {"watchNamespaces": ["slurm"]}, namespace="slurm-operator", release="slurm-operator"
    )
    assert made["ClusterRole", "slurm-operator-slurm-operator"]["rules"] == rbac.rules("cluster")
    assert made["Role", "slurm-operator"]["metadata"]["namespace"] == "slurm"
    assert made["Role", "slurm-operator"]["rules"] == rbac.rules("watched")
    subjects = made["RoleBinding", "slurm-operator"]["subjects"]
    assert subjects == [{"kind": "ServiceAccount", "name": "slurm-operator", "namespace": "slurm-operator"}]
    arguments = made["Deployment", "slurm-operator"]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "--namespaces=slurm" in arguments


def test_no_right_has_a_wildcard() -> None:
    for (kind, _), made in objects().items():
        if kind.endswith("Role"):
            assert "*" not in str(made["rules"])


def test_the_command_line_is_one_that_the_operator_takes() -> None:
    from slurm_operator.runtime.settings import parse

    made = objects({"watchNamespaces": ["a", "b"], "logLevel": "debug", "workers": 8})
    arguments = made["Deployment", "slurm-operator"]["spec"]["template"]["spec"]["containers"][0]["args"]
    settings = parse(arguments).settings
    assert settings.namespaces == ("a", "b")
    assert (settings.log_level, settings.workers, settings.lease_namespace) == ("debug", 8, "slurm-operator")
    assert settings.leader_elect


def test_one_replica_needs_no_budget() -> None:
    assert ("PodDisruptionBudget", "slurm-operator") not in objects({"replicas": 1})


@pytest.mark.parametrize(
    ("values", "says"),
    [({"replica": 1}, "replica"), ({"logLevel": "loud"}, "logLevel"), ({"watchNamespaces": ["A"]}, "watchNamespaces")],
)
def test_wrong_values_are_refused(values: Values, says: str) -> None:
    with pytest.raises(HelmError) as caught:
        template("slurm-operator", values)
    assert says in str(caught.value)
