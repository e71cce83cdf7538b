"""The provider's gRPC service (pulumirpc.ResourceProvider), and the start of its process.

Spawned by an engine it is given the engine's address as its last argument and prints its own port on a line. Calls run
side by side in threads; nothing is asked of the cluster before an operation needs it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
from google.protobuf.empty_pb2 import Empty
from pulumi.runtime.proto import engine_pb2, engine_pb2_grpc, plugin_pb2, status_pb2
from pulumi.runtime.proto import provider_pb2 as pb
from pulumi.runtime.proto import provider_pb2_grpc as pb_grpc

from localcloud.kubernetes.provider import auth, check, config, diff
from localcloud.kubernetes.provider.client import ApiError, Unreachable
from localcloud.kubernetes.provider.cluster import Cancelled, Cluster
from localcloud.kubernetes.provider.errors import Failure, InitFailed
from localcloud.kubernetes.provider.objects import Objects, State, Subject, secret_paths
from localcloud.kubernetes.provider.wire import Object, WireError, decode, encode, format_path, plain
from localcloud.kubernetes.provider.wire import Path as PropertyPath

if TYPE_CHECKING:  # helm's modules are loaded when a release is met
    from localcloud.kubernetes.provider.helm import Releases

_WORKERS = 128  # threads are made as needed; a call may wait ten minutes for a pod
_MESSAGE_SIZE = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]

Method = TypeVar("Method", bound=Callable[..., Any])


def answered(method: Method) -> Method:
    """What goes wrong in a call is told to the engine as the call's error, in words."""

    @wraps(method)
    def call(self: Provider, request: Any, context: grpc.ServicerContext) -> Any:
        try:
            return method(self, request, context)
        except InitFailed as error:
            detail = pb.ErrorResourceInitFailed(
                id=error.id,
                properties=encode(error.outputs, error.secrets),
                inputs=encode(error.inputs, error.secrets),
                reasons=error.reasons,
            )
            status = status_pb2.Status(code=grpc.StatusCode.UNKNOWN.value[0], message=str(error))
            status.details.add().Pack(detail)
            context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
            context.abort(grpc.StatusCode.UNKNOWN, str(error))
        except (Failure, Unreachable, Cancelled, check.Refused, WireError, ApiError, ValueError) as error:
            context.abort(grpc.StatusCode.UNKNOWN, str(error))
        except grpc.RpcError:
            raise
        except Exception as error:
            self.log("DEBUG", traceback.format_exc(), getattr(request, "urn", ""), False)
            kind = type(error).__name__
            context.abort(grpc.StatusCode.INTERNAL, f"fault in the kubernetes provider: {kind}: {error}")
        raise AssertionError("abort raises")

    return call  # type: ignore[return-value]


class Provider(pb_grpc.ResourceProviderServicer):
    """The calls of the engine, in the order in which it makes them."""

    def __init__(self, engine: str | None) -> None:
        self._engine_address = engine
        self._engine: engine_pb2_grpc.EngineStub | None = None
        self._lock = threading.Lock()
        self._folder = Path.cwd()  # engines start plugins in the program's folder
        self.cancelled = threading.Event()
        self._cluster = Cluster(None, config.Settings(), self.log, self.cancelled)

    def log(self, severity: str, message: str, urn: str, passing: bool) -> None:
        """Send a message to the engine; `passing` ones are shown while they last."""
        with self._lock:
            if self._engine is None and self._engine_address:
                channel = grpc.insecure_channel(self._engine_address, options=_MESSAGE_SIZE)
                self._engine = engine_pb2_grpc.EngineStub(channel)
            engine = self._engine
        if engine is None:
            return
        number = engine_pb2.LogSeverity.Value(severity)
        try:
            engine.Log(engine_pb2.LogRequest(severity=number, message=message, urn=urn, ephemeral=passing), timeout=5)
        except grpc.RpcError:
            return  # the engine is going; what it would have shown is lost with it

    # -- the plugin

    @answered
    def Handshake(self, request: pb.ProviderHandshakeRequest, context: object) -> pb.ProviderHandshakeResponse:
        if request.engine_address:
            self._attach(request.engine_address)
        return pb.ProviderHandshakeResponse(accept_secrets=True, supports_autonaming_configuration=True)

    @answered
    def Attach(self, request: plugin_pb2.PluginAttach, context: object) -> Empty:
        self._attach(request.address)
        return Empty()

    def _attach(self, address: str) -> None:
        with self._lock:
            self._engine_address, self._engine = address, None

    @answered
    def GetPluginInfo(self, request: Empty, context: object) -> plugin_pb2.PluginInfo:
        return plugin_pb2.PluginInfo(version=plugin_version())

    @answered
    def GetSchema(self, request: pb.GetSchemaRequest, context: object) -> pb.GetSchemaResponse:
        about = "Serves the kinds of whatever API server it is connected to; the SDKs carry the schema of the types."
        schema = {"name": "kubernetes", "version": plugin_version(), "description": about}
        return pb.GetSchemaResponse(schema=json.dumps(schema))

    @answered
    def GetMapping(self, request: pb.GetMappingRequest, context: object) -> pb.GetMappingResponse:
        return pb.GetMappingResponse()

    @answered
    def GetMappings(self, request: pb.GetMappingsRequest, context: object) -> pb.GetMappingsResponse:
        return pb.GetMappingsResponse()

    @answered
    def Cancel(self, request: Empty, context: object) -> Empty:
        self.cancelled.set()
        return Empty()

    # -- the provider's configuration

    @answered
    def CheckConfig(self, request: pb.CheckRequest, context: object) -> pb.CheckResponse:
        news, secrets = decode(request.news)
        inputs, failures = config.check(news)
        return pb.CheckResponse(inputs=encode(inputs, secrets), failures=_failures(failures))

    @answered
    def DiffConfig(self, request: pb.DiffRequest, context: object) -> pb.DiffResponse:
        olds = plain(request.old_inputs) or plain(request.olds)
        found = config.diff(olds, plain(request.news))
        changes = pb.DiffResponse.DIFF_SOME if found.changed else pb.DiffResponse.DIFF_NONE
        return pb.DiffResponse(changes=changes, diffs=found.changed, replaces=found.replaces)

    @answered
    def Configure(self, request: pb.ConfigureRequest, context: object) -> pb.ConfigureResponse:
        inputs = plain(request.args)
        if not inputs:
            inputs = {key.rpartition(":")[2]: value for key, value in request.variables.items()}
        settings = config.settings(inputs)
        source: auth.Kubeconfig | auth.AuthError | None = None
        if not settings.kubeconfig_unknown:
            try:
                source = auth.load(settings.kubeconfig, settings.context, settings.cluster)
            except auth.AuthError as error:
                source = error  # told by the first operation that needs the cluster; a preview may need none
        self._cluster = Cluster(source, settings, self.log, self.cancelled)
        return pb.ConfigureResponse(acceptSecrets=True, supportsPreview=True, supports_autonaming_configuration=True)

    # -- resources

    @property
    def _objects(self) -> Objects:
        return Objects(self._cluster)

    def _releases(self) -> Releases:
        from localcloud.kubernetes.provider.helm import Releases

        return Releases(self._cluster, self._folder)

    @answered
    def Check(self, request: pb.CheckRequest, context: object) -> pb.CheckResponse:
        type_ = request.type or _type_of(request.urn)
        name = request.name or request.urn.rpartition("::")[2]
        news, secrets = decode(request.news)
        olds = plain(request.olds)
        mode = pb.CheckRequest.AutonamingOptions.Mode.Name(request.autonaming.mode)
        # An absent message reads as PROPOSE without a name, which is the same as no wish.
        naming = check.Naming(request.randomSeed or request.urn.encode(), request.autonaming.proposed_name, mode)
        namespace = self._cluster.default_namespace
        if type_ == check.RELEASE_TYPE:
            from localcloud.kubernetes.provider import helm_inputs

            inputs, failures = helm_inputs.check(name, olds, news, naming, namespace, self._folder)
            if news.get("allowNullValues"):
                self.log(
                    "WARNING", "allowNullValues has no effect: helm keeps null values as they are", request.urn, False
                )
        else:
            inputs, failures = check.check(type_, name, olds, news, naming, namespace)
            secrets = secret_paths(check.kind_of(type_), secrets)
        return pb.CheckResponse(inputs=encode(inputs, secrets), failures=_failures(failures))

    @answered
    def Diff(self, request: pb.DiffRequest, context: object) -> pb.DiffResponse:
        type_ = request.type or _type_of(request.urn)
        olds, news = plain(request.olds), plain(request.news)
        old_inputs = plain(request.old_inputs) or olds.get("__inputs") or {}
        ignore = list(request.ignoreChanges)
        if type_ == check.RELEASE_TYPE:
            found, same_name = self._releases().diff(old_inputs, news, ignore), False
        else:
            subject = Subject(request.urn, type_, check.kind_of(type_))
            found, same_name = self._objects.diff(subject, request.id, olds, old_inputs, news, ignore)
        return _diff_response(found, same_name)

    @answered
    def Create(self, request: pb.CreateRequest, context: object) -> pb.CreateResponse:
        type_ = request.type or _type_of(request.urn)
        news, secrets = decode(request.properties)
        if type_ == check.RELEASE_TYPE:
            state = self._release(request.urn, news, secrets, request.timeout, request.preview, "create")
        else:
            subject = Subject(request.urn, type_, check.kind_of(type_))
            state = self._objects.create(subject, news, secrets, request.timeout, request.preview)
        return pb.CreateResponse(id=state.id, properties=encode(state.outputs, state.secrets))

    @answered
    def Update(self, request: pb.UpdateRequest, context: object) -> pb.UpdateResponse:
        type_ = request.type or _type_of(request.urn)
        news, secrets = decode(request.news)
        olds, old_secrets = decode(request.olds)
        try:
            if type_ == check.RELEASE_TYPE:
                state = self._release(request.urn, news, secrets, request.timeout, request.preview, "update")
            else:
                subject = Subject(request.urn, type_, check.kind_of(type_))
                state = self._objects.update(subject, olds, news, secrets, request.timeout, request.preview)
        except Unreachable as error:
            if not self._cluster.settings.skip_update_unreachable:
                raise
            self.log("WARNING", f"not updated (skipUpdateUnreachable): {error}", request.urn, False)
            state = State(request.id, olds, old_secrets)
        return pb.UpdateResponse(properties=encode(state.outputs, state.secrets))

    def _release(
        self, urn: str, news: Object, secrets: list[PropertyPath], timeout: float, preview: bool, doing: str
    ) -> State:
        from localcloud.kubernetes.provider.helm import Target
        from localcloud.kubernetes.provider.helm_inputs import DEFAULT_TIMEOUT

        stated = news.get("timeout")
        seconds = timeout or (float(stated) if isinstance(stated, int) and stated else float(DEFAULT_TIMEOUT))
        target, releases = Target(urn, news, secrets, seconds), self._releases()
        if preview:
            return releases.preview(target)
        return releases.create(target) if doing == "create" else releases.update(target)

    @answered
    def Read(self, request: pb.ReadRequest, context: object) -> pb.ReadResponse:
        type_ = request.type or _type_of(request.urn)
        olds = plain(request.properties)
        old_inputs, secrets = decode(request.inputs)
        if not old_inputs and isinstance(olds.get("__inputs"), dict):
            old_inputs = olds["__inputs"]
        try:
            if type_ == check.RELEASE_TYPE:
                state = self._releases().read(request.id, old_inputs, secrets, request.urn)
            else:
                subject = Subject(request.urn, type_, check.kind_of(type_))
                state = self._objects.read(subject, request.id, olds, old_inputs, secrets)
        except Unreachable as error:
            if not self._cluster.settings.delete_unreachable:
                raise
            self.log("WARNING", f"taken as gone (deleteUnreachable): {error}", request.urn, False)
            state = None
        if state is None:
            return pb.ReadResponse()
        return pb.ReadResponse(
            id=state.id, properties=encode(state.outputs, state.secrets), inputs=encode(state.inputs, state.secrets)
        )

    @answered
    def Delete(self, request: pb.DeleteRequest, context: object) -> Empty:
        type_ = request.type or _type_of(request.urn)
        olds = plain(request.properties)
        try:
            if type_ == check.RELEASE_TYPE:
                self._releases().delete(request.id, olds, request.urn, request.timeout)
            else:
                subject = Subject(request.urn, type_, check.kind_of(type_))
                self._objects.delete(subject, request.id, olds, request.timeout)
        except Unreachable as error:
            if not self._cluster.settings.delete_unreachable:
                hint = "If the cluster is gone for good, set PULUMI_K8S_DELETE_UNREACHABLE=true and run again."
                raise Failure(f"{error}. {hint}") from error
            self.log("WARNING", f"forgotten, not deleted (deleteUnreachable): {error}", request.urn, False)
        return Empty()

    # -- what is not served

    @answered
    def Invoke(self, request: pb.InvokeRequest, context: object) -> pb.InvokeResponse:
        raise Failure(
            f"{request.tok}: this provider has no functions. Instead of yaml, kustomize and helm.v3.Chart use "
            "helm.v3.Release, or register the objects one by one."
        )

    @answered
    def Construct(self, request: pb.ConstructRequest, context: object) -> pb.ConstructResponse:
        raise Failure(
            f"{request.type}: this provider has no components. Instead of yaml.v2, kustomize.v2 and helm.v4.Chart use "
            "helm.v3.Release, or register the objects one by one."
        )


def _type_of(urn: str) -> str:
    """The type of a resource from its URN: urn:pulumi:<stack>::<project>::<parent types>$<type>::<name>."""
    parts = urn.split("::")
    return parts[2].rpartition("$")[2] if len(parts) > 3 else ""


def _failures(failures: list[tuple[str, str]]) -> list[pb.CheckFailure]:
    return [pb.CheckFailure(property=key, reason=reason) for key, reason in failures]


def _diff_response(found: diff.Difference, same_name: bool) -> pb.DiffResponse:
    if not found.changes:
        return pb.DiffResponse(changes=pb.DiffResponse.DIFF_NONE, hasDetailedDiff=True, deleteBeforeReplace=same_name)
    replacing = set(found.replaces)
    detailed = {
        format_path(path): pb.PropertyDiff(
            kind=pb.PropertyDiff.Kind.Value(f"{kind}_REPLACE" if path in replacing else kind), inputDiff=True
        )
        for path, kind in found.changes.items()
    }
    return pb.DiffResponse(
        changes=pb.DiffResponse.DIFF_SOME,
        diffs=sorted({str(path[0]) for path in found.changes if path}),
        replaces=diff.paths(found.replaces),
        detailedDiff=detailed,
        hasDetailedDiff=True,
        deleteBeforeReplace=same_name,
    )


def plugin_version() -> str:
    """The version of the installed pulumi_kubernetes, whose resources this serves; 0.0.0 where there is none."""
    from importlib import metadata

    try:
        return metadata.version("pulumi_kubernetes")
    except metadata.PackageNotFoundError:
        return "0.0.0"


def _end_with_parent(stopping: threading.Event) -> None:
    """End this process when the engine that spawned it is gone: nobody would ever stop it."""
    parent = os.getppid()

    def watch() -> None:
        while not stopping.wait(1.0):
            if os.getppid() != parent:
                os._exit(1)  # calls in flight are not waited for; the next run takes up what they left

    threading.Thread(target=watch, daemon=True).start()


def main(arguments: list[str]) -> int:
    """Serve until told to stop. The engine's address is the last argument; without it (attached) there is no log."""
    engine = arguments[-1] if arguments and not arguments[-1].startswith("-") else None
    provider = Provider(engine)
    server = grpc.server(ThreadPoolExecutor(max_workers=_WORKERS), options=_MESSAGE_SIZE)
    pb_grpc.add_ResourceProviderServicer_to_server(provider, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    stopping = threading.Event()
    # A Ctrl-C reaches the whole process group; the engine decides what becomes of calls in flight (Cancel).
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    if engine:
        _end_with_parent(stopping)
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    stopping.wait()
    provider.cancelled.set()
    server.stop(grace=10).wait()
    return 0
