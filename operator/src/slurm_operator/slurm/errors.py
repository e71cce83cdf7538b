"""What can go wrong between the operator and slurmrestd, as types. Nothing here ever looks like an empty answer."""

from __future__ import annotations

from slurm_operator.errors import Unknown


class SlurmException(Exception):
    """Any failed call of slurmrestd; the text names the call, Slurm's words and its error number."""


class SlurmUnreachable(SlurmException, Unknown):
    """No answer, or slurmrestd could not ask slurmctld. A write may or may not have happened."""


class SlurmAuthError(SlurmException, Unknown):
    """The token is not accepted: another key than slurmctld's, or clocks apart (HTTP 401 or 511, Slurm error 1007)."""


class SlurmUnreadable(SlurmException, Unknown):
    """An answer that is not what API v0.0.44 promises."""


class SlurmError(SlurmException):
    """Slurm understood and refused. `code` is Slurm's error number, `status` the HTTP code."""

    def __init__(self, call: str, code: int, description: str, status: int) -> None:
        super().__init__(f"{call}: {description or 'no description'} (Slurm error {code}, HTTP {status})")
        self.call = call
        self.code = code
        self.description = description
        self.status = status


class SlurmNotFound(SlurmError):
    """There is no such node, job or reservation (2017, 2018, 2053)."""


class SlurmBusy(SlurmError):
    """The node runs a job and cannot be deleted (2016)."""


class SlurmForbidden(SlurmError):
    """The token's user may not do this (2002, 2010)."""


INVALID_JOB, INVALID_NODE, INVALID_RESERVATION = 2017, 2018, 2053
_NOT_FOUND = {INVALID_JOB, INVALID_NODE, INVALID_RESERVATION}
_NODES_BUSY = 2016
_FORBIDDEN = {2002, 2010}  # ESLURM_ACCESS_DENIED, ESLURM_USER_ID_MISSING
_AUTHENTICATION = {1007, *range(6000, 6012), 9008}
# slurmrestd has not reached a slurmctld that could answer: general communication errors, those of slurmctld, a standby
# controller, and time-outs of the socket (numbers as in slurm_errno.h).
_NO_CONTACT = {*range(1000, 1026), *range(1800, 1806), 2027, 2131, 5003, 5004, 5005} - _AUTHENTICATION


def error_for(call: str, status: int, code: int, description: str) -> SlurmException:
    """The typed error of an answer; `code` 0: the answer carried none."""
    text = f"{call}: {description or 'no description'} (Slurm error {code}, HTTP {status})"
    if code in _AUTHENTICATION or status in (401, 511):
        return SlurmAuthError(text)
    # jobs/state/ says just "unspecified error" when slurmctld is away; a reconfigure says it of a faulty configuration.
    unspecified = code == -1 and call.startswith("GET ") and "reconfigure" not in call
    if code in _NO_CONTACT or status in (502, 503, 504) or unspecified:
        return SlurmUnreachable(text)
    kind = SlurmError
    if code in _NOT_FOUND:
        kind = SlurmNotFound
    elif code == _NODES_BUSY:
        kind = SlurmBusy
    elif code in _FORBIDDEN:
        kind = SlurmForbidden
    return kind(call, code, description, status)
