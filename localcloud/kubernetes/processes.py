"""Daemons: started into a control group, found again by it, never by a stored process id."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from localcloud.kubernetes import cgroups
from localcloud.kubernetes.commands import clean_environment
from localcloud.kubernetes.errors import ClusterError

# Joins the groups, then starts the daemon in a session of its own and ends: the daemon's parent becomes process 1
# (of its pid namespace), so it survives whoever started it and leaves no zombie there.
_LAUNCH = 'for f in $1; do echo $$ >"$f" || exit 1; done; log=$2; shift 2; "$@" >>"$log" 2>&1 </dev/null &'


@dataclass(frozen=True)
class Daemon:
    """A program that is to run in the background.

    group: its cgroup, as "/slipway-local/etcd". argv: the command as it will appear in /proc.
    prefix: a command in front that ends up executing argv (nsenter …). joins: further cgroup directories it joins.
    """

    group: str
    argv: tuple[str, ...]
    log: Path
    prefix: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    joins: tuple[Path, ...] = ()

    @property
    def name(self) -> str:
        return Path(self.argv[0]).name


def command_of(pid: int) -> tuple[str, ...]:
    """The command line of a process; empty for a zombie or one that is gone."""
    try:
        return tuple(Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1])
    except OSError:
        return ()


def started_at(pid: int) -> float | None:
    """When a process started, in seconds since the epoch; None if it is gone."""
    try:
        ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return None
    lines = Path("/proc/stat").read_text().splitlines()
    boot = next(int(line.split()[1]) for line in lines if line.startswith("btime"))
    return boot + ticks / os.sysconf("SC_CLK_TCK")


def running(daemon: Daemon) -> int | None:
    """Process id of a daemon if it runs with exactly this command, else None."""
    return next((pid for pid in cgroups.pids(daemon.group) if command_of(pid) == daemon.argv), None)


def members(group: str, program: str) -> list[int]:
    """Processes of a group that run a program (its file name), with whatever arguments."""
    found = ((pid, command_of(pid)) for pid in cgroups.pids(group))
    return [pid for pid, argv in found if argv and Path(argv[0]).name == program]


def _same_program(daemon: Daemon) -> list[int]:
    """Processes of the daemon's group that run its program: itself, or an older version of it."""
    return members(daemon.group, daemon.name)


def ensure(daemon: Daemon) -> bool:
    """Start a daemon unless it runs as described; one with other arguments is replaced. True if it was started."""
    if running(daemon) is not None:
        return False
    stop(daemon)
    cgroups.create(daemon.group)
    joins = [str(directory / "cgroup.procs") for directory in (cgroups.group_path(daemon.group), *daemon.joins)]
    _rotate(daemon.log)
    launch = ["/bin/sh", "-c", _LAUNCH, "launch", " ".join(joins), str(daemon.log), *daemon.prefix, *daemon.argv]
    started = subprocess.run(
        launch,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=clean_environment() | dict(daemon.env),
        cwd="/",
        start_new_session=True,
        text=True,
        check=False,
    )
    if started.returncode:
        raise ClusterError(f"cannot start `{shlex.join(daemon.argv)}`: {started.stdout.strip()}")
    return True


def _rotate(log: Path) -> None:
    """Keep the log of the run before, in which the reason of a crash is found."""
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.exists() and log.stat().st_size:
        log.replace(log.with_suffix(".log.1"))


def stop(daemon: Daemon, grace: float = 0) -> None:
    """End a daemon: TERM and up to `grace` seconds, then KILL. Other processes of its group are left alone."""
    if grace:
        signal_program(daemon, signal.SIGTERM)
        end = time.monotonic() + grace
        while _same_program(daemon) and time.monotonic() < end:
            time.sleep(0.01)
    end = time.monotonic() + 10
    while _same_program(daemon):
        signal_program(daemon, signal.SIGKILL)
        if time.monotonic() > end:
            raise ClusterError(f"{daemon.name} in cgroup {daemon.group} does not end although it was killed")
        time.sleep(0.005)


def signal_program(daemon: Daemon, number: signal.Signals) -> None:
    """Send a signal to every process of the group that runs the daemon's program."""
    for pid in _same_program(daemon):
        cgroups.send(pid, number, daemon.group)


def last_words(log: Path, lines: int = 8) -> str:
    """The end of a log, for an error message."""
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""


def describe(pid: int) -> str:
    """A process for a message: id, command and since when it runs."""
    argv: Sequence[str] = command_of(pid)
    since = started_at(pid)
    if not argv or since is None:
        return f"process {pid} (ended)"
    return f"process {pid} ({shlex.join(argv)[:80]}, running since {time.strftime('%H:%M:%S', time.localtime(since))})"
