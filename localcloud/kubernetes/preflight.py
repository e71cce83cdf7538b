"""What must be true of a machine before the local cluster can start on it; checked before anything is changed."""

from __future__ import annotations

import ipaddress
import json
import os
import platform
import shutil
import socket
import struct
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from localcloud import tools
from localcloud.kubernetes import cgroups, inotify
from localcloud.kubernetes.archive import ARCHITECTURES
from localcloud.kubernetes.cluster import external_kubeconfig
from localcloud.kubernetes.commands import clean_environment, run
from localcloud.kubernetes.errors import ClusterError
from localcloud.kubernetes.processes import describe
from localcloud.paths import Instance, cache_dir, instance

# Bits of linux/capability.h: what nodes need themselves, and what containers are given by default.
CAPABILITIES = {
    "CAP_CHOWN": 0,
    "CAP_DAC_OVERRIDE": 1,
    "CAP_FOWNER": 3,
    "CAP_KILL": 5,
    "CAP_SETGID": 6,
    "CAP_SETUID": 7,
    "CAP_SETPCAP": 8,
    "CAP_NET_BIND_SERVICE": 10,
    "CAP_NET_ADMIN": 12,
    "CAP_NET_RAW": 13,
    "CAP_SYS_CHROOT": 18,
    "CAP_SYS_PTRACE": 19,
    "CAP_SYS_ADMIN": 21,
    "CAP_MKNOD": 27,
    "CAP_SETFCAP": 31,
}

GIB = 2**30
STATE_GIB = 2.0
"""etcd takes 0.2 GiB, a node 0.05, and pulled images what they are large: 1 GiB for Slurm's on three nodes."""
CACHE_GIB = 3.0
"""Tools 0.2 GiB, the nodes' image store 0.3, image layers and registry 2."""
MEMORY_GIB = 2.0
USUAL_NODES = 3


def problems(inst: Instance | None = None) -> list[str]:
    """Everything that would keep the local cluster from starting: what, and what to do; empty if it can start.

    Takes a tenth of a second; nothing is changed.
    """
    inst = inst or instance()
    external = external_kubeconfig(inst)
    if external and not external.exists():
        return [f"SLIPWAY_KUBECONFIG={external}: there is no such file"]
    basic = [*_platform_problems(), *capability_problems(Path("/proc/self/status").read_text())]
    if basic:
        return basic  # everything else would fail because of these
    checks: list[Callable[[], Iterable[str]]] = [
        _cgroup_problems,
        lambda: _address_problems(inst),
        lambda: port_problems(inst, _listeners()),
        lambda: _space_problems(inst),
        _network_problems,
    ]
    if not external:
        checks += [
            lambda: _kernel_problems(inst),
            lambda: _place_problems(inst),
            lambda: _memory_problems(inst),
            lambda: _inotify_problems(inst),
        ]
    return [problem for check in checks for problem in check()]


def _platform_problems() -> list[str]:
    if platform.system() != "Linux" or platform.machine() not in ARCHITECTURES:
        return [
            f"this machine is {platform.system()} on {platform.machine()}; Linux on "
            f"{' or '.join(ARCHITECTURES)} is needed. Next: use a virtual machine with it"
        ]
    if os.geteuid() != 0:
        return ["nodes are made of namespaces, which only root may set up. Next: repeat as root (sudo make up)"]
    return []


def capability_problems(status: str) -> list[str]:
    """Capabilities that are missing according to the text of /proc/self/status."""
    line = next(line for line in status.splitlines() if line.startswith("CapEff:"))
    have = int(line.split()[1], 16)
    missing = [name for name, bit in CAPABILITIES.items() if not have >> bit & 1]
    if not missing:
        return []
    return [
        f"root lacks {', '.join(missing)} here, as in a container. "
        "Next: repeat on the machine itself, or in a privileged container (docker run --privileged)"
    ]


def _cgroup_problems() -> list[str]:
    try:
        layout = cgroups.layout()
    except ClusterError as error:
        return [str(error)]
    found = []
    needed = cgroups.NEEDED_CONTROLLERS_V2 if layout.unified else cgroups.NEEDED_CONTROLLERS
    missing = [name for name in needed if name not in layout.controllers]
    if missing:
        kind = "cgroup2" if layout.unified else "cgroup v1"
        found.append(
            f"cgroup controllers {', '.join(missing)} are missing ({kind} is mounted at /sys/fs/cgroup). "
            "Next: enable them on the kernel's command line (cgroup_enable=…), or mount them there"
        )
    closed = [str(path) for path in (layout.tracking, *layout.v1) if not os.access(path, os.W_OK)]
    if closed:
        found.append(
            f"cgroups cannot be made in {', '.join(closed)}: mounted read-only. "
            "Next: mount -o remount,rw it, or use a privileged container with --cgroupns=host"
        )
    return found


# Each line tries what a node will do, in namespaces that end with it.
_PROBE = """
mount -t proc proc /proc || { echo "proc cannot be mounted in a new pid namespace"; exit; }
mount -t sysfs sysfs /sys || { echo "sysfs cannot be mounted in a new network namespace"; exit; }
mkdir "$1/lower" "$1/upper" "$1/work" "$1/merged"
mount -t overlay -o lowerdir="$1/lower",upperdir="$1/upper",workdir="$1/work" overlay "$1/merged" ||
  echo "overlayfs cannot be mounted with its upper layer in $2 (on overlay itself, as in a container, it cannot)"
ip link add probe-b type bridge || echo "the kernel makes no network bridge (module bridge)"
ip link add probe-v type veth peer name probe-w || echo "the kernel makes no veth pair (module veth)"
if command -v nft >/dev/null; then
  nft add table ip probe || echo "the kernel has no nftables (module nf_tables), which kube-proxy needs"
fi
"""


def _kernel_problems(inst: Instance) -> list[str]:
    if shutil.which("ip") is None or shutil.which("unshare") is None:
        return []  # not installed yet: found out after the tools have been
    parent = _existing(inst.state)
    namespaces = ("--mount", "--uts", "--ipc", "--net", "--pid", "--fork")
    with tempfile.TemporaryDirectory(prefix=".slipway-probe-", dir=parent) as scratch:
        done = subprocess.run(
            ["unshare", *namespaces, "sh", "-c", _PROBE, "probe", scratch, str(parent)],
            capture_output=True,
            text=True,
            env=clean_environment(),
            check=False,
        )
    if done.returncode and not done.stdout:
        return [f"namespaces cannot be made: {done.stderr.strip()}. Next: allow them, or use another machine"]
    return [
        f"{line}. Next: load what is missing, or set SLIPWAY_STATE to another disk" for line in done.stdout.splitlines()
    ]


def _place_problems(inst: Instance) -> list[str]:
    """Nodes have a /mnt of their own, with the shared home directories: what they need must not be hidden below it."""
    places = {"SLIPWAY_STATE": inst.state, "SLIPWAY_CACHE": cache_dir()}
    return [
        f"{name}={place} is below /mnt, where nodes mount the shared home directories; choose another, as below /var"
        for name, place in places.items()
        if place.resolve().is_relative_to("/mnt")
    ]


def _address_problems(inst: Instance) -> list[str]:
    routes = json.loads(run(["ip", "-j", "-4", "route", "show"]))
    foreign = [(route["dst"], route.get("dev", "?")) for route in routes if route.get("dev") != inst.bridge]
    return overlaps(inst, foreign)


def overlaps(inst: Instance, routes: Iterable[tuple[str, str]]) -> list[str]:
    """Routes (destination, device) of others that lead into the instance's networks."""
    found = []
    for destination, device in routes:
        if destination == "default":
            continue
        other = ipaddress.IPv4Network(destination, strict=False)
        for network in (inst.node_network, inst.pod_network, inst.service_network):
            if network.overlaps(other) and other.prefixlen > 0:
                found.append(
                    f"network {network} is in use: this machine has a route to {destination} through {device}. "
                    f"Next: set SLIPWAY_NET to another number than {inst.net} (a multiple of 3 from 60 to 240)"
                )
                break
    return found


@dataclass(frozen=True)
class Listener:
    """A TCP socket that waits for connections. pid: None if its process cannot be found."""

    address: str
    port: int
    pid: int | None


def parse_listeners(table: str) -> list[tuple[str, int, str]]:
    """Address, port and inode of the listening sockets in the text of /proc/net/tcp."""
    found = []
    for line in table.splitlines()[1:]:
        words = line.split()
        if words[3] == "0A":  # TCP_LISTEN
            address, _, port = words[1].partition(":")
            found.append((socket.inet_ntoa(struct.pack("<I", int(address, 16))), int(port, 16), words[9]))
    return found


def _listeners() -> list[Listener]:
    sockets = parse_listeners(Path("/proc/net/tcp").read_text())
    # A socket that listens on all addresses of both families is in the other table; only its port matters here.
    for line in Path("/proc/net/tcp6").read_text().splitlines()[1:]:
        words = line.split()
        if words[3] == "0A" and set(words[1].partition(":")[0]) == {"0"}:
            sockets.append(("0.0.0.0", int(words[1].partition(":")[2], 16), words[9]))  # noqa: S104
    owners: dict[str, int] = {}
    for entry in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            target = str(entry.readlink())
        except OSError:
            continue
        if target.startswith("socket:["):
            owners[target[8:-1]] = int(entry.parts[2])
    return [Listener(address, port, owners.get(inode)) for address, port, inode in sockets]


def port_problems(inst: Instance, listeners: Iterable[Listener]) -> list[str]:
    """Ports of the instance on which somebody else listens."""
    needed = {
        ("127.0.0.1", inst.etcd_port): "etcd",
        ("127.0.0.1", inst.etcd_peer_port): "etcd",
        ("127.0.0.1", inst.aws_port): "the AWS stand-in",
        (str(inst.host_ip), 6443): "the API server",
        (str(inst.host_ip), 5000): "the image registry",
    }
    found = []
    for (address, port), purpose in needed.items():
        for listener in listeners:
            if listener.port != port or listener.address not in (address, "0.0.0.0"):  # noqa: S104
                continue
            if listener.pid is not None and cgroups.is_member(listener.pid, inst.cgroup):
                continue
            who = describe(listener.pid) if listener.pid else "a process that cannot be seen from here"
            found.append(
                f"port {port} of {listener.address}, which {purpose} needs, is in use by {who}. "
                f"Next: end it, or set SLIPWAY_NET to another number than {inst.net}"
            )
    return found


def _existing(path: Path) -> Path:
    """The path itself or its closest parent that exists."""
    return next(candidate for candidate in (path, *path.parents) if candidate.exists())


def _space_problems(inst: Instance) -> list[str]:
    cached = tools.installed() is not None
    needs = [
        (inst.state, STATE_GIB if not inst.kubeconfig.exists() else 0.5),
        (cache_dir(), 0.5 if cached else CACHE_GIB),
    ]
    by_disk: dict[int, list[tuple[Path, float]]] = {}
    for path, gib in needs:
        by_disk.setdefault(_existing(path).stat().st_dev, []).append((path, gib))
    found = []
    for uses in by_disk.values():
        free = shutil.disk_usage(_existing(uses[0][0])).free / GIB
        needed = sum(gib for _, gib in uses)
        if free < needed:
            where = " and ".join(f"{path} ({gib:.1f} GiB)" for path, gib in uses)
            found.append(
                f"{free:.1f} GiB are free on the disk of {where}, and {needed:.1f} GiB are needed. "
                "Next: free some, or set SLIPWAY_STATE or SLIPWAY_CACHE to a directory on another disk"
            )
    return found


def _memory_problems(inst: Instance) -> list[str]:
    if cgroups.group_path(inst.cgroup).exists() and cgroups.pids(inst.cgroup):
        return []  # it runs already
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")) * 1024 / GIB
    if free >= MEMORY_GIB:
        return []
    return [f"{free:.1f} GiB of memory are available, and {MEMORY_GIB:.0f} GiB are needed. Next: end other programs"]


def _inotify_problems(inst: Instance) -> list[str]:
    if cgroups.group_path(inst.cgroup).exists() and cgroups.pids(inst.cgroup):
        return []
    needed = inotify.CONTROL_PLANE + USUAL_NODES * inotify.PER_NODE
    return [said] if (said := inotify.problem(needed)) else []


def _network_problems() -> list[str]:
    """Whether what has to be downloaded can be: asked only when something has to."""
    found = []
    if packages := tools.missing_packages():
        found += _unreachable(tools.package_source(), f"Debian packages have to be installed ({' '.join(packages)})")
    if tools.installed() is None:
        found += _unreachable(tools.module_source(), "the Kubernetes programs have to be built from Go modules")
    return found


def _unreachable(url: str | None, why: str) -> list[str]:
    if url is None or not url.startswith(("http://", "https://")):
        return []
    try:
        urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=5).close()  # noqa: S310  (http only)
    except urllib.error.HTTPError:
        pass  # an answer, whatever it says
    except (OSError, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        return [
            f"{why}, and their source {url} does not answer: {reason}. "
            "Next: check the network and its proxy settings; once done, no network is needed any more"
        ]
    return []
