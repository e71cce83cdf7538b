"""PersistentVolumeClaims of workers: one per template and worker, and what becomes of them.

They are named as the Go operator names them, `<template>-<nodeset>-<ordinal or host name>`, so a worker that comes back
finds its own, whoever made it. A claim is only deleted when no pod of that name is there: never under a running worker.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from slurm_operator.api.load import InvalidSpec
from slurm_operator.api.names import APP_WORKER, LABEL_CLUSTER
from slurm_operator.api.nodeset import NodeSetSpec
from slurm_operator.desired.parts import Map, selector
from slurm_operator.kube.objects import owner_reference
from slurm_operator.kube.resources import Object


def template_names(spec: NodeSetSpec) -> list[str]:
    """Names of the templates, which are those of the pod's volumes. Raises InvalidSpec for one without."""
    names = []
    for number, template in enumerate(spec.volume_claim_templates):
        name = (template.get("metadata") or {}).get("name")
        if not name or name in names:
            raise InvalidSpec(
                f"spec.volumeClaimTemplates[{number}].metadata.name: {name!r}; a name of its own is needed"
            )
        names.append(str(name))
    return names


def volumes(nodeset: str, spec: NodeSetSpec, suffix: str) -> list[Map]:
    """The volumes of one worker's pod."""
    return [
        {"name": name, "persistentVolumeClaim": {"claimName": f"{name}-{nodeset}-{suffix}"}}
        for name in template_names(spec)
    ]


def claims(owner: Object, spec: NodeSetSpec, cluster: str, suffix: str) -> list[Object]:
    """The claims of one worker, with the owner reference that whenDeleted asks for."""
    meta = owner["metadata"]
    made = []
    for name, template in zip(template_names(spec), spec.volume_claim_templates, strict=True):
        given: Map = template.get("metadata") or {}
        own = {**selector(APP_WORKER, meta["name"]), LABEL_CLUSTER: cluster}
        metadata: Map = {
            "name": f"{name}-{meta['name']}-{suffix}",
            "namespace": meta["namespace"],
            "labels": {**(given.get("labels") or {}), **own},
        }
        if given.get("annotations"):
            metadata["annotations"] = given["annotations"]
        if owned := owners([], owner, spec):
            metadata["ownerReferences"] = owned
        made.append(
            {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": template.get("spec")}
        )
    return made


def owners(present: Iterable[Map], owner: Object, spec: NodeSetSpec) -> list[Map]:
    """Owner references a claim is to have: those of others, and the NodeSet's while whenDeleted is Delete."""
    uid = owner["metadata"]["uid"]
    others: list[Any] = [reference for reference in present if reference.get("uid") != uid]
    if spec.persistent_volume_claim_retention_policy.when_deleted == "Delete":
        others.append(owner_reference(owner))
    return others


def unused(present: Iterable[Object], nodeset: str, spec: NodeSetSpec, suffixes: Collection[str]) -> list[Object]:
    """Claims that whenScaled Delete gives up: of workers without a seat. `suffixes` are those of pods and seats.

    Claims of a template that is not in the spec any more stay.
    """
    if spec.persistent_volume_claim_retention_policy.when_scaled != "Delete":
        return []
    prefixes = tuple(f"{name}-{nodeset}-" for name in template_names(spec))
    kept = {f"{prefix}{suffix}" for prefix in prefixes for suffix in suffixes}
    names = ((claim, claim["metadata"]["name"]) for claim in present)
    return [claim for claim, name in names if name.startswith(prefixes) and name not in kept]
