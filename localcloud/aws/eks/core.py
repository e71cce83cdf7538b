"""What the parts of the EKS API share: state, errors, background jobs, updates."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from localcloud.aws.eks.compute import Compute
from localcloud.aws.eks.store import Document, Store
from localcloud.aws.errors import AwsError
from localcloud.aws.lookup import Lookup, Role
from localcloud.paths import AWS_ACCOUNT, AWS_REGION

log = logging.getLogger(__name__)


@dataclass
class Eks:
    """The EKS of one region. `jobs` are threads that do what takes time; describes show how far they are."""

    store: Store
    lookup: Lookup
    compute: Compute
    jobs: dict[str, threading.Thread] = field(default_factory=dict)
    changed: threading.Event = field(default_factory=threading.Event)

    def run(self, key: str, work: Callable[[], None]) -> None:
        """Do `work` in the background; one job for a key at a time."""

        def guarded() -> None:
            try:
                work()
            except Exception:
                log.exception("job %s failed", key)

        with self.store.lock:
            running = self.jobs.get(key)
            if running is not None and running.is_alive():
                raise in_use(f"{key} is being changed")
            thread = threading.Thread(target=guarded, name=key, daemon=True)
            self.jobs[key] = thread
            thread.start()

    def wait_for(self, key: str) -> None:
        """Wait until the job of a key, if any, has ended."""
        thread = self.jobs.get(key)
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def cluster(self, name: str) -> Document:
        found = self.store.get("clusters", name)
        if found is None:
            raise not_found(f"No cluster found for name: {name}.", clusterName=name)
        return found

    def active_cluster(self, name: str) -> Document:
        """The cluster, if it can be worked with."""
        found = self.cluster(name)
        if found["status"] not in ("ACTIVE", "UPDATING"):
            raise invalid_request(
                f"Cluster '{name}' is not in ACTIVE status, it is {found['status']}", clusterName=name
            )
        return found


def now() -> float:
    """Present time as the API writes it: seconds since the epoch."""
    return round(time.time(), 3)


def arn(kind: str) -> str:
    return f"arn:aws:eks:{AWS_REGION}:{AWS_ACCOUNT}:{kind}"


def invalid(message: str, **extra: Any) -> AwsError:
    return AwsError("InvalidParameterException", message, 400, extra)


def invalid_request(message: str, **extra: Any) -> AwsError:
    return AwsError("InvalidRequestException", message, 400, extra)


def not_found(message: str, **extra: Any) -> AwsError:
    return AwsError("ResourceNotFoundException", message, 404, extra)


def in_use(message: str, **extra: Any) -> AwsError:
    return AwsError("ResourceInUseException", message, 409, extra)


def only(body: Mapping[str, Any], allowed: Iterable[str], where: str) -> None:
    """Refuse members that the stand-in does not know: an answer that ignores them would be a lie."""
    known = {*allowed, "clientRequestToken"}
    for name, value in body.items():
        if name not in known and value not in (None, {}, []):
            raise invalid(
                f"{where}: the EKS stand-in does not know {name}. It knows {', '.join(sorted(known))}; "
                "what is missing is added in localcloud/aws/eks/."
            )


def one_of(value: str, allowed: Iterable[str], name: str) -> str:
    choices = list(allowed)
    if value not in choices:
        raise invalid(
            f"1 validation error detected: Value '{value}' at '{name}' failed to satisfy constraint: "
            f"Member must satisfy enum value set: [{', '.join(choices)}]"
        )
    return value


def assumable_role(eks: Eks, role_arn: str, service: str) -> Role:
    """The IAM role, if it exists and its trust policy lets `service` assume it."""
    role = eks.lookup.role(role_arn)
    if role is None or not role.trusts(service):
        raise invalid(
            f"Role with arn: {role_arn}, could not be assumed because it does not exist or the trusted entity is not "
            f"correct: its trust policy must allow {service}"
        )
    return role


def update_of(
    eks: Eks, cluster: str, kind: str, params: Mapping[str, Any], nodegroup: str = "", addon: str = ""
) -> Document:
    """Record an update in progress; finish_update() ends it."""
    update: Document = {
        "id": str(uuid.uuid4()), "status": "InProgress", "type": kind, "createdAt": now(), "errors": [],
        "params": [{"type": name, "value": str(value)} for name, value in params.items()],
        "_nodegroup": nodegroup, "_addon": addon,
    }  # fmt: skip
    eks.store.put("updates", f"{cluster}/{update['id']}", update)
    return update


def finish_update(eks: Eks, cluster: str, update_id: str, error: str = "") -> None:
    errors = [{"errorCode": "Unknown", "errorMessage": error, "resourceIds": []}] if error else []
    eks.store.patch("updates", f"{cluster}/{update_id}", status="Failed" if error else "Successful", errors=errors)


def tags_of(body: Mapping[str, Any]) -> dict[str, str]:
    tags = dict(body.get("tags") or {})
    for key in tags:
        if key.startswith("aws:"):
            raise invalid(f"Tag key {key!r}: the prefix aws: is reserved")
    return tags
