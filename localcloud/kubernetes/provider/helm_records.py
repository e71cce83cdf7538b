"""Helm's own records of a release (Secrets of type helm.sh/release.v1), read and repaired without starting helm."""

from __future__ import annotations

import base64
import binascii
import gzip
import hashlib
import json
import time
from dataclasses import dataclass
from typing import Any

import yaml

from localcloud.kubernetes.provider.client import MERGE, ApiError
from localcloud.kubernetes.provider.cluster import Cluster
from localcloud.kubernetes.provider.errors import Failure
from localcloud.kubernetes.provider.wire import Object, get

# Set on each release by `helm upgrade --labels`: which resource of which stack it belongs to.
OWNER_LABEL = "pulumi-urn"
PENDING = ("pending-install", "pending-upgrade", "pending-rollback")
_Loader: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def owner_of(urn: str) -> str:
    """The value of OWNER_LABEL for a resource."""
    return hashlib.sha256(urn.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Record:
    """One revision of a release, as helm stores it."""

    name: str
    namespace: str
    revision: int
    status: str
    owner: str | None
    payload: dict[str, Any]

    @property
    def chart(self) -> Object:
        """The chart's metadata: name, version, appVersion."""
        return get(self.payload, "chart", "metadata") or {}

    @property
    def values(self) -> Object:
        """The values the user gave, without the chart's defaults."""
        return self.payload.get("config") or {}

    @property
    def description(self) -> str:
        return get(self.payload, "info", "description") or ""

    def objects(self) -> list[Object]:
        """The objects of the manifest; hooks are not among them."""
        documents = yaml.load_all(self.payload.get("manifest") or "", Loader=_Loader)  # a safe loader
        return [item for item in documents if isinstance(item, dict) and item.get("kind")]

    def resource_names(self) -> dict[str, list[str]]:
        """The names of the objects by kind, in the form of the output `resourceNames`."""
        names: dict[str, set[str]] = {}
        for item in self.objects():
            group = str(item["apiVersion"]).rpartition("/")[0]
            key = f"{item['kind']}{'.' if group else ''}{group}/{item['apiVersion']}"
            namespace = get(item, "metadata", "namespace")
            name = str(get(item, "metadata", "name"))
            names.setdefault(key, set()).add(f"{namespace}/{name}" if namespace else name)
        return {key: sorted(found) for key, found in sorted(names.items())}


def objects_named(names: Any) -> list[Object]:
    """The objects that an output `resourceNames` names: apiVersion, kind, name, and namespace where it has one."""
    found: list[Object] = []
    for key, items in (names if isinstance(names, dict) else {}).items():
        kind, _, api_version = key.partition("/")
        for item in items:
            namespace, _, name = item.rpartition("/")
            metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
            found.append({"apiVersion": api_version, "kind": kind.partition(".")[0], "metadata": metadata})
    return found


def history(cluster: Cluster, namespace: str, name: str, patient: bool = True) -> list[Record]:
    """All revisions of a release, oldest first; none where there is no such release. Raises ApiError, Failure."""
    try:
        answer = cluster.client.get(
            f"/api/v1/namespaces/{namespace}/secrets", {"labelSelector": f"owner=helm,name={name}"}, patient=patient
        )
    except ApiError as error:
        if error.status == 404:
            return []
        raise
    found = [_decode(item) for item in answer.get("items") or [] if item.get("type") == "helm.sh/release.v1"]
    return sorted(found, key=lambda record: record.revision)


def _decode(secret: Object) -> Record:
    labels = get(secret, "metadata", "labels") or {}
    name = secret["metadata"]["name"]
    try:
        packed = base64.b64decode(base64.b64decode(get(secret, "data", "release") or ""))
        payload = json.loads(gzip.decompress(packed) if packed[:2] == b"\x1f\x8b" else packed)
        revision = int(labels.get("version") or payload["version"])
    except (ValueError, KeyError, OSError, EOFError, binascii.Error) as error:
        raise Failure(
            f"Secret {secret['metadata'].get('namespace')}/{name} should hold a helm release, but cannot be read. "
            "Delete it, or uninstall the release with helm."
        ) from error
    return Record(
        name=str(labels.get("name")),
        namespace=secret["metadata"]["namespace"],
        revision=revision,
        status=str(get(payload, "info", "status")),
        owner=labels.get(OWNER_LABEL),
        payload=payload,
    )


def mark_failed(cluster: Cluster, record: Record) -> None:
    """Turn a pending revision whose helm is dead into a failed one, from which helm can go on.

    Nothing of the release is removed: uninstalling it could delete volumes with data. Raises ApiError.
    """
    payload = dict(record.payload)
    payload["info"] = {**payload.get("info", {}), "status": "failed", "description": "its helm was killed"}
    packed = base64.b64encode(gzip.compress(json.dumps(payload).encode()))
    body = {
        "metadata": {"labels": {"status": "failed", "modifiedAt": str(int(time.time()))}},
        "data": {"release": base64.b64encode(packed).decode()},
    }
    path = f"/api/v1/namespaces/{record.namespace}/secrets/sh.helm.release.v1.{record.name}.v{record.revision}"
    cluster.client.request("PATCH", path, None, body, MERGE)
