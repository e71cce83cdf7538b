"""Self-signed JSON web tokens for slurmrestd (auth/jwt, HS256)."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable

LIFETIME_SECONDS = 900
RENEW_SECONDS = 300  # before the end: a slow request and clocks a little apart must not matter


def sign(key: bytes, user: str, *, lifetime: int = LIFETIME_SECONDS, now: float | None = None) -> str:
    """A token for `user`, valid from `now` (UNIX seconds, default: the clock) for `lifetime` seconds.

    Issued half a minute in the past, since Slurm refuses tokens from the future and clocks differ.
    """
    moment = int(time.time() if now is None else now)
    head = _part({"alg": "HS256", "typ": "JWT"})
    body = _part({"iat": moment - 30, "exp": moment + lifetime, "sun": user})
    mac = hmac.new(key, f"{head}.{body}".encode("ascii"), hashlib.sha256).digest()
    return f"{head}.{body}.{_base64(mac)}"


class TokenSource:
    """Tokens for one user, made when needed and held in memory only."""

    def __init__(self, key: bytes, user: str, clock: Callable[[], float] = time.time) -> None:
        if not key:
            raise ValueError("the JWT key is empty")
        self._key = key
        self._user = user
        self._clock = clock
        self._token = ""
        self._signed_at = 0.0

    def __call__(self) -> str:
        now = self._clock()
        # Also when the clock was set back: the token would seem to come from the future.
        if not self._token or not 0 <= now - self._signed_at < LIFETIME_SECONDS - RENEW_SECONDS:
            self._token = sign(self._key, self._user, now=now)
            self._signed_at = now
        return self._token

    def renew(self) -> None:
        """The next call signs a new token."""
        self._token = ""


def _part(value: dict[str, object]) -> str:
    return _base64(json.dumps(value, separators=(",", ":")).encode("ascii"))


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")
