"""Stands in for aws-iam-authenticator on the EKS control plane: TokenReview for tokens of `aws eks get-token`.

A token is a presigned STS GetCallerIdentity URL. Like STS, this checks signature and age; unlike STS it can do so
only for secrets it knows: those of CreateAccessKey and AssumeRole, and the pair that the local cloud gives its own
programs. Anonymous and expired callers, tokens for another cluster, and callers without access entry are refused.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import logging
import os
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, parse_qsl, quote, urlsplit

from localcloud.aws.eks.access import group_of
from localcloud.aws.eks.core import Eks
from localcloud.aws.eks.store import Document
from localcloud.aws.lookup import Caller
from localcloud.environment import aws_environment
from localcloud.paths import AWS_ACCOUNT, instance

log = logging.getLogger(__name__)

PREFIX = "k8s-aws-v1."
LIFETIME = timedelta(minutes=15)
CLUSTER_HEADER = "x-k8s-aws-id"


class Refused(Exception):
    """Why a token lets nobody in."""


def review(eks: Eks, body: dict[str, Any]) -> dict[str, Any]:
    """Answer a TokenReview (authentication.k8s.io/v1)."""
    answer = {"apiVersion": body.get("apiVersion", "authentication.k8s.io/v1"), "kind": "TokenReview"}
    try:
        user = authenticate(eks, str(body.get("spec", {}).get("token", "")))
    except Refused as reason:
        log.info("token refused: %s", reason)
        return {**answer, "status": {"authenticated": False, "error": str(reason)}}
    return {**answer, "status": {"authenticated": True, "user": user}}


def authenticate(eks: Eks, token: str, at: datetime | None = None) -> Document:
    """The Kubernetes user (username, uid, groups, extra) that a token stands for. Raises Refused."""
    clusters = eks.store.all("clusters")
    if not clusters:
        raise Refused("there is no cluster")
    cluster = clusters[0]["name"]
    caller = _caller(eks, token, cluster, at or datetime.now(UTC))
    principal, session = canonical(eks, caller.arn)
    entry = eks.store.get("entries", f"{cluster}/{principal}")
    if entry is None or clusters[0]["accessConfig"]["authenticationMode"] == "CONFIG_MAP":
        raise Refused(f"{principal} has no access entry in cluster {cluster}: create one (aws eks create-access-entry)")
    username = (
        entry["username"].replace("{{SessionName}}", session).replace("{{SessionNameRaw}}", session)
        .replace("{{AccountID}}", AWS_ACCOUNT)
    )  # fmt: skip
    extra = {
        "arn": [caller.arn],
        "canonicalArn": [principal],
        "sessionName": [session],
        "principalId": [caller.user_id],
    }
    uid = f"aws-iam-authenticator:{AWS_ACCOUNT}:{caller.user_id}"
    return {
        "username": username,
        "uid": uid,
        "groups": [*entry["kubernetesGroups"], group_of(principal)],
        "extra": extra,
    }


def canonical(eks: Eks, arn: str) -> tuple[str, str]:
    """(ARN of the IAM principal, session name): an assumed role becomes the role, with its path."""
    if ":assumed-role/" not in arn:
        return arn, ""
    _, name, session = arn.split(":", 5)[5].split("/", 2)
    return eks.lookup.role_named(name) or f"arn:aws:iam::{AWS_ACCOUNT}:role/{name}", session


def _caller(eks: Eks, token: str, cluster: str, at: datetime) -> Caller:
    if not token.startswith(PREFIX):
        raise Refused("it is no token of `aws eks get-token`")
    encoded = token.removeprefix(PREFIX)
    try:
        text = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode()
        url, query = urlsplit(text), parse_qs(urlsplit(text).query, strict_parsing=True)
        values = {name.lower(): given[0] for name, given in query.items() if len(given) == 1}
        if len(values) != len(query):
            raise Refused("a parameter of the presigned URL is given twice")
        port = url.port
    except (ValueError, binascii.Error, UnicodeDecodeError):
        raise Refused("the token is no presigned URL in base64") from None
    if url.scheme != "http" or url.hostname not in ("127.0.0.1", "localhost") or port != instance().aws_port:
        raise Refused(
            f"it was signed for {url.scheme}://{url.netloc}, not for {instance().aws_url}: set AWS_ENDPOINT_URL"
        )
    if url.path not in ("", "/") or values.get("action") != "GetCallerIdentity":
        raise Refused("the presigned URL is not of STS GetCallerIdentity")
    if CLUSTER_HEADER not in values.get("x-amz-signedheaders", "").split(";"):
        raise Refused(f"the header {CLUSTER_HEADER} is not signed")
    try:
        signed = datetime.strptime(values.get("x-amz-date", ""), "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        raise Refused("X-Amz-Date is missing or malformed") from None
    if not -timedelta(minutes=5) < at - signed < LIFETIME:
        raise Refused(f"the token expired {LIFETIME.seconds // 60} minutes after {signed.isoformat()}")
    access_key = values.get("x-amz-credential", "").split("/")[0]
    caller = eks.lookup.caller(access_key)
    secrets = [caller.secret] if caller.secret is not None else _own_secrets()
    if not any(
        hmac.compare_digest(signature(text, cluster, key), values.get("x-amz-signature", "")) for key in secrets
    ):
        raise Refused(
            f"the signature of access key {access_key} does not fit: another secret key or another cluster's token"
        )
    return caller


def _own_secrets() -> list[str]:
    """Secrets that go with keys which IAM never gave out: the local cloud's own pair, and this process's."""
    return [aws_environment()["AWS_SECRET_ACCESS_KEY"], os.environ.get("AWS_SECRET_ACCESS_KEY", "test"), "test"]


def signature(url: str, cluster: str, secret: str) -> str:
    """The SigV4 signature that a presigned GET of `url` has when the cluster's header is `cluster`."""
    parts = urlsplit(url)
    query = {name: value for name, value in parse_qsl(parts.query, keep_blank_values=True) if name != "X-Amz-Signature"}
    canonical_query = "&".join(f"{quote(k, safe='-_.~')}={quote(query[k], safe='-_.~')}" for k in sorted(query))
    values = {"host": parts.netloc, CLUSTER_HEADER: cluster}
    names = query.get("X-Amz-SignedHeaders", "").split(";")
    headers = "".join(f"{name}:{values.get(name, '')}\n" for name in names)
    empty = hashlib.sha256(b"").hexdigest()
    request = "\n".join(["GET", parts.path or "/", canonical_query, headers, ";".join(names), empty])
    scope = query.get("X-Amz-Credential", "").split("/", 1)[-1]
    hashed = hashlib.sha256(request.encode()).hexdigest()
    to_sign = "\n".join(["AWS4-HMAC-SHA256", query.get("X-Amz-Date", ""), scope, hashed])
    key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.new(key, to_sign.encode(), "sha256").hexdigest()
