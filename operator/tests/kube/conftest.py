"""Fixtures for these tests; see support/fixtures.py."""

from __future__ import annotations

import sys
from pathlib import Path

# pytest would import this folder's parents as packages, and a package `operator` would hide the standard library's.
# Hence the folders here are packages of their own, found from operator/tests.
sys.path[:0] = [str(Path(__file__).parent.parent)]

from support.fixtures import api, control_plane, kube, slurm, slurmrestd  # noqa: E402

__all__ = ["api", "control_plane", "kube", "slurm", "slurmrestd"]
