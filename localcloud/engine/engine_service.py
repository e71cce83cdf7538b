"""The Engine service: messages of the program and of the plugins, and the root of the resource tree."""

from __future__ import annotations

from typing import Any

from google.protobuf import empty_pb2
from pulumi.runtime.proto import engine_pb2, engine_pb2_grpc

from localcloud.engine.display import Display

_SEVERITIES = {engine_pb2.INFO: "info", engine_pb2.WARNING: "warning", engine_pb2.ERROR: "error"}


class EngineService(engine_pb2_grpc.EngineServicer):
    """Serves one run. errors counts the errors that were logged: a run with any has failed."""

    def __init__(self, display: Display) -> None:
        self.errors = 0
        self._display = display
        self._root = ""

    async def Log(self, request: Any, context: Any) -> empty_pb2.Empty:
        severity = _SEVERITIES.get(request.severity)
        if severity is None:
            return empty_pb2.Empty()  # debug
        text = request.message.rstrip()
        if request.ephemeral:
            self._display.status(request.urn, text.partition("\n")[0])
        elif text:
            self.errors += severity == "error"
            self._display.diagnostic(severity, text, request.urn)
        return empty_pb2.Empty()

    async def GetRootResource(self, request: Any, context: Any) -> engine_pb2.GetRootResourceResponse:
        return engine_pb2.GetRootResourceResponse(urn=self._root)

    async def SetRootResource(self, request: Any, context: Any) -> engine_pb2.SetRootResourceResponse:
        self._root = request.urn
        return engine_pb2.SetRootResourceResponse()
