"""Check of one Kubernetes object: which kind it is, its name and namespace, and what this provider does not serve."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from localcloud.kubernetes.provider import waitfor
from localcloud.kubernetes.provider.discovery import BUILT_IN_GROUPS, group_of, is_namespaced
from localcloud.kubernetes.provider.wire import UNKNOWN, Object, get, map_keys, without_nulls

AUTONAMED = "pulumi.com/autonamed"
SKIP_AWAIT = "pulumi.com/skipAwait"
TIMEOUT = "pulumi.com/timeoutSeconds"
WAIT_FOR = "pulumi.com/waitFor"
PATCH_FORCE = "pulumi.com/patchForce"
FIELD_MANAGER = "pulumi.com/patchFieldManager"
DELETION_PROPAGATION = "pulumi.com/deletionPropagationPolicy"
REPLACE_UNREADY = "pulumi.com/replaceUnready"

RELEASE_TYPE = "kubernetes:helm.sh/v3:Release"
PROPAGATION = {"foreground": "Foreground", "background": "Background", "orphan": "Orphan"}

Failure = tuple[str, str]


class Refused(Exception):
    """A resource type that this provider does not serve; the message says what to use instead."""


@dataclass(frozen=True)
class Kind:
    """What a type token such as kubernetes:apps/v1:Deployment names."""

    api_version: str
    kind: str

    @property
    def group(self) -> str:
        return group_of(self.api_version)

    def __str__(self) -> str:
        return f"{self.kind} ({self.api_version})"


def kind_of(token: str) -> Kind:
    """The object kind of a type token. Raises Refused."""
    parts = token.split(":")
    if len(parts) != 3 or parts[0] != "kubernetes":
        raise Refused(f"{token}: not a resource type of the kubernetes provider")
    module, kind = parts[1], parts[2]
    if module.startswith(("yaml", "kustomize", "helm.sh/")):
        raise Refused(
            f"{token}: this provider serves single objects (kubernetes:<group>/<version>:<Kind>) and {RELEASE_TYPE}. "
            "Put the objects into a chart and use helm.v3.Release, or register them one by one."
        )
    api_version = module.removeprefix("core/")
    if kind.endswith("List") and group_of(api_version) in BUILT_IN_GROUPS:
        raise Refused(f"{token}: lists are not served; register each object of it as a resource of its own")
    return Kind(api_version, kind)


@dataclass(frozen=True)
class Naming:
    """How the engine wants objects without a name to be named."""

    seed: bytes
    proposed: str = ""
    mode: str = "PROPOSE"  # PROPOSE, ENFORCE or DISABLE


def check(
    token: str, name: str, olds: Object, news: Object, naming: Naming, namespace: str
) -> tuple[Object, list[Failure]]:
    """The inputs as they will be applied and stored, and what is wrong with them as (property, reason).

    `name` is the resource's name in the program, `namespace` the provider's default namespace. Raises Refused.
    """
    kind = kind_of(token)
    inputs: Object = without_nulls(news)
    failures: list[Failure] = []
    stated_kind = inputs.get("kind", kind.kind)
    if kind.kind.endswith("Patch") and stated_kind == kind.kind.removesuffix("Patch"):
        raise Refused(f"{token}: patches are not served; manage the whole {stated_kind} as one resource")
    if stated_kind is not UNKNOWN and stated_kind != kind.kind:
        failures.append(("kind", f"is {stated_kind}, but the resource's type is {kind.kind}"))
    stated_version = inputs.get("apiVersion", kind.api_version)
    if stated_version is not UNKNOWN and stated_version != kind.api_version:
        failures.append(("apiVersion", f"is {stated_version}, but the resource's type says {kind.api_version}"))
    inputs["apiVersion"], inputs["kind"] = kind.api_version, kind.kind
    metadata = inputs.setdefault("metadata", {})
    if metadata is UNKNOWN:
        return inputs, failures
    if not isinstance(metadata, dict):
        return inputs, [*failures, ("metadata", "must be an object with name, namespace, labels, annotations")]
    if metadata.get("generateName") and not metadata.get("name"):
        failures.append(
            ("metadata.generateName", "is not served; leave it out as well, then the name is made from the resource's")
        )
    elif not metadata.get("name"):
        failures += _autoname(inputs, name, olds, naming)
    namespaced = is_namespaced(kind.api_version, kind.kind)
    if namespaced is False:
        metadata.pop("namespace", None)
    elif namespaced and not metadata.get("namespace"):
        metadata["namespace"] = namespace
    failures += _check_annotations(metadata)
    return inputs, failures


def _autoname(inputs: Object, name: str, olds: Object, naming: Naming) -> list[Failure]:
    metadata = inputs["metadata"]
    if metadata.get("annotations", {}) is UNKNOWN:
        return [("metadata.name", "must be given: the annotations, which would mark an auto-name, are not known yet")]
    old_metadata = get(olds, "metadata")
    if get(old_metadata, "annotations", AUTONAMED) == "true" and get(old_metadata, "name"):
        metadata["name"] = old_metadata["name"]
    elif naming.mode == "DISABLE":
        return [("metadata.name", "must be given: the stack's configuration turns auto-naming off")]
    elif naming.proposed:
        metadata["name"] = naming.proposed
    else:
        metadata["name"] = f"{name}-{hashlib.sha256(naming.seed).hexdigest()[:8]}"
    metadata.setdefault("annotations", {})[AUTONAMED] = "true"
    return []


def _check_annotations(metadata: Object) -> list[Failure]:
    annotations = metadata.get("annotations")
    if not isinstance(annotations, dict):
        return []
    failures: list[Failure] = []

    def complain(key: str, reason: str) -> None:
        failures.append((f'metadata.annotations["{key}"]', reason))

    for key in (SKIP_AWAIT, PATCH_FORCE, REPLACE_UNREADY):
        if annotations.get(key, "true") not in ("true", "false", UNKNOWN):
            complain(key, f'must be "true" or "false", not {annotations[key]!r}')
    seconds = annotations.get(TIMEOUT, "1")
    if seconds is not UNKNOWN and not str(seconds).isdigit():
        complain(TIMEOUT, f"must be a whole number of seconds, not {seconds!r}")
    policy = annotations.get(DELETION_PROPAGATION, "foreground")
    if policy is not UNKNOWN and str(policy).lower() not in PROPAGATION:
        complain(DELETION_PROPAGATION, f"must be one of {', '.join(PROPAGATION)}, not {policy!r}")
    expression = annotations.get(WAIT_FOR)
    if isinstance(expression, str):
        try:
            waitfor.parse(expression)
        except waitfor.BadExpression as error:
            complain(WAIT_FOR, str(error))
    return failures


def _to_dashes(key: str) -> str:
    # The SDKs cannot have dashes in names, so they write the schema extensions with underscores.
    return key.replace("_", "-") if key.startswith("x_kubernetes_") else key


def _to_underscores(key: str) -> str:
    return key.replace("-", "_") if key.startswith("x-kubernetes-") else key


def for_program(value: Object) -> Object:
    """An object of the API server with its keys as the SDKs write them."""
    if value.get("kind") != "CustomResourceDefinition":
        return value
    renamed: Object = map_keys(value, _to_underscores)
    return renamed


def for_server(value: Object) -> Object:
    """Stored inputs with their keys as the API server writes them."""
    if value.get("kind") != "CustomResourceDefinition":
        return value
    renamed: Object = map_keys(value, _to_dashes)
    return renamed


def annotation(value: Any, key: str) -> str | None:
    """An annotation of an object, as text; None where it has none."""
    found = get(value, "metadata", "annotations", key)
    return found if isinstance(found, str) else None


def identifier(value: Object) -> str:
    """The resource id of an object: namespace/name, or its name alone where it has no namespace."""
    metadata = value["metadata"]
    namespace = metadata.get("namespace")
    return f"{namespace}/{metadata['name']}" if namespace else str(metadata["name"])
