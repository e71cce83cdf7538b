"""Slurm's host lists: `gpu-[0-2,07],login` and back."""

from __future__ import annotations

import re
from collections.abc import Iterable

LIMIT = 100_000  # names; a longer list is a mistake, and expanding it would eat the memory


def expand(text: str) -> list[str]:
    """Names in a host list, in order. Raises ValueError on unbalanced brackets, bad ranges and absurd lengths."""
    names: list[str] = []
    for part in _split(text):
        names += _expand_one(part)
        if len(names) > LIMIT:
            raise ValueError(f"host list {text[:60]!r} has more than {LIMIT} names")
    return names


def compress(names: Iterable[str]) -> str:
    """A host list of the names: sorted, numbers folded into ranges, leading zeros kept."""
    plain: list[str] = []
    groups: dict[tuple[str, int], list[int]] = {}
    for name in sorted(set(names)):
        match = re.fullmatch(r"(.*?)(\d+)", name)
        if match is None or len(match[2]) > 18:
            plain.append(name)
            continue
        padded = len(match[2]) if match[2].startswith("0") and len(match[2]) > 1 else 0
        groups.setdefault((match[1], padded), []).append(int(match[2]))
    parts = plain
    for (prefix, width), numbers in sorted(groups.items()):
        ranges = _ranges(sorted(numbers), width)
        parts.append(f"{prefix}{ranges}" if ranges.isdigit() else f"{prefix}[{ranges}]")
    return ",".join(parts)


def _split(text: str) -> Iterable[str]:
    """Parts between the commas that are outside of brackets."""
    depth, begin = 0, 0
    for at, char in enumerate(text):
        depth += (char == "[") - (char == "]")
        if depth not in (0, 1):
            raise ValueError(f"host list {text[:60]!r}: unbalanced brackets")
        if char == "," and depth == 0:
            if text[begin:at]:
                yield text[begin:at]
            begin = at + 1
    if depth:
        raise ValueError(f"host list {text[:60]!r}: unbalanced brackets")
    if text[begin:]:
        yield text[begin:]


def _expand_one(part: str) -> list[str]:
    match = re.fullmatch(r"([^\[\]]*)\[([^\[\]]+)\](.*)", part)
    if match is None:
        return [part]
    prefix, ranges, rest = match.groups()
    tails = _expand_one(rest)
    names: list[str] = []
    for one in ranges.split(","):
        low, dash, high = one.partition("-")
        if not low.isdigit() or (dash and not high.isdigit()):
            raise ValueError(f"host list {part[:60]!r}: {one!r} is not a range of numbers")
        first, last = int(low), int(high or low)
        if last < first or (last - first + 1) * len(tails) > LIMIT:
            raise ValueError(f"host list {part[:60]!r}: range {one!r} is empty or too long")
        names += [f"{prefix}{number:0{len(low)}d}{tail}" for number in range(first, last + 1) for tail in tails]
    return names


def _ranges(numbers: list[int], width: int) -> str:
    parts: list[str] = []
    begin = end = numbers[0]
    for number in [*numbers[1:], None]:
        if number is not None and number == end + 1:
            end = number
            continue
        parts.append(f"{begin:0{width}d}" if begin == end else f"{begin:0{width}d}-{end:0{width}d}")
        if number is not None:
            begin = end = number
    return ",".join(parts)
