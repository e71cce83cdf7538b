"""The text of docs/policies.md, from the rules themselves."""

from __future__ import annotations

import json

import yaml

from . import GROUPS, RULES
from .rule import Resource, Rule

HEAD = """\
# Policies

<!-- Generated from policies/slipway_policies by `make generate`; edit the rules, not this file. -->

The policy pack in `policies/` looks at every resource before it is made or changed, in `make preview` and in `make up`,
and in `pulumi preview --policy-pack policies`. It judges what any program registers, not only ours.

Every rule is mandatory: a violation stops the resource. What is not known yet in a preview is judged when it is, before
the resource is made. A rule that fails itself counts as violated. Of charts, the values are judged that a release is
given, not the objects that it makes.

## Levels and parameters

Each stack may have a config for the pack, `policies/stacks/<stack>.json`. `make preview` and `make up` use it; with the
pulumi CLI: `--policy-pack policies --policy-pack-config policies/stacks/dev.json`. By rule:

```json
{
  "deletion-protected": {"enforcementLevel": "disabled", "reason": "nothing in it is kept"},
  "logs-kept-for-a-set-time": {"minimumDays": 90}
}
```

`enforcementLevel` is `mandatory`, `advisory` or `disabled`; `reason` is for people; the parameters are with each rule
below.

## Exemptions

An exemption lets one resource, or a pattern of names, through one rule for a while:

```json
{
  "image-pinned": {
    "exemptions": [
      {"resource": "exporter", "reason": "the vendor has no digest yet", "owner": "alice", "until": "2027-01-31"}
    ]
  }
}
```

All four fields are needed, and `until` is the last day on which it holds (UTC). From the next day on it fails
the run by itself, even when nothing violates the rule any more, so that it gets removed.
"""


def documentation() -> str:
    """All of docs/policies.md."""
    by_id = {rule.id: rule for rule in RULES}
    parts = [HEAD]
    for group, names in GROUPS.items():
        rows = "".join(
            f"| [{name}](#{name}) | {by_id[name].severity.name.lower()} | {by_id[name].summary} |\n" for name in names
        )
        parts.append(f"## {group}\n\n| rule | severity | what it holds |\n|---|---|---|\n{rows}")
        parts += [_section(by_id[name]) for name in names]
    return "\n".join(parts)


def _section(rule: Rule) -> str:
    kind, inputs = rule.example
    shown = yaml.safe_dump({"type": kind, "inputs": inputs}, sort_keys=False, width=100).rstrip()
    resource = Resource(kind, "example", inputs)
    said = "\n".join(rule.stack_violations([resource]) if rule.stack_check else rule.violations(resource))
    parameters = "".join(
        f"- `{name}`: {parameter.about} Default: `{json.dumps(parameter.default)}`.\n"
        for name, parameter in rule.parameters.items()
    )
    return (
        f"### {rule.id}\n\n{rule.summary} Severity: {rule.severity.name.lower()}.\n\n{rule.why}\n\n"
        f"**Without it.** {rule.consequence}\n\n**What to do.** {rule.remediation}\n\n"
        + (f"Parameters:\n\n{parameters}\n" if parameters else "")
        + f"Refused:\n\n```yaml\n{shown}\n```\n\n```\n{said}\n```\n"
    )
