"""The network of an instance: one bridge on the host, one veth pair per node, and three routes.

No packet filter rule and no forwarding on the host. Pods of a node are reached through the bridge directly: the
node answers ARP requests for them (proxy_arp), so a node that comes or goes changes no route anywhere.
The host reaches services through one running node, whose kube-proxy translates their addresses.
"""

from __future__ import annotations

import json
from typing import Any

from localcloud.kubernetes.commands import run
from localcloud.paths import Instance


def _links() -> dict[str, dict[str, Any]]:
    return {link["ifname"].partition("@")[0]: link for link in json.loads(run(["ip", "-j", "link", "show"]))}


def ensure_bridge(inst: Instance) -> None:
    """The bridge with the host's address, and the route to the pods of all nodes."""
    if inst.bridge not in _links():
        run(["ip", "link", "add", inst.bridge, "type", "bridge"])
    address = f"{inst.host_ip}/{inst.node_network.prefixlen}"
    # A bridge takes the smallest address of its ports as its own, so it would change with each node: fixed here.
    run(["ip", "link", "set", inst.bridge, "address", hardware_address(inst, 1), "up"])
    run(["ip", "address", "replace", address, "dev", inst.bridge])
    run(["ip", "route", "replace", str(inst.pod_network), "dev", inst.bridge])


def hardware_address(inst: Instance, last: int) -> str:
    """A locally administered MAC address for 10.N.0.<last>: the same after a restart, so caches stay right."""
    return f"02:00:0a:{inst.net:02x}:00:{last:02x}"


def veth_name(inst: Instance, index: int) -> str:
    """Name of the host's end of a node's cable (a link's name has at most 15 characters)."""
    return f"{inst.bridge}n{index}"


def connect_node(inst: Instance, index: int, pid: int) -> None:
    """Give the network namespace of process `pid` the address of node `index`, and connect it to the bridge."""
    cable = veth_name(inst, index)
    disconnect_node(inst, index)
    run(["ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", str(pid)])
    node_ip = inst.node_ip(index)
    commands = [
        f"link set eth0 address {hardware_address(inst, 10 + index)}",
        "link set lo up",
        f"address add {node_ip}/{inst.node_network.prefixlen} dev eth0",
        "link set eth0 up",
        f"route add {inst.pod_network} dev eth0 src {node_ip}",
        f"route add default via {inst.host_ip}",
    ]
    # An ARP answer on behalf of a pod is delayed by up to 0.8 s unless told otherwise.
    script = "ip -batch - && echo 0 >/proc/sys/net/ipv4/neigh/eth0/proxy_delay"
    run(["nsenter", f"--net=/proc/{pid}/ns/net", "sh", "-c", script], stdin="\n".join(commands) + "\n")
    # Last, because this is how is_connected() knows that nothing is missing.
    run(["ip", "link", "set", cable, "master", inst.bridge, "up"])


def is_connected(inst: Instance, index: int) -> bool:
    """Whether a node's cable is there and plugged into the bridge."""
    link = _links().get(veth_name(inst, index))
    return link is not None and link.get("master") == inst.bridge


def disconnect_node(inst: Instance, index: int) -> None:
    """Remove a node's cable; no error if there is none."""
    run(["ip", "link", "delete", veth_name(inst, index)], check=False)


def route_services(inst: Instance, via_index: int | None) -> None:
    """Lead the host's traffic to services through a node; None removes the route."""
    if via_index is None:
        run(["ip", "route", "delete", str(inst.service_network)], check=False)
    else:
        run(["ip", "route", "replace", str(inst.service_network), "via", str(inst.node_ip(via_index))])


def remove(inst: Instance) -> None:
    """Remove the bridge, all cables, and with them the routes."""
    for name in links_of(inst):
        run(["ip", "link", "delete", name], check=False)


def links_of(inst: Instance) -> list[str]:
    """Links of this instance that exist."""
    return [name for name in _links() if name == inst.bridge or _is_cable(inst, name)]


def _is_cable(inst: Instance, name: str) -> bool:
    prefix, _, index = name.rpartition("n")
    return prefix == inst.bridge and index.isdigit()


def routes_of(inst: Instance) -> list[str]:
    """Routes of the host into the instance's networks, as text."""
    lines = run(["ip", "-o", "route", "show", "table", "all"]).splitlines()
    return [line.strip() for line in lines if f" dev {inst.bridge} " in f"{line} "]
