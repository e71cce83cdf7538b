"""Append-only journal of what changed moto's state, so that a killed server comes back with the same resources.

One JSON object a line: the request, the random seed and the time it ran with. Replaying the lines in order gives
the same ids and dates. A line is on disk before the client gets its answer; a line cut short by a kill was never
answered and is dropped. Requests may hold passwords, so the file is readable by its owner only.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from localcloud.aws.request import AwsRequest


@dataclass(frozen=True)
class Entry:
    """One request that succeeded; `time` is UTC without zone, as moto keeps its dates."""

    request: AwsRequest
    seed: int
    time: datetime

    def line(self) -> bytes:
        request = self.request
        try:
            body = {"body": request.body.decode()}
        except UnicodeDecodeError:
            body = {"body64": base64.b64encode(request.body).decode()}
        fields = {
            "method": request.method, "path": request.path, "query": request.query, "headers": dict(request.headers),
            **body, "seed": self.seed, "time": self.time.isoformat(),
        }  # fmt: skip
        return json.dumps(fields, separators=(",", ":")).encode() + b"\n"

    @classmethod
    def parse(cls, line: bytes) -> Entry:
        fields = json.loads(line)
        body = base64.b64decode(fields["body64"]) if "body64" in fields else fields["body"].encode()
        request = AwsRequest(fields["method"], fields["path"], fields["query"], fields["headers"], body)
        return cls(request, fields["seed"], datetime.fromisoformat(fields["time"]))


class JournalError(Exception):
    """The journal cannot be read; the message names file and line and says what to do."""


class Journal:
    """The journal at `path`; one process writes it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)

    def entries(self) -> Iterator[Entry]:
        """Every whole line, oldest first; cuts off a last line that a kill left unfinished.

        Raises JournalError when a line in the middle is damaged.
        """
        whole = 0
        with self.path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.endswith(b"\n"):
                    break
                try:
                    entry = Entry.parse(line)
                except (ValueError, KeyError) as error:
                    raise JournalError(
                        f"{self.path}:{number}: damaged line ({error}). The state of the AWS stand-in cannot be read; "
                        "`make down` removes it and everything that was created in it."
                    ) from error
                whole += len(line)
                yield entry
        os.ftruncate(self._file, whole)

    def append(self, entry: Entry) -> None:
        """Write one entry; it survives a kill and a power cut when this returns."""
        os.write(self._file, entry.line())
        os.fdatasync(self._file)

    def close(self) -> None:
        os.close(self._file)
