"""Property paths such as `tags.Name`, `rules[0].port`, `spec["a.b"]` and `rules[*]`, as resource options use them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from localcloud.engine.errors import StepError
from localcloud.engine.values import Properties, is_secret

Path = tuple[str | int, ...]

_STEP = re.compile(r'\.?([^.\[\]"]+)|\[(\d+)\]|\[(\*)\]|\["((?:[^"\\]|\\.)*)"\]')


def parse(text: str) -> Path:
    """The keys and positions a path names; `*` stands for all. Raises StepError on a text that is no path."""
    steps: list[str | int] = []
    position = 0
    while position < len(text):
        match = _STEP.match(text, position)
        if match is None:
            raise StepError(f'{text!r} is no property path: write it like tags.Name, rules[0].port or spec["a.b"]')
        name, index, star, quoted = match.groups()
        steps.append(int(index) if index else star or name or re.sub(r"\\(.)", r"\1", quoted))
        position = match.end()
    return tuple(steps)


def covers(patterns: Iterable[str], changed: str) -> bool:
    """Whether a change at the path falls under one of the patterns (or lies above one)."""
    there = parse(changed)
    return any(all(a in ("*", b) for a, b in zip(parse(p), there, strict=False)) for p in patterns)


def reset(new: Properties, old: Properties, paths: Iterable[str]) -> Properties:
    """New properties with the values of old at the paths (and nothing where old has nothing)."""
    result: Any = new
    for text in paths:
        pattern = parse(text)
        for path in sorted({*_expand(result, pattern), *_expand(old, pattern)}, key=repr):
            result = _put(result, path, *_get(old, path))
    return dict(result)


def _inside(value: Any) -> Any:
    return value["value"] if is_secret(value) else value


def _children(value: Any) -> Iterator[tuple[str | int, Any]]:
    value = _inside(value)
    if isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, list):
        yield from enumerate(value)


def _expand(value: Any, pattern: Path) -> Iterator[Path]:
    if not pattern:
        yield ()
        return
    for key, child in _children(value):
        if pattern[0] in ("*", key):
            for rest in _expand(child, pattern[1:]):
                yield (key, *rest)


def _get(value: Any, path: Path) -> tuple[Any, bool]:
    for step in path:
        found = dict(_children(value))
        if step not in found:
            return None, False
        value = found[step]
    return value, True


def _put(value: Any, path: Path, item: Any, present: bool) -> Any:
    if not path:
        return item
    if is_secret(value):
        return value | {"value": _put(value["value"], path, item, present)}
    step, rest = path[0], path[1:]
    if isinstance(value, dict) and isinstance(step, str):
        if not rest and not present:
            return {key: child for key, child in value.items() if key != step}
        if rest and step not in value:
            return value
        return value | {step: _put(value.get(step), rest, item, present)}
    if isinstance(value, list) and isinstance(step, int):
        if step < len(value):
            if not rest and not present:
                return value[:step] + value[step + 1 :]
            return [*value[:step], _put(value[step], rest, item, present), *value[step + 1 :]]
        if step == len(value) and not rest and present:
            return [*value, item]
    return value
