"""Which kinds the API server has, under which path: asked once per group and version, asked again on a miss."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from localcloud.kubernetes.provider.client import ApiError, Client

# A CustomResourceDefinition that was made a moment ago takes this long at most to be served (seconds).
MISS_PATIENCE = 5.0

# Kinds of the API groups that Kubernetes 1.36 itself serves and that have no namespace (`kubectl api-resources
# --namespaced=false`); known here so that Check need not ask a cluster that may not exist yet.
_CLUSTER_SCOPED = {
    "": {"Namespace", "Node", "PersistentVolume", "ComponentStatus"},
    "admissionregistration.k8s.io": {
        "MutatingAdmissionPolicy",
        "MutatingAdmissionPolicyBinding",
        "MutatingWebhookConfiguration",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
        "ValidatingWebhookConfiguration",
    },
    "apiextensions.k8s.io": {"CustomResourceDefinition"},
    "apiregistration.k8s.io": {"APIService"},
    "authentication.k8s.io": {"SelfSubjectReview", "TokenReview"},
    "authorization.k8s.io": {"SelfSubjectAccessReview", "SelfSubjectRulesReview", "SubjectAccessReview"},
    "certificates.k8s.io": {"CertificateSigningRequest", "ClusterTrustBundle"},
    "flowcontrol.apiserver.k8s.io": {"FlowSchema", "PriorityLevelConfiguration"},
    "networking.k8s.io": {"IngressClass", "IPAddress", "ServiceCIDR"},
    "node.k8s.io": {"RuntimeClass"},
    "rbac.authorization.k8s.io": {"ClusterRole", "ClusterRoleBinding"},
    "resource.k8s.io": {"DeviceClass", "ResourceSlice", "DeviceTaintRule"},
    "scheduling.k8s.io": {"PriorityClass"},
    "storage.k8s.io": {"CSIDriver", "CSINode", "StorageClass", "VolumeAttachment", "VolumeAttributesClass"},
}
_NAMESPACED_GROUPS = {
    "apps",
    "autoscaling",
    "batch",
    "coordination.k8s.io",
    "discovery.k8s.io",
    "events.k8s.io",
    "policy",
}
BUILT_IN_GROUPS = frozenset(_CLUSTER_SCOPED) | _NAMESPACED_GROUPS


def group_of(api_version: str) -> str:
    """The group of an apiVersion; "" for the core group."""
    return api_version.rpartition("/")[0]


def is_namespaced(api_version: str, kind: str) -> bool | None:
    """Whether a built-in kind lives in a namespace; None for other kinds, which only the cluster knows."""
    group = group_of(api_version)
    if group not in BUILT_IN_GROUPS:
        return None
    return kind not in _CLUSTER_SCOPED.get(group, ())


class NoSuchKind(Exception):
    """The API server does not have this kind."""


@dataclass(frozen=True)
class Resource:
    """One kind as the API server serves it."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool

    def path(self, namespace: str | None, name: str | None = None) -> str:
        """The URL path of the collection or of one object; `namespace` is left out for cluster-scoped kinds."""
        base = f"/apis/{self.api_version}" if "/" in self.api_version else f"/api/{self.api_version}"
        if self.namespaced and namespace:
            base += f"/namespaces/{namespace}"
        return f"{base}/{self.plural}" + (f"/{name}" if name else "")


class Discovery:
    """The kinds of one API server, cached for the length of this process."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._known: dict[str, dict[str, Resource]] = {}

    def find(self, api_version: str, kind: str, patience: float = 0.0, patient: bool = True) -> Resource:
        """The resource of this kind. Raises NoSuchKind, after asking again for `patience` seconds."""
        with self._lock:
            found = self._known.get(api_version, {}).get(kind)
        if found:
            return found
        deadline = time.monotonic() + patience
        while True:
            kinds = self._ask(api_version, patient)
            if kind in kinds:
                return kinds[kind]
            if time.monotonic() >= deadline:
                break
            time.sleep(0.3)
        raise NoSuchKind(
            f"the API server has no kind {kind} in {api_version}"
            + (f" (it has {', '.join(sorted(kinds))})" if kinds else "")
            + ". If a CustomResourceDefinition makes it, this resource must depend on what installs that."
        )

    def forget(self, api_version: str | None = None) -> None:
        """Ask again next time: a CustomResourceDefinition or an APIService was made, changed or removed."""
        with self._lock:
            if api_version is None:
                self._known.clear()
            else:
                self._known.pop(api_version, None)

    def _ask(self, api_version: str, patient: bool) -> dict[str, Resource]:
        base = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
        try:
            answer = self._client.get(base, patient=patient)
        except ApiError as error:
            if error.status != 404:
                raise
            answer = {}
        kinds = {
            item["kind"]: Resource(api_version, item["kind"], item["name"], item["namespaced"])
            for item in answer.get("resources", [])
            if "/" not in item["name"]  # a subresource
        }
        with self._lock:
            self._known[api_version] = kinds
        return kinds
