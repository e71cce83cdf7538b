"""Writes docs/policies.md from the rules; with --check only says whether it is up to date."""

import sys
from pathlib import Path

from slipway_policies.reference import documentation  # type: ignore[import-not-found]

TARGET = Path(__file__).resolve().parent.parent / "docs" / "policies.md"

if sys.argv[1:] == ["--check"]:
    if not TARGET.exists() or TARGET.read_text() != documentation():
        sys.exit("docs/policies.md is not what the rules in policies/ say. Run `make generate`.")
else:
    TARGET.write_text(documentation())
