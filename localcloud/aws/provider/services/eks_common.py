"""What the EKS tables share: errors, tags, waiting for a status."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from localcloud.aws.provider.model import Call, Incomplete, ProviderError
from localcloud.aws.provider.schema import Values

MISSING = "ResourceNotFoundException"
Found = dict[str, Any]


def issues(found: Found) -> str:
    """The reasons that health.issues gives, for an error message."""
    listed = (found.get("health") or {}).get("issues") or []
    return "; ".join(f"{issue['code']}: {issue['message']}" for issue in listed) or "no reason given"


def wait_active(
    call: Call, what: str, get: Callable[[], Found | None], identifier: str, seconds: float, pending: tuple[str, ...]
) -> None:
    """Wait until the status is ACTIVE; pending are the statuses that may become that.

    Raises Incomplete when it ends as something else, or not in time: it then exists and belongs into the state.
    """
    last: Found = {}

    def settled() -> Found | None:
        nonlocal last
        found = get()
        if found is None:
            raise ProviderError(f"{what} is gone")
        last = found
        return None if found["status"] in pending else found

    try:
        found = call.wait(f"waiting for {what}", settled, seconds)
    except ProviderError as error:
        if not last:
            raise
        raise Incomplete(f"{error}, it is {last['status']}: {issues(last)}", identifier, {}) from error
    if found["status"] != "ACTIVE":
        raise Incomplete(f"{what} is {found['status']}: {issues(found)}", identifier, {})


def wait_update(call: Call, what: str, update: Found, seconds: float, **target: str) -> None:
    """Wait for an update that a call has begun."""

    def ended() -> Found | None:
        found = call.client("eks").describe_update(updateId=update["id"], **target)["update"]
        return None if found["status"] == "InProgress" else dict(found)

    found = call.wait(f"updating {what}", ended, seconds)
    if found["status"] != "Successful":
        reasons = "; ".join(error["errorMessage"] for error in found["errors"])
        raise ProviderError(f"the update of {what} ended {found['status']}: {reasons}")


def wait_gone(call: Call, what: str, get: Callable[[], Found | None], seconds: float) -> None:
    """Wait until the thing no longer exists. Raises ProviderError when its deletion fails."""

    def gone() -> bool | None:
        found = get()
        if found is None:
            return True
        if found["status"] in ("DELETE_FAILED", "FAILED"):
            raise ProviderError(f"{what} could not be deleted: {issues(found)}")
        return None

    call.wait(f"deleting {what}", gone, seconds)


def retag(call: Call, arn: str) -> None:
    eks, wanted, old = call.client("eks"), call.all_tags, call.old_tags
    gone = [key for key in old if key not in wanted]
    if gone:
        eks.untag_resource(resourceArn=arn, tagKeys=gone)
    added = {key: value for key, value in wanted.items() if old.get(key) != value}
    if added:
        eks.tag_resource(resourceArn=arn, tags=added)


def clean(values: Values | None) -> Values:
    """An object without the members that are not given and without Pulumi's own."""
    return {k: v for k, v in (values or {}).items() if v is not None and not k.startswith("__")}


def date(value: Any) -> str:
    return str(value.isoformat()) if hasattr(value, "isoformat") else str(value)
