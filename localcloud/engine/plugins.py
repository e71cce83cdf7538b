"""Plugin processes: a program that prints the port of its gRPC server as its first line and ends with the engine."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from localcloud.engine.errors import EngineError

START_TIMEOUT = 60.0  # seconds until a plugin has to print its port
STOP_TIMEOUT = 3.0  # seconds that a plugin may take to end

GRPC_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_http_proxy", 0),
]


def dying_with_parent(command: Sequence[str]) -> list[str]:
    """The command, run so that it gets SIGTERM when this process dies however hard (where setpriv exists)."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "TERM", "--", *command] if setpriv else list(command)


class Plugin:
    """One plugin process. `channel` is there once `start` has returned."""

    def __init__(self, name: str, command: Sequence[str], directory: Path, environment: dict[str, str]) -> None:
        self.name = name
        self.command = list(command)
        self.directory = directory
        self.environment = environment
        self.channel: Any = None
        self._process: asyncio.subprocess.Process | None = None
        self._tail: deque[str] = deque(maxlen=40)
        self._readers: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Starts the process and connects. Raises EngineError with what it printed when it gives no port."""
        try:
            self._process = await asyncio.create_subprocess_exec(
                *dying_with_parent(self.command),
                cwd=self.directory,
                env=self.environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=2**20,
                start_new_session=True,  # Ctrl-C reaches the engine alone, which then asks politely
            )
        except OSError as error:
            raise EngineError(f"{self.name}: {self.command[0]} cannot be started: {error.strerror}") from error
        assert self._process.stdout and self._process.stderr
        self._readers.append(asyncio.create_task(self._drain(self._process.stderr)))
        try:
            line = await asyncio.wait_for(self._process.stdout.readline(), START_TIMEOUT)
        except TimeoutError:
            line = b""
        port = line.decode(errors="replace").strip()
        if not port.isdigit():
            await self.stop()
            raise EngineError(
                f"{self.name} did not start: it has to print its port first, and printed {port!r}.{self.last_words()}"
            )
        self._readers.append(asyncio.create_task(self._drain(self._process.stdout)))
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=GRPC_OPTIONS)

    async def _drain(self, stream: asyncio.StreamReader) -> None:
        with suppress(ValueError):
            while line := await stream.readline():
                self._tail.append(line.decode(errors="replace").rstrip())

    @property
    def dead(self) -> bool:
        return self._process is not None and self._process.returncode is not None

    def last_words(self) -> str:
        """The end of what it printed, for an error message."""
        return "".join(f"\n    {line}" for line in list(self._tail)[-15:])

    async def stop(self) -> None:
        """Ends the process: SIGTERM, then SIGKILL."""
        if self.channel is not None:
            await self.channel.close()
        process = self._process
        if process is not None and process.returncode is None:
            with suppress(ProcessLookupError):
                process.terminate()
            try:
                await asyncio.wait_for(process.wait(), STOP_TIMEOUT)
            except TimeoutError:
                self.kill()
                await process.wait()
        for reader in self._readers:
            with suppress(asyncio.CancelledError, TimeoutError):
                await asyncio.wait_for(reader, 0.5)

    def kill(self) -> None:
        """Ends the process and those it started, at once."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)


def details(error: grpc.RpcError) -> str:
    """What a gRPC error says, without the frame around it."""
    assert isinstance(error, grpc.aio.AioRpcError)
    return str(error.details() or error.code().name)
