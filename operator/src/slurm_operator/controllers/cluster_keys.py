"""Keys of a cluster: made once where none are given, handed to all pods, and exchanged without losing a job."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from slurm_operator.api.common import KeySelector
from slurm_operator.api.load import InvalidSpec, jwt_key_of
from slurm_operator.api.names import LABEL_CLUSTER, keys_secret
from slurm_operator.controllers.base import Waiting
from slurm_operator.desired import keys
from slurm_operator.desired.parts import Cluster
from slurm_operator.desired.secrets import data_of, new_jwt_key, new_slurm_key, secret
from slurm_operator.kube.errors import NotFound
from slurm_operator.kube.objects import annotations_of, holds, is_deleting, labels_of
from slurm_operator.kube.resources import SECRETS, Key, Object
from slurm_operator.slurm.errors import SlurmException
from slurm_operator.slurm.types import NodeInfo

if TYPE_CHECKING:
    from slurm_operator.controllers.cluster import ClusterController

ANNOTATION_KEYS = "slipway.dev/keys-digest"
ROTATION_LOOK_SECONDS = 5.0
_AT_ONCE = 16


@dataclass(frozen=True)
class Keys:
    """`digest` of all keys; `rotating` tells of a rotation under way, "" when there is none; `again` in seconds."""

    jwt: bytes
    digest: str
    rotating: str = ""
    again: float | None = None


class KeyKeeper:
    def __init__(self, controller: ClusterController) -> None:
        self._do = controller

    async def settle(self, key: Key, obj: Object, cluster: Cluster) -> Keys:
        """Brings the Secret with the keys up to date. Raises Waiting for a given key that is missing.

        A slurmctld outside has its own keys: what is not given is not made.
        """
        spec = cluster.spec
        if spec.external:
            return await self._outside(key, obj, cluster)
        slurm = await self._given(key, cluster.slurm_key, "spec.slurmKeyRef", spec.slurm_key_ref is None, new_slurm_key)
        jwt = await self._given(key, cluster.jwt_key, "spec.jwtKeyRef", jwt_key_of(spec) is None, new_jwt_key)
        found = await self._do.kube.get(SECRETS, key.namespace, keys_secret(cluster.name))
        ring = keys.read(found)
        now = time.time()
        try:
            if ring is None:
                ring = keys.first(slurm)
            else:
                before = ring
                ring = keys.step(ring, slurm, now, responding=self._responding(key))
                if ring is not before:
                    self._tell(obj, ring)
        except keys.BadKey as error:
            raise InvalidSpec(f"Secret {cluster.slurm_key.name}, key {cluster.slurm_key.key}: {error}") from None
        made = await self._write(key, obj, cluster, ring, jwt, found)
        await self._hurry(key, made, ring)
        if not ring.rotating and (ring.loaded or not ring.since):
            return Keys(jwt, keys.digest(made))
        if not ring.loaded and keys.due(ring, now) <= 0 and await self._reload(key):
            ring = replace(ring, loaded=time.time())
            made = await self._write(key, obj, cluster, ring, jwt, made)
        text = "A new auth/slurm key is being introduced; running jobs go on."
        return Keys(jwt, keys.digest(made), text, ROTATION_LOOK_SECONDS)

    async def _outside(self, key: Key, obj: Object, cluster: Cluster) -> Keys:
        spec = cluster.spec
        jwt = b""
        if jwt_key_of(spec) is not None:
            jwt = await self._given(key, cluster.jwt_key, "spec.jwtKeyRef", False, new_jwt_key)
        if spec.slurm_key_ref is None:
            return Keys(jwt, "")
        slurm = await self._given(key, cluster.slurm_key, "spec.slurmKeyRef", False, new_slurm_key)
        try:
            ring = keys.first(slurm)
        except keys.BadKey as error:
            raise InvalidSpec(f"Secret {cluster.slurm_key.name}, key {cluster.slurm_key.key}: {error}") from None
        found = await self._do.kube.get(SECRETS, key.namespace, keys_secret(cluster.name))
        made = await self._write(key, obj, cluster, ring, jwt, found)
        await self._hurry(key, made, ring)
        return Keys(jwt, keys.digest(made))

    async def _given(self, key: Key, selector: KeySelector, field: str, ours: bool, new: Callable[[], bytes]) -> bytes:
        def make() -> Object:
            if not ours:
                raise Waiting("NoKey", f"Secret {selector.name} does not exist ({field})")
            return secret(selector.name, key.namespace, key.name, {selector.key: new()})

        found = await self._do.secret_once(key, key.namespace, selector.name, make)
        value = data_of(found, selector.key)
        if not value:
            raise Waiting("NoKey", f"Secret {selector.name} has no key {selector.key} ({field})")
        return value

    async def _write(
        self, key: Key, obj: Object, cluster: Cluster, ring: keys.Ring, jwt: bytes, found: Object | None
    ) -> Object:
        wish = keys.secret(obj, cluster, ring, jwt)
        if found is not None and not is_deleting(found) and holds(found, wish):
            return found
        return await self._do.ensure(key, wish)

    async def _hurry(self, key: Key, made: Object, ring: keys.Ring) -> None:
        """Pods started before the keys changed are touched, so that their kubelets look now and not within a minute."""
        digest = keys.digest(made)
        if self._do.keys_seen.get(key) == digest:
            return
        # After a restart of the operator, only what is older than the last rotation may have old keys.
        before = time.time() if key in self._do.keys_seen else ring.since
        late = [
            pod
            for informer in self._do.all_pods
            for pod in informer.list(key.namespace)
            if labels_of(pod).get(LABEL_CLUSTER) == key.name
            and annotations_of(pod).get(ANNOTATION_KEYS) != digest
            and not is_deleting(pod)
            and datetime.fromisoformat(pod["metadata"]["creationTimestamp"]).timestamp() <= before
        ]
        gate = asyncio.Semaphore(_AT_ONCE)

        async def touch(pod: Object) -> None:
            async with gate:
                with suppress(NotFound):
                    await self._do.patch(key, pod, {"metadata": {"annotations": {ANNOTATION_KEYS: digest}}})

        await asyncio.gather(*(touch(pod) for pod in late))
        self._do.keys_seen[key] = digest

    async def _reload(self, key: Key) -> bool:
        """Tell all daemons to read their keys; False when nobody can be told now."""
        slurm = self._do.slurm.find(key)
        if slurm is None or not slurm.cache.reachable:
            return False
        try:
            await slurm.client.reconfigure()
        except SlurmException:
            return False
        return True

    def _responding(self, key: Key) -> bool:
        slurm = self._do.slurm.find(key)
        if slurm is None or not slurm.cache.reachable:
            return False
        return not any(map(_silent, slurm.cache.nodes.values()))

    def _tell(self, obj: Object, ring: keys.Ring) -> None:
        if ring.rotating and not any(name == ring.default for name in list(ring.keys)[1:]):
            self._do.events.event(obj, "Normal", "KeyRotation", "A new auth/slurm key is handed to all daemons.")
        elif not ring.rotating:
            self._do.events.event(obj, "Normal", "KeyRotated", "The old auth/slurm key is no longer accepted.")


def _silent(node: NodeInfo) -> bool:
    """A node that does not answer and is not known to be gone: it may run jobs and may lack the new key."""
    return "NOT_RESPONDING" in node.states and not {"DOWN", "FUTURE", "POWERED_DOWN", "POWERING_DOWN"} & node.states
