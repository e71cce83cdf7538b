"""The operator chart's RBAC template, from the one table in `kube.rbac`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml

from slurm_operator.kube.rbac import rules

_HEAD = """\
apiVersion: rbac.authorization.k8s.io/v1
kind: {kind}
metadata:
  name: {name}
{namespace}  labels:
    {{{{- include "slurm-operator.labels" $ | nindent 4 }}}}
"""
_BINDING = """\
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {role}
  name: {name}
subjects:
  - kind: ServiceAccount
    name: {{{{ include "slurm-operator.serviceAccountName" $ }}}}
    namespace: {{{{ $.Release.Namespace }}}}
"""
_NAME = '{{ include "slurm-operator.fullname" $ }}'
_CLUSTER_NAME = '{{ $.Release.Namespace }}-{{ include "slurm-operator.fullname" $ }}'
_OWN_NAMESPACE = "  namespace: {{ $.Release.Namespace }}\n"
_WATCHED_NAMESPACE = "  namespace: {{ $namespace }}\n"


def rbac_template() -> str:
    """Helm template: cluster-wide rights, or with `watchNamespaces` a Role in each of those namespaces."""
    cluster = _role("Cluster", _CLUSTER_NAME, "", rules("cluster"))
    everywhere = _role("Cluster", _CLUSTER_NAME, "", rules("cluster", "watched"))
    watched = _role("", _NAME, _WATCHED_NAMESPACE, rules("watched"))
    cordon = _role("Cluster", f"{_CLUSTER_NAME}-cordon", "", rules("cordon"))
    own = _role("", f"{_NAME}-leader-election", _OWN_NAMESPACE, rules("own"))
    return (
        "{{- if .Values.rbac.create }}\n"
        "{{- if .Values.watchNamespaces }}\n"
        f"{_join(cluster)}"
        "{{- range $namespace := .Values.watchNamespaces }}\n"
        f"---\n{_join(watched)}"
        "{{- end }}\n"
        "{{- else }}\n"
        f"{_join(everywhere)}"
        "{{- end }}\n"
        "{{- if .Values.cordonKubernetesNodes }}\n"
        f"---\n{_join(cordon)}"
        "{{- end }}\n"
        f"---\n{_join(own)}"
        "{{- end }}\n"
    )


def _role(scope: str, name: str, namespace: str, content: list[dict[str, Any]]) -> tuple[str, str]:
    """A (Cluster)Role and its binding."""
    body = yaml.safe_dump({"rules": content}, sort_keys=False, default_flow_style=False)
    return (
        _HEAD.format(kind=f"{scope}Role", name=name, namespace=namespace) + body,
        _HEAD.format(kind=f"{scope}RoleBinding", name=name, namespace=namespace)
        + _BINDING.format(role=f"{scope}Role", name=name),
    )


def _join(documents: Iterable[str]) -> str:
    return "---\n".join(documents)
