"""Predicates on Slurm nodes. What is not known to be idle counts as busy."""

from __future__ import annotations

from slurm_operator.slurm.types import NodeInfo

PREFIX = "slurm-operator: "
"""Reasons that the operator sets begin with it, and it only undoes what begins with it."""

_RUNS_WORK = frozenset({"ALLOCATED", "MIXED", "COMPLETING"})
# Base states of a node that runs nothing. IDLE is the rule; DOWN, FUTURE and UNKNOWN nodes have no running job, which
# Slurm guarantees by ending or requeueing the jobs of a node that it sets DOWN.
_RUNS_NOTHING = frozenset({"IDLE", "DOWN", "FUTURE"})
# Flags that say nothing about work. A word in none of the three sets is new to us: then the node counts as busy.
_FLAGS = frozenset({
    "DRAIN", "NOT_RESPONDING", "CLOUD", "EXTERNAL", "DYNAMIC_NORM", "DYNAMIC_FUTURE", "RESERVED", "MAINTENANCE",
    "POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "POWER_DOWN", "POWER_UP", "POWER_DRAIN", "POWER_DOWN_ASAP",
    "POWER_DOWN_FORCE", "FAIL", "REBOOT_REQUESTED", "REBOOT_CANCELED", "REBOOT_ISSUED", "PLANNED", "INVALID_REG",
    "BLOCKED", "RESUME", "UNDRAIN",
})  # fmt: skip


def is_idle(node: NodeInfo) -> bool:
    """True only if Slurm says in so many words that nothing runs here: safe to stop."""
    return bool(node.states & _RUNS_NOTHING) and node.states <= _RUNS_NOTHING | _FLAGS and not node.alloc_cpus


def is_busy(node: NodeInfo) -> bool:
    """True if a job runs or ends here, or if it cannot be told."""
    return not is_idle(node)


def is_draining(node: NodeInfo) -> bool:
    """No new jobs, but something still runs."""
    return "DRAIN" in node.states and is_busy(node)


def is_drained(node: NodeInfo) -> bool:
    """No new jobs and nothing runs: the node can be removed."""
    return "DRAIN" in node.states and is_idle(node)


def is_down(node: NodeInfo) -> bool:
    """Slurm places no jobs here because the node failed or was set DOWN."""
    return "DOWN" in node.states or "FAIL" in node.states


def is_responding(node: NodeInfo) -> bool:
    """slurmd answers. False for a moment after RESUME or UNDRAIN is normal: the flag lasts until the next ping."""
    return "NOT_RESPONDING" not in node.states


def is_schedulable(node: NodeInfo) -> bool:
    """Slurm may start a job here."""
    return not is_down(node) and "DRAIN" not in node.states and "INVALID_REG" not in node.states


def ours(reason: str) -> bool:
    """True if the operator set this reason."""
    return reason.startswith(PREFIX)


def runs_work(states: frozenset[str]) -> bool:
    """True if one of the states says that jobs use the node now (for counts; decisions use is_idle)."""
    return bool(states & _RUNS_WORK)
