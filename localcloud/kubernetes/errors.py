"""The error that a person sees: what is wrong, where, and what to do next."""

from __future__ import annotations

from collections.abc import Callable

Log = Callable[[str], None]
"""Where long steps say what they do, one line each."""


class ClusterError(Exception):
    """The local cluster cannot do what was asked; the message is complete and meant for the user."""


def quiet(_: str) -> None:
    """A Log that drops its lines."""
