"""Where the API server is and how to prove who we are: in-cluster service account, or a kubeconfig."""

from __future__ import annotations

import base64
import os
import ssl
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_RELOAD_SECONDS = 60.0  # the kubelet renews a projected token at 80 % of its life, an hour by default


class AccessError(Exception):
    """No usable way to reach a cluster; the message says what is missing and what to do."""


class TokenFile:
    """A bearer token in a file that somebody else renews; read again every minute, or at once after a 401."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._token = ""
        self._read_at = -TOKEN_RELOAD_SECONDS

    def __call__(self, *, force: bool = False) -> str:
        if force or self._clock() - self._read_at >= TOKEN_RELOAD_SECONDS:
            try:
                token = self._path.read_text(encoding="utf-8").strip()
            except OSError as error:
                if not self._token:
                    raise AccessError(f"cannot read the service account token: {error}") from error
                token = self._token  # the kubelet swaps the file by rename; the old token is valid for a while
            self._token = token
            self._read_at = self._clock()
        return self._token


class StaticToken:
    """A token that never changes (from a kubeconfig)."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, *, force: bool = False) -> str:
        return self._token


@dataclass(frozen=True)
class Access:
    """How to reach one API server. `namespace` is the operator's own (in a cluster) or the context's."""

    server: str
    tls: ssl.SSLContext | None = None
    token: TokenFile | StaticToken | None = None
    namespace: str = "default"


def load_access(kubeconfig: Path | None = None) -> Access:
    """The given kubeconfig, else the pod's service account, else $KUBECONFIG, else ~/.kube/config."""
    if kubeconfig is not None:
        return from_kubeconfig(kubeconfig)
    if os.environ.get("KUBERNETES_SERVICE_HOST") and (SERVICE_ACCOUNT / "token").exists():
        return in_cluster()
    path = Path(os.environ.get("KUBECONFIG") or Path.home() / ".kube" / "config")
    if not path.exists():
        raise AccessError(f"not in a pod and no kubeconfig at {path}: pass --kubeconfig FILE or set KUBECONFIG")
    return from_kubeconfig(path)


def in_cluster(directory: Path = SERVICE_ACCOUNT) -> Access:
    """The service account of the pod we run in."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if ":" in host:
        host = f"[{host}]"
    return Access(
        server=f"https://{host}:{port}",
        tls=ssl.create_default_context(cafile=str(directory / "ca.crt")),
        token=TokenFile(directory / "token"),
        namespace=(directory / "namespace").read_text(encoding="utf-8").strip(),
    )


def from_kubeconfig(path: Path) -> Access:
    """The current context of a kubeconfig: client certificate, token or token file. Exec plug-ins are refused."""
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, yaml.YAMLError) as error:
        raise AccessError(f"{path}: {error}") from error
    name = config.get("current-context") or ""
    context = _named(config, "contexts", name, "context", path)
    cluster = _named(config, "clusters", context.get("cluster", ""), "cluster", path)
    user = _named(config, "users", context.get("user", ""), "user", path)
    if "exec" in user or "auth-provider" in user:
        raise AccessError(
            f"{path}: user {context['user']!r} signs in through a plug-in, which the operator does not run.\n"
            "  Run `kubectl proxy` and use a kubeconfig whose cluster is http://127.0.0.1:8001, or use a client "
            "certificate or token."
        )
    server = str(cluster.get("server", "")).rstrip("/")
    if not server.startswith(("http://", "https://")):
        raise AccessError(f"{path}: server {server!r} of the cluster: http://… or https://… is allowed")
    token: TokenFile | StaticToken | None = None
    if user.get("tokenFile"):
        token = TokenFile(path.parent / user["tokenFile"])
    elif user.get("token"):
        token = StaticToken(user["token"])
    return Access(
        server=server,
        tls=_tls(path, cluster, user) if server.startswith("https://") else None,
        token=token,
        namespace=context.get("namespace") or "default",
    )


def _named(config: dict[str, Any], section: str, name: str, inner: str, path: Path) -> dict[str, Any]:
    entries = config.get(section) or []
    for entry in entries:
        if entry.get("name") == name:
            return dict(entry.get(inner) or {})
    known = ", ".join(str(entry.get("name")) for entry in entries) or "none"
    raise AccessError(f"{path}: {section} has no entry named {name!r}; it has {known}")


def _tls(path: Path, cluster: dict[str, Any], user: dict[str, Any]) -> ssl.SSLContext:
    try:
        authority = _bytes(path, cluster, "certificate-authority")
        context = ssl.create_default_context(cadata=authority.decode("ascii") if authority else None)
        if cluster.get("tls-server-name"):
            raise AccessError(f"{path}: tls-server-name is not supported; use a server name the certificate holds")
        if cluster.get("insecure-skip-tls-verify"):
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        certificate, key = _bytes(path, user, "client-certificate"), _bytes(path, user, "client-key")
        if certificate and key:
            # OpenSSL takes the chain from files only; they live for the length of one call, readable by us alone.
            with tempfile.NamedTemporaryFile() as chain, tempfile.NamedTemporaryFile() as secret:
                chain.write(certificate)
                chain.flush()
                secret.write(key)
                secret.flush()
                context.load_cert_chain(chain.name, secret.name)
    except (OSError, ValueError) as error:
        raise AccessError(f"{path}: certificates cannot be used: {error}") from error
    return context


def _bytes(path: Path, section: dict[str, Any], name: str) -> bytes:
    """`<name>-data` (base64) or the file `<name>`, relative to the kubeconfig; empty when neither is given."""
    if section.get(f"{name}-data"):
        return base64.b64decode(section[f"{name}-data"])
    if section.get(name):
        return Path(path.parent, section[name]).read_bytes()
    return b""
