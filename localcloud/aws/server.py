"""The HTTP server of the AWS stand-in."""

from __future__ import annotations

import errno
import gc
import json
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from localcloud.aws import guards
from localcloud.aws.errors import AwsError, Response, json_response, render
from localcloud.aws.journal import Journal
from localcloud.aws.lookup import ROOT_CALLER, Lookup
from localcloud.aws.moto_cloud import Hook, MotoCloud
from localcloud.aws.request import AwsRequest
from localcloud.paths import AWS_ACCOUNT, instance

log = logging.getLogger(__name__)


class Cloud:
    """All of the stand-in in one process: moto with its checks, EKS, and the paths below /slipway/."""

    def __init__(self, state: Path) -> None:
        from localcloud.aws.eks import compute, core, store

        began = time.monotonic()
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
        # The hooks need the world, which needs moto: they are filled in once both are there.
        before: dict[tuple[str, str], Hook] = {}
        after: dict[tuple[str, str], Hook] = {}
        self.moto = MotoCloud(Journal(state / "journal.jsonl"), before, after)
        self.eks = core.Eks(store.Store(state / "eks.json", self.moto.lock), Lookup(self.moto), compute.compute())
        world = guards.World(self.eks.lookup, self._eks_users)
        before.update({key: partial(guard, world) for key, guard in guards.all_guards().items()})
        after.update({key: partial(effect, world) for key, effect in guards.all_effects().items()})
        self.replayed = self.moto.replay()
        self.replay_seconds = time.monotonic() - began

    def start_background(self) -> None:
        from localcloud.aws.eks import agent

        agent.start(self.eks)
        threading.Thread(target=self._warm_up, name="warm-up", daemon=True).start()

    def _warm_up(self) -> None:
        """Import what the first deployment asks for; EC2 alone takes a second."""
        for service in ("ec2", "iam", "sts", "kms", "logs"):
            self.moto.backend(service)

    def _eks_users(self, identifier: str) -> list[str]:
        """Clusters and node groups that use a subnet, security group or role."""
        users = []
        for cluster in self.eks.store.all("clusters"):
            vpc = cluster["resourcesVpcConfig"]
            uses = [*vpc["subnetIds"], *vpc["securityGroupIds"], vpc["clusterSecurityGroupId"], cluster["roleArn"]]
            if identifier in uses:
                users.append(f"EKS cluster {cluster['name']}")
        groups = self.eks.store.all("nodegroups")
        using = [group for group in groups if identifier in [*group["subnets"], group["nodeRole"]]]
        return users + [f"EKS node group {group['nodegroupName']}" for group in using]

    def answer(self, request: AwsRequest) -> Response:
        """The answer to any request, errors included."""
        request_id = str(uuid.uuid4())
        try:
            if request.path.startswith("/slipway/"):
                return self._own(request)
            if request.service == "eks":
                from localcloud.aws.eks import api

                return api.handle(self.eks, request)
            if request.action == "GetCallerIdentity" and self.eks.lookup.caller(request.access_key) is ROOT_CALLER:
                return _root_identity(request_id)
            return self.moto.handle(request)
        except AwsError as error:
            log.info("%s %s refused: %s", request.service or request.path, request.action or request.method, error)
            return render(error, request.protocol, request.service, request_id)
        except Exception as error:
            log.exception("%s %s %s", request.service, request.action or request.method, request.path)
            failure = AwsError(
                "InternalFailure", f"the AWS stand-in failed: {error!r}; see {instance().run}/aws.log", 500
            )
            return render(failure, request.protocol, request.service, request_id)

    def _own(self, request: AwsRequest) -> Response:
        """Paths that AWS does not have."""
        from localcloud.aws import inventory
        from localcloud.aws.eks import authenticate

        if request.path == "/slipway/health":
            return json_response({
                "status": "ok", "instance": instance().name, "process": os.getpid(), "replayed": self.replayed,
                "replaySeconds": round(self.replay_seconds, 3),
            })  # fmt: skip
        if request.path == "/slipway/inventory":
            with self.moto.lock:
                return json_response(inventory.inventory(self.eks))
        if request.path == "/slipway/authenticate" and request.method == "POST":
            with self.moto.lock:
                return json_response(authenticate.review(self.eks, json.loads(request.body)))
        return json_response({"message": f"there is no {request.method} {request.path}"}, 404)


def _root_identity(request_id: str) -> Response:
    """GetCallerIdentity for keys that IAM never gave out."""
    text = (
        '<GetCallerIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><GetCallerIdentityResult>'
        f"<Arn>{ROOT_CALLER.arn}</Arn><UserId>{ROOT_CALLER.user_id}</UserId><Account>{AWS_ACCOUNT}</Account>"
        f"</GetCallerIdentityResult><ResponseMetadata><RequestId>{request_id}</RequestId></ResponseMetadata>"
        "</GetCallerIdentityResponse>"
    )
    return Response(200, {"Content-Type": "text/xml"}, text.encode())


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "slipway-aws"
    disable_nagle_algorithm = True
    answer: Callable[[AwsRequest], Response]

    def _handle(self) -> None:
        path, _, query = self.path.partition("?")
        headers = {name.lower(): value for name, value in self.headers.items()}
        response = self.answer(AwsRequest(self.command, path, query, headers, self._body(headers)))
        self.send_response(response.status)
        for name, value in response.headers.items():
            if name.lower() not in ("content-length", "date", "server", "connection", "transfer-encoding"):
                self.send_header(name, value)
        # A HEAD answer carries the length of what GET would send (S3 objects), and no body.
        length = response.headers.get("Content-Length") or response.headers.get("content-length")
        head = self.command == "HEAD"
        self.send_header("Content-Length", str(length if head and length else len(response.body)))
        self.end_headers()
        if not head:
            self.wfile.write(response.body)

    def _body(self, headers: dict[str, str]) -> bytes:
        if headers.get("transfer-encoding", "").lower() != "chunked":
            return self.rfile.read(int(headers.get("content-length") or 0))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            continue
        return b"".join(parts)

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = do_PATCH = do_OPTIONS = _handle

    def log_message(self, format: str, *args: object) -> None:
        """No access log: the API server's token reviews alone would fill the disk."""


class PortInUse(Exception):
    """Something else listens on the stand-in's port."""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


def serve() -> None:
    """Serve until killed. Raises PortInUse; JournalError when the saved state cannot be read."""
    port = instance().aws_port
    try:
        server = Server(("127.0.0.1", port), _Handler, bind_and_activate=False)
        server.allow_reuse_address = True
        server.server_bind()
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise PortInUse(
            f"port {port} of 127.0.0.1 is in use by another program. Find it with `ss -ltnp 'sport = :{port}'`, "
            "or choose another SLIPWAY_NET"
        ) from error
    # What is loaded now stays: collecting garbage meanwhile takes a third of the time, and finds none.
    gc.disable()
    cloud = Cloud(instance().state / "aws")
    gc.freeze()
    gc.enable()
    _Handler.answer = staticmethod(cloud.answer)
    server.server_activate()
    cloud.start_background()
    log.info("ready on 127.0.0.1:%s, %s requests replayed in %.2f s", port, cloud.replayed, cloud.replay_seconds)
    server.serve_forever()
