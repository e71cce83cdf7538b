"""Where the specs of pods stand: in workloads, in Slurm's resources, and in the values of charts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .rule import Resource
from .values import UNKNOWN, at, items, mapping

PATHS: dict[str, tuple[str, ...]] = {
    "kubernetes:core/v1:Pod": ("spec",),
    "kubernetes:apps/v1:Deployment": ("spec", "template", "spec"),
    "kubernetes:apps/v1:StatefulSet": ("spec", "template", "spec"),
    "kubernetes:apps/v1:DaemonSet": ("spec", "template", "spec"),
    "kubernetes:apps/v1:ReplicaSet": ("spec", "template", "spec"),
    "kubernetes:batch/v1:Job": ("spec", "template", "spec"),
    "kubernetes:batch/v1:CronJob": ("spec", "jobTemplate", "spec", "template", "spec"),
}
RELEASE = "kubernetes:helm.sh/v3:Release"
WORKLOADS = "|".join(PATHS)
# Service, key of the service's container in the values of charts/slurm; the plural ones are maps of sets.
SERVICES = {"controller": "slurmctld", "restapi": "slurmrestd"}
SETS = {"loginsets": "login", "nodesets": "slurmd"}


@dataclass(frozen=True)
class ChartPod:
    """A pod that charts/slurm makes. where: path in the values. container: image, resources. spec: the pod's."""

    where: str
    container: dict[str, Any]
    spec: dict[str, Any]


def pod_spec(resource: Resource) -> dict[str, Any]:
    """The pod spec of a workload; empty where it has none."""
    return mapping(at(resource.inputs, *PATHS.get(resource.kind, ("spec",))))


def containers(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """Containers of a pod, init containers first."""
    return [mapping(entry) for key in ("initContainers", "containers") for entry in items(spec.get(key))]


def gpus(container: dict[str, Any]) -> bool:
    """Whether a container asks for GPUs."""
    return any("nvidia.com/gpu" in mapping(at(container, "resources", part)) for part in ("limits", "requests"))


def chart_pods(resource: Resource) -> Iterator[ChartPod]:
    """Pods that a release of charts/slurm is told to make; those that are switched off are left out."""
    values = mapping(resource.inputs.get("values"))
    services = dict(SERVICES)
    if at(values, "accounting", "enabled") is True:
        services["accounting"] = "slurmdbd"
    for service, container in services.items():
        body = mapping(values.get(service))
        if body and body.get("external") is not True:
            yield ChartPod(service, mapping(body.get(container)), mapping(body.get("podSpec")))
    for sets, container in SETS.items():
        shared = mapping(values.get(sets.removesuffix("s") + "Defaults"))
        for name, own in mapping(values.get(sets)).items():
            body = {**shared, **mapping(own)}
            if own is not UNKNOWN and body.get("enabled") is not False:
                yield ChartPod(f"{sets}.{name}", mapping(body.get(container)), mapping(body.get("podSpec")))
