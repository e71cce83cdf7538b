"""The one exception that every layer shares."""

from __future__ import annotations


class Unknown(Exception):
    """It could not be found out. Whoever catches this must not act as if the answer were no.

    Raised by every failed read of Slurm and by an unreachable API server. A reconcile that meets it
    ends without deleting, draining or undraining anything and is tried again with back-off.
    """
