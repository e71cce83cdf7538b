"""The local cloud's figures on this machine: medians of several runs, memory, and the spread.

Usage: bench/run [RUNS]. Writes bench/results.md, which README quotes.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

from bench.sections import replace_section

REPOSITORY = Path(__file__).resolve().parent.parent
ENVIRONMENT = {**os.environ, "SLIPWAY_INSTANCE": "bench", "SLIPWAY_NET": "174"}


def timed(*arguments: str) -> tuple[float, str]:
    """Run a command of ./slipway; seconds and what it printed. Ends the benchmark if the command fails."""
    started = time.monotonic()
    done = subprocess.run(
        [str(REPOSITORY / "slipway"), *arguments],
        env=ENVIRONMENT,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"slipway {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")
    return time.monotonic() - started, done.stdout


def row(what: str, seconds: list[float]) -> str:
    spread = f"{min(seconds):.1f}-{max(seconds):.1f}"
    return f"| {what} | {statistics.median(seconds):.1f} s | {spread} |"


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    timed("down")
    figures: dict[str, list[float]] = {
        "`make up` to the finished job, tools and images cached": [],
        "`make up` again, nothing to change": [],
        "`make down`": [],
        "`make preview STACK=dev`, nothing running": [],
    }
    up, again, down, preview = figures.values()
    memory = 0.0
    for _ in range(runs):
        up.append(timed("up")[0])
        again.append(timed("up")[0])
        time.sleep(20)  # idle
        found = re.search(r"all together\s+\d+\s+(\d+)", timed("status")[1])
        memory = max(memory, float(found[1]) if found else 0.0)
        down.append(timed("down")[0])
        preview.append(timed("preview", "--stack", "dev")[0])
    lines = [
        f"`bench/run {runs}` on {os.cpu_count()} cores, load {os.getloadavg()[2]:.1f} (15 min):",
        "",
        "| what | median | spread |",
        "|---|---|---|",
        *(row(what, seconds) for what, seconds in figures.items()),
        f"| all daemons of the idle local cluster, PSS (largest of {runs}) | {memory:.0f} MiB | |",
    ]
    text = "\n".join(lines) + "\n"
    replace_section(REPOSITORY / "bench" / "results.md", "local cloud", text)
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
