"""Errors as AWS words them, for each of its wire protocols."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any
from xml.sax.saxutils import escape

JSON_TYPES = {"json": "application/x-amz-json-1.1", "rest-json": "application/json"}


@dataclass
class AwsError(Exception):
    """A refusal: AWS's error code, a message, the HTTP status, and the extra members of the error shape."""

    code: str
    message: str
    status: int = 400
    extra: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


@dataclass(frozen=True)
class Response:
    """An HTTP answer."""

    status: int
    headers: dict[str, str]
    body: bytes


def render(error: AwsError, protocol: str, service: str, request_id: str) -> Response:
    """The answer that an SDK of `protocol` ("query", "json", "rest-json" or "rest-xml") turns back into `error`."""
    if protocol in JSON_TYPES:
        body = json.dumps({"__type": error.code, "message": error.message, **error.extra}).encode()
        headers = {"Content-Type": JSON_TYPES[protocol], "x-amzn-ErrorType": error.code}
    else:
        code, message = escape(error.code), escape(error.message)
        inner = f"<Code>{code}</Code><Message>{message}</Message>"
        if service == "ec2":
            text = f"<Response><Errors><Error>{inner}</Error></Errors><RequestID>{request_id}</RequestID></Response>"
        elif protocol == "rest-xml":
            text = f"<Error>{inner}<RequestId>{request_id}</RequestId></Error>"
        else:
            text = (
                f"<ErrorResponse><Error><Type>Sender</Type>{inner}</Error>"
                f"<RequestId>{request_id}</RequestId></ErrorResponse>"
            )
        body, headers = text.encode(), {"Content-Type": "text/xml"}
    return Response(error.status, {**headers, "x-amzn-RequestId": request_id}, body)


def json_response(value: Any, status: int = 200) -> Response:
    """A JSON answer; values that are no JSON raise TypeError."""
    return Response(status, {"Content-Type": "application/json"}, json.dumps(value).encode())
