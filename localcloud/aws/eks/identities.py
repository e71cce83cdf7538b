"""EKS Pod Identity associations: recorded and checked; pods get no credentials from them here."""

from __future__ import annotations

import secrets
from typing import Any

from localcloud.aws.eks.core import Eks, arn, in_use, invalid, not_found, now, only, tags_of
from localcloud.aws.eks.store import Document, public

SERVICE = "pods.eks.amazonaws.com"
FIELDS = ("namespace", "serviceAccount", "roleArn", "tags", "disableSessionTags", "targetRoleArn")


def _role(eks: Eks, role_arn: str) -> str:
    role = eks.lookup.role(role_arn)
    if role is None:
        raise invalid(f"Role provided in the request does not exist: {role_arn}")
    if not (role.trusts(SERVICE) and role.trusts(SERVICE, "sts:TagSession")):
        raise invalid(
            f"Trust policy of the role {role_arn} is invalid: "
            f"it must allow {SERVICE} to do sts:AssumeRole and sts:TagSession"
        )
    return role_arn


def create(eks: Eks, cluster: str, body: dict[str, Any], owner: str = "") -> Document:
    """owner: ARN of the add-on that the association belongs to, if any."""
    only(body, FIELDS, "CreatePodIdentityAssociation")
    eks.cluster(cluster)
    namespace, account = body.get("namespace", ""), body.get("serviceAccount", "")
    if not namespace or not account:
        raise invalid("namespace and serviceAccount are required")
    role = _role(eks, body.get("roleArn", ""))
    if body.get("targetRoleArn") and not body["targetRoleArn"].startswith("arn:aws:iam::"):
        raise invalid(f"targetRoleArn {body['targetRoleArn']!r} is no ARN of a role")
    with eks.store.lock:
        for other in eks.store.all("pod_identities", cluster):
            if (other["namespace"], other["serviceAccount"]) == (namespace, account):
                raise in_use(f"Association already exists: {other['associationId']}", clusterName=cluster)
        identifier = f"a-{secrets.token_hex(9)[:17]}"
        association: Document = {
            "clusterName": cluster, "namespace": namespace, "serviceAccount": account, "roleArn": role,
            "associationArn": arn(f"podidentityassociation/{cluster}/{identifier}"), "associationId": identifier,
            "tags": tags_of(body), "createdAt": now(), "modifiedAt": now(),
            "disableSessionTags": bool(body.get("disableSessionTags")),
        }  # fmt: skip
        if body.get("targetRoleArn"):
            association |= {"targetRoleArn": body["targetRoleArn"], "externalId": secrets.token_hex(16)}
        if owner:
            association["ownerArn"] = owner
        eks.store.put("pod_identities", f"{cluster}/{identifier}", association)
    return {"association": public(association)}


def get(eks: Eks, cluster: str, identifier: str) -> Document:
    eks.cluster(cluster)
    found = eks.store.get("pod_identities", f"{cluster}/{identifier}")
    if found is None:
        raise not_found(f"No pod identity association found for ID: {identifier}", clusterName=cluster)
    return found


def list_all(eks: Eks, cluster: str, query: dict[str, str]) -> Document:
    eks.cluster(cluster)
    names = ("clusterName", "namespace", "serviceAccount", "associationArn", "associationId", "ownerArn")
    wanted = {key: query[key] for key in ("namespace", "serviceAccount") if key in query}
    found = [a for a in eks.store.all("pod_identities", cluster) if all(a[k] == v for k, v in wanted.items())]
    return {"associations": [{k: a[k] for k in names if k in a} for a in found]}


def update(eks: Eks, cluster: str, identifier: str, body: dict[str, Any]) -> Document:
    only(body, ("roleArn", "disableSessionTags", "targetRoleArn"), "UpdatePodIdentityAssociation")
    association = get(eks, cluster, identifier)
    change: dict[str, Any] = {"modifiedAt": now()}
    if body.get("roleArn"):
        change["roleArn"] = _role(eks, body["roleArn"])
    for name in ("disableSessionTags", "targetRoleArn"):
        if body.get(name) is not None:
            change[name] = body[name]
    changed = eks.store.patch("pod_identities", f"{cluster}/{identifier}", **change) or association
    return {"association": public(changed)}


def delete(eks: Eks, cluster: str, identifier: str, by_addon: bool = False) -> Document:
    association = get(eks, cluster, identifier)
    if association.get("ownerArn") and not by_addon:
        raise invalid(f"The association belongs to the add-on {association['ownerArn']} and is changed through it")
    eks.store.remove("pod_identities", f"{cluster}/{identifier}")
    return {"association": public(association)}
