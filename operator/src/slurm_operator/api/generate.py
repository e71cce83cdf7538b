"""Writes what is generated from Python: CRDs and RBAC rules of the operator's chart, tables of docs/operator.md.

`python -m slurm_operator.api.generate [--check] [--chart DIR]`; with --check nothing is written and the exit code is 1
when a file differs from what would be written. With --chart the document is left alone.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from slurm_operator.api.crd import crd, render
from slurm_operator.api.docs import DocsError, document
from slurm_operator.api.kinds import KINDS
from slurm_operator.api.rbac_template import rbac_template

HEADER = "# Generated from operator/src/slurm_operator by `make generate`; do not edit.\n"


def generated() -> dict[str, str]:
    """Path inside the chart -> text, for every generated file."""
    files = {f"files/crds/{kind.plural}.{kind.group}.yaml": HEADER + render(crd(kind)) for kind in KINDS}
    files["templates/rbac.yaml"] = HEADER + rbac_template()
    return files


def default_chart() -> Path:
    """The chart beside this source tree. Raises FileNotFoundError in an installed package, which has none."""
    chart = Path(__file__).resolve().parents[4] / "charts" / "slurm-operator"
    if not chart.is_dir():
        raise FileNotFoundError(f"no chart at {chart}: give its folder by --chart")
    return chart


def documentation(chart: Path) -> tuple[Path, str]:
    """The document beside the chart, and its text as it should be. Raises DocsError."""
    path = chart.parents[1] / "docs" / "operator.md"
    return path, document(path.read_text(encoding="utf-8"))


def drift(chart: Path) -> list[str]:
    """Generated files of the chart that differ from what the source says, and leftovers."""
    wanted = generated()
    stale = [name for name, text in wanted.items() if not _same(chart / name, text)]
    extra = [f"files/crds/{path.name}" for path in sorted((chart / "files" / "crds").glob("*.yaml"))]
    return stale + [name for name in extra if name not in wanted]


def write(chart: Path) -> list[str]:
    """Writes what differs, removes leftovers; returns the changed paths."""
    wanted = generated()
    changed = drift(chart)
    for name in changed:
        path = chart / name
        if name in wanted:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted[name], encoding="utf-8")
        else:
            path.unlink()
    return changed


def _same(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m slurm_operator.api.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 when something differs")
    parser.add_argument("--chart", type=Path, help="folder of the chart slurm-operator")
    options = parser.parse_args(arguments)
    try:
        chart = options.chart or default_chart()
    except FileNotFoundError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    try:
        changed = [chart / name for name in (drift(chart) if options.check else write(chart))]
        if options.chart is None:
            path, text = documentation(chart)
            if not _same(path, text):
                changed.append(path)
                if not options.check:
                    path.write_text(text, encoding="utf-8")
    except DocsError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    for changed_path in changed:
        sys.stdout.write(f"{'differs' if options.check else 'written'}: {changed_path}\n")
    if options.check and changed:
        sys.stderr.write("The chart or docs/operator.md is not what the source says. Run: make generate\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
