"""EKS add-ons.

coredns runs as pods; aws-ebs-csi-driver is the volume provisioner of localcloud.aws.ebs. The others are recorded
only, and DescribeAddon says so in `publisher`: the work of vpc-cni and kube-proxy is done by the local nodes
themselves, eks-pod-identity-agent gives no credentials, eks-node-monitoring-agent and metrics-server watch nothing.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import yaml

from localcloud.aws.eks import identities
from localcloud.aws.eks.core import (
    Eks,
    arn,
    finish_update,
    in_use,
    invalid,
    not_found,
    now,
    one_of,
    only,
    tags_of,
    update_of,
)
from localcloud.aws.eks.store import Document, public
from localcloud.aws.kube import connect
from localcloud.kubernetes import addons as local_addons

log = logging.getLogger(__name__)

COREDNS_SECONDS = 120
"""How long CoreDNS may take until the add-on is DEGRADED; on a cluster without nodes it becomes that in EKS too."""


def _nothing(config: dict[str, Any]) -> None:
    """For add-ons that are recorded only."""


def _coredns(config: dict[str, Any]) -> None:
    local_addons.apply_coredns(replicas=int(config.get("replicaCount", 1)))
    end = time.monotonic() + COREDNS_SECONDS
    path = "/apis/apps/v1/namespaces/kube-system/deployments/coredns"
    while True:
        status = (connect().get(path) or {}).get("status", {})
        if status.get("availableReplicas", 0) >= 1:
            return
        if time.monotonic() > end:
            raise InsufficientReplicas("The add-on is unhealthy because none of its replicas runs: are there nodes?")
        time.sleep(0.2)


class InsufficientReplicas(Exception):
    """The add-on is there, its pods are not."""


@dataclass(frozen=True)
class Known:
    """An add-on that the stand-in knows. versions: newest first. namespace: where its service account lives."""

    versions: tuple[str, ...]
    install: Callable[[dict[str, Any]], None]
    remove: Callable[[], None]
    note: str
    namespace: str = "kube-system"


def _keep() -> None:
    """For add-ons of which nothing is in the cluster."""


RECORDED = "stand-in: recorded only, nothing runs for it"
# Versions that running clusters of September 2026 report (describe-addon-versions); others are refused as unknown.
ADDONS = {
    "coredns": Known(("v1.14.3-eksbuild.23", "v1.13.2-eksbuild.21"), _coredns, local_addons.remove_coredns,
                     "stand-in: CoreDNS runs as pods of the local cluster"),
    "aws-ebs-csi-driver": Known(("v1.66.0-eksbuild.1",), _nothing, _keep,
                                "stand-in: volumes are directories of this machine, without size limit or encryption"),
    "vpc-cni": Known(("v1.22.4-eksbuild.3",), _nothing, _keep,
                     "stand-in: recorded only, local nodes have their own pod network; no NetworkPolicy"),
    "kube-proxy": Known(("v1.36.0-eksbuild.25", "v1.35.3-eksbuild.21"), _nothing, _keep,
                        "stand-in: recorded only, local nodes run kube-proxy themselves"),
    "eks-pod-identity-agent": Known(("v1.3.10-eksbuild.3",), _nothing, _keep, RECORDED),
    "eks-node-monitoring-agent": Known(("v1.4.2-eksbuild.1", "v1.4.1-eksbuild.1"), _nothing, _keep, RECORDED),
    "metrics-server": Known(("v0.8.0-eksbuild.5", "v0.8.0-eksbuild.3"), _nothing, _keep, RECORDED),
}  # fmt: skip
CREATE_FIELDS = (
    "addonName", "addonVersion", "serviceAccountRoleArn", "resolveConflicts", "tags", "configurationValues",
    "podIdentityAssociations",
)  # fmt: skip
CONFLICTS = ("OVERWRITE", "NONE", "PRESERVE")


def _known(name: str) -> Known:
    if name not in ADDONS:
        raise invalid(
            f"Addon {name} specified is not supported by the stand-in; it knows: {', '.join(ADDONS)}", addonName=name
        )
    return ADDONS[name]


def _config(text: str) -> dict[str, Any]:
    try:
        value = yaml.safe_load(text or "{}")
    except yaml.YAMLError as error:
        raise invalid(f"ConfigurationValue provided in request is not supported: {error}") from None
    if not isinstance(value, dict):
        raise invalid(f"ConfigurationValue provided in request is not supported: an object is expected, not {text!r}")
    return value


def _version(known: Known, name: str, version: str) -> str:
    if version and version not in known.versions:
        raise invalid(
            f"Addon version specified is not supported: {name} {version}; supported: {', '.join(known.versions)}",
            addonName=name,
        )
    return version or known.versions[0]


def create(eks: Eks, cluster: str, body: dict[str, Any]) -> Document:
    only(body, CREATE_FIELDS, "CreateAddon")
    name = body.get("addonName", "")
    eks.active_cluster(cluster)
    known = _known(name)
    if eks.store.get("addons", f"{cluster}/{name}"):
        raise in_use("Addon already exists.", clusterName=cluster, addonName=name)
    one_of(body.get("resolveConflicts") or "NONE", CONFLICTS, "resolveConflicts")
    _config(body.get("configurationValues") or "")
    addon: Document = {
        "addonName": name, "clusterName": cluster, "status": "CREATING",
        "addonVersion": _version(known, name, body.get("addonVersion") or ""), "health": {"issues": []},
        "addonArn": arn(f"addon/{cluster}/{name}/{uuid.uuid4()}"), "createdAt": now(), "modifiedAt": now(),
        "tags": tags_of(body), "publisher": known.note, "owner": "slipway", "podIdentityAssociations": [],
    }  # fmt: skip
    if body.get("configurationValues"):
        addon["configurationValues"] = body["configurationValues"]
    if body.get("serviceAccountRoleArn"):
        if eks.lookup.role(body["serviceAccountRoleArn"]) is None:
            raise invalid(f"Role {body['serviceAccountRoleArn']} does not exist")
        addon["serviceAccountRoleArn"] = body["serviceAccountRoleArn"]
    addon["podIdentityAssociations"] = _associate(eks, addon, body.get("podIdentityAssociations") or [])
    eks.store.put("addons", f"{cluster}/{name}", addon)
    eks.run(f"addon {cluster}/{name}", lambda: install(eks, cluster, name))
    return {"addon": public(addon)}


def _associate(eks: Eks, addon: Document, given: list[dict[str, Any]]) -> list[str]:
    """Make the add-on's pod identity associations the given ones; returns their ARNs."""
    cluster, namespace = addon["clusterName"], ADDONS[addon["addonName"]].namespace
    for association in eks.store.all("pod_identities", cluster):
        if association.get("ownerArn") == addon["addonArn"]:
            identities.delete(eks, cluster, association["associationId"], by_addon=True)
    made = []
    for item in given:
        only(item, ("serviceAccount", "roleArn"), "podIdentityAssociations")
        body = {**item, "namespace": namespace}
        made.append(identities.create(eks, cluster, body, owner=addon["addonArn"])["association"]["associationArn"])
    return made


def install(eks: Eks, cluster: str, name: str, update_id: str = "") -> None:
    """Do what the add-on does; ends ACTIVE, DEGRADED or CREATE_FAILED with the reason in health.issues."""
    key = f"{cluster}/{name}"
    addon = eks.store.get("addons", key)
    if addon is None:
        return
    status = "ACTIVE"
    issues: list[dict[str, Any]] = []
    try:
        ADDONS[name].install(_config(addon.get("configurationValues") or ""))
    except InsufficientReplicas as error:
        status = "DEGRADED"
        issues = [{"code": "InsufficientNumberOfReplicas", "message": str(error), "resourceIds": []}]
    except Exception as error:
        log.exception("add-on %s", key)
        status = "UPDATE_FAILED" if update_id else "CREATE_FAILED"
        issues = [{"code": "InternalFailure", "message": str(error), "resourceIds": []}]
    eks.store.patch("addons", key, status=status, health={"issues": issues})
    if update_id:
        finish_update(eks, cluster, update_id, issues[0]["message"] if issues else "")
    eks.changed.set()


def get(eks: Eks, cluster: str, name: str) -> Document:
    eks.cluster(cluster)
    found = eks.store.get("addons", f"{cluster}/{name}")
    if found is None:
        raise not_found(f"No addon: {name} found in cluster: {cluster}", clusterName=cluster, addonName=name)
    return found


def list_all(eks: Eks, cluster: str) -> Document:
    eks.cluster(cluster)
    return {"addons": [addon["addonName"] for addon in eks.store.all("addons", cluster)]}


def update(eks: Eks, cluster: str, name: str, body: dict[str, Any]) -> Document:
    only(body, CREATE_FIELDS, "UpdateAddon")
    addon, key = get(eks, cluster, name), f"{cluster}/{name}"
    if addon["status"] in ("CREATING", "UPDATING", "DELETING"):
        raise in_use(f"Addon is {addon['status']} and cannot be updated now", clusterName=cluster, addonName=name)
    one_of(body.get("resolveConflicts") or "NONE", CONFLICTS, "resolveConflicts")
    change: dict[str, Any] = {}
    if body.get("addonVersion"):
        change["addonVersion"] = _version(_known(name), name, body["addonVersion"])
    if body.get("configurationValues") is not None:
        _config(body["configurationValues"])
        change["configurationValues"] = body["configurationValues"]
    if body.get("serviceAccountRoleArn"):
        change["serviceAccountRoleArn"] = body["serviceAccountRoleArn"]
    if body.get("podIdentityAssociations") is not None:
        change["podIdentityAssociations"] = _associate(eks, addon, body["podIdentityAssociations"])
    record = update_of(eks, cluster, "AddonUpdate", {k: json.dumps(v) for k, v in change.items()}, addon=name)
    eks.wait_for(f"addon {key}")
    eks.store.patch("addons", key, **change, status="UPDATING", modifiedAt=now())
    eks.run(f"addon {key}", lambda: install(eks, cluster, name, record["id"]))
    return {"update": public(record)}


def delete(eks: Eks, cluster: str, name: str, preserve: bool) -> Document:
    addon, key = get(eks, cluster, name), f"{cluster}/{name}"
    if addon["status"] in ("CREATING", "UPDATING"):
        raise in_use(f"Addon is {addon['status']} and cannot be deleted now", clusterName=cluster, addonName=name)
    document = eks.store.patch("addons", key, status="DELETING", _preserve=preserve) or addon
    if addon["status"] != "DELETING":
        eks.run(f"addon {key}", lambda: remove(eks, cluster, name))
    return {"addon": public(document)}


def remove(eks: Eks, cluster: str, name: str) -> None:
    """Take the add-on out of the cluster (unless it is to be preserved) and forget it."""
    key = f"{cluster}/{name}"
    addon = eks.store.get("addons", key)
    if addon is None:
        return
    try:
        if not addon.get("_preserve"):
            ADDONS[name].remove()
    except Exception as error:
        log.exception("deletion of add-on %s", key)
        issue = {"code": "InternalFailure", "message": str(error), "resourceIds": []}
        eks.store.patch("addons", key, status="DELETE_FAILED", health={"issues": [issue]})
        return
    _associate(eks, addon, [])
    eks.store.remove("addons", key)
    eks.changed.set()


def versions(query: dict[str, str]) -> Document:
    """DescribeAddonVersions; every version is said to fit the Kubernetes version asked for."""
    wanted, kubernetes = query.get("addonName"), query.get("kubernetesVersion")
    if wanted:
        _known(wanted)
    answer = []
    for name, known in ADDONS.items():
        if wanted in (None, name):
            listed = []
            for index, version in enumerate(known.versions):
                fits = [
                    {"clusterVersion": kubernetes or "1.36", "platformVersions": ["*"], "defaultVersion": index == 0}
                ]
                listed.append({"addonVersion": version, "architecture": ["amd64", "arm64"], "compatibilities": fits,
                               "requiresConfiguration": False})  # fmt: skip
            answer.append({"addonName": name, "type": "local", "owner": "slipway", "publisher": known.note,
                           "addonVersions": listed})  # fmt: skip
    return {"addons": answer}
