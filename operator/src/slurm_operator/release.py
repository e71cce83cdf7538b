"""`slurm-operator release`: before the operator is uninstalled, let go of everything that it would hold back.

Resources carry a finalizer, so that deleting one drains its workers first. Without an operator nobody would remove it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from slurm_operator.api.names import FINALIZER
from slurm_operator.controllers.base import finalizers_of
from slurm_operator.kube.auth import AccessError, load_access
from slurm_operator.kube.client import KubeClient
from slurm_operator.kube.errors import Conflict, KubeError, NotFound
from slurm_operator.kube.resources import (
    ACCOUNTINGS,
    CONTROLLERS,
    DEPLOYMENTS,
    LOGINSETS,
    NODESETS,
    RESTAPIS,
    TOKENS,
    Object,
    Resource,
)
from slurm_operator.runtime.settings import Settings

STOP_SECONDS = 60.0
TRIES = 5
KINDS = (NODESETS, RESTAPIS, CONTROLLERS, LOGINSETS, ACCOUNTINGS, TOKENS)
_log = logging.getLogger("release")


async def release(settings: Settings) -> int:
    """Exit code: 0 all is let go, 1 something was refused or the operator did not stop, 2 no access."""
    try:
        access = load_access(settings.kubeconfig)
    except AccessError as error:
        _log.error("%s", error)
        return 2
    async with KubeClient(access, guard=settings.rbac_guard) as kube:
        try:
            if settings.deployment:
                await _stop(kube, *settings.deployment.partition("/")[::2])
            count = await let_go(kube, settings.namespaces)
        except (KubeError, TimeoutError) as error:
            _log.error("%s", error)
            return 1
    _log.info("%d resources let go: they can be deleted without the operator, and then nothing is drained", count)
    return 0


async def let_go(kube: KubeClient, namespaces: Sequence[str] = ()) -> int:
    """Remove the operator's finalizer from everything in these namespaces (none: all); returns from how many."""
    count = 0
    for kind in KINDS:
        for namespace in namespaces or (None,):
            count += await _release(kube, kind, namespace)
    return count


async def _stop(kube: KubeClient, namespace: str, name: str) -> None:
    """Scale the operator's Deployment to none, so that it does not take hold again."""
    stop: dict[str, Any] = {"spec": {"replicas": 0}}
    try:
        await kube.patch(DEPLOYMENTS, namespace, name, stop)
    except NotFound:
        return
    async with asyncio.timeout(STOP_SECONDS):
        while True:
            live = await kube.get(DEPLOYMENTS, namespace, name)
            status = (live or {}).get("status") or {}
            seen = live is None or status.get("observedGeneration", 0) >= live["metadata"]["generation"]
            if seen and not status.get("replicas") and not status.get("terminatingReplicas"):
                return
            await asyncio.sleep(0.5)


async def _release(kube: KubeClient, kind: Resource, namespace: str | None) -> int:
    try:
        found = (await kube.list(kind, namespace)).items
    except NotFound:
        return 0  # the kind is not installed
    for obj in found:
        await _without_finalizer(kube, kind, obj)
    return sum(FINALIZER in finalizers_of(obj) for obj in found)


async def _without_finalizer(kube: KubeClient, kind: Resource, obj: Object) -> None:
    for _ in range(TRIES):
        meta = obj["metadata"]
        if FINALIZER not in finalizers_of(obj):
            return
        kept = [name for name in finalizers_of(obj) if name != FINALIZER]
        body = {"metadata": {"resourceVersion": meta["resourceVersion"], "finalizers": kept}}
        try:
            await kube.patch(kind, meta["namespace"], meta["name"], body)
            return
        except NotFound:
            return
        except Conflict:
            again = await kube.get(kind, meta["namespace"], meta["name"])
            if again is None:
                return
            obj = again
    raise TimeoutError(f"{kind.kind} {obj['metadata']['name']} changes all the time: run this again")
