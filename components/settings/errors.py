"""What is wrong with a stack's config, said so that its writer can mend it without reading code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pulumi

from components.settings.lines import LineFinder

Key = tuple[str | int, ...]


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: where (`key`), what (`wrong`, one sentence) and what to do (`fix`, one or two)."""

    key: Key
    wrong: str
    fix: str


class SettingsError(pulumi.RunError):
    """A stack's config is not usable. Lists every problem found; nothing was registered.

    A RunError, so that Pulumi prints its text and no traceback. `user_error` tells our own engine the same.
    """

    user_error = True

    def __init__(
        self, problems: Sequence[Problem], *, file: Path, root: Path = Path(), names: dict[Key, str] | None = None
    ) -> None:
        """file: the stack's file below `root`, as the user would type it. names: what list entries are called."""
        self.problems = tuple(problems)
        lines = LineFinder(root / file)
        super().__init__("\n".join(_paragraph(p, file, lines, names or {}) for p in self.problems))


def dotted(key: Key) -> str:
    """`("partitions", 1, "nodes", "min")` as a person writes it: `partitions[1].nodes.min`."""
    text = ""
    for part in key:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _paragraph(problem: Problem, file: Path, lines: LineFinder, names: dict[Key, str]) -> str:
    line = lines.line(problem.key)
    where = f"{file}:{line}: " if line else f"{file}: "
    item = problem.key[:2]
    if item in names:
        rest = dotted(problem.key[2:])
        shown = f'{dotted(item)} "{names[item]}"' + (f" {rest}" if rest else "")
    else:
        shown = dotted(problem.key)
    return f"{where}{shown}: {problem.wrong}\n  {problem.fix}"
