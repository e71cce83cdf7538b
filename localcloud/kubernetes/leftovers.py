"""What an instance has on this machine: its processes, memory, links, groups and files; and how to remove it all."""

from __future__ import annotations

import os
from pathlib import Path

from localcloud.kubernetes import cgroups, network, processes
from localcloud.kubernetes.commands import run
from localcloud.kubernetes.errors import ClusterError, Log
from localcloud.paths import Instance


def find(inst: Instance) -> list[str]:
    """Everything of an instance that exists, one line each; empty after stop_all()."""
    found = [processes.describe(pid) for pid in _processes(inst)]
    found += [f"cgroup {path}" for path in cgroups.existing(inst.cgroup)]
    found += [f"network link {name}" for name in network.links_of(inst)]
    found += [f"route {route}" for route in network.routes_of(inst)]
    found += [f"mount {path}" for path in mounts_below(inst.state)]
    if inst.state.exists():
        found.append(f"directory {inst.state}")
    return found


def _processes(inst: Instance) -> list[int]:
    """Processes in the instance's groups, and any other that was started with a path of its state."""
    found = set(cgroups.pids(inst.cgroup)) if cgroups.group_path(inst.cgroup).exists() else set()
    state = f"{inst.state}/"
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and any(state in word for word in processes.command_of(int(entry.name))):
            found.add(int(entry.name))
    found.discard(os.getpid())
    return sorted(found)


def mounts_below(directory: Path) -> list[Path]:
    """Mount points in a directory, as this process sees them; the deepest first."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    points = (Path(line.split()[4].replace("\\040", " ")) for line in lines)
    return sorted((point for point in points if point.is_relative_to(directory)), reverse=True)


def kill_all(inst: Instance) -> None:
    """Kill every process of the instance's groups. Raises ClusterError if the caller is one of them."""
    if cgroups.is_member(os.getpid(), inst.cgroup):
        raise ClusterError(f"the local cluster {inst.name!r} cannot be stopped by one of its own processes")
    cgroups.kill(inst.cgroup)


def remove_all(inst: Instance, log: Log) -> None:
    """Remove links, routes, groups and mounts, after kill_all(). Files are left."""
    network.remove(inst)
    cgroups.remove(inst.cgroup)
    for mount in mounts_below(inst.state):
        log(f"unmounting {mount}")
        run(["umount", "--lazy", mount], check=False)


def memory(inst: Instance) -> dict[str, tuple[int, float]]:
    """Memory of the instance's processes by program: how many, and their proportional share (PSS) in MiB.

    Includes everything in the nodes: shims and the processes of pods.
    """
    found: dict[str, tuple[int, float]] = {}
    if not cgroups.group_path(inst.cgroup).exists():
        return found
    for pid in cgroups.pids(inst.cgroup):
        command = processes.command_of(pid)
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        kib = next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)
        if command:
            name = Path(command[0].split()[0]).name
            count, mebibytes = found.get(name, (0, 0.0))
            found[name] = (count + 1, mebibytes + kib / 1024)
    return found
