"""What the person at the terminal sees: steps with their duration, live on a terminal and plain lines elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console as RichConsole
from rich.live import Live
from rich.markup import escape
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

Log = Callable[[str], None]

REMINDER_SECONDS = 10.0  # how long a step may be silent where no terminal shows that it lives
REMINDER_LETTERS = 100


class UserError(Exception):
    """Something the person at the terminal can mend. The message says what, where, and what to do next."""

    user_error = True


class Console:
    """Prints steps. Threads may run steps side by side; each ends in one line with its duration."""

    def __init__(self, plain: bool | None = None) -> None:
        self.rich = RichConsole(highlight=False, soft_wrap=True)
        self.plain = not self.rich.is_terminal if plain is None else plain
        self._lock = threading.RLock()
        self._running: dict[int, tuple[str, float, str]] = {}
        self._live: Live | None = None

    def print(self, text: str = "", style: str | None = None) -> None:
        self.rich.print(escape(text), style=style)

    def table(self, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Columns side by side, under their titles in bold."""
        lines = [head, *rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
        for line, style in zip(lines, ["bold", *[None] * (len(lines) - 1)], strict=True):
            cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            self.print(f"  {'  '.join(cells)}".rstrip(), style)

    def title(self, text: str) -> None:
        self.rich.print(f"\n[bold]{escape(text)}[/bold]")

    @contextmanager
    def step(self, name: str, quiet_below: float | None = None) -> Iterator[Log]:
        """Run one step; yields a function that tells what the step does now.

        quiet_below: seconds; a step that ends sooner prints nothing (used for checks that find nothing to do).
        """
        key = threading.get_ident() ^ hash(name)
        started = time.monotonic()
        last_line = [started]

        def say(message: str) -> None:
            with self._lock:
                self._running[key] = (name, started, message)
                if self.plain:
                    last_line[0] = time.monotonic()
                    self.rich.print(f"  … {escape(name)}: {escape(message)}", style="dim")
            self._refresh()

        with self._lock:
            self._running[key] = (name, started, "")
        self._show()
        stop = threading.Event()
        if self.plain:
            threading.Thread(target=self._remind, args=(key, stop, last_line), daemon=True).start()
        failed = True
        try:
            yield say
            failed = False
        finally:
            stop.set()
            took = time.monotonic() - started
            with self._lock:
                self._running.pop(key, None)
            self._refresh()
            if failed:
                self.rich.print(f"[red]✗[/red] {escape(name)} [dim]({took:.1f} s)[/dim]")
            elif quiet_below is None or took >= quiet_below:
                self.rich.print(f"[green]✓[/green] {escape(name)} [dim]({took:.1f} s)[/dim]")

    def _remind(self, key: int, stop: threading.Event, last_line: list[float]) -> None:
        while not stop.wait(1.0):
            if time.monotonic() - last_line[0] < REMINDER_SECONDS:
                continue
            with self._lock:
                entry = self._running.get(key)
                if entry is None:
                    return
                name, started, message = entry
                last_line[0] = time.monotonic()
                waited = f"{last_line[0] - started:.0f} s"
                # It was told in full when it came up.
                short = message if len(message) <= REMINDER_LETTERS else message[:REMINDER_LETTERS].rstrip() + " …"
                self.rich.print(f"  … {escape(name)}: {escape(short) or 'still at it'} ({waited})", style="dim")

    def _show(self) -> None:
        if self.plain:
            return
        with self._lock:
            if self._live is None:
                self._live = Live(console=self.rich, transient=True, refresh_per_second=8)
                self._live.start()
        self._refresh()

    def _refresh(self) -> None:
        with self._lock:
            if self._live is None:
                return
            if not self._running:
                self._live.stop()
                self._live = None
                return
            table = Table.grid(padding=(0, 1))
            for name, started, message in self._running.values():
                line = Text(f"{name} ")
                line.append(f"{time.monotonic() - started:.0f} s ", style="dim")
                line.append(message, style="dim")
                table.add_row(Spinner("dots"), line)
            self._live.update(table)
