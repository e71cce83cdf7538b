"""Stands in for slurmrestd where a test needs a fault or an odd answer: real HTTP, answers in API v0.0.44's shape.

It checks the token's signature and time, keeps nodes and jobs, and answers the calls the operator makes with bodies
recorded from slurmrestd 26.05. It does not schedule, know partitions or validate states. Unknown paths are 404.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any, Self

from aiohttp import web

Fault = Callable[[web.Request], Awaitable[web.StreamResponse | None]]
PREFIX = "/slurm/v0.0.44/"


class FaultySlurmrestd:
    """`async with` it; `url` is where it listens, `key` signs tokens. `faults` are asked before each request."""

    def __init__(self) -> None:
        self.url = ""
        self.key = b"k" * 32
        self.release = ("26", "05", "5")
        self.nodes: dict[str, dict[str, Any]] = {}
        self.jobs: dict[int, dict[str, Any]] = {}
        self.updated = 1_700_000_000
        self.responding = True
        self.requests: list[tuple[str, str, Any]] = []
        self.tokens: list[str] = []
        self.peers: set[object] = set()
        """Addresses that connections came from."""
        self.faults: list[Fault] = []

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._runner.cleanup()

    def add_node(self, name: str, *states: str, **fields: Any) -> None:
        """A node, and the time of the last change moves on."""
        self.updated += 10
        self.nodes[name] = node(name, list(states) or ["IDLE", "DYNAMIC_NORM"], **fields)

    def answer(self, status: int = 200, errors: list[dict[str, Any]] | None = None, **content: Any) -> web.Response:
        """An answer in slurmrestd's frame."""
        major, minor, micro = self.release
        version = {"major": major, "micro": micro, "minor": minor}
        meta = {"plugin": {"type": "openapi/slurmctld"}, "slurm": {"version": version, "cluster": "c"}}
        return web.json_response({**content, "meta": meta, "errors": errors or [], "warnings": []}, status=status)

    def failure(self, status: int, number: int, text: str) -> web.Response:
        return self.answer(status, [{"description": text, "error_number": number, "error": text, "source": "test"}])

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        answer = await self._answer(request)
        if isinstance(answer, web.Response) and answer.status >= 400 and request.transport is not None:
            # As the real one: every error is sent twice, with its JSON and then as a text, and the connection closed.
            body = answer.body if isinstance(answer.body, bytes) else b""
            head = f"HTTP/1.1 {answer.status} ERROR\r\nConnection: Close\r\nContent-Length: "
            text = b"an error of some kind"
            first, second = (head.encode() + f"{len(one)}\r\n\r\n".encode() + one for one in (body, text))
            request.transport.write(first + second)
            request.transport.close()
        return answer

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json() if request.can_read_body else None
        self.requests.append((request.method, str(request.rel_url).removeprefix(PREFIX), body))
        self.peers.add(request.transport.get_extra_info("peername") if request.transport else None)
        self.tokens.append(request.headers.get("X-SLURM-USER-TOKEN", ""))
        for fault in self.faults:
            answer = await fault(request)
            if answer is not None:
                return answer
        path = request.path.removeprefix(PREFIX)
        token_problem = self._token_problem(self.tokens[-1])
        if path == "ping/":  # answers whatever the token is
            up = self.responding and not token_problem
            ping = {
                "hostname": "slurm-controller-0",
                "responding": up,
                "primary": up,
                "latency": 321,
                "mode": "primary",
            }
            return self.answer(pings=[ping])
        if token_problem:
            return self.failure(511, 1007, token_problem)
        if not self.responding:
            return self.failure(502, 1800, "Unable to contact slurm controller (connect failure)")
        return self._route(request.method, path, request, body)

    def _route(self, method: str, path: str, request: web.Request, body: Any) -> web.StreamResponse:
        last = number(self.updated)
        if (method, path) == ("GET", "nodes/"):
            if int(request.query.get("update_time", 0)) - 1 >= self.updated:
                return web.Response(status=304)
            return self.answer(nodes=list(self.nodes.values()), last_update=last)
        if (method, path) == ("POST", "nodes/"):
            unknown = [name for name in body["name"] if name not in self.nodes]
            for name in body["name"]:
                if name in self.nodes:
                    self._update(name, body)
            return self.failure(422, 2018, "Invalid node name specified") if unknown else self.answer()
        if path.startswith("node/"):
            name = path.removeprefix("node/")
            if name not in self.nodes and method == "GET":
                return self.failure(200, 0, f"Failure to query node {name}")
            if name not in self.nodes:
                return self.failure(422, 2018, "Invalid node name specified")
            if method == "GET":
                return self.answer(nodes=[self.nodes[name]], last_update=last)
            if method == "POST":
                self._update(name, body)
                return self.answer()
            if "ALLOCATED" in self.nodes[name]["state"]:
                return self.failure(422, 2016, "Requested nodes are busy")
            del self.nodes[name]
            return self.answer()
        if (method, path) == ("GET", "jobs/state/"):
            states = [{"job_id": str(number), "state": job["job_state"]} for number, job in self.jobs.items()]
            return self.answer(jobs=states)
        if (method, path) == ("GET", "jobs/"):
            return self.answer(jobs=list(self.jobs.values()), last_update=last, last_backfill=last)
        if method == "GET" and path.startswith("job/"):
            job = self.jobs.get(int(path.removeprefix("job/")))
            if job is None:
                return self.failure(404, 2017, "Invalid job id specified")
            return self.answer(jobs=[job], last_update=last, last_backfill=last)
        if (method, path) in (("GET", "reconfigure/"), ("POST", "new/node/"), ("POST", "reservation")):
            return self.answer()
        if (method, path) == ("GET", "reservations/"):
            return self.answer(reservations=[], last_update=last)
        if (method, path) == ("GET", "diag/"):
            return self.answer(statistics={"jobs_running": 0, "server_thread_count": 1})
        return web.Response(status=404, text="Unable find requested URL")

    def _update(self, name: str, body: dict[str, Any]) -> None:
        self.updated += 10
        target = self.nodes[name]
        for state in body.get("state", ()):
            if state == "DRAIN":
                target["state"] = [*target["state"], "DRAIN"]
            elif state in ("UNDRAIN", "RESUME"):
                target["state"] = [one for one in target["state"] if one != "DRAIN"]
        for field in ("reason", "comment", "extra"):
            if field in body:
                target[field] = body[field]

    def _token_problem(self, token: str) -> str:
        try:
            head, payload, mac = token.split(".")
            wanted = hmac.new(self.key, f"{head}.{payload}".encode(), hashlib.sha256).digest()
            claims = json.loads(unpad(payload))
            if not hmac.compare_digest(wanted, unpad(mac)) or not claims["iat"] <= time.time() < claims["exp"]:
                return "Protocol authentication error"
        except (ValueError, KeyError):
            return "Authentication failure"
        return ""


def unpad(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def number(value: int | None) -> dict[str, Any]:
    return {"set": value is not None, "infinite": False, "number": value or 0}


def node(name: str, states: list[str], **fields: Any) -> dict[str, Any]:
    """A node as slurmrestd 26.05 writes it, with the fields that the operator does not read left in."""
    return {
        "architecture": "x86_64", "burstbuffer_network_address": "", "boards": 1, "boot_time": number(1_763_700_000),
        "cluster_name": "", "cores": 1, "specialized_cores": 0, "cpu_binding": 0, "cpu_load": 12,
        "free_mem": number(20_000), "cpus": 2, "effective_cpus": 2, "specialized_cpus": "", "energy": {},
        "extra": "", "features": ["gpu"], "active_features": ["gpu"], "gpu_spec": "", "gres": "gpu:h100:8",
        "gres_drained": "N/A", "gres_used": "gpu:h100:0", "instance_id": "", "instance_type": "",
        "last_busy": number(1_763_700_100), "mcs_label": "", "specialized_memory": 0, "name": name,
        "next_state_after_reboot": ["INVALID"], "address": "10.91.1.4", "hostname": name, "state": states,
        "operating_system": "Linux 6.18", "owner": "", "partitions": ["all"], "port": 6818, "real_memory": 2000,
        "res_cores_per_gpu": 0, "comment": "", "reason": "", "reason_changed_at": number(0), "reason_set_by_user": "",
        "resume_after": number(None), "reservation": "", "alloc_memory": 0, "alloc_cpus": 0, "alloc_idle_cpus": 2,
        "tres_used": "", "tres_weighted": 0.0, "slurmd_start_time": number(1_763_700_050), "sockets": 2, "threads": 1,
        "temporary_disk": 0, "weight": 1, "topology": "", "tres": "cpu=2,mem=2000M", "version": "26.05.5",
        **fields,
    }  # fmt: skip


def job(job_id: int, states: list[str], **fields: Any) -> dict[str, Any]:
    """A job as slurmrestd 26.05 writes it, as far as the operator reads it."""
    return {
        "job_id": job_id, "name": "train", "job_state": states, "state_reason": "None", "user_name": "alice",
        "user_id": 1001, "account": "", "partition": "all", "nodes": "", "start_time": number(0),
        "end_time": number(0), "time_limit": number(10), "priority": number(1), **fields,
    }  # fmt: skip
