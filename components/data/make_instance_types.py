"""Writes instance_types.json: the facts of each EC2 instance type that settings are checked against.

Source: EC2 DescribeInstanceTypes, as shipped with moto (`moto/ec2/resources/instance_types.json.gz`), which
collects the real answers of us-east-1 and other regions. Only what the program asks is kept, one type a line.

Run it again after an update of moto:  python components/data/make_instance_types.py
"""

from __future__ import annotations

import gzip
import json
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

TARGET = Path(__file__).with_name("instance_types.json")
ARCHITECTURES = ("x86_64", "arm64")  # Macs have architectures of their own and are no Kubernetes nodes


def accelerator(raw: dict[str, Any]) -> str | None:
    """The maker of the accelerators of a type in small letters ("nvidia", "neuron", …), or None."""
    gpus = raw.get("GpuInfo", {}).get("Gpus")
    if gpus:
        return str(gpus[0]["Manufacturer"]).lower()
    for key, name in (
        ("NeuronInfo", "neuron"),
        ("InferenceAcceleratorInfo", "inferentia"),
        ("FpgaInfo", "fpga"),
        ("MediaAcceleratorInfo", "media"),
    ):
        if key in raw:
            return name
    return None


def facts(raw: dict[str, Any]) -> dict[str, Any] | None:
    """What is kept of one DescribeInstanceTypes entry; None for a type that can be no node.

    pods: most pods by the VPC CNI's addresses, interfaces * (addresses - 1) + 2 on the first network card
    (formula of EKS's own max-pods calculator, without prefix delegation).
    """
    arch = next((a for a in ARCHITECTURES if a in raw["ProcessorInfo"]["SupportedArchitectures"]), None)
    if arch is None:
        return None
    network = raw["NetworkInfo"]
    interfaces = network["NetworkCards"][0]["MaximumNetworkInterfaces"]
    kept: dict[str, Any] = {
        "vcpus": raw["VCpuInfo"]["DefaultVCpus"],
        "memoryMiB": raw["MemoryInfo"]["SizeInMiB"],
        "arch": arch,
        "pods": interfaces * (network["Ipv4AddressesPerInterface"] - 1) + 2,
        "spot": "spot" in raw["SupportedUsageClasses"],
    }
    maker = accelerator(raw)
    if maker:
        kept["accelerator"] = maker
    if maker == "nvidia":
        gpu = raw["GpuInfo"]["Gpus"][0]
        kept["gpu"] = gpu["Name"]
        kept["gpus"] = gpu["Count"]
    return kept


def text() -> str:
    """The whole file."""
    packed = (files("moto") / "ec2/resources/instance_types.json.gz").read_bytes()
    types = {name: kept for name, raw in json.loads(gzip.decompress(packed)).items() if (kept := facts(raw))}
    source = f"EC2 DescribeInstanceTypes as shipped with moto {version('moto')}; made by {Path(__file__).name}"
    lines = [f" {json.dumps(name)}: {json.dumps(types[name])}" for name in sorted(types)]
    return f'{{"source": {json.dumps(source)},\n"types": {{\n' + ",\n".join(lines) + "\n}}\n"


if __name__ == "__main__":
    TARGET.write_text(text())
