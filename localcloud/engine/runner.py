"""Runs a Pulumi program in a process of its own: the part that the CLI leaves to its Python language host.

Started with the project as working directory. It imports the SDK at once and then reads one line of JSON from standard
input: where the engine listens, the project, the stack and its config (which thus never shows in a process list).
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    # This file's own folder must not serve the program's imports; the project's must.
    sys.path[0] = str(Path.cwd())

import asyncio
import atexit
import gc
import json
import linecache
import logging
import os
import runpy
import traceback
from concurrent.futures import ThreadPoolExecutor

import pulumi
import pulumi.runtime

SHOWN = 32  # exit code: the error has been reported to the engine
_THREADS = 256  # each registration under way holds one while the engine works


def main() -> int:
    """Runs the program to its end; 0 when it succeeded."""
    # Importing the SDKs makes a million objects; looking for garbage among them would cost a sixth of the time.
    gc.set_threshold(200_000)
    order = json.loads(sys.stdin.readline() or "null")
    if order is None:
        return 1  # the engine ended before it had anything to do
    pulumi.runtime.set_all_config(order["config"], order["secretKeys"])
    pulumi.runtime.configure(
        pulumi.runtime.Settings(
            project=order["project"],
            stack=order["stack"],
            organization=order["organization"],
            monitor=order["address"],
            engine=order["address"],
            parallel=order["parallel"],
            dry_run=order["dryRun"],
            root_directory=order["root"],
        )
    )
    program = order["program"]
    sys.argv = [program]
    sys.path.insert(0, str(Path(program).parent))
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    loop.set_default_executor(ThreadPoolExecutor(_THREADS))
    # A program that fails leaves futures behind that nobody looks at; asyncio's complaints would hide the reason.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)

    async def run() -> None:
        runpy.run_path(program, run_name="__main__")

    try:
        loop.run_until_complete(pulumi.runtime.run_in_stack(run))
    except Exception as error:
        pulumi.log.error(explain(error, Path(order["root"])))
        return SHOWN
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def explain(error: BaseException, root: Path) -> str:
    """What a user needs of an error: its text if it was written for users, else also where in the project it arose."""
    if isinstance(error, pulumi.RunError) or getattr(type(error), "user_error", False):
        return str(error)
    frames = [
        f
        for f in traceback.extract_tb(error.__traceback__)
        if Path(f.filename).is_relative_to(root) and "site-packages" not in f.filename
    ]
    where = "".join(
        f"\n    {Path(f.filename).relative_to(root)}:{f.lineno} in {f.name}: "
        f"{linecache.getline(f.filename, f.lineno or 0).strip()}"
        for f in frames
    )
    return f"the program failed: {type(error).__name__}: {error}{where}"


if __name__ == "__main__":
    code = main()
    # The interpreter would take apart thousands of SDK modules first, which takes longer than many a program.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
