"""The rules of the pack, one concern per file. They see what any program registers and import nothing of ours."""

from . import data, escalation, karpenter, network, nodes, singletons, slurm, trust, workload
from .busy_pods import BUSY_PODS_HAVE_PDB
from .gpu_pools import GPU_POOL_TAINTED
from .rule import Rule
from .wildcards import IAM_NO_WILDCARD_ACTION

_BY_ID = {
    rule.id: rule
    for rule in (
        GPU_POOL_TAINTED,
        BUSY_PODS_HAVE_PDB,
        IAM_NO_WILDCARD_ACTION,
        *escalation.RULES,
        *trust.RULES,
        *karpenter.RULES,
        *nodes.RULES,
        *singletons.RULES,
        *network.RULES,
        *data.RULES,
        *workload.RULES,
        *slurm.RULES,
    )
}

# The order of docs/policies.md. A rule that is in no group fails the tests.
GROUPS: dict[str, tuple[str, ...]] = {
    "Taints and tolerations": (
        "gpu-pool-tainted",
        "partition-pool-tainted",
        "gpu-nodes-only-for-gpu-pods",
        "gpu-pod-tolerates-gpu-nodes",
        "startup-taint-is-removed",
    ),
    "Disruption": (
        "busy-pods-have-pdb",
        "service-has-pdb",
        "nodepool-never-expires",
        "nodepool-no-termination-grace-period",
        "nodepool-consolidates-when-empty",
        "nodepool-has-disruption-budget",
        "node-image-pinned",
        "nodegroup-update-respects-jobs",
        "system-nodes-not-spot",
        "operator-has-replicas",
    ),
    "IAM": (
        "iam-no-wildcard-action",
        "iam-no-wildcard-resource",
        "iam-no-privilege-escalation",
        "iam-pass-role-limited",
        "pod-identity-trust-has-conditions",
        "no-policy-for-everybody",
        "iam-no-long-lived-keys",
        "node-credentials-guarded",
    ),
    "Network": (
        "eks-api-not-open",
        "no-open-ingress",
        "load-balancer-has-source-ranges",
        "no-public-addresses",
        "default-security-group-empty",
        "network-policies-enforced",
    ),
    "Data": (
        "data-encrypted",
        "data-has-own-key",
        "kms-key-rotates",
        "deletion-protected",
        "database-backed-up",
        "database-requires-tls",
        "database-password-managed",
        "logs-kept-for-a-set-time",
        "image-repository-immutable",
    ),
    "Workload": (
        "image-pinned",
        "no-privileged-pods",
        "namespace-has-pod-security",
        "pod-has-resources",
        "service-has-readiness-probe",
    ),
    "Capacity and cost": (
        "nodepool-has-limits",
        "pool-has-maximum",
        "scaledobject-has-fallback",
        "cost-tags",
        "efa-pool-in-one-zone",
    ),
    "Slurm": (
        "slurm-state-persistent",
        "slurm-accounting-on",
        "slurm-database-user-is-not-master",
        "partition-has-time-limit",
    ),
}
RULES: tuple[Rule, ...] = tuple(_BY_ID[name] for names in GROUPS.values() for name in names)
UNGROUPED = set(_BY_ID) - {rule.id for rule in RULES}

__all__ = ["GROUPS", "RULES", "UNGROUPED"]
