"""What keeps a Controller, or the RestApi through which its Slurm is asked, while workers still drain."""

from __future__ import annotations

import time
from collections.abc import Iterable

from slurm_operator.api.names import FINALIZER, LABEL_CLUSTER
from slurm_operator.controllers.base import finalizers_of, skips_drain
from slurm_operator.desired.drain import DAY, LET_GO_AFTER
from slurm_operator.desired.observe import moment
from slurm_operator.desired.status import Report, listed
from slurm_operator.kube.informer import Informer
from slurm_operator.kube.objects import controller_of, is_deleting, labels_of, uid_of
from slurm_operator.kube.resources import Object

LOOK_SECONDS = 1.0
OVERDUE_SECONDS = 60.0
"""A pod is as good as gone so long after its grace period: its machine does not answer."""
RESTAPI_GRACE_SECONDS = 15.0
"""Who deletes a whole cluster may delete its RestApi first: it stays so long, to see whether the rest follows."""


def deleted_at(obj: Object) -> float:
    """When it was deleted, in UNIX seconds; 0 when it was not."""
    return moment(obj["metadata"].get("deletionTimestamp"))


def overdue(pod: Object) -> bool:
    """It should have ended a while ago. A pod's deletionTimestamp is the end of its grace period."""
    return is_deleting(pod) and deleted_at(pod) + OVERDUE_SECONDS < time.time()


def workers_left(pods: Informer, namespace: str, controller: str) -> list[Object]:
    """Worker pods of a cluster that still count."""
    return [pod for pod in pods.list(namespace) if labels_of(pod).get(LABEL_CLUSTER) == controller and not overdue(pod)]


def controller_waits(controller: Object, pods: list[Object], nodesets: Iterable[Object]) -> Report | None:
    """What a deleted Controller waits for; None when it may go.

    Its NodeSets see to it that their workers leave in time. Workers that belong to no NodeSet leave when somebody
    removes them; they do not keep a Controller for ever.
    """
    siblings = list(nodesets)
    held = [one for one in siblings if is_deleting(one) and FINALIZER in finalizers_of(one)]
    leaving = sorted(one["metadata"]["name"] for one in held)
    owners = {uid_of(one) for one in siblings}
    strays = [pod for pod in pods if (controller_of(pod) or {}).get("uid") not in owners]
    if skips_drain(controller) or time.time() - deleted_at(controller) > DAY + LET_GO_AFTER:
        pods = [pod for pod in pods if pod not in strays]
    if not pods and not leaving:
        return None
    names = listed(sorted(pod["metadata"]["name"] for pod in pods)) or f"NodeSet {', '.join(leaving)}"
    text = f"Deleted; slurmctld stays until the workers have left: {names}."
    return Report(False, "Deleting", text, busy=text)


def restapi_waits(restapi: Object, others: int, controller: Object | None, pods: int, leaving: bool) -> str:
    """Why a deleted RestApi stays; "" when it may go. `others` are those that do the same, `leaving`: NodeSets go."""
    if others or not pods or controller is None or skips_drain(restapi) or skips_drain(controller):
        return ""
    if is_deleting(controller) or leaving:
        return "Deleted; slurmrestd stays until the workers have left, which are drained through it."
    if time.time() - deleted_at(restapi) < RESTAPI_GRACE_SECONDS:
        return "Deleted; slurmrestd stays for a moment: the rest of the cluster may be about to be deleted, too."
    return ""
