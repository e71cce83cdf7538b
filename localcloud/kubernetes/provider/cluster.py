"""One API server as the rest of this provider uses it: client, discovery, reads, and the engine's log."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from localcloud.kubernetes.provider import auth
from localcloud.kubernetes.provider.client import ApiError, Client, Unreachable
from localcloud.kubernetes.provider.config import Settings
from localcloud.kubernetes.provider.diagnosis import Reader
from localcloud.kubernetes.provider.discovery import Discovery, Resource
from localcloud.kubernetes.provider.wire import Object

# (severity, message, urn, whether it is a passing status): sent to the engine.
Log = Callable[[str, str, str, bool], None]


class Cancelled(Exception):
    """The engine asked to stop."""


@dataclass
class Cluster:
    """The connection of a configured provider. Nothing is asked of the server before it is needed.

    `config` is an AuthError where there is no usable kubeconfig, and None where a preview does not know it yet:
    every request then raises Unreachable.
    """

    config: auth.Kubeconfig | auth.AuthError | None
    settings: Settings
    log: Log
    cancelled: threading.Event
    client: Client = field(init=False)
    discovery: Discovery = field(init=False)
    reader: Reader = field(init=False)
    _warned: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.client = Client(self.config, self.settings.timeout)
        self.discovery = Discovery(self.client)
        self.reader = Reader(self.client, self.discovery)

    @property
    def default_namespace(self) -> str:
        """The namespace of objects that name none."""
        from_config = self.config.namespace if isinstance(self.config, auth.Kubeconfig) else None
        return self.settings.namespace or from_config or "default"

    def warn_unreachable(self, error: Unreachable, urn: str) -> None:
        """Tell once that a preview had to do without the cluster; say nothing where that is to be expected."""
        if self.config is not None and not self._warned:
            self._warned = True
            self.log("WARNING", f"previewed without the cluster: {error}", urn, False)

    def fetch(self, resource: Resource, namespace: str | None, name: str, patient: bool = True) -> Object | None:
        """The live object, or None where there is none."""
        try:
            found: Object = self.client.get(resource.path(namespace, name), patient=patient)
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        return found

    def pause(self, seconds: float) -> None:
        """Sleep. Raises Cancelled at once when the engine asks to stop."""
        if self.cancelled.wait(seconds):
            raise Cancelled("stopped, because the run was cancelled")

    def polls(self, timeout: float) -> Iterator[float]:
        """The seconds gone by, again and again until `timeout`: quickly at first, then once a second."""
        started = time.monotonic()
        delay = 0.1
        while True:
            elapsed = time.monotonic() - started
            yield elapsed
            if elapsed >= timeout:
                return
            self.pause(min(delay, max(timeout - elapsed, 0.05)))
            delay = min(delay * 1.3, 1.0)


class Progress:
    """Status messages of one wait: the first after two seconds, then when it changes, at most every three seconds."""

    def __init__(self, log: Log, urn: str) -> None:
        self._log, self._urn = log, urn
        self._next, self._last, self._said = 2.0, "", 0.0

    def due(self, elapsed: float) -> bool:
        """Whether a message may be given now (finding out what to say may cost requests)."""
        return elapsed >= self._next

    def say(self, elapsed: float, message: str) -> None:
        """Give a message, unless it is the last one again and that was less than 15 seconds ago."""
        self._next = elapsed + 3.0
        if message == self._last and elapsed - self._said < 15.0:
            return
        self._last, self._said = message, elapsed
        self._log("INFO", f"{message} ({elapsed:.0f} s)", self._urn, True)
