"""Revision history of a NodeSet as ControllerRevisions: one per revision of its workers, numbered in order of use."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from slurm_operator.api.names import APP_WORKER, LABEL_REVISION
from slurm_operator.api.nodeset import NodeSetSpec
from slurm_operator.desired.parts import meta, selector
from slurm_operator.desired.worker import revision_data
from slurm_operator.kube.objects import labels_of
from slurm_operator.kube.resources import Object


@dataclass(frozen=True)
class History:
    """What to do: create this one, give that one the newest number (a way back), delete those."""

    create: Object | None = None
    renumber: tuple[Object, int] | None = None
    delete: list[Object] = field(default_factory=list)


def plan_history(
    owner: Object, spec: NodeSetSpec, current: str, present: Sequence[Object], used: Collection[str]
) -> History:
    """`used` are the revisions of the pods there are: these and the current one are kept beyond the limit."""
    newest = max((one.get("revision", 0) for one in present), default=0)
    mine = next((one for one in present if labels_of(one).get(LABEL_REVISION) == current), None)
    old = [one for one in present if labels_of(one).get(LABEL_REVISION) not in {current, *used}]
    old.sort(key=lambda one: one.get("revision", 0))
    delete = old[: max(0, len(old) - spec.revision_history_limit)]
    if mine is None:
        return History(create=_revision(owner, spec, current, newest + 1), delete=delete)
    return History(renumber=(mine, newest + 1) if mine.get("revision", 0) < newest else None, delete=delete)


def trim_revision(obj: Object) -> Object:
    """Without the data: nobody here reads it."""
    obj["metadata"].pop("managedFields", None)
    obj.pop("data", None)
    return obj


def _revision(owner: Object, spec: NodeSetSpec, current: str, number: int) -> Object:
    name, namespace = owner["metadata"]["name"], owner["metadata"]["namespace"]
    labels = {**selector(APP_WORKER, name), LABEL_REVISION: current}
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": meta(f"{name}-{current}", namespace, labels, owner=owner),
        "revision": number,
        "data": {"spec": revision_data(spec)},
    }
