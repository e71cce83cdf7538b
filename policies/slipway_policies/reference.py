"""The text of docs/policies.md, from the rules themselves."""

from __future__ import annotations

import yaml

from . import RULES
from .rule import Resource, Rule

HEAD = """\
# Policies

<!-- Generated from policies/slipway_policies by `make generate`; edit the rules, not this file. -->

The policy pack in `policies/` looks at every resource before it is made or changed, in `make preview` and in `make up`,
and in `pulumi preview --policy-pack policies`. It judges what any program registers, not only ours.

Every rule is mandatory: a violation stops the resource. To soften one for a while, pass a config with its level,
`{"gpu-pool-tainted": "advisory"}`, by `--policy-pack-config`; levels are `mandatory`, `advisory` and `disabled`.
What is not known yet in a preview is judged when it is, before the resource is made. A rule that fails itself counts
as violated.
"""


def documentation() -> str:
    """All of docs/policies.md."""
    table = "| rule | severity | what it holds |\n|---|---|---|\n" + "".join(
        f"| [{rule.id}](#{rule.id}) | {rule.severity.name.lower()} | {rule.summary} |\n" for rule in RULES
    )
    return "\n".join([HEAD, table, *(_section(rule) for rule in RULES)])


def _section(rule: Rule) -> str:
    kind, inputs = rule.example
    shown = yaml.safe_dump({"type": kind, "inputs": inputs}, sort_keys=False, width=100).rstrip()
    said = "\n".join(rule.violations(Resource(kind, "example", inputs)))
    return (
        f"## {rule.id}\n\n{rule.summary} Severity: {rule.severity.name.lower()}.\n\n{rule.why}\n\n"
        f"**What to do.** {rule.remediation}\n\nRefused:\n\n```yaml\n{shown}\n```\n\n```\n{said}\n```\n"
    )
