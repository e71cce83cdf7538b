"""The gRPC ResourceProvider: Pulumi's calls, answered from the tables."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable
from concurrent import futures
from typing import Any, NoReturn, TypeVar

import grpc
from google.protobuf import empty_pb2, json_format, struct_pb2
from pulumi.runtime.proto import engine_pb2, engine_pb2_grpc, plugin_pb2, provider_pb2, provider_pb2_grpc, status_pb2

from localcloud.aws.provider import VERSION, functions, naming
from localcloud.aws.provider.model import Call, Incomplete, ProviderError, Resource, Session, endpoint, shown
from localcloud.aws.provider.registry import lookup
from localcloud.aws.provider.schema import (
    UNKNOWN,
    Change,
    Prop,
    Values,
    changes,
    has_unknown,
    plain,
    problems,
    same,
)
from localcloud.paths import AWS_REGION

log = logging.getLogger(__name__)
T = TypeVar("T")
_STEP = re.compile(r'[^.\[\]"]+')  # one key or position of a property path
Kind = provider_pb2.PropertyDiff.Kind
CONFIG_IGNORED = frozenset(
    {"accessKey", "secretKey", "token", "profile", "skipCredentialsValidation", "skipMetadataApiCheck",
     "skipRegionValidation", "skipRequestingAccountId", "s3UsePathStyle", "version", "allowedAccountIds"}
)  # fmt: skip
"""Provider settings that say how to reach AWS: the stand-in is reached by AWS_ENDPOINT_URL alone."""


def to_values(struct: struct_pb2.Struct) -> Values:
    values: Values = plain(json_format.MessageToDict(struct))
    return values


def to_struct(values: Values) -> struct_pb2.Struct:
    struct = struct_pb2.Struct()
    json_format.ParseDict(values, struct)
    return struct


def type_of(urn: str) -> str:
    return urn.split("::")[2].split("$")[-1]


def message_of(error: Exception) -> str:
    """What the user reads. AWS's own words for what AWS refused."""
    from botocore.exceptions import BotoCoreError, ClientError

    if isinstance(error, ClientError):
        details = error.response.get("Error", {})
        return f"{error.operation_name}: {details.get('Code')}: {details.get('Message')}"
    if isinstance(error, BotoCoreError):
        if "connect" in str(error).lower() or "connection" in str(error).lower():
            return f"the AWS stand-in does not answer: {error}. Start it with `make up`"
        return str(error)
    if isinstance(error, KeyError):
        return f"the value {error} is missing: import of this type by its id alone is not possible here"
    return str(error)


class Provider(provider_pb2_grpc.ResourceProviderServicer):  # type: ignore[misc, unused-ignore]
    def __init__(self, engine: str) -> None:
        self._engine: Any = None
        if engine:
            self._attach(engine)
        self._session = Session(AWS_REGION)

    def _attach(self, engine: str) -> None:
        self._engine = engine_pb2_grpc.EngineStub(grpc.insecure_channel(engine))

    def _say(self, urn: str, text: str) -> None:
        """A status line beside the resource, as progress."""
        if self._engine is not None:
            try:
                self._engine.Log(engine_pb2.LogRequest(severity=engine_pb2.INFO, message=text, urn=urn, ephemeral=True))
            except grpc.RpcError as error:
                log.debug("the engine takes no log: %s", error)

    def _guard(self, context: grpc.ServicerContext, work: Callable[[], T]) -> T:
        """Turn errors into what the engine shows."""
        try:
            return work()
        except Incomplete as error:
            self._incomplete(context, error)
        except grpc.RpcError:
            raise
        except Exception as error:
            if not isinstance(error, ProviderError) and not hasattr(error, "response"):
                log.exception("unexpected")
            context.abort(grpc.StatusCode.UNKNOWN, message_of(error))
        raise AssertionError("abort() returned")

    def _incomplete(self, context: grpc.ServicerContext, error: Incomplete) -> NoReturn:
        """The resource exists and is not well: the engine keeps it in the state and tries an update next time."""
        detail = provider_pb2.ErrorResourceInitFailed(
            id=error.identifier, properties=to_struct(error.values), reasons=[str(error)]
        )
        status = status_pb2.Status(code=grpc.StatusCode.UNKNOWN.value[0], message=str(error))
        status.details.add().Pack(detail)
        context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
        context.abort(grpc.StatusCode.UNKNOWN, str(error))
        raise AssertionError("abort() returned")

    # --- the plugin itself

    def Handshake(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._attach(request.engine_address)
        return provider_pb2.ProviderHandshakeResponse(
            accept_secrets=False, accept_resources=False, accept_outputs=False
        )

    def Attach(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._attach(request.address)
        return empty_pb2.Empty()

    def GetPluginInfo(self, request: Any, context: grpc.ServicerContext) -> Any:
        return plugin_pb2.PluginInfo(version=VERSION)

    def GetSchema(self, request: Any, context: grpc.ServicerContext) -> Any:
        """A schema with names only: programs use the pulumi_aws package, nothing is generated from this."""
        return provider_pb2.GetSchemaResponse(schema=json.dumps({"name": "aws", "version": VERSION}))

    def CheckConfig(self, request: Any, context: grpc.ServicerContext) -> Any:
        return provider_pb2.CheckResponse(inputs=request.news)

    def DiffConfig(self, request: Any, context: grpc.ServicerContext) -> Any:
        olds, news = to_values(request.old_inputs) or to_values(request.olds), to_values(request.news)
        moved = [name for name in ("region",) if olds.get(name) != news.get(name)]
        differs = [name for name in sorted(set(olds) | set(news)) if olds.get(name) != news.get(name)]
        kind = provider_pb2.DiffResponse.DIFF_SOME if differs else provider_pb2.DiffResponse.DIFF_NONE
        return provider_pb2.DiffResponse(changes=kind, replaces=moved, diffs=differs)

    def Configure(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._guard(context, lambda: self._configure(request))
        return provider_pb2.ConfigureResponse(
            acceptSecrets=False,
            supportsPreview=True,
            acceptResources=False,
            acceptOutputs=False,
            supports_autonaming_configuration=True,
        )

    def _configure(self, request: Any) -> None:
        endpoint()
        config = to_values(request.args)
        config.update({name.rsplit(":", 1)[1]: value for name, value in request.variables.items()})
        for name, value in config.items():
            if name not in CONFIG_IGNORED | {"region", "defaultTags"} and value not in (None, "", "false", "[]", "{}"):
                raise ProviderError(
                    f"aws:{name}: the local AWS provider does not know this setting; it knows region and defaultTags, "
                    f"and ignores {', '.join(sorted(CONFIG_IGNORED))}"
                )
        tags = config.get("defaultTags") or {}
        parsed = json.loads(tags) if isinstance(tags, str) and tags != UNKNOWN else tags
        default = (parsed.get("tags") or {}) if isinstance(parsed, dict) else {}
        self._session = Session(config.get("region") or AWS_REGION, {k: str(v) for k, v in default.items()})

    def Cancel(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._session.cancelled.set()
        return empty_pb2.Empty()

    def Invoke(self, request: Any, context: grpc.ServicerContext) -> Any:
        answer = self._guard(context, lambda: functions.call(self._session, request.tok, to_values(request.args)))
        return provider_pb2.InvokeResponse(**{"return": to_struct(answer)})

    # --- resources

    def Check(self, request: Any, context: grpc.ServicerContext) -> Any:
        return self._guard(context, lambda: self._check(request))

    def _check(self, request: Any) -> Any:
        token = type_of(request.urn)
        resource, news, olds = lookup(token), to_values(request.news), to_values(request.olds)
        off = request.autonaming.mode == provider_pb2.CheckRequest.AutonamingOptions.DISABLE
        logical = request.urn.split("::")[-1]
        proposed = request.autonaming.proposed_name
        inputs, trouble = naming.with_name(resource.props, news, olds, logical, request.randomSeed, proposed, off)
        failures = [
            provider_pb2.CheckFailure(property=p.path, reason=f"{token}: {p.path}: {p.message} ({resource.where})")
            for p in problems(resource.props, inputs)
        ]
        if trouble:
            failures.append(
                provider_pb2.CheckFailure(property=naming.name_property(resource.props) or "", reason=trouble)
            )
        return provider_pb2.CheckResponse(inputs=to_struct(inputs), failures=failures)

    def Diff(self, request: Any, context: grpc.ServicerContext) -> Any:
        return self._guard(context, lambda: self._diff(request))

    def _diff(self, request: Any) -> Any:
        resource, news, state = lookup(type_of(request.urn)), to_values(request.news), to_values(request.olds)
        olds = to_values(request.old_inputs) or state
        ignored = list(request.ignoreChanges)
        found = [c for c in changes(resource.props, olds, news) if not _covered(c.path, ignored)]
        if resource.taggable and "tagsAll" in state and not has_unknown(news.get("tags")) and "tags" not in ignored:
            wanted = {**self._session.default_tags, **{k: str(v) for k, v in (news.get("tags") or {}).items()}}
            if wanted != state["tagsAll"] and not any(_top(c.path) == "tags" for c in found):
                found.append(Change("tagsAll", "update", False))
        details = {
            c.path: provider_pb2.PropertyDiff(kind=Kind.Value(_kind_name(c)), inputDiff=c.path != "tagsAll")
            for c in found
        }
        replaces = sorted({_top(c.path) for c in found if c.replace})
        # What may exist once only has to go before its successor comes, unless that is named otherwise.
        clash = bool(resource.unique) and all(
            same(resource.props[name], olds.get(name), news.get(name)) for name in resource.unique
        )
        return provider_pb2.DiffResponse(
            changes=provider_pb2.DiffResponse.DIFF_SOME if found else provider_pb2.DiffResponse.DIFF_NONE,
            diffs=sorted({_top(c.path) for c in found}), replaces=replaces, detailedDiff=details, hasDetailedDiff=True,
            deleteBeforeReplace=bool(replaces) and clash,
        )  # fmt: skip

    def _call(self, request: Any, inputs: Values, old: Values | None = None, outputs: Values | None = None) -> Call:
        seconds = getattr(request, "timeout", 0) or 0
        urn = request.urn
        return Call(self._session, urn, inputs, lambda text: self._say(urn, text), old or {}, outputs or {}, seconds)

    def Create(self, request: Any, context: grpc.ServicerContext) -> Any:
        return self._guard(context, lambda: self._create(request))

    def _create(self, request: Any) -> Any:
        resource, inputs = lookup(type_of(request.urn)), to_values(request.properties)
        if request.preview:
            return provider_pb2.CreateResponse(id="", properties=to_struct(self._foreseen(resource, inputs)))
        call = self._call(request, inputs)
        identifier = (resource.find(call) if resource.find else None) or resource.create(call)
        try:
            if resource.finish:
                resource.finish(call, identifier)
        except Incomplete as error:
            error.values = self._state(resource, call, identifier) or inputs
            raise
        except Exception as error:
            # It exists: the engine has to know, or nobody would ever delete it.
            raise Incomplete(
                message_of(error), identifier, self._state(resource, call, identifier) or inputs
            ) from error
        state = self._state(resource, call, identifier)
        if state is None:
            raise ProviderError(f"{identifier} is gone right after it was created")
        return provider_pb2.CreateResponse(id=identifier, properties=to_struct(state))

    def _foreseen(self, resource: Resource, inputs: Values) -> Values:
        """What a preview can say: the inputs, and "unknown" for all that AWS will choose."""
        values = _with_unknowns(resource.props, inputs)
        values.update(dict.fromkeys(resource.outputs, UNKNOWN))
        if "region" in resource.props:
            values["region"] = inputs.get("region") or self._session.region
        if resource.taggable:
            values["tagsAll"] = UNKNOWN if has_unknown(inputs.get("tags")) else self._all_tags(inputs)
        return values

    def _all_tags(self, inputs: Values) -> Values:
        return {**self._session.default_tags, **{k: str(v) for k, v in (inputs.get("tags") or {}).items()}}

    def _state(self, resource: Resource, call: Call, identifier: str) -> Values | None:
        """Inputs and what AWS says, under Pulumi's names; None when it is gone."""
        seen = resource.read(call, identifier)
        if seen is None:
            return None
        state = {**call.inputs, **{name: value for name, value in seen.items() if value is not None}}
        # What the program said stays in its own form where it means the same.
        for name, prop in resource.props.items():
            if name in call.inputs and name in seen and same(prop, call.inputs[name], seen[name]):
                state[name] = call.inputs[name]
        if "region" in resource.props:
            state.setdefault("region", self._session.region)
        if resource.taggable:
            tags = shown(seen.get("tags") or {})
            state["tagsAll"] = tags
            default, given = self._session.default_tags, call.inputs.get("tags") or {}
            state["tags"] = {k: v for k, v in tags.items() if default.get(k) != v or k in given}
        return {name: value for name, value in state.items() if value is not None}

    def Read(self, request: Any, context: grpc.ServicerContext) -> Any:
        return self._guard(context, lambda: self._read(request))

    def _read(self, request: Any) -> Any:
        resource = lookup(type_of(request.urn))
        state, inputs = to_values(request.properties), to_values(request.inputs)
        call = self._call(request, inputs or state)
        found = self._state(resource, call, request.id)
        if found is None:
            return provider_pb2.ReadResponse(id="")
        if inputs:
            fresh = {name: _drifted(resource.props.get(name), value, found.get(name)) for name, value in inputs.items()}
        else:  # an import: everything that can be set and is not at AWS's choice
            fresh = {name: found[name] for name, prop in resource.props.items() if name in found and not prop.computed}
        return provider_pb2.ReadResponse(id=request.id, properties=to_struct(found), inputs=to_struct(fresh))

    def Update(self, request: Any, context: grpc.ServicerContext) -> Any:
        return self._guard(context, lambda: self._update(request))

    def _update(self, request: Any) -> Any:
        resource, news, state = lookup(type_of(request.urn)), to_values(request.news), to_values(request.olds)
        olds = to_values(request.old_inputs) or {name: state[name] for name in resource.props if name in state}
        if request.preview:
            values = {**state, **_with_unknowns(resource.props, {**_chosen(resource, state), **news})}
            if resource.taggable:
                values["tagsAll"] = UNKNOWN if has_unknown(news.get("tags")) else self._all_tags(news)
            return provider_pb2.UpdateResponse(properties=to_struct(values))
        call = self._call(request, news, olds, state)
        if resource.update is None:
            raise ProviderError(f"{type_of(request.urn)} cannot be updated in place")
        resource.update(call, request.id)
        fresh = self._state(resource, call, request.id)
        if fresh is None:
            raise ProviderError(f"{request.id} no longer exists; `pulumi refresh` takes it out of the state")
        return provider_pb2.UpdateResponse(properties=to_struct(fresh))

    def Delete(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._guard(context, lambda: self._delete(request))
        return empty_pb2.Empty()

    def _delete(self, request: Any) -> None:
        resource = lookup(type_of(request.urn))
        state = to_values(request.properties)
        resource.delete(self._call(request, to_values(request.old_inputs) or state, outputs=state), request.id)


def _top(path: str) -> str:
    return path.split(".")[0].split("[")[0]


def _covered(path: str, patterns: Iterable[str]) -> bool:
    """Whether a path is one of the patterns or below it: scalingConfig.desiredSize does not cover its neighbours."""
    there = _STEP.findall(path)
    return any(
        len(steps) <= len(there) and all(a in ("*", b) for a, b in zip(steps, there, strict=False))
        for steps in map(_STEP.findall, patterns)
    )


def _kind_name(change: Change) -> str:
    return change.kind.upper() + ("_REPLACE" if change.replace else "")


def _chosen(resource: Resource, state: Values) -> Values:
    """Values that AWS chose before and that stay when an update does not touch them."""
    return {name: state[name] for name, prop in resource.props.items() if prop.computed and name in state}


def _with_unknowns(props: Any, inputs: Values) -> Values:
    """Inputs with "unknown" wherever AWS chooses what was not given, inside given objects as well."""
    values: Values = {}
    for name, prop in props.items():
        value = inputs.get(name)
        if value is None and prop.computed:
            values[name] = UNKNOWN
        elif prop.kind == "object" and isinstance(value, dict):
            values[name] = _with_unknowns(prop.fields, value)
        elif value is not None:
            values[name] = value
    return {**values, **{name: value for name, value in inputs.items() if name.startswith("__")}}


def _drifted(prop: Prop | None, ours: Any, theirs: Any) -> Any:
    """An input after a refresh: as it was where it still holds, what AWS says where it does not."""
    if prop is None or theirs is None:
        return ours
    if prop.kind == "object" and isinstance(ours, dict) and isinstance(theirs, dict):
        return {k: _drifted(prop.fields.get(k), v, theirs.get(k)) for k, v in ours.items()}
    return ours if same(prop, ours, theirs) else theirs


def serve(engine: str) -> None:
    """Serve until killed; the port goes to stdout, as the engine expects."""
    server = grpc.server(
        futures.ThreadPoolExecutor(32), options=[("grpc.max_receive_message_length", 400 * 1024 * 1024)]
    )
    provider_pb2_grpc.add_ResourceProviderServicer_to_server(Provider(engine), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    parent = os.getppid()
    # An engine that was killed cannot end its plugins: they have to notice.
    while server.wait_for_termination(timeout=1):
        if os.getppid() != parent:
            return
