"""`python -m components.settings schema | docs | check FILE…`: what editors, people and CI need."""

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


def generate(file: str, text: str, check_only: bool) -> str | None:
    """Write a generated file, or say that it differs from what would be written."""
    if check_only:
        if not (ROOT / file).exists() or (ROOT / file).read_text() != text:
            return f"{file} is not what components/settings generates. Run `make generate`."
        return None
    (ROOT / file).parent.mkdir(exist_ok=True)
    (ROOT / file).write_text(text)
    return None


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m components.settings", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb, what in (("schema", SCHEMA_FILE), ("docs", DOCS_FILE)):
        command = verbs.add_parser(verb, help=f"write {what}")
        command.add_argument("--check", action="store_true", help="only say whether it is up to date")
    verbs.add_parser("check", help="check stack files").add_argument("files", nargs="+", type=Path)
    chosen = parser.parse_args(arguments)
    if chosen.verb == "schema":
        wrong = [generate(SCHEMA_FILE, json_schema(), chosen.check)]
    elif chosen.verb == "docs":
        wrong = [generate(DOCS_FILE, documentation(), chosen.check)]
    else:
        wrong = [check(file) for file in chosen.files]
    told = [text for text in wrong if text]
    sys.stderr.write("".join(f"{text}\n" for text in told))
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
