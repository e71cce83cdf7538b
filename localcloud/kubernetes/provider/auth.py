"""Kubeconfigs and the credentials they lead to: tokens, token files, client certificates, passwords, exec plugins."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

EXEC_TIMEOUT = 60.0  # seconds an exec plugin may take
EXPIRY_MARGIN = 60.0  # seconds before its end at which a token is no longer used
_EXEC_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


class AuthError(Exception):
    """A kubeconfig that cannot be read, or credentials that cannot be had; the message says which and what to do."""


@dataclass(frozen=True)
class Cluster:
    """Where an API server is and how to know it is the right one."""

    name: str
    server: str
    ca: bytes | None = None
    insecure: bool = False
    tls_server_name: str | None = None


@dataclass(frozen=True)
class Kubeconfig:
    """What one context of a kubeconfig chooses; `origin` names it in messages."""

    cluster: Cluster
    user: dict[str, Any]
    namespace: str | None
    base: Path
    origin: str


@dataclass
class Credential:
    """What proves who we are: headers of each request, or a client certificate (PEM), or both."""

    headers: dict[str, str] = field(default_factory=dict)
    certificate: tuple[bytes, bytes] | None = None
    expires: datetime | None = None

    @property
    def token(self) -> str | None:
        kind, _, value = self.headers.get("Authorization", "").partition(" ")
        return value if kind == "Bearer" else None


def ambient_paths() -> list[Path]:
    """The kubeconfig files that kubectl would read: $KUBECONFIG, else ~/.kube/config."""
    listed = [Path(item).expanduser() for item in os.environ.get("KUBECONFIG", "").split(os.pathsep) if item]
    return listed or [Path("~/.kube/config").expanduser()]


def load(source: str | None, context: str | None = None, cluster: str | None = None) -> Kubeconfig:
    """The kubeconfig that `source` gives: its text (YAML or JSON), the path of a file, or None for the ambient one.

    `context` and `cluster` override what it chooses itself. Raises AuthError.
    """
    documents: list[tuple[dict[str, Any], Path]] = []
    if source is None:
        paths = [path for path in ambient_paths() if path.exists()]
        if not paths:
            raise AuthError(
                f"no kubeconfig: the provider has none and {', '.join(map(str, ambient_paths()))} does not exist. "
                "Give the provider a `kubeconfig`, or set KUBECONFIG."
            )
        documents = [(_parse(_read(path), str(path)), path.parent) for path in paths]
        origin = ", ".join(map(str, paths))
    elif "\n" in source or source.lstrip().startswith("{"):
        documents = [(_parse(source, "the provider's kubeconfig"), Path.cwd())]
        origin = "the provider's kubeconfig"
    else:
        path = Path(source).expanduser()
        documents = [(_parse(_read(path), str(path)), path.parent)]
        origin = str(path)
    return _choose(documents, origin, context, cluster)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise AuthError(f"kubeconfig {path}: {error.strerror}") from error


def _parse(text: str, origin: str) -> dict[str, Any]:
    try:
        # JSON is what the program gives, and its parser is a hundred times faster.
        document = json.loads(text) if text.lstrip().startswith("{") else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError) as error:
        where = getattr(error, "problem_mark", None)
        line = f" in line {where.line + 1}" if where else ""
        raise AuthError(f"{origin} is neither JSON nor YAML{line}") from None
    if not isinstance(document, dict):
        raise AuthError(f"{origin} is not a kubeconfig: it must be a map with clusters, users and contexts")
    return document


def _choose(
    documents: list[tuple[dict[str, Any], Path]], origin: str, context: str | None, cluster: str | None
) -> Kubeconfig:
    context_name = context or next((d["current-context"] for d, _ in documents if d.get("current-context")), None)
    if context_name is None:
        raise AuthError(f"{origin} has no current-context; set one, or the provider's `context`")
    chosen, _ = _named(documents, "contexts", "context", context_name, origin)
    cluster_name = cluster or chosen.get("cluster") or ""
    entry, base = _named(documents, "clusters", "cluster", cluster_name, origin)
    server = entry.get("server")
    if not isinstance(server, str) or not server.startswith(("https://", "http://")):
        raise AuthError(f'{origin}: cluster "{cluster_name}" has no server (an http:// or https:// address)')
    if entry.get("proxy-url"):
        raise AuthError(f'{origin}: cluster "{cluster_name}" has a proxy-url, which this provider does not serve')
    ca = _data(entry, "certificate-authority", base, origin)
    user: dict[str, Any] = {}
    if chosen.get("user"):
        user, base = _named(documents, "users", "user", chosen["user"], origin)
    for key in ("as", "as-groups", "as-user-extra", "as-uid", "auth-provider"):
        if user.get(key):
            raise AuthError(f'{origin}: user "{chosen["user"]}" has {key}, which this provider does not serve')
    return Kubeconfig(
        cluster=Cluster(
            name=cluster_name,
            server=server.rstrip("/"),
            ca=ca,
            insecure=bool(entry.get("insecure-skip-tls-verify")),
            tls_server_name=entry.get("tls-server-name"),
        ),
        user=user,
        namespace=chosen.get("namespace") or None,
        base=base,
        origin=origin,
    )


def _named(
    documents: list[tuple[dict[str, Any], Path]], section: str, key: str, name: str, origin: str
) -> tuple[dict[str, Any], Path]:
    known: list[str] = []
    for document, base in documents:
        for entry in document.get(section) or []:
            if entry.get("name") == name:
                return entry.get(key) or {}, base
            known.append(str(entry.get("name")))
    raise AuthError(f'{origin} has no {key} "{name}"; it has {", ".join(known) or "none"}')


def _data(entry: dict[str, Any], key: str, base: Path, origin: str) -> bytes | None:
    """`key`-data (base64) or the content of the file that `key` names, as a kubeconfig allows either."""
    if entry.get(f"{key}-data"):
        try:
            return base64.b64decode(entry[f"{key}-data"], validate=True)
        except ValueError as error:
            raise AuthError(f"{origin}: {key}-data is not base64") from error
    if entry.get(key):
        path = base / Path(entry[key]).expanduser()
        try:
            return path.read_bytes()
        except OSError as error:
            raise AuthError(f"{origin}: {key}: {path}: {error.strerror}") from error
    return None


class Credentials:
    """The credentials of a kubeconfig's user; an exec plugin is run when first needed and again when its token ends."""

    def __init__(self, config: Kubeconfig) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._held: Credential | None = None

    def get(self) -> Credential:
        """A credential that is valid now. Raises AuthError."""
        with self._lock:
            held = self._held
            if held and (not held.expires or (held.expires - datetime.now(UTC)).total_seconds() > EXPIRY_MARGIN):
                return held
            self._held = self._make()
            return self._held

    def invalidate(self) -> bool:
        """The server refused what `get` gave: forget it. False where a second try would give the same."""
        with self._lock:
            self._held = None
        return bool(self._config.user.get("exec") or self._config.user.get("tokenFile"))

    def _make(self) -> Credential:
        user, origin = self._config.user, self._config.origin
        if user.get("exec"):
            return run_exec(user["exec"], self._config.cluster)
        credential = Credential()
        if user.get("tokenFile"):
            path = self._config.base / Path(user["tokenFile"]).expanduser()
            credential.headers["Authorization"] = f"Bearer {_read(path).strip()}"
        elif user.get("token"):
            credential.headers["Authorization"] = f"Bearer {user['token']}"
        elif user.get("username"):
            pair = f"{user['username']}:{user.get('password', '')}".encode()
            credential.headers["Authorization"] = "Basic " + base64.b64encode(pair).decode()
        certificate = _data(user, "client-certificate", self._config.base, origin)
        key = _data(user, "client-key", self._config.base, origin)
        if certificate and key:
            credential.certificate = (certificate, key)
        return credential


def run_exec(plugin: dict[str, Any], cluster: Cluster) -> Credential:
    """Run an exec credential plugin, as `aws eks get-token` is one, and read the ExecCredential it prints."""
    version = plugin.get("apiVersion")
    command = [str(plugin.get("command", "")), *map(str, plugin.get("args") or [])]
    shown = " ".join(command)
    if version not in _EXEC_VERSIONS:
        raise AuthError(f"exec plugin `{shown}`: apiVersion {version} is not one of {', '.join(_EXEC_VERSIONS)}")
    spec: dict[str, Any] = {"interactive": False}
    if plugin.get("provideClusterInfo"):
        spec["cluster"] = {"server": cluster.server}
        if cluster.ca:
            spec["cluster"]["certificate-authority-data"] = base64.b64encode(cluster.ca).decode()
    environment = dict(os.environ)
    environment.update({item["name"]: item["value"] for item in plugin.get("env") or []})
    environment["KUBERNETES_EXEC_INFO"] = json.dumps({"apiVersion": version, "kind": "ExecCredential", "spec": spec})
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=EXEC_TIMEOUT,
            check=False,
        )
    except FileNotFoundError:
        hint = plugin.get("installHint") or f"Install {command[0]}, or add the folder it is in to PATH."
        raise AuthError(f"the kubeconfig's exec plugin `{shown}`: {command[0]} is not on PATH. {hint}") from None
    except OSError as error:
        raise AuthError(f"the kubeconfig's exec plugin `{shown}` cannot be run: {error.strerror}") from error
    except subprocess.TimeoutExpired:
        raise AuthError(f"the kubeconfig's exec plugin `{shown}` did not answer in {EXEC_TIMEOUT:.0f} s") from None
    if done.returncode:
        said = "; ".join(line for line in done.stderr.strip().splitlines()[-3:] if line) or "it said nothing"
        raise AuthError(f"the kubeconfig's exec plugin `{shown}` failed with exit code {done.returncode}: {said}")
    return _read_credential(done.stdout, shown)


def _read_credential(output: str, shown: str) -> Credential:
    try:
        status = json.loads(output)["status"]
        expires = status.get("expirationTimestamp")
        credential = Credential(expires=datetime.fromisoformat(expires) if expires else None)
    except (ValueError, KeyError, TypeError, AttributeError):
        # What it printed may hold a token, so it is not shown.
        raise AuthError(f"the kubeconfig's exec plugin `{shown}` printed no ExecCredential with a status") from None
    if status.get("token"):
        credential.headers["Authorization"] = f"Bearer {status['token']}"
    if status.get("clientCertificateData") and status.get("clientKeyData"):
        credential.certificate = (status["clientCertificateData"].encode(), status["clientKeyData"].encode())
    if not credential.headers and not credential.certificate:
        raise AuthError(f"the kubeconfig's exec plugin `{shown}` gave neither a token nor a client certificate")
    return credential


def single_user(config: Kubeconfig, credential: Credential, token_file: Path | None) -> dict[str, Any]:
    """A kubeconfig of this one cluster and credential, for a child process; `token_file` holds the token, if any."""
    cluster: dict[str, Any] = {"server": config.cluster.server}
    if config.cluster.ca:
        cluster["certificate-authority-data"] = base64.b64encode(config.cluster.ca).decode()
    if config.cluster.insecure:
        cluster["insecure-skip-tls-verify"] = True
    if config.cluster.tls_server_name:
        cluster["tls-server-name"] = config.cluster.tls_server_name
    user: dict[str, Any] = {}
    if token_file:
        user["tokenFile"] = str(token_file)
    elif config.user.get("username"):
        user.update(username=config.user["username"], password=config.user.get("password", ""))
    if credential.certificate:
        certificate, key = credential.certificate
        user["client-certificate-data"] = base64.b64encode(certificate).decode()
        user["client-key-data"] = base64.b64encode(key).decode()
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "this",
        "clusters": [{"name": "this", "cluster": cluster}],
        "users": [{"name": "this", "user": user}],
        "contexts": [{"name": "this", "context": {"cluster": "this", "user": "this"}}],
    }
