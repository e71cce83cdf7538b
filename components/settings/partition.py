"""One Slurm partition: its nodes, what they may cost, and what Slurm promises on them."""

from __future__ import annotations

import re
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from components.data import InstanceType, instance_types
from components.settings.base import Memory, Model, QuotedText, Range, did_you_mean, mebibytes, refuse

RESERVED_NAMES = {
    "default": "Slurm reads PartitionName=DEFAULT as the defaults of all partitions",
    "system": "the node group of the system has that name",
}


class WorkerResources(Model):
    """What Slurm gets of each node. What is left out is the whole node, less what Kubernetes needs."""

    cpu: float | None = Field(default=None, gt=0, description="CPUs; below the whole node's when pods share it.")
    memory: Memory | None = Field(default=None, description="Memory with its unit: Mi, Gi or Ti.")
    gpus: int | None = Field(
        default=None,
        ge=1,
        description="NVIDIA GPUs. Default: all of the node. Kubernetes "
        "hands them out by NVIDIA's device plugin, which the cluster must have.",
    )


class PartitionSlurm(Model):
    """What Slurm promises on a partition."""

    max_time: QuotedText = Field(
        default="1-00:00:00",
        description="Longest run time of a job: minutes, minutes:seconds, hours:minutes:seconds, days-hours, "
        "days-hours:minutes, days-hours:minutes:seconds or UNLIMITED; in quotes.",
    )
    default: bool = Field(default=False, description="Jobs that name no partition come here. One partition at most.")
    priority_tier: int = Field(
        default=1, ge=0, le=65533, description="Jobs of a higher tier are scheduled first on shared nodes."
    )

    @field_validator("max_time")
    @classmethod
    def _time(cls, value: str) -> str:
        if value.upper() == "UNLIMITED":
            return "UNLIMITED"
        if not re.fullmatch(r"\d+(:\d\d){0,2}|\d+-\d{1,2}(:\d\d){0,2}", value) or not re.search(r"[1-9]", value):
            raise refuse(
                f'"{value}" is no time limit that Slurm knows.',
                'Write "30" (minutes), "12:00:00", "2-00:00:00" (days-hours:minutes:seconds) or "UNLIMITED".',
            )
        return value


class Partition(Model):
    """One Slurm partition, one NodeSet, one group of EC2 nodes: one name everywhere."""

    name: str = Field(description="At most 30 small letters, digits and dashes; begins with a letter.")
    instances: tuple[str, ...] = Field(
        min_length=1,
        max_length=20,
        description="EC2 instance types, any of which may be used; alike in CPUs, memory and GPUs, x86_64.",
    )
    nodes: Range = Field(
        description="How many nodes: `min`, and up to `max` when the EKS node group and the NodeSet are scaled."
    )
    zone: str | None = Field(
        default=None,
        description="Availability zone of all its nodes, so that jobs do not talk across zones. "
        "Default: the first of network.zones.",
    )
    capacity: tuple[Literal["onDemand", "spot"], ...] = Field(
        default=("onDemand",),
        min_length=1,
        max_length=1,
        description="How nodes are bought: `onDemand`, or `spot`, which AWS may take back with two minutes' notice.",
    )
    disk_gib: int = Field(default=100, alias="diskGiB", ge=20, le=16384, description="Root volume (gp3) in GiB.")
    resources: WorkerResources = Field(
        default=WorkerResources(), description="What Slurm gets of each node. Default: the whole node."
    )
    slurm: PartitionSlurm = Field(default=PartitionSlurm(), description="What Slurm promises on it.")

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        if not re.fullmatch(r"[a-z]([a-z0-9-]{0,28}[a-z0-9])?", value):
            raise refuse(
                f'"{value}" cannot name a partition, a Kubernetes object and a host at once.',
                "Use at most 30 small letters, digits and dashes, a letter first and no dash last.",
            )
        if value in RESERVED_NAMES:
            raise refuse(f'"{value}" is reserved: {RESERVED_NAMES[value]}.', "Choose another name.")
        return value

    @field_validator("instances")
    @classmethod
    def _known(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            check_instance(name)
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        check_alike(self.types)
        if "spot" in self.capacity:
            for kind in self.types:
                if not kind.spot:
                    raise refuse(f"{kind.name} cannot be bought as spot.", "Use capacity: [onDemand], or another type.")
        check_fits(self)
        return self

    @property
    def types(self) -> tuple[InstanceType, ...]:
        """Facts of its instance types."""
        return tuple(instance_types()[name] for name in self.instances)

    @property
    def gpu(self) -> str | None:
        """Model of the GPUs of its nodes ("L4"), or None."""
        return self.types[0].gpu

    @property
    def gpus(self) -> int:
        """GPUs that Slurm gets of each node."""
        return self.resources.gpus or self.types[0].gpus

    @property
    def cpu(self) -> float:
        """CPUs that Slurm gets of each node; a whole number where it is not asked for."""
        return self.resources.cpu or float(int(min(spare_cpu(kind) for kind in self.types)))

    @property
    def memory_mib(self) -> int:
        """Memory that Slurm gets of each node, MiB."""
        if self.resources.memory:
            return int(mebibytes(self.resources.memory))
        return min(spare_memory_mib(kind) for kind in self.types)


def check_instance(name: str) -> None:
    """Refuse a type that EC2 does not have, or that these nodes cannot be."""
    known = instance_types()
    kind = known.get(name)
    if kind is None:
        raise refuse(
            f'there is no EC2 instance type "{name}".',
            f"{did_you_mean(name, known)}See components/data/instance_types.json for all that are known.",
        )
    if kind.arch != "x86_64":
        raise refuse(f"{name} has {kind.arch} processors.", "The images are built for x86_64: use such a type.")
    if kind.accelerator not in (None, "nvidia"):
        raise refuse(
            f"{name} has {kind.accelerator} accelerators.", "Only NVIDIA GPUs and plain CPU types are supported."
        )


def check_alike(types: tuple[InstanceType, ...]) -> None:
    """Refuse types that differ in what jobs see: Slurm and Kubernetes take the nodes of a partition as equal."""
    first = types[0]
    for other in types[1:]:
        if (other.gpu, other.gpus) != (first.gpu, first.gpus):
            raise refuse(
                f"{first.name} has {_gpus(first)} and {other.name} has {_gpus(other)}.",
                "The nodes of a partition must be alike: make two partitions.",
            )
        if other.vcpus != first.vcpus:
            raise refuse(
                f"{first.name} has {first.vcpus} CPUs and {other.name} has {other.vcpus}.",
                "The nodes of a partition must be alike: use types of one size, or make two partitions.",
            )


def check_fits(partition: Partition) -> None:
    """Refuse to ask for more than a node has: its pods would stay pending for ever."""
    asked = partition.resources
    for kind in partition.types:
        if asked.gpus and asked.gpus > kind.gpus:
            raise refuse(
                f"resources.gpus asks for {asked.gpus} per node, {kind.name} has {_gpus(kind)}.",
                "Ask for no more than it has, or use a larger type."
                if kind.gpus
                else "Remove it, or use a GPU type such as g6.xlarge.",
            )
        if asked.cpu and asked.cpu > spare_cpu(kind):
            raise refuse(
                f"resources.cpu asks for {asked.cpu:g} per node, {kind.name} has {kind.vcpus} CPUs "
                f"of which {spare_cpu(kind):.2f} are free for Slurm.",
                f"Ask for at most {int(spare_cpu(kind) * 100) / 100:g}, use a larger type, "
                "or leave cpu out to get the whole node.",
            )
        if asked.memory and mebibytes(asked.memory) > spare_memory_mib(kind):
            raise refuse(
                f"resources.memory asks for {asked.memory} per node, {kind.name} has {kind.memory_mib} MiB "
                f"of which {spare_memory_mib(kind)} MiB are free for Slurm.",
                f"Ask for at most {spare_memory_mib(kind)}Mi, use a larger type, "
                "or leave memory out to get the whole node.",
            )
    if (partition.cpu < 1 and asked.cpu is None) or partition.memory_mib < 256:
        raise refuse(
            f"{partition.instances[0]} is too small: nothing is left for Slurm.",
            "Use a type with 2 CPUs and 2 GiB or more.",
        )


def spare_cpu(kind: InstanceType) -> float:
    """CPUs of a node that are left for Slurm.

    Less the kubelet's share on EKS (6 % of the first CPU, 1 % of the second, 0.5 % of the next two, 0.25 % of the
    others: amazon-eks-ami) and 0.25 CPU for the add-ons' pods on each node (aws-node 0.05, kube-proxy 0.1,
    EBS CSI 0.03 and some to spare).
    """
    reserved = sum(0.06 if i == 0 else 0.01 if i == 1 else 0.005 if i < 4 else 0.0025 for i in range(kind.vcpus))
    return kind.vcpus - reserved - 0.25


def spare_memory_mib(kind: InstanceType) -> int:
    """Memory of a node that is left for Slurm, MiB.

    Less 7.5 % that the hypervisor and the kernel take (Karpenter's default estimate), the kubelet's share on EKS
    (255 MiB and 11 MiB for each possible pod, 100 MiB for eviction: amazon-eks-ami), and 512 MiB for the add-ons' pods.
    """
    return int(kind.memory_mib * 0.925) - (255 + 11 * kind.pods) - 100 - 512


def _gpus(kind: InstanceType) -> str:
    return f"{kind.gpus} {kind.gpu}" if kind.gpus else "no GPU"
