"""updateStrategy ScheduledUpdate: outdated workers are replaced while a Slurm reservation keeps new jobs away."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from slurm_operator.api.load import InvalidSpec
from slurm_operator.api.names import maintenance_reservation
from slurm_operator.api.nodeset import NodeSetSpec
from slurm_operator.desired.drain import duration
from slurm_operator.kube.objects import timestamp
from slurm_operator.slurm.types import Reservation

RESERVATION_CREATED = "ReservationCreated"
FLAGS = ("MAINT", "IGNORE_JOBS")


@dataclass(frozen=True)
class Window:
    """The reservation there should be; `start` in UNIX seconds, length in minutes."""

    name: str
    start: int
    minutes: int
    flags: tuple[str, ...] = FLAGS

    @property
    def end(self) -> int:
        return self.start + 60 * self.minutes


def window_of(name: str, spec: NodeSetSpec) -> Window | None:
    """The window of a NodeSet; None with another strategy. Raises InvalidSpec, naming the field."""
    if spec.update_strategy.type != "ScheduledUpdate":
        return None
    given = spec.update_strategy.scheduled_update
    where = "spec.updateStrategy.scheduledUpdate"
    try:
        start = int(datetime.fromisoformat(given.start_time).timestamp())
    except ValueError:
        raise InvalidSpec(
            f"{where}.startTime: {given.start_time!r} is no time; write 2026-12-24T02:00:00Z for example"
        ) from None
    minutes = int(duration(given.duration, f"{where}.duration") // 60)
    if minutes < 1:
        raise InvalidSpec(f"{where}.duration: {given.duration!r} is shorter than a minute")
    flags = tuple(dict.fromkeys([*FLAGS, *(flag.strip().upper() for flag in given.flags if flag.strip())]))
    return Window(maintenance_reservation(name), start, minutes, flags)


Change = Literal["", "create", "nodes", "replace", "delete"]


def change(window: Window | None, nodes: Iterable[str], live: Reservation | None, now: float) -> Change:
    """What has to happen to the reservation so that it covers `nodes`, the ones with outdated workers.

    Slurm lets the nodes of a running reservation be changed, but not its start; and a node inside cannot be deleted.
    """
    wanted = set(nodes)
    if window is None or not wanted or now >= window.end:
        return "delete" if live is not None else ""
    if live is None:
        return "create"
    begun = (live.start.value() or 0) <= now
    same_times = (live.start.value(), live.end.value()) == (window.start, window.end)
    if not same_times and not (begun and window.start <= now and live.end.value() == window.end):
        return "replace"
    if not set(window.flags) <= live.flags:
        return "replace"
    return "nodes" if set(live.nodes) != wanted else ""


def reservation_condition(window: Window, nodes: Iterable[str], refused: str, now: float) -> dict[str, Any]:
    """Condition ReservationCreated, without times."""
    names = sorted(nodes)
    text = f"{window.name}, {timestamp(datetime.fromtimestamp(window.start, UTC))} for {window.minutes} minutes"
    if refused:
        status, reason, message = "False", "Refused", f"Slurm refuses the reservation {text}: {refused}"
    elif not names:
        status, reason, message = "False", "UpToDate", "All workers have the newest revision."
    elif now >= window.end:
        status, reason, message = "False", "WindowOver", f"{text} is over; {len(names)} workers are still outdated."
    else:
        status, reason, message = "True", "Created", f"{text}, for {len(names)} nodes."
    return {"type": RESERVATION_CREATED, "status": status, "reason": reason, "message": message}
