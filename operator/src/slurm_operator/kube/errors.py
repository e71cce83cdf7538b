"""What can go wrong between the operator and the API server, as types."""

from __future__ import annotations

from slurm_operator.errors import Unknown


class KubeError(Exception):
    """An answer of the API server that is no success.

    `status` is the HTTP code (0: there was no answer), `reason` the API's word for it. The text names what was tried.
    """

    def __init__(self, status: int, reason: str, message: str, *, verb: str, target: str) -> None:
        code = f" ({status})" if status else ""
        super().__init__(f"{verb} {target}: {message or reason or 'no message'}{code}")
        self.status = status
        self.reason = reason
        self.message = message
        self.verb = verb
        self.target = target


class Invalid(KubeError):
    """400 or 422: the request itself is wrong; repeating it changes nothing."""


class Unauthorized(KubeError):
    """401: the token or certificate is not accepted (expired, or of another cluster)."""


class Forbidden(KubeError):
    """403: RBAC, a quota or an admission rule refuses it."""


class NotFound(KubeError):
    """404."""


class AlreadyExists(KubeError):
    """409 on create."""


class Conflict(KubeError):
    """409: the object changed since it was read, or a precondition (uid, resourceVersion) does not hold."""


class Gone(KubeError):
    """410: the resourceVersion is too old to watch from or the list's continue token expired; list again."""


class TooManyRequests(KubeError):
    """429: the server is overloaded and said so until the client gave up. `retry_after` in seconds."""

    retry_after: float = 1.0


class EvictionRefused(KubeError):
    """A disruption budget does not allow the eviction now; try later."""


class ServerError(KubeError):
    """5xx."""


class Unreachable(KubeError, Unknown):
    """No answer: connection refused or lost, time-out, TLS. A write may or may not have happened."""


class TooLate(KubeError):
    """Not sent: what it rests on was found out too long ago. Look again, then decide again."""


class NotLeader(KubeError):
    """The lease ran out before this write was sent; another replica may be leader now."""


class OutsideTable(KubeError):
    """The call is not in the RBAC table (kube/rbac.py). Only raised in guard mode."""


_BY_STATUS: dict[int, type[KubeError]] = {
    400: Invalid, 401: Unauthorized, 403: Forbidden, 404: NotFound, 409: Conflict, 410: Gone, 422: Invalid,
    429: TooManyRequests,
}  # fmt: skip


def error_for(status: int, reason: str, message: str, *, verb: str, target: str) -> KubeError:
    """The typed error of an HTTP answer."""
    if status == 409 and reason == "AlreadyExists":
        return AlreadyExists(status, reason, message, verb=verb, target=target)
    kind = _BY_STATUS.get(status) or (ServerError if status >= 500 else KubeError)
    return kind(status, reason, message, verb=verb, target=target)
