"""DrainPolicy: what becomes of the jobs of workers that have to leave. A kind of our own group, slipway.dev."""

from __future__ import annotations

from typing import Annotated, Literal

from slurm_operator.api.common import Base, Conditions, doc, rule

_DURATION = r"^([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?$"

Modes = Literal["Wait", "WaitThenRequeue", "Requeue"]


class DrainRule(Base, frozen=True):
    mode: Annotated[
        Modes,
        doc(
            "Wait: for the jobs, for ever. WaitThenRequeue: until timeLimit, then requeue them. Requeue: at once.",
            default="Wait",
        ),
    ] = "Wait"
    time_limit: Annotated[
        str,
        doc(
            "How long to wait, `30m` or `1d12h` for example, from the start of the drain. When a NodeSet is deleted,"
            " jobs that cannot be requeued have so long, too.",
            pattern=_DURATION,
            maxLength=32,
        ),
    ] = ""


class Requirement(Base, frozen=True):
    key: Annotated[str, doc("Name of a label.")]
    operator: Annotated[Literal["In", "NotIn", "Exists", "DoesNotExist"], doc("How it is compared.")]
    values: Annotated[list[str], doc("For In and NotIn.", x_kubernetes_list_type="atomic")] = []


class LabelSelector(Base, frozen=True):
    match_labels: Annotated[dict[str, str], doc("Labels that must be there with these values.")] = {}
    match_expressions: Annotated[list[Requirement], doc("Further conditions; all must hold.")] = []


_RULE = [
    rule(
        "!has(self.mode) || self.mode != 'WaitThenRequeue' || (has(self.timeLimit) && self.timeLimit != '')",
        "mode WaitThenRequeue needs a timeLimit, 2h for example",
    )
]
DELETION = DrainRule("WaitThenRequeue", "1d")


class DrainPolicySpec(Base, frozen=True):
    node_sets: Annotated[
        list[str],
        doc("Names of the NodeSets it is for. With neither names nor selector: all in the namespace without another.",
            x_kubernetes_list_type="set"),
    ] = []  # fmt: skip
    selector: Annotated[LabelSelector | None, doc("Labels of the NodeSets it is for.")] = None
    scale_in: Annotated[
        DrainRule, doc("Workers that scale-in or an update removes.", x_kubernetes_validations=_RULE)
    ] = DrainRule()
    deletion: Annotated[
        DrainRule,
        doc(
            "Workers of a NodeSet that is deleted, or whose Controller is. Default: WaitThenRequeue after 1d.",
            x_kubernetes_validations=_RULE,
        ),
    ] = DELETION
    cordon: Annotated[
        DrainRule, doc("Workers on a Kubernetes node that is cordoned or tainted.", x_kubernetes_validations=_RULE)
    ] = DrainRule()
    not_requeueable: Annotated[
        Literal["Wait", "Cancel"],
        doc("Jobs that cannot be requeued (interactive ones, --no-requeue): wait for them, or cancel them."),
    ] = "Wait"
    unreachable_limit: Annotated[
        str,
        doc(
            "A NodeSet that is deleted while Slurm cannot be asked lets its workers go after this long.",
            pattern=_DURATION,
            maxLength=32,
        ),
    ] = "1h"
    cordon_kubernetes_node: Annotated[
        bool,
        doc("Cordon the Kubernetes node of a worker that an administrator drains, until that drain is undone."),
    ] = False


POLICY_RULES = [
    rule(
        "!has(self.selector) || !has(self.nodeSets) || self.nodeSets.size() == 0",
        "give either nodeSets or a selector, not both",
    )
]


class DrainPolicyStatus(Base, frozen=True):
    node_sets: Annotated[list[str], doc("NodeSets it is in effect for.", x_kubernetes_list_type="set")] = []
    observed_generation: Annotated[int, doc("The generation this was computed from.", format="int64")] = 0
    conditions: Conditions = []
