"""Exemptions: named resources that a rule leaves alone for a while, with somebody who answers for it."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from .values import several

FIELDS = ("resource", "reason", "owner", "until")
SHAPE = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {field: {"type": "string"} for field in FIELDS},
        "required": list(FIELDS),
        "additionalProperties": False,
    },
    "description": "Resources that the rule leaves alone: resource (a name, or a pattern such as debug-*), reason, "
    "owner, until (the last day, 2027-01-31).",
}


@dataclass(frozen=True)
class Exemption:
    """resource: name or pattern of resources. until: the last day on which it holds, UTC."""

    resource: str
    reason: str
    owner: str
    until: datetime.date

    def covers(self, resource: str, today: datetime.date) -> bool:
        """Whether a resource is exempt today."""
        return today <= self.until and fnmatchcase(resource, self.resource)


def read(entries: Any) -> tuple[list[Exemption], list[str]]:
    """Exemptions as the pack's config has them, and what is wrong with those that cannot be read."""
    good: list[Exemption] = []
    wrong: list[str] = []
    for index, entry in enumerate(several(entries)):
        where = f"exemptions[{index}]"
        if not isinstance(entry, dict):
            wrong.append(f"{where} is no object with {', '.join(FIELDS)}")
            continue
        if odd := sorted(set(entry) - set(FIELDS)):
            wrong.append(f"{where} has {odd[0]!r}; allowed are {', '.join(FIELDS)}")
            continue
        empty = [f for f in FIELDS if not isinstance(entry.get(f), str) or not entry[f].strip()]
        if empty:
            wrong.append(f"{where} has no {empty[0]}; {', '.join(FIELDS)} are needed")
            continue
        try:
            until = datetime.date.fromisoformat(entry["until"])
        except ValueError:
            wrong.append(f"{where} ends on {entry['until']!r}, which is no date such as 2027-01-31")
            continue
        good.append(Exemption(entry["resource"], entry["reason"], entry["owner"], until))
    return good, wrong


def problems(entries: Any, today: datetime.date) -> list[str]:
    """What is wrong with the exemptions of a rule: unreadable ones, and ones that have ended."""
    good, wrong = read(entries)
    ended = [
        f"the exemption of {e.resource} ended on {e.until} (owner {e.owner}: {e.reason})"
        for e in good
        if e.until < today
    ]
    return wrong + ended
