"""Wires caches, queues, workers, leader election and signals into one process."""

from __future__ import annotations

import asyncio
import gc
import logging
import secrets
import signal
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from slurm_operator.errors import Unknown
from slurm_operator.kube.client import KubeClient
from slurm_operator.kube.errors import Conflict, KubeError, NotLeader
from slurm_operator.kube.events import EventRecorder
from slurm_operator.kube.informer import Informer, Transform
from slurm_operator.kube.lease import LeaderElector
from slurm_operator.kube.resources import Key, Resource
from slurm_operator.kube.workqueue import QueueShutDown
from slurm_operator.runtime import log
from slurm_operator.runtime.controller import Controller
from slurm_operator.runtime.health import MAX_WORK_SECONDS, Pulse, Server
from slurm_operator.runtime.metrics import Metrics
from slurm_operator.runtime.settings import LEASE_NAME, Settings
from slurm_operator.slurm.errors import SlurmException
from slurm_operator.slurm.registry import SlurmRegistry

CATCH_UP_SECONDS = 2.0  # a worker waits so long for the caches; then the key comes back later
CATCH_UP_RETRY_SECONDS = 0.5
QUIET_CONFLICTS = 3

_log = logging.getLogger("manager")


class Manager:
    """One operator process. `lease_client` reaches the same API server without a fence (see LeaderElector)."""

    def __init__(
        self, settings: Settings, kube: KubeClient, lease_client: KubeClient, metrics: Metrics | None = None
    ) -> None:
        self.settings = settings
        self.kube = kube
        self.metrics = metrics or Metrics()
        self.elector: LeaderElector | None = None
        if settings.leader_elect:
            namespace = settings.lease_namespace or kube.access.namespace
            self.elector = LeaderElector(
                lease_client,
                namespace,
                LEASE_NAME,
                settings.identity,
                lease_seconds=settings.lease_seconds,
                deadline_seconds=settings.deadline_seconds,
                retry_seconds=settings.retry_seconds,
            )
            kube.fence = self.elector.check
        self.slurm = SlurmRegistry(fence=kube.fence, observe=self.metrics.observe_slurm)
        self.events = EventRecorder(kube, "slinky.slurm.net/slurm-operator", settings.identity)
        self.controllers: list[Controller] = []
        self.stopping = asyncio.Event()
        self._informers: dict[tuple[Resource, str, bool], Informer] = {}
        self._transforms: dict[tuple[Resource, str, bool], Transform | None] = {}
        self._told: dict[tuple[str, Key], str] = {}
        self.ending: dict[str, str] = {}
        """Namespaces that are being deleted, and when that was noticed (RFC 3339)."""
        self._pulse = Pulse(self.metrics)
        self._failure: BaseException | None = None
        self._background: set[asyncio.Task[None]] = set()
        self.metrics.watch_state(
            lambda: {controller.name: controller.queue for controller in self.controllers},
            self._informers.values,
            lambda: self.events.dropped,
        )
        self.server = Server(self.metrics, (self._pulse.check, self._check_work), (self._check_caches,))

    # --- building ---

    def informer(
        self,
        resource: Resource,
        label_selector: str = "",
        *,
        metadata_only: bool = False,
        transform: Transform | None = None,
    ) -> Informer:
        """The cache of a kind in the watched namespaces, shared by all who ask for the same.

        Raises ValueError when two ask for the same with different transforms.
        """
        wanted = (resource, label_selector, metadata_only)
        informer = self._informers.get(wanted)
        if informer is None:
            namespaces = self.settings.namespaces if resource.namespaced else None
            informer = Informer(self.kube, resource, namespaces, label_selector, transform, metadata_only=metadata_only)
            self._informers[wanted] = informer
            self._transforms[wanted] = transform
        elif self._transforms[wanted] is not transform:
            raise ValueError(f"two controllers ask for {resource} with different transforms")
        return informer

    def informers_of(self, resource: Resource) -> Iterable[Informer]:
        """All caches of that kind."""
        return [informer for wanted, informer in self._informers.items() if wanted[0] == resource]

    def add(self, controllers: Sequence[Controller]) -> None:
        """Take the controllers in; they declare what they watch."""
        for controller in controllers:
            self.controllers.append(controller)
            controller.setup()

    # --- running ---

    async def run(self) -> int:
        """Run until a signal (0) or until leadership or a vital part is lost (1)."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stopping.set)
        await self.server.start(self.settings.health_port, self.settings.metrics_port)
        try:
            self._spawn(self._pulse.run(), "pulse")
            for informer in self._informers.values():
                self._spawn(informer.run(), f"cache of {informer.resource}")
            if await self._until_stopped(self._lead()):
                await self._work()
            return await self._shut_down()
        finally:
            for task in self._background:
                task.cancel()
            await asyncio.gather(*self._background, return_exceptions=True)
            await self.slurm.close()
            await self.server.stop()

    async def _lead(self) -> None:
        """Returns when the caches are filled and this replica may act."""
        await self._sync()
        if self.elector is not None:
            await self.elector.acquire()
        self.metrics.leader.labels(LEASE_NAME).set(1)

    async def _sync(self) -> None:
        began = time.monotonic()
        # One by one: a kind may have several caches, and each has to be full before anything is decided.
        while waiting := [informer for informer in self._informers.values() if not informer.synced.is_set()]:
            try:
                await asyncio.wait_for(waiting[0].synced.wait(), 15)
            except TimeoutError:
                names = dict.fromkeys(str(informer.resource) for informer in waiting)
                _log.warning("still filling the caches of %s", ", ".join(names))
        # What is cached now mostly stays: without it a collection takes a tenth as long.
        gc.collect()
        gc.freeze()
        objects = sum(len(informer) for informer in self._informers.values())
        _log.info("caches filled with %d objects in %.1f s", objects, time.monotonic() - began)

    async def _work(self) -> None:
        """Reconcile until told to stop."""
        if self.elector is not None:
            self._spawn(self._watch_lease(self.elector), "lease")
        self._spawn(self.events.run(), "events")
        workers: list[asyncio.Task[None]] = []
        for controller in self.controllers:
            number = controller.workers or self.settings.workers
            self.metrics.workers.labels(controller.name).set(number)
            workers += [self._spawn(self._worker(controller), f"{controller.name} {index}") for index in range(number)]
        await self.stopping.wait()
        for controller in self.controllers:
            controller.queue.shut_down()
        if self._failure is None and workers:
            _, late = await asyncio.wait(workers, timeout=self.settings.drain_seconds)
            if late:
                _log.warning("%d reconciles did not end within %.0f s", len(late), self.settings.drain_seconds)

    async def _shut_down(self) -> int:
        if self._failure is not None:
            _log.error("stopping: %s", self._failure)
            return 1
        if self.elector is not None and self.elector.is_leader:
            await self.events.flush()
            await self.elector.release()
        _log.info("stopped")
        return 0

    async def _watch_lease(self, elector: LeaderElector) -> None:
        raise NotLeader(0, "NotLeader", await elector.hold(), verb="lead", target=LEASE_NAME)

    async def _until_stopped(self, work: Coroutine[Any, Any, None]) -> bool:
        """True if `work` ended; False if the process shall stop before."""
        task, stop = asyncio.create_task(work), asyncio.create_task(self.stopping.wait())
        await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return False
        task.result()
        return not self.stopping.is_set()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Start a part of the process; if it fails, the process stops."""

        def ended(task: asyncio.Task[None]) -> None:
            self._background.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                if not isinstance(error, NotLeader):
                    _log.error("%s failed", name, exc_info=error)
                self._failure = self._failure or error
                self.stopping.set()

        task = asyncio.create_task(work, name=name)
        self._background.add(task)
        task.add_done_callback(ended)
        return task

    # --- one reconcile ---

    async def _worker(self, controller: Controller) -> None:
        while True:
            try:
                key = await controller.queue.get()
            except QueueShutDown:
                return
            began = time.monotonic()
            self.metrics.active.labels(controller.name).inc()
            fields = {"controller": controller.name, "namespace": key.namespace, "name": key.name}
            try:
                with log.fields(**fields, reconcileID=secrets.token_hex(4)):
                    result = await self._reconcile(controller, key)
            finally:
                controller.queue.done(key, controller.rest(key))
                self.metrics.active.labels(controller.name).dec()
            self.metrics.seconds.labels(controller.name).observe(time.monotonic() - began)
            self.metrics.reconciles.labels(controller.name, result).inc()

    async def _reconcile(self, controller: Controller, key: Key) -> str:
        """One round for one key; returns the result as controller-runtime names it."""
        for informer, written in controller.writer.stale(key):
            try:
                await informer.caught_up(written, CATCH_UP_SECONDS)
            except Unknown:
                controller.queue.add_after(key, CATCH_UP_RETRY_SECONDS)
                return "requeue"
        try:
            after = await controller.reconcile(key)
        except NotLeader:
            return "error"  # the lease task stops the process
        except Exception as error:
            self._failed(controller, key, error)
            return "error"
        controller.queue.forget(key)
        if self._told.pop((controller.name, key), None) is not None:
            controller.log.info("%s went well again", key)
        if after is None:
            return "success"
        controller.queue.add_after(key, after)
        return "requeue_after"

    def _failed(self, controller: Controller, key: Key, error: Exception) -> None:
        """Count, tell once per change, and come back later."""
        self.metrics.errors.labels(controller.name).inc()
        text = f"{type(error).__name__}: {error}"
        delay = controller.queue.add_rate_limited(key)
        if isinstance(error, Conflict) and controller.queue.failures(key) <= QUIET_CONFLICTS:
            return  # the cache was a moment behind; the next round sees the new object
        if self._told.get((controller.name, key)) == text:
            controller.log.debug("%s failed again, next try in %.1f s: %s", key, delay, text)
            return
        self._told[controller.name, key] = text
        expected = isinstance(error, Unknown | KubeError | SlurmException)
        controller.log.warning("%s: %s; trying again", key, text, exc_info=None if expected else error)

    # --- checks ---

    def _check_work(self) -> str:
        now = time.monotonic()
        for controller in self.controllers:
            for key, since in controller.queue.processing.items():
                if now - since > MAX_WORK_SECONDS:
                    return f"{controller.name} has been working on {key} for {now - since:.0f} s"
        return ""

    def _check_caches(self) -> str:
        missing = [str(informer.resource) for informer in self._informers.values() if not informer.synced.is_set()]
        return f"caches not filled: {', '.join(missing)}" if missing else ""


AllControllers = Callable[[Manager], Sequence[Controller]]
