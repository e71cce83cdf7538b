"""Reads a stack's config and makes Settings of it, or one SettingsError that lists everything wrong."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pulumi
from pulumi.runtime import config as pulumi_config
from pydantic import ValidationError

from components.settings.checks import contradictions, renumbered
from components.settings.errors import Key, Problem, SettingsError
from components.settings.explain import problem
from components.settings.model import Settings

NAMESPACE = "slipway"
LISTS = ("partitions", "users")  # lists whose entries are judged one by one


def load(project: Path) -> Settings:
    """The settings of the stack that Pulumi runs. `project` is the folder of Pulumi.yaml.

    Raises SettingsError; its text names the file `stacks/Pulumi.<stack>.yaml` and, where they are found there, lines.
    """
    stack = pulumi.get_stack()
    file = Path("stacks") / f"Pulumi.{stack}.yaml"
    raw: dict[str, Any] = {}
    problems: list[Problem] = []
    for full, text in sorted({**pulumi_config.get_config_env(), **pulumi_config.CONFIG.get()}.items()):
        namespace, _, key = full.partition(":")
        if namespace != NAMESPACE:
            continue
        if pulumi_config.is_config_secret(full):
            problems.append(
                Problem((key,), "it is a secret, and none of these keys hides its value.", "Set it without --secret.")
            )
            continue
        try:
            raw[key] = json.loads(text)
        except ValueError:
            raw[key] = text
    return parse(raw, stack=stack, region=pulumi.Config("aws").get("region"), file=file, root=project, known=problems)


def parse(
    raw: dict[str, Any],
    *,
    stack: str,
    region: str | None,
    file: Path,
    root: Path = Path(),
    known: list[Problem] | None = None,
) -> Settings:
    """Settings from plain values.

    raw: the `slipway:` keys without that prefix. region: aws:region. file: the stack's file, relative to `root`.
    known: problems found before. Raises SettingsError with all problems.
    """
    problems = list(known or ())
    broken = {str(p.key[0]) for p in problems}
    if region is None:
        problems.append(
            Problem(("aws:region",), "this key is needed.", "Add the AWS region, for example aws:region: us-west-2.")
        )
        broken.add("network")
    raw = with_defaults(raw, stack, region or "")
    kept = {name: list(range(len(raw[name]))) for name in LISTS if isinstance(raw.get(name), list)}
    try:
        settings: Settings | None = validated(raw)
    except ValidationError as error:
        problems += _distinct(problem(Settings, found) for found in error.errors(include_url=False))
        rest, kept, unusable = without_broken(raw, [p.key for p in problems])
        broken |= unusable
        settings = _if_valid(rest)
    if settings is not None:
        problems += [renumbered(found, kept) for found in contradictions(settings, region or "", broken)]
    if problems or settings is None:
        raise SettingsError(problems, file=file, root=root, names=item_names(raw))
    return settings


def with_defaults(raw: dict[str, Any], stack: str, region: str) -> dict[str, Any]:
    """`raw` with the defaults that depend on the stack's name and region."""
    filled = dict(raw)

    def default(section: str, key: str, value: Any) -> None:
        found = filled.get(section, {})
        if isinstance(found, dict) and not found.get(key):
            filled[section] = {**found, key: value}

    if region:
        default("network", "zones", [f"{region}a", f"{region}b"])
    default("cluster", "name", f"{NAMESPACE}-{stack}")
    cluster = filled["cluster"]
    if isinstance(cluster, dict):
        default("slurm", "clusterName", str(cluster["name"]).lower())
    return filled


def validated(raw: dict[str, Any]) -> Settings:
    """By way of JSON: there a strict model takes lists for tuples, and still no text for a number."""
    return Settings.model_validate_json(json.dumps(raw), strict=True)


def without_broken(raw: dict[str, Any], keys: list[Key]) -> tuple[dict[str, Any], dict[str, list[int]], set[str]]:
    """`raw` without what is wrong, so that the rest can be judged too.

    Also: which entries of each list are left (indexes in the stack's file), and which keys are gone altogether.
    """
    entries = {(key[0], key[1]) for key in keys if key[0] in LISTS and len(key) > 1}
    gone = {str(key[0]) for key in keys if (key[0], key[1] if len(key) > 1 else None) not in entries}
    rest: dict[str, Any] = {}
    kept: dict[str, list[int]] = {}
    for name, value in raw.items():
        if name in gone:
            continue
        if name in LISTS:
            kept[name] = [index for index in range(len(value)) if (name, index) not in entries]
            rest[name] = [value[index] for index in kept[name]]
        else:
            rest[name] = value
    # What is needed and broken is replaced by something harmless; the checks that would read it are left out.
    if not rest.get("partitions"):
        gone.add("partitions")
        rest["partitions"] = [{"name": "x", "instances": ["m7i.large"], "nodes": {"min": 0, "max": 1}}]
    rest.setdefault("home", {"ephemeral": True})
    return rest, kept, gone


def _if_valid(raw: dict[str, Any]) -> Settings | None:
    try:
        return validated(raw)
    except ValidationError:
        return None


def _distinct(problems: Iterable[Problem]) -> list[Problem]:
    """One problem per key (a union reports each of its branches), and none that follows from one inside it."""
    first: dict[Key, Problem] = {}
    for found in problems:
        first.setdefault(found.key, found)
    return [p for key, p in first.items() if not any(other[: len(key)] == key for other in first if other != key)]


def item_names(raw: dict[str, Any]) -> dict[Key, str]:
    """What the entries of the lists are called, for messages."""
    names: dict[Key, str] = {}
    for name in LISTS:
        entries = raw.get(name)
        for index, item in enumerate(entries if isinstance(entries, list) else []):
            if isinstance(item, dict) and isinstance(item.get("name"), str):
                names[(name, index)] = item["name"]
    return names
