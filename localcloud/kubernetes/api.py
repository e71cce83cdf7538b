"""A small client of the Kubernetes API, for what the local cluster itself needs of it."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import socket
import ssl
import urllib.parse
from pathlib import Path
from typing import Any, Self

import yaml

from localcloud.kubernetes.errors import ClusterError

APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
JSON = "application/json"
HEADERS = {"Accept": JSON, "User-Agent": "slipway-localcloud"}


class ApiError(ClusterError):
    """The API server refused a request. `status` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Unreachable(ClusterError):
    """The API server does not answer."""


class _SocketConnection(http.client.HTTPConnection):
    """HTTP over a socket of this machine's file system."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Api:
    """Requests to the API server of a kubeconfig. Safe to use from several threads.

    Users with a client certificate or a token are supported, as a file or as data. Raises ClusterError on others.
    """

    endpoint: str
    ca: bytes

    @classmethod
    def of_socket(cls, path: Path) -> Self:
        """A client of an API that `kubectl proxy` serves on a socket; it may appear later."""
        client = cls.__new__(cls)
        client.endpoint, client.ca = f"unix://{path}", b""
        client._headers = dict(HEADERS)
        return client

    def __init__(self, kubeconfig: Path) -> None:
        try:
            document = yaml.safe_load(kubeconfig.read_text())
            context = _named(document["contexts"], document["current-context"])["context"]
            cluster = _named(document["clusters"], context["cluster"])["cluster"]
            user = _named(document["users"], context["user"])["user"]
        except OSError as error:
            raise ClusterError(f"kubeconfig {kubeconfig}: {error.strerror}") from None
        except (yaml.YAMLError, KeyError, TypeError, StopIteration) as error:
            raise ClusterError(f"kubeconfig {kubeconfig} cannot be read: {error!r}") from None
        self.endpoint = cluster["server"]
        self.ca = _data(kubeconfig, cluster, "certificate-authority") or b""
        self._headers = dict(HEADERS)
        self._tls = ssl.create_default_context(cadata=self.ca.decode() or None)
        if cluster.get("insecure-skip-tls-verify"):
            self._tls.check_hostname = False
            self._tls.verify_mode = ssl.CERT_NONE
        certificate, key = _data(kubeconfig, user, "client-certificate"), _data(kubeconfig, user, "client-key")
        token = user.get("token")
        if certificate and key:
            _load_certificate(self._tls, certificate + b"\n" + key)
        elif token:
            self._headers["Authorization"] = f"Bearer {token}"
        else:
            raise ClusterError(
                f"kubeconfig {kubeconfig}: user {context['user']!r} has neither a client certificate nor a token; "
                f"it has: {', '.join(sorted(user)) or 'nothing'}"
            )

    def connection(self, timeout: float) -> http.client.HTTPConnection:
        """A new connection, not opened yet. timeout: seconds for each step."""
        address = urllib.parse.urlsplit(self.endpoint)
        if address.scheme == "unix":
            return _SocketConnection(address.path, timeout)
        assert address.hostname
        return http.client.HTTPSConnection(address.hostname, address.port or 443, timeout=timeout, context=self._tls)

    def request(
        self, method: str, path: str, body: Any = None, content_type: str = JSON, timeout: float = 15
    ) -> dict[str, Any]:
        """One request; returns the decoded answer ({"text": …} if it is no JSON).

        Raises ApiError with the server's own message on a status of 400 and above, Unreachable without an answer.
        """
        connection = self.connection(timeout)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, self._headers | {"Content-Type": content_type})
            response = connection.getresponse()
            text = response.read().decode()
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"the API server at {self.endpoint} does not answer: {error}") from None
        finally:
            connection.close()
        answer: Any = {"text": text}
        with contextlib.suppress(ValueError):
            answer = json.loads(text)
        if response.status >= 400:
            message = answer.get("message") or text
            raise ApiError(response.status, f"{method} {path}: {response.status} {message}".strip())
        assert isinstance(answer, dict)
        return answer

    def get(self, path: str) -> dict[str, Any] | None:
        """An object, or None if there is no such."""
        try:
            return self.request("GET", path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def apply(self, path: str, obj: dict[str, Any], manager: str = "slipway-localcloud") -> dict[str, Any]:
        """Server-side apply of an object whose path is given; takes fields over from other managers."""
        return self.request("PATCH", f"{path}?fieldManager={manager}&force=true", obj, APPLY)

    def delete(self, path: str) -> None:
        """Delete an object; no error if it is not there."""
        try:
            self.request("DELETE", path)
        except ApiError as error:
            if error.status != 404:
                raise

    def ready(self) -> bool:
        """Whether the API server answers and says that it is ready."""
        try:
            return self.request("GET", "/readyz", timeout=2) == {"text": "ok"}
        except ClusterError:
            return False


def _named(entries: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(entry for entry in entries if entry["name"] == name)


def _data(kubeconfig: Path, entry: dict[str, Any], key: str) -> bytes | None:
    """A value that a kubeconfig holds as data or names as a file (relative to itself)."""
    if encoded := entry.get(f"{key}-data"):
        return base64.b64decode(str(encoded))
    if file := entry.get(key):
        return (kubeconfig.parent / str(file)).read_bytes()
    return None


def _load_certificate(tls: ssl.SSLContext, pem: bytes) -> None:
    # The ssl module reads certificates from files only; this one lives in memory, so that no key touches the disk.
    handle = os.memfd_create("certificate")
    try:
        os.write(handle, pem)
        tls.load_cert_chain(f"/proc/self/fd/{handle}")
    finally:
        os.close(handle)
