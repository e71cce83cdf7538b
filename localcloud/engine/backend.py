"""Where states live: a folder with Pulumi's file layout (`file://…`), and the lock that keeps two runs apart."""

from __future__ import annotations

import fcntl
import getpass
import json
import os
import socket
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localcloud.engine.errors import EngineError
from localcloud.engine.state import timestamp, write_whole
from localcloud.paths import instance

ORGANIZATION = "organization"  # what the CLI calls the owner of stacks that live in files


@dataclass(frozen=True)
class Backend:
    """A folder that holds the states of one project's stacks, laid out as the CLI does."""

    root: Path
    project: str

    @property
    def _stacks(self) -> Path:
        return self.root / ".pulumi" / "stacks" / self.project

    def state_file(self, stack: str) -> Path:
        return self._stacks / f"{stack}.json"

    def stacks(self) -> list[str]:
        """The stacks that have a state."""
        return sorted(p.stem for p in self._stacks.glob("*.json"))

    def locks(self, stack: str) -> Path:
        return self.root / ".pulumi" / "locks" / ORGANIZATION / self.project / stack

    def prepare(self) -> None:
        """Creates the folder; its meta file tells the CLI that stacks are kept by project."""
        meta = self.root / ".pulumi" / "meta.yaml"
        if not meta.exists():
            write_whole(meta, b"version: 1\n")


def open_backend(project: str, configured: str, environment: dict[str, str]) -> Backend:
    """The backend that PULUMI_BACKEND_URL or Pulumi.yaml names, else the instance's own folder."""
    url = environment.get("PULUMI_BACKEND_URL") or configured
    if not url:
        return Backend(instance().state / "pulumi", project)
    if not url.startswith("file://"):
        raise EngineError(f"PULUMI_BACKEND_URL={url}: without the pulumi CLI only file:///path works")
    return Backend(Path(url.removeprefix("file://")).expanduser().resolve(), project)


@contextmanager
def lock(backend: Backend, stack: str, note: Callable[[str], None]) -> Iterator[None]:
    """Keeps every other run (ours or the CLI's) off the stack.

    A lock whose holder is dead is taken over, and `note` says so. Raises EngineError that names a living holder.
    """
    folder = backend.locks(stack)
    folder.mkdir(parents=True, exist_ok=True)
    mine = folder / f"{uuid.uuid4()}.json"
    # Beside the folder of locks, in which the CLI takes every file for a lock.
    with (backend.root / ".pulumi" / f".guard-{backend.project}-{stack}").open("w") as guard:
        # Held only while the locks are looked at, so two runs that start at once see each other.
        fcntl.flock(guard, fcntl.LOCK_EX)
        for other in sorted(folder.glob("*.json")):
            holder = _read(other)
            if _alive(holder):
                raise EngineError(
                    f"stack {stack} is locked by another run: {_describe(holder)}. "
                    f"Wait for it to end. If it is gone for good: `cancel --stack {stack}`."
                )
            note(f"took over the lock of a run that is gone ({_describe(holder)})")
            other.unlink(missing_ok=True)
        write_whole(mine, json.dumps(_myself()).encode())
    try:
        yield
    finally:
        mine.unlink(missing_ok=True)


def cancel(backend: Backend, stack: str) -> list[str]:
    """Removes every lock of the stack and says whose they were."""
    removed = []
    for file in sorted(backend.locks(stack).glob("*.json")):
        removed.append(_describe(_read(file)))
        file.unlink(missing_ok=True)
    return removed


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _started(pid: int) -> str:
    """When a process started, in clock ticks since boot; empty when there is none or it is a zombie."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if after_name[0] in "ZX" else after_name[19]


def _myself() -> dict[str, Any]:
    # The first four are the CLI's; the others tell a process from a later one with the same number.
    return {
        "pid": os.getpid(),
        "username": getpass.getuser(),
        "hostname": socket.gethostname(),
        "timestamp": timestamp(),
        "boot": _boot_id(),
        "started": _started(os.getpid()),
    }


def _read(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _alive(holder: dict[str, Any]) -> bool:
    if not holder:
        return False
    if holder.get("hostname") != socket.gethostname():
        return True  # cannot be known from here
    if holder.get("boot", _boot_id()) != _boot_id():
        return False
    started = _started(int(holder.get("pid", 0)))
    return bool(started) and holder.get("started", started) == started


def _describe(holder: dict[str, Any]) -> str:
    if not holder:
        return "an unreadable lock file"
    who = f"{holder.get('username')}@{holder.get('hostname')}"
    return f"{who} (process {holder.get('pid')}) since {holder.get('timestamp')}"
