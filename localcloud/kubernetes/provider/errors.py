"""What this provider tells when something fails: which object, what is wrong, what to do next."""

from __future__ import annotations

import re
from typing import Any

from localcloud.kubernetes.provider.client import ApiError
from localcloud.kubernetes.provider.wire import Object, Path


class Failure(Exception):
    """An operation that did not happen; the message is for the user."""


class InitFailed(Exception):
    """The object was made or changed but is not ready: its state is kept, and the next run tries again."""

    def __init__(self, id_: str, outputs: Object, secrets: list[Path], inputs: Object, reasons: list[str]) -> None:
        self.id, self.outputs, self.secrets, self.inputs, self.reasons = id_, outputs, secrets, inputs, reasons
        super().__init__("\n".join(reasons))


def explain(error: ApiError, what: str, doing: str) -> str:
    """A refusal of the API server in words; `what` is the object, `doing` for example "create"."""
    if error.status == 409 and any(cause.get("reason") == "FieldManagerConflict" for cause in error.causes):
        owners = "\n".join(f"  {cause.get('field', '').lstrip('.')}  ({_owner(cause)})" for cause in error.causes)
        return (
            f"cannot {doing} {what}: other programs own fields that this resource sets:\n{owners}\n"
            "Leave these fields out of the program, or take them over: annotation pulumi.com/patchForce: "
            '"true" on the resource, or enablePatchForce on the provider.'
        )
    if error.status == 404 and error.kind == "namespaces":
        return (
            f'cannot {doing} {what}: its namespace "{error.name}" does not exist. '
            "Create it in this program and let this resource depend on it, or create it by hand."
        )
    if error.status == 422 and error.causes:
        faults = "\n".join(f"  {cause.get('field', '?')}: {cause.get('message', '')}" for cause in error.causes)
        return f"cannot {doing} {what}, the API server refuses these values:\n{faults}"
    if error.status in (401, 403):
        return f"cannot {doing} {what}, the credentials do not allow it: {error.message}"
    return f"cannot {doing} {what}: {_shorten(error.message)}"


def _owner(cause: dict[str, Any]) -> str:
    match = re.search(r'conflict with "([^"]*)"', cause.get("message", ""))
    return f"owned by {match[1]}" if match else cause.get("message", "")


def _shorten(message: str) -> str:
    # A patch the server cannot type is answered with the fields at the end of a long sentence.
    match = re.search(r"failed to create typed patch object \(.*?\): (.*)", message, re.DOTALL)
    return match[1] if match else message


def exists_already(what: str, id_: str, type_: str) -> str:
    return (
        f"{what} exists already and was not made by this resource. To manage it here, import it "
        f"(`import` option with the id {id_}, or `pulumi import {type_} <name> {id_}`); "
        "to take over whatever exists, set upsertExistingObjects on the provider; or choose another name."
    )
