"""Transforms: functions of the program that may change a resource or a call before the engine sees it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import grpc
import grpc.aio
from pulumi.runtime.proto import callback_pb2, callback_pb2_grpc, resource_pb2

from localcloud.engine.errors import StepError
from localcloud.engine.plugins import GRPC_OPTIONS, details


class Transforms:
    """The transforms of one run: of the stack, of resources (which their children inherit), and of function calls."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.invoke: list[Any] = []
        self._own: dict[str, tuple[str, list[Any]]] = {}
        self._channels: dict[str, Any] = {}

    async def apply(self, request: Any) -> None:
        """Runs a registration through its own transforms, then those of its parents, then those of the stack."""
        for callback in [*request.transforms, *self._of_parents(request.parent), *self.stack]:
            asked = resource_pb2.TransformRequest(
                type=request.type, name=request.name, custom=request.custom, parent=request.parent,
                properties=request.object, options=_options(request),
            )  # fmt: skip
            answer = resource_pb2.TransformResponse.FromString(await self._call(callback, asked))
            if answer.HasField("properties"):
                request.object.CopyFrom(answer.properties)
            if answer.HasField("options"):
                _take_options(request, answer.options)

    def remember(self, urn: str, request: Any) -> None:
        """Keeps a resource's transforms for its children."""
        self._own[urn] = (request.parent, list(request.transforms))

    def _of_parents(self, parent: str) -> Iterable[Any]:
        while parent in self._own:
            parent, callbacks = self._own[parent]
            yield from callbacks

    async def apply_to_invoke(self, request: Any) -> None:
        for callback in self.invoke:
            asked = resource_pb2.TransformInvokeRequest(
                token=request.tok, args=request.args,
                options=resource_pb2.TransformInvokeOptions(
                    provider=request.provider, version=request.version, plugin_download_url=request.pluginDownloadURL
                ),
            )  # fmt: skip
            answer = resource_pb2.TransformInvokeResponse.FromString(await self._call(callback, asked))
            if answer.HasField("args"):
                request.args.CopyFrom(answer.args)
            if answer.HasField("options"):
                request.provider, request.version = answer.options.provider, answer.options.version

    async def _call(self, callback: Any, message: Any) -> bytes:
        if callback.target not in self._channels:
            self._channels[callback.target] = grpc.aio.insecure_channel(callback.target, options=GRPC_OPTIONS)
        stub = callback_pb2_grpc.CallbacksStub(self._channels[callback.target])
        request = callback_pb2.CallbackInvokeRequest(token=callback.token, request=message.SerializeToString())
        try:
            return bytes((await stub.Invoke(request)).response)
        except grpc.aio.AioRpcError as error:
            raise StepError(f"a transform of the program failed: {details(error)}") from error

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()


def _options(request: Any) -> resource_pb2.TransformResourceOptions:
    options = resource_pb2.TransformResourceOptions(
        depends_on=request.dependencies, ignore_changes=request.ignoreChanges,
        replace_on_changes=request.replaceOnChanges, version=request.version, aliases=request.aliases,
        provider=request.provider, plugin_download_url=request.pluginDownloadURL, deleted_with=request.deletedWith,
        additional_secret_outputs=request.additionalSecretOutputs, providers=request.providers,
        replace_with=request.replace_with, hide_diff=request.hideDiffs,
    )  # fmt: skip
    setattr(options, "import", request.importId)
    if request.HasField("protect"):
        options.protect = request.protect
    if request.HasField("retainOnDelete"):
        options.retain_on_delete = request.retainOnDelete
    if request.deleteBeforeReplaceDefined:
        options.delete_before_replace = request.deleteBeforeReplace
    if request.HasField("customTimeouts"):
        options.custom_timeouts.CopyFrom(request.customTimeouts)
    if request.HasField("hooks"):
        options.hooks.CopyFrom(request.hooks)
    if request.HasField("replacement_trigger"):
        options.replacement_trigger.CopyFrom(request.replacement_trigger)
    return options


_LISTS = {
    "dependencies": "depends_on", "ignoreChanges": "ignore_changes", "replaceOnChanges": "replace_on_changes",
    "aliases": "aliases", "additionalSecretOutputs": "additional_secret_outputs", "replace_with": "replace_with",
    "hideDiffs": "hide_diff",
}  # fmt: skip
_MESSAGES = {"customTimeouts": "custom_timeouts", "hooks": "hooks", "replacement_trigger": "replacement_trigger"}


def _take_options(request: Any, options: Any) -> None:
    for field, option in _LISTS.items():
        del getattr(request, field)[:]
        getattr(request, field).extend(getattr(options, option))
    request.providers.clear()
    request.providers.update(options.providers)
    request.version, request.provider = options.version, options.provider
    request.pluginDownloadURL, request.deletedWith = options.plugin_download_url, options.deleted_with
    request.importId = getattr(options, "import")
    for field, option in _MESSAGES.items():
        request.ClearField(field)
        if options.HasField(option):
            getattr(request, field).CopyFrom(getattr(options, option))
    for field, option in (("protect", "protect"), ("retainOnDelete", "retain_on_delete")):
        request.ClearField(field)
        if options.HasField(option):
            setattr(request, field, getattr(options, option))
    request.deleteBeforeReplaceDefined = options.HasField("delete_before_replace")
    request.deleteBeforeReplace = options.delete_before_replace
