"""Watches on files, of which Linux gives each user a small number: the first thing that many nodes run out of."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

PER_NODE = 8
"""Instances that a node's daemons hold, counted: kubelet 6, containerd 1, kube-proxy 1."""
CONTROL_PLANE = 12
"""Counted: API server 6, controller manager 5."""

_LIMIT = Path("/proc/sys/fs/inotify/max_user_instances")


def limit() -> int:
    """How many instances one user may have."""
    return int(_LIMIT.read_text())


def free(enough: int) -> int:
    """How many inotify instances can still be made, counted up to `enough`. They are made and closed again."""
    make = ctypes.CDLL(None, use_errno=True).inotify_init1
    handles: list[int] = []
    try:
        while len(handles) < enough and (handle := make(os.O_CLOEXEC)) >= 0:
            handles.append(handle)
        return len(handles)
    finally:
        for handle in handles:
            os.close(handle)


def problem(needed: int) -> str | None:
    """What to tell if fewer than `needed` instances are left, None if there are enough."""
    left = free(needed)
    if left >= needed:
        return None
    return (
        f"{left} of root's {limit()} inotify instances are free, and {needed} are needed. "
        f"Next: sysctl -w fs.inotify.max_user_instances={max(1024, 2 * limit())}, or stop other local clusters"
    )
