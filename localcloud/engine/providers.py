"""Resource providers: one plugin process per provider resource, and the calls that Pulumi's engine makes to it."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf import empty_pb2
from pulumi.runtime.proto import plugin_pb2, provider_pb2, provider_pb2_grpc, status_pb2

from localcloud.engine import urns
from localcloud.engine.errors import EngineError, StepError
from localcloud.engine.plugins import Plugin, details
from localcloud.engine.state import Resource
from localcloud.engine.values import Properties, for_provider, from_struct, has_unknown, keep_secrets, plain, to_struct

_CANCEL_TIMEOUT = 1.0  # seconds that a provider may take to answer Cancel


@dataclass(frozen=True)
class Diff:
    """What a provider says of a change. detailed: kind (add, update, delete, with -replace) by property path."""

    changes: bool = False
    replaces: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    detailed: dict[str, str] = field(default_factory=dict)
    delete_before_replace: bool = False
    unknown: bool = False

    @property
    def replace(self) -> bool:
        return bool(self.replaces) or any(kind.endswith("-replace") for kind in self.detailed.values())

    @property
    def keys(self) -> list[str]:
        """The changed properties, most exact names first known."""
        return list(self.detailed) or list(dict.fromkeys([*self.changed, *self.replaces]))


@dataclass(frozen=True)
class Outcome:
    """A resource as a provider left it. init_errors: it exists, but did not become ready."""

    id: str
    outputs: Properties
    init_errors: list[str] = field(default_factory=list)
    inputs: Properties | None = None


def _decode_diff(response: Any) -> Diff:
    kinds = provider_pb2.PropertyDiff.Kind
    detailed = {k: kinds.Name(d.kind).lower().replace("_", "-") for k, d in response.detailedDiff.items()}
    return Diff(
        changes=response.changes == provider_pb2.DiffResponse.DIFF_SOME,
        replaces=tuple(response.replaces),
        changed=tuple(response.diffs),
        detailed=detailed if response.hasDetailedDiff else {},
        delete_before_replace=response.deleteBeforeReplace,
        unknown=response.changes == provider_pb2.DiffResponse.DIFF_UNKNOWN,
    )


class Provider:
    """One provider instance. A `limit` is a time in seconds that an operation may take; 0 leaves it to the provider.

    known is False while its configuration holds values that only an update will know; then nothing is asked of it.
    """

    def __init__(self, package: str, plugin: Plugin) -> None:
        self.package = package
        self.plugin = plugin
        self.version = ""
        self.known = True
        self._accepts_secrets = False
        self._accepts_resources = False
        self._supports_preview = False
        self._shook_hands = False
        self._stub: Any = None

    async def open(self, engine_address: str) -> None:
        """Starts the process and agrees on the protocol."""
        await self.plugin.start()
        self._stub = provider_pb2_grpc.ResourceProviderStub(self.plugin.channel)
        directory = str(Path(self.plugin.command[0]).parent)
        with suppress(NotImplementedError):
            answer = await self._call(
                "Handshake",
                provider_pb2.ProviderHandshakeRequest(
                    engine_address=engine_address,
                    root_directory=directory,
                    program_directory=directory,
                    configure_with_urn=True,
                    invoke_with_preview=True,
                ),
            )
            self._accepts_secrets = answer.accept_secrets
            self._accepts_resources = answer.accept_resources
            self._supports_preview = True
            self._shook_hands = True
        with suppress(NotImplementedError):
            info: plugin_pb2.PluginInfo = await self._call("GetPluginInfo", empty_pb2.Empty())
            self.version = info.version

    async def _call(self, method: str, request: Any) -> Any:
        """One call. Raises NotImplementedError where the provider has no such method, else StepError."""
        try:
            return await getattr(self._stub, method)(request)
        except grpc.aio.AioRpcError as error:
            if error.code() == grpc.StatusCode.UNIMPLEMENTED:
                raise NotImplementedError(method) from error
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
                await asyncio.sleep(0.05)  # lets the reader take in what the process said last
                raise StepError(
                    f"the {self.package} provider ended while it was asked to {method}.{self.plugin.last_words()}",
                    uncertain=True,
                ) from error
            failed = _init_failed(error)
            if failed is not None:
                raise _PartialError(failed) from error
            raise StepError(details(error)) from error

    def _out(self, value: Properties) -> Any:
        return to_struct(for_provider(value, secrets=self._accepts_secrets, resources=self._accepts_resources))

    # The provider resource itself

    async def check_config(self, urn: str, olds: Properties, news: Properties) -> tuple[Properties, list[str]]:
        """Checked configuration, and what is wrong with it. By the protocol, secrets are not told apart here."""
        name = urns.parse(urn)
        request = provider_pb2.CheckRequest(
            urn=urn, name=name.name, type=name.type, olds=to_struct(plain(olds)), news=to_struct(plain(news))
        )
        try:
            answer = await self._call("CheckConfig", request)
        except NotImplementedError:
            return news, []
        inputs = keep_secrets(from_struct(answer.inputs), news)
        if "version" in news:
            inputs.setdefault("version", news["version"])
        return inputs, [_failure(f) for f in answer.failures]

    async def diff_config(self, urn: str, old: Resource, news: Properties) -> Diff:
        name = urns.parse(urn)
        request = provider_pb2.DiffRequest(
            id=old.id, urn=urn, name=name.name, type=name.type,
            olds=to_struct(plain(old.outputs)), old_inputs=to_struct(plain(old.inputs)), news=to_struct(plain(news)),
        )  # fmt: skip
        try:
            return _decode_diff(await self._call("DiffConfig", request))
        except NotImplementedError:
            return Diff(unknown=True)

    async def configure(self, urn: str, id_: str, inputs: Properties) -> None:
        """Makes the provider ready to work, unless its configuration is not known yet."""
        self.known = not has_unknown(inputs)
        if not self.known:
            return
        name = urns.parse(urn)
        texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in plain(inputs).items() if k != "version"}
        request = provider_pb2.ConfigureRequest(
            urn=urn, name=name.name, type=name.type, id=id_, args=to_struct(inputs), acceptSecrets=True,
            acceptResources=True, sends_old_inputs=True, sends_old_inputs_to_delete=True,
            variables={f"{self.package}:config:{key}": text for key, text in texts.items()},
        )  # fmt: skip
        answer = await self._call("Configure", request)
        if not self._shook_hands:
            self._accepts_secrets = answer.acceptSecrets
            self._accepts_resources = answer.acceptResources
            self._supports_preview = answer.supportsPreview

    # Resources

    async def check(
        self, urn: str, olds: Properties | None, news: Properties, seed: bytes
    ) -> tuple[Properties, list[str]]:
        """Checked inputs with defaults and automatic names, and what is wrong with them."""
        if not self.known:
            return news, []
        name = urns.parse(urn)
        request = provider_pb2.CheckRequest(
            urn=urn, name=name.name, type=name.type, olds=self._out(olds or {}), news=self._out(news), randomSeed=seed
        )
        try:
            answer = await self._call("Check", request)
        except NotImplementedError:
            return news, []
        return keep_secrets(from_struct(answer.inputs), news), [_failure(f) for f in answer.failures]

    async def diff(self, old: Resource, news: Properties, ignore: Sequence[str]) -> Diff:
        if not self.known:
            return Diff(unknown=True)
        name = urns.parse(old.urn)
        request = provider_pb2.DiffRequest(
            id=old.id, urn=old.urn, name=name.name, type=name.type, ignoreChanges=ignore,
            olds=self._out(old.outputs), old_inputs=self._out(old.inputs), news=self._out(news),
        )  # fmt: skip
        try:
            return _decode_diff(await self._call("Diff", request))
        except NotImplementedError:
            return Diff(unknown=True)

    async def create(self, new: Resource, limit: float, preview: bool) -> Outcome:
        if preview and not (self.known and self._supports_preview):
            return Outcome("", new.inputs if self.known else {})
        request = provider_pb2.CreateRequest(
            urn=new.urn, name=new.name, type=new.type, properties=self._out(new.inputs), timeout=limit,
            preview=preview,
        )  # fmt: skip
        outcome = await self._changed("Create", request, new.inputs)
        if not outcome.id and not preview:
            raise StepError(f"the {self.package} provider created it without an id", uncertain=True)
        return outcome

    async def update(self, old: Resource, new: Resource, limit: float, ignore: Sequence[str], preview: bool) -> Outcome:
        if preview and not (self.known and self._supports_preview):
            return Outcome(old.id, new.inputs if self.known else {})
        request = provider_pb2.UpdateRequest(
            id=old.id, urn=new.urn, name=new.name, type=new.type, timeout=limit, ignoreChanges=ignore,
            olds=self._out(old.outputs), old_inputs=self._out(old.inputs), news=self._out(new.inputs), preview=preview,
        )  # fmt: skip
        outcome = await self._changed("Update", request, new.inputs)
        return Outcome(old.id, outcome.outputs, outcome.init_errors)

    async def _changed(self, method: str, request: Any, inputs: Properties) -> Outcome:
        try:
            answer = await self._call(method, request)
        except _PartialError as error:
            outputs = keep_secrets(from_struct(error.failed.properties), inputs)
            return Outcome(error.failed.id, outputs, list(error.failed.reasons) or ["did not become ready"])
        except NotImplementedError as error:
            raise StepError(f"the {self.package} provider cannot {method.lower()} resources") from error
        return Outcome(getattr(answer, "id", ""), keep_secrets(from_struct(answer.properties), inputs))

    async def read(
        self, urn: str, id_: str, inputs: Properties | None, outputs: Properties, limit: float = 0
    ) -> Outcome | None:
        """What exists under the id, or None."""
        name = urns.parse(urn)
        request = provider_pb2.ReadRequest(
            id=id_, urn=urn, name=name.name, type=name.type, properties=self._out(outputs), timeout=limit
        )
        if inputs is not None:
            request.inputs.CopyFrom(self._out(inputs))
        errors: list[str] = []
        try:
            answer = await self._call("Read", request)
        except _PartialError as error:
            answer, errors = error.failed, list(error.failed.reasons)
        except NotImplementedError as error:
            raise StepError(f"the {self.package} provider cannot read resources") from error
        if not answer.id:
            return None
        found = from_struct(answer.inputs) if answer.HasField("inputs") else None
        return Outcome(
            answer.id,
            keep_secrets(keep_secrets(from_struct(answer.properties), outputs), inputs or {}),
            errors,
            None if found is None else keep_secrets(found, inputs or {}),
        )

    async def delete(self, old: Resource, limit: float) -> None:
        request = provider_pb2.DeleteRequest(
            id=old.id, urn=old.urn, name=old.name, type=old.type, timeout=limit,
            properties=self._out(old.outputs), old_inputs=self._out(old.inputs),
        )  # fmt: skip
        try:
            await self._call("Delete", request)
        except _PartialError as error:
            raise StepError("; ".join(error.failed.reasons)) from error
        except NotImplementedError as error:
            raise StepError(f"the {self.package} provider cannot delete resources") from error

    async def invoke(self, token: str, args: Properties, preview: bool) -> tuple[Properties, list[str]]:
        request = provider_pb2.InvokeRequest(tok=token, args=self._out(args), preview=preview)
        try:
            answer = await self._call("Invoke", request)
        except NotImplementedError as error:
            raise StepError(f"the {self.package} provider has no functions") from error
        return from_struct(getattr(answer, "return")), [_failure(f) for f in answer.failures]

    async def raw(self, method: str, request: Any) -> Any:
        """Construct and Call, whose messages pass through unchanged."""
        try:
            return await self._call(method, request)
        except NotImplementedError as error:
            raise StepError(f"the {self.package} provider has no {method}") from error

    async def cancel(self) -> None:
        """Asks to end what is under way soon."""
        if self._stub is not None and not self.plugin.dead:
            with suppress(StepError, NotImplementedError, TimeoutError):
                await asyncio.wait_for(self._call("Cancel", empty_pb2.Empty()), _CANCEL_TIMEOUT)


class _PartialError(StepError):
    """The resource exists, but did not become ready."""

    def __init__(self, failed: Any) -> None:
        super().__init__("; ".join(failed.reasons))
        self.failed = failed


def _init_failed(error: grpc.aio.AioRpcError) -> Any:
    """The ErrorResourceInitFailed among an error's details, if there is one."""
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            for detail in status_pb2.Status.FromString(bytes(value)).details:
                failed = provider_pb2.ErrorResourceInitFailed()
                if detail.Unpack(failed):
                    return failed
    return None


def _failure(failure: Any) -> str:
    return f"{failure.property}: {failure.reason}" if failure.property else str(failure.reason)


class Providers:
    """The provider instances of one run, by reference; processes are started ahead where they are sure to be needed."""

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        self._directory = directory
        self._environment = environment
        self._address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting: dict[str, list[asyncio.Task[Provider]]] = {}
        self._all: list[Provider] = []
        self._current: dict[str, tuple[str, Provider]] = {}
        self._loaded: dict[str, asyncio.Task[Provider]] = {}

    def serve_at(self, engine_address: str) -> None:
        """Where the engine's services listen; processes start from now on."""
        self._address.set_result(engine_address)

    def executable(self, package: str) -> str | None:
        return shutil.which(f"pulumi-resource-{package}", path=self._environment.get("PATH"))

    def start_ahead(self, package: str) -> None:
        if self.executable(package):
            self._waiting.setdefault(package, []).append(asyncio.create_task(self._start(package)))

    async def fresh(self, package: str) -> Provider:
        """A started provider that nobody has configured."""
        waiting = self._waiting.get(package)
        return await (waiting.pop() if waiting else self._start(package))

    async def _start(self, package: str) -> Provider:
        executable = self.executable(package)
        if executable is None:
            raise StepError(
                f"package {package!r} has no provider: an executable pulumi-resource-{package} is expected on PATH"
            )
        address = await self._address
        plugin = Plugin(f"provider {package}", [executable, address], self._directory, self._environment)
        provider = Provider(package, plugin)
        self._all.append(provider)
        await provider.open(address)
        return provider

    def put(self, urn: str, id_: str, provider: Provider) -> None:
        """The provider that serves the resources of this run which refer to the URN."""
        self._current[urn] = (id_, provider)

    async def resolve(self, reference: str, find: Callable[[str], Resource | None]) -> Provider:
        """The provider a resource refers to; one that only the state knows is started with the inputs kept there."""
        urn, id_ = urns.split_reference(reference)
        current = self._current.get(urn)
        old = find(reference)
        if current and (current[0] in ("", id_) or old is None):
            return current[1]
        if old is None:
            raise StepError(f"provider {reference} is neither in the program nor in the state")
        if reference not in self._loaded:
            self._loaded[reference] = asyncio.create_task(self._load(old))
        return await asyncio.shield(self._loaded[reference])

    async def _load(self, old: Resource) -> Provider:
        provider = await self.fresh(urns.package_of(old.type))
        await provider.configure(old.urn, old.id, old.inputs)
        return provider

    def plugins(self) -> dict[str, dict[str, str]]:
        """What the manifest says of each plugin."""
        return {
            p.package: {"name": p.package, "path": p.plugin.command[0], "type": "resource", "version": p.version}
            for p in self._all
        }

    async def cancel(self) -> None:
        await asyncio.gather(*(provider.cancel() for provider in self._all))

    def kill(self) -> None:
        for provider in self._all:
            provider.plugin.kill()

    async def stop(self) -> None:
        for task in [*(t for tasks in self._waiting.values() for t in tasks), *self._loaded.values()]:
            if not task.done():
                task.cancel()
            with suppress(asyncio.CancelledError, EngineError):
                await task
        await self.cancel()
        await asyncio.gather(*(provider.plugin.stop() for provider in self._all))
