"""Errors whose text is meant for the user: they are shown as they are, without a traceback."""

from __future__ import annotations


class EngineError(Exception):
    """Something the user can act on; the message says what is wrong and what to do next."""

    user_error = True


class StepError(EngineError):
    """One resource cannot be registered, changed or deleted; the others go on.

    uncertain: the provider was lost in the middle, so nobody knows whether the operation took place.
    """

    def __init__(self, message: str, *, uncertain: bool = False) -> None:
        super().__init__(message)
        self.uncertain = uncertain


class Interrupted(EngineError):
    """The user asked to stop; what was under way has been recorded."""
