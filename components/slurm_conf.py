"""The lines of Slurm's configuration files that follow from settings. Pure text, no cloud."""

from __future__ import annotations

import re

from components.settings.model import Slurm
from components.settings.partition import Partition

UNCONFINED = {
    "ProctrackType": "proctrack/linuxproc",
    "JobAcctGatherType": "jobacct_gather/linux",
    "TaskPlugin": "task/none",
}
CONFINED = {
    "ProctrackType": "proctrack/cgroup",
    "JobAcctGatherType": "jobacct_gather/cgroup",
    "TaskPlugin": "task/cgroup,task/affinity",
}
BASICS = {
    # Jobs share nodes by cores and memory; with cores alone two jobs could together want more memory than there is.
    "SelectType": "select/cons_tres",
    "SelectTypeParameters": "CR_Core_Memory",
    # A node that was lost and registers again with its resources is used again.
    "ReturnToService": "2",
}


def slurm_conf(settings: Slurm, partitions: tuple[Partition, ...]) -> str:
    """Lines for the end of slurm.conf. What the user set comes last, and Slurm takes the last."""
    lines = {**BASICS, **(CONFINED if settings.cgroups else UNCONFINED)}
    if any(partition.gpu for partition in partitions):
        lines["GresTypes"] = "gpu"
    lines |= {name: str(value) for name, value in settings.conf.items()}
    return "\n".join(f"{name}={value}" for name, value in lines.items())


def config_files(settings: Slurm, partitions: tuple[Partition, ...]) -> dict[str, str]:
    """Further files beside slurm.conf, by name."""
    files = {}
    if settings.cgroups:
        # Without this file the operator switches cgroups off, and workers then need no privileges.
        wanted = ["ConstrainCores=yes", "ConstrainRAMSpace=yes", "ConstrainDevices=yes"]
        files["cgroup.conf"] = "\n".join(["CgroupPlugin=cgroup/v2", "IgnoreSystemd=yes", *wanted]) + "\n"
    if any(partition.gpu for partition in partitions):
        # slurmd finds the GPUs by the driver's own files, which need no NVIDIA library in the image.
        files["gres.conf"] = "AutoDetect=nvidia\n"
    return files


def partition_line(partition: Partition) -> str:
    """The parameters of a partition after its name and nodes."""
    parameters = {
        "State": "UP",
        "Default": "YES" if partition.slurm.default else "NO",
        "MaxTime": partition.slurm.max_time,
        "PriorityTier": str(partition.slurm.priority_tier),
        "DefMemPerCPU": str(default_memory_per_cpu(partition)),
    }
    return " ".join(f"{name}={value}" for name, value in parameters.items())


def default_memory_per_cpu(partition: Partition) -> int:
    """Memory of a job that asks for none, MiB per CPU: its CPUs' share, less 5 % for slurmd in the same pod."""
    return max(1, int(partition.memory_mib * 0.95 / max(1, int(partition.cpu))))


def node_options(partition: Partition) -> str:
    """What slurmd tells slurmctld of itself, as space-separated Key=Value."""
    if not partition.gpu:
        return ""
    kind = gres_type(partition.gpu)
    return f"Gres=gpu:{kind}:{partition.gpus}" if kind else f"Gres=gpu:{partition.gpus}"


def gres_type(gpu: str) -> str | None:
    """Type of a GPU in Slurm's words, if EC2's name for it is part of the name that the driver reports ("l4").

    Slurm drops a GPU whose type is not part of the driver's name, so names of several words have no type.
    """
    return gpu.lower() if re.fullmatch(r"[A-Z]\d+[A-Za-z]*", gpu) else None
