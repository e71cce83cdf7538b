"""Metrics under the names of controller-runtime and client-go, so that existing dashboards and alerts work."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from slurm_operator.kube.informer import Informer
from slurm_operator.kube.resources import Key
from slurm_operator.kube.workqueue import WorkQueue

_QUEUE_BUCKETS = (0.001, 0.01, 0.1, 1, 10, 60)
_RECONCILE_BUCKETS = (0.005, 0.025, 0.1, 0.5, 1, 5, 15, 60)


class Metrics:
    """All series of one process, in a registry of its own."""

    def __init__(self) -> None:
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=self.registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(name, text, labels, registry=self.registry)

        def histogram(name: str, text: str, label: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, text, (label,), buckets=buckets, registry=self.registry)

        self.reconciles = counter("controller_runtime_reconcile_total", "Reconciles by result", "controller", "result")
        self.errors = counter("controller_runtime_reconcile_errors_total", "Reconciles that failed", "controller")
        self.seconds = histogram(
            "controller_runtime_reconcile_time_seconds", "Length of reconciles", "controller", _RECONCILE_BUCKETS
        )
        self.active = gauge("controller_runtime_active_workers", "Reconciles going on", "controller")
        self.workers = gauge("controller_runtime_max_concurrent_reconciles", "Most reconciles at a time", "controller")
        self.depth = gauge("workqueue_depth", "Keys ready to be worked on", "name")
        self.adds = counter("workqueue_adds_total", "Keys queued", "name")
        self.waited = histogram("workqueue_queue_duration_seconds", "Time in the queue", "name", _QUEUE_BUCKETS)
        self.worked = histogram("workqueue_work_duration_seconds", "Time in work", "name", _QUEUE_BUCKETS)
        self.retries = counter("workqueue_retries_total", "Keys queued again after a failure", "name")
        self.requests = counter("rest_client_requests_total", "Answers of the API server", "method", "code")
        self.slurm_requests = counter("slurm_client_requests_total", "Answers of slurmrestd", "method", "code")
        self.slurm_seconds = histogram(
            "slurm_client_request_seconds", "Time to an answer of slurmrestd", "method", _RECONCILE_BUCKETS
        )
        self.leader = gauge("leader_election_master_status", "1 on the replica that acts", "name")
        self.loop_lag = gauge("slurm_operator_loop_lag_seconds", "How late the event loop woke up last")

    def observe_kube(self, method: str, status: int, seconds: float) -> None:
        """For KubeClient(observe=…); code "<error>" means that there was no answer, as in client-go."""
        self.requests.labels(method, str(status) if status else "<error>").inc()

    def observe_slurm(self, method: str, status: int, seconds: float) -> None:
        """For SlurmClient(observe=…)."""
        self.slurm_requests.labels(method, str(status) if status else "<error>").inc()
        self.slurm_seconds.labels(method).observe(seconds)

    def queue(self, name: str) -> QueueMeter:
        """The meter of one work queue."""
        return QueueMeter(self, name)

    def watch_state(
        self,
        queues: Callable[[], dict[str, WorkQueue[Key]]],
        informers: Callable[[], Iterable[Informer]],
        dropped_events: Callable[[], int],
    ) -> None:
        """Add what is read from live objects at the time of a scrape."""
        self.registry.register(_Live(queues, informers, dropped_events))

    def text(self) -> bytes:
        """Everything in Prometheus' text format."""
        return prometheus_client.generate_latest(self.registry)


class QueueMeter:
    """Feeds one queue's series; implements workqueue.Meter."""

    def __init__(self, metrics: Metrics, name: str) -> None:
        self._depth = metrics.depth.labels(name)
        self._adds = metrics.adds.labels(name)
        self._waited = metrics.waited.labels(name)
        self._worked = metrics.worked.labels(name)
        self._retries = metrics.retries.labels(name)

    def added(self, depth: int) -> None:
        self._adds.inc()
        self._depth.set(depth)

    def started(self, depth: int, waited: float) -> None:
        self._depth.set(depth)
        self._waited.observe(waited)

    def finished(self, depth: int, worked: float) -> None:
        self._depth.set(depth)
        self._worked.observe(worked)

    def retried(self) -> None:
        self._retries.inc()


class _Live(Collector):
    """Series whose value is a look at the process, taken when somebody asks."""

    def __init__(
        self,
        queues: Callable[[], dict[str, WorkQueue[Key]]],
        informers: Callable[[], Iterable[Informer]],
        dropped_events: Callable[[], int],
    ) -> None:
        self._queues = queues
        self._informers = informers
        self._dropped = dropped_events

    def collect(self) -> Iterable[Metric]:
        now = time.monotonic()
        unfinished = GaugeMetricFamily("workqueue_unfinished_work_seconds", "Sum of work going on", labels=["name"])
        longest = GaugeMetricFamily(
            "workqueue_longest_running_processor_seconds", "Longest work going on", labels=["name"]
        )
        for name, queue in self._queues().items():
            ages = [now - since for since in queue.processing.values()]
            unfinished.add_metric([name], sum(ages))
            longest.add_metric([name], max(ages, default=0.0))
        objects = GaugeMetricFamily("slurm_operator_cache_objects", "Objects in the cache", labels=["resource"])
        age = GaugeMetricFamily(
            "slurm_operator_cache_last_event_age_seconds", "Since the watch brought something", labels=["resource"]
        )
        relists = CounterMetricFamily("slurm_operator_cache_lists", "Complete lists taken", labels=["resource"])
        totals: dict[str, tuple[int, float, int]] = {}
        for informer in self._informers():
            name = str(informer.resource)
            size, oldest, lists = totals.get(name, (0, 0.0, 0))
            totals[name] = (size + len(informer), max(oldest, now - informer.last_event), lists + informer.relists)
        for name, (size, oldest, lists) in totals.items():
            objects.add_metric([name], size)
            age.add_metric([name], oldest)
            relists.add_metric([name], lists)
        dropped = CounterMetricFamily("slurm_operator_events_dropped", "Events that were not written")
        dropped.add_metric([], self._dropped())
        return [unfinished, longest, objects, age, relists, dropped]
