"""Control groups: where every process of an instance is found again, and below which kubelets put pods.

The kernel keeps the book: each daemon is started inside a group of its own in the cgroup2 hierarchy, its children
stay there, and a reboot empties it. So no process id is stored anywhere, and none can be mistaken after reuse.

Two layouts are known. "Hybrid": controllers are mounted as cgroup v1, and an additional cgroup2 hierarchy without
controllers (systemd mounts it at /sys/fs/cgroup/unified) tracks processes. "Unified": one cgroup2 hierarchy for all.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from localcloud.kubernetes.errors import ClusterError

NEEDED_CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "pids")
"""What the kubelet and runc use on cgroup v1. On cgroup2: cpu, cpuset, memory, pids."""
NEEDED_CONTROLLERS_V2 = ("cpu", "cpuset", "memory", "pids")


@dataclass(frozen=True)
class Layout:
    """Mount points of the cgroup hierarchies of this machine."""

    tracking: Path
    """The cgroup2 hierarchy, in which processes are tracked."""
    v1: tuple[Path, ...]
    """Hierarchies of cgroup v1; empty on a machine with the unified layout."""
    controllers: frozenset[str]

    @property
    def unified(self) -> bool:
        return not self.v1


def parse_layout(mountinfo: str, v2_controllers: str = "") -> Layout:
    """Layout from the text of /proc/self/mountinfo; `v2_controllers` is the root's cgroup.controllers.

    Raises ClusterError if no cgroup2 hierarchy is mounted.
    """
    tracking: Path | None = None
    v1: list[Path] = []
    controllers: set[str] = set()
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        where = Path(left.split()[4])
        if not where.is_relative_to("/sys/fs/cgroup"):
            continue
        if kind == "cgroup2":
            tracking = where
        elif kind == "cgroup":
            v1.append(where)
            controllers.update(option for option in options.split(",") if option in NEEDED_CONTROLLERS)
    if tracking is None:
        raise ClusterError(
            "no cgroup2 hierarchy is mounted below /sys/fs/cgroup. "
            "Next: mkdir -p /sys/fs/cgroup/unified && mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified"
        )
    if not v1:
        controllers = set(v2_controllers.split())
    return Layout(tracking=tracking, v1=tuple(v1), controllers=frozenset(controllers))


@cache
def layout() -> Layout:
    """Layout of this machine."""
    text = Path("/proc/self/mountinfo").read_text()
    root = Path("/sys/fs/cgroup/cgroup.controllers")
    return parse_layout(text, root.read_text() if root.exists() else "")


def group_path(group: str) -> Path:
    """Directory of a group (as "/slipway-local/etcd") in the tracking hierarchy."""
    return layout().tracking / group.lstrip("/")


def create(group: str) -> None:
    """Create a group for processes (not for pods) in the tracking hierarchy."""
    group_path(group).mkdir(parents=True, exist_ok=True)


def create_for_pods(group: str) -> list[Path]:
    """Create a group below which a kubelet manages pods; returns the v1 directories a node's daemons join.

    cgroup v1: a directory in every hierarchy, where a new cpuset takes over its parent's processors and memory nodes
    (the kernel refuses processes in an empty one). cgroup2: the controllers are enabled from the root downwards,
    which forbids processes directly in `group`: daemons live in groups below it.
    """
    places = layout()
    joined: list[Path] = []
    for hierarchy in places.v1:
        at = hierarchy
        for part in group.strip("/").split("/"):
            parent, at = at, at / part
            at.mkdir(exist_ok=True)
            for name in ("cpuset.cpus", "cpuset.mems"):
                value = at / name
                if value.exists() and not value.read_text().strip():
                    value.write_text((parent / name).read_text())
        joined.append(at)
    if places.unified:
        at = places.tracking
        for part in ["", *group.strip("/").split("/")]:
            at = at / part
            at.mkdir(exist_ok=True)
            there = (at / "cgroup.controllers").read_text().split()
            wanted = [f"+{name}" for name in (*NEEDED_CONTROLLERS_V2, "io", "hugetlb") if name in there]
            (at / "cgroup.subtree_control").write_text(" ".join(wanted))
    create(group)
    return joined


def pids(group: str) -> list[int]:
    """Ids of all live processes in a group and below it. Zombies are not among them."""
    found: set[int] = set()
    for directory, _, _ in os.walk(group_path(group)):
        with contextlib.suppress(OSError):  # the group went away
            found.update(int(line) for line in (Path(directory) / "cgroup.procs").read_text().split())
    return sorted(pid for pid in found if pid)


def is_member(pid: int, group: str) -> bool:
    """Whether a process is in a group or below it."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return False
    own = next((line[3:] for line in lines if line.startswith("0::")), "/")
    return own == group or own.startswith(group + "/")


def send(pid: int, number: signal.Signals, group: str) -> bool:
    """Send a signal to a process if it (still) belongs to the group. The id cannot be reused in between."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if not is_member(pid, group):
            return False
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def wait_empty(group: str, seconds: float) -> bool:
    """Wait until no process is left in a group; False if some are after `seconds`."""
    end = time.monotonic() + seconds
    while pids(group):
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def kill(group: str) -> None:
    """Kill every process of a group and below it, and wait until they are gone. Raises ClusterError if one stays."""
    directory = group_path(group)
    if not directory.exists():
        return
    switch = directory / "cgroup.kill"  # Linux 5.14
    for _ in range(20):
        if switch.exists():
            switch.write_text("1")
        else:
            for pid in pids(group):
                send(pid, signal.SIGKILL, group)
        if wait_empty(group, 1):
            return
    left = ", ".join(str(pid) for pid in pids(group))
    raise ClusterError(f"process {left} in cgroup {group} does not end although it was killed (waiting for a disk?)")


def _directories(group: str) -> Iterator[Path]:
    places = layout()
    for hierarchy in dict.fromkeys((*places.v1, places.tracking)):
        directory = hierarchy / group.lstrip("/")
        if directory.exists():
            yield directory


def remove(group: str) -> None:
    """Remove a group and all below it in every hierarchy. Its processes must be gone."""
    for directory in _directories(group):
        for path, _, _ in os.walk(directory, topdown=False):
            _remove_directory(Path(path))


def _remove_directory(directory: Path) -> None:
    # A process that was just killed keeps its group busy until the kernel has taken it apart.
    for attempt in range(100):
        try:
            directory.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError as error:
            if attempt == 99:
                raise ClusterError(f"cgroup {directory} cannot be removed: {error.strerror}") from None
            time.sleep(0.02)


def existing(group: str) -> list[Path]:
    """Directories of a group that exist, in any hierarchy."""
    return list(_directories(group))
