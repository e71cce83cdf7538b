"""Facts about AWS that the program needs before it may ask AWS: instance types and add-on versions.

Each file names its source. Reading them takes no network and no credentials, so that a wrong setting is refused
before anything is registered.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


@dataclass(frozen=True)
class InstanceType:
    """One EC2 instance type, as DescribeInstanceTypes tells (see make_instance_types.py).

    vcpus: virtual CPUs. memory_mib: MiB as EC2 states them; a kubelet sees some per cent less.
    pods: most pods by the VPC CNI's addresses. accelerator: maker of its accelerators ("nvidia", "neuron", …) or None.
    gpu, gpus: model and number of NVIDIA GPUs.
    """

    name: str
    vcpus: int
    memory_mib: int
    arch: str
    pods: int
    spot: bool
    accelerator: str | None
    gpu: str | None
    gpus: int


def _read(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((HERE / name).read_text())
    return data


@cache
def instance_types() -> dict[str, InstanceType]:
    """All known instance types by name."""
    return {
        name: InstanceType(
            name=name,
            vcpus=raw["vcpus"],
            memory_mib=raw["memoryMiB"],
            arch=raw["arch"],
            pods=raw["pods"],
            spot=raw["spot"],
            accelerator=raw.get("accelerator"),
            gpu=raw.get("gpu"),
            gpus=raw.get("gpus", 0),
        )
        for name, raw in _read("instance_types.json")["types"].items()
    }


@cache
def addon_versions() -> dict[str, dict[str, str]]:
    """Versions of the EKS add-ons for each Kubernetes version this program supports, newest Kubernetes first."""
    versions: dict[str, dict[str, str]] = _read("addons.json")["versions"]
    return versions
