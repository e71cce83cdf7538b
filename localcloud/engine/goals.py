"""What a program asks for: a resource as registered, before anything is compared or done."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localcloud.engine.config import Config
from localcloud.engine.errors import StepError
from localcloud.engine.state import Resource
from localcloud.engine.urns import Alias
from localcloud.engine.values import Properties


@dataclass(frozen=True)
class Context:
    """The stack that is worked on, and how."""

    project: str
    stack: str
    organization: str
    config: Config
    dry_run: bool
    parallel: int
    directory: Path  # the project's, where the program runs


@dataclass(frozen=True)
class Goal:
    """One registration. None where the program left an option open, so that the parent's holds."""

    type: str
    name: str
    custom: bool
    parent: str = ""
    properties: Properties = field(default_factory=dict)
    dependencies: tuple[str, ...] = ()
    property_dependencies: dict[str, list[str]] = field(default_factory=dict)
    provider: str = ""
    providers: dict[str, str] = field(default_factory=dict)
    version: str = ""
    protect: bool | None = None
    delete_before_replace: bool | None = None
    retain_on_delete: bool | None = None
    deleted_with: str = ""
    replace_with: tuple[str, ...] = ()
    ignore_changes: tuple[str, ...] = ()
    replace_on_changes: tuple[str, ...] = ()
    additional_secret_outputs: tuple[str, ...] = ()
    aliases: tuple[Alias, ...] = ()
    import_id: str = ""
    replacement_trigger: Any = None
    timeouts: dict[str, str] = field(default_factory=dict)

    def needs(self) -> set[str]:
        """URNs of the resources without which this one cannot be made."""
        urns = {self.parent, self.deleted_with, *self.dependencies}
        urns.update(*self.property_dependencies.values())
        urns.add(self.provider.rpartition("::")[0])
        return urns - {""}

    def resource(self, urn: str) -> Resource:
        """The resource as it will be, without what its provider adds."""
        return Resource(
            urn=urn, type=self.type, custom=self.custom, inputs=self.properties, parent=self.parent,
            provider=self.provider, dependencies=sorted(self.dependencies),
            property_dependencies={k: sorted(v) for k, v in sorted(self.property_dependencies.items()) if v},
            protect=bool(self.protect), retain_on_delete=bool(self.retain_on_delete), deleted_with=self.deleted_with,
            replace_with=list(self.replace_with), ignore_changes=list(self.ignore_changes),
            replace_on_changes=list(self.replace_on_changes), replacement_trigger=self.replacement_trigger,
            additional_secret_outputs=list(self.additional_secret_outputs), import_id=self.import_id,
            custom_timeouts={kind: seconds(text) for kind, text in self.timeouts.items()},
        )  # fmt: skip

    def seed(self, urn: str, replaced: str = "") -> bytes:
        """Randomness for automatic names: the same for the same wish, so a create that was killed finds its name again.

        replaced: the id of the resource that this one takes the place of; its name must not be chosen again.
        """
        wish = json.dumps(self.properties, sort_keys=True)
        return hashlib.sha256(f"{urn}\n{wish}\n{replaced}".encode()).digest()


_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def seconds(duration: str) -> float:
    """Seconds of a duration such as 90s, 5m or 1h30m. Raises StepError on a text that is none."""
    parts = re.findall(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h)", duration)
    if not parts or "".join(number + unit for number, unit in parts) != duration:
        raise StepError(f"custom_timeouts: {duration!r} is no duration; write 90s, 5m or 1h30m")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)
