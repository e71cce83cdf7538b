"""python -m bench.operator --workers 1000 [--operator 'command line'] [--only scale-out,cordon]"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shlex
import signal
import sys
import tempfile
import time
from pathlib import Path

from bench.operator import measures, report
from bench.operator.errors import BenchError
from bench.operator.world import running_world
from bench.sections import replace_section
from localcloud.kubernetes.errors import ClusterError

HERE = Path(__file__).resolve().parent
EXAMPLES = """\
examples:
  make bench-operator WORKERS=1000
  make bench-operator WORKERS=100 ONLY=scale-out,cordon
  make bench-operator WORKERS=1000 OPERATOR='/path/to/manager --leader-elect' CRDS=/path/to/crds

In OPERATOR, {kubeconfig} and {namespace} are filled in; $KUBECONFIG is set too. Takes 6 to 10 minutes for 1,000
workers, needs root, and uses an instance of its own (SLIPWAY_INSTANCE=bench-operator, SLIPWAY_NET=150)."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make bench-operator", description=__doc__, epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--workers", type=int, default=1000, help="N, 20 to 10000 (default 1000)")
    parser.add_argument("--operator", default="", metavar="COMMAND", help="another operator (default: this one)")
    parser.add_argument("--crds", type=Path, metavar="PATH", help="its CRDs, a file or a folder (default: ours)")
    parser.add_argument("--only", default="", help=f"some of {','.join(measures.ALL)}; scale-out always runs")
    parser.add_argument("--name", default="", help="write results-NAME.json (default: N, when all measures ran)")
    chosen = parser.parse_args()
    if not 20 <= chosen.workers <= 10_000:
        parser.error(f"--workers {chosen.workers}: 20 to 10000 is allowed")
    only = [name for name in chosen.only.split(",") if name]
    if unknown := [name for name in only if name not in measures.ALL]:
        parser.error(f"--only {unknown[0]}: one of {', '.join(measures.ALL)} is allowed")
    if chosen.crds is not None and not chosen.crds.exists():
        parser.error(f"--crds {chosen.crds}: there is no such file or folder")
    if os.geteuid() != 0:
        parser.error("it needs root: it makes a bridge, mounts and control groups")
    chosen.only = [name for name in measures.ALL if not only or name in only or name == "scale-out"]
    return chosen


async def run(chosen: argparse.Namespace, folder: Path) -> report.Results:
    """All chosen measures; one that fails is told and the next is tried."""
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:7.1f}  {text}", file=sys.stderr, flush=True)

    results: report.Results = {}
    async with running_world(chosen.workers, chosen.operator, chosen.crds, folder, say) as world:
        for name in chosen.only:
            say(name)
            try:
                results[name] = await measures.ALL[name](world)
            except BenchError as error:
                results[name] = {"error": str(error)}
                say(f"{name} failed: {error}")
                world.operator.check()
                if name == "scale-out":
                    break
                continue
            shown = {key: value for key, value in results[name].items() if not isinstance(value, dict)}
            say("  " + ", ".join(f"{key} {value:.4g}" for key, value in shown.items()))
        for problem in dict.fromkeys(world.kubelets.problems):
            say(f"simulation: {problem}")
    return results


async def guarded(chosen: argparse.Namespace, folder: Path) -> report.Results:
    """TERM and INT end the run in order: everything is removed."""
    task = asyncio.create_task(run(chosen, folder))
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    return await task


def main() -> int:
    chosen = arguments()
    folder = Path(tempfile.mkdtemp(prefix="bench-operator-"))
    try:
        results = asyncio.run(guarded(chosen, folder))
    except asyncio.CancelledError:
        print("interrupted; everything is removed", file=sys.stderr)
        return 130
    except (BenchError, ClusterError) as error:
        print(f"error: {error}\n  The operator's log: {folder / 'operator.log'}", file=sys.stderr)
        return 1
    # Only the program's name: its path is of this machine.
    program = Path(shlex.split(chosen.operator)[0]).name if chosen.operator else ""
    about = report.facts(chosen.workers, program)
    text = report.table(about, results)
    print(text)
    whole = set(results) == set(measures.ALL)
    if whole or chosen.name:
        name = chosen.name or (f"{program}-{chosen.workers}" if program else str(chosen.workers))
        file = HERE / f"results-{name}.json"
        file.write_text(json.dumps({**about, "results": results}, indent=1, sort_keys=True) + "\n")
        print(file, file=sys.stderr)
        if whole:
            replace_section(HERE.parent / "results.md", f"operator {name}", f"`make bench-operator`, {text}")
    print(f"The operator's log: {folder / 'operator.log'}", file=sys.stderr)
    with contextlib.suppress(OSError):
        (folder / "hosts").unlink()
    return 1 if any("error" in figures for figures in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
