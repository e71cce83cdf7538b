"""The engine's command line: preview, up, destroy, refresh, stack, config, cancel."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from localcloud.engine import api, backend, urns
from localcloud.engine.errors import EngineError
from localcloud.engine.operations import DEFAULT_PARALLEL, Stack
from localcloud.engine.state import Resource


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--stack", "-s", default="", help="the stack (default: $PULUMI_STACK, or the only one)")
    common.add_argument("--cwd", "-C", type=Path, default=Path.cwd(), help="the project's folder")
    common.add_argument("--json", action="store_true", help="one JSON document instead of text")
    parser = argparse.ArgumentParser(prog="./slipway engine", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    helps = {
        "preview": "show what up would do", "up": "make the stack what the program says",
        "destroy": "delete everything in the stack", "refresh": "take what exists into the state",
    }  # fmt: skip
    for name, text in helps.items():
        run = commands.add_parser(name, parents=[common], help=text)
        run.add_argument("--diff", action="store_true", help="show changed values")
        run.add_argument("--parallel", "-p", type=int, default=DEFAULT_PARALLEL, metavar="N")
        run.add_argument("--yes", "-y", action="store_true", help="do not ask")
        if name in ("preview", "up"):
            run.add_argument("--policy-pack", type=Path, action="append", default=[], metavar="DIR")
            run.add_argument("--policy-pack-config", type=Path, action="append", default=[], metavar="FILE")
        if name == "refresh":
            run.add_argument("--clear-pending-creates", action="store_true", help="forget creates of killed runs")
    stack = commands.add_parser("stack", help="look at stacks and their state")
    parts = stack.add_subparsers(dest="part", required=True, metavar="PART")
    for name, text in {
        "ls": "the stacks",
        "resources": "what the state has, as a tree",
        "output": "the stack's outputs",
        "export": "the state on standard output",
        "import": "takes a state from standard input",
    }.items():
        part = parts.add_parser(name, parents=[common], help=text)
        part.add_argument("--show-secrets", action="store_true", help="secrets in plain text")
        if name == "output":
            part.add_argument("name", nargs="?", help="only this one, as plain text")
    commands.add_parser("config", parents=[common], help="the stack's config, secrets hidden")
    commands.add_parser("cancel", parents=[common], help="remove the lock of a run that is gone")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Runs one command; the exit code is 0, 1 after an error, 130 when the user stopped it."""
    args = _parser().parse_args(arguments)
    try:
        if args.command in ("preview", "up", "destroy", "refresh"):
            code = _operation(args)
        else:
            code = {"stack": _stack, "config": _config, "cancel": _cancel}[args.command](args)
        sys.stdout.flush()  # here, where a reader that has gone away is no error
        return code
    except EngineError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `… | head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _out(text: str) -> None:
    sys.stdout.write(text + "\n")


def _operation(args: argparse.Namespace) -> int:
    name = Stack(args.cwd, args.stack, api.environment()).name
    options: dict[str, Any] = {
        "cwd": args.cwd,
        "parallel": args.parallel,
        "diff": args.diff,
        "quiet": args.json,
        "policy_packs": getattr(args, "policy_pack", ()),
        "policy_pack_configs": getattr(args, "policy_pack_config", ()),
        "clear_pending_creates": getattr(args, "clear_pending_creates", False),
    }
    if args.command != "preview" and not args.yes and not _agreed(args, name, options):
        return 1
    result = api.run(args.command, name, **options)
    if args.json:
        _out(json.dumps(result.document, indent=2))
    return result.exit_code


def _agreed(args: argparse.Namespace, stack: str, options: dict[str, Any]) -> bool:
    if not sys.stdin.isatty() or args.json:
        raise EngineError(f"{args.command} changes things: pass --yes where nobody can be asked")
    if args.command == "up" and api.run("preview", stack, **options).exit_code != 0:
        return False
    return input(f"{args.command} {stack}? Type yes to go on: ").strip() == "yes"


def _stack(args: argparse.Namespace) -> int:
    stack = Stack(args.cwd, args.stack or _any(args), api.environment()) if args.part == "ls" else _opened(args)
    if args.part == "ls":
        deployed = stack.backend.stacks()
        rows = [{"name": name, "deployed": name in deployed} for name in stack.stacks()]
        if args.json:
            _out(json.dumps(rows))
        for row in [] if args.json else rows:
            _out(f"{row['name']}{'' if row['deployed'] else '  (not deployed)'}")
    elif args.part == "resources":
        _resources(stack, args.json)
    elif args.part == "output":
        values = api.outputs(stack.name, cwd=args.cwd, show_secrets=args.show_secrets)
        if args.name is None:
            _out(json.dumps(values, indent=2))
        elif args.name not in values:
            raise EngineError(f"stack {stack.name} has no output {args.name!r}: there are {', '.join(sorted(values))}")
        else:
            value = values[args.name]
            _out(value if isinstance(value, str) and not args.json else json.dumps(value))
    elif args.part == "export":
        deployment = stack.store.deployment(stack.store.load(), args.show_secrets)
        _out(json.dumps({"version": 3, "deployment": deployment}, indent=2))
    else:
        _import(stack)
    return 0


def _resources(stack: Stack, as_json: bool) -> None:
    resources = stack.store.load().everything()
    if as_json:
        _out(json.dumps([{"urn": r.urn, "type": r.type, "name": r.name, "id": r.id} for r in resources], indent=2))
        return
    if not resources:
        _out(f"stack {stack.name} has no resources")
    children: dict[str, list[Resource]] = {}
    for resource in resources:
        children.setdefault(resource.parent, []).append(resource)

    def show(parent: str, depth: int) -> None:
        for r in children.get(parent, []):
            note = "  (to be deleted)" if r.delete else "  (read)" if r.external else ""
            _out(f"{'  ' * depth + urns.short_type(r.type):<44} {r.name:<32} {r.id}{note}".rstrip())
            if not r.delete:
                show(r.urn, depth + 1)

    show("", 0)


def _any(args: argparse.Namespace) -> str:
    """Some stack's name, where any will do."""
    from localcloud.engine.config import load_project

    project = load_project(args.cwd)
    names = project.stacks() or backend.open_backend(project.name, project.backend, api.environment()).stacks()
    return names[0] if names else ""


def _opened(args: argparse.Namespace) -> Stack:
    return Stack(args.cwd, args.stack, api.environment())


def _import(stack: Stack) -> None:
    try:
        content = json.load(sys.stdin)
    except ValueError as error:
        raise EngineError(f"standard input is no JSON: {error}") from error
    if not isinstance(content, dict) or content.get("version") != 3 or not isinstance(content.get("deployment"), dict):
        raise EngineError('standard input is no exported state: {"version": 3, "deployment": {…}} is expected')
    others = {r["urn"] for r in content["deployment"].get("resources") or []
              if not r["urn"].startswith(f"urn:pulumi:{stack.name}::{stack.project.name}::")}  # fmt: skip
    if others:
        raise EngineError(f"the state is of another stack or project: {sorted(others)[0]}")
    stack.backend.prepare()
    with backend.lock(stack.backend, stack.name, lambda text: None):
        stack.store.save_now(stack.store.load(content["deployment"]))
    _out(f"imported into {stack.name}")


def _config(args: argparse.Namespace) -> int:
    config = _opened(args).config()
    shown = {k: "[secret]" if k in config.secret_keys else v for k, v in sorted(config.values.items())}
    if args.json:
        _out(json.dumps(shown, indent=2))
    for key, value in ({} if args.json else shown).items():
        _out(f"{key}: {value}")
    return 0


def _cancel(args: argparse.Namespace) -> int:
    stack = _opened(args)
    removed = backend.cancel(stack.backend, stack.name)
    for holder in removed:
        _out(f"removed the lock of {holder}")
    if not removed:
        _out(f"stack {stack.name} is not locked")
    return 0


if __name__ == "__main__":
    sys.exit(main())
