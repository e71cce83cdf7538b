"""Deletes resources, each after all that refers to it, and brings the state in line with what exists (refresh)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from localcloud.engine import urns
from localcloud.engine.deployment import Deployment, changed_keys
from localcloud.engine.errors import EngineError, Interrupted, StepError
from localcloud.engine.providers import Diff, Outcome, Provider
from localcloud.engine.state import Resource, timestamp
from localcloud.engine.values import plain


def unwanted(deployment: Deployment) -> list[Resource]:
    """What is in the state and not in the program any more, and the old copies of what was replaced."""
    live = deployment.snapshot.live
    return [*deployment.snapshot.condemned, *(r for urn, r in live.items() if urn not in deployment.goals)]


def waits(doomed: list[Resource]) -> dict[int, list[int]]:
    """Per resource (by its place in the list), those that have to go before it. Raises EngineError on a circle."""
    places: dict[str, list[int]] = {}
    for place, resource in enumerate(doomed):
        places.setdefault(resource.urn, []).append(place)
    before: dict[int, list[int]] = {place: [] for place in range(len(doomed))}
    for place, resource in enumerate(doomed):
        for urn in set(resource.refers_to()):
            for other in places.get(urn, ()):
                id_ = urns.split_reference(resource.provider)[1] if resource.provider.startswith(f"{urn}::") else ""
                if other != place and (not id_ or id_ == doomed[other].id):
                    before[other].append(place)
    left, count = {place: len(b) for place, b in before.items()}, -1
    while left and len(left) != count:
        count = len(left)
        left = {place: 0 for place in left if any(b in left for b in before[place])}
    if left:
        raise EngineError("the state has a circle of dependencies: " + ", ".join(doomed[p].name for p in left))
    return before


async def delete_all(deployment: Deployment, doomed: list[Resource]) -> None:
    """Deletes the resources, as many at a time as allowed; what fails keeps all that it refers to."""
    before = waits(doomed)
    by_urn = {resource.urn: resource for resource in doomed}
    elided: dict[str, list[Resource]] = {}  # what goes with another resource, by that one's URN
    tasks: dict[int, asyncio.Task[bool]] = {}

    async def one(place: int) -> bool:
        resource = doomed[place]
        if not all(await asyncio.gather(*(tasks[other] for other in before[place]))):
            return False
        host = by_urn.get(resource.deleted_with)
        if host is not None and host.custom and not host.protect and not host.retain_on_delete:
            # It leaves the state in one write with its host, so a host that cannot be deleted keeps it.
            elided.setdefault(host.urn, []).append(resource)
            return True
        return await _delete(deployment, resource, elided)

    for place in before:
        tasks[place] = asyncio.create_task(one(place))
    if tasks:
        await asyncio.wait(tasks.values())
    for task in tasks.values():
        task.result()


async def _delete(deployment: Deployment, resource: Resource, elided: dict[str, list[Resource]]) -> bool:
    display, dry = deployment.display, deployment.context.dry_run
    untouched = not resource.custom or resource.external or resource.pending_replacement or resource.retain_on_delete
    try:
        if resource.protect and not resource.delete:
            raise StepError("it is protected: remove protect=True from its options and run up, then delete it")
        if dry:
            display.planned("retain" if resource.retain_on_delete else "delete", resource, resource, None)
        elif untouched or urns.is_provider(resource.type):
            _forget(deployment, resource, elided)
            await deployment.save()
            display.finished("retain" if resource.retain_on_delete else "delete", resource, ())
        else:
            async with deployment.operation("delete", "deleting", resource):
                provider = await deployment.providers.resolve(resource.provider, deployment.find_provider)
                await provider.delete(resource, resource.custom_timeouts.get("delete", 0.0))
                _forget(deployment, resource, elided)
    except Interrupted:
        return False
    except EngineError as error:
        deployment.failed[resource.urn] = str(error)
        display.failed(resource.urn, resource.type, str(error))
        return False
    for other in elided.get(resource.urn, ()):
        if dry:
            display.planned("delete", other, other, None)
        else:
            display.finished("delete", other, ())
    return True


def _forget(deployment: Deployment, resource: Resource, elided: dict[str, list[Resource]]) -> None:
    gone = [resource, *elided.get(resource.urn, ())]
    snapshot = deployment.snapshot
    snapshot.condemned = [r for r in snapshot.condemned if r not in gone]
    for other in gone:
        if not other.delete:
            snapshot.forget(other.urn)


async def finish_pending_creates(deployment: Deployment) -> None:
    """Makes creates that a killed run left open known again, so that they can be deleted.

    The provider is asked to create the same thing once more; providers here take over what exists under the name.
    """
    for token, pending in list(deployment.snapshot.pending.items()):
        resource = pending.resource
        if pending.kind != "creating" or resource.urn in deployment.snapshot.live:
            continue
        try:
            provider = await deployment.providers.resolve(resource.provider, deployment.find_provider)
            outcome = await provider.create(resource, resource.custom_timeouts.get("create", 0.0), False)
        except EngineError as error:
            deployment.failed[resource.urn] = str(error)
            deployment.display.failed(resource.urn, resource.type, f"a killed run was creating it: {error}")
            continue
        deployment.snapshot.live[resource.urn] = replace(
            resource, id=outcome.id, outputs=outcome.outputs, init_errors=outcome.init_errors
        )
        del deployment.snapshot.pending[token]
        await deployment.save()


async def refresh(deployment: Deployment) -> None:
    """Reads every resource and takes what is there into the state; what is gone leaves it.

    Told is only what `up` would set right, as the CLI tells it: what others rightly change (the routes of a table, the
    policies attached to a role) comes into the state in silence. Fact: pulumi/pulumi pull request 16146.
    """
    await asyncio.gather(
        *(
            _refresh(deployment, resource)
            for resource in list(deployment.snapshot.live.values())
            if resource.custom and not urns.is_provider(resource.type) and not resource.pending_replacement
        )
    )


async def _refresh(deployment: Deployment, resource: Resource) -> None:
    display = deployment.display
    try:
        async with deployment.reading(resource):
            provider = await deployment.providers.resolve(resource.provider, deployment.find_provider)
            found = await provider.read(
                resource.urn, resource.id, resource.inputs, resource.outputs, resource.custom_timeouts.get("read", 0.0)
            )
            drift = None if found is None else await _drift(resource, found, provider)
    except Interrupted:
        return
    except EngineError as error:
        deployment.failed[resource.urn] = str(error)
        display.failed(resource.urn, resource.type, str(error))
        return
    if found is None:
        deployment.snapshot.forget(resource.urn)
        display.drifted("delete", resource, resource, Diff())
    else:
        # Taken anew: another resource that is gone may have been taken out of its references meanwhile.
        now = _as_found(deployment.snapshot.live[resource.urn], found)
        changed = changed_keys(resource.outputs, now.outputs) or changed_keys(resource.inputs, now.inputs)
        if changed or drift:
            now = replace(now, modified=timestamp())
            deployment.snapshot.live[resource.urn] = now
        if not drift:
            display.same(resource)
        else:
            display.drifted("update", now, resource, replace(drift, changed=tuple(drift.keys or changed)))
        if not changed and not drift:
            return
    await deployment.save()


def _as_found(resource: Resource, found: Outcome) -> Resource:
    return replace(
        resource, id=found.id, outputs=found.outputs, init_errors=found.init_errors,
        inputs=resource.inputs if found.inputs is None else found.inputs,
    )  # fmt: skip


async def _drift(resource: Resource, found: Outcome, provider: Provider) -> Diff | None:
    """How what exists differs from what was asked for (of what is only read: from what it was); None if it does not."""
    now = _as_found(resource, found)
    if resource.external:
        diff = Diff(unknown=True)
    else:
        diff = await provider.diff(now, resource.inputs, resource.ignore_changes)
    if diff.unknown:
        keys = changed_keys(*((r.outputs if resource.external else r.inputs) for r in (now, resource)))
        diff = Diff(changes=bool(keys), changed=tuple(keys))
    other = plain(now.id) != resource.id or now.init_errors != resource.init_errors
    return replace(diff, changes=True) if diff.changes or other else None
