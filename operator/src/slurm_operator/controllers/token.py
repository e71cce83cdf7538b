"""Reconciles Token: a signed Slurm token (JWT) in a Secret."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import ClassVar

from slurm_operator.api.load import InvalidSpec, jwt_key_of
from slurm_operator.api.names import ANNOTATION_JWT_KEY_HASH, LABEL_MANAGED_BY, MANAGED_BY, token_secret
from slurm_operator.api.others import TokenSpec
from slurm_operator.controllers.base import Reconciler
from slurm_operator.controllers.references import LOOK_SECONDS, secret_value
from slurm_operator.desired.secrets import data_of, secret
from slurm_operator.desired.status import Report
from slurm_operator.kube.objects import annotations_of, canonical_hash, owner_reference, timestamp, uid_of
from slurm_operator.kube.resources import SECRETS, TOKENS, Key, Object, Resource
from slurm_operator.slurm.token import sign

RENEW_AT = 0.8
"""Share of a token's lifetime after which the next one is signed."""
MIN_SECONDS = 60
TOKEN_FIELD = "SLURM_JWT"  # noqa: S105 - the name of a field

_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(h|ms|m|s|us|µs|ns)")


class TokenController(Reconciler[TokenSpec]):
    """Keeps a signed token in a Secret, which goes with the Token."""

    name: ClassVar[str] = "token"
    resource: ClassVar[Resource] = TOKENS
    spec_type = TokenSpec

    def setup(self) -> None:
        self.informer = self.watch(self.resource)

    async def act(self, key: Key, obj: Object, spec: TokenSpec) -> tuple[Report, float | None]:
        lifetime = seconds(spec.lifetime, "spec.lifetime")
        reference = spec.secret_ref
        target = reference.name if reference and reference.name else token_secret(key.name, spec.username)
        field = reference.key if reference else TOKEN_FIELD
        signing = await self._signing_key(key, spec)
        # Another key, user or lifetime makes the token that is there a wrong one.
        made_from = canonical_hash([signing.hex(), spec.username, lifetime])
        issued = _moment((obj.get("status") or {}).get("issuedAt"))
        existing = await self.kube.get(SECRETS, key.namespace, target)
        same = existing is not None and annotations_of(existing).get(ANNOTATION_JWT_KEY_HASH) == made_from
        left = issued + RENEW_AT * lifetime - time.time()
        if same and existing and data_of(existing, field) and (left > 0 or not spec.refresh):
            again = min(left, LOOK_SECONDS) if spec.refresh else LOOK_SECONDS
            return _report(issued, lifetime, target, spec), again
        now = time.time()
        wish = secret(target, key.namespace, "", {field: sign(signing, spec.username, lifetime=lifetime).encode()})
        wish["immutable"] = False
        wish["metadata"]["labels"] = {LABEL_MANAGED_BY: MANAGED_BY}
        wish["metadata"]["annotations"] = {ANNOTATION_JWT_KEY_HASH: made_from}
        # A Secret that somebody else made gets the token, but does not go with it.
        owners = (existing or {"metadata": {}})["metadata"].get("ownerReferences") or ()
        if existing is None or any(owner.get("uid") == uid_of(obj) for owner in owners):
            wish["metadata"]["ownerReferences"] = [owner_reference(obj)]
        await self.ensure(key, wish)
        return _report(now, lifetime, target, spec), min(RENEW_AT * lifetime, LOOK_SECONDS)

    async def _signing_key(self, key: Key, spec: TokenSpec) -> bytes:
        reference = jwt_key_of(spec)
        if reference is None:
            raise InvalidSpec("spec.jwtKeyRef: missing")
        return await secret_value(self.kube, key.namespace, reference, "spec.jwtKeyRef")


def _report(issued: float, lifetime: int, target: str, spec: TokenSpec) -> Report:
    fields = {"issuedAt": timestamp(datetime.fromtimestamp(issued, UTC))}
    until = timestamp(datetime.fromtimestamp(issued + lifetime, UTC))
    if time.time() > issued + lifetime:
        text = f"The token of {spec.username} in Secret {target} ended {until} and refresh is off."
        return Report(False, "Expired", text, fields=fields)
    text = f"Secret {target} has a token of {spec.username}, valid until {until}."
    return Report(True, "Signed", text, fields=fields)


def seconds(text: str, where: str) -> int:
    """A duration as Go writes it (15m, 1h30m, 1.5h) in seconds. Raises InvalidSpec, naming the field."""
    total, position = 0.0, 0
    while match := _PART.match(text, position):
        total += float(match[1]) * _UNITS[match[2]]
        position = match.end()
    if position != len(text) or total < MIN_SECONDS:
        raise InvalidSpec(f"{where}: {text!r} is no duration of at least a minute; write 15m or 1h30m for example")
    return int(total)


def _moment(text: str | None) -> float:
    return datetime.fromisoformat(text).timestamp() if text else 0.0
