"""Runs the program against a recording monitor: what is registered, with which inputs, options and dependencies.

Stands in for the engine and its providers in tests of the program. It accepts every resource and answers with its
inputs and made-up outputs; it does not check inputs, compare states or know AWS. In mode "preview" what AWS would
tell is unknown, as in a real first preview.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import grpc
import yaml
from google.protobuf import empty_pb2, struct_pb2
from google.protobuf.json_format import MessageToDict, ParseDict
from pulumi.runtime.proto import engine_pb2, engine_pb2_grpc, resource_pb2, resource_pb2_grpc

ROOT = Path(__file__).resolve().parents[2]
UNKNOWN = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
SIGNATURE = "4dabf18193072939515e22adb298388d"
SECRET = "1b47061264138c4ac30d75fd1eb44270"

# What AWS adds to what it was given, by type. A list stands for names of texts, a mapping for values as they are.
COMPUTED: dict[str, list[str] | dict[str, Any]] = {
    "aws:kms/key:Key": ["arn", "keyId"],
    "aws:iam/role:Role": ["arn", "name"],
    "aws:cloudwatch/logGroup:LogGroup": ["arn"],
    "aws:eks/cluster:Cluster": {
        "arn": "arn:aws:eks:region:123456789012:cluster/made",
        "endpoint": "https://made.eks.example",
        "certificateAuthority": {"data": "Q0E="},
    },
    "aws:eks/nodeGroup:NodeGroup": ["nodeGroupName"],
    "aws:ec2/launchTemplate:LaunchTemplate": {"latestVersion": 1},
}
NAMED_BEFOREHAND = {"aws:iam/role:Role": ["name"], "aws:eks/nodeGroup:NodeGroup": ["nodeGroupName"]}


@dataclass
class Registered:
    """One registration. inputs: plain values, secrets as `{"secret": value}`. depends: URNs of all it waits for."""

    type: str
    name: str
    urn: str
    parent: str
    custom: bool
    inputs: dict[str, Any]
    depends: list[str]
    property_depends: dict[str, list[str]]
    provider: str
    options: dict[str, Any]


@dataclass
class Recording:
    """One run of the program: registrations in order, the stack's outputs, and what was logged."""

    stack: str
    resources: list[Registered] = field(default_factory=list)
    outputs: dict[str, Any] = field(default_factory=dict)
    invokes: list[str] = field(default_factory=list)
    exit_code: int = 0
    output: str = ""

    def one(self, kind: str, name: str | None = None) -> Registered:
        """The only resource of a type (by the end of its token) and, if given, name."""
        found = [r for r in self.resources if r.type.endswith(kind) and name in (None, r.name)]
        assert len(found) == 1, f"{len(found)} resources {kind} {name or ''}"
        return found[0]

    def all(self, kind: str) -> list[Registered]:
        """All resources of a type (by the end of its token)."""
        return [r for r in self.resources if r.type.endswith(kind)]

    def needs(self, later: Registered) -> set[str]:
        """URNs of everything that must exist before `later` and outlives it: its dependencies, parents and provider."""
        by_urn = {r.urn: r for r in self.resources}
        seen: set[str] = set()
        todo = [later.urn]
        while todo:
            resource = by_urn[todo.pop()]
            direct = [*resource.depends, resource.parent, resource.provider.rpartition("::")[0]]
            for urn in direct:
                if urn in by_urn and urn not in seen:
                    seen.add(urn)
                    todo.append(urn)
        return seen


class Monitor(resource_pb2_grpc.ResourceMonitorServicer, engine_pb2_grpc.EngineServicer):
    """Answers the program as an engine would, and writes down what it asks."""

    def __init__(self, recording: Recording, preview: bool) -> None:
        self.recording = recording
        self.preview = preview
        self.root = ""

    def GetDeploymentInfo(self, request: Any, context: Any) -> Any:
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "older engines have no such call, and SDKs go on without")

    def SupportsFeature(self, request: Any, context: Any) -> Any:
        supported = request.id in {"secrets", "deletedWith", "aliasSpecs"}
        return resource_pb2.SupportsFeatureResponse(hasSupport=supported)

    def RegisterResource(self, request: Any, context: Any) -> Any:
        parent_type = request.parent.split("::")[2] + "$" if request.parent and request.parent != self.root else ""
        urn = f"urn:pulumi:{self.recording.stack}::slipway::{parent_type}{request.type}::{request.name}"
        if request.type == "pulumi:pulumi:Stack":
            self.root = urn
        inputs = plain(MessageToDict(request.object))
        options = {
            key: value
            for key, value in MessageToDict(request).items()
            if key in ("protect", "deletedWith", "retainOnDelete", "ignoreChanges", "deleteBeforeReplace", "aliases")
        }
        self.recording.resources.append(
            Registered(
                type=request.type,
                name=request.name,
                urn=urn,
                parent=request.parent,
                custom=request.custom,
                inputs=inputs,
                depends=sorted(request.dependencies),
                property_depends={k: sorted(v.urns) for k, v in sorted(request.propertyDependencies.items())},
                provider=request.provider,
                options=options,
            )
        )
        state = {**inputs, **self._computed(request.type, request.name, inputs)}
        id_ = "" if not request.custom else UNKNOWN if self.preview else f"{request.name}-id"
        return resource_pb2.RegisterResourceResponse(
            urn=urn, id=id_, object=ParseDict(wire(state), struct_pb2.Struct())
        )

    def _computed(self, kind: str, name: str, inputs: dict[str, Any]) -> dict[str, Any]:
        table = COMPUTED.get(kind, [])
        early = NAMED_BEFOREHAND.get(kind, [])
        values = table if isinstance(table, dict) else {key: f"made-{key}-of-{name}" for key in table}
        return {
            key: UNKNOWN if self.preview and key not in early else value
            for key, value in values.items()
            if key not in inputs
        }

    def RegisterResourceOutputs(self, request: Any, context: Any) -> Any:
        if request.urn == self.root:
            self.recording.outputs = plain(MessageToDict(request.outputs))
        return empty_pb2.Empty()

    def Invoke(self, request: Any, context: Any) -> Any:
        self.recording.invokes.append(request.tok)
        assert request.tok == "aws:index/getCallerIdentity:getCallerIdentity", f"unexpected call of {request.tok}"
        caller = {
            "accountId": "123456789012",
            "arn": "arn:aws:iam::123456789012:role/ci/deployer",
            "id": "123456789012",
            "userId": "AROAMADE",
        }
        return resource_pb2.ResourceInvokeResponse(**{"return": ParseDict(caller, struct_pb2.Struct())})

    def SignalAndWaitForShutdown(self, request: Any, context: Any) -> Any:
        return empty_pb2.Empty()

    def Log(self, request: Any, context: Any) -> Any:
        if request.severity != engine_pb2.DEBUG:
            self.recording.output += request.message + "\n"
        return empty_pb2.Empty()

    def SetRootResource(self, request: Any, context: Any) -> Any:
        return engine_pb2.SetRootResourceResponse()

    def GetRootResource(self, request: Any, context: Any) -> Any:
        return engine_pb2.GetRootResourceResponse(urn=self.root)


@contextmanager
def serving(monitor: Monitor) -> Iterator[str]:
    """The monitor on a free port of loopback; its address."""
    server = grpc.server(ThreadPoolExecutor(max_workers=8))
    resource_pb2_grpc.add_ResourceMonitorServicer_to_server(monitor, server)
    engine_pb2_grpc.add_EngineServicer_to_server(monitor, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None)


def run(stack: str, mode: str = "update", config: dict[str, Any] | None = None) -> Recording:
    """Runs the program for a stack. config: full keys with plain values; by default the stack file's."""
    values = stack_config(stack) if config is None else config
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}
    recording = Recording(stack)
    with serving(Monitor(recording, preview=mode == "preview")) as address:
        program = Path(__file__).with_name("run_program.py")
        done = subprocess.run(
            [sys.executable, str(program), address, str(ROOT), stack, mode, json.dumps(texts)],
            capture_output=True,
            text=True,
            timeout=120,
        )
    recording.exit_code = done.returncode
    recording.output += done.stdout + done.stderr
    return recording


@cache
def recorded_run(stack: str, mode: str) -> Recording:
    """A successful run of a stack as it is; the same one for everybody who asks."""
    recording = run(stack, mode)
    assert recording.exit_code == 0, recording.output
    return recording


def stack_config(stack: str) -> dict[str, Any]:
    """The config in a stack's file."""
    config: dict[str, Any] = yaml.safe_load((ROOT / "stacks" / f"Pulumi.{stack}.yaml").read_text())["config"]
    return config


def plain(value: Any) -> Any:
    """A wire value with secrets as `{"secret": …}` and whole numbers as such."""
    if isinstance(value, dict):
        if value.get(SIGNATURE) == SECRET:
            return {"secret": plain(value["value"])}
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def wire(value: Any) -> Any:
    """The reverse of `plain`."""
    if isinstance(value, dict):
        if set(value) == {"secret"}:
            return {SIGNATURE: SECRET, "value": wire(value["secret"])}
        return {key: wire(item) for key, item in value.items()}
    return [wire(item) for item in value] if isinstance(value, list) else value
