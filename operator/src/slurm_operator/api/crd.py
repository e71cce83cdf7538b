"""The CustomResourceDefinitions, rendered from `api.kinds`."""

from __future__ import annotations

from typing import Any

import yaml

from slurm_operator.api.kinds import KINDS, Column, Kind
from slurm_operator.api.schema import schema_of


def crd(kind: Kind) -> dict[str, Any]:
    """The CustomResourceDefinition of a kind."""
    version: dict[str, Any] = {
        "name": kind.version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": _root(kind)},
        "subresources": {"status": {}},
        "additionalPrinterColumns": [_column(column) for column in kind.columns],
    }
    if kind.scale:
        version["subresources"]["scale"] = {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        # Deleting the CRDs would delete every cluster: `helm uninstall` leaves them.
        "metadata": {
            "name": f"{kind.plural}.{kind.group}",
            "labels": {"app.kubernetes.io/part-of": "slurm-operator"},
            "annotations": {"helm.sh/resource-policy": "keep"},
        },
        "spec": {
            "group": kind.group,
            "scope": "Namespaced",
            "names": {
                "kind": kind.name,
                "listKind": f"{kind.name}List",
                "plural": kind.plural,
                "singular": kind.name.lower(),
                "shortNames": list(kind.short_names),
                "categories": ["slurm"],
            },
            "versions": [version],
        },
    }


def _root(kind: Kind) -> dict[str, Any]:
    spec = schema_of(kind.spec)
    spec["description"] = "What is asked for."
    if kind.spec_rules:
        spec["x-kubernetes-validations"] = list(kind.spec_rules)
    status = schema_of(kind.status)
    status["description"] = "What the operator observed."
    root: dict[str, Any] = {
        "type": "object",
        "description": kind.description,
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": dict(sorted(spec.items())),
            "status": dict(sorted(status.items())),
        },
    }
    if rules := kind.object_rules():
        root["x-kubernetes-validations"] = rules
    return root


def _column(column: Column) -> dict[str, Any]:
    result: dict[str, Any] = {"name": column.name, "type": column.type, "jsonPath": column.path}
    if column.description:
        result["description"] = column.description
    if column.wide:
        result["priority"] = 1
    return result


class _Dumper(yaml.SafeDumper):
    """Never writes anchors: Kubernetes' YAML readers take them, people do not."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def render(document: dict[str, Any]) -> str:
    """One YAML document, the same text for the same content."""
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)


def render_all() -> str:
    """All CRDs as one YAML stream, for `kubectl apply --server-side -f -`."""
    return "---\n".join(render(crd(kind)) for kind in KINDS)
