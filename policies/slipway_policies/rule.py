"""How rules are written: a plain function from plain values to findings, wrapped for Pulumi in one place."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pulumi_policy import (
    EnforcementLevel,
    ReportViolation,
    ResourceValidationArgs,
    ResourceValidationPolicy,
    Severity,
)
from pulumi_policy.proxy import UnknownValueError

DOCS = "docs/policies.md"


class _Unknown:
    """A value that only the cloud knows, in a preview. False, so that `if value` asks for a known one."""

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN = _Unknown()


@dataclass(frozen=True)
class Finding:
    """One violation: what is wrong (one sentence), what would have happened, and how to mend it."""

    wrong: str
    consequence: str
    fix: str


@dataclass(frozen=True)
class Resource:
    """What a rule sees of a resource. inputs: plain values by the names on the wire, UNKNOWN where not yet known."""

    kind: str
    name: str
    inputs: dict[str, Any]

    @property
    def title(self) -> str:
        """How messages call it: `NodeGroup gpu`."""
        return f"{self.kind.rpartition(':')[2]} {self.name}"


Check = Callable[[Resource], Iterable[Finding]]


@dataclass(frozen=True)
class Rule:
    """A rule of the pack.

    id: for configuration and docs. kinds: pattern that the whole type token of a resource must match.
    summary, why, remediation: for docs/policies.md and for Pulumi's list of policies.
    example: a violating resource as (type token, inputs); shown in the docs, and the tests prove that it is refused.
    """

    id: str
    severity: Severity
    kinds: str
    summary: str
    why: str
    remediation: str
    example: tuple[str, dict[str, Any]]
    check: Check

    def applies_to(self, kind: str) -> bool:
        """Whether the rule looks at resources of a type at all."""
        return re.fullmatch(self.kinds, kind) is not None

    def violations(self, resource: Resource) -> list[str]:
        """Texts of all violations of one resource. A rule that fails is a violation too: unseen is not safe."""
        if not self.applies_to(resource.kind):
            return []
        try:
            return [self._text(finding) for finding in self.check(resource)]
        except Exception as error:
            return [
                f"{resource.title} could not be judged: {type(error).__name__}: {error}\n"
                f"  This is a fault of the rule, which then refuses what it could not see.\n"
                f'  Fix: report it; to go on meanwhile, set "{self.id}": "advisory" in the policy pack\'s config.'
            ]

    def policy(self) -> ResourceValidationPolicy:
        """The rule as Pulumi wants it, mandatory unless the policy pack's config says otherwise."""

        def validate(args: ResourceValidationArgs, report: ReportViolation) -> None:
            if not self.applies_to(args.resource_type):
                return
            for text in self.violations(Resource(args.resource_type, args.name, thaw(args.props))):
                report(text, None)

        return ResourceValidationPolicy(
            name=self.id,
            description=self.summary,
            validate=validate,
            enforcement_level=EnforcementLevel.MANDATORY,
            severity=self.severity,
            remediation_steps=self.remediation,
            url=f"{DOCS}#{self.id}",
        )

    def _text(self, finding: Finding) -> str:
        return f"{finding.wrong}\n  {finding.consequence}\n  Fix: {finding.fix} Docs: {DOCS}#{self.id}"


def thaw(value: Any) -> Any:
    """Plain dicts and lists of what Pulumi hands over; UNKNOWN where a value is not known yet.

    Pulumi's own proxies raise on the first touch of an unknown, and the rest of a rule is then skipped without a word
    but an advisory note: a mandatory rule would pass by not looking.
    """
    if isinstance(value, Mapping):
        return {str(key): _known(value, key) for key in value}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_known(value, index) for index in range(len(value))]
    return value


def _known(container: Any, key: Any) -> Any:
    try:
        return thaw(container[key])
    except UnknownValueError:
        return UNKNOWN


def mapping(value: Any) -> dict[str, Any]:
    """The value if it is a mapping, else an empty one."""
    return value if isinstance(value, dict) else {}


def items(value: Any) -> list[Any]:
    """The value if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def at(value: Any, *path: str) -> Any:
    """What stands at a path of keys: None where there is nothing, UNKNOWN where that is not known yet."""
    for key in path:
        if value is UNKNOWN:
            return UNKNOWN
        value = mapping(value).get(key)
    return value
