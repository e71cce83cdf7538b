"""Sections of a Markdown file that a benchmark owns and replaces; what is around them stays."""

from __future__ import annotations

import re
from pathlib import Path

BEGIN, END = "<!-- {0}: begin -->", "<!-- {0}: end -->"


def replace_section(file: Path, name: str, text: str) -> None:
    """Put `text` in the place of the section `name` of a Markdown file, or at its end."""
    begin, end = BEGIN.format(name), END.format(name)
    section = f"{begin}\n{text.strip()}\n{end}\n"
    old = file.read_text() if file.exists() else ""
    pattern = re.compile(re.escape(begin) + r".*?" + re.escape(end) + r"\n?", re.DOTALL)
    new = pattern.sub(lambda _: section, old) if pattern.search(old) else f"{old.rstrip()}\n\n{section}".lstrip()
    file.write_text(new)
