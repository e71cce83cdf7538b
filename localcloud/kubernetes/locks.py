"""Locks between processes and threads, that end with their holder and can say who that is."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from localcloud.kubernetes.errors import ClusterError, Log, quiet
from localcloud.kubernetes.processes import describe


def holders(path: Path) -> list[int]:
    """Ids of the processes that hold a lock on a file (from /proc/locks)."""
    try:
        at = path.stat()
    except OSError:
        return []
    file = f"{os.major(at.st_dev):02x}:{os.minor(at.st_dev):02x}:{at.st_ino}"
    found: set[int] = set()
    for line in Path("/proc/locks").read_text().splitlines():
        words = line.split()
        # "1: FLOCK ADVISORY WRITE 1234 fe:00:5678 0 EOF"; a waiter has "->" as its second word
        if words[1] == "FLOCK" and words[5] == file:
            found.add(int(words[4]))
    return sorted(found)


@contextlib.contextmanager
def hold(
    path: Path, *, shared: bool = False, wait: float = 120, log: Log = quiet, what: str = "the local cluster"
) -> Iterator[None]:
    """Hold the lock `path` (the file is created) while the body runs; many may hold it `shared`.

    Waits up to `wait` seconds, and says for whom after one. Raises ClusterError that names the holder.
    """
    mode = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    end = time.monotonic() + wait
    announce = time.monotonic() + 1
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:  # the directory was removed in between: stop_all() of another process
            continue
        try:
            fcntl.flock(handle, mode | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            if time.monotonic() > end:
                raise ClusterError(
                    f"{what} is in use by {_who(path)}. Next: wait for it, or end it if it hangs, then repeat"
                ) from None
            if time.monotonic() > announce:
                announce = end
                log(f"waiting for {_who(path)}, which works on {what}")
            time.sleep(0.05)
            continue
        # Whoever held it may have removed the file: then this lock is on a name that no longer exists.
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_ino == os.fstat(handle).st_ino:
                break
        os.close(handle)
    try:
        yield
    finally:
        os.close(handle)


def _who(path: Path) -> str:
    return " and ".join(describe(pid) for pid in holders(path)) or "another process"
