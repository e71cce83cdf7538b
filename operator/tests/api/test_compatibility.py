"""Resources written for v1beta1 work unchanged: every field is kept, and what other charts write is understood."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from slurm_operator.api.crd import render_all
from slurm_operator.api.kinds import KINDS, Kind
from slurm_operator.api.load import load_spec
from slurm_operator.api.schema import schema_of
from support.commands import Commands

from localcloud.paths import Instance

EVERY_FIELD = Path(__file__).with_name("every-field.yaml").read_text(encoding="utf-8")
DOCUMENTS: dict[str, dict[str, Any]] = {one["kind"]: one for one in yaml.safe_load_all(EVERY_FIELD)}


def missing(schema: dict[str, Any], value: Any, path: str) -> Iterator[str]:
    """Fields of a schema that a value does not set."""
    if schema.get("type") == "array":
        assert value, path
        for index, item in enumerate(value):
            yield from missing(schema["items"], item, f"{path}[{index}]")
    for name, inner in schema.get("properties", {}).items():
        if name not in value:
            yield f"{path}.{name}"
        else:
            yield from missing(inner, value[name], f"{path}.{name}")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_manifests_set_every_field(kind: Kind) -> None:
    if kind.name in DOCUMENTS:
        assert list(missing(schema_of(kind.spec), DOCUMENTS[kind.name]["spec"], "spec")) == []
        load_spec(kind.spec, DOCUMENTS[kind.name])


@pytest.mark.cluster
def test_every_field_survives_the_round_trip(control_plane: Instance) -> None:
    commands = Commands(control_plane)
    commands.kubectl("apply", "--server-side", "-f", "-", stdin=render_all())
    commands.kubectl("wait", "--for=condition=Established", "--timeout=30s", "crd", "--all")
    try:
        commands.kubectl("apply", "--server-side", "--field-manager=first", "-f", "-", stdin=EVERY_FIELD)
        again = commands.kubectl("apply", "-f", "-", stdin=EVERY_FIELD)
        for name, document in DOCUMENTS.items():
            found = json.loads(commands.kubectl("get", name.lower(), "every", "-o", "json"))
            assert found["spec"] == document["spec"], name
        third = commands.kubectl("apply", "-f", "-", stdin=EVERY_FIELD)
        assert again.count("\n") == third.count("unchanged") == len(DOCUMENTS)
    finally:
        commands.kubectl("delete", "--ignore-not-found", "-f", "-", stdin=EVERY_FIELD)


@pytest.mark.cluster
def test_a_chart_that_writes_null_for_an_empty_list(control_plane: Instance) -> None:
    commands = Commands(control_plane)
    commands.kubectl("apply", "--server-side", "-f", "-", stdin=render_all())
    commands.kubectl("wait", "--for=condition=Established", "--timeout=30s", "crd", "--all")
    written = {
        "apiVersion": "slinky.slurm.net/v1beta1",
        "kind": "Controller",
        "metadata": {"name": "nulls", "namespace": "default"},
        "spec": {"prologScriptRefs": None, "template": {"metadata": None}, "slurmctld": {"image": "x"}},
    }
    commands.kubectl("create", "-f", "-", stdin=json.dumps(written))
    try:
        found = json.loads(commands.kubectl("get", "controller", "nulls", "-o", "json"))
        load_spec(next(kind.spec for kind in KINDS if kind.name == "Controller"), found)
    finally:
        commands.kubectl("delete", "controller", "nulls")
