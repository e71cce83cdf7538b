"""Policy packs: processes that look at every resource before it is touched, and at the whole stack at the end."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import yaml
from google.protobuf import empty_pb2
from pulumi.runtime.proto import analyzer_pb2, analyzer_pb2_grpc

from localcloud.engine.config import Config
from localcloud.engine.errors import EngineError, StepError
from localcloud.engine.plugins import Plugin, details
from localcloud.engine.state import Resource
from localcloud.engine.values import Properties, from_struct, to_struct

_LEVELS = {
    "advisory": analyzer_pb2.ADVISORY,
    "mandatory": analyzer_pb2.MANDATORY,
    "remediate": analyzer_pb2.REMEDIATE,
    "disabled": analyzer_pb2.DISABLED,
}


@dataclass(frozen=True)
class Violation:
    """One finding. mandatory ones stop the resource, or fail the run."""

    pack: str
    policy: str
    message: str
    mandatory: bool
    urn: str


@dataclass(frozen=True)
class Subject:
    """A resource as policies see it: with its inputs before it is touched, with its outputs at the end."""

    resource: Resource
    properties: Properties
    provider: Resource | None
    delete_before_replace: bool | None = None

    def _options(self) -> analyzer_pb2.AnalyzerResourceOptions:
        r = self.resource
        return analyzer_pb2.AnalyzerResourceOptions(
            protect=r.protect,
            ignoreChanges=r.ignore_changes,
            deleteBeforeReplace=bool(self.delete_before_replace),
            deleteBeforeReplaceDefined=self.delete_before_replace is not None,
            additionalSecretOutputs=r.additional_secret_outputs,
            customTimeouts=analyzer_pb2.AnalyzerResourceOptions.CustomTimeouts(**r.custom_timeouts),
            parent=r.parent,
        )

    def _common(self) -> dict[str, Any]:
        r = self.resource
        fields: dict[str, Any] = {
            "type": r.type, "urn": r.urn, "name": r.name,
            "properties": to_struct(self.properties), "options": self._options(),
        }  # fmt: skip
        if self.provider is not None:
            p = self.provider
            fields["provider"] = analyzer_pb2.AnalyzerProviderResource(
                type=p.type, urn=p.urn, name=p.name, properties=to_struct(p.inputs)
            )
        return fields

    def request(self) -> analyzer_pb2.AnalyzeRequest:
        return analyzer_pb2.AnalyzeRequest(**self._common())

    def in_stack(self) -> analyzer_pb2.AnalyzerResource:
        r = self.resource
        return analyzer_pb2.AnalyzerResource(
            **self._common(),
            parent=r.parent,
            dependencies=r.dependencies,
            propertyDependencies={
                key: analyzer_pb2.AnalyzerPropertyDependencies(urns=names)
                for key, names in r.property_dependencies.items()
                if names
            },
        )


def read_config(path: Path) -> dict[str, Any]:
    """A pack's config file: level, or properties with a level, by policy name (`all` for every policy)."""
    try:
        content = json.loads(path.read_text() or "{}")
    except (OSError, ValueError) as error:
        raise EngineError(f"{path}: policy pack config: {error}") from error
    if not isinstance(content, dict):
        raise EngineError(f"{path}: policy pack config: an object with policy names as keys is expected")
    return content


class PolicyPack:
    """One pack in its own process."""

    def __init__(self, directory: Path, config: dict[str, Any], environment: dict[str, str]) -> None:
        if not (directory / "PulumiPolicy.yaml").is_file():
            raise EngineError(f"{directory} is no policy pack: it has no PulumiPolicy.yaml")
        about = yaml.safe_load((directory / "PulumiPolicy.yaml").read_text()) or {}
        self.directory = directory.resolve()
        self.name = directory.name
        self._program = self.directory / str(about.get("main") or "")
        self._config = config
        self._environment = environment
        self._plugin: Plugin | None = None
        self._stub: Any = None
        self._starting: asyncio.Task[None] | None = None

    def begin(
        self, engine_address: str, project: str, stack: str, organization: str, dry_run: bool, config: Config
    ) -> None:
        """Starts the process; whoever asks the pack something waits for it."""
        self._starting = asyncio.create_task(self._start(engine_address, project, stack, organization, dry_run, config))

    async def ready(self) -> None:
        """Returns when the pack answers. Raises EngineError when it did not start or its config is wrong."""
        if self._starting is not None:
            await asyncio.shield(self._starting)

    async def _start(
        self, engine_address: str, project: str, stack: str, organization: str, dry_run: bool, config: Config
    ) -> None:
        environment = self._environment | {
            "PULUMI_PROJECT": project,
            "PULUMI_STACK": stack,
            "PULUMI_ORGANIZATION": organization,
            "PULUMI_DRY_RUN": str(dry_run).lower(),
            "PULUMI_CONFIG": json.dumps({k: v for k, v in config.values.items() if k not in config.secret_keys}),
        }
        command = [sys.executable, "-u", "-m", "pulumi.policy", engine_address, str(self._program)]
        self._plugin = Plugin(f"policy pack {self.name}", command, self.directory, environment)
        await self._plugin.start()
        self._stub = analyzer_pb2_grpc.AnalyzerStub(self._plugin.channel)
        await self._optional(
            "ConfigureStack",
            analyzer_pb2.AnalyzerStackConfigureRequest(
                stack=stack,
                project=project,
                organization=organization,
                dry_run=dry_run,
                config=config.values,
                config_secret_keys=sorted(config.secret_keys),
            ),
        )
        info = await self._optional("GetAnalyzerInfo", empty_pb2.Empty())
        self.name = info.name or self.name
        await self._optional("Configure", self._configuration(info))

    def _configuration(self, info: Any) -> analyzer_pb2.ConfigureAnalyzerRequest:
        names = [policy.name for policy in info.policies]
        if unknown := sorted(set(self._config) - {*names, "all"}):
            raise EngineError(
                f"policy pack {self.name}: config for {unknown[0]!r}, which is none of its policies: {', '.join(names)}"
            )
        request = analyzer_pb2.ConfigureAnalyzerRequest()
        for policy in info.policies:
            entry = request.policyConfig[policy.name]
            initial = info.initialConfig.get(policy.name)
            if initial is not None:
                entry.CopyFrom(initial)
            else:
                entry.enforcementLevel = policy.enforcementLevel
            for given in (self._config.get("all"), self._config.get(policy.name)):
                properties = dict(given) if isinstance(given, dict) else {}
                level = given if isinstance(given, str) else properties.pop("enforcementLevel", None)
                if level is not None:
                    if level not in _LEVELS:
                        raise EngineError(
                            f"policy pack {self.name}: {policy.name}: enforcementLevel {level!r}; "
                            f"allowed are {', '.join(_LEVELS)}"
                        )
                    entry.enforcementLevel = _LEVELS[level]
                if properties:
                    entry.properties.update(properties)
        return request

    async def _optional(self, method: str, request: Any) -> Any:
        try:
            return await self._ask(method, request)
        except NotImplementedError:
            return analyzer_pb2.AnalyzerInfo()

    async def _ask(self, method: str, request: Any) -> Any:
        try:
            return await getattr(self._stub, method)(request)
        except grpc.aio.AioRpcError as error:
            if error.code() == grpc.StatusCode.UNIMPLEMENTED:
                raise NotImplementedError(method) from error
            words = self._plugin.last_words() if self._plugin else ""
            raise StepError(f"policy pack {self.name} failed in {method}: {details(error)}{words}") from error

    async def remediate(self, subject: Subject) -> list[tuple[str, Properties | None, str]]:
        """Per remediation that took place: policy, the new properties, or None and what went wrong."""
        await self.ready()
        try:
            answer = await self._ask("Remediate", subject.request())
        except NotImplementedError:
            return []
        return [
            (r.policyName, None if r.diagnostic else from_struct(r.properties), r.diagnostic)
            for r in answer.remediations
        ]

    async def analyze(self, subject: Subject) -> list[Violation]:
        await self.ready()
        return self._found(await self._ask("Analyze", subject.request()), subject.resource.urn)

    async def analyze_stack(self, subjects: Sequence[Subject]) -> list[Violation]:
        request = analyzer_pb2.AnalyzeStackRequest(resources=[s.in_stack() for s in subjects])
        try:
            return self._found(await self._ask("AnalyzeStack", request), "")
        except NotImplementedError:
            return []

    def _found(self, answer: Any, urn: str) -> list[Violation]:
        return [
            Violation(
                d.policyPackName or self.name,
                d.policyName,
                d.message.strip() or d.description,
                d.enforcementLevel in (analyzer_pb2.MANDATORY, analyzer_pb2.REMEDIATE),
                d.urn or urn,
            )
            for d in answer.diagnostics
            if d.enforcementLevel != analyzer_pb2.DISABLED
        ]

    async def stop(self) -> None:
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
        if self._starting is not None:
            await asyncio.gather(self._starting, return_exceptions=True)
        if self._plugin is not None:
            await self._plugin.stop()

    def kill(self) -> None:
        if self._plugin is not None:
            self._plugin.kill()


async def all_of(calls: Sequence[Awaitable[list[Violation]]]) -> list[Violation]:
    """The findings of several packs, asked at the same time."""
    return [violation for found in await asyncio.gather(*calls) for violation in found]
