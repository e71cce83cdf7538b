"""Speaks Pulumi's provider protocol to the real provider process, as an engine does."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.empty_pb2 import Empty
from pulumi.runtime.proto import engine_pb2, engine_pb2_grpc, status_pb2
from pulumi.runtime.proto import provider_pb2 as pb
from pulumi.runtime.proto.provider_pb2_grpc import ResourceProviderStub

from localcloud import tools
from localcloud.kubernetes.provider.wire import Path as PropertyPath
from localcloud.kubernetes.provider.wire import decode, encode

REPOSITORY = Path(__file__).resolve().parents[2]
PLUGIN = REPOSITORY / "localcloud" / "bin" / "pulumi-resource-kubernetes"
SEED = b"\x01" * 32


@dataclass
class Message:
    """One line the provider sent to the engine's log."""

    severity: str
    text: str
    urn: str
    passing: bool


class Engine(engine_pb2_grpc.EngineServicer):
    """The engine's side of the protocol: it keeps what is logged."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def Log(self, request: engine_pb2.LogRequest, context: object) -> Empty:
        severity = engine_pb2.LogSeverity.Name(request.severity)
        self.messages.append(Message(severity, request.message, request.urn, request.ephemeral))
        return Empty()


@dataclass
class CallFailed(Exception):
    """A call that the provider answered with an error, and what it said about a half-made resource."""

    message: str
    id: str = ""
    outputs: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, Any] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n".join([self.message, *self.reasons])


@dataclass
class Resource:
    """A resource as the engine's state has it."""

    type: str
    name: str
    id: str
    inputs: dict[str, Any]
    outputs: dict[str, Any]
    secrets: list[PropertyPath] = field(default_factory=list)

    @property
    def urn(self) -> str:
        return urn_of(self.type, self.name)


def urn_of(type_: str, name: str) -> str:
    return f"urn:pulumi:test::slipway::{type_}::{name}"


def environment(**extra: str) -> dict[str, str]:
    """The environment of a provider: this Python and the local cloud's tools on PATH, nothing of the user's."""
    installed = tools.installed()
    assert installed, "the tools are made by the control plane's fixture"
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PULUMI_", "KUBE", "HELM_"))}
    path = [str(Path(sys.executable).parent), str(installed), kept["PATH"]]
    return kept | {"PATH": os.pathsep.join(path)} | extra


class Provider:
    """A running provider process and the calls on it, with plain Python values."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self.engine = Engine()
        self._server = grpc.server(ThreadPoolExecutor(max_workers=4))
        engine_pb2_grpc.add_EngineServicer_to_server(self.engine, self._server)
        address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()
        self.process = subprocess.Popen([PLUGIN, address], cwd=folder, env=env, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout
        port = self.process.stdout.readline().strip()
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        self.stub = ResourceProviderStub(self.channel)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(20)
        self.close()

    def kill(self) -> None:
        """End it as a kill -9 does."""
        self.process.kill()
        self.process.wait(20)
        self.close()

    def close(self) -> None:
        self.channel.close()
        self._server.stop(None)
        if self.process.stdout:
            self.process.stdout.close()

    def said(self, part: str) -> bool:
        return any(part in message.text for message in self.engine.messages)

    # -- calls

    def configure(self, **config: Any) -> None:
        self.stub.Configure(pb.ConfigureRequest(args=encode(config), acceptSecrets=True))

    def check_config(self, **news: Any) -> dict[str, str]:
        """The failures by key."""
        urn = urn_of("pulumi:providers:kubernetes", "k8s")
        answer = self.stub.CheckConfig(pb.CheckRequest(urn=urn, news=encode(news)))
        return {failure.property: failure.reason for failure in answer.failures}

    def diff_config(self, olds: dict[str, Any], news: dict[str, Any]) -> tuple[list[str], list[str]]:
        """The changed keys, and those that make it another cluster."""
        answer = self.stub.DiffConfig(pb.DiffRequest(olds=encode(olds), old_inputs=encode(olds), news=encode(news)))
        return list(answer.diffs), list(answer.replaces)

    def check(
        self, type_: str, name: str, news: dict[str, Any], olds: dict[str, Any] | None = None, **more: Any
    ) -> tuple[dict[str, Any], list[PropertyPath], dict[str, str]]:
        """The checked inputs, what is secret in them, and the failures by property."""
        secrets = more.pop("secrets", [])
        request = pb.CheckRequest(
            urn=urn_of(type_, name), type=type_, name=name, news=encode(news, secrets), randomSeed=SEED, **more
        )
        if olds:
            request.olds.CopyFrom(encode(olds))
        answer = call(self.stub.Check, request)
        inputs, marked = decode(answer.inputs)
        return inputs, marked, {failure.property: failure.reason for failure in answer.failures}

    def checked(
        self, type_: str, name: str, news: dict[str, Any], olds: dict[str, Any] | None = None, **more: Any
    ) -> tuple[dict[str, Any], list[PropertyPath]]:
        inputs, secrets, failures = self.check(type_, name, news, olds, **more)
        assert not failures, failures
        return inputs, secrets

    def create(
        self, type_: str, name: str, news: dict[str, Any], preview: bool = False, timeout: float = 60, **more: Any
    ) -> Resource:
        inputs, secrets = self.checked(type_, name, news, **more)
        request = pb.CreateRequest(
            urn=urn_of(type_, name),
            type=type_,
            name=name,
            properties=encode(inputs, secrets),
            timeout=timeout,
            preview=preview,
        )
        answer = call(self.stub.Create, request)
        outputs, marked = decode(answer.properties)
        return Resource(type_, name, answer.id, inputs, outputs, marked)

    def diff(self, old: Resource, news: dict[str, Any], ignore: list[str] | None = None) -> pb.DiffResponse:
        inputs, secrets = self.checked(old.type, old.name, news, old.inputs)
        answer: pb.DiffResponse = call(
            self.stub.Diff,
            pb.DiffRequest(
                id=old.id,
                urn=old.urn,
                type=old.type,
                name=old.name,
                olds=encode(old.outputs),
                old_inputs=encode(old.inputs),
                news=encode(inputs, secrets),
                ignoreChanges=ignore or [],
            ),
        )
        return answer

    def update(self, old: Resource, news: dict[str, Any], preview: bool = False, timeout: float = 60) -> Resource:
        inputs, secrets = self.checked(old.type, old.name, news, old.inputs)
        answer = call(
            self.stub.Update,
            pb.UpdateRequest(
                id=old.id,
                urn=old.urn,
                type=old.type,
                name=old.name,
                olds=encode(old.outputs),
                old_inputs=encode(old.inputs),
                news=encode(inputs, secrets),
                timeout=timeout,
                preview=preview,
            ),
        )
        outputs, marked = decode(answer.properties)
        return Resource(old.type, old.name, old.id, inputs, outputs, marked)

    def read(self, old: Resource) -> Resource | None:
        answer = call(
            self.stub.Read,
            pb.ReadRequest(
                id=old.id,
                urn=old.urn,
                type=old.type,
                name=old.name,
                properties=encode(old.outputs),
                inputs=encode(old.inputs),
            ),
        )
        if not answer.id:
            return None
        outputs, marked = decode(answer.properties)
        return Resource(old.type, old.name, answer.id, decode(answer.inputs)[0], outputs, marked)

    def delete(self, old: Resource, timeout: float = 60) -> None:
        call(
            self.stub.Delete,
            pb.DeleteRequest(
                id=old.id,
                urn=old.urn,
                type=old.type,
                name=old.name,
                properties=encode(old.outputs),
                old_inputs=encode(old.inputs),
                timeout=timeout,
            ),
        )


def call(method: Any, request: Any) -> Any:
    """The answer of a call. Raises CallFailed with what the provider told."""
    try:
        return method(request, timeout=120)
    except grpc.RpcError as error:
        failure = CallFailed(error.details())
        for key, value in error.trailing_metadata() or ():
            if key == "grpc-status-details-bin":
                status = status_pb2.Status.FromString(value)
                detail = pb.ErrorResourceInitFailed()
                assert status.details[0].Unpack(detail)
                failure.id = detail.id
                failure.outputs = decode(detail.properties)[0]
                failure.inputs = decode(detail.inputs)[0]
                failure.reasons = list(detail.reasons)
        raise failure from None


@contextmanager
def running(folder: Path, env: dict[str, str] | None = None, **config: Any) -> Iterator[Provider]:
    """A provider process with this configuration, stopped at the end (unless it was killed meanwhile)."""
    provider = Provider(folder, env or environment())
    try:
        if config:
            provider.configure(**config)
        yield provider
    finally:
        if provider.process.poll() is None:
            provider.stop()


@contextmanager
def later(seconds: float, action: Any) -> Iterator[None]:
    """Do something a little later, while the body waits for what it does."""
    timer = threading.Timer(seconds, action)
    timer.start()
    try:
        yield
    finally:
        timer.join()
