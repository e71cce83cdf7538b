"""Names of resources (URNs), references to providers, and the names a resource may have had before (aliases)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

STACK_TYPE = "pulumi:pulumi:Stack"
PROVIDER_PREFIX = "pulumi:providers:"


class Urn(NamedTuple):
    """urn:pulumi:<stack>::<project>::<types from the outermost parent, joined by $>::<name>"""

    stack: str
    project: str
    qualified_type: str
    name: str

    @property
    def type(self) -> str:
        return self.qualified_type.rpartition("$")[2]

    def __str__(self) -> str:
        return f"urn:pulumi:{self.stack}::{self.project}::{self.qualified_type}::{self.name}"


def parse(urn: str) -> Urn:
    prefix, _, rest = urn.partition("urn:pulumi:")
    parts = rest.split("::", 3)
    if prefix or len(parts) != 4:
        raise ValueError(f"{urn!r} is no URN: urn:pulumi:<stack>::<project>::<type>::<name> is expected")
    return Urn(*parts)


def make(stack: str, project: str, parent: str, type_: str, name: str) -> str:
    """The URN of a resource; a parent that is the stack leaves no trace in it."""
    if parent:
        above = parse(parent).qualified_type
        if above != STACK_TYPE:
            type_ = f"{above}${type_}"
    return str(Urn(stack, project, type_, name))


def package_of(type_: str) -> str:
    """The package that serves a type or a function: `aws` of `aws:ec2/vpc:Vpc`."""
    return type_.removeprefix(PROVIDER_PREFIX) if type_.startswith(PROVIDER_PREFIX) else type_.partition(":")[0]


def is_provider(type_: str) -> bool:
    return type_.startswith(PROVIDER_PREFIX)


def is_default_provider(urn: str) -> bool:
    name = parse(urn)
    return is_provider(name.type) and (name.name == "default" or name.name.startswith("default_"))


def short_type(type_: str) -> str:
    """`aws:ec2:Vpc` of `aws:ec2/vpc:Vpc`, as the CLI shows it; `kubernetes:core/v1:Pod` stays as it is."""
    package, _, rest = type_.partition(":")
    module, _, name = rest.partition(":")
    folder, _, file = module.partition("/")
    return f"{package}:{folder}:{name}" if file and file.lower() == name.lower() else type_


def split_reference(reference: str) -> tuple[str, str]:
    """URN and id of a provider from the reference that a resource keeps."""
    urn, _, id_ = reference.rpartition("::")
    return urn, id_


@dataclass(frozen=True)
class Alias:
    """An earlier name: a whole URN, or the parts that were different."""

    urn: str = ""
    name: str = ""
    type: str = ""
    stack: str = ""
    project: str = ""
    parent: str = ""
    no_parent: bool = False


def earlier_urns(urn: str, parent: str, aliases: Iterable[Alias], renamed: Mapping[str, str]) -> list[str]:
    """Every URN that the resource may have had, likeliest first.

    renamed: the URN that a resource of this run was found under, by its URN of now. A parent found under another
    name hands that on to its children; a child named after its parent changes its name with it.
    """
    now = parse(urn)
    own = [_collapse(now, parent, alias, renamed) for alias in aliases]
    inherited: list[str] = []
    if parent in renamed:
        parent_name, parent_then = parse(parent).name, renamed[parent]
        for type_, name in [(now.type, now.name), *((parse(u).type, parse(u).name) for u in own)]:
            if name.startswith(parent_name):
                name = parse(parent_then).name + name[len(parent_name) :]
            inherited.append(make(now.stack, now.project, parent_then, type_, name))
    return [candidate for candidate in dict.fromkeys([*own, *inherited]) if candidate != urn]


def _collapse(now: Urn, parent: str, alias: Alias, renamed: Mapping[str, str]) -> str:
    if alias.urn:
        return alias.urn
    above = "" if alias.no_parent else renamed.get(alias.parent, alias.parent) if alias.parent else parent
    return make(alias.stack or now.stack, alias.project or now.project, above, alias.type or now.type,
                alias.name or now.name)  # fmt: skip
