"""The error that a person sees when an image cannot be had, and where long steps tell what they do."""

from __future__ import annotations

import re
from collections.abc import Callable

Log = Callable[[str], None]
"""Takes one line of progress."""


class ImageError(Exception):
    """An image cannot be built, pushed or looked up; the message is complete and meant for the user."""

    user_error = True


_CAUSES = (
    (
        r"No space left on device|Disk quota exceeded",
        "the disk is full. Free some space, then repeat. "
        "`./slipway run python -m localcloud.images prune` removes old images",
    ),
    (
        r"Temporary failure resolving|Could not resolve|Could not connect|Connection timed out|Unable to connect|"
        r"Network is unreachable|Connection refused|Failed to fetch",
        "the Debian mirror cannot be reached. Check the network and the machine's package sources (`apt-get update`), "
        "then repeat; what is finished is kept",
    ),
)


def cause(output: str) -> str:
    """What a build's output says about why it failed, and what to do next."""
    for pattern, text in _CAUSES:
        if re.search(pattern, output, re.IGNORECASE):
            return text
    return "the last lines say why; mend it and repeat, what is finished is kept"
