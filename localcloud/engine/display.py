"""What the user sees: lines like the CLI's, live on a terminal, plain elsewhere, or one JSON document at the end."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from localcloud.engine import urns
from localcloud.engine.values import masked

if TYPE_CHECKING:
    from localcloud.engine.policies import Violation
    from localcloud.engine.providers import Diff
    from localcloud.engine.state import Resource, Snapshot

_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧"
PROGRESS_EVERY = 5.0  # seconds between two lines that say what is waited for, without a terminal
PROGRESS_SHOWN = 3  # resources in such a line

_SYMBOLS = {
    "create": "+", "update": "~", "replace": "+-", "delete": "-", "delete-replaced": "--",
    "import": "=", "read": ">", "retain": "-", "refresh": "~", "same": " ",
}  # fmt: skip
_COLORS = {
    "create": "green", "update": "yellow", "replace": "magenta", "delete": "red", "delete-replaced": "red",
    "import": "cyan", "read": "cyan", "retain": "red", "refresh": "yellow",
}  # fmt: skip
_DOING = {
    "create": "creating", "update": "updating", "replace": "creating replacement", "delete": "deleting",
    "delete-replaced": "deleting original", "import": "importing", "read": "reading", "refresh": "refreshing",
}  # fmt: skip
_DONE = {
    "create": "created", "update": "updated", "replace": "created replacement", "delete": "deleted",
    "delete-replaced": "deleted original", "import": "imported", "read": "read", "retain": "kept, no longer managed",
}  # fmt: skip
_SUMMARY = {
    "create": "created", "update": "updated", "replace": "replaced", "delete": "deleted", "import": "imported",
    "retain": "no longer managed",
}  # fmt: skip
_PLANNED = {
    "create": "to create", "update": "to update", "replace": "to replace", "delete": "to delete",
    "import": "to import", "retain": "no longer managed",
}  # fmt: skip


@dataclass
class Step:
    """One resource's change, planned or done."""

    op: str
    urn: str
    type: str
    parent: str
    keys: list[str] = field(default_factory=list)
    details: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return urns.parse(self.urn).name


class Display:
    """Collects what happens in a run and shows it.

    emit gets plain lines; without it a rich console is written to, live when it is a terminal. quiet shows nothing
    (for --json), everything stays collected.
    """

    def __init__(
        self, *, preview: bool, emit: Callable[[str], None] | None = None, quiet: bool = False, diff: bool = False
    ) -> None:
        self.preview = preview
        self.counts: Counter[str] = Counter()
        self.steps: list[Step] = []
        self.failures: list[tuple[str, str, str]] = []
        self.diagnostics: list[dict[str, str]] = []
        self.violations: list[Violation] = []
        self.policy_names: list[str] = []
        self._console = Console(highlight=False, soft_wrap=True)
        self._emit = emit
        self._quiet = quiet
        self._diff = diff
        self._running: dict[int, tuple[str, Resource, float, str]] = {}
        self._begun = time.monotonic()
        self._last_progress = self._begun
        self._live: Live | None = None
        self._ticker: asyncio.Task[None] | None = None

    # Lifetime

    def open(self) -> None:
        """Starts showing what is under way; needs a running event loop."""
        if self._quiet:
            return
        if self._emit is None and self._console.is_terminal:
            self._live = Live(get_renderable=self._under_way, console=self._console, transient=True)
            self._live.start()
        else:
            self._ticker = asyncio.create_task(self._progress())

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
        if self._ticker is not None:
            self._ticker.cancel()

    async def _progress(self) -> None:
        with suppress(asyncio.CancelledError):
            while True:
                await asyncio.sleep(PROGRESS_EVERY)
                if waiting := self._waiting_for():  # those that began first
                    more = len(waiting) - PROGRESS_SHOWN
                    rest = f" and {more} more" if more > 0 else ""
                    self.line("   waiting for " + ", ".join(waiting[:PROGRESS_SHOWN]) + rest)

    def _waiting_for(self) -> list[str]:
        now = time.monotonic()
        return [
            f"{urns.short_type(r.type)} {r.name} ({_DOING[op]}, {now - since:.0f}s{'; ' + status if status else ''})"
            for op, r, since, status in self._running.values()
        ]

    def _under_way(self) -> Group:
        now = time.monotonic()
        frame = _FRAMES[int(now * 8) % len(_FRAMES)]
        rows = []
        for op, resource, since, status in list(self._running.values())[:15]:
            text = f"{_SYMBOLS[op]:>2}  {urns.short_type(resource.type)}  {resource.name}  {_DOING[op]} "
            rows.append(Text(f"{frame} {text}({now - since:.0f}s) {status}", style=_COLORS[op]))
        return Group(*rows)

    def line(self, text: str, style: str = "") -> None:
        if self._quiet:
            return
        if self._emit is not None:
            self._emit(text)
        else:
            self._console.print(Text(text, style=style))

    # Events

    def started(self, op: str, resource: Resource) -> None:
        self._running[id(resource)] = (op, resource, time.monotonic(), "")

    def ended(self, resource: Resource) -> float:
        """Seconds since it started."""
        entry = self._running.pop(id(resource), None)
        if self._live is not None:
            self._live.refresh()  # or the line about to be printed would stand above one that is out of date
        return time.monotonic() - entry[2] if entry else 0.0

    def status(self, urn: str, text: str) -> None:
        """A provider's word on what it waits for."""
        for key, (op, resource, since, _) in list(self._running.items()):
            if resource.urn == urn:
                self._running[key] = (op, resource, since, text)

    def finished(self, op: str, resource: Resource, keys: Sequence[str]) -> None:
        took = self.ended(resource)
        if self.preview or urns.is_default_provider(resource.urn):
            return
        if op != "delete-replaced" and not resource.delete:
            self._count(op, resource, keys, [])
        done = "deleted original" if op == "delete" and resource.delete else _DONE[op]
        changed = f" [diff: {', '.join(keys)}]" if keys else ""
        time_ = f" ({took:.1f}s)" if took >= 0.05 else ""
        self._step_line(op, resource.type, resource.name, f"{done}{time_}{changed}")

    def planned(self, op: str, new: Resource, old: Resource | None, diff: Diff | None) -> None:
        """A step of a preview; shown as a tree at its end."""
        if urns.is_default_provider(new.urn) or new.delete:
            return
        self._count(op, new, changes(old, new, diff), details(op, old, new, diff) if self._diff else [])

    def drifted(self, op: str, now: Resource, before: Resource, diff: Diff) -> None:
        """What a refresh found to be different."""
        self._count(op, now, list(diff.changed), details(op, before, now, diff) if self._diff else [])
        text = "gone" if op == "delete" else f"changed outside [diff: {', '.join(diff.changed)}]"
        self._step_line(op, now.type, now.name, text)
        for detail in self.steps[-1].details:
            self.line(f"      {detail}")

    def _count(self, op: str, resource: Resource, keys: Sequence[str], shown: list[str]) -> None:
        self.counts[op] += 1
        self.steps.append(Step(op, resource.urn, resource.type, resource.parent, list(keys), shown))

    def same(self, resource: Resource) -> None:
        if not urns.is_default_provider(resource.urn):
            self.counts["same"] += 1

    def failed(self, urn: str, type_: str, message: str) -> None:
        for key, (_, resource, _, _) in list(self._running.items()):
            if resource.urn == urn:
                del self._running[key]
        self.failures.append((urn, type_, message))
        self.line(f" ✗  {urns.short_type(type_):<32} {urns.parse(urn).name:<28} failed", "bold red")

    def skipped(self, urn: str, because: str) -> None:
        self.counts["skipped"] += 1
        name = urns.parse(urn)
        reason = f", because {urns.parse(because).name} is missing" if because else ": stopping"
        self.line(f"    {urns.short_type(name.type):<32} {name.name:<28} skipped{reason}")

    def note(self, text: str, urn: str = "") -> None:
        self.diagnostic("info", text, urn)

    def diagnostic(self, severity: str, text: str, urn: str = "") -> None:
        """A message of the program, of a provider or of the engine: info, warning or error."""
        self.diagnostics.append({"severity": severity, "message": text, "urn": urn})
        where = f"{urns.parse(urn).name}: " if urn and urns.parse(urn).type != urns.STACK_TYPE else ""
        style = {"error": "bold red", "warning": "yellow"}.get(severity, "")
        self.line(f"{where}{text}" if severity == "info" else f"{severity}: {where}{text}", style)

    def policy(self, violation: Violation) -> None:
        self.violations.append(violation)

    def _step_line(self, op: str, type_: str, name: str, text: str) -> None:
        self.line(f"{_SYMBOLS[op]:>2}  {urns.short_type(type_):<32} {name:<28} {text}", _COLORS.get(op, ""))

    # The end

    def tree(self, snapshot: Snapshot) -> None:
        """The planned steps of a preview, as a tree of resources."""
        steps = {step.urn: step for step in self.steps}
        parents = {urn: r.parent for urn, r in snapshot.live.items()} | {s.urn: s.parent for s in self.steps}
        shown: set[str] = set()
        for urn in steps:
            while urn and urn not in shown:
                shown.add(urn)
                urn = parents.get(urn, "")
        children: dict[str, list[str]] = {}
        for urn in parents:
            if urn in shown:
                children.setdefault(parents[urn] if parents[urn] in shown else "", []).append(urn)

        rows: list[tuple[str, str, str, str, list[str]]] = []

        def add(urn: str, prefix: str, branch: str) -> None:
            step, name = steps.get(urn), urns.parse(urn)
            op = step.op if step else "same"
            keys = f"  [diff: {', '.join(step.keys)}]" if step and step.keys else ""
            verb = "" if op == "same" else "keep, no longer managed" if op == "retain" else op
            below = children.get(urn, [])
            deeper = prefix + {"": "", "├─ ": "│  ", "└─ ": "   "}[branch]
            margin = deeper + ("│  " if below else "   ")
            values = [f"{margin}{detail}" for detail in step.details] if step else []
            rows.append((op, prefix + branch + urns.short_type(name.type), name.name, verb + keys, values))
            for i, child in enumerate(below):
                add(child, deeper, "└─ " if i == len(below) - 1 else "├─ ")

        for root in children.get("", []):
            add(root, "", "")
        types, names = (max((len(row[i]) for row in rows), default=0) for i in (1, 2))
        for op, type_, name, rest, values in rows:
            self.line(f"{_SYMBOLS[op]:>2}  {type_:<{types}}  {name:<{names}}  {rest}".rstrip(), _COLORS.get(op, ""))
            for detail in values:
                self.line(f"    {detail}")

    def summary(self, outputs: dict[str, Any], operation: str) -> None:
        """Findings, failures, outputs and counts."""
        self._policies()
        if self.failures:
            self.line("\nDiagnostics:", "bold")
            for urn, type_, message in self.failures:
                self.line(f"  {urns.short_type(type_)} ({urns.parse(urn).name}):")
                self.line("    error: " + message.strip().replace("\n", "\n    "), "red")
        if outputs and operation != "destroy":
            self.line("\nOutputs:", "bold")
            for name, value in sorted(masked(outputs).items()):
                several = isinstance(value, list) and any(isinstance(item, (dict, list)) for item in value)
                self.line(f"    {name}:" if several else f"    {name}: {_json(value)}")
                for item in value if several else ():
                    self.line(f"      - {_json(item)}")
        words = _PLANNED if self.preview else _SUMMARY
        changed = [f"    {_SYMBOLS[op]:<2} {self.counts[op]} {word}" for op, word in words.items() if self.counts[op]]
        self.line("\nResources:", "bold")
        if not changed and not self._failed():
            self.line("    no changes")
        for text in changed:
            self.line(text)
        for op, word in (("same", "unchanged"), ("skipped", "skipped")):
            if self.counts[op]:
                self.line(f"    {self.counts[op]} {word}")
        if self.failures:
            self.line(f"    {len(self.failures)} failed", "red")
        self.line(f"\nDuration: {self.seconds:.1f}s")

    def _failed(self) -> bool:
        return bool(self.failures) or any(d["severity"] == "error" for d in self.diagnostics)

    def _policies(self) -> None:
        # After a failure the packs have not seen everything: only what they found is told.
        if not (self.violations or (self.policy_names and not self._failed())):
            return
        self.line("\nPolicies:", "bold")
        for pack in self.policy_names:
            found = [v for v in self.violations if v.pack == pack]
            self.line(f"    {'✗' if any(v.mandatory for v in found) else '✓'} {pack}")
        for violation in sorted(self.violations, key=lambda v: (not v.mandatory, v.policy, v.urn)):
            level = "mandatory" if violation.mandatory else "advisory"
            where = f"  ({urns.parse(violation.urn).name})" if violation.urn else ""
            self.line(f"    [{level}]  {violation.policy}{where}", "red" if violation.mandatory else "yellow")
            self.line("        " + violation.message.replace("\n", "\n        "))

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begun

    def document(self, operation: str, stack: str, exit_code: int, outputs: dict[str, Any]) -> dict[str, Any]:
        """The whole run for programs."""
        return {
            "operation": operation,
            "stack": stack,
            "result": "succeeded" if exit_code == 0 else "failed",
            "changes": dict(self.counts),
            "steps": [{"op": s.op, "urn": s.urn, "type": s.type, "name": s.name, "diff": s.keys} for s in self.steps],
            "failures": [{"urn": urn, "message": message} for urn, _, message in self.failures],
            "diagnostics": self.diagnostics,
            "policies": [
                {"pack": v.pack, "policy": v.policy, "mandatory": v.mandatory, "urn": v.urn, "message": v.message}
                for v in self.violations
            ],
            "outputs": masked(outputs),
            "durationSeconds": round(self.seconds, 2),
        }


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def changes(old: Resource | None, new: Resource, diff: Diff | None) -> list[str]:
    """The changed properties with how they change: +added, ~changed, -removed."""
    if diff is None or old is None:
        return []
    marks = {"add": "+", "delete": "-", "update": "~"}

    def mark(key: str) -> str:
        if key in diff.detailed:
            return marks[diff.detailed[key].partition("-")[0]]
        return "~" if key in old.inputs and key in new.inputs else "+" if key in new.inputs else "-"

    return [f"{mark(key)}{key}" for key in diff.keys]


def details(op: str, old: Resource | None, new: Resource, diff: Diff | None) -> list[str]:
    """One line per changed property with its values, secrets hidden."""

    def show(value: Any) -> str:
        text = json.dumps(masked(value), ensure_ascii=False)
        return text if len(text) <= 200 else text[:197] + "…"

    if op in ("create", "import") or old is None:
        return [f"+ {key}: {show(value)}" for key, value in new.inputs.items()]
    if op in ("delete", "retain"):
        return []
    keys: Iterable[str] = diff.keys if diff else ()
    lines = []
    for key in dict.fromkeys(k.partition(".")[0].partition("[")[0] for k in keys):
        before, after = old.inputs.get(key, old.outputs.get(key)), new.inputs.get(key, new.outputs.get(key))
        lines.append(f"~ {key}: {show(before)} => {show(after)}")
    return lines
