"""What the operator reads and writes in Kubernetes: one descriptor per kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

Object = dict[str, Any]
"""A Kubernetes object as the API server sends it: apiVersion, kind, metadata, …"""


class Key(NamedTuple):
    """Name of an object within its kind. Objects of the whole cluster have the namespace ""."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind of the API: `plural` is its name in URLs and in RBAC rules."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str = "", subresource: str = "") -> str:
        """URL path. `namespace` None or "" addresses all namespaces (lists and watches only)."""
        parts = ["", "apis", self.group, self.version] if self.group else ["", "api", self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        elif self.namespaced and name:
            raise ValueError(f"{self.kind} {name}: a namespace is needed to address one object")
        parts.append(self.plural)
        if name:
            parts.append(name)
        if subresource:
            parts.append(subresource)
        return "/".join(parts)

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


PODS = Resource("", "v1", "pods", "Pod")
SERVICES = Resource("", "v1", "services", "Service")
CONFIGMAPS = Resource("", "v1", "configmaps", "ConfigMap")
SECRETS = Resource("", "v1", "secrets", "Secret")
SERVICEACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
PVCS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
STATEFULSETS = Resource("apps", "v1", "statefulsets", "StatefulSet")
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
CONTROLLERREVISIONS = Resource("apps", "v1", "controllerrevisions", "ControllerRevision")
PDBS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
EVENTS = Resource("events.k8s.io", "v1", "events", "Event")
SERVICEMONITORS = Resource("monitoring.coreos.com", "v1", "servicemonitors", "ServiceMonitor")

SLINKY_GROUP = "slinky.slurm.net"
CONTROLLERS = Resource(SLINKY_GROUP, "v1beta1", "controllers", "Controller")
NODESETS = Resource(SLINKY_GROUP, "v1beta1", "nodesets", "NodeSet")
LOGINSETS = Resource(SLINKY_GROUP, "v1beta1", "loginsets", "LoginSet")
ACCOUNTINGS = Resource(SLINKY_GROUP, "v1beta1", "accountings", "Accounting")
RESTAPIS = Resource(SLINKY_GROUP, "v1beta1", "restapis", "RestApi")
TOKENS = Resource(SLINKY_GROUP, "v1beta1", "tokens", "Token")

DRAINPOLICIES = Resource("slipway.dev", "v1alpha1", "drainpolicies", "DrainPolicy")

ALL = (
    PODS, SERVICES, CONFIGMAPS, SECRETS, SERVICEACCOUNTS, NODES, PVCS, STATEFULSETS, DEPLOYMENTS, CONTROLLERREVISIONS,
    PDBS, LEASES, EVENTS, SERVICEMONITORS, CONTROLLERS, NODESETS, LOGINSETS, ACCOUNTINGS, RESTAPIS, TOKENS,
    DRAINPOLICIES,
)  # fmt: skip

_BY_KIND = {(resource.api_version, resource.kind): resource for resource in ALL}


def resource_for(api_version: str, kind: str) -> Resource:
    """Descriptor of a kind. Raises KeyError naming it when the operator has no business with it."""
    try:
        return _BY_KIND[api_version, kind]
    except KeyError:
        raise KeyError(f"{kind} of {api_version} is not in the operator's table of resources") from None


def resource_of(obj: Object) -> Resource:
    """Descriptor of an object that carries apiVersion and kind."""
    return resource_for(obj.get("apiVersion", ""), obj.get("kind", ""))
