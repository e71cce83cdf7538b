"""Services with one pod, or few, and the PodDisruptionBudgets over them. Only the whole stack shows both."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from pulumi_policy import Severity

from .rule import Resource, Rule
from .values import UNKNOWN, at, has_unknown, items, mapping, number

BUDGET = "kubernetes:policy/v1:PodDisruptionBudget"
DEPLOYMENT = "kubernetes:apps/v1:Deployment"
STATEFUL_SET = "kubernetes:apps/v1:StatefulSet"


def check(resources: list[Resource], parameters: dict[str, Any]) -> Iterator[tuple[Resource, str]]:
    """Workloads over which no budget stands. What is not known yet is judged at the end of `up`."""
    budgets = [resource for resource in resources if resource.kind == BUDGET]
    for workload in resources:
        if workload.kind == BUDGET or number(at(workload.inputs, "spec", "replicas")) == 0:
            continue
        labels, namespace = at(workload.inputs, "spec", "template", "metadata", "labels"), _namespace(workload)
        if has_unknown(labels) or namespace is UNKNOWN:
            continue
        if not any(
            _namespace(budget) in (namespace, UNKNOWN)
            and selects(at(budget.inputs, "spec", "selector"), mapping(labels))
            for budget in budgets
        ):
            yield workload, f"{workload.title} has no PodDisruptionBudget."


def selects(selector: Any, labels: dict[str, Any]) -> bool:
    """Whether a label selector matches labels. Nothing selects nothing; `{}` selects all, as in policy/v1."""
    if selector is None:
        return False
    if has_unknown(selector):
        return True
    wanted = mapping(at(selector, "matchLabels"))
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    for expression in items(at(selector, "matchExpressions")):
        key, operator, values = at(expression, "key"), at(expression, "operator"), items(at(expression, "values"))
        matches = {
            "In": labels.get(key) in values,
            "NotIn": labels.get(key) not in values,
            "Exists": key in labels,
            "DoesNotExist": key not in labels,
        }
        if not matches.get(operator, False):
            return False
    return True


def _namespace(resource: Resource) -> Any:
    namespace = at(resource.inputs, "metadata", "namespace")
    return "default" if namespace is None else namespace


RULES = (
    Rule(
        id="service-has-pdb",
        severity=Severity.HIGH,
        kinds="|".join(map(re.escape, (BUDGET, DEPLOYMENT, STATEFUL_SET))),
        summary="Every Deployment and StatefulSet that the program makes has a PodDisruptionBudget.",
        why="Drains ask budgets and nothing else. With several replicas the budget keeps some of "
        "them up; with a single one "
        "it makes whoever drains the node stop and think. "
        "https://kubernetes.io/docs/tasks/run-application/configure-pdb/",
        consequence="A drain takes all its pods at once, and what depends on it stands still until they are back.",
        remediation="Add a PodDisruptionBudget whose selector matches the labels of its pods.",
        example=(
            DEPLOYMENT,
            {"spec": {"replicas": 1, "template": {"metadata": {"labels": {"app": "keda-operator"}}, "spec": {}}}},
        ),
        stack_check=check,
    ),
)
