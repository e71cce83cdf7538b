"""One request to the AWS API: for which service and operation it is, and with which parameters."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any
from urllib.parse import parse_qsl

from localcloud.paths import AWS_REGION

# Services whose operations are named in a form field; the others say it in X-Amz-Target, or by method and path.
QUERY_SERVICES = frozenset(
    {"ec2", "iam", "sts", "rds", "elasticloadbalancing", "autoscaling", "sns", "cloudformation", "monitoring"}
)
READ_PREFIXES = (
    "Describe", "Get", "List", "Head", "Lookup", "Search", "BatchGet", "BatchCheck", "Filter", "Query", "Scan",
    "Test", "Validate", "Simulate", "Encrypt", "Decrypt", "GenerateDataKey", "GenerateRandom", "Verify", "Sign",
)  # fmt: skip
KEPT_HEADERS = ("content-type", "host", "user-agent", "content-md5")
CREDENTIAL = re.compile(r"Credential=([^/,\s]+)/(\d{8})/([^/,\s]+)/([^/,\s]+)/aws4_request")


@dataclass(frozen=True)
class AwsRequest:
    """Header names are in lower case; `path` is the path as sent, `query` what follows the question mark."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes

    @cached_property
    def _credential(self) -> tuple[str, str, str]:
        """(access key, region, service) of the signature; empty access key and service when there is none."""
        text = self.headers.get("authorization", "")
        if not text:
            text = "Credential=" + dict(parse_qsl(self.query)).get("X-Amz-Credential", "")
        found = CREDENTIAL.search(text)
        return (found[1], found[3], found[4].lower()) if found else ("", AWS_REGION, "")

    @property
    def access_key(self) -> str:
        return self._credential[0]

    @property
    def region(self) -> str:
        return self._credential[1]

    @property
    def service(self) -> str:
        return self._credential[2]

    @property
    def protocol(self) -> str:
        if "x-amz-target" in self.headers:
            return "json"
        if self.service in QUERY_SERVICES:
            return "query"
        return "rest-xml" if self.service in ("s3", "route53", "cloudfront", "") else "rest-json"

    @cached_property
    def params(self) -> dict[str, Any]:
        """Form fields of a query request (flat, `SubnetId.1`), members of a JSON body otherwise."""
        if self.protocol == "query":
            form = parse_qsl(self.body.decode(), keep_blank_values=True)
            return dict(parse_qsl(self.query, keep_blank_values=True) + form)
        if self.protocol in ("json", "rest-json") and self.body:
            try:
                value = json.loads(self.body)
            except ValueError:
                return {}
            return value if isinstance(value, dict) else {}
        return {}

    @property
    def action(self) -> str:
        """Name of the operation; empty for REST services, whose method and path say it."""
        if self.protocol == "json":
            return self.headers["x-amz-target"].split(".")[-1]
        return str(self.params.get("Action", "")) if self.protocol == "query" else ""

    @property
    def mutates(self) -> bool:
        """Whether it may change something, and so belongs into the journal."""
        if self.action:
            return not self.action.startswith(READ_PREFIXES)
        return self.method not in ("GET", "HEAD", "OPTIONS")

    def for_journal(self) -> AwsRequest:
        """The same request without signature and other headers that do not change what it does."""
        kept = {k: v for k, v in self.headers.items() if k in KEPT_HEADERS or k.startswith("x-amz-")}
        for name in ("x-amz-date", "x-amz-security-token", "x-amz-content-sha256"):
            kept.pop(name, None)
        if self.service:
            scope = f"{self.access_key}/20260101/{self.region}/{self.service}/aws4_request"
            kept["authorization"] = f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature=0"
        return replace(self, headers=kept)


def members(params: Mapping[str, Any], name: str) -> list[str]:
    """Values of a list parameter in query form: `SubnetId.1`, `SubnetId.2`, … in order."""
    found = [
        (int(k[len(name) + 1 :]), str(v)) for k, v in params.items() if re.fullmatch(rf"{re.escape(name)}\.\d+", k)
    ]
    return [value for _, value in sorted(found)]


def query_request(service: str, params: Mapping[str, str], region: str) -> AwsRequest:
    """A request of the stand-in to itself, for a service that speaks the query protocol."""
    from urllib.parse import urlencode

    scope = f"slipway/20260101/{region}/{service}/aws4_request"
    headers = {
        "host": f"{service}.{region}.amazonaws.com",
        "content-type": "application/x-www-form-urlencoded; charset=utf-8",
        "authorization": f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature=0",
    }
    return AwsRequest("POST", "/", "", headers, urlencode(params).encode())
