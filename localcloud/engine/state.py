"""The state of a stack: resources and operations under way, kept in Pulumi's checkpoint format, version 3."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.metadata
import itertools
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from localcloud.engine import urns
from localcloud.engine.crypto import Crypter
from localcloud.engine.errors import EngineError
from localcloud.engine.values import SECRET, SIGNATURE, Properties, is_secret

VERSION = 3
_ENGINE_VERSION = f"v{importlib.metadata.version('pulumi')}"  # whose protocol and format this follows


@dataclass(eq=False)
class Resource:
    """One resource as the state knows it. Never changed once it is in a snapshot: `dataclasses.replace` it."""

    urn: str
    type: str
    custom: bool
    id: str = ""
    inputs: Properties = field(default_factory=dict)
    outputs: Properties = field(default_factory=dict)
    parent: str = ""
    provider: str = ""
    dependencies: list[str] = field(default_factory=list)
    property_dependencies: dict[str, list[str]] = field(default_factory=dict)
    protect: bool = False
    external: bool = False
    delete: bool = False
    pending_replacement: bool = False
    retain_on_delete: bool = False
    deleted_with: str = ""
    replace_with: list[str] = field(default_factory=list)
    init_errors: list[str] = field(default_factory=list)
    additional_secret_outputs: list[str] = field(default_factory=list)
    ignore_changes: list[str] = field(default_factory=list)
    replace_on_changes: list[str] = field(default_factory=list)
    replacement_trigger: Any = None
    custom_timeouts: dict[str, float] = field(default_factory=dict)
    import_id: str = ""
    created: str = ""
    modified: str = ""
    other: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return urns.parse(self.urn).name

    @property
    def reference(self) -> str:
        """What resources that this provider serves keep of it."""
        return f"{self.urn}::{self.id}"

    def refers_to(self) -> Iterator[str]:
        """URNs of every resource that has to exist as long as this one does."""
        if self.parent:
            yield self.parent
        if self.provider:
            yield urns.split_reference(self.provider)[0]
        if self.deleted_with:
            yield self.deleted_with
        yield from self.dependencies
        for names in self.property_dependencies.values():
            yield from names
        yield from self.replace_with


# Names in the checkpoint, where they are not the snake_case ones in camelCase.
_NAMES = {f.name: f.name for f in fields(Resource) if f.name != "other"} | {
    "property_dependencies": "propertyDependencies",
    "pending_replacement": "pendingReplacement",
    "retain_on_delete": "retainOnDelete",
    "deleted_with": "deletedWith",
    "replace_with": "replaceWith",
    "init_errors": "initErrors",
    "additional_secret_outputs": "additionalSecretOutputs",
    "ignore_changes": "ignoreChanges",
    "replace_on_changes": "replaceOnChanges",
    "replacement_trigger": "replacementTrigger",
    "custom_timeouts": "customTimeouts",
    "import_id": "importID",
}
_ALWAYS = {"urn", "custom", "type"}


@dataclass(frozen=True)
class Operation:
    """Something a provider was asked to do and has not answered: creating, updating, deleting, reading."""

    kind: str
    resource: Resource


@dataclass
class Snapshot:
    """What exists, as far as is known: one live resource per URN, old copies to delete, operations under way."""

    live: dict[str, Resource] = field(default_factory=dict)
    condemned: list[Resource] = field(default_factory=list)
    pending: dict[int, Operation] = field(default_factory=dict)
    _tokens: Iterator[int] = field(default_factory=itertools.count)

    def begin(self, kind: str, resource: Resource) -> int:
        token = next(self._tokens)
        self.pending[token] = Operation(kind, resource)
        return token

    def everything(self) -> list[Resource]:
        return [*self.live.values(), *self.condemned]

    def rename(self, old: str, new: str) -> None:
        """Resource `old` goes by `new` from now on, wherever it is referred to."""
        resource = self.live.pop(old)
        self.live[new] = replace(resource, urn=new)
        for urn, other in list(self.live.items()):
            self.live[urn] = _renamed(other, old, new)
        self.condemned = [_renamed(other, old, new) for other in self.condemned]

    def forget(self, urn: str) -> None:
        """Removes a resource and every reference to it."""
        self.live.pop(urn, None)
        for name, other in list(self.live.items()):
            if urn in other.refers_to():
                self.live[name] = _renamed(other, urn, "")

    def ordered(self) -> list[Resource]:
        """Every resource after all it refers to, as the format demands."""
        result: dict[str, Resource] = {}
        entered: set[str] = set()
        for urn in self.live:
            waiting = [urn]
            while waiting:  # no recursion: chains of dependencies may be long
                last = waiting[-1]
                missing = [] if last in entered else [u for u in self.live[last].refers_to() if u in self.live]
                entered.add(last)
                missing = [u for u in missing if u not in entered]
                if missing:
                    waiting += reversed(missing)
                else:
                    result.setdefault(last, self.live[last])
                    waiting.pop()
        return [*result.values(), *self.condemned]


def _renamed(resource: Resource, old: str, new: str) -> Resource:
    if old not in resource.refers_to():
        return resource

    def names(urns_: list[str]) -> list[str]:
        return [n for n in (new if u == old else u for u in urns_) if n]

    provider = resource.provider
    if provider and urns.split_reference(provider)[0] == old:
        provider = f"{new}::{urns.split_reference(provider)[1]}" if new else ""
    return replace(
        resource,
        parent=new if resource.parent == old else resource.parent,
        provider=provider,
        deleted_with=new if resource.deleted_with == old else resource.deleted_with,
        dependencies=names(resource.dependencies),
        property_dependencies={k: names(v) for k, v in resource.property_dependencies.items()},
        replace_with=names(resource.replace_with),
    )


def timestamp() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


class Store:
    """Reads and writes one stack's checkpoint file.

    crypter gives the key for secrets, and is only asked when there is one. Every write is whole: a new file is
    flushed to disk and takes the place of the old. `save` returns when what the snapshot held at the call is on disk;
    calls that come while a write runs share the next one.
    """

    def __init__(self, path: Path, stack: str, crypter: Callable[[str], Crypter]) -> None:
        self.path = path
        self.stack = stack
        self.salt = ""
        self.plugins: dict[str, dict[str, str]] = {}
        self._open = crypter
        self._ciphertexts: dict[tuple[str, str], str] = {}
        self._texts: dict[int, tuple[Resource, str]] = {}
        self._writing: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None

    # Reading

    def document(self) -> dict[str, Any]:
        """The deployment in the file; empty when the stack was never deployed."""
        try:
            content = json.loads(self.path.read_text())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise EngineError(f"{self.path}: the state cannot be read: {error}") from error
        if content.get("version") != VERSION:
            raise EngineError(f"{self.path}: checkpoint version {content.get('version')}; this engine reads {VERSION}")
        return (content.get("checkpoint") or {}).get("latest") or {}

    def load(self, document: dict[str, Any] | None = None) -> Snapshot:
        latest = self.document() if document is None else document
        provider = latest.get("secrets_providers") or {}
        if provider.get("type", "passphrase") != "passphrase":
            raise EngineError(f"{self.path}: secrets provider {provider['type']!r} needs the pulumi CLI")
        self.salt = (provider.get("state") or {}).get("salt", "")
        snapshot = Snapshot()
        for entry in latest.get("resources") or []:
            resource = self._from_json(entry)
            if resource.delete:
                snapshot.condemned.append(resource)
            else:
                snapshot.live[resource.urn] = resource
        for entry in latest.get("pending_operations") or []:
            snapshot.begin(entry["type"], self._from_json(entry["resource"]))
        return snapshot

    def _from_json(self, entry: dict[str, Any]) -> Resource:
        known = {shown: name for name, shown in _NAMES.items()}
        given = {known[key]: value for key, value in entry.items() if key in known and value is not None}
        for key in ("inputs", "outputs", "replacement_trigger"):
            if key in given:
                given[key] = self._opened(given[key], entry["urn"])
        return Resource(**given, other={key: value for key, value in entry.items() if key not in known})

    def _opened(self, value: Any, urn: str) -> Any:
        if isinstance(value, dict):
            if value.get(SIGNATURE) == SECRET:
                if "ciphertext" in value:
                    text = self._open(self.salt).decrypt(value["ciphertext"])
                    self._ciphertexts[urn, text] = value["ciphertext"]
                else:
                    text = value["plaintext"]
                return {SIGNATURE: SECRET, "value": json.loads(text)}
            return {key: self._opened(item, urn) for key, item in value.items()}
        if isinstance(value, list):
            return [self._opened(item, urn) for item in value]
        return value

    # Writing

    def _sealed(self, value: Any, urn: str, show: bool) -> Any:
        if isinstance(value, dict):
            if is_secret(value):
                text = json.dumps(value["value"])
                if show:
                    return {SIGNATURE: SECRET, "plaintext": text}
                if (urn, text) not in self._ciphertexts:
                    crypter = self._open(self.salt)
                    self._ciphertexts[urn, text] = crypter.encrypt(text)
                    self.salt = crypter.salt
                return {SIGNATURE: SECRET, "ciphertext": self._ciphertexts[urn, text]}
            return {key: self._sealed(item, urn, show) for key, item in value.items()}
        if isinstance(value, list):
            return [self._sealed(item, urn, show) for item in value]
        return value

    def to_json(self, resource: Resource, show: bool = False) -> dict[str, Any]:
        """The resource as the checkpoint has it: secrets as ciphertext, or in plain text when asked to show them."""
        entry: dict[str, Any] = {}
        for name, shown in _NAMES.items():
            value = getattr(resource, name)
            if name in _ALWAYS or value:
                entry[shown] = self._sealed(value, resource.urn, show) if isinstance(value, dict | list) else value
        return entry | resource.other

    def _text(self, resource: Resource) -> str:
        kept = self._texts.get(id(resource))
        if kept is None or kept[0] is not resource:
            kept = self._texts[id(resource)] = (resource, json.dumps(self.to_json(resource)))
        return kept[1]

    def deployment(self, snapshot: Snapshot, show: bool = False) -> dict[str, Any]:
        """The deployment as `stack export` gives it."""
        deployment = self._frame() | {"resources": [self.to_json(r, show) for r in snapshot.ordered()]}
        if snapshot.pending:
            deployment["pending_operations"] = [
                {"resource": self.to_json(op.resource, show), "type": op.kind} for op in snapshot.pending.values()
            ]
        if self.salt:
            deployment["secrets_providers"] = {"type": "passphrase", "state": {"salt": self.salt}}
        return deployment

    def _frame(self) -> dict[str, Any]:
        return {
            "manifest": {
                "time": timestamp(),
                "magic": hashlib.sha256(_ENGINE_VERSION.encode()).hexdigest(),
                "version": _ENGINE_VERSION,
                **({"plugins": list(self.plugins.values())} if self.plugins else {}),
            },
            "metadata": {},
        }

    def _render(self, snapshot: Snapshot) -> bytes:
        resources = ",\n".join(self._text(r) for r in snapshot.ordered())
        pending = ",\n".join(
            f'{{"resource":{self._text(op.resource)},"type":{json.dumps(op.kind)}}}' for op in snapshot.pending.values()
        )
        frame = self._frame()
        if self.salt:
            frame["secrets_providers"] = {"type": "passphrase", "state": {"salt": self.salt}}
        latest = json.dumps(frame)[:-1] + f',"resources":[\n{resources}]'
        latest += f',"pending_operations":[\n{pending}]}}' if pending else "}"
        in_use = {id(r) for r in snapshot.everything()} | {id(op.resource) for op in snapshot.pending.values()}
        self._texts = {key: kept for key, kept in self._texts.items() if key in in_use}
        return f'{{"version":{VERSION},"checkpoint":{{"stack":{json.dumps(self.stack)},"latest":{latest}}}}}\n'.encode()

    async def save(self, snapshot: Snapshot) -> None:
        if self._next is None:
            self._next = asyncio.create_task(self._write_after(self._writing, snapshot))
        await asyncio.shield(self._next)

    async def _write_after(self, before: asyncio.Task[None] | None, snapshot: Snapshot) -> None:
        if before is not None:
            await asyncio.wait([before])
        self._writing, self._next = self._next, None
        content = self._render(snapshot)
        await asyncio.to_thread(write_whole, self.path, content)

    def save_now(self, snapshot: Snapshot) -> None:
        write_whole(self.path, self._render(snapshot))


def write_whole(path: Path, content: bytes) -> None:
    """Puts the content in place at once: readers and a crash see the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    try:
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError as error:
        raise EngineError(f"{path}: the state cannot be written: {error.strerror}. Free space or fix the rights; "
                          "then run again: nothing that was recorded before is lost.") from error  # fmt: skip
