"""What changed between two versions of an object's inputs, and which changes make another object of it. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from localcloud.kubernetes.provider.config import Settings
from localcloud.kubernetes.provider.wire import Object, Path, covers, format_path, get, parse_path

ADD, DELETE, UPDATE = "ADD", "DELETE", "UPDATE"

# Fields that the API server never changes on an existing object, by (group, kind). Kinds that are not here are
# found out by a dry run, where the cluster can be asked.
_IMMUTABLE: dict[tuple[str, str], tuple[str, ...]] = {
    ("apps", "Deployment"): ("spec.selector",),
    ("apps", "DaemonSet"): ("spec.selector",),
    ("apps", "ReplicaSet"): ("spec.selector",),
    ("apps", "StatefulSet"): (
        "spec.selector",
        "spec.serviceName",
        "spec.podManagementPolicy",
        "spec.volumeClaimTemplates",
    ),
    ("batch", "Job"): (
        "spec.completions",
        "spec.completionMode",
        "spec.selector",
        "spec.template",
        "spec.podFailurePolicy",
    ),
    ("", "Service"): ("spec.clusterIP",),
    ("", "PersistentVolume"): (
        "spec.csi",
        "spec.nfs",
        "spec.hostPath",
        "spec.local",
        "spec.iscsi",
        "spec.fc",
        "spec.nodeAffinity",
        "spec.volumeMode",
    ),
    ("", "PersistentVolumeClaim"): (
        "spec.accessModes",
        "spec.selector",
        "spec.storageClassName",
        "spec.volumeName",
        "spec.volumeMode",
        "spec.dataSource",
        "spec.dataSourceRef",
    ),
    ("", "Secret"): ("type",),
    ("", "ResourceQuota"): ("spec.scopes", "spec.scopeSelector"),
    ("rbac.authorization.k8s.io", "RoleBinding"): ("roleRef",),
    ("rbac.authorization.k8s.io", "ClusterRoleBinding"): ("roleRef",),
    ("storage.k8s.io", "StorageClass"): ("provisioner", "parameters", "reclaimPolicy", "volumeBindingMode"),
    ("scheduling.k8s.io", "PriorityClass"): ("value", "preemptionPolicy"),
    ("node.k8s.io", "RuntimeClass"): ("handler",),
    ("networking.k8s.io", "IngressClass"): ("spec.controller",),
    ("apiextensions.k8s.io", "CustomResourceDefinition"): (
        "spec.group",
        "spec.scope",
        "spec.names.kind",
        "spec.names.plural",
    ),
}
# All of a Pod's spec is fixed, except these.
_POD_MUTABLE = ("spec.activeDeadlineSeconds", "spec.tolerations", "spec.schedulingGates")
# How the API server says that a field cannot change on an existing object, in its words for built-in kinds.
_IMMUTABLE_WORDS = re.compile(
    r"immutable|updates? to .* (?:is|are) forbidden|may not (?:be )?changed?|cannot (?:be )?changed?|can not be changed"
    r"|not allowed to (?:be )?change",
    re.IGNORECASE,
)


@dataclass
class Difference:
    """The changed properties by path, and which paths force a replacement."""

    changes: dict[Path, str] = field(default_factory=dict)
    replaces: list[Path] = field(default_factory=list)


def leaves(old: Any, new: Any, path: Path = ()) -> dict[Path, str]:
    """Every smallest part in which `new` differs from `old`: path -> ADD, DELETE or UPDATE."""
    if isinstance(old, dict) and isinstance(new, dict):
        found: dict[Path, str] = {}
        for key in {**old, **new}:
            if key not in new:
                found[(*path, key)] = DELETE
            elif key not in old:
                found[(*path, key)] = ADD
            else:
                found.update(leaves(old[key], new[key], (*path, key)))
        return found
    if isinstance(old, list) and isinstance(new, list):
        found = {}
        for index in range(max(len(old), len(new))):
            if index >= len(new):
                found[(*path, index)] = DELETE
            elif index >= len(old):
                found[(*path, index)] = ADD
            else:
                found.update(leaves(old[index], new[index], (*path, index)))
        return found
    return {} if old == new and isinstance(old, bool) == isinstance(new, bool) else {path: UPDATE}


def compare(group: str, old: Object, new: Object, settings: Settings, ignore: list[str]) -> Difference:
    """The difference of two inputs of one object, both normalised by `comparable`. Raises ValueError on a bad path."""
    ignored = [parse_path(item) for item in ignore]
    changes = {p: kind for p, kind in leaves(old, new).items() if not any(covers(i, p) for i in ignored)}
    return Difference(changes, [path for path in changes if _replaces(group, path, old, new, settings)])


def _replaces(group: str, path: Path, old: Object, new: Object, settings: Settings) -> bool:
    if path in (("metadata",), ("metadata", "name"), ("metadata", "namespace"), ("kind",)):
        return True
    kind = new.get("kind")
    if not isinstance(kind, str):
        return False
    if path == ("apiVersion",):
        return str(old.get("apiVersion", "")).rpartition("/")[0] != str(new.get("apiVersion", "")).rpartition("/")[0]
    if group == "" and kind in ("ConfigMap", "Secret"):
        # As the plugin does: pods do not notice changed data, so it makes a new object unless told otherwise.
        mutable = settings.config_map_mutable if kind == "ConfigMap" else settings.secret_mutable
        if (not mutable or old.get("immutable")) and path[0] in ("data", "binaryData", "stringData"):
            return True
        if old.get("immutable") and path[0] == "immutable":
            return True
    if group == "" and kind == "Pod":
        return path[0] == "spec" and not any(covers(parse_path(item), path) for item in _POD_MUTABLE)
    # A change above an immutable field (all of `spec` added) touches it as well.
    return any(
        covers(field_, path) or covers(path, field_)
        for field_ in (parse_path(item) for item in _IMMUTABLE.get((group, kind), ()))
    )


def immutable_fields(causes: list[dict[str, str]]) -> list[Path] | None:
    """The fields that cannot change, as the API server says; None where it complains of something else too."""
    fields: list[Path] = []
    for cause in causes:
        if not _IMMUTABLE_WORDS.search(cause.get("message", "")):
            return None
        try:
            fields.append(parse_path(cause.get("field", "").removeprefix("<nil>") or "spec"))
        except ValueError:
            fields.append(("spec",))
    return fields or None


def blame(difference: Difference, fields: list[Path]) -> None:
    """Mark the changes at, above or below `fields` as replacing; all changes of the field's top where none is."""
    marked = [p for p in difference.changes if any(covers(f, p) or covers(p, f) for f in fields)]
    if not marked:
        marked = [p for p in difference.changes if any(p[0] == f[0] for f in fields)]
    difference.replaces = marked or list(difference.changes)


def comparable(inputs: Object, namespace: str | None) -> Object:
    """`inputs` with the namespace that is meant where none is written; None for an object without one."""
    metadata = inputs.get("metadata")
    if not isinstance(metadata, dict):
        return inputs
    metadata = {key: value for key, value in metadata.items() if key != "namespace"}
    if namespace is not None:
        metadata["namespace"] = inputs["metadata"].get("namespace") or namespace
    return {**inputs, "metadata": metadata}


def same_object(live: Object, planned: Object) -> bool:
    """Whether a dry run left the object as it is, but for what every write changes."""
    return _essence(live) == _essence(planned)


def _essence(value: Object) -> Object:
    metadata = {
        key: item
        for key, item in (get(value, "metadata") or {}).items()
        if key not in ("managedFields", "resourceVersion", "generation", "creationTimestamp", "uid", "selfLink")
    }
    return {**{key: item for key, item in value.items() if key != "status"}, "metadata": metadata}


def project(live: Any, shape: Any) -> Any:
    """What `live` has at the places that `shape` (the last inputs) has: the inputs as they would read now.

    Lists are compared place by place; what only the server filled in is left out; what is gone from `live` is left
    out too. Values the server rewrites (a quantity of "1000m" becomes "1") come out rewritten; a dry run finds later
    that they mean the same.
    """
    if isinstance(live, dict) and isinstance(shape, dict):
        return {key: project(live[key], item) for key, item in shape.items() if key in live}
    if isinstance(live, list) and isinstance(shape, list):
        return [project(a, b) for a, b in zip(live, shape, strict=False)] + live[len(shape) :]
    return live


def paths(found: list[Path]) -> list[str]:
    """Paths as the engine wants them, in order."""
    return sorted(format_path(path) for path in found)
