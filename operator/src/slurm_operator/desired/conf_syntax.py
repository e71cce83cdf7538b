"""Reading and checking slurm.conf text, before slurmctld sees it.

`slurmctld -D` ends at a bad configuration, and a reconfigure answers "done" before it does. So nothing reaches the
ConfigMap that has a fault which can be seen here: a line that is no parameter, an unknown name, a number that is none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches

from slurm_operator.desired import slurm_keys


class BadConf(ValueError):
    """Configuration that Slurm would refuse; the message tells where, what and what is allowed."""


@dataclass(frozen=True)
class Setting:
    """`key=value` as written; the value keeps its quotes."""

    key: str
    value: str

    @property
    def name(self) -> str:
        return self.key.lower()

    def __str__(self) -> str:
        return f"{self.key}={self.value}"


@dataclass(frozen=True)
class Line:
    """One logical line: settings, or a raw one (`Include file`). `number` counts from 1 in the text it came from."""

    number: int
    settings: tuple[Setting, ...]
    raw: str = ""


_SETTING = re.compile(r'([A-Za-z][A-Za-z0-9_]*)\s*([-+*/]?=)\s*("[^"]*"|[^\s"]+(?:"[^"]*"[^\s"]*)*|)(?:\s+|$)')
_INCLUDE = re.compile(r"include\s+\S+$", re.IGNORECASE)
_NUMBER = re.compile(r"(0x[0-9a-f]+|\d+[kmgtp]?|infinite|unlimited)$", re.IGNORECASE)
_BOOLEAN = re.compile(r"(yes|no|up|down|true|false|t|f|y|n|1|0)$", re.IGNORECASE)


def parse(text: str, where: str) -> list[Line]:
    """Logical lines without comments. Raises BadConf with `where` and the line's number."""
    return [_parse_line(number, line, where) for number, line in _logical(text)]


def _logical(text: str) -> Iterator[tuple[int, str]]:
    """Lines without comments and blanks; one that ends in a backslash goes on in the next."""
    number, held = 0, ""
    for current, line in enumerate(text.splitlines(), 1):
        number = number if held else current
        content = held + line.split("#", 1)[0].rstrip()
        held = ""
        if content.endswith("\\"):
            held = content[:-1]
        elif content.strip():
            yield number, content.strip()
    if held.strip():
        yield number, held.strip()


def _parse_line(number: int, line: str, where: str) -> Line:
    if _INCLUDE.match(line):
        return Line(number, (), line)
    settings, position = [], 0
    while position < len(line):
        match = _SETTING.match(line, position)
        if match is None:
            raise BadConf(f"{where}, line {number}: {line[position:]!r} is no Key=Value")
        if not match[3]:
            raise BadConf(f"{where}, line {number}: {match[1]} has no value")
        settings.append(Setting(match[1], match[3]))
        position = match.end()
    return Line(number, tuple(settings))


def check(lines: Iterable[Line], where: str) -> None:
    """Raises BadConf at the first name or value that slurmctld would not take."""
    for line in lines:
        if not line.settings:
            continue
        place = f"{where}, line {line.number}"
        first = line.settings[0].name
        if first == "partitionname":
            check_partition(line.settings[1:], place)
        elif first == "nodename":
            check_names(line.settings[1:], slurm_keys.NODE_KNOWN, place, "node parameter")
        elif first not in slurm_keys.LINES:
            check_names(line.settings, slurm_keys.KNOWN - slurm_keys.LINES, place, "parameter of slurm.conf")
            _check_values(line.settings, slurm_keys.NUMBERS, slurm_keys.BOOLEANS, place)


def check_partition(settings: Iterable[Setting], place: str) -> None:
    settings = tuple(settings)
    check_names(settings, slurm_keys.PARTITION_KNOWN, place, "partition parameter")
    _check_values(settings, slurm_keys.PARTITION_NUMBERS, slurm_keys.PARTITION_BOOLEANS, place)


def check_node(settings: Iterable[Setting], place: str) -> None:
    check_names(settings, slurm_keys.NODE_KNOWN, place, "node parameter")


def check_names(settings: Iterable[Setting], known: frozenset[str], place: str, what: str) -> None:
    """Raises BadConf at the first setting whose lower-case name is not in `known`."""
    for setting in settings:
        if setting.name not in known:
            close = get_close_matches(setting.name, known, 1)
            hint = f"; did you mean {slurm_keys.spelled(close[0])}?" if close else ""
            raise BadConf(f"{place}: {setting.key} is no {what} of Slurm 26.05{hint}")


def _check_values(settings: Iterable[Setting], numbers: frozenset[str], booleans: frozenset[str], place: str) -> None:
    for setting in settings:
        value = setting.value.strip('"')
        if setting.name in numbers and not _NUMBER.match(value):
            raise BadConf(f"{place}: {setting.key}={setting.value}: a number, UNLIMITED or INFINITE is wanted")
        if setting.name in booleans and not _BOOLEAN.match(value):
            raise BadConf(f"{place}: {setting.key}={setting.value}: YES or NO is wanted")
