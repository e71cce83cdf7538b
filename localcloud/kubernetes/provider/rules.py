"""When an object of a built-in kind is ready, and what is missing until then. Kinds without a rule are ready at once.

Rules are functions of the live object; the few that must look at other objects get a `Look` for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from localcloud.kubernetes.provider.discovery import group_of
from localcloud.kubernetes.provider.wire import Object, get


@dataclass(frozen=True)
class Verdict:
    """`missing` says in words what is not there yet, empty when ready; `failed`: waiting longer cannot help."""

    missing: str = ""
    failed: bool = False

    @property
    def ready(self) -> bool:
        return not self.missing


READY = Verdict()
_SLICE_LABEL = "kubernetes.io/service-name"


class Look(Protocol):
    """Reads of other objects that a rule needs."""

    def one(self, api_version: str, kind: str, namespace: str | None, name: str) -> Object | None: ...

    def many(self, api_version: str, kind: str, namespace: str | None, labels: str = "") -> list[Object]: ...


def verdict(live: Object, look: Look, in_release: bool = False) -> Verdict:
    """Whether `live` is ready. `in_release`: by helm's rules, which do not ask for a Service's endpoints or Jobs."""
    kind = live.get("kind", "")
    if in_release and kind == "Service" and get(live, "spec", "type") != "LoadBalancer":
        return READY
    if in_release and kind == "Ingress":
        return READY
    rule = _RULES.get((group_of(live.get("apiVersion", "")), kind))
    return rule(live, look) if rule else READY


def has_rule(api_version: str, kind: str) -> bool:
    """Whether an object of this kind can be there and not be ready."""
    return (group_of(api_version), kind) in _RULES


def selector_text(selector: Any) -> str:
    """A label selector as a query parameter; empty where there is none, or one that a query cannot say."""
    if not isinstance(selector, dict):
        return ""
    terms = [f"{key}={value}" for key, value in (selector.get("matchLabels") or {}).items()]
    for expression in selector.get("matchExpressions") or []:
        values = ",".join(expression.get("values") or [])
        operator = expression.get("operator")
        if operator in ("In", "NotIn"):
            terms.append(f"{expression['key']} {operator.lower()} ({values})")
        elif operator in ("Exists", "DoesNotExist"):
            terms.append(expression["key"] if operator == "Exists" else f"!{expression['key']}")
    return ",".join(terms)


def condition(live: Object, type_: str) -> Object | None:
    """The condition of this type in an object's status."""
    return next((c for c in get(live, "status", "conditions") or [] if c.get("type") == type_), None)


def _status(live: Object, key: str) -> int:
    value = get(live, "status", key)
    return value if isinstance(value, int) else 0


def _unseen(live: Object) -> bool:
    return _status(live, "observedGeneration") < (get(live, "metadata", "generation") or 0)


def _words(found: Object | None) -> str:
    return ": ".join(text for text in ((found or {}).get("reason"), (found or {}).get("message")) if text)


def _deployment(live: Object, look: Look) -> Verdict:
    if get(live, "spec", "paused"):
        return READY
    if _unseen(live):
        return Verdict("the deployment controller has not seen this version yet")
    wanted = get(live, "spec", "replicas")
    wanted = 1 if wanted is None else wanted
    progressing = condition(live, "Progressing")
    if progressing and progressing.get("reason") == "ProgressDeadlineExceeded":
        return Verdict(f"{_status(live, 'availableReplicas')} of {wanted} pods available; {_words(progressing)}", True)
    updated, total = _status(live, "updatedReplicas"), _status(live, "replicas")
    available = _status(live, "availableReplicas")
    if updated < wanted:
        failure = condition(live, "ReplicaFailure")
        return Verdict(f"{updated} of {wanted} pods made" + (f"; {_words(failure)}" if failure else ""))
    if available < wanted:
        return Verdict(f"{available} of {wanted} pods available")
    if total > updated:
        return Verdict(f"{total - updated} pods of the old version still there")
    return READY


def _stateful_set(live: Object, look: Look) -> Verdict:
    if _unseen(live):
        return Verdict("the StatefulSet controller has not seen this version yet")
    wanted = get(live, "spec", "replicas")
    wanted = 1 if wanted is None else wanted
    strategy = get(live, "spec", "updateStrategy") or {}
    ready = _status(live, "readyReplicas")
    if ready < wanted:
        return Verdict(f"{ready} of {wanted} pods ready")
    if strategy.get("type") == "OnDelete":
        return READY
    keep = get(strategy, "rollingUpdate", "partition") or 0
    update = max(wanted - keep, 0)
    current = get(live, "status", "currentRevision") == get(live, "status", "updateRevision")
    updated = _status(live, "updatedReplicas")
    if not current and updated < update:
        return Verdict(f"{updated} of {update} pods updated")
    return READY


def _daemon_set(live: Object, look: Look) -> Verdict:
    if _unseen(live):
        return Verdict("the DaemonSet controller has not seen this version yet")
    wanted = _status(live, "desiredNumberScheduled")
    updated, available = _status(live, "updatedNumberScheduled"), _status(live, "numberAvailable")
    if get(live, "spec", "updateStrategy", "type") != "OnDelete" and updated < wanted:
        return Verdict(f"{updated} of {wanted} pods updated")
    return READY if available >= wanted else Verdict(f"{available} of {wanted} pods available")


def _replica_set(live: Object, look: Look) -> Verdict:
    wanted = get(live, "spec", "replicas")
    wanted = 1 if wanted is None else wanted
    if _unseen(live) or _status(live, "readyReplicas") < wanted:
        return Verdict(f"{_status(live, 'readyReplicas')} of {wanted} pods ready")
    return READY


def _job(live: Object, look: Look) -> Verdict:
    failed = condition(live, "Failed")
    if failed and failed.get("status") == "True":
        return Verdict(f"the job failed: {_words(failed)}", True)
    complete = condition(live, "Complete")
    if (complete and complete.get("status") == "True") or get(live, "spec", "suspend"):
        return READY
    wanted = get(live, "spec", "completions") or 1
    counts = f"{_status(live, 'active')} running, {_status(live, 'failed')} failed"
    return Verdict(f"{_status(live, 'succeeded')} of {wanted} completions ({counts})")


def _pod(live: Object, look: Look) -> Verdict:
    phase = get(live, "status", "phase") or "Pending"
    if phase == "Succeeded":
        return READY
    if phase == "Failed":
        reason = get(live, "status", "reason") or "its containers ended with an error"
        return Verdict(f"the pod failed: {reason}", True)
    ready = condition(live, "Ready")
    if ready and ready.get("status") == "True":
        return READY
    return Verdict(f"the pod is {phase} and not ready")


def _service(live: Object, look: Look) -> Verdict:
    spec = live.get("spec") or {}
    if spec.get("type") == "ExternalName":
        return READY
    if spec.get("type") == "LoadBalancer" and not get(live, "status", "loadBalancer", "ingress"):
        return Verdict("no address from the load balancer yet")
    if spec.get("clusterIP") == "None" or not spec.get("selector"):
        return READY
    metadata = live["metadata"]
    slices = look.many(
        "discovery.k8s.io/v1",
        "EndpointSlice",
        metadata.get("namespace"),
        f"kubernetes.io/service-name={metadata['name']}",
    )
    for endpoint in (endpoint for item in slices for endpoint in item.get("endpoints") or []):
        if get(endpoint, "conditions", "ready") is not False:
            return READY
    labels = selector_text({"matchLabels": spec["selector"]})
    return Verdict(f"no ready pod with the labels {labels} yet")


def _ingress(live: Object, look: Look) -> Verdict:
    if get(live, "status", "loadBalancer", "ingress"):
        return READY
    return Verdict("no address from the ingress controller yet")


def _claim(live: Object, look: Look) -> Verdict:
    phase = get(live, "status", "phase")
    if phase == "Bound":
        return READY
    if phase == "Lost":
        return Verdict("the volume of the claim is lost", True)
    if not get(live, "spec", "volumeName"):
        class_ = _storage_class(live, look)
        if class_ and class_.get("volumeBindingMode") == "WaitForFirstConsumer":
            return READY  # it is bound when a pod uses it, which may be much later
    return Verdict("no volume is bound to the claim yet")


def _storage_class(claim: Object, look: Look) -> Object | None:
    name = get(claim, "spec", "storageClassName")
    if name:
        return look.one("storage.k8s.io/v1", "StorageClass", None, name)
    if name == "":
        return None
    for class_ in look.many("storage.k8s.io/v1", "StorageClass", None):
        if get(class_, "metadata", "annotations", "storageclass.kubernetes.io/is-default-class") == "true":
            return class_
    return None


def _volume(live: Object, look: Look) -> Verdict:
    phase = get(live, "status", "phase")
    return READY if phase in ("Available", "Bound") else Verdict(f"the volume is {phase or 'not seen'} yet")


def _definition(live: Object, look: Look) -> Verdict:
    names = condition(live, "NamesAccepted")
    if names and names.get("status") == "False":
        return Verdict(f"its names are not accepted: {_words(names)}", True)
    established = condition(live, "Established")
    if established and established.get("status") == "True":
        return READY
    return Verdict("its kind is not served yet")


def _api_service(live: Object, look: Look) -> Verdict:
    available = condition(live, "Available")
    if available and available.get("status") == "True":
        return READY
    return Verdict(f"the API it adds does not answer: {_words(available)}" if available else "not seen yet")


def _namespace(live: Object, look: Look) -> Verdict:
    phase = get(live, "status", "phase")
    if phase == "Terminating":
        return Verdict("the namespace is being removed", True)
    return READY if phase == "Active" else Verdict("the namespace is not active yet")


_RULES: dict[tuple[str, str], Callable[[Object, Look], Verdict]] = {
    ("apps", "Deployment"): _deployment,
    ("apps", "StatefulSet"): _stateful_set,
    ("apps", "DaemonSet"): _daemon_set,
    ("apps", "ReplicaSet"): _replica_set,
    ("batch", "Job"): _job,
    ("", "Pod"): _pod,
    ("", "Service"): _service,
    ("networking.k8s.io", "Ingress"): _ingress,
    ("", "PersistentVolumeClaim"): _claim,
    ("", "PersistentVolume"): _volume,
    ("apiextensions.k8s.io", "CustomResourceDefinition"): _definition,
    ("apiregistration.k8s.io", "APIService"): _api_service,
    ("", "Namespace"): _namespace,
}
