"""aws.iam.getPolicyDocument: an IAM policy from its parts. Needs no AWS."""

from __future__ import annotations

import json
import zlib
from typing import Any

from localcloud.aws.provider.model import ProviderError
from localcloud.aws.provider.schema import Values

STATEMENT = frozenset(
    {"sid", "effect", "actions", "notActions", "resources", "notResources", "principals", "notPrincipals", "conditions"}
)
VERSIONS = ("2008-10-17", "2012-10-17")


def policy_document(args: Values) -> Values:
    """The answer of the function. Raises ProviderError that names the wrong argument."""
    version = args.get("version") or "2012-10-17"
    if version not in VERSIONS:
        raise ProviderError(f"getPolicyDocument: version {version!r}; allowed are {', '.join(VERSIONS)}")
    merged: list[Values] = []
    document: Values = {"Version": version}
    if args.get("policyId"):
        document["Id"] = args["policyId"]
    sources = [args["sourceJson"]] if args.get("sourceJson") else list(args.get("sourcePolicyDocuments") or [])
    sids: set[str] = set()
    for index, text in enumerate(sources):
        for statement in _statements(text, document, f"sourcePolicyDocuments[{index}]"):
            sid = statement.get("Sid", "")
            if sid and sid in sids:
                raise ProviderError(f"getPolicyDocument: duplicate Sid {sid!r} in sourcePolicyDocuments[{index}]")
            sids.add(sid)
            merged.append(statement)
    own: set[str] = set()
    for index, given in enumerate(args.get("statements") or []):
        sid = given.get("sid") or ""
        if sid and sid in own:
            raise ProviderError(f"getPolicyDocument: duplicate sid {sid!r} in statements[{index}]")
        own.add(sid)
        _merge(merged, _statement(given, version, f"statements[{index}]"))
    overrides = [args["overrideJson"]] if args.get("overrideJson") else list(args.get("overridePolicyDocuments") or [])
    for index, text in enumerate(overrides):
        for statement in _statements(text, document, f"overridePolicyDocuments[{index}]"):
            _merge(merged, statement)
    document["Statement"] = merged
    minified = json.dumps(document, separators=(",", ":"))
    return {**args, "version": version, "json": json.dumps(document, indent=2), "minifiedJson": minified,
            "id": str(zlib.crc32(minified.encode()))}  # fmt: skip


def _statements(text: str, document: Values, where: str) -> list[Values]:
    if not text:
        return []
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ProviderError(f"getPolicyDocument: {where} is no JSON: {error}") from None
    if found.get("Id") and "Id" not in document:
        document["Id"] = found["Id"]
    statements = found.get("Statement") or []
    return statements if isinstance(statements, list) else [statements]


def _merge(merged: list[Values], statement: Values) -> None:
    """A statement with a Sid takes the place of an earlier one with the same."""
    for index, other in enumerate(merged):
        if statement.get("Sid") and other.get("Sid") == statement["Sid"]:
            merged[index] = statement
            return
    merged.append(statement)


def _statement(given: Values, version: str, where: str) -> Values:
    for name, value in given.items():
        if name not in STATEMENT and value is not None:
            raise ProviderError(f"getPolicyDocument: {where} has no {name}; allowed are {', '.join(sorted(STATEMENT))}")
    effect = given.get("effect") or "Allow"
    if effect not in ("Allow", "Deny"):
        raise ProviderError(f"getPolicyDocument: {where}.effect is Allow or Deny, not {effect!r}")
    statement: Values = {}
    if given.get("sid"):
        statement["Sid"] = given["sid"]
    statement["Effect"] = effect
    for name, key in (("actions", "Action"), ("notActions", "NotAction"), ("resources", "Resource"),
                      ("notResources", "NotResource")):  # fmt: skip
        if given.get(name):
            statement[key] = _one_or_sorted([_variables(str(v), version, where) for v in given[name]])
    for name, key in (("principals", "Principal"), ("notPrincipals", "NotPrincipal")):
        if given.get(name):
            statement[key] = _principals(given[name], version, where)
    if given.get("conditions"):
        conditions: dict[str, dict[str, Any]] = {}
        for condition in given["conditions"]:
            values = [_variables(str(v), version, where) for v in condition["values"]]
            merged = conditions.setdefault(condition["test"], {})
            before = merged.get(condition["variable"], [])
            merged[condition["variable"]] = _condition((before if isinstance(before, list) else [before]) + values)
        statement["Condition"] = conditions
    return statement


def _condition(values: list[str]) -> Any:
    return values[0] if len(values) == 1 else values


def _one_or_sorted(values: list[str]) -> Any:
    """IAM's own order: the last first, as Pulumi's provider gives it; one value stands alone."""
    return values[0] if len(values) == 1 else sorted(values, reverse=True)


def _variables(text: str, version: str, where: str) -> str:
    """`&{aws:username}` stands for IAM's own `${aws:username}`, which only the newer version knows."""
    if "&{" in text and version == "2008-10-17":
        raise ProviderError(f"getPolicyDocument: {where}: version 2008-10-17 knows no variables: {text!r}")
    return text.replace("&{", "${")


def _principals(given: list[Values], version: str, where: str) -> Any:
    merged: dict[str, list[str]] = {}
    for principal in given:
        kind = principal["type"]
        merged.setdefault(kind, []).extend(_variables(str(v), version, where) for v in principal["identifiers"])
    if set(merged) == {"*"} and set(merged["*"]) == {"*"}:
        return "*"
    return {kind: _one_or_sorted(values) for kind, values in merged.items()}
