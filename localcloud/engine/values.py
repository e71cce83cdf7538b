"""Property values: plain JSON data in which secrets, references and assets are objects marked by a signature.

The signatures and the sentinel of an unknown value are part of Pulumi's wire format and of its checkpoint format.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from google.protobuf import struct_pb2

from localcloud.engine.errors import EngineError

Properties = dict[str, Any]

SIGNATURE = "4dabf18193072939515e22adb298388d"
SECRET = "1b47061264138c4ac30d75fd1eb44270"  # noqa: S105 - a signature
OUTPUT = "d0e6a833031e9bbcd3f4e8bde6ca49a4"
RESOURCE = "5cf8f73096256a8f31e491e813e4eb8e"
ASSET = "c44067f5952c0a294b673a41bacd8c17"
ARCHIVE = "0def7320c3a5731c473e5ecbe6d01bc7"

UNKNOWN = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
_UNKNOWN_OF_OTHER_TYPES = frozenset(
    {
        "1c4a061d-8072-4f0a-a4cb-0ff528b18fe7",  # bool
        "3eeb2bf0-c639-47a8-9e75-3b44932eb421",  # number
        "6a19a0b0-7e62-4c92-b797-7f8e31da9cc2",  # array
        "030794c1-ac77-496b-92df-f27374a8bd58",  # asset
        "e48ece36-62e2-4504-bad9-02848725956a",  # archive
        "dd056dcd-154b-4c76-9bd3-c8f88648b5ff",  # object
    }
)


def secret(value: Any) -> Any:
    """The value marked as secret (once)."""
    return value if is_secret(value) else {SIGNATURE: SECRET, "value": value}


def is_secret(value: Any) -> bool:
    return isinstance(value, dict) and value.get(SIGNATURE) == SECRET


def _any_node(value: Any, test: Callable[[Any], bool]) -> bool:
    if test(value):
        return True
    if isinstance(value, dict):
        return any(_any_node(item, test) for item in value.values())
    if isinstance(value, list):
        return any(_any_node(item, test) for item in value)
    return False


def has_secret(value: Any) -> bool:
    return _any_node(value, is_secret)


def has_unknown(value: Any) -> bool:
    return _any_node(value, lambda node: isinstance(node, str) and node == UNKNOWN)


def plain(value: Any) -> Any:
    """The value without any mark of secrecy, at any depth."""
    if isinstance(value, dict):
        if value.get(SIGNATURE) == SECRET:
            return plain(value["value"])
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value


def masked(value: Any) -> Any:
    """The value as people may see it: secrets and unknowns by name only."""
    if isinstance(value, dict):
        if value.get(SIGNATURE) == SECRET:
            return "[secret]"
        if value.get(SIGNATURE) == RESOURCE:
            return value.get("urn", "")
        return {key: masked(item) for key, item in value.items() if key != SIGNATURE}
    if isinstance(value, list):
        return [masked(item) for item in value]
    return "[unknown]" if isinstance(value, str) and value == UNKNOWN else value


def keep_secrets(outputs: Properties, inputs: Properties) -> Properties:
    """Outputs in which whatever was secret among the inputs is secret under the same name."""
    result = dict(outputs)
    for key, given in inputs.items():
        if key not in result:
            continue
        value = result[key]
        if is_secret(value):
            continue
        if isinstance(value, dict) and isinstance(given, dict) and SIGNATURE not in given and SIGNATURE not in value:
            result[key] = keep_secrets(value, given)
        elif has_secret(given):
            result[key] = secret(value)
    return result


def mark_secret(outputs: Properties, names: Iterable[str]) -> Properties:
    """Outputs with the named ones marked as secret."""
    return outputs | {name: secret(outputs[name]) for name in names if name in outputs}


def without_unknowns(outputs: Properties) -> Properties:
    return {key: value for key, value in outputs.items() if not has_unknown(value)}


def for_provider(value: Any, *, secrets: bool, resources: bool) -> Any:
    """What a provider may be sent: without marks of secrecy or references to resources it does not understand."""
    if isinstance(value, dict):
        signature = value.get(SIGNATURE)
        if signature == SECRET:
            inner = for_provider(value["value"], secrets=secrets, resources=resources)
            return {SIGNATURE: SECRET, "value": inner} if secrets else inner
        if signature == RESOURCE and not resources:
            return value.get("id") or value.get("urn", "")
        return {key: for_provider(item, secrets=secrets, resources=resources) for key, item in value.items()}
    if isinstance(value, list):
        return [for_provider(item, secrets=secrets, resources=resources) for item in value]
    return value


def from_struct(message: struct_pb2.Struct, folder: Path | None = None) -> Properties:
    """Properties from their wire form; outputs become their value, or unknown.

    folder: where the paths of the program's assets begin; their content is then hashed, so that changes are seen.
    """
    return {key: from_value(value, folder) for key, value in message.fields.items()}


def from_value(message: struct_pb2.Value, folder: Path | None = None) -> Any:
    kind = message.WhichOneof("kind")
    if kind == "string_value":
        text = message.string_value
        return UNKNOWN if text in _UNKNOWN_OF_OTHER_TYPES else text
    if kind == "number_value":
        number = message.number_value
        return int(number) if number.is_integer() else number
    if kind == "bool_value":
        return message.bool_value
    if kind == "list_value":
        return [from_value(item, folder) for item in message.list_value.values]
    if kind == "struct_value":
        return _object(from_struct(message.struct_value, folder), folder)
    return None


def _object(value: Properties, folder: Path | None) -> Any:
    signature = value.get(SIGNATURE)
    if signature == OUTPUT:
        inner = value.get("value", UNKNOWN)
        return secret(inner) if value.get("secret") else inner
    if signature == ASSET and folder is not None:
        return _hashed(value, folder)
    if signature == ARCHIVE:
        raise EngineError("archives (pulumi.FileArchive…) need the pulumi CLI; single files work, as pulumi.FileAsset")
    return value


def _hashed(asset: Properties, folder: Path) -> Properties:
    if asset.get("hash"):
        return asset
    if "text" in asset:
        content = str(asset["text"]).encode()
    elif "path" in asset:
        try:
            content = (folder / asset["path"]).read_bytes()
        except OSError as error:
            raise EngineError(f"asset {asset['path']}: {error.strerror}") from error
    else:
        raise EngineError(f"asset {asset.get('uri')}: remote assets need the pulumi CLI")
    return asset | {"hash": hashlib.sha256(content).hexdigest()}


def to_struct(properties: Properties) -> struct_pb2.Struct:
    message = struct_pb2.Struct()
    for key, value in properties.items():
        fill_value(message.fields[key], value)
    return message


def fill_value(message: struct_pb2.Value, value: Any) -> None:
    """Writes one value into its wire form."""
    if value is None:
        message.null_value = struct_pb2.NULL_VALUE
    elif isinstance(value, bool):
        message.bool_value = value
    elif isinstance(value, int | float):
        message.number_value = value
    elif isinstance(value, str):
        message.string_value = value
    elif isinstance(value, list):
        message.list_value.SetInParent()
        for item in value:
            fill_value(message.list_value.values.add(), item)
    else:
        message.struct_value.SetInParent()
        for key, item in value.items():
            fill_value(message.struct_value.fields[key], item)
