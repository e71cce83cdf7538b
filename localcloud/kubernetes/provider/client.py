"""HTTP to one API server: a connection pool shared by all threads, retries of what may be retried, errors in words."""

from __future__ import annotations

import json
import os
import socket
import ssl
import threading
import time
from typing import Any
from urllib.parse import urlencode, urlsplit

import urllib3
from urllib3.exceptions import HTTPError, MaxRetryError, NameResolutionError, NewConnectionError, SSLError

from localcloud.kubernetes.provider.auth import AuthError, Credential, Credentials, Kubeconfig

CONNECT_TIMEOUT = 5.0  # seconds
READ_TIMEOUT = 30.0  # seconds; the API server itself ends a request after 60
PATIENCE = 10.0  # seconds a real operation goes on trying when the server is away or busy (it may be restarting)
CONNECTIONS = 128  # kept open at most; no more calls than that run side by side
# A server that was found away is not asked again for this long by calls that need not succeed (previews, diffs).
BREAKER = 5.0

APPLY = "application/apply-patch+yaml"  # JSON is YAML
MERGE = "application/merge-patch+json"
JSON = "application/json"


class Unreachable(Exception):
    """The API server gave no answer, or no credentials could be had for it."""


class ApiError(Exception):
    """The API server refused: `status` is the HTTP code, `reason` and `causes` come from its Status object."""

    def __init__(self, status: int, body: dict[str, Any]) -> None:
        self.status = status
        self.reason: str = body.get("reason") or ""
        self.message: str = body.get("message") or f"HTTP status {status}"
        details = body.get("details") or {}
        self.causes: list[dict[str, str]] = details.get("causes") or []
        self.kind: str = details.get("kind") or ""
        self.name: str = details.get("name") or ""
        super().__init__(self.message)


class Client:
    """Requests to the API server of one kubeconfig, from any thread.

    Without a usable kubeconfig (an AuthError says why; None: a preview does not know it yet) each raises Unreachable.
    """

    def __init__(self, config: Kubeconfig | AuthError | None, timeout: float | None = None) -> None:
        self._config = config
        self._credentials = Credentials(config) if isinstance(config, Kubeconfig) else None
        self._read_timeout = timeout or READ_TIMEOUT
        self._patience = min(PATIENCE, timeout or PATIENCE)
        self._lock = threading.Lock()
        self._pool: urllib3.HTTPConnectionPool | None = None
        self._certificate: tuple[bytes, bytes] | None = None
        self._down: tuple[float, str] | None = None
        self._prefix = urlsplit(config.cluster.server).path.rstrip("/") if isinstance(config, Kubeconfig) else ""

    @property
    def config(self) -> Kubeconfig:
        """The kubeconfig in use. Raises Unreachable where there is none."""
        if self._config is None:
            raise Unreachable("the provider's kubeconfig is not known yet: the cluster is made by this same program")
        if isinstance(self._config, AuthError):
            raise Unreachable(str(self._config))
        return self._config

    @property
    def credentials(self) -> Credentials:
        """The credentials in use. Raises Unreachable where there is no kubeconfig."""
        if self._credentials is None:
            raise Unreachable(self.config.origin)  # `config` raises, with the reason
        return self._credentials

    def get(self, path: str, params: dict[str, str] | None = None, patient: bool = True) -> Any:
        return self.request("GET", path, params, patient=patient)

    def request(
        self,
        method: str,
        path: str,
        params: dict[str, str] | None = None,
        body: Any = None,
        content_type: str = JSON,
        patient: bool = True,
    ) -> Any:
        """The decoded JSON answer. Raises ApiError for an answer that is a refusal, Unreachable for none.

        `patient`: when the server is away or overloaded, go on trying for PATIENCE seconds, or for the client's
        timeout if that is less. Every request this provider makes may be repeated: applies, merge patches, deletes
        and reads.
        """
        data = None if body is None else json.dumps(body).encode()
        raw = self._send(method, path, params, data, content_type, patient)
        return json.loads(raw) if raw else {}

    def text(self, path: str, params: dict[str, str] | None = None) -> str:
        """The answer as text, for container logs."""
        raw: bytes = self._send("GET", path, params, None, JSON, False)
        return raw.decode("utf-8", "replace")

    def _send(
        self,
        method: str,
        path: str,
        params: dict[str, str] | None,
        data: bytes | None,
        content_type: str,
        patient: bool,
    ) -> bytes:
        down = self._down
        if down and not patient and time.monotonic() - down[0] < BREAKER:
            raise Unreachable(down[1])
        credentials = self.credentials
        url = self._prefix + path + (f"?{urlencode(params)}" if params else "")
        deadline = time.monotonic() + (self._patience if patient else 0)
        pause = 0.2
        refused = False
        while True:
            try:
                credential = credentials.get()
                response = self._pool_for(credential).urlopen(
                    method,
                    url,
                    body=data,
                    headers={"Accept": JSON, "Content-Type": content_type, **credential.headers},
                    retries=False,
                    redirect=False,
                )
            except AuthError as error:
                self._down = (time.monotonic(), str(error))
                raise Unreachable(str(error)) from None
            except (HTTPError, OSError) as error:
                message = self._explain(error)
                self._down = (time.monotonic(), message)
                # A certificate that is not trusted will not be trusted in a second either.
                if time.monotonic() + pause > deadline or isinstance(error, SSLError):
                    raise Unreachable(message) from error
            else:
                self._down = None
                if response.status < 300:
                    return response.data
                if response.status == 401 and not refused and credentials.invalidate():
                    refused = True
                    continue
                error_ = ApiError(response.status, _status_object(response.data))
                busy = response.status in (429, 503, 504) or _webhook_away(error_)
                if not busy or time.monotonic() + pause > deadline:
                    raise error_
            time.sleep(pause)
            pause = min(pause * 1.6, 2.0)

    def _pool_for(self, credential: Credential) -> urllib3.HTTPConnectionPool:
        with self._lock:
            if self._pool is None or credential.certificate != self._certificate:
                self._pool = self._open(credential)
                self._certificate = credential.certificate
            return self._pool

    def _open(self, credential: Credential) -> urllib3.HTTPConnectionPool:
        cluster = self.config.cluster
        address = urlsplit(cluster.server)
        timeout = urllib3.Timeout(connect=CONNECT_TIMEOUT, read=self._read_timeout)
        host = address.hostname or ""
        if address.scheme == "http":
            return urllib3.HTTPConnectionPool(host, address.port or 80, timeout=timeout, maxsize=CONNECTIONS)
        context = ssl.create_default_context()
        if cluster.ca:
            try:
                # The certificates of this cluster only, not those the system trusts.
                context = ssl.create_default_context(cadata=cluster.ca.decode())
            except (ssl.SSLError, ValueError) as error:
                raise AuthError(f"{self.config.origin}: the certificate authority is not PEM") from error
        if cluster.insecure:
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)  # the kubeconfig asks for it
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if credential.certificate:
            _load_certificate(context, credential.certificate, self.config.origin)
        name = cluster.tls_server_name
        return urllib3.HTTPSConnectionPool(
            host,
            address.port or 443,
            timeout=timeout,
            maxsize=CONNECTIONS,
            ssl_context=context,
            assert_hostname=False if cluster.insecure else name,
            server_hostname=name,
            cert_reqs="CERT_NONE" if cluster.insecure else "CERT_REQUIRED",
        )

    def _explain(self, error: BaseException) -> str:
        server = self.config.cluster.server
        cause: BaseException | None = error.reason if isinstance(error, MaxRetryError) else error
        seen: list[str] = []
        why = ""
        while cause is not None and not why:
            if isinstance(cause, ConnectionRefusedError):
                why = "connection refused: nothing listens there"
            elif isinstance(cause, (NameResolutionError, socket.gaierror)):
                why = "its host name cannot be resolved"
            elif isinstance(cause, ssl.SSLCertVerificationError):
                why = f"its certificate is not trusted ({cause.verify_message})"
            elif isinstance(cause, TimeoutError):
                why = f"no answer within {CONNECT_TIMEOUT:.0f} s"
            else:
                seen.append(str(cause))
                cause = cause.__cause__ or cause.__context__
        if not why:
            if isinstance(error, NewConnectionError) and "refused" in str(error):
                why = "connection refused: nothing listens there"
            elif "timed out" in str(error):
                why = f"no answer within {CONNECT_TIMEOUT:.0f} s"
            else:
                why = seen[-1] if seen else str(error)
        return (
            f"the Kubernetes API server at {server} cannot be reached: {why}. "
            f"Is the cluster running, and is this address reachable from here? ({self.config.origin}, "
            f"cluster {self.config.cluster.name})"
        )


def _status_object(raw: bytes) -> dict[str, Any]:
    try:
        body = json.loads(raw)
    except ValueError:
        return {"message": raw[:500].decode("utf-8", "replace").strip()}
    return body if isinstance(body, dict) else {}


def _webhook_away(error: ApiError) -> bool:
    """An admission webhook that was installed a moment ago and does not serve yet; asked again, it will."""
    return error.status == 500 and "failed calling webhook" in error.message


def _load_certificate(context: ssl.SSLContext, pair: tuple[bytes, bytes], origin: str) -> None:
    # The ssl module takes a client certificate from a file only; this one lives in memory, so no key touches the disk.
    handle = os.memfd_create("client-certificate")
    try:
        os.write(handle, b"\n".join(pair))
        context.load_cert_chain(f"/proc/self/fd/{handle}")
    except ssl.SSLError as error:
        raise AuthError(f"{origin}: the client certificate and key are not a pair of PEM texts") from error
    finally:
        os.close(handle)
