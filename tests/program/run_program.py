"""Runs the unmodified __main__.py as Pulumi's Python language host does; for the harness, in a process of its own.

Arguments: address of the monitor (which is the engine too), project folder, stack, "preview" or "update", and the
config as JSON.
"""

import asyncio
import json
import os
import runpy
import sys

import pulumi
from pulumi.runtime import Settings, configure, run_in_stack, set_all_config

address, project, stack, mode, config = sys.argv[1:]
os.chdir(project)
sys.path.insert(0, project)
set_all_config(json.loads(config), [])
configure(Settings(project="slipway", stack=stack, monitor=address, engine=address, dry_run=mode == "preview"))


def program() -> None:
    runpy.run_path("__main__.py", run_name="__main__")


try:
    asyncio.new_event_loop().run_until_complete(run_in_stack(program))
except pulumi.RunError as error:
    sys.exit(str(error))
