"""A client of the provider's gRPC interface, as the engine is one."""

from __future__ import annotations

import os
import subprocess
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import empty_pb2, json_format, struct_pb2
from pulumi.runtime.proto import engine_pb2_grpc, provider_pb2, provider_pb2_grpc, status_pb2

from localcloud.paths import REPOSITORY

UNKNOWN = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
Values = dict[str, Any]


def struct(values: Values) -> struct_pb2.Struct:
    made = struct_pb2.Struct()
    json_format.ParseDict(values, made)
    return made


def values(made: struct_pb2.Struct) -> Values:
    found: Values = json_format.MessageToDict(made)
    return found


def urn(token: str, name: str) -> str:
    return f"urn:pulumi:test::project::{token}::{name}"


class _Engine(engine_pb2_grpc.EngineServicer):  # type: ignore[misc, unused-ignore]
    """Collects what the provider tells."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def Log(self, request: Any, context: Any) -> Any:
        self.lines.append((request.urn, request.message))
        return empty_pb2.Empty()


class Resource:
    """A resource in the state of an engine."""

    def __init__(self, identifier: str, inputs: Values, state: Values) -> None:
        self.id, self.inputs, self.state = identifier, inputs, state


class Refused(Exception):
    """The provider's error; partial: the resource that it left, if it said so."""

    def __init__(self, error: grpc.RpcError, inputs: Values) -> None:
        super().__init__(error.details())
        self.partial: Resource | None = None
        for key, value in error.trailing_metadata() or ():
            if key == "grpc-status-details-bin":
                status = status_pb2.Status.FromString(value)
                detail = provider_pb2.ErrorResourceInitFailed()
                if status.details and status.details[0].Unpack(detail):
                    self.partial = Resource(detail.id, inputs, values(detail.properties))


class Plugin:
    """A running pulumi-resource-aws."""

    def __init__(self, environment: dict[str, str], default_tags: Values | None = None, python: str = "") -> None:
        self.engine = _Engine()
        self._engine_server = grpc.server(futures.ThreadPoolExecutor(4))
        engine_pb2_grpc.add_EngineServicer_to_server(self.engine, self._engine_server)
        address = f"127.0.0.1:{self._engine_server.add_insecure_port('127.0.0.1:0')}"
        self._engine_server.start()
        path = f"{Path(python).parent}:{os.environ['PATH']}"
        self.process = subprocess.Popen(
            [str(REPOSITORY / "localcloud" / "bin" / "pulumi-resource-aws"), address],
            stdout=subprocess.PIPE,
            env={**os.environ, **environment, "PATH": path},
            text=True,
        )
        assert self.process.stdout is not None
        port = int(self.process.stdout.readline())
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        self.stub: Any = provider_pb2_grpc.ResourceProviderStub(self._channel)
        self._default_tags = default_tags

    def configure(self) -> None:
        args: Values = {"region": "us-east-1"}
        if self._default_tags:
            args["defaultTags"] = {"tags": self._default_tags}
        self.stub.Configure(provider_pb2.ConfigureRequest(args=struct(args), acceptSecrets=True))

    def stop(self) -> None:
        self._channel.close()
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._engine_server.stop(None)

    def check(self, token: str, name: str, inputs: Values, olds: Values | None = None, **more: Any) -> Any:
        return self.stub.Check(
            provider_pb2.CheckRequest(
                urn=urn(token, name),
                news=struct(inputs),
                olds=struct(olds or {}),
                randomSeed=b"seed of " + name.encode(),
                **more,
            )
        )

    def checked(self, token: str, name: str, inputs: Values, olds: Values | None = None) -> Values:
        answer = self.check(token, name, inputs, olds)
        assert not answer.failures, list(answer.failures)
        return values(answer.inputs)

    def create(self, token: str, name: str, inputs: Values, timeout: float = 0) -> Resource:
        checked = self.checked(token, name, inputs)
        request = provider_pb2.CreateRequest(urn=urn(token, name), properties=struct(checked), timeout=timeout)
        try:
            answer = self.stub.Create(request)
        except grpc.RpcError as error:
            raise Refused(error, checked) from error
        return Resource(answer.id, checked, values(answer.properties))

    def preview(self, token: str, name: str, inputs: Values) -> Values:
        checked = self.checked(token, name, inputs)
        request = provider_pb2.CreateRequest(urn=urn(token, name), properties=struct(checked), preview=True)
        return values(self.stub.Create(request).properties)

    def diff(self, token: str, name: str, old: Resource, inputs: Values) -> Any:
        news = self.checked(token, name, inputs, old.inputs)
        return self.stub.Diff(
            provider_pb2.DiffRequest(
                id=old.id,
                urn=urn(token, name),
                olds=struct(old.state),
                old_inputs=struct(old.inputs),
                news=struct(news),
            )
        )

    def update(self, token: str, name: str, old: Resource, inputs: Values) -> Resource:
        news = self.checked(token, name, inputs, old.inputs)
        request = provider_pb2.UpdateRequest(
            id=old.id, urn=urn(token, name), olds=struct(old.state), old_inputs=struct(old.inputs), news=struct(news)
        )
        try:
            answer = self.stub.Update(request)
        except grpc.RpcError as error:
            raise Refused(error, news) from error
        return Resource(old.id, news, values(answer.properties))

    def read(self, token: str, name: str, old: Resource) -> Resource | None:
        request = provider_pb2.ReadRequest(
            id=old.id, urn=urn(token, name), properties=struct(old.state), inputs=struct(old.inputs)
        )
        answer = self.stub.Read(request)
        return Resource(answer.id, values(answer.inputs), values(answer.properties)) if answer.id else None

    def delete(self, token: str, name: str, old: Resource) -> None:
        request = provider_pb2.DeleteRequest(
            id=old.id, urn=urn(token, name), properties=struct(old.state), old_inputs=struct(old.inputs)
        )
        try:
            self.stub.Delete(request)
        except grpc.RpcError as error:
            raise Refused(error, old.inputs) from error

    def invoke(self, token: str, args: Values) -> Values:
        answer = self.stub.Invoke(provider_pb2.InvokeRequest(tok=token, args=struct(args)))
        return values(getattr(answer, "return"))
