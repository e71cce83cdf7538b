"""The Slurm clusters this operator talks to, by the key of their Controller."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from slurm_operator.kube.resources import Key
from slurm_operator.slurm.cache import SlurmCache
from slurm_operator.slurm.client import Observe, SlurmClient
from slurm_operator.slurm.errors import SlurmUnreachable

Handler = Callable[[Key, frozenset[str]], None]


@dataclass(frozen=True)
class SlurmCluster:
    """How to talk to one cluster, and what it said last."""

    client: SlurmClient
    cache: SlurmCache
    asked_for: tuple[str, bytes, str] = field(repr=False)  # holds the key: never shown


class SlurmRegistry:
    """Clusters come with `ensure` and go with `remove`; each is polled while it is here."""

    def __init__(self, *, fence: Callable[[], None] | None = None, observe: Observe | None = None) -> None:
        self._clusters: dict[Key, SlurmCluster] = {}
        self._pollers: dict[Key, asyncio.Task[None]] = {}
        self._handlers: list[Handler] = []
        self._fence = fence
        self._observe = observe

    def __len__(self) -> int:
        return len(self._clusters)

    def items(self) -> list[tuple[Key, SlurmCluster]]:
        """All clusters now."""
        return list(self._clusters.items())

    def find(self, key: Key) -> SlurmCluster | None:
        """The cluster of that Controller, if there is a way to talk to it."""
        return self._clusters.get(key)

    def get(self, key: Key) -> SlurmCluster:
        """Like `find`; raises SlurmUnreachable (an Unknown) when there is no way to talk to it."""
        cluster = self._clusters.get(key)
        if cluster is None:
            raise SlurmUnreachable(f"Controller {key} has no RestApi yet, so its Slurm cannot be asked")
        return cluster

    async def ensure(self, key: Key, base_url: str, jwt_key: bytes, user: str = "slurm") -> SlurmCluster:
        """The cluster reached like this: as it is when nothing changed, else made anew with an empty cache."""
        asked_for = (base_url, jwt_key, user)
        cluster = self._clusters.get(key)
        if cluster is not None and cluster.asked_for == asked_for:
            return cluster
        await self.remove(key)
        client = SlurmClient(base_url, jwt_key, user, fence=self._fence, observe=self._observe)
        cluster = SlurmCluster(client, SlurmCache(client, f"Slurm of {key}"), asked_for)
        cluster.cache.add_handler(lambda changed: self._tell(key, changed))
        self._clusters[key] = cluster
        self._pollers[key] = asyncio.create_task(cluster.cache.run(), name=f"slurm {key}")
        return cluster

    async def remove(self, key: Key) -> None:
        """Forget the cluster and stop polling it; nothing happens if it is not known."""
        cluster = self._clusters.pop(key, None)
        poller = self._pollers.pop(key, None)
        if poller is not None:
            poller.cancel()
            await asyncio.gather(poller, return_exceptions=True)
        if cluster is not None:
            await cluster.client.close()

    async def close(self) -> None:
        """Forget all."""
        for key in list(self._clusters):
            await self.remove(key)

    def add_handler(self, handler: Handler) -> None:
        """`handler(key, names)`: what SlurmCache.add_handler tells, of every cluster now and later."""
        self._handlers.append(handler)

    def _tell(self, key: Key, changed: frozenset[str]) -> None:
        for handler in self._handlers:
            handler(key, changed)
