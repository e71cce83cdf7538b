"""One Kubernetes object: diff, create, read, update, delete, all by server-side apply.

The field manager of a resource is derived from its URN. So an object that a killed create left behind is known as
ours by its managedFields, and taken up again instead of refused; any other object of that name is refused.
"""

from __future__ import annotations

import base64
import hashlib
import time
from dataclasses import dataclass, field
from typing import Any

from localcloud.kubernetes.provider import check as checks
from localcloud.kubernetes.provider import diff as diffs
from localcloud.kubernetes.provider import rules, waiting
from localcloud.kubernetes.provider.check import Kind, annotation, for_program, for_server, identifier
from localcloud.kubernetes.provider.client import APPLY, JSON, ApiError, Unreachable
from localcloud.kubernetes.provider.cluster import Cancelled, Cluster
from localcloud.kubernetes.provider.discovery import MISS_PATIENCE, NoSuchKind, Resource, is_namespaced
from localcloud.kubernetes.provider.errors import Failure, InitFailed, exists_already, explain
from localcloud.kubernetes.provider.wire import UNKNOWN, Object, Path, get, has_unknown

# Seconds to wait for what another resource of the same run is making at this moment: a namespace, a service account.
NEIGHBOUR_PATIENCE = 5.0
_SERVER_METADATA = ("uid", "resourceVersion", "creationTimestamp", "generation")


@dataclass
class State:
    """What the engine stores of an object."""

    id: str
    outputs: Object
    secrets: list[Path] = field(default_factory=list)
    inputs: Object = field(default_factory=dict)


@dataclass(frozen=True)
class Subject:
    """The resource an operation is about."""

    urn: str
    type: str
    kind: Kind

    @property
    def default_manager(self) -> str:
        return "pulumi-kubernetes-" + hashlib.sha256(self.urn.encode()).hexdigest()[:12]

    def manager(self, inputs: Object, outputs: Object | None = None) -> str:
        """The field manager: the one the object states, the one it was made with, else the URN's."""
        stored = (outputs or {}).get("__fieldManager")
        return annotation(inputs, checks.FIELD_MANAGER) or (stored if isinstance(stored, str) else self.default_manager)


def secret_paths(kind: Kind, secrets: list[Path]) -> list[Path]:
    """The given paths, and all data of a Secret, which is secret whether the program says so or not."""
    if (kind.api_version, kind.kind) == ("v1", "Secret"):
        return [*secrets, ("data",), ("stringData",)]
    return secrets


def _state(subject: Subject, live: Object, inputs: Object, secrets: list[Path], manager: str) -> State:
    metadata = {key: item for key, item in live["metadata"].items() if key != "managedFields"}
    stored = for_program(inputs)
    outputs = {
        **for_program({**live, "metadata": metadata}),
        # As the Pulumi plugin keeps them, so that it can go on with this state.
        "__inputs": stored,
        "__initialApiVersion": subject.kind.api_version,
        "__fieldManager": manager,
    }
    marked = secret_paths(subject.kind, secrets)
    return State(identifier(live), outputs, [*marked, *(("__inputs", *path) for path in marked)], stored)


def planned(subject: Subject, inputs: Object, secrets: list[Path], manager: str, old: Object | None = None) -> State:
    """What a preview can promise: the inputs, and UNKNOWN for what the API server will fill in."""
    outputs: Object = {**for_program(inputs)}
    metadata = outputs.get("metadata")
    if isinstance(metadata, dict):
        kept = {key: get(old, "metadata", key) or UNKNOWN for key in _SERVER_METADATA}
        outputs["metadata"] = {**kept, **metadata}
    if "status" not in outputs and rules.has_rule(subject.kind.api_version, subject.kind.kind):
        outputs["status"] = (old or {}).get("status", UNKNOWN)
    if subject.kind.kind == "Service" and isinstance(outputs.get("spec"), dict):
        assigned = {key: get(old, "spec", key) or UNKNOWN for key in ("clusterIP", "clusterIPs")}
        outputs["spec"] = {**assigned, **outputs["spec"]}
    if subject.kind.kind == "Secret" and "stringData" in outputs:
        outputs["data"] = UNKNOWN
    outputs |= {
        "__inputs": for_program(inputs),
        "__initialApiVersion": subject.kind.api_version,
        "__fieldManager": manager,
    }
    marked = secret_paths(subject.kind, secrets)
    return State("", outputs, [*marked, *(("__inputs", *path) for path in marked)], for_program(inputs))


class Objects:
    """The operations on objects of one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    # -- diff

    def diff(
        self, subject: Subject, id_: str, olds: Object, old_inputs: Object, news: Object, ignore: list[str]
    ) -> tuple[diffs.Difference, bool]:
        """What changes, and whether the old object must go before a replacement can come (they share the name)."""
        settings = self._cluster.settings
        old_namespace, _ = _split(id_)
        new_namespace = self.default_namespace if old_namespace else None  # where the inputs name none
        old, new = for_server(old_inputs), for_server(news)
        found = diffs.compare(
            subject.kind.group,
            diffs.comparable(old, old_namespace),
            diffs.comparable(new, new_namespace),
            settings,
            ignore,
        )
        moved = any(path[0] in ("apiVersion", "kind") or path[:2] in _IDENTITY for path in found.changes)
        if found.changes and not moved and not has_unknown(new):
            self._ask_server(subject, id_, olds, new, found)
        same_place = not any(path[:2] in _IDENTITY for path in found.changes)
        named = annotation(new, checks.AUTONAMED) != "true" and get(new, "metadata", "name") == _split(id_)[1]
        if annotation(new, checks.REPLACE_UNREADY) == "true" and subject.kind.kind == "Job" and not found.replaces:
            # With unchanged inputs an auto-name comes out the same again, so the old one must go first then too.
            named = self._replace_failed_job(subject, id_, found) or named
        return found, named and same_place

    @property
    def default_namespace(self) -> str:
        return self._cluster.default_namespace

    def _ask_server(self, subject: Subject, id_: str, olds: Object, news: Object, found: diffs.Difference) -> None:
        """Let a dry run tell whether anything really changes, and which fields cannot change."""
        try:
            resource = self._cluster.discovery.find(subject.kind.api_version, subject.kind.kind, patient=False)
            namespace, name = _split(id_)
            live = self._cluster.fetch(resource, namespace, name, patient=False)
            if live is None:
                return
            result = self._apply(subject, resource, news, subject.manager(news, olds), dry=True)
        except ApiError as error:
            fields = diffs.immutable_fields(error.causes) if error.status == 422 else None
            # Custom resources word their rules as they like, so a refusal is no reason to remove and remake one.
            if fields and is_namespaced(subject.kind.api_version, subject.kind.kind) is not None:
                diffs.blame(found, fields)
            return
        except (Unreachable, NoSuchKind, Failure):
            return
        if diffs.same_object(live, result):
            found.changes.clear()
            found.replaces.clear()

    def _replace_failed_job(self, subject: Subject, id_: str, found: diffs.Difference) -> bool:
        live = self._cluster.reader.one(subject.kind.api_version, subject.kind.kind, *_split(id_))
        failed = rules.condition(live, "Failed") if live else None
        if not failed or failed.get("status") != "True":
            return False
        path = ("metadata", "annotations", checks.REPLACE_UNREADY)
        found.changes[path] = diffs.UPDATE
        found.replaces.append(path)
        return True

    # -- create, update

    def create(self, subject: Subject, news: Object, secrets: list[Path], timeout: float, preview: bool) -> State:
        """Make the object and wait until it is ready. Raises Failure, InitFailed, Unreachable."""
        inputs, manager = for_server(news), subject.manager(news)
        if preview:
            return self._preview_create(subject, inputs, secrets, manager)
        resource = self._resource(subject, MISS_PATIENCE)
        namespace, name = self._place(resource, inputs)
        wait = waiting.timeout_of(inputs, timeout)
        what = _what(subject, namespace, name)
        live = self._cluster.fetch(resource, namespace, name)
        if live and get(live, "metadata", "deletionTimestamp"):
            self._cluster.log("INFO", f"an older {what} is being removed, waiting for that", subject.urn, True)
            try:
                waiting.until_gone(self._cluster, resource, namespace, name, live["metadata"]["uid"], subject.urn, wait)
            except waiting.StillThere as error:
                raise Failure(f"cannot create {what}, an older one of that name is being removed: {error}") from error
            live = None
        if live and not self._is_ours(live, manager):
            raise Failure(exists_already(what, identifier(live), subject.type))
        return self._settle(subject, resource, inputs, secrets, manager, wait, "create")

    def _preview_create(self, subject: Subject, inputs: Object, secrets: list[Path], manager: str) -> State:
        plan = planned(subject, inputs, secrets, manager)
        if has_unknown(inputs):
            return plan
        try:
            resource = self._cluster.discovery.find(subject.kind.api_version, subject.kind.kind, patient=False)
            namespace, name = self._place(resource, inputs)
            live = self._cluster.fetch(resource, namespace, name, patient=False)
            if live and not get(live, "metadata", "deletionTimestamp") and not self._is_ours(live, manager):
                raise Failure(exists_already(_what(subject, namespace, name), identifier(live), subject.type))
            if live is None:
                self._apply(subject, resource, inputs, manager, dry=True)
        except NoSuchKind:
            pass  # made by another resource of the same program
        except Unreachable as error:
            self._cluster.warn_unreachable(error, subject.urn)
        except ApiError as error:
            if error.status not in (403, 404):  # not allowed to try; or a namespace that the same program makes
                raise Failure(
                    explain(error, _what(subject, None, str(get(inputs, "metadata", "name"))), "create")
                ) from error
        return plan

    def update(
        self, subject: Subject, olds: Object, news: Object, secrets: list[Path], timeout: float, preview: bool
    ) -> State:
        """Apply the new inputs and wait until the object is ready. Raises Failure, InitFailed, Unreachable."""
        inputs, manager = for_server(news), subject.manager(news, olds)
        wait = waiting.timeout_of(inputs, timeout)
        if preview:
            return self._preview_update(subject, olds, inputs, secrets, manager)
        resource = self._resource(subject, MISS_PATIENCE)
        namespace, name = self._place(resource, inputs)
        live = self._cluster.fetch(resource, namespace, name)
        if live and get(live, "metadata", "deletionTimestamp"):
            try:
                waiting.until_gone(self._cluster, resource, namespace, name, live["metadata"]["uid"], subject.urn, wait)
            except waiting.StillThere as error:
                raise Failure(
                    f"cannot update {_what(subject, namespace, name)}, it is being removed: {error}"
                ) from error
            live = None
        if live is None:
            self._cluster.log("WARNING", "was removed outside of Pulumi and is made again", subject.urn, False)
        return self._settle(subject, resource, inputs, secrets, manager, wait, "update")

    def _preview_update(
        self, subject: Subject, olds: Object, inputs: Object, secrets: list[Path], manager: str
    ) -> State:
        plan = planned(subject, inputs, secrets, manager, olds)
        if has_unknown(inputs):
            return plan
        try:
            resource = self._cluster.discovery.find(subject.kind.api_version, subject.kind.kind, patient=False)
            live = self._apply(subject, resource, inputs, manager, dry=True)
        except (Unreachable, NoSuchKind):
            return plan
        except ApiError as error:
            if error.status in (403, 404):
                return plan
            raise Failure(explain(error, _what(subject, *_split(identifier(inputs))), "update")) from error
        for key in ("resourceVersion", "generation"):
            live["metadata"][key] = UNKNOWN
        return _state(subject, live, inputs, secrets, manager)

    def _settle(
        self,
        subject: Subject,
        resource: Resource,
        inputs: Object,
        secrets: list[Path],
        manager: str,
        wait: float,
        doing: str,
    ) -> State:
        namespace, name = self._place(resource, inputs)
        try:
            live = self._apply_patiently(subject, resource, inputs, manager)
        except ApiError as error:
            raise Failure(explain(error, _what(subject, namespace, name), doing)) from error
        try:
            live = waiting.until_ready(self._cluster, resource, inputs, live, subject.urn, wait)
            if subject.kind.kind == "CustomResourceDefinition":
                waiting.until_served(self._cluster, live)
        except waiting.NotReady as error:
            state = _state(subject, error.live, inputs, secrets, manager)
            raise InitFailed(state.id, state.outputs, state.secrets, state.inputs, error.reasons) from error
        except Cancelled as error:
            state = _state(subject, live, inputs, secrets, manager)
            raise InitFailed(state.id, state.outputs, state.secrets, state.inputs, [str(error)]) from error
        return _state(subject, live, inputs, secrets, manager)

    def _apply_patiently(self, subject: Subject, resource: Resource, inputs: Object, manager: str) -> Object:
        deadline = time.monotonic() + NEIGHBOUR_PATIENCE
        while True:
            try:
                return self._apply(subject, resource, inputs, manager)
            except ApiError as error:
                missing = (error.status == 404 and error.kind == "namespaces") or (
                    error.status == 403 and "error looking up service account" in error.message
                )
                if not missing or time.monotonic() > deadline:
                    raise
            self._cluster.pause(0.3)

    def _apply(self, subject: Subject, resource: Resource, inputs: Object, manager: str, dry: bool = False) -> Object:
        namespace, name = self._place(resource, inputs)
        body = {**inputs, "metadata": {**inputs["metadata"]}}
        if namespace:
            body["metadata"]["namespace"] = namespace
        forced = self._cluster.settings.patch_force or annotation(inputs, checks.PATCH_FORCE) == "true"
        params = {"fieldManager": manager, "force": str(forced).lower(), "fieldValidation": "Strict"}
        if dry:
            params["dryRun"] = "All"
        path = resource.path(namespace, name)
        live: Object = self._cluster.client.request("PATCH", path, params, body, APPLY, patient=not dry)
        return live

    def _is_ours(self, live: Object, manager: str) -> bool:
        """Whether an earlier create of the same resource made `live`, or the user wants to take over what exists."""
        return self._cluster.settings.upsert or any(
            entry.get("manager") == manager and entry.get("operation") == "Apply"
            for entry in get(live, "metadata", "managedFields") or []
        )

    def _resource(self, subject: Subject, patience: float) -> Resource:
        try:
            return self._cluster.discovery.find(subject.kind.api_version, subject.kind.kind, patience)
        except NoSuchKind as error:
            raise Failure(str(error)) from error
        except ApiError as error:
            raise Failure(explain(error, subject.kind.api_version, "look up")) from error

    def _place(self, resource: Resource, inputs: Object) -> tuple[str | None, str]:
        metadata = inputs["metadata"]
        namespace = (metadata.get("namespace") or self.default_namespace) if resource.namespaced else None
        return namespace, metadata["name"]

    # -- read, delete

    def read(self, subject: Subject, id_: str, olds: Object, old_inputs: Object, secrets: list[Path]) -> State | None:
        """The object as it is now, None when it is gone. Without old inputs it is being imported. Raises Failure."""
        try:
            resource = self._cluster.discovery.find(subject.kind.api_version, subject.kind.kind)
        except NoSuchKind:
            return None
        namespace, name = _split(id_)
        if resource.namespaced and not namespace:
            namespace = "default"  # an import by the name alone, as the Pulumi plugin reads it
        try:
            live = self._cluster.fetch(resource, namespace, name)
        except ApiError as error:
            raise Failure(explain(error, _what(subject, namespace, name), "read")) from error
        if live is None:
            return None
        inputs = _project(live, for_server(old_inputs)) if old_inputs else _importable(live)
        return _state(subject, live, inputs, secrets, subject.manager(inputs, olds))

    def delete(self, subject: Subject, id_: str, olds: Object, timeout: float) -> None:
        """Delete the object and wait until it is gone. One that is gone already is fine. Raises Failure."""
        try:
            resource = self._cluster.discovery.find(subject.kind.api_version, subject.kind.kind)
        except NoSuchKind:
            return
        namespace, name = _split(id_)
        what = _what(subject, namespace, name)
        policy = checks.PROPAGATION[(annotation(olds, checks.DELETION_PROPAGATION) or "foreground").lower()]
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": policy}
        try:
            live = self._cluster.fetch(resource, namespace, name)
            if live is None:
                return
            self._cluster.client.request("DELETE", resource.path(namespace, name), None, body, JSON)
        except ApiError as error:
            if error.status == 404:
                return
            raise Failure(explain(error, what, "delete")) from error
        if annotation(olds, checks.SKIP_AWAIT) == "true":
            return
        wait = waiting.timeout_of(olds, timeout)
        uid = live["metadata"].get("uid")
        try:
            waiting.until_gone(self._cluster, resource, namespace, name, uid, subject.urn, wait)
        except (waiting.StillThere, Cancelled) as error:
            raise Failure(str(error)) from error
        if subject.kind.kind == "CustomResourceDefinition":
            self._cluster.discovery.forget()


_IDENTITY = (("metadata",), ("metadata", "name"), ("metadata", "namespace"))


def _what(subject: Subject, namespace: str | None, name: str) -> str:
    return f"{subject.kind.kind} {namespace}/{name}" if namespace else f"{subject.kind.kind} {name}"


def _split(id_: str) -> tuple[str | None, str]:
    namespace, _, name = id_.rpartition("/")
    return namespace or None, name


def _project(live: Object, shape: Object) -> Object:
    """The last inputs as the live object has them now."""
    found: Object = diffs.project(live, shape)
    if "stringData" in shape:  # write-only: the server keeps it as base64 in data
        data: dict[str, Any] = live.get("data") or {}
        found["stringData"] = {
            key: base64.b64decode(data[key]).decode("utf-8", "replace") for key in shape["stringData"] if key in data
        }
    return found


def _importable(live: Object) -> Object:
    """What a program would have to say to make `live`: all of it but what the server fills in."""
    metadata = {
        key: item
        for key, item in live["metadata"].items()
        if key not in (*_SERVER_METADATA, "managedFields", "selfLink", "ownerReferences", "deletionTimestamp")
    }
    return {**{key: item for key, item in live.items() if key != "status"}, "metadata": metadata}
