"""The EKS REST API: which path is which operation."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl, unquote

from localcloud.aws.eks import access, addons, clusters, identities, nodegroups
from localcloud.aws.eks.core import Eks, invalid, not_found
from localcloud.aws.eks.store import Document, public
from localcloud.aws.errors import AwsError, Response, json_response
from localcloud.aws.request import AwsRequest
from localcloud.paths import AWS_REGION

Handler = Callable[..., Document]


def _query(request: AwsRequest) -> dict[str, str]:
    return dict(parse_qsl(request.query))


# (method, path pattern, handler): the pattern's groups follow eks and request as arguments.
ROUTES: list[tuple[str, str, Handler]] = [
    ("POST", "/clusters", clusters.create),
    ("GET", "/clusters", lambda eks, r: clusters.list_all(eks)),
    ("GET", "/clusters/([^/]+)", lambda eks, r, c: clusters.describe(eks, c)),
    ("DELETE", "/clusters/([^/]+)", lambda eks, r, c: clusters.delete(eks, c)),
    ("POST", "/clusters/([^/]+)/update-config", lambda eks, r, c: clusters.update_config(eks, c, r.params)),
    ("POST", "/clusters/([^/]+)/updates", lambda eks, r, c: clusters.update_version(eks, c, r.params)),
    ("GET", "/clusters/([^/]+)/updates", lambda eks, r, c: clusters.list_updates(eks, c, _query(r))),
    ("GET", "/clusters/([^/]+)/updates/([^/]+)", lambda eks, r, c, u: clusters.describe_update(eks, c, u)),
    ("POST", "/clusters/([^/]+)/node-groups", lambda eks, r, c: nodegroups.create(eks, c, r.params)),
    ("GET", "/clusters/([^/]+)/node-groups", lambda eks, r, c: nodegroups.list_all(eks, c)),
    ("GET", "/clusters/([^/]+)/node-groups/([^/]+)",
     lambda eks, r, c, n: {"nodegroup": public(nodegroups.get(eks, c, n))}),
    ("DELETE", "/clusters/([^/]+)/node-groups/([^/]+)", lambda eks, r, c, n: nodegroups.delete(eks, c, n)),
    ("POST", "/clusters/([^/]+)/node-groups/([^/]+)/update-config",
     lambda eks, r, c, n: nodegroups.update_config(eks, c, n, r.params)),
    ("POST", "/clusters/([^/]+)/node-groups/([^/]+)/update-version",
     lambda eks, r, c, n: nodegroups.update_version(eks, c, n, r.params)),
    ("POST", "/clusters/([^/]+)/addons", lambda eks, r, c: addons.create(eks, c, r.params)),
    ("GET", "/clusters/([^/]+)/addons", lambda eks, r, c: addons.list_all(eks, c)),
    ("GET", "/clusters/([^/]+)/addons/([^/]+)", lambda eks, r, c, a: {"addon": public(addons.get(eks, c, a))}),
    ("POST", "/clusters/([^/]+)/addons/([^/]+)/update", lambda eks, r, c, a: addons.update(eks, c, a, r.params)),
    ("DELETE", "/clusters/([^/]+)/addons/([^/]+)",
     lambda eks, r, c, a: addons.delete(eks, c, a, _query(r).get("preserve") == "true")),
    ("GET", "/addons/supported-versions", lambda eks, r: addons.versions(_query(r))),
    ("POST", "/clusters/([^/]+)/access-entries", lambda eks, r, c: access.create(eks, c, r.params)),
    ("GET", "/clusters/([^/]+)/access-entries", lambda eks, r, c: access.list_all(eks, c)),
    ("GET", "/clusters/([^/]+)/access-entries/([^/]+)", lambda eks, r, c, p: access.describe(eks, c, p)),
    ("POST", "/clusters/([^/]+)/access-entries/([^/]+)", lambda eks, r, c, p: access.update(eks, c, p, r.params)),
    ("DELETE", "/clusters/([^/]+)/access-entries/([^/]+)", lambda eks, r, c, p: access.delete(eks, c, p)),
    ("POST", "/clusters/([^/]+)/access-entries/([^/]+)/access-policies",
     lambda eks, r, c, p: access.associate(eks, c, p, r.params)),
    ("GET", "/clusters/([^/]+)/access-entries/([^/]+)/access-policies",
     lambda eks, r, c, p: access.associations(eks, c, p)),
    ("DELETE", "/clusters/([^/]+)/access-entries/([^/]+)/access-policies/([^/]+)",
     lambda eks, r, c, p, policy: access.disassociate(eks, c, p, policy)),
    ("GET", "/access-policies", lambda eks, r: access.policies()),
    ("POST", "/clusters/([^/]+)/pod-identity-associations", lambda eks, r, c: identities.create(eks, c, r.params)),
    ("GET", "/clusters/([^/]+)/pod-identity-associations", lambda eks, r, c: identities.list_all(eks, c, _query(r))),
    ("GET", "/clusters/([^/]+)/pod-identity-associations/([^/]+)",
     lambda eks, r, c, i: {"association": public(identities.get(eks, c, i))}),
    ("POST", "/clusters/([^/]+)/pod-identity-associations/([^/]+)",
     lambda eks, r, c, i: identities.update(eks, c, i, r.params)),
    ("DELETE", "/clusters/([^/]+)/pod-identity-associations/([^/]+)",
     lambda eks, r, c, i: identities.delete(eks, c, i)),
    ("GET", "/tags/(.+)", lambda eks, r, arn: {"tags": _tagged(eks, arn)[1]["tags"]}),
    ("POST", "/tags/(.+)", lambda eks, r, arn: _tag(eks, arn, r.params.get("tags", {}), [])),
    ("DELETE", "/tags/(.+)",
     lambda eks, r, arn: _tag(eks, arn, {}, [v for k, v in parse_qsl(r.query) if k == "tagKeys"])),
]  # fmt: skip
_COMPILED = [(method, re.compile(pattern + "/?"), handler) for method, pattern, handler in ROUTES]

ARN_FIELDS = {
    "clusters": "arn", "nodegroups": "nodegroupArn", "addons": "addonArn", "entries": "accessEntryArn",
    "pod_identities": "associationArn",
}  # fmt: skip


def handle(eks: Eks, request: AwsRequest) -> Response:
    """Answer one request. Raises AwsError."""
    if request.region != AWS_REGION:
        raise invalid(f"The EKS stand-in is in {AWS_REGION} only, not in {request.region}")
    for method, pattern, handler in _COMPILED:
        found = pattern.fullmatch(request.path)
        if found and method == request.method:
            return json_response(handler(eks, request, *[unquote(part) for part in found.groups()]))
    raise AwsError("NotImplemented", f"The EKS stand-in has no operation {request.method} {request.path}", 501)


def _tagged(eks: Eks, arn: str) -> tuple[tuple[str, str], dict[str, Any]]:
    """((kind, key), document) of what has this ARN."""
    for kind, field in ARN_FIELDS.items():
        for document in eks.store.all(kind):
            if document[field] == arn:
                keys = {
                    "clusters": ("name",), "nodegroups": ("clusterName", "nodegroupName"),
                    "addons": ("clusterName", "addonName"), "entries": ("clusterName", "principalArn"),
                    "pod_identities": ("clusterName", "associationId"),
                }[kind]  # fmt: skip
                return (kind, "/".join(document[k] for k in keys)), document
    raise not_found(f"No resource found for ARN: {arn}")


def _tag(eks: Eks, arn: str, added: dict[str, str], removed: list[str]) -> Document:
    with eks.store.lock:
        (kind, key), document = _tagged(eks, arn)
        tags = {k: v for k, v in document["tags"].items() if k not in removed} | added
        eks.store.patch(kind, key, tags=tags)
    return {}
