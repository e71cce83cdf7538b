"""Reconciles Token, and says of Accounting what this version does with it."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import ClassVar

from slurm_operator.api.load import InvalidSpec, jwt_key_of
from slurm_operator.api.names import LABEL_MANAGED_BY, MANAGED_BY, SLURMDBD_PORT, token_secret
from slurm_operator.api.others import AccountingSpec, TokenSpec
from slurm_operator.controllers.base import Reconciler, Waiting
from slurm_operator.desired.secrets import data_of, secret
from slurm_operator.desired.status import Report
from slurm_operator.kube.objects import owner_reference, timestamp
from slurm_operator.kube.resources import ACCOUNTINGS, SECRETS, TOKENS, Key, Object, Resource
from slurm_operator.slurm.token import sign

RENEW_AT = 0.8
"""Share of a token's lifetime after which the next one is signed."""
KEY_RETRY_SECONDS = 10.0
LOOK_SECONDS = 120.0
"""Secrets are not watched: whether ours is still there is looked up so often."""
TOKEN_FIELD = "SLURM_JWT"  # noqa: S105 - the name of a field

_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?$")


class AccountingController(Reconciler[AccountingSpec]):
    """slurmdbd outside of the cluster is used; running one is not part of this version, and the status says so."""

    name: ClassVar[str] = "accounting"
    resource: ClassVar[Resource] = ACCOUNTINGS
    spec_type = AccountingSpec

    def setup(self) -> None:
        self.informer = self.watch(self.resource)

    async def act(self, key: Key, obj: Object, spec: AccountingSpec) -> tuple[Report, float | None]:
        if spec.external:
            where = f"{spec.external_config.host}:{spec.external_config.port or SLURMDBD_PORT}"
            return Report(True, "External", f"slurmdbd is outside, at {where}."), None
        text = "This version of the operator does not run slurmdbd: set spec.external and spec.externalConfig."
        return Report(False, "NotSupported", text, fault=text, fault_reason="NotSupported"), None


class TokenController(Reconciler[TokenSpec]):
    """Keeps a signed token in a Secret, which goes with the Token."""

    name: ClassVar[str] = "token"
    resource: ClassVar[Resource] = TOKENS
    spec_type = TokenSpec

    def setup(self) -> None:
        self.informer = self.watch(self.resource)

    async def act(self, key: Key, obj: Object, spec: TokenSpec) -> tuple[Report, float | None]:
        lifetime = seconds(spec.lifetime, "spec.lifetime")
        target = (
            spec.secret_ref.name if spec.secret_ref and spec.secret_ref.name else token_secret(key.name, spec.username)
        )
        field = spec.secret_ref.key if spec.secret_ref else TOKEN_FIELD
        issued = _moment((obj.get("status") or {}).get("issuedAt"))
        existing = await self.kube.get(SECRETS, key.namespace, target)
        left = issued + RENEW_AT * lifetime - time.time()
        if existing is not None and data_of(existing, field) and (left > 0 or not spec.refresh):
            return self._report(issued, lifetime, target, spec), min(left, LOOK_SECONDS) if spec.refresh else None
        signing = await self._signing_key(key, spec)
        token = sign(signing, spec.username, lifetime=lifetime).encode()
        wish = secret(target, key.namespace, "", {field: token}, immutable=False)
        wish["metadata"]["labels"] = {LABEL_MANAGED_BY: MANAGED_BY}
        wish["metadata"]["ownerReferences"] = [owner_reference(obj)]
        await self.ensure(key, wish)
        again = min(RENEW_AT * lifetime, LOOK_SECONDS) if spec.refresh else None
        return self._report(time.time(), lifetime, target, spec), again

    async def _signing_key(self, key: Key, spec: TokenSpec) -> bytes:
        reference = jwt_key_of(spec)
        if reference is None:
            raise InvalidSpec("spec.jwtKeyRef: missing")
        found = await self.kube.get(SECRETS, key.namespace, reference.name)
        value = data_of(found, reference.key) if found else None
        if not value:
            self.enqueue(key, KEY_RETRY_SECONDS)
            raise Waiting("NoKey", f"Secret {reference.name} has no key {reference.key} yet (spec.jwtKeyRef)")
        return value

    def _report(self, issued: float, lifetime: int, target: str, spec: TokenSpec) -> Report:
        fields = {"issuedAt": timestamp(datetime.fromtimestamp(issued, UTC))}
        until = timestamp(datetime.fromtimestamp(issued + lifetime, UTC))
        if time.time() > issued + lifetime:
            text = f"The token of {spec.username} in Secret {target} ended {until} and refresh is off."
            return Report(False, "Expired", text, fields=fields)
        return Report(
            True, "Signed", f"Secret {target} has a token of {spec.username}, valid until {until}.", fields=fields
        )


def seconds(text: str, where: str) -> int:
    """A duration such as 1h30m in seconds, at least a minute. Raises InvalidSpec, naming the field."""
    match = _DURATION.match(text)
    total = sum(int(part or 0) * unit for part, unit in zip(match.groups(), (3600, 60, 1), strict=True)) if match else 0
    if total < 60:
        raise InvalidSpec(f"{where}: {text!r} is no duration of at least a minute; write 15m or 1h30m for example")
    return total


def _moment(text: str | None) -> float:
    return datetime.fromisoformat(text).timestamp() if text else 0.0
