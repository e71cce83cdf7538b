"""GPU nodes are only for what asks for GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from pulumi_policy import Severity

from .rule import Finding, Resource, Rule
from .values import UNKNOWN, at, items, mapping

NODE_GROUP = "aws:eks/nodeGroup:NodeGroup"
NODE_POOL = r"kubernetes:karpenter\.sh/v[0-9a-z]+:NodePool"
GPU_FAMILY = re.compile(r"(p[2-9]|g[2-9]|gr[6-9])[a-z0-9-]*")
KEEPS_OFF = {"NO_SCHEDULE", "NO_EXECUTE", "NoSchedule", "NoExecute"}
INSTANCE_LABELS = {"node.kubernetes.io/instance-type", "karpenter.k8s.aws/instance-family"}


def check(resource: Resource) -> Iterator[Finding]:
    """A managed node group or Karpenter NodePool that may have GPU nodes, and whose taints let anything on them."""
    if resource.kind == NODE_GROUP:
        gpu, taints = is_gpu_group(resource.inputs), at(resource.inputs, "taints")
    else:
        template = at(resource.inputs, "spec", "template", "spec")
        gpu, taints = is_gpu_pool(mapping(at(resource.inputs, "spec"))), at(template, "taints")
    if not gpu or taints is UNKNOWN:
        return
    effects = [at(taint, "effect") for taint in items(taints)]
    if any(effect in KEEPS_OFF or effect is UNKNOWN for effect in effects):
        return
    spelling = "NO_SCHEDULE" if resource.kind == NODE_GROUP else "NoSchedule"
    yield Finding(
        f"{resource.title} has no NoSchedule taint.",
        fix=f"add the taint nvidia.com/gpu=true:{spelling}.",
    )


def is_gpu_group(inputs: dict[str, Any]) -> bool:
    """Whether a managed node group has GPU nodes, by its image or its instance types."""
    ami = inputs.get("amiType")
    if isinstance(ami, str) and ("NVIDIA" in ami or ami == "AL2_x86_64_GPU"):
        return True
    return any(is_gpu_type(name) for name in items(inputs.get("instanceTypes")))


def is_gpu_pool(spec: dict[str, Any]) -> bool:
    """Whether a NodePool may make GPU nodes: by a limit on GPUs, or by requirements that let only GPU types through.

    A pool that asks for no kind of instance may make GPU nodes too, but Karpenter then takes the cheapest that fits.
    """
    if "nvidia.com/gpu" in mapping(spec.get("limits")):
        return True
    return any(_wants_gpu(mapping(entry)) for entry in items(at(spec, "template", "spec", "requirements")))


def _wants_gpu(requirement: dict[str, Any]) -> bool:
    key, operator = requirement.get("key"), requirement.get("operator")
    values = [value for value in items(requirement.get("values")) if isinstance(value, str)]
    if key in INSTANCE_LABELS:
        return operator == "In" and any(is_gpu_type(value) for value in values)
    if key == "karpenter.k8s.aws/instance-category":
        return operator == "In" and bool({"g", "p", "gr"} & set(values))
    if isinstance(key, str) and key.startswith("karpenter.k8s.aws/instance-gpu-"):
        return operator in ("In", "Exists", "Gt", "Gte")
    return False


def is_gpu_type(name: Any) -> bool:
    """Whether an EC2 instance type ("g6.xlarge") or family ("p5en") has GPUs."""
    return isinstance(name, str) and GPU_FAMILY.fullmatch(name.partition(".")[0]) is not None


GPU_POOL_TAINTED = Rule(
    id="gpu-pool-tainted",
    severity=Severity.HIGH,
    kinds=f"{re.escape(NODE_GROUP)}|{NODE_POOL}",
    summary="GPU nodes carry a taint that keeps other pods off them.",
    why="A node goes only when no pod is on it. A log collector or a CoreDNS replica that landed on an 8-GPU node "
    "keeps it running, and paid for, long after its jobs are done; and it takes memory that the jobs were promised.",
    consequence="Any pod may land on it: a system pod then keeps a GPU node alive and paid for after its jobs end.",
    remediation="Add the taint nvidia.com/gpu=true:NoSchedule to the node group or NodePool; workers tolerate it.",
    example=(
        NODE_GROUP,
        {"amiType": "AL2023_x86_64_NVIDIA", "instanceTypes": ["p5.48xlarge"], "labels": {"pool": "h100"}},
    ),
    check=check,
)
