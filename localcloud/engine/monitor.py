"""The ResourceMonitor service: what the program (and components in plugins) call to register and read resources."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf import empty_pb2
from pulumi.runtime.proto import provider_pb2, resource_pb2, resource_pb2_grpc

from localcloud.engine import urns
from localcloud.engine.deployment import Deployment, Registered
from localcloud.engine.errors import EngineError, StepError
from localcloud.engine.goals import Context, Goal
from localcloud.engine.providers import Provider
from localcloud.engine.transforms import Transforms
from localcloud.engine.urns import Alias
from localcloud.engine.values import UNKNOWN, from_struct, from_value, has_unknown, secret, to_struct

_F = resource_pb2
# Resource hooks and state migrations are announced, so that a program that uses them is told so here, in plain words.
_FEATURES = [
    _F.RESOURCE_MONITOR_FEATURE_SECRETS, _F.RESOURCE_MONITOR_FEATURE_RESOURCE_REFERENCES,
    _F.RESOURCE_MONITOR_FEATURE_OUTPUT_VALUES, _F.RESOURCE_MONITOR_FEATURE_ALIAS_SPECS,
    _F.RESOURCE_MONITOR_FEATURE_REPLACEMENT_TRIGGER, _F.RESOURCE_MONITOR_FEATURE_DELETED_WITH,
    _F.RESOURCE_MONITOR_FEATURE_REPLACE_WITH, _F.RESOURCE_MONITOR_FEATURE_TRANSFORMS,
    _F.RESOURCE_MONITOR_FEATURE_INVOKE_TRANSFORMS, _F.RESOURCE_MONITOR_FEATURE_PARAMETERIZATION,
    _F.RESOURCE_MONITOR_FEATURE_RESOURCE_HOOKS, _F.RESOURCE_MONITOR_FEATURE_ERROR_HOOKS,
    _F.RESOURCE_MONITOR_FEATURE_INVOKE_DEPENDS_ON, _F.RESOURCE_MONITOR_FEATURE_STATE_MIGRATIONS,
]  # fmt: skip
_LEGACY_FEATURES = {
    "secrets", "resourceReferences", "outputValues", "aliasSpecs", "deletedWith", "replaceWith", "transforms",
    "invokeTransforms", "parameterization", "resourceHooks", "errorHooks",
}  # fmt: skip

_Handler = Callable[..., Coroutine[Any, Any, Any]]


def _answers_errors(handler: _Handler) -> _Handler:
    """Turns the engine's errors into gRPC errors, which the SDK raises in the program with the same text.

    The work goes on when the program is gone meanwhile: what a provider has begun must end in the state.
    """

    @wraps(handler)
    async def wrapped(self: Monitor, request: Any, context: Any) -> Any:
        task = asyncio.create_task(handler(self, request, context))
        self.under_way.add(task)
        task.add_done_callback(self.under_way.discard)
        try:
            return await asyncio.shield(task)
        except EngineError as error:
            await context.abort(grpc.StatusCode.UNKNOWN, str(error))

    return wrapped


class Monitor(resource_pb2_grpc.ResourceMonitorServicer):
    """Serves one run."""

    def __init__(self, deployment: Deployment) -> None:
        self.address = ""
        self.under_way: set[asyncio.Task[Any]] = set()
        self._deployment = deployment
        self._context: Context = deployment.context
        self._transforms = Transforms()
        self._defaults: dict[tuple[str, str], asyncio.Task[str]] = {}
        self._packages: dict[str, tuple[str, str]] = {}
        self._children_providers: dict[str, tuple[str, dict[str, str]]] = {}

    # What is supported

    async def GetDeploymentInfo(self, request: Any, context: Any) -> resource_pb2.DeploymentInfo:
        c = self._context
        return resource_pb2.DeploymentInfo(
            project=c.project, stack=c.stack, organization=c.organization, config=c.config.values,
            configSecretKeys=sorted(c.config.secret_keys), dryRun=c.dry_run, parallel=c.parallel,
            supportedFeatures=_FEATURES,
        )  # fmt: skip

    async def SupportsFeature(self, request: Any, context: Any) -> resource_pb2.SupportsFeatureResponse:
        return resource_pb2.SupportsFeatureResponse(hasSupport=request.id in _LEGACY_FEATURES)

    @_answers_errors
    async def RegisterResourceHook(self, request: Any, context: Any) -> empty_pb2.Empty:
        raise StepError(f"resource hook {request.name!r}: hooks need the pulumi CLI")

    @_answers_errors
    async def RegisterErrorHook(self, request: Any, context: Any) -> empty_pb2.Empty:
        raise StepError(f"error hook {request.name!r}: hooks need the pulumi CLI")

    @_answers_errors
    async def RegisterPackage(self, request: Any, context: Any) -> resource_pb2.RegisterPackageResponse:
        if request.HasField("parameterization") or request.HasField("extension"):
            raise StepError(f"package {request.name}: parameterized packages need the pulumi CLI")
        reference = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{request.name}@{request.version}"))
        self._packages[reference] = (request.name, request.version)
        return resource_pb2.RegisterPackageResponse(ref=reference)

    async def RegisterStackTransform(self, request: Any, context: Any) -> empty_pb2.Empty:
        self._transforms.stack.append(request)
        return empty_pb2.Empty()

    async def RegisterStackInvokeTransform(self, request: Any, context: Any) -> empty_pb2.Empty:
        self._transforms.invoke.append(request)
        return empty_pb2.Empty()

    async def SignalAndWaitForShutdown(self, request: Any, context: Any) -> empty_pb2.Empty:
        # Nothing calls back into the program once it is done, so it need not wait for the deletions.
        return empty_pb2.Empty()

    # Providers

    async def _provider_for(self, package: str, request: Any) -> str:
        """The reference of the provider that a request names, inherits from its parent, or gets by default."""
        if request.provider:
            return str(request.provider)
        parent = getattr(request, "parent", "")
        while parent in self._children_providers:
            parent, providers = self._children_providers[parent]
            if package in providers:
                return providers[package]
        name, version = self._packages.get(request.packageRef, (package, request.version))
        if (name, version) not in self._defaults:
            self._defaults[name, version] = asyncio.create_task(self._default(name, version))
        return await asyncio.shield(self._defaults[name, version])

    async def _default(self, package: str, version: str) -> str:
        """Registers the default provider of a package, configured by the stack's config for it."""
        if package == "pulumi":
            raise StepError("stack references, stashes and other resources of package pulumi need the pulumi CLI")
        given = self._context.config.package(package)
        properties = {key: secret(text) if hidden else text for key, (text, hidden) in given.items()}
        if version:
            properties["version"] = version
        name = "_".join(["default", *version.replace("-", ".").replace("+", ".").split(".")]) if version else "default"
        goal = Goal(type=f"{urns.PROVIDER_PREFIX}{package}", name=name, custom=True, properties=properties)
        registered = await self._deployment.register(goal)
        if registered.resource is None:
            raise StepError(self._deployment.failed.get(registered.urn, f"the {package} provider is not available"))
        return f"{registered.urn}::{registered.resource.id or UNKNOWN}"

    async def _provider(self, package: str, request: Any) -> Provider:
        reference = await self._provider_for(package, request)
        return await self._deployment.providers.resolve(reference, self._deployment.find_provider)

    # Resources

    @_answers_errors
    async def RegisterResource(self, request: Any, context: Any) -> resource_pb2.RegisterResourceResponse:
        if len(request.state_migrations):
            raise StepError(f"{request.name}: state migrations need the pulumi CLI")
        if request.type != urns.STACK_TYPE:
            await self._transforms.apply(request)
        if any(names for _, names in request.hooks.ListFields()):
            raise StepError(f"{request.name}: resource hooks need the pulumi CLI")
        if request.envVarMappings:
            raise StepError(f"{request.name}: env_var_mappings need the pulumi CLI")
        urn = urns.make(self._context.stack, self._context.project, request.parent, request.type, request.name)
        self._transforms.remember(urn, request)
        self._children_providers[urn] = (request.parent, dict(request.providers))
        if request.remote:
            return await self._construct(request)
        goal = _goal(request, self._context.directory)
        if request.custom and not urns.is_provider(request.type):
            try:
                reference = await self._provider_for(urns.package_of(request.type), request)
            except StepError as error:
                self._deployment.failed[urn] = str(error)
                self._deployment.display.failed(urn, request.type, str(error))
                return await self._answer(Registered(urn), request, context)
            goal = replace(goal, provider=reference)
        return await self._answer(await self._deployment.register(goal), request, context)

    async def _answer(self, done: Registered, request: Any, context: Any) -> resource_pb2.RegisterResourceResponse:
        if done.resource is None:
            if not request.supportsResultReporting:
                await context.abort(grpc.StatusCode.UNKNOWN, self._deployment.failed.get(done.urn, "failed"))
            return resource_pb2.RegisterResourceResponse(urn=done.urn, result=resource_pb2.FAIL)
        outputs = done.resource.outputs if done.resource.custom else done.resource.inputs
        return resource_pb2.RegisterResourceResponse(urn=done.urn, id=done.resource.id, object=to_struct(outputs))

    async def _construct(self, request: Any) -> resource_pb2.RegisterResourceResponse:
        """A component that lives in a plugin: it registers its children here, and itself."""
        c = self._context
        package = urns.package_of(request.type)
        provider = await self._provider(package, request)
        asked = provider_pb2.ConstructRequest(
            project=c.project, stack=c.stack, organization=c.organization, config=c.config.values,
            configSecretKeys=sorted(c.config.secret_keys), dryRun=c.dry_run, parallel=c.parallel,
            monitorEndpoint=self.address, type=request.type, name=request.name, parent=request.parent,
            inputs=to_struct(from_struct(request.object)), providers=request.providers,
            dependencies=request.dependencies, aliases=request.aliases, ignoreChanges=request.ignoreChanges,
            additionalSecretOutputs=request.additionalSecretOutputs, deletedWith=request.deletedWith,
            replaceOnChanges=request.replaceOnChanges, replace_with=request.replace_with,
        )  # fmt: skip
        for key, names in request.propertyDependencies.items():
            asked.inputDependencies[key].urns.extend(names.urns)
        if request.HasField("protect"):
            asked.protect = request.protect
        if request.HasField("retainOnDelete"):
            asked.retainOnDelete = request.retainOnDelete
        answer = await provider.raw("Construct", asked)
        response = resource_pb2.RegisterResourceResponse(urn=answer.urn, object=answer.state)
        for key, names in answer.stateDependencies.items():
            response.propertyDependencies[key].urns.extend(names.urns)
        return response

    @_answers_errors
    async def RegisterResourceOutputs(self, request: Any, context: Any) -> empty_pb2.Empty:
        await self._deployment.set_outputs(request.urn, from_struct(request.outputs))
        return empty_pb2.Empty()

    @_answers_errors
    async def ReadResource(self, request: Any, context: Any) -> resource_pb2.ReadResourceResponse:
        goal = Goal(
            type=request.type, name=request.name, custom=True, parent=request.parent,
            properties=from_struct(request.properties), dependencies=tuple(request.dependencies),
            provider=await self._provider_for(urns.package_of(request.type), request),
            additional_secret_outputs=tuple(request.additionalSecretOutputs),
        )  # fmt: skip
        done = await self._deployment.read(goal, request.id)
        if done.resource is None:
            return resource_pb2.ReadResourceResponse(urn=done.urn, result=resource_pb2.FAIL)
        return resource_pb2.ReadResourceResponse(
            urn=done.urn, id=done.resource.id, properties=to_struct(done.resource.outputs)
        )

    # Functions

    @_answers_errors
    async def Invoke(self, request: Any, context: Any) -> resource_pb2.ResourceInvokeResponse:
        await self._transforms.apply_to_invoke(request)
        if missing := sorted(set(request.dependsOn) & self._deployment.failed.keys()):
            raise StepError(f"{request.tok}: it needs {urns.parse(missing[0]).name}, which is missing")
        args = from_struct(request.args)
        if self._context.dry_run and (has_unknown(args) or set(request.dependsOn) & self._deployment.created):
            return resource_pb2.ResourceInvokeResponse(unknown=True)
        provider = await self._provider(urns.package_of(request.tok), request)
        if not provider.known:
            return resource_pb2.ResourceInvokeResponse(unknown=True)
        result, failures = await provider.invoke(request.tok, args, self._context.dry_run)
        if failures:
            raise StepError(f"{request.tok}: " + "; ".join(failures))
        return resource_pb2.ResourceInvokeResponse(**{"return": to_struct(result)})

    @_answers_errors
    async def Call(self, request: Any, context: Any) -> provider_pb2.CallResponse:
        c = self._context
        provider = await self._provider(urns.package_of(request.tok), request)
        asked = provider_pb2.CallRequest(
            tok=request.tok, args=to_struct(from_struct(request.args)), project=c.project, stack=c.stack,
            organization=c.organization, config=c.config.values, configSecretKeys=sorted(c.config.secret_keys),
            dryRun=c.dry_run, parallel=c.parallel, monitorEndpoint=self.address,
        )  # fmt: skip
        for key, names in request.argDependencies.items():
            asked.argDependencies[key].urns.extend(names.urns)
        answer: provider_pb2.CallResponse = await provider.raw("Call", asked)
        return answer

    async def settle(self) -> None:
        """Returns when no call is under way any more."""
        while self.under_way:
            await asyncio.wait(set(self.under_way))

    async def close(self) -> None:
        for task in self._defaults.values():
            task.cancel()
        await asyncio.gather(*self._defaults.values(), return_exceptions=True)
        await self._transforms.close()


def _goal(request: Any, directory: Path) -> Goal:
    dependencies = {key: list(names.urns) for key, names in request.propertyDependencies.items()}
    timeouts = {d.name: text for d, text in request.customTimeouts.ListFields() if text}
    trigger = request.replacement_trigger if request.HasField("replacement_trigger") else None
    return Goal(
        type=request.type, name=request.name, custom=request.custom, parent=request.parent,
        properties=from_struct(request.object, directory), dependencies=tuple(request.dependencies),
        property_dependencies=dependencies, providers=dict(request.providers),
        version=request.version,
        protect=request.protect if request.HasField("protect") else None,
        retain_on_delete=request.retainOnDelete if request.HasField("retainOnDelete") else None,
        delete_before_replace=request.deleteBeforeReplace if request.deleteBeforeReplaceDefined else None,
        deleted_with=request.deletedWith, replace_with=tuple(request.replace_with),
        ignore_changes=tuple(request.ignoreChanges), replace_on_changes=tuple(request.replaceOnChanges),
        additional_secret_outputs=tuple(request.additionalSecretOutputs),
        aliases=(*(Alias(urn=urn) for urn in request.aliasURNs), *(_alias(a) for a in request.aliases)),
        import_id=request.importId, replacement_trigger=None if trigger is None else from_value(trigger),
        timeouts=timeouts,
    )  # fmt: skip


def _alias(alias: Any) -> Alias:
    if alias.urn:
        return Alias(urn=alias.urn)
    spec = alias.spec
    return Alias(
        name=spec.name, type=spec.type, stack=spec.stack, project=spec.project, parent=spec.parentUrn,
        no_parent=spec.noParent,
    )  # fmt: skip
