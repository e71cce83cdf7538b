"""Runs moto inside the server: one request at a time, repeatable, restored from the journal.

Differs from moto's own server: random ids and dates come from a seed and a clock kept per request, so that a replay
gives the same; AWS's managed policies exist; an operation that moto lacks is an error that says so.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import secrets
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree

from localcloud.aws.errors import AwsError, Response
from localcloud.aws.journal import Entry, Journal
from localcloud.aws.request import AwsRequest, query_request
from localcloud.paths import AWS_ACCOUNT, AWS_REGION

log = logging.getLogger(__name__)

Hook = Callable[[AwsRequest], None]


class _Clock:
    """moto's clock: the time of the running request, or the present."""

    def __init__(self) -> None:
        self.fixed: datetime | None = None

    def utcnow(self) -> datetime:
        return self.fixed or datetime.now(UTC).replace(tzinfo=None)


CLOCK = _Clock()


def _prepare_moto() -> None:
    """Patch moto before its services are imported: its clock, and what it loads without need."""
    # Otherwise every request looks for its access key in each of AWS's six partitions, which all get 1,582 policies.
    os.environ["MOTO_ACCOUNT_ID"] = AWS_ACCOUNT
    import moto.core.config
    import moto.core.utils
    import moto.utilities.utils

    moto.core.utils.utcnow = CLOCK.utcnow
    moto.core.config.default_user_config["iam"]["load_aws_managed_policies"] = True
    read_resource = moto.utilities.utils.load_resource

    def load_resource(resource: str) -> Any:
        # The offerings of the other 30 regions cost 0.4 s and 80 MB at import and are never asked for.
        if "instance_type_offerings/" in resource and f"/{AWS_REGION}." not in resource:
            return []
        return read_resource(resource)

    moto.utilities.utils.load_resource = load_resource
    _seed_backends()


def _seed_backends() -> None:
    """Make what moto makes by itself the same in every process."""
    from moto.core.base_backend import AccountSpecificBackend
    from moto.moto_api._internal import mock_random

    # Asking botocore for each service's regions loads 35 API descriptions; all have those of EC2.
    AccountSpecificBackend._generate_regions = lambda self, service: _regions()  # type: ignore[assignment, method-assign]
    make = AccountSpecificBackend.__getitem__

    def make_seeded(self: Any, region: str) -> Any:
        # A backend makes things of its own when it is first touched (default VPC, managed policies), in the middle of
        # whatever request that is: under a seed of its own, and without disturbing the seed of the request.
        if region in self.keys():
            return make(self, region)
        state = mock_random.getstate()
        mock_random.seed(_number(f"{self.service_name}/{self.account_id}/{region}"))
        try:
            return make(self, region)
        finally:
            mock_random.setstate(state)

    AccountSpecificBackend.__getitem__ = make_seeded  # type: ignore[method-assign]


@cache
def _regions() -> list[str]:
    import boto3

    return boto3.session.Session().get_available_regions("ec2")


@cache
def _seed_key_material() -> None:
    """KMS keys come back with the same material, so that what was encrypted can be decrypted after a restart."""
    import moto.kms.utils
    from moto.moto_api._internal import mock_random

    def seeded(number_of_bytes: int) -> bytes:
        return mock_random.randbytes(number_of_bytes)

    moto.kms.utils.generate_data_key = seeded


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


class MotoCloud:
    """All of moto behind one lock. `guards` run before a request and raise AwsError to refuse it; `effects` run after
    one that succeeded, also in a replay, and add what moto forgets."""

    def __init__(
        self, journal: Journal, guards: Mapping[tuple[str, str], Hook], effects: Mapping[tuple[str, str], Hook]
    ):
        _prepare_moto()
        import moto.backends
        from moto.moto_api._internal import mock_random
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

        self._services = frozenset(moto.backends.list_of_moto_modules())
        self.lock = threading.RLock()
        self._random = mock_random
        self._app = DomainDispatcherApplication(create_backend_app)
        self._journal = journal
        self._guards = guards
        self._effects = effects

    def replay(self) -> int:
        """Bring back the journal's state; returns the number of requests that were run again."""
        count = 0
        for entry in self._journal.entries():
            response = self._run(entry)
            if response.status >= 400:
                log.error(
                    "replay of %s %s failed: %s", entry.request.service, entry.request.action, response.body[:300]
                )
            count += 1
        return count

    def handle(self, request: AwsRequest) -> Response:
        """Answer one request. Raises AwsError for what AWS refuses and for what moto lacks."""
        with self.lock:
            self.backend(request.service, request.region)
            if not request.mutates:
                return self._call(request)
            guard = self._guards.get((request.service, request.action))
            if guard:
                guard(request)
            entry = Entry(request.for_journal(), secrets.randbits(64), CLOCK.utcnow())
            response = self._run(entry)
            if response.status < 400:
                self._journal.append(entry)
            return response

    def query(self, service: str, params: Mapping[str, str], region: str = AWS_REGION) -> ElementTree.Element:
        """Make a call of the stand-in's own, journalled like any other; returns the XML answer without namespaces."""
        response = self.handle(query_request(service, params, region))
        text = response.body.decode()
        root = ElementTree.fromstring(text)  # noqa: S314 - moto, in this process, wrote it
        for element in root.iter():
            element.tag = element.tag.rsplit("}", 1)[-1]
        if response.status >= 400:
            code, message = root.find(".//Code"), root.find(".//Message")
            raise AwsError(
                code.text or "" if code is not None else "InternalFailure",
                message.text or "" if message is not None else text,
            )
        return root

    def backend(self, service: str, region: str = AWS_REGION) -> Any:
        """moto's state of one service in one region, or None where moto has no such service."""
        with self.lock:
            return self._backend(service, region)

    def _backend(self, service: str, region: str) -> Any:
        import moto.backends

        if service == "kms":
            _seed_key_material()
        if service not in self._services:
            return None
        backends: Any = moto.backends.get_backend(service)  # type: ignore[call-overload]
        account = backends[AWS_ACCOUNT]
        return account[region] if region in account else account["aws"]

    def _run(self, entry: Entry) -> Response:
        self.backend(entry.request.service, entry.request.region)
        self._random.seed(entry.seed)
        CLOCK.fixed = entry.time
        try:
            response = self._call(entry.request)
            effect = self._effects.get((entry.request.service, entry.request.action))
            if effect and response.status < 400:
                effect(entry.request)
            return response
        finally:
            CLOCK.fixed = None

    def _call(self, request: AwsRequest) -> Response:
        """Run moto's WSGI application on the request."""
        environ: dict[str, Any] = {
            "REQUEST_METHOD": request.method, "SCRIPT_NAME": "", "PATH_INFO": unquote(request.path, "latin-1"),
            "RAW_URI": request.path + (f"?{request.query}" if request.query else ""),
            "REQUEST_URI": request.path + (f"?{request.query}" if request.query else ""),
            "QUERY_STRING": request.query, "SERVER_NAME": "127.0.0.1", "SERVER_PORT": "80",
            "SERVER_PROTOCOL": "HTTP/1.1", "CONTENT_LENGTH": str(len(request.body)),
            "CONTENT_TYPE": request.headers.get("content-type", ""), "wsgi.input": io.BytesIO(request.body),
            "wsgi.url_scheme": "http", "wsgi.errors": io.StringIO(), "wsgi.version": (1, 0),
            "wsgi.multithread": True, "wsgi.multiprocess": False, "wsgi.run_once": False,
        }  # fmt: skip
        for name, value in request.headers.items():
            if name not in ("content-type", "content-length"):
                environ["HTTP_" + name.upper().replace("-", "_")] = value
        answer: dict[str, Any] = {}

        def start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            answer.update(status=int(status.split()[0]), headers=dict(headers))
            return lambda _data: None

        try:
            chunks = self._app(environ, start_response)
            body = b"".join(chunks)
        except NotImplementedError as error:
            raise AwsError(
                "NotImplemented", f"the AWS stand-in (moto) has no {request.service} {request.action}: {error}", 501
            ) from error
        if "Content-Length" not in answer["headers"] and "content-length" not in answer["headers"]:
            answer["headers"]["Content-Length"] = str(len(body))
        return Response(answer["status"], answer["headers"], body)
