"""One run at a time per instance: a file lock that tells who holds it."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

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
    with _locked(path) as file:
        file.truncate(0)
        json.dump({"command": command, "pid": os.getpid(), "since": time.time()}, file)
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)
            if not instance().state.exists():  # after `down` nothing of the instance is left, this file included
                path.unlink()
                with suppress(OSError):  # other instances live there
                    path.parent.rmdir()


def _locked(path: Path) -> TextIO:
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        except BlockingIOError:
            file.close()
            raise UserError(_held_by(path)) from None
        except FileNotFoundError:
            pass
        file.close()  # removed by its last holder between open and lock: the next one is looked at


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
