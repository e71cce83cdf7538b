"""Pools of nodes: who may land on them, how they are replaced, how many there may be, and who pays."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from pulumi_policy import Severity

from .gpu_pools import KEEPS_OFF, NODE_GROUP, NODE_POOL
from .karpenter import PARTITION_LABEL
from .rule import Finding, Parameter, Resource, Rule
from .values import UNKNOWN, at, from_json, is_true, items, mapping, number, texts

PROVIDER = "pulumi:providers:aws"
TEMPLATE = "aws:ec2/launchTemplate:LaunchTemplate"
SCALED_OBJECT = r"kubernetes:keda\.sh/v[0-9a-z]+:ScaledObject"
ZONE = "topology.kubernetes.io/zone"
INSTANCE = "node.kubernetes.io/instance-type"
EFA = re.compile(r"(p4d|p4de|p5|p5e|p5en|p6[a-z0-9-]*|trn1|trn1n|trn2)\.\d*(24|32|48)xlarge.*")
NEED_TAG = ("instance", "volume")


def check_partition_taint(resource: Resource) -> Iterator[str]:
    """A pool with a partition's label, and whether its taint keeps others off."""
    if resource.kind == NODE_GROUP:
        labels, taints = resource.inputs.get("labels"), resource.inputs.get("taints")
    else:
        template = at(resource.inputs, "spec", "template")
        labels, taints = at(template, "metadata", "labels"), at(template, "spec", "taints")
    if PARTITION_LABEL not in mapping(labels) or taints is UNKNOWN:
        return
    keys = [at(taint, "key") for taint in items(taints) if at(taint, "effect") in (*KEEPS_OFF, UNKNOWN)]
    if PARTITION_LABEL not in keys and UNKNOWN not in keys:
        yield f"{resource.title} has the label {PARTITION_LABEL} and no NoSchedule taint of that key."


def check_spot(resource: Resource) -> Iterator[str]:
    """Groups for what the cluster itself needs, on machines that AWS takes back within two minutes."""
    system = any(at(taint, "key") == "CriticalAddonsOnly" for taint in items(resource.inputs.get("taints")))
    if system and resource.inputs.get("capacityType") == "SPOT":
        yield f"{resource.title} is for system pods and has spot capacity."


def check_forced(resource: Resource) -> Iterator[Finding | str]:
    """How EKS replaces the nodes of a group when its version or image changes."""
    if is_true(resource.inputs.get("forceUpdateVersion")):
        yield f"{resource.title} is updated by force (forceUpdateVersion)."
    share = number(at(resource.inputs, "updateConfig", "maxUnavailablePercentage"))
    most = resource.parameters["maximumPercent"]
    if share is not None and share > most:
        yield Finding(
            f"{resource.title} is updated in steps of {share:g} % of its nodes.",
            "That share of the partition is cordoned at once and takes no new jobs while the old ones end.",
            f"set updateConfig.maxUnavailablePercentage to at most {most:g}, or maxUnavailable: 1.",
        )


def check_maximum(resource: Resource) -> Iterator[str]:
    """The largest size of node groups and of what KEDA scales."""
    if resource.kind == NODE_GROUP:
        most = at(resource.inputs, "scalingConfig", "maxSize")
        if most is not UNKNOWN and not (0 < (number(most) or 0) <= resource.parameters["maximumNodes"]):
            yield f"{resource.title} may grow to {most} nodes."
    elif not at(resource.inputs, "spec", "maxReplicaCount") and at(resource.inputs, "spec") is not UNKNOWN:
        yield f"{resource.title} has no maxReplicaCount."


def check_fallback(resource: Resource) -> Iterator[str]:
    """What KEDA does while it cannot ask for metrics."""
    if not at(resource.inputs, "spec", "fallback") and at(resource.inputs, "spec", "fallback") is not UNKNOWN:
        yield f"{resource.title} has no fallback."


def check_tags(resource: Resource) -> Iterator[str]:
    """Default tags of the provider, and tags of what launch templates make, which those do not reach."""
    wanted = texts(resource.parameters["tags"])
    if resource.kind == PROVIDER:
        given = resource.inputs.get("defaultTags")
        tags = at(from_json(given), "tags")
        if given is not UNKNOWN and tags is not UNKNOWN:
            yield from _missing(f"{resource.title} has no default tag", mapping(tags), wanted)
        return
    specifications = resource.inputs.get("tagSpecifications")
    if specifications is UNKNOWN:
        return
    by_kind = {at(entry, "resourceType"): at(entry, "tags") for entry in items(specifications)}
    for kind in NEED_TAG:
        if by_kind.get(kind) is not UNKNOWN:
            yield from _missing(
                f"{resource.title} makes each {kind} without the tag", mapping(by_kind.get(kind)), wanted
            )


def _missing(said: str, tags: dict[str, Any], wanted: list[str]) -> Iterator[str]:
    if absent := [tag for tag in wanted if tag not in tags]:
        yield f"{said} {' and '.join(absent)}."


def check_zone(resource: Resource) -> Iterator[str]:
    """Pools of machines with EFA, which does not reach from one zone to another."""
    if resource.kind == NODE_GROUP:
        efa = any(EFA.fullmatch(name) for name in texts(resource.inputs.get("instanceTypes")))
        if efa and len(items(resource.inputs.get("subnetIds"))) > 1:
            yield f"{resource.title} spreads machines with EFA over several subnets."
        return
    required = [mapping(entry) for entry in items(at(resource.inputs, "spec", "template", "spec", "requirements"))]
    types = [name for entry in required if entry.get("key") == INSTANCE for name in texts(entry.get("values"))]
    zones = [entry for entry in required if entry.get("key") == ZONE and entry.get("operator") == "In"]
    if any(EFA.fullmatch(name) for name in types) and not any(len(items(entry.get("values"))) == 1 for entry in zones):
        yield f"{resource.title} spreads machines with EFA over several zones."


POOLS = f"{re.escape(NODE_GROUP)}|{NODE_POOL}"
RULES = (
    Rule(
        id="partition-pool-tainted",
        severity=Severity.HIGH,
        kinds=POOLS,
        summary="Nodes of a partition carry a taint that only its own workers tolerate.",
        why="Slurm gives a job all of a node's memory and cores, as far as Slurm knows. A pod that it does not know of "
        "takes some of them away.",
        consequence="A stray pod takes memory that Slurm has promised to a job, and the job is killed for want of it.",
        remediation=f"Add a taint {PARTITION_LABEL}=<partition> with effect NoSchedule.",
        example=(NODE_GROUP, {"labels": {PARTITION_LABEL: "debug"}, "instanceTypes": ["c7i.xlarge"]}),
        check=check_partition_taint,
    ),
    Rule(
        id="system-nodes-not-spot",
        severity=Severity.HIGH,
        kinds=re.escape(NODE_GROUP),
        summary="slurmctld, the operator and the cluster's add-ons do not run on spot machines.",
        why="AWS takes spot machines back with two minutes' notice, often several at once. Jobs can "
        "be queued again; the "
        "scheduler that would do it must not go with them.",
        consequence="slurmctld, login nodes and CoreDNS go together, and everybody's session ends.",
        remediation="Set capacityType: ON_DEMAND; spot is for partitions.",
        example=(
            NODE_GROUP,
            {"capacityType": "SPOT", "taints": [{"key": "CriticalAddonsOnly", "effect": "NO_SCHEDULE"}]},
        ),
        check=check_spot,
    ),
    Rule(
        id="nodegroup-update-respects-jobs",
        severity=Severity.CRITICAL,
        kinds=re.escape(NODE_GROUP),
        summary="Updates of a node group wait for PodDisruptionBudgets, and take few nodes at a time.",
        why="EKS drains a group's nodes when its version changes. By force it deletes pods that may not be evicted. "
        "https://docs.aws.amazon.com/eks/latest/userguide/managed-node-update-behavior.html",
        consequence="The next update of version or image kills every job in the group, node by node.",
        remediation="Remove forceUpdateVersion; drain the partition in Slurm first.",
        example=(NODE_GROUP, {"instanceTypes": ["p5.48xlarge"], "forceUpdateVersion": True}),
        check=check_forced,
        parameters={"maximumPercent": Parameter(25, "Largest share of a group that is updated at once, percent.")},
    ),
    Rule(
        id="pool-has-maximum",
        severity=Severity.HIGH,
        kinds=f"{re.escape(NODE_GROUP)}|{SCALED_OBJECT}",
        summary="Whatever scales has an upper end.",
        why="Autoscalers follow the queue. A job array with a mistyped size asks for as many nodes as there are tasks; "
        "KEDA's default maximum is 100 replicas.",
        consequence="One wrong job array buys machines until the account's quota ends it.",
        remediation="Set scalingConfig.maxSize, or maxReplicaCount, to what the budget allows.",
        example=("kubernetes:keda.sh/v1alpha1:ScaledObject", {"spec": {"minReplicaCount": 0}}),
        check=check_maximum,
        parameters={"maximumNodes": Parameter(1000, "Largest maxSize of a node group.")},
    ),
    Rule(
        id="scaledobject-has-fallback",
        severity=Severity.HIGH,
        kinds=SCALED_OBJECT,
        summary="KEDA keeps a set number of workers while it cannot ask Slurm.",
        why="Metrics are missing whenever slurmctld or Prometheus restarts. "
        "https://keda.sh/docs/latest/reference/scaledobject-spec/#fallback",
        consequence="An hour without metrics leaves the workers at whatever number they had, or at none.",
        remediation="Set spec.fallback: failureThreshold and replicas.",
        example=("kubernetes:keda.sh/v1alpha1:ScaledObject", {"spec": {"maxReplicaCount": 16}}),
        check=check_fallback,
    ),
    Rule(
        id="cost-tags",
        severity=Severity.MEDIUM,
        kinds=f"{re.escape(PROVIDER)}|{re.escape(TEMPLATE)}",
        summary="Everything on AWS says which stack it belongs to, machines and their volumes included.",
        why="Tags are what cost reports are made of, and how leftovers are found. The provider's default tags do not "
        "reach what a launch template makes: machines, which are nearly all of the bill.",
        consequence="The bill has one large line that nobody can tell apart, and leftovers stay unnoticed.",
        remediation="Set defaultTags of the provider, and tagSpecifications for instance and volume.",
        example=(TEMPLATE, {"tagSpecifications": [{"resourceType": "instance", "tags": {"Name": "gpu"}}]}),
        check=check_tags,
        parameters={"tags": Parameter(["slipway:stack", "slipway:cluster"], "Tags that everything carries.")},
    ),
    Rule(
        id="efa-pool-in-one-zone",
        severity=Severity.HIGH,
        kinds=POOLS,
        summary="Machines with EFA are in one zone per pool.",
        why="EFA does not leave its subnet's zone. "
        "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa.html#efa-limits",
        consequence="A job across two zones hangs in its first collective operation, with all its GPUs paid for.",
        remediation="Give each zone a pool of its own, with one subnet, or one value of topology.kubernetes.io/zone.",
        example=(NODE_GROUP, {"instanceTypes": ["p5.48xlarge"], "subnetIds": ["subnet-a", "subnet-b"]}),
        check=check_zone,
    ),
)
