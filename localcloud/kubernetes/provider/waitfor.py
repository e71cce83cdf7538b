"""The expressions of the annotation pulumi.com/waitFor: what must hold before an object counts as ready.

`condition=Ready`, `condition=Ready=False`, `jsonpath={.status.phase}`, `jsonpath={.status.phase}=Running`, or a JSON
list of such, which must all hold. Of JSONPath: names, quoted names, indexes, `[*]` and `[?(@.a=="b")]`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from localcloud.kubernetes.provider.wire import Object, get


class BadExpression(ValueError):
    """An expression that cannot be read; the message names it and says what can."""


@dataclass(frozen=True)
class Condition:
    """status.conditions has this type with this status, for the object's current generation."""

    type: str
    status: str


@dataclass(frozen=True)
class JsonPath:
    """The path leads to something, or to `value` if one is given."""

    text: str
    steps: tuple[Step, ...]
    value: str | None


@dataclass(frozen=True)
class Step:
    """One step of a path: a name, an index, every item (`*`), or the items whose `name` holds `index` (a filter)."""

    kind: str  # name, index, all, filter
    name: str = ""
    index: int = 0
    filter: tuple[tuple[str, ...], str | None] = ((), None)


Expression = Condition | JsonPath

_FILTER = re.compile(r"""\?\(\s*@((?:\.[\w\-]+)+)\s*(?:==\s*(?:"([^"]*)"|'([^']*)'|([\w.\-]+)))?\s*\)""")


def parse(text: str) -> list[Expression]:
    """The expressions of an annotation's value. Raises BadExpression."""
    text = text.strip()
    if not text.startswith("["):
        return [_parse_one(text)]
    try:
        items = json.loads(text)
    except ValueError:
        raise BadExpression(f"{text} is not a JSON list") from None
    if not items or not all(isinstance(item, str) for item in items):
        raise BadExpression(f"{text} must be a list of at least one string")
    return [_parse_one(item) for item in items]


def _parse_one(text: str) -> Expression:
    kind, _, rest = text.strip().partition("=")
    if kind == "condition" and rest:
        type_, _, status = rest.partition("=")
        return Condition(type_.strip(), status.strip() or "True")
    if kind == "jsonpath":
        match = re.fullmatch(r"""\s*(['"]?)\{(.*?)\}\1\s*(?:=(.*))?""", rest, re.DOTALL)
        if match:
            value = match[3].strip().strip("'\"") if match[3] is not None else None
            return JsonPath(f"{{{match[2]}}}", tuple(_parse_steps(match[2].strip(), text)), value)
    raise BadExpression(
        f"{text!r} is not an expression; use condition=Ready, condition=Ready=False, jsonpath={{.status.phase}} or "
        "jsonpath={.status.phase}=Running, or a JSON list of these"
    )


def _parse_steps(path: str, whole: str) -> list[Step]:
    steps: list[Step] = []
    rest = path.removeprefix("$")
    while rest:
        if rest.startswith("."):
            match = re.match(r"\.((?:\\.|[^.\[\\])+)", rest)
            if not match:
                raise BadExpression(f"{whole!r}: a name must follow the dot at {rest!r}")
            steps.append(Step("name", re.sub(r"\\(.)", r"\1", match[1])))
        elif rest.startswith("["):
            match = re.match(r"\[((?:\"[^\"]*\"|'[^']*'|[^\]\"'])*)\]", rest)
            if not match:
                raise BadExpression(f"{whole!r}: no ] ends {rest!r}")
            steps.append(_parse_bracket(match[1].strip(), whole))
        else:
            raise BadExpression(f"{whole!r}: a path starts with a dot, like {{.status.phase}}; got {rest!r}")
        rest = rest[match.end() :]
    if not steps:
        raise BadExpression(f"{whole!r}: the path is empty")
    return steps


def _parse_bracket(inner: str, whole: str) -> Step:
    if inner == "*":
        return Step("all")
    if re.fullmatch(r"-?\d+", inner):
        return Step("index", index=int(inner))
    if len(inner) > 2 and inner[0] in "'\"" and inner[-1] == inner[0]:
        return Step("name", inner[1:-1])
    match = _FILTER.fullmatch(inner)
    if match:
        value = next((group for group in match.groups()[1:] if group is not None), None)
        return Step("filter", filter=(tuple(match[1][1:].split(".")), value))
    raise BadExpression(f'{whole!r}: [{inner}] is not served; use [0], [*], ["name"] or [?(@.type=="Ready")]')


def missing(expressions: list[Expression], live: Object) -> str:
    """What does not hold yet for `live`, in words; empty when all of it holds."""
    generation = get(live, "metadata", "generation") or 0
    observed = get(live, "status", "observedGeneration")
    if isinstance(observed, int) and observed < generation:
        return f"its controller has seen generation {observed} of {generation}"
    reasons = [_missing_one(expression, live, generation) for expression in expressions]
    return "; ".join(reason for reason in reasons if reason)


def _missing_one(expression: Expression, live: Object, generation: int) -> str:
    if isinstance(expression, Condition):
        for condition in get(live, "status", "conditions") or []:
            if condition.get("type") != expression.type:
                continue
            seen = condition.get("observedGeneration")
            if isinstance(seen, int) and seen < generation:
                return f"condition {expression.type} is of generation {seen}, the object's is {generation}"
            status = str(condition.get("status"))
            if status.lower() == expression.status.lower():
                return ""
            why = ": ".join(text for text in (condition.get("reason"), condition.get("message")) if text)
            return f"condition {expression.type} is {status}" + (f" ({why})" if why else "")
        return f"no condition {expression.type} yet"
    found = evaluate(expression.steps, live)
    if expression.value is None:
        return "" if found else f"nothing at {expression.text} yet"
    if found and all(_text(item) == expression.value for item in found):
        return ""
    have = ", ".join(map(_text, found)) or "nothing"
    return f"{expression.text} is {have}, not yet {expression.value}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def evaluate(steps: tuple[Step, ...], value: Any) -> list[Any]:
    """Everything the path leads to."""
    found = [value]
    for step in steps:
        if step.kind == "name":
            found = [item[step.name] for item in found if isinstance(item, dict) and step.name in item]
        elif step.kind == "index":
            found = [
                item[step.index] for item in found if isinstance(item, list) and -len(item) <= step.index < len(item)
            ]
        else:
            items = [part for item in found for part in _members(item)]
            path, wanted = step.filter
            found = items if step.kind == "all" else [item for item in items if _passes(get(item, *path), wanted)]
    return found


def _members(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _passes(value: Any, wanted: str | None) -> bool:
    return value is not None if wanted is None else value is not None and _text(value) == wanted
