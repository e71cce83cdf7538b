"""Karpenter's NodePools and EC2NodeClasses: by default they replace nodes under running jobs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from pulumi_policy import Severity

from .gpu_pools import NODE_POOL, is_gpu_pool
from .rule import Finding, Parameter, Resource, Rule
from .values import UNKNOWN, at, items, mapping, number, texts

NODE_CLASS = r"kubernetes:karpenter\.k8s\.aws/v[0-9a-z]+:EC2NodeClass"
PARTITION_LABEL = "slipway.dev/partition"
UNITS = {"s": 1, "m": 60, "h": 3600}
JOBS_DIE = "Jobs on the node are killed with it, however long they have run, and Slurm is not asked."


def for_jobs(spec: dict[str, Any]) -> bool:
    """Whether a NodePool is for Slurm's workers: it has GPUs, or a partition's label or taint."""
    template = at(spec, "template")
    return (
        is_gpu_pool(spec)
        or PARTITION_LABEL in mapping(at(template, "metadata", "labels"))
        or any(at(taint, "key") == PARTITION_LABEL for taint in items(at(template, "spec", "taints")))
    )


def seconds(duration: Any) -> float | None:
    """Length of a duration such as 1h30m; infinite for Never; None for what is none."""
    if duration == "Never":
        return float("inf")
    if not isinstance(duration, str) or not re.fullmatch(r"(\d+[hms])+", duration):
        return None
    return sum(int(count) * UNITS[unit] for count, unit in re.findall(r"(\d+)([hms])", duration))


def check_expiry(resource: Resource) -> Iterator[str]:
    """expireAfter, which is 720h where it is not set."""
    spec = mapping(resource.inputs.get("spec"))
    expiry = at(spec, "template", "spec", "expireAfter")
    if for_jobs(spec) and expiry is not UNKNOWN and expiry != "Never":
        yield f"{resource.title} replaces nodes after {expiry or '720h, the default'} (expireAfter)."


def check_grace(resource: Resource) -> Iterator[str]:
    """terminationGracePeriod, after which neither budgets nor annotations hold."""
    spec = mapping(resource.inputs.get("spec"))
    period = at(spec, "template", "spec", "terminationGracePeriod")
    if for_jobs(spec) and period is not None and period is not UNKNOWN:
        yield f"{resource.title} has terminationGracePeriod: {period}."


def check_consolidation(resource: Resource) -> Iterator[Finding | str]:
    """Consolidation: of empty nodes only, and not at once."""
    spec = mapping(resource.inputs.get("spec"))
    if not for_jobs(spec):
        return
    policy, after = at(spec, "disruption", "consolidationPolicy"), at(spec, "disruption", "consolidateAfter")
    if policy is not UNKNOWN and policy != "WhenEmpty":
        yield f"{resource.title} consolidates {policy or 'WhenEmptyOrUnderutilized, the default'}."
    least = resource.parameters["minimumSeconds"]
    length = seconds(after)
    if after is not UNKNOWN and (length is None or length < least):
        yield Finding(
            f"{resource.title} removes empty nodes after {after or '0s, the default'} (consolidateAfter).",
            "Between two jobs a node is empty for a moment: it goes, and the next job waits minutes for another one, "
            "or for hours where such machines are scarce.",
            f"set spec.disruption.consolidateAfter to at least {least:g}s.",
        )


def check_budgets(resource: Resource) -> Iterator[str]:
    """Budgets: one that always holds, for every reason, and is small."""
    spec = mapping(resource.inputs.get("spec"))
    budgets = at(spec, "disruption", "budgets")
    if not for_jobs(spec) or budgets is UNKNOWN:
        return
    most = resource.parameters["maximumPercent"]
    if not any(_small(mapping(budget), most) for budget in items(budgets)):
        yield f"{resource.title} has no disruption budget that always holds and allows at most {most:g} % of the nodes."


def _small(budget: dict[str, Any], most: float) -> bool:
    if budget.get("schedule") or budget.get("reasons"):
        return False
    nodes = budget.get("nodes")
    if nodes is UNKNOWN:
        return True
    if isinstance(nodes, str) and nodes.endswith("%"):
        share = number(nodes[:-1])
        return share is not None and share <= most
    return number(nodes) is not None


def check_limits(resource: Resource) -> Iterator[str]:
    """Limits, without which a pool grows as long as pods wait."""
    limits = at(resource.inputs, "spec", "limits")
    replicas = at(resource.inputs, "spec", "replicas")
    if limits is not UNKNOWN and replicas is None and not mapping(limits):
        yield f"{resource.title} has no limits."


def check_startup_taints(resource: Resource) -> Iterator[str]:
    """Start-up taints that nothing takes away again."""
    known = set(texts(resource.parameters["removed"]))
    for taint in items(at(resource.inputs, "spec", "template", "spec", "startupTaints")):
        key = at(taint, "key")
        if isinstance(key, str) and key not in known:
            yield f"{resource.title} has the start-up taint {key}, which nothing is known to take away."


def check_image(resource: Resource) -> Iterator[str]:
    """The machine image of an EC2NodeClass."""
    for term in items(at(resource.inputs, "spec", "amiSelectorTerms")):
        alias = at(term, "alias")
        if isinstance(alias, str) and alias.endswith("@latest"):
            yield f"{resource.title} takes the image {alias}."


def _rule(
    name: str, severity: Severity, texts_: tuple[str, str, str, str], example: dict[str, Any], **more: Any
) -> Rule:
    summary, why, consequence, remediation = texts_
    return Rule(
        id=name,
        severity=severity,
        kinds=NODE_POOL,
        summary=summary,
        why=why,
        consequence=consequence,
        remediation=remediation,
        example=("kubernetes:karpenter.sh/v1:NodePool", {"spec": example}),
        **more,
    )


_GPU = {"limits": {"nvidia.com/gpu": 64}}
RULES = (
    _rule(
        "nodepool-never-expires",
        Severity.CRITICAL,
        (
            "Nodes with jobs are not replaced because of their age.",
            "Karpenter replaces every node after 30 days unless told otherwise, and expiry does not "
            "wait for a place to "
            "put the pods. https://karpenter.sh/docs/concepts/disruption/#expiration",
            JOBS_DIE,
            "Set spec.template.spec.expireAfter: Never; nodes are renewed when they are empty.",
        ),
        {**_GPU, "template": {"spec": {"expireAfter": "720h"}}},
        check=check_expiry,
    ),
    _rule(
        "nodepool-no-termination-grace-period",
        Severity.CRITICAL,
        (
            "A node that is asked to go waits for its jobs, however long they take.",
            "With terminationGracePeriod Karpenter deletes the pods that are left when it ends, past every "
            "PodDisruptionBudget and the annotation karpenter.sh/do-not-disrupt. "
            "https://karpenter.sh/docs/concepts/disruption/#terminationgraceperiod",
            "Drift and expiry then go ahead although a PodDisruptionBudget forbids it: jobs longer "
            "than the period die.",
            "Remove spec.template.spec.terminationGracePeriod.",
        ),
        {**_GPU, "template": {"spec": {"expireAfter": "Never", "terminationGracePeriod": "48h"}}},
        check=check_grace,
    ),
    _rule(
        "nodepool-consolidates-when-empty",
        Severity.CRITICAL,
        (
            "Only nodes without jobs are consolidated, and not in the moment between two jobs.",
            "Karpenter's default moves pods together to save nodes. A job cannot be moved: it ends. "
            "https://karpenter.sh/docs/concepts/disruption/#consolidation",
            JOBS_DIE,
            "Set spec.disruption.consolidationPolicy: WhenEmpty.",
        ),
        {**_GPU, "disruption": {"consolidationPolicy": "WhenEmptyOrUnderutilized", "consolidateAfter": "10m"}},
        check=check_consolidation,
        parameters={"minimumSeconds": Parameter(300, "Shortest consolidateAfter, seconds.")},
    ),
    _rule(
        "nodepool-has-disruption-budget",
        Severity.HIGH,
        (
            "A disruption budget bounds how many nodes with jobs are replaced at once.",
            "A new image or a changed tag makes all nodes of a pool drift at the same moment. "
            "https://karpenter.sh/docs/concepts/disruption/#nodepool-disruption-budgets",
            "One edit of the node class may cordon much of a partition at once, and jobs that wait cannot start there.",
            'Add a budget without schedule and reasons to spec.disruption.budgets, such as {nodes: "10%"}.',
        ),
        {**_GPU, "disruption": {"budgets": [{"nodes": "100%"}]}},
        check=check_budgets,
        parameters={"maximumPercent": Parameter(10, "Largest share of a pool's nodes, percent.")},
    ),
    _rule(
        "nodepool-has-limits",
        Severity.HIGH,
        (
            "Every NodePool has limits.",
            "Karpenter makes nodes for as long as pods wait. A job array with a mistyped size is enough.",
            "One wrong replica count or job array buys machines until the account's quota ends it.",
            "Set spec.limits: cpu, and nvidia.com/gpu for GPU pools.",
        ),
        {"template": {"spec": {}}},
        check=check_limits,
    ),
    _rule(
        "startup-taint-is-removed",
        Severity.MEDIUM,
        (
            "A start-up taint is one that an agent on the node takes away again.",
            "Start-up taints keep pods off a node until a driver is ready. One that nothing removes keeps them off for "
            "ever, while Karpenter believes that the node will be of use soon.",
            "New nodes run, and are paid for, but no pod ever lands on them.",
            "Remove the taint from startupTaints, or name it in the parameter `removed` when something takes it away.",
        ),
        {"template": {"spec": {"startupTaints": [{"key": "example.com/not-ready", "effect": "NoSchedule"}]}}},
        check=check_startup_taints,
        parameters={
            "removed": Parameter(
                [
                    "ebs.csi.aws.com/agent-not-ready",
                    "efs.csi.aws.com/agent-not-ready",
                    "fsx.csi.aws.com/agent-not-ready",
                    "node.cilium.io/agent-not-ready",
                    "node.kubernetes.io/not-ready",
                ],
                "Keys of start-up taints that an agent removes.",
            )
        },
    ),
    Rule(
        id="node-image-pinned",
        severity=Severity.HIGH,
        kinds=NODE_CLASS,
        summary="Nodes take one version of their machine image, not the latest.",
        why="With `@latest`, each image that AWS publishes makes every node drift, on AWS's schedule and untested with "
        "the drivers that jobs were built for.",
        consequence="All nodes of the pool are replaced in the week in which AWS publishes an image, "
        "without a change here.",
        remediation="Name a version: alias: al2023@v20260915.",
        example=(
            "kubernetes:karpenter.k8s.aws/v1:EC2NodeClass",
            {"spec": {"amiSelectorTerms": [{"alias": "al2023@latest"}]}},
        ),
        check=check_image,
    ),
)
