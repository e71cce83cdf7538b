"""EKS access entries and access policies: who a caller of AWS is in the cluster, and what that allows.

EKS authorizes access policies itself; here each becomes a ClusterRoleBinding (or RoleBindings, for namespaces) of the
group `eks-access-entry:<principal ARN>`, which authentication gives to the principal.
"""

from __future__ import annotations

import fnmatch
import hashlib
import logging
import re
import uuid
from typing import Any
from urllib.parse import quote

from localcloud.aws.eks.core import Eks, arn, in_use, invalid, invalid_request, not_found, now, one_of, only, tags_of
from localcloud.aws.eks.store import Document, public
from localcloud.aws.kube import Kube, Object, connect

log = logging.getLogger(__name__)

POLICY_PREFIX = "arn:aws:eks::aws:cluster-access-policy/"
ROLES = {
    "AmazonEKSClusterAdminPolicy": "cluster-admin",
    "AmazonEKSAdminPolicy": "admin",
    "AmazonEKSEditPolicy": "edit",
    "AmazonEKSViewPolicy": "view",
    "AmazonEKSAdminViewPolicy": "eks:admin-view",
}
TYPES = ("STANDARD", "EC2_LINUX", "EC2_WINDOWS", "FARGATE_LINUX", "EC2", "HYBRID_LINUX")
RESERVED = ("system:", "eks:", "aws:", "amazon:", "iam:")
RBAC = "/apis/rbac.authorization.k8s.io/v1"
OURS = {"app.kubernetes.io/managed-by": "slipway-eks-access"}
_SELECTOR = ",".join(f"{key}={value}" for key, value in OURS.items())
ADMIN_VIEW = {
    "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
    "metadata": {"name": "eks:admin-view", "labels": OURS},
    "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch"]}],
}  # fmt: skip


def group_of(principal: str) -> str:
    """The Kubernetes group that carries a principal's access policies."""
    return f"eks-access-entry:{principal}"


def _cluster(eks: Eks, name: str) -> Document:
    cluster = eks.cluster(name)
    if cluster["accessConfig"]["authenticationMode"] == "CONFIG_MAP":
        raise invalid_request(
            "The cluster's authentication mode must be set to one of [API, API_AND_CONFIG_MAP] to perform this "
            "operation."
        )
    return cluster


def _entry(eks: Eks, cluster: str, principal: str) -> Document:
    _cluster(eks, cluster)
    found = eks.store.get("entries", f"{cluster}/{principal}")
    if found is None:
        raise not_found(
            f"The specified principalArn could not be found: {principal}. You can view your available access entries "
            "with 'list-access-entries'."
        )
    return found


def _new(eks: Eks, cluster: str, principal: str, kind: str, groups: list[str], username: str) -> Document:
    _, _, _, _, account, resource = principal.split(":", 5)
    place = f"{resource.split('/')[0]}/{account}/{resource.split('/')[-1]}"
    entry: Document = {
        "clusterName": cluster, "principalArn": principal, "kubernetesGroups": groups, "type": kind, "tags": {},
        "accessEntryArn": arn(f"access-entry/{cluster}/{place}/{uuid.uuid4()}"),
        "username": username, "createdAt": now(), "modifiedAt": now(), "_policies": [], "_of_nodes": False,
    }  # fmt: skip
    eks.store.put("entries", f"{cluster}/{principal}", entry)
    return entry


def _username(principal: str, kind: str, given: str) -> str:
    if kind != "STANDARD":
        return "system:node:{{EC2PrivateDNSName}}"
    if given:
        if given.startswith(RESERVED):
            raise invalid(f"The username is not valid: it cannot start with {', '.join(RESERVED)}")
        return given
    if ":role/" in principal:
        account, name = principal.split(":")[4], principal.rsplit("/", 1)[1]
        return f"arn:aws:sts::{account}:assumed-role/{name}/{{{{SessionName}}}}"
    return principal


def _groups(given: list[str], kind: str) -> list[str]:
    if kind != "STANDARD":
        if given:
            raise invalid(f"You cannot specify kubernetesGroups with type {kind}")
        return ["system:nodes"]
    for group in given:
        if group.startswith(RESERVED):
            raise invalid(f"The kubernetes group name {group} is invalid, it cannot start with {', '.join(RESERVED)}")
    return list(given)


def create(eks: Eks, cluster: str, body: dict[str, Any]) -> Document:
    only(body, ("principalArn", "kubernetesGroups", "tags", "username", "type"), "CreateAccessEntry")
    _cluster(eks, cluster)
    principal = body.get("principalArn", "")
    if not re.fullmatch(r"arn:aws:iam::\d{12}:(role|user)/.+", principal) or not eks.lookup.principal_exists(principal):
        raise invalid("The specified principalArn is invalid: invalid principal.")
    kind = one_of(body.get("type") or "STANDARD", TYPES, "type")
    groups, username = (
        _groups(body.get("kubernetesGroups") or [], kind),
        _username(principal, kind, body.get("username") or ""),
    )
    with eks.store.lock:
        if eks.store.get("entries", f"{cluster}/{principal}"):
            raise in_use("The specified access entry resource is already in use on this cluster.")
        entry = _new(eks, cluster, principal, kind, groups, username)
        entry = eks.store.patch("entries", f"{cluster}/{principal}", tags=tags_of(body)) or entry
    return {"accessEntry": public(entry)}


def describe(eks: Eks, cluster: str, principal: str) -> Document:
    return {"accessEntry": public(_entry(eks, cluster, principal))}


def list_all(eks: Eks, cluster: str) -> Document:
    _cluster(eks, cluster)
    return {"accessEntries": [entry["principalArn"] for entry in eks.store.all("entries", cluster)]}


def update(eks: Eks, cluster: str, principal: str, body: dict[str, Any]) -> Document:
    only(body, ("kubernetesGroups", "username"), "UpdateAccessEntry")
    entry = _entry(eks, cluster, principal)
    if entry["type"] != "STANDARD":
        raise invalid_request(f"An access entry of type {entry['type']} cannot be modified")
    change: dict[str, Any] = {"modifiedAt": now()}
    if body.get("kubernetesGroups") is not None:
        change["kubernetesGroups"] = _groups(body["kubernetesGroups"], entry["type"])
    if body.get("username"):
        change["username"] = _username(principal, entry["type"], body["username"])
    return {"accessEntry": public(eks.store.patch("entries", f"{cluster}/{principal}", **change) or entry)}


def delete(eks: Eks, cluster: str, principal: str) -> Document:
    _entry(eks, cluster, principal)
    eks.store.remove("entries", f"{cluster}/{principal}")
    sync(eks, cluster)
    return {}


def associate(eks: Eks, cluster: str, principal: str, body: dict[str, Any]) -> Document:
    only(body, ("policyArn", "accessScope"), "AssociateAccessPolicy")
    entry, policy = _entry(eks, cluster, principal), body.get("policyArn", "")
    if policy.removeprefix(POLICY_PREFIX) not in ROLES:
        raise invalid(
            f"The policyArn parameter is not valid: {policy}. Known: {', '.join(POLICY_PREFIX + n for n in ROLES)}"
        )
    if entry["type"] != "STANDARD":
        raise invalid_request(f"Access policies cannot be associated with an access entry of type {entry['type']}")
    scope = body.get("accessScope") or {}
    kind = one_of(scope.get("type", ""), ("cluster", "namespace"), "accessScope.type")
    if (kind == "namespace") != bool(scope.get("namespaces")):
        raise invalid("accessScope: namespaces must be given with type namespace, and only then")
    before = next((p for p in entry["_policies"] if p["policyArn"] == policy), None)
    association = {
        "policyArn": policy, "accessScope": {"type": kind, "namespaces": list(scope.get("namespaces") or [])},
        "associatedAt": before["associatedAt"] if before else now(), "modifiedAt": now(),
    }  # fmt: skip
    others = [p for p in entry["_policies"] if p["policyArn"] != policy]
    eks.store.patch("entries", f"{cluster}/{principal}", _policies=[*others, association])
    sync(eks, cluster)
    eks.changed.set()  # the agent follows namespaces only while a policy is for some
    return {"clusterName": cluster, "principalArn": principal, "associatedAccessPolicy": association}


def associations(eks: Eks, cluster: str, principal: str) -> Document:
    entry = _entry(eks, cluster, principal)
    return {"clusterName": cluster, "principalArn": principal, "associatedAccessPolicies": entry["_policies"]}


def disassociate(eks: Eks, cluster: str, principal: str, policy: str) -> Document:
    entry = _entry(eks, cluster, principal)
    left = [p for p in entry["_policies"] if p["policyArn"] != policy]
    if len(left) == len(entry["_policies"]):
        raise not_found(f"The policy {policy} is not associated with {principal}")
    eks.store.patch("entries", f"{cluster}/{principal}", _policies=left)
    sync(eks, cluster)
    return {}


def policies() -> Document:
    return {"accessPolicies": [{"name": name, "arn": POLICY_PREFIX + name} for name in ROLES]}


def admit_creator(eks: Eks, cluster: str, principal: str) -> None:
    """bootstrapClusterCreatorAdminPermissions: the creator of the cluster is its administrator."""
    if principal.startswith("arn:aws:sts:"):
        principal = eks.lookup.role_named(principal.split("/")[1]) or principal
    if eks.store.get("entries", f"{cluster}/{principal}") is None:
        _new(eks, cluster, principal, "STANDARD", [], _username(principal, "STANDARD", ""))
        scope = {"type": "cluster", "namespaces": []}
        policy = {"policyArn": POLICY_PREFIX + "AmazonEKSClusterAdminPolicy", "accessScope": scope,
                  "associatedAt": now(), "modifiedAt": now()}  # fmt: skip
        eks.store.patch("entries", f"{cluster}/{principal}", _policies=[policy])


def admit_nodes(eks: Eks, cluster: str, role: str) -> None:
    """The access entry that EKS makes itself for the role of a managed node group."""
    if eks.cluster(cluster)["accessConfig"]["authenticationMode"] == "CONFIG_MAP":
        return
    if eks.store.get("entries", f"{cluster}/{role}") is None:
        _new(eks, cluster, role, "EC2_LINUX", ["system:nodes"], _username(role, "EC2_LINUX", ""))
        eks.store.patch("entries", f"{cluster}/{role}", _of_nodes=True)


def dismiss_nodes(eks: Eks, cluster: str, role: str) -> None:
    """Remove that entry again with the last node group of the role."""
    entry = eks.store.get("entries", f"{cluster}/{role}")
    used = any(group["nodeRole"] == role for group in eks.store.all("nodegroups", cluster))
    if entry is not None and entry["_of_nodes"] and not used:
        eks.store.remove("entries", f"{cluster}/{role}")


def desired_bindings(entries: list[Document], namespaces: list[str]) -> dict[str, Object]:
    """API path -> binding, for all access policies of a cluster with these namespaces."""
    wanted: dict[str, Object] = {}
    for entry in entries:
        subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": group_of(entry["principalArn"])}
        for policy in entry["_policies"]:
            role = ROLES[policy["policyArn"].removeprefix(POLICY_PREFIX)]
            name = "eks-access-" + hashlib.sha256(f"{entry['principalArn']} {role}".encode()).hexdigest()[:16]
            body: Object = {
                "apiVersion": "rbac.authorization.k8s.io/v1", "subjects": [subject],
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            }  # fmt: skip
            if policy["accessScope"]["type"] == "cluster":
                meta = {"name": name, "labels": OURS}
                wanted[f"{RBAC}/clusterrolebindings/{name}"] = {**body, "kind": "ClusterRoleBinding", "metadata": meta}
                continue
            for namespace in namespaces:
                if any(fnmatch.fnmatchcase(namespace, pattern) for pattern in policy["accessScope"]["namespaces"]):
                    meta = {"name": name, "namespace": namespace, "labels": OURS}
                    path = f"{RBAC}/namespaces/{namespace}/rolebindings/{name}"
                    wanted[path] = {**body, "kind": "RoleBinding", "metadata": meta}
    return wanted


def _present(kube: Kube) -> set[str]:
    """API paths of the bindings that are there for access policies."""
    found = set()
    for kind in ("clusterrolebindings", "rolebindings"):
        for binding in kube.items(f"{RBAC}/{kind}", labelSelector=_SELECTOR):
            meta = binding["metadata"]
            place = f"namespaces/{meta['namespace']}/" if "namespace" in meta else ""
            found.add(f"{RBAC}/{place}{kind}/{meta['name']}")
    return found


def clear() -> None:
    """Remove all that access policies made of the cluster. Nothing is done where no API server answers."""
    kube = connect()
    if kube.ready():
        for path in (*_present(kube), f"{RBAC}/clusterroles/{quote('eks:admin-view')}"):
            kube.delete(path)


def sync(eks: Eks, cluster: str, kube: Kube | None = None) -> None:
    """Make the cluster's bindings what the access policies say. Does nothing while there is no API server yet."""
    if (eks.store.get("clusters", cluster) or {}).get("status") not in ("ACTIVE", "UPDATING", "CREATING"):
        return
    kube = kube or connect()
    if not kube.ready():
        return
    entries = eks.store.all("entries", cluster)
    namespaces = [
        n["metadata"]["name"] for n in kube.items("/api/v1/namespaces") if "deletionTimestamp" not in n["metadata"]
    ]
    wanted = desired_bindings(entries, namespaces)
    if any(binding["roleRef"]["name"] == "eks:admin-view" for binding in wanted.values()):
        kube.apply(f"{RBAC}/clusterroles/{quote('eks:admin-view')}", ADMIN_VIEW)
    present = _present(kube)
    for path in present - set(wanted):
        kube.delete(path)
    for path in set(wanted) - present:
        kube.apply(path, wanted[path])


def follows_namespaces(eks: Eks, cluster: str) -> bool:
    """Whether any access policy is for namespaces, so that new namespaces matter."""
    entries = eks.store.all("entries", cluster)
    return any(p["accessScope"]["type"] == "namespace" for entry in entries for p in entry["_policies"])
