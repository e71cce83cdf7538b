"""Pulumi.yaml and stacks/Pulumi.<stack>.yaml: the project, its config schema, and the config of one stack."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from localcloud.engine.crypto import Crypter
from localcloud.engine.errors import EngineError

_BASE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_BASE):  # type: ignore[misc]
    """YAML 1.2 scalars, as the CLI reads them: `on` and `1:00:00` are text, dates too."""

    yaml_implicit_resolvers: dict[str, Any] = {}


_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(true|True|TRUE|false|False|FALSE)$"), "tTfF")
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^([-+]?[0-9]+|0x[0-9a-fA-F]+)$"), "-+0123456789")
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$"),
    "-+.0123456789",
)
_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"^(~|null|Null|NULL|)$"), ["~", "n", "N", ""])


@dataclass(frozen=True)
class Project:
    """What Pulumi.yaml says."""

    name: str
    directory: Path
    program: Path
    stack_directory: Path
    schema: dict[str, Any]
    backend: str

    @property
    def file(self) -> Path:
        return self.directory / "Pulumi.yaml"

    def stack_file(self, stack: str) -> Path:
        return self.stack_directory / f"Pulumi.{stack}.yaml"

    def stacks(self) -> list[str]:
        """The stacks that have a file."""
        return sorted(p.name[len("Pulumi.") : -len(".yaml")] for p in self.stack_directory.glob("Pulumi.*.yaml"))


@dataclass(frozen=True)
class Config:
    """One stack's config as the program gets it: text by full key (`aws:region`), objects as JSON."""

    values: dict[str, str] = field(default_factory=dict)
    secret_keys: frozenset[str] = frozenset()

    def package(self, name: str) -> dict[str, tuple[str, bool]]:
        """Value and secrecy by short key, of one namespace."""
        prefix = f"{name}:"
        return {
            key[len(prefix) :]: (value, key in self.secret_keys)
            for key, value in self.values.items()
            if key.startswith(prefix)
        }


def _read(path: Path) -> dict[str, Any]:
    try:
        content = yaml.load(path.read_text(), _Loader)  # noqa: S506 - derived from the safe loader
    except OSError as error:
        raise EngineError(f"{path}: {error.strerror}") from error
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise EngineError(
            f"{where}: not valid YAML: {problem or error}.\n"
            "Look for a bracket, a quote or an indentation that is wrong in this line or above it."
        ) from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise EngineError(f"{path}: a mapping is expected at the top, found {type(content).__name__}")
    return content


def load_project(directory: Path) -> Project:
    """The project of a folder or of one above it. Raises EngineError when there is none or it is not Python."""
    start = directory.resolve()
    home = next((d for d in [start, *start.parents] if (d / "Pulumi.yaml").is_file()), None)
    if home is None:
        raise EngineError(f"no Pulumi.yaml in {start} or above it: run this inside the project, or pass --cwd DIR")
    content = _read(home / "Pulumi.yaml")
    name = content.get("name")
    if not isinstance(name, str) or not name:
        raise EngineError(f"{home / 'Pulumi.yaml'}: name: the project's name is missing")
    runtime = content.get("runtime", "")
    language = runtime.get("name") if isinstance(runtime, dict) else runtime
    if language != "python":
        raise EngineError(f"{home / 'Pulumi.yaml'}: runtime: {language!r}; only python programs run without the CLI")
    program = home / str(content.get("main") or ".")
    if program.is_dir():
        program = program / "__main__.py"
    backend = content.get("backend") or {}
    return Project(
        name=name,
        directory=home,
        program=program,
        stack_directory=home / str(content.get("stackConfigDir") or "."),
        schema={str(key): value for key, value in (content.get("config") or {}).items()},
        backend=str(backend.get("url", "")) if isinstance(backend, dict) else "",
    )


@dataclass(frozen=True)
class StackFile:
    """What a stack's file says before it is decrypted."""

    path: Path
    config: dict[str, Any] = field(default_factory=dict)
    salt: str = ""
    secrets_provider: str = ""


def load_stack_file(project: Project, stack: str) -> StackFile:
    """The stack's file; one that does not exist is an empty one."""
    path = project.stack_file(stack)
    if not path.is_file():
        return StackFile(path)
    content = _read(path)
    known = {"config", "encryptionsalt", "encryptedkey", "secretsprovider", "environment"}
    if unknown := sorted(set(content) - known):
        raise EngineError(f"{path}: {unknown[0]}: no such key; allowed are {', '.join(sorted(known))}")
    if content.get("environment"):
        raise EngineError(f"{path}: environment: Pulumi ESC needs Pulumi Cloud; put the values under config")
    config = content.get("config") or {}
    if not isinstance(config, dict):
        raise EngineError(f"{path}: config: a mapping of keys to values is expected")
    return StackFile(path, config, str(content.get("encryptionsalt") or ""), str(content.get("secretsprovider") or ""))


def resolve(project: Project, file: StackFile, crypter: Callable[[], Crypter]) -> Config:
    """The config that the program gets: the stack's values, decrypted, over the schema's defaults.

    Raises EngineError that names file and key for a missing required key or a value of another type.
    """
    given: dict[str, Any] = {_full(project, str(key)): value for key, value in file.config.items()}
    kinds: dict[str, str] = {}
    missing: list[str] = []
    must_be_secret: set[str] = set()
    for short, entry in project.schema.items():
        key = _full(project, short)
        rule = entry if isinstance(entry, dict) else {"value": entry}
        kinds[key] = str(rule.get("type", ""))
        if rule.get("secret"):
            must_be_secret.add(key)
        default = rule.get("value", rule.get("default"))
        if key in given:
            continue
        if default is not None:
            given[key] = default
        elif key.startswith(f"{project.name}:"):
            missing.append(key)
    if missing:
        raise EngineError(
            f"{file.path}: config: required and missing: {', '.join(missing)}. {project.file} describes each key."
        )
    values: dict[str, str] = {}
    secret_keys: set[str] = set()
    for key, value in given.items():
        opened, is_secret = _decrypted(value, crypter, f"{file.path}: {key}")
        _check_type(opened, kinds.get(key, ""), f"{file.path}: {key}")
        if key in must_be_secret and not is_secret:
            raise EngineError(f"{file.path}: {key}: must be a secret: set it with `pulumi config set --secret`")
        values[key] = opened if isinstance(opened, str) else json.dumps(opened, ensure_ascii=False)
        if is_secret:
            secret_keys.add(key)
    return Config(values, frozenset(secret_keys))


def _full(project: Project, key: str) -> str:
    namespace, _, name = key.partition(":")
    if not name:
        return f"{project.name}:{key}"
    # The long form <namespace>:config:<name> is the same key.
    return f"{namespace}:{name.removeprefix('config:')}"


def _decrypted(value: Any, crypter: Callable[[], Crypter], where: str) -> tuple[Any, bool]:
    if isinstance(value, dict):
        if set(value) == {"secure"}:
            try:
                return crypter().decrypt(str(value["secure"])), True
            except EngineError as error:
                raise EngineError(f"{where}: {error}") from error
        pairs = {str(key): _decrypted(item, crypter, f"{where}.{key}") for key, item in value.items()}
        return {key: item for key, (item, _) in pairs.items()}, any(flag for _, flag in pairs.values())
    if isinstance(value, list):
        items = [_decrypted(item, crypter, f"{where}[{i}]") for i, item in enumerate(value)]
        return [item for item, _ in items], any(flag for _, flag in items)
    return value, False


_TYPES: dict[str, Callable[[Any], bool]] = {
    "string": lambda v: isinstance(v, str),
    "integer": lambda v: not isinstance(v, bool) and (isinstance(v, int) or str(v).removeprefix("-").isdigit()),
    "boolean": lambda v: isinstance(v, bool) or v in ("true", "false"),
    "array": lambda v: isinstance(v, list),
    "object": lambda v: isinstance(v, dict),
}


def _check_type(value: Any, kind: str, where: str) -> None:
    if not kind:
        return
    if kind not in _TYPES:
        raise EngineError(f"{where}: type {kind!r} in Pulumi.yaml: allowed are {', '.join(_TYPES)}")
    if not _TYPES[kind](value):
        raise EngineError(f"{where}: {json.dumps(value)} is no {kind}, which Pulumi.yaml asks for")
