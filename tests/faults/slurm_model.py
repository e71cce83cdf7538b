"""Stands in for slurmctld and slurmrestd in tests of faults: nodes, whole-node jobs and the calls of API v0.0.44.

It knows what an operator must know of nodes: registration, drains and their reasons, DOWN, records that stay, busy
nodes that cannot be deleted, and `update_time`. It does not know partitions, priorities, or jobs on several nodes. A
call it does not know raises, and fails the test.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

PREFIX = "/slurm/v0.0.44/"
OURS = "slurm-operator: "
Answer = tuple[int, bytes]


@dataclass
class Node:
    """One record. `base` is IDLE or DOWN; whether it is ALLOCATED follows from the jobs."""

    name: str
    features: list[str]
    base: str = "IDLE"
    flags: set[str] = field(default_factory=lambda: {"DYNAMIC_NORM"})
    reason: str = ""
    comment: str = ""
    topology: str = ""
    slurmd: str = ""
    """uid of the pod whose slurmd is registered; "" when none answers."""


@dataclass
class Job:
    id: int
    node: str = ""
    ends: float = 0.0
    began: float = 0.0
    state: str = "PENDING"
    minutes: int = 60


class SlurmModel:
    """`now` gives UNIX seconds. `forbidden` collects what no operator may ever do."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.up = True
        self.nodes: dict[str, Node] = {}
        self.jobs: dict[int, Job] = {}
        self.admin: dict[str, str] = {}
        """Drains of an administrator: node -> reason."""
        self.forbidden: list[str] = []
        self.changed = True
        self._now = now
        self._updated = 0.0
        self._next_job = 1

    # --- what the world does ---

    def touch(self) -> None:
        self._updated = self._now()

    def register(self, name: str, features: Iterable[str], slurmd: str) -> bool:
        """A slurmd starts; False while slurmctld is away. ReturnToService=2, and a drain outlives it."""
        if not self.up:
            return False
        node = self.nodes.setdefault(name, Node(name, list(features)))
        node.slurmd = slurmd
        node.flags.discard("NOT_RESPONDING")
        if node.base == "DOWN":
            node.base = "IDLE"
            if "DRAIN" not in node.flags:
                node.reason = ""
        self.touch()
        return True

    def pre_stop(self, name: str) -> None:
        """What the worker's preStop hook does (desired/worker.py, PRE_STOP)."""
        node = self.nodes.get(name)
        if not self.up or node is None:
            return
        if "DRAIN" in node.flags:
            if node.reason.startswith(OURS):
                return
            self._down(node, node.reason)
        else:
            self._down(node, f"{OURS}Pod is terminating")

    def lost(self, slurmd: str) -> None:
        """The slurmd of that pod is gone: its jobs end, its node stops answering."""
        for node in self.nodes.values():
            if node.slurmd == slurmd:
                node.slurmd = ""
                node.flags.add("NOT_RESPONDING")
                self._end_jobs(node.name, "NODE_FAIL")
                self.touch()

    def down_if_silent(self, name: str) -> None:
        """SlurmdTimeout is over."""
        node = self.nodes.get(name)
        if node is not None and not node.slurmd and node.base != "DOWN":
            self._down(node, "Not responding" if "DRAIN" not in node.flags else node.reason)

    def submit(self, seconds: float) -> Job:
        job = Job(self._next_job, ends=seconds)
        self._next_job += 1
        self.jobs[job.id] = job
        self.schedule()
        return job

    def schedule(self) -> None:
        """Start what can start, end what is over."""
        if not self.up:
            return
        for job in self.jobs.values():
            if job.state == "RUNNING" and job.ends <= self._now():
                job.state = "COMPLETED"
                self.touch()
        free = [node for node in self.nodes.values() if self.usable(node)]
        for job in self.jobs.values():
            if job.state == "PENDING" and free:
                job.node, job.state = free.pop(0).name, "RUNNING"
                job.began, job.ends = self._now(), self._now() + job.ends
                self.touch()

    def usable(self, node: Node) -> bool:
        return node.base == "IDLE" and bool(node.slurmd) and "DRAIN" not in node.flags and not self.busy(node.name)

    def busy(self, name: str) -> bool:
        return any(job.state == "RUNNING" and job.node == name for job in self.jobs.values())

    def busy_for(self, name: str) -> float:
        """Seconds since when a job has been running there; 0 without one."""
        running = [job for job in self.jobs.values() if job.state == "RUNNING" and job.node == name]
        return max((self._now() - job.began for job in running), default=0.0)

    def admin_drain(self, name: str, reason: str) -> None:
        node = self.nodes[name]
        node.flags.add("DRAIN")
        node.reason = self.admin[name] = reason
        self.touch()

    def admin_resume(self, name: str) -> None:
        self.admin.pop(name, None)
        node = self.nodes[name]
        node.flags.discard("DRAIN")
        if node.base != "DOWN":
            node.reason = ""
        self.touch()

    def check(self) -> None:
        """Raises AssertionError if an administrator's drain was lost."""
        for name, reason in self.admin.items():
            node = self.nodes.get(name)
            assert node is not None, f"the record of {name}, which an administrator drained, was deleted"
            assert "DRAIN" in node.flags, f"the administrator's drain of {name} was undone"
            assert node.reason == reason, f"the administrator's reason on {name} became {node.reason!r}"
        assert not self.forbidden, self.forbidden

    def _down(self, node: Node, reason: str) -> None:
        node.base, node.reason = "DOWN", reason
        self._end_jobs(node.name, "REQUEUED")
        self.touch()

    def _end_jobs(self, name: str, state: str) -> None:
        for job in self.jobs.values():
            if job.state == "RUNNING" and job.node == name:
                job.state = state

    # --- slurmrestd ---

    def answer(self, method: str, url: str, body: bytes | None) -> Answer:
        """(status, body) of a call that arrived."""
        parts = urlsplit(url)
        path = unquote(parts.path.removeprefix(PREFIX))
        query = parse_qs(parts.query)
        sent = json.loads(body) if body else {}
        if path == "ping/":
            ping = {"hostname": "ctld", "responding": self.up, "primary": True, "latency": 100}
            return self._good(pings=[ping])
        if not self.up:
            return self._bad(502, 1800, "Unable to contact slurm controller (connect failure)")
        self.schedule()
        if (method, path) == ("GET", "nodes/"):
            asked = int(query.get("update_time", ["0"])[0])
            if asked and asked - 1 >= self._updated:
                return 304, b""
            last = _number(int(self._now()))
            return self._good(nodes=[self._node(node) for node in self.nodes.values()], last_update=last)
        if (method, path) == ("GET", "jobs/state/"):
            return self._good(jobs=[{"job_id": str(job.id), "state": [job.state]} for job in self.jobs.values()])
        if (method, path) == ("GET", "jobs/"):
            return self._good(jobs=[self._job(job) for job in self.jobs.values()])
        if method == "GET" and path.startswith("job/"):
            number = int(path.removeprefix("job/"))
            found = [self._job(self.jobs[number])] if number in self.jobs else []
            return self._good(jobs=found) if found else self._bad(422, 2017, "Invalid job id specified")
        if (method, path) == ("GET", "reservations/"):
            return self._good(reservations=[])
        if (method, path) == ("POST", "nodes/"):
            unknown = [name for name in sent["name"] if name not in self.nodes]
            for name in sent["name"]:
                if name in self.nodes:
                    self._update(self.nodes[name], sent)
            return self._bad(422, 2018, "Invalid node name specified") if unknown else self._good()
        assert path.startswith("node/"), f"the model has no {method} {url}"
        return self._one(method, path.removeprefix("node/"), sent)

    def _one(self, method: str, name: str, sent: dict[str, Any]) -> Answer:
        node = self.nodes.get(name)
        if node is None:
            return self._bad(200, 0, f"Failure to query node {name}") if method == "GET" else self._bad(422, 2018, "")
        if method == "GET":
            return self._good(nodes=[self._node(node)], last_update=_number(int(self._now())))
        if method == "POST":
            self._update(node, sent)
            return self._good()
        assert method == "DELETE", method
        if self.busy(name):
            return self._bad(422, 2016, "Requested nodes are busy")
        if name in self.admin:
            self.forbidden.append(f"deleted the record of {name}, which an administrator drained")
        if node.slurmd:
            self.forbidden.append(f"deleted the record of {name} while its slurmd answers")
        del self.nodes[name]
        self.touch()
        return self._good()

    def _update(self, node: Node, sent: dict[str, Any]) -> None:
        known = {"name", "state", "reason", "comment", "topology_str", "features", "features_act"}
        assert sent.keys() <= known, f"the model does not know {sent.keys() - known} of a node update"
        self.touch()
        foreign = node.name in self.admin
        for state in sent.get("state", ()):
            if foreign and (state != "DRAIN" or sent.get("reason") != self.admin[node.name]):
                self.forbidden.append(
                    f"{state} {sent.get('reason', '')!r} on {node.name} over an administrator's drain"
                )
            if state == "DRAIN":
                assert sent.get("reason"), "Slurm wants a reason for a drain"
                node.flags.add("DRAIN")
                node.reason = sent["reason"]
            elif state in ("UNDRAIN", "RESUME"):
                node.flags.discard("DRAIN")
                if node.base != "DOWN" or state == "RESUME":
                    node.reason = ""
            elif state == "IDLE":  # clears DRAIN, too
                node.base, node.reason = "IDLE", ""
                node.flags.discard("DRAIN")
            elif state == "DOWN":
                self._down(node, sent["reason"])
            else:
                raise AssertionError(f"the model does not know state {state}")
        node.comment = sent.get("comment", node.comment)
        node.topology = sent.get("topology_str", node.topology)
        if "features" in sent:
            node.features = list(sent["features"])

    def _node(self, node: Node) -> dict[str, Any]:
        base = "ALLOCATED" if self.busy(node.name) else node.base
        return {
            "name": node.name, "state": [base, *sorted(node.flags)], "reason": node.reason, "comment": node.comment,
            "features": node.features, "active_features": node.features, "alloc_cpus": 2 * self.busy(node.name),
            "cpus": 2, "hostname": node.name, "topology": node.topology,
        }  # fmt: skip

    def _job(self, job: Job) -> dict[str, Any]:
        start = self._now()
        return {
            "job_id": job.id, "job_state": [job.state], "nodes": job.node, "start_time": _number(int(start)),
            "time_limit": _number(job.minutes), "end_time": _number(int(start) + 60 * job.minutes),
        }  # fmt: skip

    def _good(self, **content: Any) -> Answer:
        version = {"major": "26", "micro": "5", "minor": "05"}
        meta = {"slurm": {"version": version}}
        return 200, json.dumps({**content, "meta": meta, "errors": []}).encode()

    def _bad(self, status: int, number: int, text: str) -> Answer:
        error = {"description": text, "error_number": number, "error": text}
        return status, json.dumps({"meta": {}, "errors": [error]}).encode()


def _number(value: int) -> dict[str, Any]:
    return {"set": True, "infinite": False, "number": value}
