"""Why a workload is not ready: its pods with their reasons, their last events and the last lines they logged."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from localcloud.kubernetes.provider.client import ApiError, Client, Unreachable
from localcloud.kubernetes.provider.discovery import Discovery, NoSuchKind
from localcloud.kubernetes.provider.rules import condition, selector_text
from localcloud.kubernetes.provider.wire import Object, get

_PODS_SHOWN = 3
_LOG_LINES = 5
CONFIRM = 1.5  # seconds
_GROWN = 15.0  # seconds after which a running container needs no second look
_STEADY_KINDS = ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Pod")
# Reasons of a waiting container that are a normal part of starting.
_STARTING = ("ContainerCreating", "PodInitializing")


class Reader:
    """Reads of other objects; what cannot be read is not there."""

    def __init__(self, client: Client, discovery: Discovery) -> None:
        self._client, self._discovery = client, discovery

    def one(self, api_version: str, kind: str, namespace: str | None, name: str) -> Object | None:
        try:
            resource = self._discovery.find(api_version, kind)
            found: Object = self._client.get(resource.path(namespace, name))
        except (ApiError, NoSuchKind, Unreachable):
            return None
        return found

    def many(
        self, api_version: str, kind: str, namespace: str | None, labels: str = "", fields: str = ""
    ) -> list[Object]:
        params = {key: value for key, value in (("labelSelector", labels), ("fieldSelector", fields)) if value}
        try:
            resource = self._discovery.find(api_version, kind)
            items = self._client.get(resource.path(namespace), params).get("items") or []
        except (ApiError, NoSuchKind, Unreachable):
            return []
        # Items of a list carry no kind of their own.
        return [{"apiVersion": api_version, "kind": kind, **item} for item in items]

    def logs(self, namespace: str, pod: str, container: str, previous: bool) -> list[str]:
        params = {"container": container, "tailLines": str(_LOG_LINES), "previous": str(previous).lower()}
        try:
            return self._client.text(f"/api/v1/namespaces/{namespace}/pods/{pod}/log", params).splitlines()
        except (ApiError, Unreachable):
            return []


def pods_of(live: Object, reader: Reader) -> list[Object]:
    """The pods of a workload; the object itself if it is a Pod; none for other kinds."""
    if live.get("kind") == "Pod":
        return [live]
    selector = get(live, "spec", "selector")
    if live.get("kind") == "Service":
        selector = {"matchLabels": selector or {}}
    elif not str(live.get("apiVersion", "")).startswith(("apps/", "batch/")):
        return []
    labels = selector_text(selector)
    return reader.many("v1", "Pod", live["metadata"].get("namespace"), labels) if labels else []


def problem(pod: Object) -> str:
    """What keeps a pod from being ready, in words; empty for a ready or finished one."""
    status = pod.get("status") or {}
    if status.get("phase") == "Succeeded" or (condition(pod, "Ready") or {}).get("status") == "True":
        return ""
    if get(pod, "metadata", "deletionTimestamp"):
        return "is being removed"
    for container in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        why = _container_problem(container)
        if why:
            return why
    if status.get("phase") == "Failed":
        return ": ".join(text for text in (status.get("reason") or "Failed", status.get("message")) if text)
    scheduled = condition(pod, "PodScheduled")
    if scheduled and scheduled.get("status") == "False":
        return f"{scheduled.get('reason')}: {scheduled.get('message')}"
    if not scheduled and not get(pod, "spec", "nodeName"):
        return "waits for the scheduler"
    running = [c["name"] for c in status.get("containerStatuses") or [] if not c.get("ready")]
    return f"starting ({', '.join(running)} not ready)" if running else "starting"


def _container_problem(container: Object) -> str:
    name, state = container.get("name"), container.get("state") or {}
    waiting, ended = state.get("waiting"), state.get("terminated")
    if waiting and waiting.get("reason") not in (*_STARTING, None):
        text = f"{waiting['reason']}"
        last = get(container, "lastState", "terminated")
        if waiting["reason"] == "CrashLoopBackOff" and last:
            return f"{text}: container {name} ended with exit code {last.get('exitCode')} ({last.get('reason')})"
        return f"{text}: {waiting['message']}" if waiting.get("message") else text
    if ended and ended.get("exitCode"):
        said = f": {ended['message'].strip()}" if ended.get("message") else ""
        return f"container {name} ended with exit code {ended['exitCode']} ({ended.get('reason')}){said}"
    return ""


class Steadiness:
    """Whether pods that count as ready stay up.

    A container without a readiness probe is ready the moment it runs, also one that ends with an error at once. So
    such containers, if young, must be seen running twice, CONFIRM seconds apart.
    """

    def __init__(self) -> None:
        self._since = 0.0
        self._seen: frozenset[str] | None = None

    def doubt(self, live: Object, reader: Reader, elapsed: float) -> str:
        """What speaks against calling `live` ready now; empty when nothing does."""
        if live.get("kind") not in _STEADY_KINDS:
            return ""
        young = frozenset(item for pod in pods_of(live, reader) for item in _young_containers(pod))
        if not young:
            return ""
        if young != self._seen:
            self._seen, self._since = young, elapsed
        return "its pods run; watching whether they stay up" if elapsed - self._since < CONFIRM else ""


def _young_containers(pod: Object) -> list[str]:
    """The containers whose being ready means little yet; by id, so that a restarted one is another."""
    probed = {c["name"] for c in get(pod, "spec", "containers") or [] if c.get("readinessProbe")}
    now = datetime.now(UTC)
    young: list[str] = []
    for status in get(pod, "status", "containerStatuses") or []:
        started = get(status, "state", "running", "startedAt")
        old = started and (now - datetime.fromisoformat(started)).total_seconds() > _GROWN
        finished = get(status, "state", "terminated", "reason") == "Completed"
        if status["name"] not in probed and not old and not finished:
            young.append(f"{status['name']} {status.get('containerID')} {bool(started)}")
    return young


def brief(live: Object, reader: Reader) -> str:
    """One line on the pods that are not ready, for a progress message."""
    found = [(pod["metadata"]["name"], problem(pod)) for pod in pods_of(live, reader)]
    bad = [f"pod {name}: {_first_line(why)}" for name, why in found if why]
    return "; ".join(bad[:2]) + (f"; and {len(bad) - 2} more" if len(bad) > 2 else "")


def _first_line(text: str, limit: int = 160) -> str:
    line = text.strip().splitlines()[0] if text.strip() else ""
    return line if len(line) <= limit else line[: limit - 1] + "…"


def full(live: Object, reader: Reader) -> list[str]:
    """Paragraphs on each pod that is not ready (at most three): reason, last warning event, last log lines."""
    pods = [pod for pod in pods_of(live, reader) if problem(pod)]
    report = [_describe(pod, reader) for pod in pods[:_PODS_SHOWN]]
    if len(pods) > _PODS_SHOWN:
        report.append(f"and {len(pods) - _PODS_SHOWN} more pods are not ready")
    if not pods:
        event = last_event(live, reader)
        if event:
            report.append(f"last event of {live.get('kind')} {live['metadata']['name']}: {event}")
    return report


def _describe(pod: Object, reader: Reader) -> str:
    metadata = pod["metadata"]
    node = get(pod, "spec", "nodeName")
    lines = [f"pod {metadata['name']}" + (f" on {node}" if node else "") + f": {problem(pod)}"]
    event = last_event(pod, reader)
    if event:
        lines.append(f"  last event: {event}")
    statuses = [
        *(get(pod, "status", "initContainerStatuses") or []),
        *(get(pod, "status", "containerStatuses") or []),
    ]
    for container in statuses:
        if container.get("ready") or not container.get("containerID"):
            continue
        said = _last_words(metadata["namespace"], metadata["name"], container, reader)
        if said:
            lines.append(f"  last lines of container {container['name']}:")
            lines += [f"    {line}" for line in said]
            break
    return "\n".join(lines)


def _last_words(namespace: str, pod: str, container: Object, reader: Reader) -> list[str]:
    """The last lines of a container that does not run well: of its last full run, if it ended before."""
    ended = bool(get(container, "lastState", "terminated")) and not get(container, "state", "running")
    # Between two runs of a crashing container its log may be away for a moment.
    for pause, previous in ((0.0, ended), (0.3, not ended), (0.7, ended)):
        time.sleep(pause)
        lines = reader.logs(namespace, pod, container["name"], previous)
        if lines and not lines[-1].startswith("unable to retrieve container logs"):
            return lines
    return []


def last_event(live: Object, reader: Reader) -> str:
    """The newest warning about an object, else its newest event, in words; empty where there is none."""
    metadata = live["metadata"]
    if not metadata.get("uid"):
        return ""
    events = reader.many(
        "v1", "Event", metadata.get("namespace") or "default", fields=f"involvedObject.uid={metadata['uid']}"
    )
    if not events:
        return ""
    newest = max(events, key=lambda e: (e.get("type") == "Warning", _when(e)))
    return f"{newest.get('reason')}: {_first_line(newest.get('message') or '', 400)}"


def _when(event: Object) -> str:
    return str(
        event.get("lastTimestamp") or event.get("eventTime") or get(event, "metadata", "creationTimestamp") or ""
    )
