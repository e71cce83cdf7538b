"""Client of slurmrestd, API v0.0.44 (Slurm 25.11 and later).

It fails closed. slurmrestd can answer 200 with an `errors` array, with a ping that did not respond, or with an empty
list where something went wrong; each of these is an exception here, so an empty list always means that there is none.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, Unpack
from urllib.parse import quote

import msgspec

from slurm_operator import __version__
from slurm_operator.slurm.errors import (
    INVALID_JOB,
    INVALID_NODE,
    SlurmError,
    SlurmException,
    SlurmNotFound,
    SlurmUnreachable,
    SlurmUnreadable,
    error_for,
)
from slurm_operator.slurm.http import BadResponse, HttpClient
from slurm_operator.slurm.token import TokenSource
from slurm_operator.slurm.types import (
    NOT_MODIFIED,
    ApiError,
    JobInfo,
    JobState,
    NodeInfo,
    NodesSnapshot,
    NodeUpdate,
    NotModified,
    Number,
    Ping,
    Reservation,
)

API = "/slurm/v0.0.44/"
REQUEST_SECONDS = 15.0
LIST_SECONDS = 60.0
CONCURRENT = 8  # slurmrestd works with 2 to 4 threads; more only wait there
# Up to 26.05.2 `nodes/?update_time=` fails, or says "not modified" of nodes that did change, whenever the partitions
# are unchanged. Older servers are asked for the whole list.
UPDATE_TIME_WORKS = (26, 5, 3)

REQUEUE_WORKS = (26, 5, 0)

Observe = Callable[[str, int, float], None]
_WIRE_NAMES = {"topology": "topology_str", "active_features": "features_act"}
A = TypeVar("A", bound="_Answer")
T = TypeVar("T")


class _Version(msgspec.Struct, frozen=True):
    major: str = "0"
    micro: str = "0"
    minor: str = "0"


class _Slurm(msgspec.Struct, frozen=True):
    version: _Version = _Version()


class _Meta(msgspec.Struct):
    slurm: _Slurm = _Slurm()


class _Answer(msgspec.Struct):
    """What every answer carries; a list that is missing is None, which is not the same as empty."""

    meta: _Meta | None = None
    errors: list[ApiError] | None = None


class _Nodes(_Answer):
    nodes: list[NodeInfo] | None = None
    last_update: Number = Number()


class _JobStateEntry(msgspec.Struct):
    job_id: int | str
    state: frozenset[str] = frozenset()
    job_state: frozenset[str] = frozenset()


class _JobStates(_Answer):
    jobs: list[_JobStateEntry] | None = None


class _Jobs(_Answer):
    jobs: list[JobInfo] | None = None


class _Reservations(_Answer):
    reservations: list[Reservation] | None = None


class _Pings(_Answer):
    pings: list[Ping] | None = None


class _Diag(_Answer):
    statistics: dict[str, Any] | None = None


class SlurmClient:
    """One cluster's slurmrestd. Connections open when needed; end with `close`.

    base_url: like http://slurm-restapi.slurm:6820. key: the cluster's HS256 key. user: SlurmUser or root, for node
    updates need it. `fence` is asked before every write and raises when this process may no longer act.
    """

    def __init__(
        self,
        base_url: str,
        key: bytes,
        user: str = "slurm",
        *,
        fence: Callable[[], None] | None = None,
        observe: Observe | None = None,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self.version: tuple[int, int, int] | None = None
        """Release of slurmrestd as its answers say: (26, 5, 3); None before the first answer."""
        self._token = TokenSource(key, user)
        self._fence = fence
        self._observe = observe
        self._http = HttpClient(self.base_url)
        self._slots = asyncio.Semaphore(CONCURRENT)

    @property
    def incremental(self) -> bool:
        """True if this slurmrestd can be asked whether nodes changed since a time."""
        return self.version is not None and self.version >= UPDATE_TIME_WORKS

    async def close(self) -> None:
        await self._http.close()

    # --- reads ---

    async def ping(self) -> list[Ping]:
        """The slurmctld that respond, primary or not. Raises SlurmUnreachable when none does.

        slurmrestd answers 200 even then, and also to a token that nothing else accepts.
        """
        answer = await self._call("GET", "ping/", _Pings)
        up = [one for one in answer.pings or () if one.responding]
        if not up:
            tried = ", ".join(one.hostname for one in answer.pings or ()) or "none is configured"
            raise SlurmUnreachable(f"GET ping/: no slurmctld responds to slurmrestd ({tried})")
        return up

    async def nodes(self, update_time: int | None = None) -> NodesSnapshot | NotModified:
        """All nodes, or NotModified when nothing changed since `update_time` (the last snapshot's last_update)."""
        incremental = bool(update_time) and self.incremental
        path = f"nodes/?update_time={update_time}" if incremental else "nodes/"
        status, data = await self._send("GET", path, LIST_SECONDS)
        if status == 304:
            if incremental:
                return NOT_MODIFIED
            raise SlurmUnreadable(f"GET {path}: 'not modified' although nothing was asked to compare with")
        answer = self._decoded(f"GET {path}", data, _Nodes)
        nodes = _present(answer.nodes, path, "nodes")
        updated = answer.last_update.value() or 0
        if incremental and not nodes:
            # An empty list is how other endpoints say "nothing changed": only believed without the question.
            return await self.nodes()
        return NodesSnapshot({node.name: node for node in nodes}, updated)

    async def node(self, name: str) -> NodeInfo:
        """One node as slurmctld knows it now (1 to 2 ms). Raises SlurmNotFound.

        Of an unknown node slurmrestd says 200 with an error number 0, as it might of any trouble it has no number for.
        Such an answer is checked against the whole list.
        """
        path = f"node/{quote(name, safe='')}"
        try:
            answer = await self._call("GET", path, _Nodes)
            found = {node.name: node for node in _present(answer.nodes, path, "nodes")}
        except SlurmError as error:
            if error.code:
                raise
            snapshot = await self.nodes()
            found = snapshot.nodes if isinstance(snapshot, NodesSnapshot) else {}
        if name not in found:
            raise SlurmNotFound(f"GET {path}", INVALID_NODE, f"no node {name}", 200)
        return found[name]

    async def jobs_state(self) -> list[JobState]:
        """Id and state of every job slurmctld holds: 80 bytes a job where `jobs` takes 14 kB."""
        answer = await self._call("GET", "jobs/state/", _JobStates, LIST_SECONDS)
        jobs = _present(answer.jobs, "jobs/state/", "jobs")
        return [JobState(str(job.job_id), job.state | job.job_state) for job in jobs]

    async def jobs(self) -> list[JobInfo]:
        """Every job. Heavy: 14 kB of JSON each."""
        answer = await self._call("GET", "jobs/", _Jobs, LIST_SECONDS)
        return _present(answer.jobs, "jobs/", "jobs")

    async def job(self, job_id: int) -> JobInfo:
        """One job. Raises SlurmNotFound."""
        path = f"job/{job_id}"
        answer = await self._call("GET", path, _Jobs)
        for job in _present(answer.jobs, path, "jobs"):
            if job.id == job_id:
                return job
        raise SlurmNotFound(f"GET {path}", INVALID_JOB, f"no job {job_id}", 200)

    async def reservations(self) -> list[Reservation]:
        """Every reservation."""
        answer = await self._call("GET", "reservations/", _Reservations)
        return _present(answer.reservations, "reservations/", "reservations")

    async def diag(self) -> dict[str, Any]:
        """slurmctld's statistics as it names them."""
        answer = await self._call("GET", "diag/", _Diag)
        if answer.statistics is None:
            raise SlurmUnreadable("GET diag/: the answer has no statistics")
        return answer.statistics

    # --- writes ---

    async def update_nodes(self, names: Iterable[str], **change: Unpack[NodeUpdate]) -> None:
        """The same change on many nodes in one call (15,000 nodes drain in 0.1 s). No names: nothing is sent.

        Only what is given changes. DRAIN and DOWN need a reason. If one name is unknown, Slurm raises SlurmNotFound;
        the others may have changed.
        """
        body = _node_update(change)
        wanted = list(dict.fromkeys(names))
        if wanted:
            await self._call("POST", "nodes/", _Answer, body={"name": wanted, **body})

    async def update_node(self, name: str, **change: Unpack[NodeUpdate]) -> None:
        """Change one node; see update_nodes."""
        await self._call("POST", f"node/{quote(name, safe='')}", _Answer, body=_node_update(change))

    async def delete_node(self, name: str) -> None:
        """Forget a dynamic or external node. Raises SlurmBusy while a job runs on it, SlurmNotFound if there is none.

        Its slurmd goes on, unregistered, until it is restarted.
        """
        await self._call("DELETE", f"node/{quote(name, safe='')}", _Answer)

    async def create_node(self, node_conf: str) -> None:
        """Make a node from a line of slurm.conf: "NodeName=x1 CPUs=8 RealMemory=1000 State=EXTERNAL".

        Slurm takes the states FUTURE, CLOUD and EXTERNAL here and no other.
        """
        await self._call("POST", "new/node/", _Answer, body={"node_conf": node_conf})

    async def create_reservation(
        self,
        name: str,
        *,
        nodes: Sequence[str],
        users: Sequence[str],
        start: int,
        minutes: int,
        flags: Sequence[str] = (),
    ) -> None:
        """Make or change a reservation: `start` in UNIX seconds, for `minutes`."""
        body = {
            "name": name,
            "node_list": list(nodes),
            "users": list(users),
            "start_time": {"set": True, "number": start},
            "duration": {"set": True, "number": minutes},
            "flags": list(flags),
        }
        await self._call("POST", "reservation", _Answer, body=body)

    async def move_reservation(self, name: str, nodes: Sequence[str]) -> None:
        """Change which nodes a reservation holds, also one that has begun."""
        await self._call("POST", "reservation", _Answer, body={"name": name, "node_list": list(nodes)})

    async def delete_reservation(self, name: str) -> None:
        """Raises SlurmNotFound if there is none."""
        await self._call("DELETE", f"reservation/{quote(name, safe='')}", _Answer)

    async def requeue_job(self, job_id: int) -> None:
        """Put a running batch job back into the queue. Raises SlurmError where Slurm refuses.

        Needs slurmrestd 26.05 (see REQUEUE_WORKS): before it the only way is to set the job's nodes DOWN.
        """
        self._check_fence()
        await self._call("GET", f"/slurm/v0.0.45/job/{job_id}/requeue", _Answer)

    async def cancel_job(self, job_id: int) -> None:
        """End a job. Raises SlurmNotFound if there is none."""
        await self._call("DELETE", f"job/{job_id}", _Answer)

    async def reconfigure(self) -> None:
        """Have slurmctld read its configuration again.

        A success says little: with a faulty slurm.conf `slurmctld -D` answers 200 and exits. Prove the files before.
        """
        self._check_fence()
        await self._call("GET", "reconfigure/", _Answer)

    # --- the one way out ---

    def _check_fence(self) -> None:
        if self._fence is not None:
            self._fence()

    async def _call(
        self,
        method: str,
        path: str,
        kind: type[A],
        seconds: float = REQUEST_SECONDS,
        *,
        body: dict[str, Any] | None = None,
    ) -> A:
        """The decoded answer of a call that succeeded."""
        status, data = await self._send(method, path, seconds, body)
        if status == 304:
            raise SlurmUnreadable(f"{method} {path}: 'not modified' although nothing was asked to compare with")
        return self._decoded(f"{method} {path}", data, kind)

    async def _send(
        self, method: str, path: str, seconds: float, body: dict[str, Any] | None = None
    ) -> tuple[int, bytes]:
        """(HTTP status, body) with a status of 2xx or 304; a token that is refused is replaced once."""
        if method != "GET":
            self._check_fence()
        status, data = await self._once(method, path, seconds, body)
        if status in (401, 511):
            self._token.renew()
            status, data = await self._once(method, path, seconds, body)
        if status == 304 or 200 <= status < 300:
            return status, data
        raise _failure(f"{method} {path}", status, data)

    async def _once(self, method: str, path: str, seconds: float, body: dict[str, Any] | None) -> tuple[int, bytes]:
        headers = {
            "X-SLURM-USER-TOKEN": self._token(),
            "Accept": "application/json",
            "User-Agent": f"slurm-operator/{__version__}",
        }
        if body is not None:
            headers["Content-Type"] = "application/json"
        data = None if body is None else msgspec.json.encode(body)
        async with self._slots:
            began = time.monotonic()
            status = 0
            try:
                target = path if path.startswith("/") else API + path
                status, answer = await self._http.request(method, target, headers, data, seconds)
            except (OSError, EOFError, BadResponse) as error:  # TimeoutError is an OSError
                why = "timed out" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
                raise SlurmUnreachable(f"{method} {path}: {why}") from error
            finally:
                if self._observe is not None:
                    self._observe(method, status, time.monotonic() - began)
            return status, answer

    def _decoded(self, call: str, data: bytes, kind: type[A]) -> A:
        """The answer as `kind`; raises what its `errors` say. An empty body is an answer without anything."""
        try:
            answer = msgspec.json.decode(data or b"{}", type=kind)
        except msgspec.MsgspecError as error:
            raise SlurmUnreadable(f"{call}: {error}") from error
        if answer.errors:
            raise _failure(call, 200, data)
        if answer.meta is not None:
            self.version = _version(answer.meta.slurm.version) or self.version
        return answer


def _failure(call: str, status: int, data: bytes) -> SlurmException:
    try:
        answer = msgspec.json.decode(data or b"{}", type=_Answer)
    except msgspec.MsgspecError:
        text = data[:200].decode("utf-8", "replace").strip()
        return error_for(call, status, 0, text or "an answer without a body")
    errors = answer.errors or [ApiError()]
    first = next((error for error in errors if error.error_number), errors[0])
    words = [first.description or "", first.error or ""]
    return error_for(call, status, first.error_number, ": ".join(word for word in words if word))


def _present(items: list[T] | None, path: str, name: str) -> list[T]:
    if items is None:
        raise SlurmUnreadable(f"GET {path}: the answer has no {name}")
    return items


def _version(version: _Version) -> tuple[int, int, int] | None:
    try:
        return int(version.major), int(version.minor), int(version.micro)
    except ValueError:
        return None


def _node_update(change: NodeUpdate) -> dict[str, Any]:
    body: dict[str, Any] = {_WIRE_NAMES.get(name, name): value for name, value in change.items() if value is not None}
    if not body:
        raise ValueError("a node update needs something to change")
    if "state" in body:
        body["state"] = [body["state"]]
    if "weight" in body:
        body["weight"] = {"set": True, "number": body["weight"]}
    return body
