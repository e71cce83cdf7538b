"""The recorded graph of each stack: what the program registers, in a form that people can review in a diff.

`python -m tests.program.golden` writes tests/golden/<stack>.json again, after an intended change.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from tests.program.harness import ROOT, Recording, Registered, run

STACKS = ("local", "dev")
FOLDER = ROOT / "tests" / "golden"
MASKS = (
    (re.compile(r'"\d[\d.]*-[0-9a-f]{12}"'), '"<image tag>"'),  # changes with any file of an image
    (re.compile(r'"(charts/[a-z-]+) [0-9a-f]{12}"'), r'"\1 <hash>"'),  # changes with any file of a chart
)


def path(stack: str) -> Path:
    return FOLDER / f"{stack}.json"


def graph(recording: Recording) -> str:
    """All registrations, sorted, with secrets and content hashes masked."""
    entries = [_entry(resource) for resource in recording.resources if resource.type != "pulumi:pulumi:Stack"]
    document = {
        "outputs": recording.outputs,
        "resources": sorted(entries, key=lambda entry: str(entry["urn"])),
    }
    return shown(document)


def shown(value: Any) -> str:
    """A value as JSON, without secrets and without what changes with the files of images and charts."""
    text = json.dumps(_masked(value), indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    for pattern, replacement in MASKS:
        text = pattern.sub(replacement, text)
    return text


def _entry(resource: Registered) -> dict[str, Any]:
    options = {key: value for key, value in resource.options.items() if key != "aliases"}
    entry: dict[str, Any] = {"urn": short(resource.urn), "parent": short(resource.parent), "inputs": resource.inputs}
    if resource.depends:
        entry["depends"] = sorted(short(urn) for urn in resource.depends)
    if resource.provider:
        entry["provider"] = short(resource.provider.rpartition("::")[0])
    if options:
        entry["options"] = {k: short(v) if isinstance(v, str) else v for k, v in options.items()}
    return entry


def short(urn: str) -> str:
    """`aws:eks/cluster:Cluster::cluster` of a whole URN."""
    parts = urn.split("::")
    return f"{parts[2].rpartition('$')[2]}::{parts[3]}" if len(parts) == 4 else urn


def _masked(value: Any) -> Any:
    if isinstance(value, dict):
        return "<secret>" if set(value) == {"secret"} else {key: _masked(item) for key, item in value.items()}
    return [_masked(item) for item in value] if isinstance(value, list) else value


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for stack in STACKS:
        recording = run(stack)
        if recording.exit_code:
            sys.exit(recording.output)
        path(stack).write_text(graph(recording))


if __name__ == "__main__":
    main()
