"""The heart: compares what the program registers with the state, and makes the world follow, one resource at a time."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from localcloud.engine import paths, urns
from localcloud.engine.display import Display, changes
from localcloud.engine.errors import EngineError, Interrupted, StepError
from localcloud.engine.goals import Context, Goal
from localcloud.engine.policies import PolicyPack, Subject, all_of
from localcloud.engine.providers import Diff, Provider, Providers
from localcloud.engine.state import Resource, Snapshot, timestamp
from localcloud.engine.values import (
    UNKNOWN,
    Properties,
    has_unknown,
    keep_secrets,
    mark_secret,
    plain,
    without_unknowns,
)


@dataclass(frozen=True)
class Registered:
    """The answer to a registration. resource is None when it failed or was skipped."""

    urn: str
    resource: Resource | None = None


class Deployment:
    """One run over one stack. All its methods run on one event loop; what they await is the providers' work."""

    def __init__(
        self,
        context: Context,
        snapshot: Snapshot,
        save: Callable[[Snapshot], Awaitable[None]],
        providers: Providers,
        packs: Sequence[PolicyPack],
        display: Display,
    ) -> None:
        self.context = context
        self.snapshot = snapshot
        self.providers = providers
        self.display = display
        self.packs = packs
        self.failed: dict[str, str] = {}
        self.violated = False
        self.stopping = False
        self.fatal: EngineError | None = None
        self.goals: dict[str, Goal] = {}
        self.replaced: set[str] = set()
        self.created: set[str] = set()
        self._olds = dict(snapshot.live)
        self._renamed: dict[str, str] = {}
        self._save_state = save
        self._slots = asyncio.Semaphore(max(1, context.parallel))

    # Registration

    async def register(self, goal: Goal) -> Registered:
        """Brings one resource to what the program wants. Never raises for what is wrong with the resource itself."""
        urn = urns.make(self.context.stack, self.context.project, goal.parent, goal.type, goal.name)
        if urn in self.goals:
            return self._fail(urn, goal.type, StepError("two resources have this type, name and parent: rename one"))
        goal = self._with_parents_options(goal)
        self.goals[urn] = goal
        if self.stopping or (because := sorted(goal.needs() & self.failed.keys())):
            self.failed[urn] = "skipped"
            self.display.skipped(urn, because[0] if not self.stopping else "")
            return Registered(urn)
        try:
            return Registered(urn, await self._register(urn, goal))
        except Interrupted:
            self.failed[urn] = "skipped"
            self.display.skipped(urn, "")
            return Registered(urn)
        except EngineError as error:
            return self._fail(urn, goal.type, error)

    def _fail(self, urn: str, type_: str, error: EngineError) -> Registered:
        self.failed[urn] = str(error)
        if not isinstance(error, StepError):
            # The engine's own trouble (a full disk, say): going on would lose what is done.
            self.fatal, self.stopping = error, True
        self.display.failed(urn, type_, str(error))
        return Registered(urn)

    def _with_parents_options(self, goal: Goal) -> Goal:
        above = self.goals.get(goal.parent)
        if above is None:
            return goal
        return replace(
            goal,
            protect=above.protect if goal.protect is None else goal.protect,
            retain_on_delete=above.retain_on_delete if goal.retain_on_delete is None else goal.retain_on_delete,
            deleted_with=goal.deleted_with or above.deleted_with,
        )

    async def _register(self, urn: str, goal: Goal) -> Resource:
        old = self._find_old(urn, goal)
        new = goal.resource(urn)
        if not goal.custom:
            await self._police(new, goal)
            return await self._component(new, old)
        provider = await (
            self.providers.fresh(urns.package_of(goal.type))
            if urns.is_provider(goal.type)
            else self.providers.resolve(goal.provider, self.find_provider)
        )
        if goal.import_id and (old is None or goal.import_id not in (old.id, old.import_id)):
            old = await self._import(new, goal.import_id, provider)
        prior = None if old is None or old.external or old.pending_replacement else old
        wanted = paths.reset(goal.properties, prior.inputs, goal.ignore_changes) if prior else goal.properties
        seed = goal.seed(urn, "" if prior or old is None else old.id)
        await self._check(provider, new, prior, wanted, seed)
        await self._police(new, goal)
        if old is None:
            return await self._create("create", new, None, provider)
        if prior is None:
            self.replaced.add(urn)
            return await self._create("create" if old.external else "replace", new, old, provider)
        diff = await self._diff(prior, new, provider)
        if diff.replace:
            return await self._replace(prior, new, goal, provider, diff)
        if diff.changes or prior.init_errors:
            return await self._update(prior, new, provider, diff)
        return await self._same(prior, new, provider)

    def _find_old(self, urn: str, goal: Goal) -> Resource | None:
        if urn in self.snapshot.live:
            return self.snapshot.live[urn]
        for earlier in urns.earlier_urns(urn, goal.parent, goal.aliases, self._renamed):
            if earlier not in self.snapshot.live or earlier in self.goals:
                continue
            self.snapshot.rename(earlier, urn)
            self._renamed[urn] = earlier
            self._olds[urn] = self._olds.pop(earlier, self.snapshot.live[urn])
            return self.snapshot.live[urn]
        return None

    def find_provider(self, reference: str) -> Resource | None:
        """The provider resource behind a reference, as the state knows it."""
        for resource in [*self.snapshot.everything(), *self._olds.values()]:
            if resource.reference == reference and urns.is_provider(resource.type):
                return resource
        return None

    async def _check(
        self, provider: Provider, new: Resource, prior: Resource | None, wanted: Properties, seed: bytes
    ) -> None:
        olds = prior.inputs if prior else {}
        if urns.is_provider(new.type):
            new.inputs, failures = await provider.check_config(new.urn, olds, wanted)
        else:
            new.inputs, failures = await provider.check(new.urn, olds, wanted, seed)
        if failures:
            raise StepError("\n".join(failures))

    async def _police(self, new: Resource, goal: Goal) -> None:
        """Lets the policy packs correct the inputs, then judge them. Raises StepError on a mandatory violation."""
        await self._remediate(new, goal)
        subject = self._subject(new, new.inputs, goal)
        found = await all_of([pack.analyze(subject) for pack in self.packs])
        for violation in found:
            self.display.policy(violation)
        if mandatory := [violation for violation in found if violation.mandatory]:
            self.violated = True
            if not self.context.dry_run:
                raise StepError(f"stopped by policy {', '.join(v.policy for v in mandatory)}")

    async def _remediate(self, new: Resource, goal: Goal) -> None:
        for pack in self.packs:
            for policy, properties, problem in await pack.remediate(self._subject(new, new.inputs, goal)):
                if properties is not None:
                    new.inputs = keep_secrets(properties, new.inputs)
                    self.display.note(f"policy {policy} corrected {new.name}", new.urn)
                else:
                    self.display.diagnostic("warning", f"policy {policy} could not correct it: {problem}", new.urn)

    def _subject(self, resource: Resource, properties: Properties, goal: Goal | None) -> Subject:
        provider = self.snapshot.live.get(urns.split_reference(resource.provider)[0]) if resource.provider else None
        return Subject(resource, properties, provider, goal.delete_before_replace if goal else None)

    async def judge_stack(self) -> None:
        """Lets the policy packs judge the stack as it is (or, in a preview, would be)."""
        subjects = [
            self._subject(r, r.outputs, self.goals.get(r.urn)) for u, r in self.snapshot.live.items() if u in self.goals
        ]
        for violation in await all_of([pack.analyze_stack(subjects) for pack in self.packs]):
            self.display.policy(violation)
            self.violated = self.violated or violation.mandatory

    # Comparison

    async def _diff(self, old: Resource, new: Resource, provider: Provider) -> Diff:
        goal = self.goals[new.urn]
        for reason, urns_ in (("replaceWith", goal.replace_with), ("deletedWith", (goal.deleted_with,))):
            if self.replaced & set(urns_):
                return Diff(changes=True, replaces=(reason,))
        if new.replacement_trigger is not None and plain(old.replacement_trigger) != plain(new.replacement_trigger):
            return Diff(changes=True, replaces=("replacementTrigger",))
        if urns.is_provider(new.type):
            diff = await provider.diff_config(new.urn, old, new.inputs)
        elif old.provider != new.provider and await self._needs_other_provider(old, new, provider):
            return Diff(changes=True, replaces=("provider",))
        else:
            diff = await provider.diff(old, new.inputs, goal.ignore_changes)
        return self._completed(diff, old, new.inputs, goal.ignore_changes, goal.replace_on_changes)

    def _completed(
        self, diff: Diff, old: Resource, news: Properties, ignore: Iterable[str], replace_on: Iterable[str]
    ) -> Diff:
        """The provider's diff, with an unknown one worked out here and with the option replace_on_changes applied."""
        if diff.unknown:
            changed = changed_keys(old.inputs, paths.reset(news, old.inputs, ignore))
            diff = replace(diff, unknown=False, changes=bool(changed), changed=tuple(changed))
        if diff.changes and (forced := [key for key in diff.keys if paths.covers(replace_on, key)]):
            diff = replace(diff, replaces=(*diff.replaces, *forced))
        return replace(diff, changes=True) if diff.replace else diff

    async def _needs_other_provider(self, old: Resource, new: Resource, provider: Provider) -> bool:
        """Whether the provider that now serves a resource cannot manage what the former one made."""
        before = self.find_provider(old.provider)
        after = self.snapshot.live.get(urns.split_reference(new.provider)[0])
        if before is None or after is None:
            return False
        if before.type != after.type:
            return True
        return (await provider.diff_config(after.urn, before, after.inputs)).replace

    async def _doomed_with(self, root: Resource) -> list[Resource]:
        """What must be deleted before `root` can be replaced in place, in dependency order.

        These are the resources that would themselves be replaced if what they take from a deleted one changed;
        their provider is asked, with the values they take from it unknown.
        """
        doomed: dict[str, Resource] = {root.urn: root}
        for resource in self.snapshot.ordered():
            if resource.urn in self.goals or resource.delete or not resource.custom or resource.external:
                continue
            provider_urn = urns.split_reference(resource.provider)[0] if resource.provider else ""
            if provider_urn in doomed or doomed.keys() & {resource.deleted_with, *resource.replace_with}:
                doomed[resource.urn] = resource
                continue
            dependencies = resource.property_dependencies
            inputs = {
                key: UNKNOWN if doomed.keys() & set(dependencies.get(key, ())) else value
                for key, value in resource.inputs.items()
            }
            if inputs == resource.inputs:
                continue
            if urns.is_provider(resource.type):
                provider = await self.providers.resolve(resource.reference, self.find_provider)
                diff = await provider.diff_config(resource.urn, resource, inputs)
            else:
                provider = await self.providers.resolve(resource.provider, self.find_provider)
                diff = await provider.diff(resource, inputs, resource.ignore_changes)
            completed = self._completed(diff, resource, inputs, resource.ignore_changes, resource.replace_on_changes)
            if completed.replace:
                doomed[resource.urn] = resource
        return list(doomed.values())

    # Steps

    @asynccontextmanager
    async def operation(self, op: str, kind: str, resource: Resource, keys: Sequence[str] = ()) -> AsyncIterator[None]:
        """Work on one resource: recorded before it starts, shown, and saved with its result when it ends.

        The body asks the provider and puts the result into the snapshot. A preview records and shows nothing.
        """
        async with self._slots:
            if self.stopping:
                raise Interrupted("stopped before it was touched")
            if self.context.dry_run:
                yield
                return
            token = self.snapshot.begin(kind, resource)
            await self.save()
            self.display.started(op, resource)
            try:
                yield
            except StepError as error:
                if not error.uncertain:
                    del self.snapshot.pending[token]
                    await self.save()
                raise
            del self.snapshot.pending[token]
            await self.save()
            self.display.finished(op, resource, keys)

    @asynccontextmanager
    async def reading(self, resource: Resource) -> AsyncIterator[None]:
        """Work that changes nothing, shown while it lasts."""
        async with self._slots:
            if self.stopping:
                raise Interrupted("stopped before it was read")
            self.display.started("refresh", resource)
            try:
                yield
            finally:
                self.display.ended(resource)

    async def save(self) -> None:
        if not self.context.dry_run:
            await self._save_state(self.snapshot)

    def _timeout(self, resource: Resource, kind: str) -> float:
        return resource.custom_timeouts.get(kind, 0.0)

    def _place(self, new: Resource, replaced: Resource | None = None) -> Resource:
        """Makes the resource the live one; the one it replaces, if it still exists, is deleted at the end."""
        if replaced is not None and not replaced.pending_replacement and not replaced.external:
            self.snapshot.condemned.append(replace(replaced, delete=True))
        self.snapshot.live[new.urn] = new
        return new

    async def _create(
        self, op: str, new: Resource, old: Resource | None, provider: Provider, diff: Diff | None = None
    ) -> Resource:
        keys = changes(old, new, diff)
        new.created = new.modified = timestamp()
        if op == "create":
            self.created.add(new.urn)
        if self.context.dry_run:
            self.display.planned(op, new, old, diff)
        if urns.is_provider(new.type):
            new.id = "" if self.context.dry_run else str(uuid.uuid4())
            new.outputs = new.inputs
            await provider.configure(new.urn, new.id, new.inputs)
            self.providers.put(new.urn, new.id, provider)
            self._place(new, old)
            await self.save()
            self.display.finished(op, new, keys)
            return new
        async with self.operation(op, "creating", new, keys):
            outcome = await provider.create(new, self._timeout(new, "create"), self.context.dry_run)
            made = replace(
                new,
                id=outcome.id,
                outputs=mark_secret(outcome.outputs, new.additional_secret_outputs),
                init_errors=outcome.init_errors,
            )
            self._drop_pending_creates(new.urn)
            self._place(made, old)
        return self._ready(made)

    def _ready(self, resource: Resource) -> Resource:
        if resource.init_errors:
            raise StepError("it exists, but did not become ready: " + "; ".join(resource.init_errors))
        return resource

    def _drop_pending_creates(self, urn: str) -> None:
        """Forgets creates that an earlier run did not end: the resource has just been made, or taken over."""
        current = {token for token, op in self.snapshot.pending.items() if op.resource.urn == urn}
        for token in sorted(current)[:-1] if not self.context.dry_run else current:
            del self.snapshot.pending[token]

    async def _update(self, old: Resource, new: Resource, provider: Provider, diff: Diff) -> Resource:
        new.id, new.created, new.modified, new.other = old.id, old.created, timestamp(), old.other
        if self.context.dry_run:
            self.display.planned("update", new, old, diff)
        if urns.is_provider(new.type):
            new.outputs = new.inputs
            await provider.configure(new.urn, new.id, new.inputs)
            self.providers.put(new.urn, new.id, provider)
            self._place(new)
            await self.save()
            self.display.finished("update", new, changes(old, new, diff))
            return new
        async with self.operation("update", "updating", old, changes(old, new, diff)):
            outcome = await provider.update(
                old, new, self._timeout(new, "update"), new.ignore_changes, self.context.dry_run
            )
            outputs = mark_secret(outcome.outputs, new.additional_secret_outputs)
            made = self._place(replace(new, outputs=outputs, init_errors=outcome.init_errors))
        return self._ready(made)

    async def _same(self, old: Resource, new: Resource, provider: Provider | None) -> Resource:
        kept = replace(new, id=old.id, outputs=old.outputs, created=old.created, modified=old.modified, other=old.other)
        if provider is not None:
            kept.outputs = mark_secret(old.outputs, new.additional_secret_outputs)
            if urns.is_provider(new.type):
                kept.outputs = new.inputs
                await provider.configure(new.urn, kept.id, new.inputs)
                self.providers.put(new.urn, kept.id, provider)
        self.display.same(kept)
        if vars(kept) == vars(old) and new.urn not in self._renamed:
            return old
        self._place(kept)
        await self.save()
        return kept

    async def _component(self, new: Resource, old: Resource | None) -> Resource:
        if old is None:
            new.created = new.modified = timestamp()
            new.outputs = new.inputs
            self.created.add(new.urn)
            if self.context.dry_run:
                self.display.planned("create", new, None, None)
            self._place(new)
            await self.save()
            self.display.finished("create", new, ())
            return new
        return await self._same(old, new, None)

    async def _replace(self, old: Resource, new: Resource, goal: Goal, provider: Provider, diff: Diff) -> Resource:
        if old.protect and new.protect:
            raise StepError("it is protected and would have to be replaced: remove protect=True first, then run up")
        if goal.import_id:
            raise StepError("it was imported and would have to be replaced: remove import_ from its options first")
        self.replaced.add(new.urn)
        before = goal.delete_before_replace
        if diff.delete_before_replace if before is None else before:
            # What is looked at now is taken from the state of the last run: nothing that depends on this resource
            # can have been registered yet.
            doomed = await self._doomed_with(old)
            if guarded := [r.name for r in doomed[1:] if r.protect]:
                raise StepError(f"replacing it means to replace {', '.join(guarded)} too, which is protected")
            for resource in reversed(doomed):
                await self._delete_to_replace(resource, {r.urn for r in doomed})
            old = self.snapshot.live[old.urn]
        # The new one is not to inherit what only fits the old one, such as its automatic name.
        await self._check(provider, new, None, goal.properties, goal.seed(new.urn, old.id))
        await self._remediate(new, goal)
        return await self._create("replace", new, old, provider, diff)

    async def _delete_to_replace(self, resource: Resource, doomed: set[str]) -> None:
        if resource.pending_replacement:
            return
        async with self.operation("delete-replaced", "deleting", resource):
            gone_anyway = resource.retain_on_delete or resource.deleted_with in doomed
            if not (gone_anyway or self.context.dry_run or urns.is_provider(resource.type)):
                provider = await self.providers.resolve(resource.provider, self.find_provider)
                await provider.delete(resource, self._timeout(resource, "delete"))
            self.snapshot.live[resource.urn] = replace(resource, pending_replacement=True)

    async def _import(self, new: Resource, id_: str, provider: Provider) -> Resource:
        found = await provider.read(new.urn, id_, None, {}, self._timeout(new, "read"))
        if found is None:
            raise StepError(f"import: nothing exists under the id {id_!r}")
        now = timestamp()
        imported = replace(
            new, id=found.id, inputs=found.inputs or {}, outputs=found.outputs, import_id=id_, created=now, modified=now
        )
        if self.context.dry_run:
            self.display.planned("import", imported, None, None)
        self._place(imported)
        await self.save()
        self.display.finished("import", imported, ())
        return imported

    # What programs do besides registering

    async def set_outputs(self, urn: str, outputs: Properties) -> None:
        """The outputs of a component or of the stack, once the program knows them."""
        resource = self.snapshot.live.get(urn)
        if resource is None:
            return
        outputs = outputs if self.context.dry_run else without_unknowns(outputs)
        if outputs != resource.outputs:
            self._place(replace(resource, outputs=outputs, modified=timestamp()))
            await self.save()

    async def read(self, goal: Goal, id_: str) -> Registered:
        """A resource that the program looks up by its id and does not own."""
        urn = urns.make(self.context.stack, self.context.project, goal.parent, goal.type, goal.name)
        if urn in self.goals:
            return self._fail(urn, goal.type, StepError("two resources have this type, name and parent: rename one"))
        self.goals[urn] = goal
        new = replace(goal.resource(urn), external=True, id=id_)
        if has_unknown(id_):
            return Registered(urn, replace(new, id="", outputs={}))
        try:
            provider = await self.providers.resolve(goal.provider, self.find_provider)
            found = await provider.read(urn, id_, goal.properties, goal.properties, self._timeout(new, "read"))
            if found is None:
                raise StepError(f"nothing exists under the id {id_!r}")
        except EngineError as error:
            return self._fail(urn, goal.type, error)
        old = self.snapshot.live.get(urn)
        new = replace(new, id=found.id, outputs=mark_secret(found.outputs, new.additional_secret_outputs))
        if old is not None:
            new = replace(new, created=old.created, modified=old.modified)
        if old is None or vars(old) != vars(new):
            self._place(new, old)
            await self.save()
            self.display.finished("read", new, ())
        return Registered(urn, new)


def changed_keys(old: Properties, new: Properties) -> list[str]:
    """Top-level properties that differ, whatever their secrecy."""
    olds, news = plain(old), plain(new)
    return [key for key in dict.fromkeys([*news, *olds]) if olds.get(key) != news.get(key)]
