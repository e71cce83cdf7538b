"""Waiting until an object is ready, or gone; with messages meanwhile, and with the reason when it does not happen."""

from __future__ import annotations

import time

from localcloud.kubernetes.provider import diagnosis, rules, waitfor
from localcloud.kubernetes.provider.check import SKIP_AWAIT, TIMEOUT, WAIT_FOR, annotation
from localcloud.kubernetes.provider.client import ApiError, Unreachable
from localcloud.kubernetes.provider.cluster import Cluster, Progress
from localcloud.kubernetes.provider.discovery import NoSuchKind, Resource
from localcloud.kubernetes.provider.wire import Object, get

DEFAULT_TIMEOUT = 600.0  # seconds


class NotReady(Exception):
    """The object is there but did not become ready; `live` is its last state, `reasons` what was wrong."""

    def __init__(self, live: Object, reasons: list[str]) -> None:
        self.live, self.reasons = live, reasons
        super().__init__("; ".join(reasons[:1]))


class StillThere(Exception):
    """The object was deleted but did not go; the message says what holds it."""


def timeout_of(inputs: Object, custom: float) -> float:
    """Seconds to wait: the resource's customTimeouts, else its annotation, else ten minutes."""
    stated = annotation(inputs, TIMEOUT)
    if custom > 0:
        return custom
    return float(stated) if stated and stated.isdigit() else DEFAULT_TIMEOUT


def until_ready(cluster: Cluster, resource: Resource, inputs: Object, live: Object, urn: str, timeout: float) -> Object:
    """Wait until `live` is ready by its annotations or by the rule of its kind. Returns its state then.

    Raises NotReady when it takes longer than `timeout` seconds or can never be; Cancelled.
    """
    if annotation(inputs, SKIP_AWAIT) == "true":
        return live
    stated = annotation(inputs, WAIT_FOR)
    expressions = waitfor.parse(stated) if stated else []
    if not expressions and not rules.has_rule(resource.api_version, resource.kind):
        return live
    metadata = live["metadata"]
    name, namespace = metadata["name"], metadata.get("namespace")
    progress = Progress(cluster.log, urn)
    steadiness = diagnosis.Steadiness()
    missing, last = "", live
    for elapsed in cluster.polls(timeout):
        if elapsed > 0:
            try:
                found = cluster.fetch(resource, namespace, name, patient=False)
            except (ApiError, Unreachable) as error:
                # The API server may be restarting; the object's state is not known, so the wait goes on.
                missing = str(error)
                if progress.due(elapsed):
                    progress.say(elapsed, missing)
                continue
            if found is None:
                raise NotReady(last, [f"{resource.kind} {name} was removed by someone while it was waited for"])
            last = found
        verdict = _verdict(cluster, last, expressions)
        if verdict.ready and not expressions:
            verdict = rules.Verdict(steadiness.doubt(last, cluster.reader, elapsed))
        if verdict.ready:
            return last
        missing = verdict.missing
        if verdict.failed:
            raise NotReady(last, [missing, *diagnosis.full(last, cluster.reader)])
        if progress.due(elapsed):
            why = diagnosis.brief(last, cluster.reader)
            progress.say(elapsed, f"{missing}; {why}" if why else missing)
    raise NotReady(last, [f"not ready after {timeout:.0f} s: {missing}", *diagnosis.full(last, cluster.reader)])


def _verdict(cluster: Cluster, live: Object, expressions: list[waitfor.Expression]) -> rules.Verdict:
    if expressions:
        return rules.Verdict(waitfor.missing(expressions, live))
    return rules.verdict(live, cluster.reader)


def until_gone(
    cluster: Cluster, resource: Resource, namespace: str | None, name: str, uid: str | None, urn: str, timeout: float
) -> None:
    """Wait until the object is gone (another one of its name counts as gone). Raises StillThere, Cancelled."""
    progress = Progress(cluster.log, urn)
    holds = ""
    for elapsed in cluster.polls(timeout):
        try:
            live = cluster.fetch(resource, namespace, name, patient=False)
        except (ApiError, Unreachable) as error:
            holds = str(error)
            live = {}
        if live is None or (uid and live and get(live, "metadata", "uid") != uid):
            return
        if live:
            holds = what_holds(cluster, live)
        if progress.due(elapsed):
            progress.say(elapsed, f"waiting for it to go: {holds}")
    raise StillThere(
        f"{resource.kind} {name} is still there {timeout:.0f} s after it was deleted: {holds}. "
        "Repeat the run to go on waiting, or find out why its controller does not finish."
    )


def what_holds(cluster: Cluster, live: Object) -> str:
    """What keeps a deleted object from going, in words."""
    metadata = live["metadata"]
    held: list[str] = []
    finalizers = [*(metadata.get("finalizers") or []), *(get(live, "spec", "finalizers") or [])]
    if live.get("kind") == "Namespace":
        conditions = get(live, "status", "conditions") or []
        held += [item["message"] for item in conditions if item.get("status") == "True" and item.get("message")]
        finalizers = [item for item in finalizers if item != "kubernetes"]
    if "foregroundDeletion" in finalizers:
        pods = [pod["metadata"]["name"] for pod in diagnosis.pods_of(live, cluster.reader)]
        held.append(f"what it owns goes first ({', '.join(pods[:3]) or 'no pod of it is left'})")
        finalizers.remove("foregroundDeletion")
    if finalizers:
        held.append(f"finalizers {', '.join(finalizers)}")
    if not held and live.get("kind") == "Pod":
        held.append(f"its containers are being stopped (grace period {metadata.get('deletionGracePeriodSeconds')} s)")
    return "; ".join(held) or "the API server has not removed it yet"


def until_served(cluster: Cluster, definition: Object, timeout: float = 30.0) -> None:
    """Wait until the kind of an established CustomResourceDefinition is in discovery, for what is created next."""
    spec = definition.get("spec") or {}
    deadline = time.monotonic() + timeout
    for version in spec.get("versions") or []:
        if not version.get("served"):
            continue
        api_version = f"{spec['group']}/{version['name']}"
        cluster.discovery.forget(api_version)
        while time.monotonic() < deadline:
            try:
                cluster.discovery.find(api_version, spec["names"]["kind"])
                break
            except NoSuchKind:
                cluster.pause(0.1)
