"""CoreDNS, as the EKS add-on of that name installs it."""

from __future__ import annotations

from typing import Any

from localcloud.kubernetes import cluster
from localcloud.kubernetes.api import Api
from localcloud.kubernetes.errors import ClusterError
from localcloud.kubernetes.template import coredns_image
from localcloud.paths import Instance, instance

# No name outside the cluster resolves, since nothing outside can be reached: an answer at once, instead of a
# failure after which a resolver tries again for seconds. Short times to live, so that a new pod's name is seen soon.
COREFILE = """.:53 {
    errors
    health
    ready
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        pods insecure
        ttl 2
    }
    template ANY ANY . {
        rcode NXDOMAIN
    }
    cache 2 {
        denial 100 1
    }
    loadbalance
}
"""

_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_SYSTEM = "/api/v1/namespaces/kube-system"


def coredns_objects(inst: Instance, replicas: int = 1) -> list[tuple[str, dict[str, Any]]]:
    """API path and object of all that CoreDNS consists of."""
    labels = {"k8s-app": "kube-dns", "eks.amazonaws.com/component": "coredns"}
    selector = {"k8s-app": "kube-dns"}
    meta = {"name": "coredns", "namespace": "kube-system"}
    role = {"name": "system:coredns"}
    watch = [
        {"apiGroups": [""], "resources": ["endpoints", "services", "pods", "namespaces"], "verbs": ["list", "watch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
    ]
    ports = [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP"}]
    subjects = [{"kind": "ServiceAccount", "name": "coredns", "namespace": "kube-system"}]
    return [
        (
            f"{_SYSTEM}/serviceaccounts/coredns",
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta},
        ),
        (
            f"{_RBAC}/clusterroles/system:coredns",
            {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": role, "rules": watch},
        ),
        (
            f"{_RBAC}/clusterrolebindings/system:coredns",
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRoleBinding",
                "metadata": role,
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:coredns"},
                "subjects": subjects,
            },
        ),
        (
            f"{_SYSTEM}/configmaps/coredns",
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"Corefile": COREFILE}},
        ),
        (
            f"{_SYSTEM}/services/kube-dns",
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": "kube-dns", "namespace": "kube-system", "labels": labels},
                "spec": {"clusterIP": str(inst.dns_ip), "selector": selector, "ports": ports},
            },
        ),
        (
            f"/apis/apps/v1/namespaces/kube-system/deployments/{meta['name']}",
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": meta | {"labels": labels},
                "spec": {
                    "replicas": replicas,
                    "selector": {"matchLabels": selector},
                    "template": {"metadata": {"labels": labels}, "spec": _pod(inst)},
                },
            },
        ),
    ]


def _pod(inst: Instance) -> dict[str, Any]:
    container = {
        "name": "coredns",
        "image": coredns_image(),
        "imagePullPolicy": "IfNotPresent",
        "args": ["-conf", "/etc/coredns/Corefile"],
        # Straight to the API server, so that DNS does not wait for kube-proxy.
        "env": [
            {"name": "KUBERNETES_SERVICE_HOST", "value": str(inst.host_ip)},
            {"name": "KUBERNETES_SERVICE_PORT", "value": "6443"},
        ],
        "ports": [
            {"name": "dns", "containerPort": 53, "protocol": "UDP"},
            {"name": "dns-tcp", "containerPort": 53, "protocol": "TCP"},
        ],
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "170Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8181}, "periodSeconds": 1},
        "livenessProbe": {"httpGet": {"path": "/health", "port": 8080}, "initialDelaySeconds": 30},
        "volumeMounts": [{"name": "config", "mountPath": "/etc/coredns", "readOnly": True}],
    }
    return {
        "serviceAccountName": "coredns",
        "priorityClassName": "system-cluster-critical",
        "dnsPolicy": "Default",
        "terminationGracePeriodSeconds": 1,
        # On any node, whatever its taints: local node groups are small, and without DNS nothing starts.
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
        "volumes": [{"name": "config", "configMap": {"name": "coredns"}}],
    }


def apply_coredns(inst: Instance | None = None, client: Api | None = None, replicas: int = 1) -> None:
    """Make CoreDNS what it should be; nothing changes if it is. It becomes ready once there is a node.

    An existing cluster keeps the DNS it has. Raises ClusterError if it has none.
    """
    inst = inst or instance()
    client = client or cluster.api(inst)
    if cluster.external_kubeconfig(inst):
        if client.get("/apis/apps/v1/namespaces/kube-system/deployments/coredns") is None:
            raise ClusterError("the existing cluster has no deployment kube-system/coredns, and pods need its names")
        return
    for path, obj in coredns_objects(inst, replicas):
        client.apply(path, obj)


def remove_coredns(inst: Instance | None = None, client: Api | None = None) -> None:
    """Remove what apply_coredns() makes; no error if it is not there. An existing cluster keeps its own."""
    inst = inst or instance()
    if cluster.external_kubeconfig(inst):
        return
    client = client or cluster.api(inst)
    for path, _ in reversed(coredns_objects(inst)):
        client.delete(path)
