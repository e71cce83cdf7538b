"""preview, up, destroy and refresh from end to end: everything is started at once, run, and stopped again."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
from pulumi.runtime.proto import engine_pb2_grpc, resource_pb2_grpc

from localcloud.engine import config as configs
from localcloud.engine import crypto, deletion, urns
from localcloud.engine.backend import ORGANIZATION, Backend, lock, open_backend
from localcloud.engine.deployment import Deployment
from localcloud.engine.display import Display
from localcloud.engine.engine_service import EngineService
from localcloud.engine.errors import EngineError
from localcloud.engine.goals import Context
from localcloud.engine.monitor import Monitor
from localcloud.engine.plugins import GRPC_OPTIONS, dying_with_parent
from localcloud.engine.policies import PolicyPack, read_config
from localcloud.engine.providers import Providers
from localcloud.engine.runner import SHOWN
from localcloud.engine.state import Snapshot, Store
from localcloud.engine.values import Properties

INTERRUPTED = 130  # exit code of a run that the user stopped
DEFAULT_PARALLEL = 16

_TITLES = {"preview": "Previewing update", "up": "Updating", "destroy": "Destroying", "refresh": "Refreshing"}


@dataclass(frozen=True)
class Order:
    """What to run. environment is that of the program, the providers and the policy packs."""

    operation: str
    stack: str
    directory: Path
    environment: dict[str, str]
    packs: Sequence[Path] = ()
    pack_configs: Sequence[Path] = ()
    parallel: int = DEFAULT_PARALLEL
    diff: bool = False
    quiet: bool = False
    emit: Callable[[str], None] | None = None
    clear_pending_creates: bool = False


@dataclass(frozen=True)
class Result:
    """How a run ended. changes: number of resources by what was (or would be) done. outputs: secrets still marked."""

    exit_code: int
    changes: dict[str, int] = field(default_factory=dict)
    outputs: Properties = field(default_factory=dict)
    document: dict[str, Any] = field(default_factory=dict)


class Stack:
    """A stack's files, opened: project, config and state. Keys are derived in the background from the start."""

    def __init__(self, directory: Path, name: str, environment: dict[str, str]) -> None:
        self.project = configs.load_project(directory)
        self.backend: Backend = open_backend(self.project.name, self.project.backend, environment)
        self.name = name or environment.get("PULUMI_STACK", "") or self._only()
        self._known()
        self.file = configs.load_stack_file(self.project, self.name)
        self._environment = environment
        self._crypters: dict[str, crypto.Crypter] = {}
        path = self.backend.state_file(self.name)
        self.store = Store(path, f"{ORGANIZATION}/{self.project.name}/{self.name}", self.crypter)

    def _only(self) -> str:
        stacks = self.stacks()
        if len(stacks) == 1:
            return stacks[0]
        raise EngineError(f"which stack? Pass --stack with one of: {', '.join(stacks) or 'none exists yet'}")

    def stacks(self) -> list[str]:
        return sorted({*self.project.stacks(), *self.backend.stacks()})

    def _known(self) -> None:
        if self.name not in self.stacks():
            raise EngineError(
                f"no stack {self.name!r}: there are {', '.join(self.stacks()) or 'none'}. "
                f"A new one begins with the file {self.project.stack_file(self.name)}."
            )

    def crypter(self, salt: str = "") -> crypto.Crypter:
        """The key for a salt; for none, the key of the stack's file, or a new one."""
        if self.file.secrets_provider not in ("", "passphrase", "default"):
            raise EngineError(
                f"{self.file.path}: secretsprovider {self.file.secrets_provider}: only the passphrase provider works "
                "without the pulumi CLI"
            )
        salt = salt or self.file.salt
        if salt not in self._crypters:
            self._crypters[salt] = crypto.required(self._environment, salt)
        return self._crypters[salt]

    def derive_keys(self, document: dict[str, Any]) -> None:
        salts = {self.file.salt, ((document.get("secrets_providers") or {}).get("state") or {}).get("salt", "")}
        if crypto.passphrase(self._environment) is not None and not self.file.secrets_provider:
            for salt in salts - {""}:
                self.crypter(salt)

    def config(self) -> configs.Config:
        return configs.resolve(self.project, self.file, self.crypter)


def run(order: Order) -> Result:
    """Runs the order. Raises EngineError for what stops it before it begins."""
    return asyncio.run(_run(order))


async def _run(order: Order) -> Result:
    stack = Stack(order.directory, order.stack, order.environment)
    preview = order.operation == "preview"
    display = Display(preview=preview, emit=order.emit, quiet=order.quiet, diff=order.diff)
    display.line(f"{_TITLES[order.operation]} ({stack.name})", "bold")
    if not preview:
        stack.backend.prepare()
    held = nullcontext() if preview else lock(stack.backend, stack.name, lambda text: display.diagnostic("info", text))
    with held:
        document = stack.store.document()
        stack.derive_keys(document)
        return await _Run(order, stack, display).run(document)


class _Run:
    """The processes and services of one run."""

    def __init__(self, order: Order, stack: Stack, display: Display) -> None:
        self.order = order
        self.stack = stack
        self.display = display
        self.providers = Providers(stack.project.directory, order.environment)
        configs_ = [read_config(path) for path in order.pack_configs]
        if configs_ and len(configs_) != len(order.packs):
            raise EngineError(f"{len(order.packs)} policy packs and {len(configs_)} configs: give one for each pack")
        self.packs = [
            PolicyPack(path, configs_[i] if configs_ else {}, order.environment) for i, path in enumerate(order.packs)
        ]
        self.program: asyncio.subprocess.Process | None = None
        self.interrupted = 0

    @property
    def _runs_program(self) -> bool:
        return self.order.operation in ("preview", "up")

    async def run(self, document: dict[str, Any]) -> Result:
        if self._runs_program:
            await self._start_program()
        server = grpc.aio.server(options=[*GRPC_OPTIONS, ("grpc.so_reuseport", 0)])
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        monitor = None
        try:
            self.providers.serve_at(address)
            self._start_providers_ahead(document)
            context = Context(
                project=self.stack.project.name, stack=self.stack.name, organization=ORGANIZATION,
                config=await asyncio.to_thread(self.stack.config) if self._runs_program else configs.Config(),
                dry_run=self.order.operation == "preview", parallel=self.order.parallel,
                directory=self.stack.project.directory,
            )  # fmt: skip
            if self._runs_program:
                for pack in self.packs:
                    pack.begin(address, context.project, context.stack, ORGANIZATION, context.dry_run, context.config)
            snapshot = await asyncio.to_thread(self.stack.store.load, document)
            if self._sort_out_pending(snapshot) and self.order.operation != "preview":
                await self._save(snapshot)
            deployment = Deployment(
                context, snapshot, self._save, self.providers, self.packs if self._runs_program else (), self.display
            )
            engine = EngineService(self.display)
            monitor = Monitor(deployment)
            monitor.address = address
            resource_pb2_grpc.add_ResourceMonitorServicer_to_server(monitor, server)
            engine_pb2_grpc.add_EngineServicer_to_server(engine, server)
            await server.start()
            self.display.open()
            with self._signals(deployment):
                if self._runs_program:
                    await self._drive_program(deployment, engine, monitor, address)
                elif self.order.operation == "destroy":
                    await deletion.finish_pending_creates(deployment)
                    await deletion.delete_all(deployment, deployment.snapshot.everything())
                else:
                    await deletion.refresh(deployment)
            return await self._end(deployment, engine)
        finally:
            self.display.close()
            await self._stop_program()
            if monitor is not None:
                await monitor.close()
            await asyncio.gather(self.providers.stop(), *(pack.stop() for pack in self.packs))
            await server.stop(0)

    async def _save(self, snapshot: Snapshot) -> None:
        self.stack.store.plugins.update(self.providers.plugins())
        await self.stack.store.save(snapshot)

    def _start_providers_ahead(self, document: dict[str, Any]) -> None:
        """Starts the providers that the state has, or for a new stack those whose SDK is installed."""
        resources = document.get("resources") or []
        types = [r["type"] for r in resources if not r.get("delete")]
        packages = [urns.package_of(type_) for type_ in types if urns.is_provider(type_)]
        if not resources and self._runs_program:
            packages = [p.parent.name.removeprefix("pulumi_").replace("_", "-") for p in _sdk_plugin_files()]
        for package in packages:
            self.providers.start_ahead(package)

    def _sort_out_pending(self, snapshot: Snapshot) -> bool:
        """Of operations that a killed run left open only creates matter: the others are seen by comparing again.

        Returns whether any was dropped.
        """
        before = len(snapshot.pending)
        for token, pending in list(snapshot.pending.items()):
            if pending.kind != "creating" or self.order.clear_pending_creates:
                del snapshot.pending[token]
                continue
            self.display.diagnostic(
                "warning",
                "a run ended while it created this; it is created again under the same name, or taken over",
                pending.resource.urn,
            )
        return len(snapshot.pending) < before

    # The program

    async def _start_program(self) -> None:
        runner = str(Path(__file__).with_name("runner.py"))
        self.program = await asyncio.create_subprocess_exec(
            *dying_with_parent([sys.executable, "-u", runner]),
            cwd=self.stack.project.directory,
            env=self.order.environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            limit=2**20,
            start_new_session=True,
        )

    async def _drive_program(
        self, deployment: Deployment, engine: EngineService, monitor: Monitor, address: str
    ) -> None:
        program, project, context = self.program, self.stack.project, deployment.context
        assert program is not None and program.stdin and program.stdout
        order = {
            "address": address, "project": project.name, "stack": self.stack.name, "organization": ORGANIZATION,
            "parallel": context.parallel, "dryRun": context.dry_run, "root": str(project.directory),
            "program": str(project.program), "config": context.config.values,
            "secretKeys": sorted(context.config.secret_keys),
        }  # fmt: skip
        program.stdin.write(json.dumps(order).encode() + b"\n")
        with suppress(ConnectionError):
            await program.stdin.drain()
        program.stdin.close()
        while line := await program.stdout.readline():
            self.display.note(line.decode(errors="replace").rstrip())
        code = await program.wait()
        await monitor.settle()
        if code != 0 and not self.interrupted:
            if code != SHOWN or not engine.errors:
                self.display.diagnostic("error", f"the program ended with code {code}")
            engine.errors += 1
        if code == 0 and not (engine.errors or deployment.stopping or deployment.failed):
            await deployment.judge_stack()
            if not deployment.violated or context.dry_run:
                await deletion.delete_all(deployment, deletion.unwanted(deployment))
        elif code == 0 and (unwanted := deletion.unwanted(deployment)):
            self.display.note(f"{len(unwanted)} resources to delete are kept until a run succeeds")

    async def _stop_program(self) -> None:
        if self.program is not None and self.program.returncode is None:
            with suppress(ProcessLookupError):
                self.program.kill()
            await self.program.wait()

    # The end

    def _signals(self, deployment: Deployment) -> Any:
        loop = asyncio.get_running_loop()
        tasks: list[asyncio.Task[None]] = []

        def stop() -> None:
            self.interrupted += 1
            deployment.stopping = True
            if self.interrupted == 1:
                self.display.diagnostic(
                    "warning", "stopping: what is under way is being ended and recorded; once more kills it"
                )
                tasks.append(asyncio.create_task(self.providers.cancel()))
            else:
                self.providers.kill()
                for pack in self.packs:
                    pack.kill()
            if self.program is not None and self.program.returncode is None:
                with suppress(ProcessLookupError):
                    self.program.terminate()

        return _handling((signal.SIGINT, signal.SIGTERM), loop, stop)

    async def _end(self, deployment: Deployment, engine: EngineService) -> Result:
        for pack in self.packs if self._runs_program else ():
            await pack.ready()
            self.display.policy_names.append(pack.name)
        if deployment.fatal is not None and not deployment.context.dry_run:
            # One more try: what was done since the state could not be written must not be lost.
            try:
                await self._save(deployment.snapshot)
            except EngineError as error:
                self.display.diagnostic("error", str(error))
        root = next((r for r in deployment.snapshot.live.values() if r.type == urns.STACK_TYPE), None)
        outputs = root.outputs if root else {}
        failed = bool(deployment.failed or deployment.violated or engine.errors)
        code = INTERRUPTED if self.interrupted else int(failed)
        if deployment.context.dry_run:
            self.display.tree(deployment.snapshot)
        self.display.close()
        self.display.summary(outputs, self.order.operation)
        document = self.display.document(self.order.operation, self.stack.name, code, outputs)
        return Result(code, dict(self.display.counts), outputs, document)


class _handling:
    """Within it, the signals call the function; outside the main thread they keep their meaning."""

    def __init__(
        self, signals: Sequence[signal.Signals], loop: asyncio.AbstractEventLoop, function: Callable[[], None]
    ) -> None:
        self._signals, self._loop, self._function = signals, loop, function
        self._set: list[signal.Signals] = []

    def __enter__(self) -> None:
        for number in self._signals:
            with suppress(ValueError, RuntimeError):
                self._loop.add_signal_handler(number, self._function)
                self._set.append(number)

    def __exit__(self, *_: object) -> None:
        for number in self._set:
            self._loop.remove_signal_handler(number)


def _sdk_plugin_files() -> list[Path]:
    """The SDKs of providers that are installed: each has a file that names its plugin."""
    return sorted({p for folder in sys.path if folder for p in Path(folder).glob("pulumi_*/pulumi-plugin.json")})
