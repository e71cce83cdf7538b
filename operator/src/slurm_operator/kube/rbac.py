"""What the operator may do, in one table. The chart's roles are generated from it, and tests hold the client to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import yaml

from slurm_operator.kube.resources import (
    ACCOUNTINGS,
    CONFIGMAPS,
    CONTROLLERREVISIONS,
    CONTROLLERS,
    DEPLOYMENTS,
    DRAINPOLICIES,
    EVENTS,
    LEASES,
    LOGINSETS,
    NODES,
    NODESETS,
    PDBS,
    PODS,
    PVCS,
    RESTAPIS,
    SECRETS,
    SERVICEMONITORS,
    SERVICES,
    STATEFULSETS,
    TOKENS,
    Resource,
)

Scope = Literal["cluster", "watched", "own", "cordon"]
"""Where a rule holds: the whole cluster, the watched namespaces (all of them by default), the operator's own; "cordon":
the whole cluster, if the chart's value `cordonKubernetesNodes` is on."""


@dataclass(frozen=True)
class Rule:
    """Verbs on a resource (or one of its subresources) and where they are needed; `why` is for the reader."""

    resource: Resource
    verbs: tuple[str, ...]
    why: str
    scope: Scope = "watched"
    subresource: str = ""


_READ = ("get", "list", "watch")
_MAKE = (*_READ, "create", "patch")  # garbage collection removes what has an owner
_KINDS = (CONTROLLERS, NODESETS, LOGINSETS, ACCOUNTINGS, RESTAPIS, TOKENS)

RULES: tuple[Rule, ...] = (
    *(Rule(kind, (*_READ, "patch"), "the resources to reconcile; patch for finalizers") for kind in _KINDS),
    *(Rule(kind, ("patch",), "status by server-side apply", subresource="status") for kind in _KINDS),
    *(Rule(kind, ("update",), "owner references that block deletion", subresource="finalizers") for kind in _KINDS),
    Rule(DRAINPOLICIES, _READ, "what becomes of the jobs of workers that leave"),
    Rule(DRAINPOLICIES, ("patch",), "status by server-side apply", subresource="status"),
    Rule(PODS, (*_MAKE, "delete"), "worker pods, and those that check a configuration"),
    Rule(PODS, ("patch",), "own conditions", subresource="status"),
    Rule(PODS, ("get",), "why slurmdbd cannot use its database: it tells nobody else", subresource="log"),
    Rule(PODS, ("create",), "deletion that honours disruption budgets", subresource="eviction"),
    Rule(PVCS, (*_MAKE, "delete"), "claims of workers; deleted when whenScaled says so"),
    Rule(CONTROLLERREVISIONS, (*_MAKE, "delete"), "revision history of NodeSets"),
    Rule(SERVICES, _MAKE, "addresses of the daemons"),
    Rule(CONFIGMAPS, _MAKE, "slurm.conf and friends"),
    Rule(SECRETS, ("get", "create", "patch"), "keys of a cluster, host keys, tokens; never listed"),
    Rule(STATEFULSETS, _MAKE, "slurmctld and slurmdbd"),
    Rule(DEPLOYMENTS, _MAKE, "slurmrestd and login pods"),
    Rule(PDBS, _MAKE, "busy workers are not evicted"),
    Rule(SERVICEMONITORS, ("get", "create", "patch", "delete"), "Prometheus scrapes slurmctld, where it is installed"),
    Rule(EVENTS, ("create", "patch"), "what happened, for `kubectl describe`"),
    Rule(NODES, _READ, "cordons, topology and features of the machines", scope="cluster"),
    Rule(NODES, ("patch",), "cordons for policies with cordonKubernetesNode", scope="cordon"),
    Rule(DEPLOYMENTS, ("get", "patch"), "the command `release` stops the operator first", scope="own"),
    Rule(LEASES, ("get", "create", "update"), "leader election", scope="own"),
)


def allows(verb: str, resource: Resource, subresource: str = "", *, cluster_wide: bool = False) -> bool:
    """True if the table holds the call. `cluster_wide` calls on namespaced kinds need scope "cluster" or "watched"."""
    return any(
        rule.resource == resource
        and rule.subresource == subresource
        and verb in rule.verbs
        and not (cluster_wide and rule.scope == "own")
        for rule in RULES
    )


def rules(*scopes: Scope) -> list[dict[str, Any]]:
    """`rules` of a (Cluster)Role for these scopes; rules of one group with the same verbs are merged."""
    merged: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for rule in RULES:
        if rule.scope in scopes:
            plural = f"{rule.resource.plural}/{rule.subresource}" if rule.subresource else rule.resource.plural
            merged.setdefault((rule.resource.group, rule.verbs), []).append(plural)
    return [
        {"apiGroups": [group], "resources": sorted(names), "verbs": list(verbs)}
        for (group, verbs), names in sorted(merged.items())
    ]


def render(name: str = "slurm-operator", namespaces: Sequence[str] = (), own_namespace: str = "slurm-operator") -> str:
    """Roles as YAML documents: everything in a ClusterRole, or with `namespaces` a Role in each of them.

    Bindings are left to the chart, which knows the service account.
    """

    def role(kind: str, title: str, namespace: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        meta = {"name": title, "namespace": namespace} if namespace else {"name": title}
        return {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": meta, "rules": content}

    if namespaces:
        documents = [role("ClusterRole", name, "", rules("cluster"))]
        documents += [role("Role", name, namespace, rules("watched")) for namespace in namespaces]
    else:
        documents = [role("ClusterRole", name, "", rules("cluster", "watched"))]
    documents.append(role("Role", f"{name}-leader-election", own_namespace, rules("own")))
    return yaml.safe_dump_all(documents, sort_keys=False)
