"""A NodeSet that is deleted, or whose Controller is: its workers drain, then go, and then their records."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from slurm_operator.api.common import LocalRef
from slurm_operator.api.load import InvalidSpec, load_spec
from slurm_operator.api.names import (
    ANNOTATION_SKIP_DRAIN,
    APP_WORKER,
    LABEL_INSTANCE,
    LABEL_NAME,
    maintenance_reservation,
)
from slurm_operator.api.nodeset import NodeSetSpec
from slurm_operator.controllers.base import controller_ref, skips_drain
from slurm_operator.controllers.leaving import overdue
from slurm_operator.controllers.nodeset_steps import Steps
from slurm_operator.desired.drain import NO_POLICY
from slurm_operator.desired.maintenance import RESERVATION_CREATED
from slurm_operator.desired.nodeset_status import going_report
from slurm_operator.desired.scale import Wanted, plan_scale
from slurm_operator.desired.status import Report
from slurm_operator.errors import Unknown
from slurm_operator.kube.objects import condition, controller_of, is_deleting, uid_of
from slurm_operator.kube.resources import PODS, Key, Object
from slurm_operator.slurm.errors import SlurmException, SlurmNotFound

if TYPE_CHECKING:
    from slurm_operator.controllers.nodeset import NodeSetController

LOOK_SECONDS = 5.0
"""Everything of note is an event; time limits and pods on dead machines are not."""


async def _nobody_is_left(do: NodeSetController, key: Key, nodeset: Object) -> None:
    """What is let go now cannot be taken back: not a cache, the API server says that no worker is left."""
    wanted = f"{LABEL_NAME}={APP_WORKER},{LABEL_INSTANCE}={key.name}"
    live = await do.kube.list(PODS, key.namespace, label_selector=wanted)
    for pod in live.items:
        if (controller_of(pod) or {}).get("uid") == uid_of(nodeset) and not overdue(pod):
            raise Unknown(f"the cache of pods does not show {pod['metadata']['name']} yet")


async def drain_all(do: NodeSetController, key: Key, nodeset: Object, since: float) -> tuple[Report, float] | None:
    """One round; `since` is when the deletion began. None: nothing is left of its workers."""
    controller = do.controllers.get(key.namespace, controller_ref(nodeset))
    try:
        spec = load_spec(NodeSetSpec, nodeset)
    except InvalidSpec:
        spec = NodeSetSpec(LocalRef(controller_ref(nodeset)))
    pods = do.worker_pods(nodeset)
    slurm, nodes = do.slurm_of(nodeset)
    policy = do.policies.of(nodeset)
    wanted = Wanted(
        namespace=key.namespace,
        replicas=0,
        revision="",
        rolling=False,
        policy=policy,
        going=since or time.time(),
        skip=skips_drain(nodeset) or skips_drain(controller),
        places={} if spec.scaling_mode == "DaemonSet" else None,
    )
    seen = do.see(nodeset, spec, pods)
    plan = plan_scale(wanted, seen)
    steps = Steps(do, key, nodeset, pods, slurm)
    await steps.let_go(plan)
    told: list[str] = []
    try:
        if slurm is not None and nodes is not None:
            await steps.drains(plan)
            told += await steps.requeue(plan, policy)
        await steps.removals(plan)
        if slurm is not None and nodes is not None:
            if spec.update_strategy.type == "ScheduledUpdate" or condition(nodeset, RESERVATION_CREATED):
                with suppress(SlurmNotFound):
                    await slurm.client.delete_reservation(maintenance_reservation(key.name))
            await steps.records(plan)
            told += await do.cordon_machines(key, steps, seen, NO_POLICY)
    except (SlurmException, Unknown) as error:
        told.append(f"Slurm: {error}")
    if all(overdue(pod) for pod in pods.values()):
        await _nobody_is_left(do, key, nodeset)
        return None
    what = "nodeset" if is_deleting(nodeset) else "controllers.slinky.slurm.net"
    name = key.name if is_deleting(nodeset) else controller_ref(nodeset)
    skip = f"to end the wait: kubectl annotate -n {key.namespace} {what} {name} {ANNOTATION_SKIP_DRAIN}=true"
    jobs = slurm.cache.book.by_node if slurm is not None else {}
    return going_report(wanted, seen, plan, told, jobs, skip), min(LOOK_SECONDS, plan.recheck or LOOK_SECONDS)
