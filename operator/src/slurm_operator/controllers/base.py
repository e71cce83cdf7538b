"""What the reconcilers share: reading specs, references between kinds, and writing status."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, ClassVar, Generic, TypeVar

from slurm_operator.api.common import Base
from slurm_operator.api.controller import ControllerSpec
from slurm_operator.api.load import InvalidSpec, load_spec
from slurm_operator.api.names import (
    ANNOTATION_POD_DEADLINE,
    ANNOTATION_SKIP_DRAIN,
    FINALIZER,
    FINALIZER_RESERVATION,
    LABEL_CLUSTER,
    LABEL_INSTANCE,
    LABEL_NAME,
    LABEL_POD_PROTECT,
    controller_config,
)
from slurm_operator.desired.conf_syntax import BadConf
from slurm_operator.desired.nodeset_status import CONDITION_PREFIX
from slurm_operator.desired.parts import Cluster
from slurm_operator.desired.status import Report, conditions
from slurm_operator.kube.errors import AlreadyExists, Forbidden, Invalid, NotFound
from slurm_operator.kube.informer import Informer
from slurm_operator.kube.objects import annotations_of, is_deleting, key_of, labels_of, set_conditions, timestamp
from slurm_operator.kube.resources import CONFIGMAPS, CONTROLLERS, PODS, SECRETS, Key, Object
from slurm_operator.runtime.controller import Controller

Spec = TypeVar("Spec", bound=Base)
BY_CONTROLLER = "by_controller"
REFUSED_RETRY_SECONDS = 30.0
_FINALIZERS = (FINALIZER, FINALIZER_RESERVATION)


class Waiting(Exception):
    """Something that this needs is not there yet; its arrival wakes the reconcile up again.

    What is not watched wakes up nobody: then it is looked for `again` after so many seconds.
    """

    def __init__(self, reason: str, message: str, again: float | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.again = again


def cluster_domain() -> str:
    """DNS domain of the Kubernetes cluster; the chart passes it."""
    return os.environ.get("SLURM_OPERATOR_CLUSTER_DOMAIN") or "cluster.local"


def controller_ref(obj: Object) -> str:
    """Name in spec.controllerRef."""
    return str(((obj.get("spec") or {}).get("controllerRef") or {}).get("name", ""))


def index_by_controller(obj: Object) -> Iterable[str]:
    return (f"{obj['metadata']['namespace']}/{controller_ref(obj)}",)


def trim_pod(obj: Object) -> Object:
    """Keep of a pod what the operator reads: tens of thousands of them are held in memory."""
    meta, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    meta.pop("managedFields", None)
    asked = ("nodeName", "hostname", "hostNetwork", "tolerations")
    obj["spec"] = {name: spec[name] for name in asked if spec.get(name)}
    kept = ("phase", "reason", "message", "conditions", "podIP")
    trimmed: dict[str, Any] = {name: status[name] for name in kept if name in status}
    for name in ("initContainerStatuses", "containerStatuses"):
        if status.get(name):
            trimmed[name] = [
                {field: one[field] for field in ("name", "state", "lastState", "started") if field in one}
                for one in status[name]
            ]
    obj["status"] = trimmed
    return obj


def more_than_marks(old: Object, new: Object) -> bool:
    """True if a pod changed in anything but what controllers/mirror.py writes: that is no news to its NodeSet."""
    return _without_marks(old) != _without_marks(new)


def _without_marks(pod: Object) -> tuple[Object, Object, Object, Object, Object]:
    meta, status = pod["metadata"], pod.get("status") or {}
    kept = [entry for entry in status.get("conditions") or () if not entry["type"].startswith(CONDITION_PREFIX)]
    return (
        {name: value for name, value in meta.items() if name not in ("resourceVersion", "labels", "annotations")},
        _less(labels_of(pod), LABEL_POD_PROTECT),
        _less(annotations_of(pod), ANNOTATION_POD_DEADLINE),
        pod.get("spec") or {},
        {**status, "conditions": kept},
    )


def _less(values: Mapping[str, str], name: str) -> Object:
    return {key: value for key, value in values.items() if key != name}


class Reconciler(Controller, Generic[Spec]):
    """One kind: `spec_type` is its spec, `act` brings the world nearer to it and reports."""

    spec_type: type[Spec]
    informer: Informer
    holds: ClassVar[bool] = False
    """Resources get a finalizer and go when `leave` says so."""

    @abstractmethod
    async def act(self, key: Key, obj: Object, spec: Spec) -> tuple[Report, float | None]:
        """Do what is to be done now; returns what to report and when to look again (None: on events)."""

    async def forget(self, key: Key) -> None:
        """The resource is gone, or about to: owned objects go with it through garbage collection."""

    async def leave(self, key: Key, obj: Object) -> tuple[Report, float] | None:
        """The resource is deleted: what it still waits for, and when to look again; None: it may go."""
        return None

    async def _leave(self, key: Key, obj: Object) -> float | None:
        if held(obj):
            waits = None if self._ends(obj) else await self.leave(key, obj)
            if waits is not None:
                await self.report(key, obj, waits[0])
                return waits[1]
            await self._finalizers(key, obj, [name for name in finalizers_of(obj) if name not in _FINALIZERS])
        await self.forget(key)
        return None

    def _ends(self, obj: Object) -> bool:
        """Its namespace is being deleted, and with that all pods and maybe soon our rights there: let go at once."""
        since = self.manager.ending.get(obj["metadata"].get("namespace", ""))
        return since is not None and str(obj["metadata"].get("creationTimestamp", "")) <= since

    def _namespace_ends(self, namespace: str) -> None:
        if namespace not in self.manager.ending:
            self.log.warning("namespace %s is being deleted: nothing there is held back any longer", namespace)
        self.manager.ending[namespace] = timestamp()
        for controller in self.manager.controllers:
            if isinstance(controller, Reconciler):
                for obj in controller.informer.list(namespace):
                    controller.enqueue(key_of(obj))

    async def _finalizers(self, key: Key, obj: Object, wanted: list[str]) -> None:
        """Others may change theirs at the same time: then there is a conflict, and another round."""
        version = obj["metadata"]["resourceVersion"]
        with suppress(NotFound):
            await self.patch(key, obj, {"metadata": {"resourceVersion": version, "finalizers": wanted}})

    async def reconcile(self, key: Key) -> float | None:
        obj = self.informer.get(*key)
        if obj is None:
            await self.forget(key)
            return None
        if is_deleting(obj):
            return await self._leave(key, obj)
        if self._ends(obj):
            if held(obj):
                await self._finalizers(key, obj, [name for name in finalizers_of(obj) if name not in _FINALIZERS])
            return None
        if self.holds and FINALIZER not in finalizers_of(obj):
            await self._finalizers(key, obj, [*finalizers_of(obj), FINALIZER])
        again: float | None = None
        try:
            spec = load_spec(self.spec_type, obj)
            report, again = await self.act(key, obj, spec)
        except Waiting as error:
            report = Report(False, error.reason, str(error), busy=str(error))
            again = error.again
        except InvalidSpec as error:
            report = Report(False, "InvalidSpec", str(error), fault=str(error), fault_reason="InvalidSpec")
        except BadConf as error:
            text = f"{error}. The configuration in effect stays as it is."
            report = Report(False, "InvalidConfiguration", text, fault=text, fault_reason="InvalidConfiguration")
        except (Invalid, Forbidden) as error:
            if isinstance(error, Forbidden) and "is being terminated" in error.message:
                self._namespace_ends(key.namespace)
            text = f"Kubernetes refuses to {error.verb} {error.target}: {error.message}"
            report = Report(False, "Refused", text, fault=text, fault_reason="Refused")
            again = REFUSED_RETRY_SECONDS
        await self.report(key, obj, report)
        return again

    async def report(self, key: Key, obj: Object, report: Report) -> None:
        """Write the status if it says something new, and an event when a fault appears."""
        generation = obj["metadata"].get("generation", 0)
        old = (obj.get("status") or {}).get("conditions") or ()
        wanted = set_conditions(old, conditions(report, generation))
        before = {entry["type"]: entry for entry in old}
        if report.fault and (before.get("Degraded") or {}).get("message") != report.fault:
            self.events.event(obj, "Warning", report.fault_reason, report.fault)
        ready = (before.get("Ready") or {}).get("status") == "True"
        if report.ready and not ready:
            self.events.event(obj, "Normal", "Ready", report.message)
        kept = {name: value for name, value in (obj.get("status") or {}).items() if name != "conditions"}
        # What was counted before stays when nothing could be counted: autoscalers read it.
        await self.apply_status(key, {**obj, "status": {**(report.fields or kept), "conditions": wanted}})

    async def secret_once(self, owner: Key, namespace: str, name: str, make: Callable[[], Object]) -> Object:
        """The Secret of that name; made if there is none, and never changed."""
        found = await self.kube.get(SECRETS, namespace, name)
        if found is not None:
            return found
        try:
            return await self.create(owner, make())
        except AlreadyExists:
            found = await self.kube.get(SECRETS, namespace, name)
            if found is None:
                raise Waiting("SecretGone", f"Secret {name} came and went") from None
            return found


class Member(Reconciler[Spec], Generic[Spec]):
    """A kind that belongs to a Controller: it wakes up when that or its configuration comes or changes."""

    app: ClassVar[str]
    """Value of app.kubernetes.io/name of its pods."""

    controllers: Informer
    configs: Informer
    pods: Informer

    def setup(self) -> None:
        self.informer = self.watch(self.resource)
        self.informer.add_index(BY_CONTROLLER, index_by_controller)
        self.controllers = self.watch(CONTROLLERS, self._members, status_too=False)
        self.configs = self.watch(CONFIGMAPS, self._members_by_config, metadata_only=True)
        self.pods = self.watch_pods()
        self.pods.add_label_index(LABEL_INSTANCE)

    def watch_pods(self) -> Informer:
        """The pods of this kind; each event wakes up the resource that its labels name."""
        return self.watch(PODS, of_instance, label_selector=f"{LABEL_NAME}={self.app}", transform=trim_pod)

    def _members(self, controller: Object) -> Iterable[Key]:
        meta = controller["metadata"]
        members = self.informer.by_index(BY_CONTROLLER, f"{meta['namespace']}/{meta['name']}")
        return [Key(one["metadata"]["namespace"], one["metadata"]["name"]) for one in members]

    def _members_by_config(self, config: Object) -> Iterable[Key]:
        meta = config["metadata"]
        name = labels_of(config).get(LABEL_CLUSTER, "")
        if not name or meta["name"] != controller_config(name):
            return ()
        return self._members({"metadata": {"namespace": meta["namespace"], "name": name}})

    def cluster_of(self, obj: Object) -> tuple[Object, Cluster]:
        """The Controller this belongs to. Raises Waiting while it, its keys or its configuration are not there."""
        namespace, name = obj["metadata"]["namespace"], controller_ref(obj)
        controller = self.controllers.get(namespace, name)
        if controller is None or is_deleting(controller):
            raise Waiting(
                "NoController", f"there is no Controller {name} in namespace {namespace} (spec.controllerRef)"
            )
        try:
            spec = load_spec(ControllerSpec, controller)
        except InvalidSpec as error:
            raise Waiting("ControllerInvalid", f"Controller {name} cannot be used: {error}") from None
        if self.configs.get(namespace, controller_config(name)) is None:
            raise Waiting("ControllerNotReady", f"Controller {name} has no configuration yet")
        return controller, Cluster(name, namespace, spec, cluster_domain())

    def pods_of(self, obj: Object) -> list[Object]:
        """Pods whose labels say that they are of this resource."""
        meta = obj["metadata"]
        found = self.pods.by_index(LABEL_INSTANCE, meta["name"])
        return [pod for pod in found if pod["metadata"]["namespace"] == meta["namespace"]]


def finalizers_of(obj: Object) -> list[str]:
    return list(obj["metadata"].get("finalizers") or ())


def held(obj: Object) -> bool:
    """A finalizer of ours keeps it, or one that the Go operator left."""
    return any(name in _FINALIZERS for name in finalizers_of(obj))


def skips_drain(obj: Object | None) -> bool:
    """Somebody said not to wait for the jobs."""
    return obj is not None and annotations_of(obj).get(ANNOTATION_SKIP_DRAIN, "").lower() == "true"


def of_instance(obj: Object) -> Iterable[Key]:
    name = labels_of(obj).get(LABEL_INSTANCE)
    return (Key(obj["metadata"]["namespace"], name),) if name else ()
