"""A project folder, the tests' provider with its cloud in a folder, and runs of the engine on them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localcloud.engine import operations
from localcloud.engine.operations import Order, Result

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
HEAD = "import pulumi\nfrom pulumi import ResourceOptions as O\nfrom things import Group, Provider, Thing\n"


@dataclass
class Run:
    """A finished run with its lines."""

    result: Result
    lines: list[str]

    @property
    def ok(self) -> bool:
        return self.result.exit_code == 0

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def changes(self) -> dict[str, int]:
        return {op: n for op, n in self.result.changes.items() if n}

    def steps(self) -> dict[str, str]:
        """What was done (or would be), by resource name."""
        return {step["name"]: step["op"] for step in self.result.document["steps"]}


@dataclass
class Project:
    """One project with stack `dev`, its backend and its cloud."""

    directory: Path
    cloud: Path
    backend: Path
    env: dict[str, str] = field(default_factory=dict)

    def program(self, text: str) -> None:
        (self.directory / "__main__.py").write_text(HEAD + text)

    def config(self, text: str, project: str = "") -> None:
        (self.directory / "stacks" / "Pulumi.dev.yaml").write_text(text)
        if project:
            (self.directory / "Pulumi.yaml").write_text(
                "name: shop\nruntime: python\nstackConfigDir: stacks\n" + project
            )

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PATH": f"{HERE / 'bin'}:{Path(sys.executable).parent}:/usr/bin:/bin",
            "PYTHONPATH": str(HERE),
            "TEST_CLOUD": str(self.cloud),
            "PULUMI_BACKEND_URL": self.backend.as_uri(),
            **({} if "NO_PASSPHRASE" in self.env else {"PULUMI_CONFIG_PASSPHRASE": "open sesame"}),
            **self.env,
        }

    def run(self, operation: str, program: str | None = None, **options: Any) -> Run:
        if program is not None:
            self.program(program)
        lines: list[str] = []
        order = Order(
            operation, options.pop("stack", "dev"), self.directory, self.environment, emit=lines.append, **options
        )
        return Run(operations.run(order), lines)

    def up(self, program: str | None = None, **options: Any) -> Run:
        return self.run("up", program, **options)

    def preview(self, program: str | None = None, **options: Any) -> Run:
        return self.run("preview", program, **options)

    def destroy(self, **options: Any) -> Run:
        return self.run("destroy", **options)

    def start(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        """The command line in a process of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "localcloud.engine", *words, "--cwd", str(self.directory)],
            cwd=ROOT, env={**self.environment, "PYTHONPATH": f"{ROOT}:{HERE}", "SLIPWAY_ENGINE": "embedded"},
            text=True, **{"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **options},
        )  # fmt: skip

    def cli(self, *words: str, input: str | None = None) -> tuple[int, str]:
        process = self.start(*words, stdin=subprocess.PIPE)
        output, _ = process.communicate(input, timeout=60)
        return process.returncode, output

    # What is there

    @property
    def state_file(self) -> Path:
        return self.backend / ".pulumi/stacks/shop/dev.json"

    def deployment(self) -> dict[str, Any]:
        return dict(json.loads(self.state_file.read_text())["checkpoint"]["latest"])

    def resources(self) -> dict[str, dict[str, Any]]:
        """Live resources in the state by name."""
        found = [r for r in self.deployment().get("resources", []) if not r.get("delete")]
        return {r["urn"].rpartition("::")[2]: r for r in found}

    def objects(self) -> dict[str, dict[str, Any]]:
        """What is in the cloud, by name."""
        return {p.stem: json.loads(p.read_text())["state"] for p in sorted(self.cloud.glob("*.json"))}

    def calls(self, *kinds: str) -> list[dict[str, Any]]:
        log = self.cloud / "log"
        lines = log.read_text().splitlines() if log.exists() else []
        entries = [json.loads(line) for line in lines]
        return [e for e in entries if not kinds or e["call"] in kinds]

    def names(self, *kinds: str) -> list[str]:
        """Names of the resources that the calls were about, in order."""
        return [e["urn"].rpartition("::")[2] for e in self.calls(*kinds)]

    def forget_calls(self) -> None:
        (self.cloud / "log").unlink(missing_ok=True)
