"""Logs as JSON lines on stderr, with the fields of the reconcile they belong to."""

from __future__ import annotations

import contextvars
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import msgspec

LEVELS = ("debug", "info", "warning", "error")
_fields: contextvars.ContextVar[dict[str, str] | None] = contextvars.ContextVar("log_fields", default=None)


class JsonLines(logging.Formatter):
    """One record, one line: ts, level, logger, msg, then the fields in force, then `error` with a traceback if any."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": record.getMessage(),
            **(_fields.get() or {}),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


@contextmanager
def fields(**values: str) -> Iterator[None]:
    """Everything logged inside carries these fields, also in tasks started there."""
    token = _fields.set({**(_fields.get() or {}), **values})
    try:
        yield
    finally:
        _fields.reset(token)


def set_up(level: str) -> None:
    """Send the root logger to stderr as JSON lines. `level`: one of LEVELS."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for chatty in ("aiohttp.access", "asyncio"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
