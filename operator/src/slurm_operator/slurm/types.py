"""What slurmrestd answers, as far as the operator reads it (API v0.0.44)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict

import msgspec

from slurm_operator.slurm.hostlist import expand


class Number(msgspec.Struct, frozen=True, gc=False):
    """Slurm's optional number: without `set` there is none; with `infinite` it has no limit."""

    set: bool = False
    infinite: bool = False
    number: float = 0

    def value(self) -> int | None:
        """The number; None when it is unset or infinite."""
        return int(self.number) if self.set and not self.infinite else None


_UNSET = Number()


class NodeInfo(
    msgspec.Struct,
    frozen=True,
    gc=False,
    rename={
        "states": "state",
        "reason_user": "reason_set_by_user",
        "reason_at": "reason_changed_at",
        "slurmd_start": "slurmd_start_time",
        "memory": "real_memory",
    },
):
    """One Slurm node. Memory in MiB, times as UNIX seconds; `states` holds the base state and all flags."""

    name: str
    states: frozenset[str] = frozenset()
    reason: str = ""
    reason_user: str = ""
    reason_at: Number = _UNSET
    comment: str = ""
    extra: str = ""
    features: tuple[str, ...] = ()
    active_features: tuple[str, ...] = ()
    address: str = ""
    hostname: str = ""
    port: int = 0
    partitions: tuple[str, ...] = ()
    topology: str = ""
    cpus: int = 0
    alloc_cpus: int = 0
    memory: int = 0
    alloc_memory: int = 0
    gres: str = ""
    gres_used: str = ""
    weight: int = 0
    boot_time: Number = _UNSET
    slurmd_start: Number = _UNSET
    last_busy: Number = _UNSET
    reservation: str = ""
    instance_id: str = ""
    instance_type: str = ""
    version: str = ""


NodeState = Literal["DRAIN", "UNDRAIN", "RESUME", "DOWN", "IDLE", "POWER_DOWN", "POWER_UP"]


class NodeUpdate(TypedDict, total=False):
    """What to change on a node; a key that is missing or None leaves things as they are."""

    state: NodeState | None
    reason: str | None
    comment: str | None
    extra: str | None
    features: Sequence[str] | None
    active_features: Sequence[str] | None
    """Must go along when features are taken away: Slurm refuses active ones that are not available."""
    topology: str | None
    """Topology of a dynamic node: "topo-tree:leaf1,topo-block:b2"; it creates an unknown leaf, not an unknown block."""
    weight: int | None


class NodesSnapshot(msgspec.Struct, frozen=True):
    """All nodes at one moment; `last_update` (UNIX seconds) is what the next call passes as update_time."""

    nodes: dict[str, NodeInfo]
    last_update: int


class NotModified(msgspec.Struct, frozen=True):
    """Nothing changed since the update_time that was passed."""


NOT_MODIFIED = NotModified()


class JobState(msgspec.Struct, frozen=True, gc=False):
    """Id and states of a job: the base state and flags such as COMPLETING.

    The id is text, for Slurm counts arrays together: "7", "7_3", "7_[4-9]".
    """

    id: str
    states: frozenset[str]


class JobInfo(
    msgspec.Struct,
    frozen=True,
    gc=False,
    rename={
        "id": "job_id",
        "states": "job_state",
        "user": "user_name",
        "uid": "user_id",
        "host_list": "nodes",
        "start": "start_time",
        "end": "end_time",
        "limit": "time_limit",
    },
):
    """One job. `end` of a running job is its start plus its limit; `limit` in minutes (infinite: no limit).

    Only a batch job (`batch_flag`) with `requeue` can be requeued; interactive ones end with the shell they came from.
    """

    id: int
    name: str = ""
    states: frozenset[str] = frozenset()
    state_reason: str = ""
    user: str = ""
    uid: int = 0
    account: str = ""
    partition: str = ""
    host_list: str = ""
    start: Number = _UNSET
    end: Number = _UNSET
    limit: Number = _UNSET
    requeue: bool = True
    batch_flag: bool = False
    priority: Number = _UNSET

    @property
    def requeueable(self) -> bool:
        return self.requeue and self.batch_flag

    @property
    def nodes(self) -> list[str]:
        """Names of the allocated nodes."""
        return expand(self.host_list)


class Reservation(
    msgspec.Struct, frozen=True, gc=False, rename={"host_list": "node_list", "start": "start_time", "end": "end_time"}
):
    """One reservation; `users` as Slurm writes them, comma-separated."""

    name: str
    host_list: str = ""
    start: Number = _UNSET
    end: Number = _UNSET
    flags: frozenset[str] = frozenset()
    users: str = ""
    partition: str = ""

    @property
    def nodes(self) -> list[str]:
        """Names of the reserved nodes."""
        return expand(self.host_list)


class Ping(msgspec.Struct, frozen=True):
    """One slurmctld as slurmrestd sees it; latency in microseconds."""

    hostname: str = ""
    responding: bool = False
    primary: bool = False
    latency: int = 0


class ApiError(msgspec.Struct, frozen=True):
    """One entry of an answer's `errors`."""

    description: str | None = None
    error_number: int = 0
    error: str | None = None
    source: str | None = None
