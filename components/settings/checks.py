"""Contradictions between keys: each check names the keys it reads and yields the problems it finds."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from ipaddress import IPv4Network

from components.settings.errors import Problem
from components.settings.model import Settings
from components.subnets import AWS_RESERVED, NODE_ADDRESSES, private_size

Check = Callable[[Settings, str], Iterator[Problem]]
PRIVATE = [IPv4Network(n) for n in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")]
CHECKS: list[tuple[frozenset[str], Check]] = []


def check(*keys: str) -> Callable[[Check], Check]:
    """Register a check that reads these top-level keys; it is left out while one of them is itself wrong."""

    def register(function: Check) -> Check:
        CHECKS.append((frozenset(keys), function))
        return function

    return register


def contradictions(settings: Settings, region: str, broken: set[str]) -> Iterator[Problem]:
    """All contradictions that can be told while the keys `broken` are unusable."""
    for keys, function in CHECKS:
        if not keys & broken:
            yield from function(settings, region)


@check("network")
def zones(settings: Settings, region: str) -> Iterator[Problem]:
    names = settings.network.zones
    if len(names) < 2:
        yield Problem(
            ("network", "zones"),
            f"there is only {len(names)} zone.",
            f"EKS needs two: add another, for example {region}b." if region else "EKS needs two: add another.",
        )
    for index, name in enumerate(names):
        if not (name.startswith(region) and name[len(region) :].isalnum() and name[len(region) :][:1].isalpha()):
            yield Problem(
                ("network", "zones", index),
                f'"{name}" is no availability zone of aws:region {region}.',
                f"Use names such as {region}a.",
            )
    yield from repeated(names, lambda index: ("network", "zones", index), "zone")


@check("network", "access")
def networks_apart(settings: Settings, region: str) -> Iterator[Problem]:
    vpc = IPv4Network(settings.network.cidr)
    for index, cidr in enumerate(settings.access.api_from):
        if IPv4Network(cidr).overlaps(vpc):
            yield Problem(
                ("access", "apiFrom", index),
                f"{cidr} overlaps the VPC's own network {vpc}.",
                "Nodes and pods reach the API inside the VPC anyway: list networks on the internet only.",
            )
    for index, cidr in enumerate(settings.access.api_from):
        if private(IPv4Network(cidr)):
            yield Problem(
                ("access", "apiFrom", index),
                f"{cidr} is a private network, which the internet does not carry.",
                "List the public addresses that your network shows to the internet, for example 203.0.114.7/32.",
            )


@check("network")
def services_apart(settings: Settings, region: str) -> Iterator[Problem]:
    vpc = IPv4Network(settings.network.cidr)
    kubernetes = [IPv4Network("10.100.0.0/16"), IPv4Network("172.20.0.0/16")]
    reserved = IPv4Network("172.17.0.0/16")
    if any(vpc.overlaps(network) for network in kubernetes):
        yield Problem(
            ("network", "cidr"),
            f"{vpc} overlaps {kubernetes[0]} or {kubernetes[1]}, from which EKS takes the addresses of services.",
            "Use another network, for example 10.1.0.0/20.",
        )
    if vpc.overlaps(reserved):
        yield Problem(
            ("network", "cidr"),
            f"{vpc} overlaps {reserved}, which AWS services such as Cloud9 and SageMaker use inside a VPC.",
            "Use another network, for example 10.1.0.0/20.",
        )
    if not private(vpc):
        yield Problem(
            ("network", "cidr"),
            f"{vpc} holds public addresses, and pods could then not reach their owners.",
            "Use a network inside 10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16 or 100.64.0.0/10.",
        )


@check("network", "cluster", "partitions")
def room_for_nodes(settings: Settings, region: str) -> Iterator[Problem]:
    """Every node takes NODE_ADDRESSES of its zone's private subnet; system nodes may all end up in one zone."""
    zone_names = settings.network.zones
    if len(zone_names) < 2:
        return
    room = private_size(settings.network.cidr, len(zone_names)) - AWS_RESERVED
    nodes: Counter[str] = Counter()
    for partition in settings.partitions:
        nodes[partition.zone or zone_names[0]] += partition.nodes.max
    for zone in zone_names:
        total = nodes[zone] + settings.cluster.system_nodes.nodes.max
        if total * NODE_ADDRESSES > room:
            yield Problem(
                ("network", "cidr"),
                f"{settings.network.cidr} gives zone {zone} {room} addresses, and its {total} nodes may take "
                f"{total * NODE_ADDRESSES} ({NODE_ADDRESSES} each, for the node and its pods).",
                "Use a larger network (up to /16; each step up has twice as many), lower nodes.max, "
                "or move partitions to other zones.",
            )


@check("partitions")
def names_once(settings: Settings, region: str) -> Iterator[Problem]:
    names = [partition.name for partition in settings.partitions]
    yield from repeated(names, lambda index: ("partitions", index, "name"), "partition")


@check("partitions")
def one_default(settings: Settings, region: str) -> Iterator[Problem]:
    defaults = [(i, p.name) for i, p in enumerate(settings.partitions) if p.slurm.default]
    for index, _name in defaults[1:]:
        yield Problem(
            ("partitions", index, "slurm", "default"),
            f'"{defaults[0][1]}" is the default partition already.',
            "Slurm has one: set default: true on one partition only.",
        )


@check("network", "partitions")
def zones_of_partitions(settings: Settings, region: str) -> Iterator[Problem]:
    known = settings.network.zones
    for index, partition in enumerate(settings.partitions):
        if partition.zone is not None and partition.zone not in known:
            yield Problem(
                ("partitions", index, "zone"),
                f'zone "{partition.zone}" is not one of network.zones.',
                f"Use one of {', '.join(known)}, or add it to network.zones.",
            )


@check("users")
def users_apart(settings: Settings, region: str) -> Iterator[Problem]:
    yield from repeated([user.name for user in settings.users], lambda index: ("users", index, "name"), "user")
    by_uid: defaultdict[int, list[str]] = defaultdict(list)
    for index, user in enumerate(settings.users):
        if by_uid[user.uid]:
            yield Problem(
                ("users", index, "uid"),
                f'{user.uid} is the uid of "{by_uid[user.uid][0]}" already.',
                "Give each user a uid of their own: who shares one shares all files and jobs.",
            )
        by_uid[user.uid].append(user.name)


def private(network: IPv4Network) -> bool:
    """Whether all of a network is for private use (RFC 1918, RFC 6598)."""
    return any(network.subnet_of(block) for block in PRIVATE)


def repeated(
    names: list[str] | tuple[str, ...], key: Callable[[int], tuple[str | int, ...]], what: str
) -> Iterator[Problem]:
    """A problem for each name that stands in the list a second time."""
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name in seen:
            yield Problem(key(index), f'{what} "{name}" is in the list already.', "Remove one of the two or rename it.")
        seen.add(name)


def renumbered(problem: Problem, kept: Mapping[str, list[int]]) -> Problem:
    """The same problem with the indexes that list entries have in the stack's file, where broken ones were left out."""
    if len(problem.key) > 1 and isinstance(index := problem.key[1], int) and problem.key[0] in kept:
        key = (problem.key[0], kept[str(problem.key[0])][index], *problem.key[2:])
        return Problem(key, problem.wrong, problem.fix)
    return problem
