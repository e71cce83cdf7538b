"""`python -m components.settings schema | docs | write | check FILE…`: what editors, people and CI need."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import yaml

from components.settings import SettingsError, parse
from components.settings.load import NAMESPACE
from components.settings.reference import DOCS_FILE, SCHEMA_FILE, documentation, json_schema

ROOT = Path(__file__).resolve().parent.parent.parent


def check(file: Path) -> str | None:
    """What is wrong with a stack's file, or None."""
    stack = file.name.removeprefix("Pulumi.").removesuffix(".yaml")
    try:
        config = (yaml.safe_load(file.read_text()) or {}).get("config") or {}
    except OSError as error:
        return f"{file}: {error.strerror}."
    except (yaml.YAMLError, AttributeError) as error:
        return f"{file}: this is no YAML of a stack: {error}"
    raw = {key.partition(":")[2]: value for key, value in config.items() if key.startswith(f"{NAMESPACE}:")}
    try:
        parse(raw, stack=stack, region=config.get("aws:region"), file=file)
    except SettingsError as error:
        return str(error)
    return None


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m components.settings", description=__doc__)
    parser.add_argument("verb", choices=["schema", "docs", "write", "check"])
    parser.add_argument("files", nargs="*", type=Path, help="stack files to check")
    chosen = parser.parse_args(arguments)
    if chosen.verb == "schema":
        sys.stdout.write(json_schema())
    elif chosen.verb == "docs":
        sys.stdout.write(documentation())
    elif chosen.verb == "write":
        (ROOT / SCHEMA_FILE).write_text(json_schema())
        (ROOT / DOCS_FILE).parent.mkdir(exist_ok=True)
        (ROOT / DOCS_FILE).write_text(documentation())
    else:
        wrong = [text for file in chosen.files if (text := check(file))]
        if wrong:
            sys.stderr.write("\n".join(wrong) + "\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
