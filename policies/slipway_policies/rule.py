"""How rules are written: a plain function from plain values to findings, wrapped for Pulumi in one place."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from pulumi_policy import (
    EnforcementLevel,
    PolicyConfigSchema,
    ReportViolation,
    ResourceValidationArgs,
    ResourceValidationPolicy,
    Severity,
    StackValidationArgs,
    StackValidationPolicy,
)

from . import exemptions
from .values import mapping, thaw

DOCS = "docs/policies.md"
STACK = "pulumi:pulumi:Stack"


@dataclass(frozen=True)
class Finding:
    """One violation: what is wrong (one sentence). consequence, fix: where the rule's own would be too general."""

    wrong: str
    consequence: str = ""
    fix: str = ""


@dataclass(frozen=True)
class Resource:
    """What a rule sees of a resource.

    inputs: plain values by the names on the wire, UNKNOWN where not yet known. parameters: those of the rule, as the
    pack's config sets them or by default.
    """

    kind: str
    name: str
    inputs: dict[str, Any]
    parameters: dict[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """How messages call it: `NodeGroup gpu`."""
        return f"{self.kind.rpartition(':')[2]} {self.name}"


@dataclass(frozen=True)
class Parameter:
    """Something that a stack may set for a rule. The type of the default is the type of the value."""

    default: Any
    about: str

    @property
    def shape(self) -> dict[str, Any]:
        """JSON Schema of the value."""
        kinds = {bool: "boolean", int: "number", float: "number", str: "string", list: "array"}
        return {"type": kinds[type(self.default)], "default": self.default, "description": self.about}


Findings = Iterable[Finding | str]
Check = Callable[[Resource], Findings]
StackCheck = Callable[[list[Resource], dict[str, Any]], Iterable[tuple[Resource, Finding | str]]]


@dataclass(frozen=True)
class Rule:
    """A rule of the pack.

    id: for configuration and docs. kinds: pattern that the whole type token of a resource must match.
    summary, why: for docs/policies.md and for Pulumi's list of policies. consequence: what would have happened, in one
    sentence. remediation: how to mend it. example: a violating resource as (type token, inputs); shown in the docs,
    and the tests prove that it is refused. check judges one resource; stack_check, instead, all of a stack.
    level: mandatory, or advisory with its reason in `why`.
    """

    id: str
    severity: Severity
    kinds: str
    summary: str
    why: str
    consequence: str
    remediation: str
    example: tuple[str, dict[str, Any]]
    check: Check | None = None
    stack_check: StackCheck | None = None
    parameters: dict[str, Parameter] = field(default_factory=dict)
    level: EnforcementLevel = EnforcementLevel.MANDATORY

    def applies_to(self, kind: str) -> bool:
        """Whether the rule looks at resources of a type at all."""
        return re.fullmatch(self.kinds, kind) is not None

    def settings(self, config: dict[str, Any]) -> dict[str, Any]:
        """The rule's parameters: what the pack's config sets, else the defaults."""
        return {name: config.get(name, parameter.default) for name, parameter in self.parameters.items()}

    def violations(
        self, resource: Resource, config: dict[str, Any] | None = None, today: datetime.date | None = None
    ) -> list[str]:
        """Texts of all violations of one resource, in the light of the rule's config (parameters, exemptions)."""
        config, today = config or {}, today or _today()
        if self.check is None or not self.applies_to(resource.kind) or self._exempt(resource.name, config, today):
            return []
        judged = Resource(resource.kind, resource.name, resource.inputs, self.settings(config))
        try:
            return [self._text(finding) for finding in self.check(judged)]
        except Exception as error:
            return [self._failed(resource.title, error)]

    def stack_violations(
        self, resources: list[Resource], config: dict[str, Any] | None = None, today: datetime.date | None = None
    ) -> list[str]:
        """Texts of all violations that only the whole stack shows."""
        config, today = config or {}, today or _today()
        if self.stack_check is None:
            return []
        seen = [resource for resource in resources if self.applies_to(resource.kind)]
        try:
            found = list(self.stack_check(seen, self.settings(config)))
        except Exception as error:
            return [self._failed("The stack", error)]
        return [self._text(finding) for who, finding in found if not self._exempt(who.name, config, today)]

    def config_violations(self, config: dict[str, Any], today: datetime.date | None = None) -> list[str]:
        """What is wrong with the rule's config itself; told once per stack, whether or not anything else is."""
        found = exemptions.problems(config.get("exemptions"), today or _today())
        for name, value in config.items():
            if name in ("exemptions", "reason"):
                continue
            if name not in self.parameters:
                allowed = ", ".join(["enforcementLevel", "exemptions", "reason", *self.parameters])
                found.append(f"its config has {name!r}; allowed are {allowed}")
            elif not _same_type(value, self.parameters[name].default):
                found.append(
                    f"its config sets {name} to {value!r}, of another type than {self.parameters[name].default!r}"
                )
        return [
            f"Policy {self.id}: {problem}.\n"
            "  An exemption without a reason, an owner or a day on which it ends stays for ever, and "
            "nobody knows why.\n"
            f"  Fix: mend what it covers, or correct the policy pack's config. Docs: {DOCS}#exemptions"
            for problem in found
        ]

    def policy(self) -> ResourceValidationPolicy | StackValidationPolicy:
        """The rule as Pulumi wants it."""
        about: dict[str, Any] = {
            "name": self.id,
            "description": self.summary,
            "enforcement_level": self.level,
            "severity": self.severity,
            "remediation_steps": self.remediation,
            "url": f"{DOCS}#{self.id}",
            "config_schema": PolicyConfigSchema(
                {
                    **{name: parameter.shape for name, parameter in self.parameters.items()},
                    "exemptions": exemptions.SHAPE,
                    "reason": {"type": "string", "description": "Why this stack differs; for people."},
                }
            ),
        }
        if self.stack_check is not None:
            return StackValidationPolicy(validate=self._validate_stack, **about)
        return ResourceValidationPolicy(validate=self._validate, **about)

    def _validate(self, args: ResourceValidationArgs, report: ReportViolation) -> None:
        config = mapping(thaw(args.get_config()))
        if args.resource_type == STACK:
            for text in self.config_violations(config):
                report(text, None)
        if self.applies_to(args.resource_type):
            for text in self.violations(Resource(args.resource_type, args.name, thaw(args.props)), config):
                report(text, None)

    def _validate_stack(self, args: StackValidationArgs, report: ReportViolation) -> None:
        config = mapping(thaw(args.get_config()))
        resources = [Resource(r.resource_type, r.name, thaw(r.props)) for r in args.resources]
        for text in [*self.config_violations(config), *self.stack_violations(resources, config)]:
            report(text, None)

    def _exempt(self, name: str, config: dict[str, Any], today: datetime.date) -> bool:
        good, _ = exemptions.read(config.get("exemptions"))
        return any(exemption.covers(name, today) for exemption in good)

    def _text(self, finding: Finding | str) -> str:
        if isinstance(finding, str):
            finding = Finding(finding)
        consequence = finding.consequence or self.consequence
        fix = finding.fix or self.remediation
        return f"{finding.wrong}\n  {consequence}\n  Fix: {fix[0].lower()}{fix[1:]} Docs: {DOCS}#{self.id}"

    def _failed(self, title: str, error: Exception) -> str:
        """A rule that fails is a violation too: unseen is not safe."""
        return (
            f"{title} could not be judged: {type(error).__name__}: {error}\n"
            f"  This is a fault of the rule, which then refuses what it could not see.\n"
            f'  Fix: report it; to go on meanwhile, set "{self.id}": "advisory" in the policy pack\'s config.'
        )


def _today() -> datetime.date:
    return datetime.datetime.now(datetime.UTC).date()


def _same_type(value: Any, default: Any) -> bool:
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(default, bool) and isinstance(value, bool)
    return isinstance(value, int | float) if isinstance(default, int | float) else isinstance(value, type(default))
