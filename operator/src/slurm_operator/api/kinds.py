"""The six kinds of `slinky.slurm.net/v1beta1` and the kind of our own group: names, columns, subresources, rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from slurm_operator.api.common import Base, rule
from slurm_operator.api.controller import SPEC_RULES, ControllerSpec, ControllerStatus
from slurm_operator.api.drainpolicy import POLICY_RULES, DrainPolicySpec, DrainPolicyStatus
from slurm_operator.api.names import GROUP, OWN_GROUP, OWN_VERSION, VERSION
from slurm_operator.api.nodeset import NodeSetSpec, NodeSetStatus
from slurm_operator.api.others import (
    ACCOUNTING_RULES,
    TOKEN_RULES,
    AccountingSpec,
    AccountingStatus,
    LoginSetSpec,
    LoginSetStatus,
    RestApiSpec,
    RestApiStatus,
    TokenSpec,
    TokenStatus,
)


@dataclass(frozen=True)
class Column:
    """A column of `kubectl get`; wide: only with -o wide."""

    name: str
    path: str
    type: str = "string"
    wide: bool = False
    description: str = ""


@dataclass(frozen=True)
class Kind:
    """One custom resource: what its CRD is made from."""

    name: str
    short_names: tuple[str, ...]
    description: str
    spec: type[Base]
    status: type[Base]
    columns: tuple[Column, ...]
    spec_rules: Sequence[dict[str, str]] = field(default_factory=list)
    rules: Sequence[dict[str, str]] = field(default_factory=list)
    scale: bool = False
    max_name: int = 0
    group: str = GROUP
    version: str = VERSION

    @property
    def plural(self) -> str:
        name = self.name.lower()
        return f"{name[:-1]}ies" if name.endswith("y") else f"{name}s"

    def object_rules(self) -> list[dict[str, Any]]:
        rules: list[dict[str, Any]] = list(self.rules)
        if self.max_name:
            rules.append(
                rule(
                    f"self.metadata.name.size() <= {self.max_name}",
                    f"the name may have {self.max_name} characters at most: other names are made from it",
                )
            )
        return rules


READY = Column("READY", '.status.conditions[?(@.type=="Ready")].status', description="Everything works as asked.")
REASON = Column("STATUS", '.status.conditions[?(@.type=="Ready")].reason', description="Why it is ready, or not.")
MESSAGE = Column(
    "MESSAGE", '.status.conditions[?(@.type=="Ready")].message', wide=True, description="The same in a sentence."
)
AGE = Column("AGE", ".metadata.creationTimestamp", "date")


def _count(name: str, path: str, description: str, *, wide: bool = False) -> Column:
    return Column(name, f".status.{path}", "integer", wide, description)


KINDS: tuple[Kind, ...] = (
    Kind(
        name="Controller",
        short_names=("slurmctld",),
        description="A Slurm cluster: slurmctld, its configuration and its keys.",
        spec=ControllerSpec,
        status=ControllerStatus,
        spec_rules=SPEC_RULES,
        columns=(READY, REASON, MESSAGE, AGE),
        max_name=40,
    ),
    Kind(
        name="NodeSet",
        short_names=("nss", "slurmd"),
        description="A group of like Slurm workers (slurmd pods).",
        spec=NodeSetSpec,
        status=NodeSetStatus,
        columns=(
            _count("DESIRED", "desired", "Workers there should be."),
            _count("REPLICAS", "replicas", "Worker pods that exist."),
            _count("UPDATED", "updatedReplicas", "Of these, with the newest revision."),
            Column("READY", ".status.readyReplicas", "integer", description="Of these, ready."),
            REASON,
            _count("IDLE", "slurmIdle", "Slurm nodes that are idle.", wide=True),
            _count("ALLOCATED", "slurmAllocated", "Slurm nodes with jobs.", wide=True),
            _count("DOWN", "slurmDown", "Slurm nodes that are down.", wide=True),
            _count("DRAIN", "slurmDrain", "Slurm nodes that are drained or draining.", wide=True),
            MESSAGE,
            AGE,
        ),
        scale=True,
        max_name=52,
    ),
    Kind(
        name="LoginSet",
        short_names=("lss", "sackd"),
        description="Login pods of a Slurm cluster: sshd and Slurm's commands.",
        spec=LoginSetSpec,
        status=LoginSetStatus,
        columns=(_count("REPLICAS", "replicas", "Login pods that exist."), READY, REASON, MESSAGE, AGE),
        scale=True,
        max_name=52,
    ),
    Kind(
        name="RestApi",
        short_names=("slurmrestd",),
        description="slurmrestd, Slurm's REST API. The operator needs one per Controller to drain workers safely.",
        spec=RestApiSpec,
        status=RestApiStatus,
        columns=(READY, REASON, MESSAGE, AGE),
        max_name=52,
    ),
    Kind(
        name="Accounting",
        short_names=("slurmdbd",),
        description="slurmdbd, Slurm's accounting.",
        spec=AccountingSpec,
        status=AccountingStatus,
        spec_rules=ACCOUNTING_RULES,
        columns=(READY, REASON, MESSAGE, AGE),
        max_name=52,
    ),
    Kind(
        name="Token",
        short_names=("jwt",),
        description="A Slurm token (JWT) kept fresh in a Secret.",
        spec=TokenSpec,
        status=TokenStatus,
        spec_rules=TOKEN_RULES,
        columns=(
            Column("USER", ".spec.username", description="The user the token speaks for."),
            Column("IAT", ".status.issuedAt", "date", description="When it was signed."),
            READY,
            REASON,
            MESSAGE,
            AGE,
        ),
    ),
    Kind(
        name="DrainPolicy",
        short_names=("drain",),
        description="What becomes of the jobs of workers that have to leave.",
        spec=DrainPolicySpec,
        status=DrainPolicyStatus,
        spec_rules=POLICY_RULES,
        columns=(
            Column("SCALE-IN", ".spec.scaleIn.mode", description="For scale-in and updates; Wait if empty."),
            Column("DELETION", ".spec.deletion.mode", description="When a NodeSet is deleted."),
            Column("CORDON", ".spec.cordon.mode", description="When a Kubernetes node is cordoned; Wait if empty."),
            READY,
            REASON,
            MESSAGE,
            AGE,
        ),
        group=OWN_GROUP,
        version=OWN_VERSION,
    ),
)
