"""What a table entry is, and what its functions are given: clients, tags, waiting, progress."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar
from urllib.parse import urlsplit

from localcloud.aws.provider.schema import Prop, Values

CREATE_TAG = "slipway:create"
"""Tag that says which create request made a resource: a repeated request finds what a killed one left. Never shown."""
POLL_SECONDS = 0.25
Tags = dict[str, str]
T = TypeVar("T")


class ProviderError(Exception):
    """A message for the user."""


class Cancelled(ProviderError):
    """The engine asked to stop."""


class Incomplete(ProviderError):
    """The resource exists, and is not what it should be; `values` are what is known of it."""

    def __init__(self, message: str, identifier: str, values: Values) -> None:
        super().__init__(message)
        self.identifier = identifier
        self.values = values


@dataclass
class Session:
    """One configured provider: where it talks to and what it adds to each resource."""

    region: str
    default_tags: Tags = field(default_factory=dict)
    cancelled: threading.Event = field(default_factory=threading.Event)
    _clients: dict[str, Any] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def client(self, service: str) -> Any:
        """A boto3 client of the stand-in. Raises ProviderError where that is not what it would reach."""
        with self._lock:
            if service not in self._clients:
                self._clients[service] = _client(service, self.region)
            return self._clients[service]

    @cached_property
    def account(self) -> str:
        return str(self.client("sts").get_caller_identity()["Account"])


def endpoint() -> str:
    """AWS_ENDPOINT_URL. Raises ProviderError when it is missing or is AWS itself."""
    url = os.environ.get("AWS_ENDPOINT_URL", "")
    host = urlsplit(url).hostname or ""
    if not host:
        raise ProviderError(
            "AWS_ENDPOINT_URL is not set. This pulumi-resource-aws is a stand-in that talks to the local AWS only; "
            "start it with `make up`, or put Pulumi's own aws provider on PATH to deploy to AWS"
        )
    if host.endswith(("amazonaws.com", "amazonaws.com.cn", "api.aws")):
        raise ProviderError(f"AWS_ENDPOINT_URL={url} is AWS itself; this pulumi-resource-aws is for the local AWS only")
    return url


def _client(service: str, region: str) -> Any:
    import boto3
    from botocore.config import Config

    # No retries: a lost answer must lead through `find`, not to a second create.
    config = Config(retries={"total_max_attempts": 1}, connect_timeout=5, read_timeout=60, max_pool_connections=32)
    session: Any = boto3.session.Session()
    return session.client(
        service,
        region_name=region,
        endpoint_url=endpoint(),
        aws_access_key_id=os.environ.get("AWS_ACCESS_KEY_ID") or "slipway-local",
        aws_secret_access_key=os.environ.get("AWS_SECRET_ACCESS_KEY") or "slipway-local",
        config=config,
    )


@dataclass(frozen=True)
class Call:
    """One operation on one resource.

    inputs: checked, without unknowns. old: the inputs before an update. seconds: the custom timeout, 0 when none.
    """

    session: Session
    urn: str
    inputs: Values
    log: Callable[[str], None]
    old: Values = field(default_factory=dict)
    outputs: Values = field(default_factory=dict)
    seconds: float = 0

    def client(self, service: str) -> Any:
        return self.session.client(service)

    @property
    def region(self) -> str:
        return self.session.region

    @cached_property
    def token(self) -> str:
        """Same for the same resource with the same inputs: the value of CREATE_TAG, and AWS's client tokens."""
        known = {k: v for k, v in self.inputs.items() if not k.startswith("__")}
        return hashlib.sha256(f"{self.urn} {json.dumps(known, sort_keys=True)}".encode()).hexdigest()[:40]

    @property
    def tags(self) -> Tags:
        """All tags of a new resource."""
        return {**self.all_tags, CREATE_TAG: self.token}

    @property
    def all_tags(self) -> Tags:
        """The tags that the user asked for, defaults of the provider included."""
        return {**self.session.default_tags, **{k: str(v) for k, v in (self.inputs.get("tags") or {}).items()}}

    @property
    def old_tags(self) -> Tags:
        return dict(self.outputs.get("tagsAll") or {})

    def changed(self, *names: str) -> bool:
        return any(self.inputs.get(name) != self.old.get(name) for name in names)

    def wait(self, what: str, done: Callable[[], T | None], seconds: float) -> T:
        """Ask until `done` answers something; says what it waits for. Raises ProviderError after the timeout."""
        limit, began, told = self.seconds or seconds, time.monotonic(), 0.0
        while True:
            answer = done()
            if answer is not None:
                return answer
            passed = time.monotonic() - began
            if self.session.cancelled.is_set():
                raise Cancelled(f"cancelled while waiting for {what}")
            if passed > limit:
                raise ProviderError(f"{what}: not after {limit:.0f} s")
            if passed - told > 2:
                told = passed
                self.log(f"{what} ({passed:.0f} s)")
            time.sleep(POLL_SECONDS)


Create = Callable[[Call], str]
Read = Callable[[Call, str], "Values | None"]
Change = Callable[[Call, str], None]


@dataclass(frozen=True)
class Resource:
    """One resource type.

    create returns the id; for what a killed create left, it asks `find` first. finish does what follows the create
    call and may be repeated (attributes, attachments, waiting). read returns what AWS knows under Pulumi's names
    (raw tags included, under "tags"), None when it is gone. update gets the old inputs in call.old.
    outputs: names that only AWS fills. unique: properties that cannot exist twice at a time.
    """

    props: Mapping[str, Prop]
    outputs: tuple[str, ...]
    create: Create
    read: Read
    delete: Change
    update: Change | None = None
    find: Callable[[Call], str | None] | None = None
    finish: Change | None = None
    unique: tuple[str, ...] = ()
    where: str = ""

    @property
    def taggable(self) -> bool:
        return "tags" in self.props


def shown(tags: Mapping[str, str]) -> Tags:
    """Tags as the user sees them."""
    return {k: v for k, v in tags.items() if k != CREATE_TAG and not k.startswith("aws:")}


def pairs(tags: Mapping[str, str], key: str = "Key", value: str = "Value") -> list[dict[str, str]]:
    """Tags as most of AWS writes them."""
    return [{key: k, value: v} for k, v in tags.items()]


def from_pairs(items: list[dict[str, str]] | None, key: str = "Key", value: str = "Value") -> Tags:
    return {item[key]: item[value] for item in items or []}


def error_code(error: Exception) -> str:
    """AWS's code of a botocore ClientError; empty for others."""
    response = getattr(error, "response", None)
    return str(response["Error"]["Code"]) if isinstance(response, dict) and "Error" in response else ""


def absent(call: Callable[[], T], *codes: str) -> T | None:
    """The answer of a call, or None when AWS says one of the codes that mean "there is no such thing"."""
    from botocore.exceptions import ClientError

    try:
        return call()
    except ClientError as error:
        if error_code(error) in codes:
            return None
        raise


def pascal(value: Any) -> Any:
    """Keys as EC2 and others write them: `volumeSize` becomes `VolumeSize`; None values are left out."""
    if isinstance(value, dict):
        return {k[:1].upper() + k[1:]: pascal(v) for k, v in value.items() if v is not None}
    return [pascal(v) for v in value] if isinstance(value, list) else value


def camel(value: Any) -> Any:
    """The inverse of pascal()."""
    if isinstance(value, dict):
        return {k[:1].lower() + k[1:]: camel(v) for k, v in value.items() if v is not None}
    return [camel(v) for v in value] if isinstance(value, list) else value
