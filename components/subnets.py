"""How a VPC's network is divided, and how many addresses nodes take of it. Plain arithmetic, no cloud."""

from __future__ import annotations

from ipaddress import IPv4Network

AWS_RESERVED = 5  # addresses AWS keeps in every subnet
POD_ADDRESSES = 10  # the VPC CNI's MINIMUM_IP_TARGET, see components/addons.py
NODE_ADDRESSES = POD_ADDRESSES + 2  # and the node's own, and one for a second interface


def shares(cidr: str, zones: int) -> tuple[list[IPv4Network], list[IPv4Network]]:
    """Private and public subnets, one of each per zone.

    The network is cut into 2, 4 or 8 equal shares, at least one more than there are zones. The first shares are the
    private subnets, the last one is cut again for the public ones. So a third zone (of four shares) and a fourth
    (not: that cuts again) can be told apart beforehand: two and three zones divide the network alike.
    """
    bits = zones.bit_length()  # 2^bits > zones
    parts = list(IPv4Network(cidr).subnets(prefixlen_diff=bits))
    public = list(parts[-1].subnets(prefixlen_diff=bits))
    return parts[:zones], public[:zones]


def private_size(cidr: str, zones: int) -> int:
    """Addresses of one zone's private subnet."""
    return IPv4Network(cidr).num_addresses >> zones.bit_length()
