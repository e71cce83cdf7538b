"""One run at a time per instance: a file lock that tells who holds it."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from localcloud.console import UserError
from localcloud.paths import instance


def _lock_file() -> Path:
    # Beside the state folder, not in it: `down` removes that folder while it holds the lock.
    state = instance().state
    return state.parent / f".{state.name}.lock"


@contextmanager
def exclusive(command: str) -> Iterator[None]:
    """Hold the instance for `command` ("up", "down", …). Raises UserError when another run holds it.

    The kernel drops the lock with the process, so a killed run never blocks the next.
    """
    path = _lock_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(_held_by(path)) from None
        file.truncate(0)
        json.dump({"command": command, "pid": os.getpid(), "since": time.time()}, file)
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)


def _held_by(path: Path) -> str:
    try:
        holder = json.loads(path.read_text())
        who = f"`{holder['command']}` (pid {holder['pid']}, for {time.time() - holder['since']:.0f} s)"
    except (OSError, ValueError, KeyError):
        who = "another run"
    return (
        f"instance {instance().name!r} is busy: {who} is at work on it.\n"
        "Wait for it to end, or choose an instance of your own: SLIPWAY_INSTANCE=mine SLIPWAY_NET=93 make up"
    )
