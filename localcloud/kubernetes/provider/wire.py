"""Property values between Pulumi's wire form (google.protobuf.Struct) and plain Python.

A decoded value is JSON-like (dict, list, str, int, float, bool, None), with `UNKNOWN` where a preview does not know a
value yet. Which values are secret is kept beside it, as paths, so that what goes to Kubernetes is plain and what goes
back to the engine is marked again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from google.protobuf.struct_pb2 import ListValue, Struct, Value

Object = dict[str, Any]
Path = tuple[str | int, ...]

SIGNATURE: Final = "4dabf18193072939515e22adb298388d"
SECRET: Final = "1b47061264138c4ac30d75fd1eb44270"  # noqa: S105  # a mark of the protocol
OUTPUT: Final = "d0e6a833031e9bbcd3f4e8bde6ca49a4"
ASSET: Final = "c44067f5952c0a294b673a41bacd8c17"
ARCHIVE: Final = "0def7320c3a5731c473e5ecbe6d01bc7"
RESOURCE: Final = "5cf8f73096256a8f31e491e813e4eb8e"

_UNKNOWN_STRING: Final = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
# One sentinel per type of the value that will once be there; all of them mean the same here.
_UNKNOWNS: Final = frozenset(
    {
        _UNKNOWN_STRING,
        "1c4a061d-8072-4f0a-a4cb-0ff528b18fe7",
        "3eeb2bf0-c639-47a8-9e75-3b44932eb421",
        "6a19a0b0-7e62-4c92-b797-7f8e31da9cc2",
        "030794c1-ac77-496b-92df-f27374a8bd58",
        "e48ece36-62e2-4504-bad9-02848725956a",
        "dd056dcd-154b-4c76-9bd3-c8f88648b5ff",
    }
)


class _Unknown:
    """The type of `UNKNOWN`; equal to nothing else, so a comparison with it is a change."""

    def __repr__(self) -> str:
        return "<unknown until the update runs>"

    def __deepcopy__(self, memo: object) -> _Unknown:
        return self


UNKNOWN: Final = _Unknown()


class WireError(ValueError):
    """A value the engine may not send to this provider."""


def decode(struct: Struct) -> tuple[Object, list[Path]]:
    """The plain value of `struct`, and the paths of what in it is secret."""
    secrets: list[Path] = []
    value = {key: _decode(item, (key,), secrets) for key, item in struct.fields.items()}
    return value, secrets


def plain(struct: Struct) -> Object:
    """The plain value of `struct`, with no notice of what is secret."""
    return decode(struct)[0]


def _decode(value: Value, path: Path, secrets: list[Path]) -> Any:
    kind = value.WhichOneof("kind")
    if kind == "string_value":
        return UNKNOWN if value.string_value in _UNKNOWNS else value.string_value
    if kind == "number_value":
        number = value.number_value
        # Struct has doubles only; Kubernetes tells 80 from 80.0.
        return int(number) if number.is_integer() else number
    if kind == "bool_value":
        return value.bool_value
    if kind == "list_value":
        return [_decode(item, (*path, index), secrets) for index, item in enumerate(value.list_value.values)]
    if kind == "struct_value":
        return _decode_struct(value.struct_value, path, secrets)
    return None


def _decode_struct(struct: Struct, path: Path, secrets: list[Path]) -> Any:
    fields = struct.fields
    signature = fields[SIGNATURE].string_value if SIGNATURE in fields else ""
    if signature == SECRET:
        secrets.append(path)
        return _decode(fields["value"], path, secrets)
    if signature == OUTPUT:
        if "secret" in fields and fields["secret"].bool_value:
            secrets.append(path)
        return _decode(fields["value"], path, secrets) if "value" in fields else UNKNOWN
    if signature == RESOURCE:
        raise WireError(f"{format_path(path)}: a whole resource was passed; pass one of its outputs")
    return {key: _decode(item, (*path, key), secrets) for key, item in fields.items()}


def encode(value: Mapping[str, Any], secrets: Iterable[Path] = ()) -> Struct:
    """`value` in wire form, with what lies at `secrets` marked secret. Paths that are not there are left out.

    A path through a list marks the whole list: the API server may return its items in another order.
    """
    marked = {path[: next((i for i, step in enumerate(path) if isinstance(step, int)), len(path))] for path in secrets}
    struct = Struct()
    _encode_into(struct, value, (), marked)
    return struct


def _encode_into(struct: Struct, value: Mapping[str, Any], path: Path, marked: set[Path]) -> None:
    for key, item in value.items():
        _encode(struct.fields[key], item, (*path, key), marked)


def _encode(into: Value, value: Any, path: Path, marked: set[Path]) -> None:
    if path in marked:
        into.struct_value.fields[SIGNATURE].string_value = SECRET
        into = into.struct_value.fields["value"]
    if value is None:
        into.null_value = 0  # the enum's only value
    elif value is UNKNOWN:
        into.string_value = _UNKNOWN_STRING
    elif isinstance(value, bool):
        into.bool_value = value
    elif isinstance(value, (int, float)):
        into.number_value = value
    elif isinstance(value, str):
        into.string_value = value
    elif isinstance(value, Mapping):
        into.struct_value.CopyFrom(Struct())
        _encode_into(into.struct_value, value, path, marked)
    else:
        into.list_value.CopyFrom(ListValue())
        for index, item in enumerate(value):
            _encode(into.list_value.values.add(), item, (*path, index), marked)


def has_unknown(value: Any) -> bool:
    """Whether `value` is or contains `UNKNOWN`."""
    if isinstance(value, dict):
        return any(has_unknown(item) for item in value.values())
    if isinstance(value, list):
        return any(has_unknown(item) for item in value)
    return value is UNKNOWN


def map_keys(value: Any, rename: Callable[[str], str]) -> Any:
    """A copy of `value` with every key of every object in it renamed."""
    if isinstance(value, dict):
        return {rename(key): map_keys(item, rename) for key, item in value.items()}
    if isinstance(value, list):
        return [map_keys(item, rename) for item in value]
    return value


def without_nulls(value: Any) -> Any:
    """A copy of `value` without the members that are null; the API server treats both alike."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


def get(value: Any, *path: str | int) -> Any:
    """What lies at `path` in `value`, or None where there is nothing."""
    for step in path:
        if isinstance(value, dict) and isinstance(step, str):
            value = value.get(step)
        elif isinstance(value, list) and isinstance(step, int) and -len(value) <= step < len(value):
            value = value[step]
        else:
            return None
    return value


def format_path(path: Path) -> str:
    """`path` as Pulumi writes it: `spec.ports[0].name`, `metadata.annotations["a.b/c"]`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif step and all(letter.isalnum() or letter in "_-$" for letter in step):
            text += f".{step}" if text else step
        else:
            escaped = step.replace("\\", "\\\\").replace('"', '\\"')
            text += f'["{escaped}"]'
    return text


def parse_path(text: str) -> Path:
    """The reverse of `format_path`, for `ignoreChanges`. A `*` stays the step "*". Raises ValueError."""
    path: list[str | int] = []
    rest = text
    while rest:
        if rest.startswith('["'):
            end = 2
            while end < len(rest) and rest[end] != '"':
                end += 2 if rest[end] == "\\" else 1
            if rest[end : end + 2] != '"]':
                raise ValueError(f"{text}: the quoted step has no end")
            path.append(rest[2:end].replace('\\"', '"').replace("\\\\", "\\"))
            rest = rest[end + 2 :]
        elif rest.startswith("["):
            index, found, rest = rest[1:].partition("]")
            if not found or not (index.isdigit() or index == "*"):
                raise ValueError(f"{text}: [{index} is not an index")
            path.append(int(index) if index.isdigit() else "*")
        else:
            rest = rest.removeprefix(".")
            end = next((i for i, letter in enumerate(rest) if letter in ".["), len(rest))
            if not end:
                raise ValueError(f"{text}: a step is empty")
            path.append(rest[:end])
            rest = rest[end:]
    return tuple(path)


def covers(pattern: Path, path: Path) -> bool:
    """Whether `path` is at or below `pattern`; "*" in `pattern` is any one step."""
    return len(pattern) <= len(path) and all(p in ("*", s) for p, s in zip(pattern, path, strict=False))
