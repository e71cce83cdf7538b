"""The same fixtures as for the other operator tests; see support/fixtures.py."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent.parent)]

from support.fixtures import control_plane  # noqa: E402

__all__ = ["control_plane"]
