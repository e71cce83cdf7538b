"""Figures as a table with the targets of the operator, and as JSON."""

from __future__ import annotations

import os
import time
from typing import Any, NamedTuple

Results = dict[str, dict[str, Any]]


class Row(NamedTuple):
    """`target` is the largest value that is right, with `least` the smallest; None: no target."""

    what: str
    measure: str
    figure: str
    unit: str = "s"
    target: float | None = None
    least: bool = False


def rows(workers: int) -> list[Row]:
    """The table's rows for a run with so many workers."""
    return [
        Row("pods created per second", "scale-out", "pods_per_second", "/s", 100, least=True),
        Row("NodeSet created → all registered and Ready", "scale-out", "all_registered_seconds"),
        Row("status true after the last worker", "scale-out", "status_after_last_worker_seconds", "s", 2),
        Row("CPU for the scale-out", "scale-out", "cpu_seconds", "CPU-s"),
        Row("idle: API writes but the Lease", "idle", "writes_per_minute", "/min", 0),
        Row("idle: API reads", "idle", "reads_per_minute", "/min"),
        Row("idle: from slurmrestd", "idle", "slurm_mb_per_minute", "MB/min", 0.5),
        Row("idle: requests to slurmrestd", "idle", "slurm_requests_per_minute", "/min"),
        Row("idle: CPU", "idle", "cpu_seconds_per_minute", "CPU-s/min", 0.5),
        Row("idle: RSS", "idle", "rss_mib", "MiB", 120 if workers <= 1000 else 400),
        Row("job → pod condition, p50 of 10", "jobs", "p50", "s", 3),
        Row("job → pod condition, p95 of 10", "jobs", "p95", "s", 3),
        Row("job on a tenth of the workers → last pod's condition", "jobs", "bulk_last"),
        Row("cordon → drain, one by one, p50", "cordon", "p50", "s", 0.3),
        Row("cordon → drain, one by one, p95", "cordon", "p95", "s", 1),
        Row("cordon → drain, 50 at once, p50", "cordon", "at_once_p50", "s", 0.3),
        Row("cordon → drain, 50 at once, p95", "cordon", "at_once_p95", "s", 1),
        Row("scale-in to a half, a tenth busy: last pod gone", "scale-in", "last_pod_gone_seconds"),
        Row("scale-in: busy pods deleted", "scale-in", "busy_pods_deleted", "", 0),
        Row("rolling update, 25 %", "rolling-update", "seconds", "s", 40),
        Row(
            "rolling update: fewest ready workers",
            "rolling-update",
            "lowest_ready",
            "",
            workers - -(-workers // 4),
            True,
        ),
        Row("rolling update: CPU", "rolling-update", "cpu_seconds", "CPU-s"),
        Row(
            "slurmrestd gone for 60 s in a scale-in: converged after its return", "outage", "converged_seconds", "s", 10
        ),
        Row("outage: pods deleted while blind", "outage", "deleted_while_blind", ""),
        Row("outage: busy pods deleted", "outage", "busy_pods_deleted", "", 0),
    ]


def facts(workers: int, command: str) -> dict[str, Any]:
    """What a reader must know of the run."""
    return {
        "operator": command, "workers": workers, "cores": os.cpu_count(), "load": round(os.getloadavg()[1], 1),
        "date": time.strftime("%Y-%m-%d"),
    }  # fmt: skip


def table(about: dict[str, Any], results: Results) -> str:
    """The run in Markdown."""
    name = "this operator" if not about["operator"] else f"`{about['operator']}`"
    lines = [
        f"{about['workers']} workers, {name}, {about['cores']} cores, load {about['load']} (5 min), {about['date']}:",
        "",
        "| what | measured | target |",
        "|---|---|---|",
    ]
    for row in rows(about["workers"]):
        found = results.get(row.measure, {})
        if row.figure not in found:
            if "error" in found:
                lines.append(f"| {row.what} | failed: {found['error']} | |")
            continue
        value = float(found[row.figure])
        lines.append(f"| {row.what} | {_number(value)} {row.unit}".rstrip() + f" | {_verdict(row, value)} |")
    return "\n".join(lines) + "\n"


def _verdict(row: Row, value: float) -> str:
    if row.target is None:
        return ""
    met = value >= row.target if row.least else value <= row.target
    return f"{'≥' if row.least else '≤'} {row.target:g}: {'met' if met else '**missed**'}"


def _number(value: float) -> str:
    if value == int(value):
        return str(int(value))
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"
