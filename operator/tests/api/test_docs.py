"""The documents name every kind and field, and what they show is valid."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from slurm_operator.api import docs
from slurm_operator.api.generate import default_chart
from slurm_operator.api.kinds import KINDS, Kind
from slurm_operator.api.load import load_spec
from slurm_operator.api.schema import schema_of

DOCS = default_chart().parents[1] / "docs"
PAGES = [DOCS / "operator.md", *sorted((DOCS / "operator").glob("*.md"))]
BY_NAME = {kind.name: kind for kind in KINDS}


def examples(page: Path) -> list[dict[str, Any]]:
    """Whole resources of our kinds in the page's YAML blocks."""
    blocks = re.findall(r"```yaml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    found = [one for block in blocks for one in yaml.safe_load_all(block) if isinstance(one, dict)]
    return [one for one in found if one.get("kind") in BY_NAME and "apiVersion" in one]


def unknown(value: Any, schema: dict[str, Any], where: str) -> list[str]:
    """Paths of fields that the schema has not."""
    if schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema:
        return []
    if isinstance(value, list):
        return [path for one in value for path in unknown(one, schema.get("items", {}), f"{where}[]")]
    if not isinstance(value, dict):
        return []
    known = schema.get("properties", {})
    missing = [f"{where}.{name}" for name in value if name not in known]
    return missing + [path for name in value if name in known for path in unknown(value[name], known[name], name)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_hold_no_field_that_does_not_exist(page: Path) -> None:
    for example in examples(page):
        kind = BY_NAME[example["kind"]]
        assert example["apiVersion"] == f"{kind.group}/{kind.version}"
        assert unknown(example["spec"], schema_of(kind.spec), "spec") == []
        load_spec(kind.spec, example)


def test_each_kind_has_an_example() -> None:
    assert {example["kind"] for example in examples(DOCS / "operator.md")} == set(BY_NAME)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.name))
def test_every_field_is_in_the_tables(kind: Kind) -> None:
    text = docs.tables(kind) + docs.shared_tables()
    names = set(re.findall(r"^\| `(?:[\w\[\]]+\.)*(\w+)` \|", text, re.MULTILINE))

    def fields(schema: dict[str, Any]) -> set[str]:
        found = set(schema.get("properties", {}))
        for inner in (*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])):
            found |= fields(inner)
        return found

    assert fields(schema_of(kind.spec)) | fields(schema_of(kind.status)) <= names


def test_a_document_without_a_place_for_a_kind_is_refused() -> None:
    text = (DOCS / "operator.md").read_text(encoding="utf-8")
    assert docs.document(text) == text, "run: make generate"
    with pytest.raises(docs.DocsError, match="NodeSet"):
        docs.document(text.replace("<!-- fields: NodeSet -->", ""))
