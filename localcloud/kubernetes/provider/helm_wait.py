"""Whether the objects of a Helm release are ready, or gone: by the same rules as for objects of their own."""

from __future__ import annotations

from dataclasses import dataclass

from localcloud.kubernetes.provider import diagnosis, rules, waitfor, waiting
from localcloud.kubernetes.provider.check import SKIP_AWAIT, WAIT_FOR, annotation
from localcloud.kubernetes.provider.client import ApiError, Unreachable
from localcloud.kubernetes.provider.cluster import Cluster, Progress
from localcloud.kubernetes.provider.discovery import NoSuchKind
from localcloud.kubernetes.provider.helm_records import Record
from localcloud.kubernetes.provider.wire import Object, get


@dataclass(frozen=True)
class Scope:
    """Whose release it is, the namespace of objects that name none, and whether Jobs must have run."""

    urn: str
    namespace: str
    jobs: bool


@dataclass(frozen=True)
class Report:
    """One object of a release that is not ready: what is missing, whether that is final, and its live state."""

    item: Object
    text: str
    final: bool = False
    live: Object | None = None


def until_ready(cluster: Cluster, scope: Scope, record: Record, timeout: float) -> None:
    """Wait until every object of the release is ready. Raises NotReady, which names each that is not; Cancelled."""
    pending = record.objects()
    progress = Progress(cluster.log, scope.urn)
    reports: list[Report] = []
    steady = {id(item): diagnosis.Steadiness() for item in pending}
    for elapsed in cluster.polls(max(timeout, 1.0)):
        reports = [r for item in pending if (r := _look(cluster, scope, item, steady[id(item)], elapsed))]
        pending = [report.item for report in reports]
        if not pending:
            return
        if any(report.final for report in reports):
            break
        if progress.due(elapsed):
            more = f" (and {len(reports) - 1} more objects)" if len(reports) > 1 else ""
            progress.say(elapsed, _line(cluster, reports[0]) + more)
    reasons = [f"not ready: {', '.join(_title(report.item) for report in reports)}"]
    for report in sorted(reports, key=lambda found: not found.final)[:3]:
        reasons.append(f"{_title(report.item)}: {report.text}")
        reasons += diagnosis.full(report.live, cluster.reader) if report.live else []
    raise waiting.NotReady(record.payload, reasons)


def missing(cluster: Cluster, scope: Scope, record: Record) -> list[str]:
    """What of the release is not ready now, one line for each object."""
    reports = (_look(cluster, scope, item) for item in record.objects())
    return [_line(cluster, report) for report in reports if report]


def going(cluster: Cluster, namespace: str, items: list[Object]) -> list[str]:
    """Which of the objects were deleted and are still there, and what holds them.

    Objects that nobody deleted are left out: the chart may say that they are to be kept.
    """
    found: list[str] = []
    for item in items:
        where = get(item, "metadata", "namespace") or namespace
        live = cluster.reader.one(str(item["apiVersion"]), str(item["kind"]), where, str(get(item, "metadata", "name")))
        if get(live, "metadata", "deletionTimestamp"):
            found.append(f"{_title(item)}: {waiting.what_holds(cluster, live or {})}")
    return found


def until_gone(cluster: Cluster, urn: str, namespace: str, items: list[Object], timeout: float) -> list[str]:
    """Wait until none of the objects is on its way out any more. Returns those that still are after `timeout`."""
    progress = Progress(cluster.log, urn)
    held: list[str] = []
    for elapsed in cluster.polls(timeout):
        held = going(cluster, namespace, items)
        if not held:
            break
        if progress.due(elapsed):
            progress.say(elapsed, f"waiting for {held[0]}")
    return held


def _look(
    cluster: Cluster, scope: Scope, item: Object, steady: diagnosis.Steadiness | None = None, elapsed: float = 0.0
) -> Report | None:
    """What is missing at one object of the manifest; None when it is ready or has nothing to be ready for."""
    kind, api_version = str(item["kind"]), str(item["apiVersion"])
    stated = annotation(item, WAIT_FOR)
    if annotation(item, SKIP_AWAIT) == "true" or not (stated or rules.has_rule(api_version, kind)):
        return None
    if kind == "Job" and not stated and not scope.jobs:
        return None
    namespace = get(item, "metadata", "namespace") or scope.namespace
    try:
        resource = cluster.discovery.find(api_version, kind, patient=False)
        live = cluster.fetch(resource, namespace, str(get(item, "metadata", "name")), patient=False)
    except (ApiError, NoSuchKind, Unreachable) as error:
        return Report(item, str(error))
    if live is None:
        return Report(item, "it is not there")
    if stated:
        try:
            text = waitfor.missing(waitfor.parse(stated), live)
        except waitfor.BadExpression as error:
            return Report(item, f"annotation {WAIT_FOR}: {error}", True, live)
        return Report(item, text, False, live) if text else None
    verdict = rules.verdict(live, cluster.reader, in_release=True)
    if verdict.ready and steady:
        verdict = rules.Verdict(steady.doubt(live, cluster.reader, elapsed))
    return None if verdict.ready else Report(item, verdict.missing, verdict.failed, live)


def _line(cluster: Cluster, report: Report) -> str:
    why = diagnosis.brief(report.live, cluster.reader) if report.live else ""
    return f"{_title(report.item)}: {report.text}" + (f"; {why}" if why else "")


def _title(item: Object) -> str:
    return f"{item['kind']} {get(item, 'metadata', 'name')}"
