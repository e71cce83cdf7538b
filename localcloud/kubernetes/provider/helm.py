"""helm.v3.Release: installs, upgrades and removes charts with the real helm, and waits for what they make.

Helm itself is told not to wait (except for hooks), for three reasons: a kill then seldom finds it in the middle of a
release; the wait tells which pod fails and why; and it ends within a second of the last pod. Charts with hooks that
run after an installation get helm's own wait first, because such hooks expect the pods to be there.
"""

from __future__ import annotations

import json
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from localcloud.kubernetes.provider import diff, helm_inputs, helm_wait, waiting
from localcloud.kubernetes.provider.client import ApiError, Unreachable
from localcloud.kubernetes.provider.cluster import Cancelled, Cluster, Progress
from localcloud.kubernetes.provider.errors import Failure, InitFailed, explain
from localcloud.kubernetes.provider.helm_records import (
    OWNER_LABEL,
    PENDING,
    Record,
    history,
    mark_failed,
    objects_named,
    owner_of,
)
from localcloud.kubernetes.provider.helm_run import HelmFailed, Workspace, has_helm, major_version, run, workspace
from localcloud.kubernetes.provider.objects import State
from localcloud.kubernetes.provider.wire import UNKNOWN, Object, has_unknown
from localcloud.kubernetes.provider.wire import Path as PropertyPath

_POST_HOOKS = (b"post-install", b"post-upgrade")


@dataclass(frozen=True)
class Target:
    """One release and the operation's parameters; `timeout` in seconds."""

    urn: str
    inputs: Object
    secrets: list[PropertyPath]
    timeout: float

    @property
    def name(self) -> str:
        return str(self.inputs["name"])

    @property
    def namespace(self) -> str:
        return str(self.inputs["namespace"])

    def __str__(self) -> str:
        return f"helm release {self.namespace}/{self.name}"


class Releases:
    """The operations on releases in one cluster; `folder` is where relative paths of charts and files start."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._cluster, self._folder = cluster, folder

    def diff(self, old_inputs: Object, news: Object, ignore: list[str]) -> diff.Difference:
        """What changes; another name or namespace is another release."""
        found = diff.compare(
            "helm.sh",
            helm_inputs.comparable(old_inputs),
            helm_inputs.comparable(news),
            self._cluster.settings,
            # The checksum belongs to the version: who ignores the one does not want the other either.
            [*ignore, *(["checksum"] if "version" in ignore or "chart" in ignore else [])],
        )
        found.replaces = [path for path in found.changes if path in (("name",), ("namespace",))]
        return found

    def preview(self, target: Target) -> State:
        """What a preview can promise. The chart is rendered, so that wrong values are found now. Raises Failure."""
        outputs = {**target.inputs, "status": UNKNOWN, "resourceNames": UNKNOWN, "__inputs": target.inputs}
        if not has_helm():
            self._cluster.log(
                "WARNING", "helm is not on PATH, so the chart is not rendered in this preview", target.urn, False
            )
        elif not has_unknown(target.inputs):
            try:
                self._render(target)
            except HelmFailed as error:
                raise Failure(f"{target}: the chart cannot be rendered with these values:\n{error}") from error
        return State("", outputs, _marks(target.secrets), target.inputs)

    def _render(self, target: Target) -> None:
        chart = helm_inputs.local_chart(target.inputs, self._folder)
        if chart is None:
            return  # from a repository: not fetched for a preview
        with tempfile.TemporaryDirectory(prefix="slipway-helm-") as name:
            flags = [*helm_inputs.chart_flags(target.inputs, self._folder, chart), *self._values(target, Path(name))]
            with suppress(Unreachable, ApiError):
                flags += ["--kube-version", self._cluster.client.get("/version", patient=False)["gitVersion"]]
            run(self._cluster, None, ["template", target.name, "--namespace", target.namespace, *flags])

    def create(self, target: Target) -> State:
        """Install the release and wait. Raises Failure, InitFailed, Unreachable."""
        latest = self._latest(target)
        foreign = latest and latest.status != "uninstalled" and latest.owner != owner_of(target.urn)
        if latest and foreign and not self._cluster.settings.upsert:
            raise Failure(
                f"{target} exists already (revision {latest.revision}, {latest.status}) and was not made by this "
                f"resource. Import it with the id {target.namespace}/{target.name}, or choose another name."
            )
        return self._upgrade(target, latest)

    def update(self, target: Target) -> State:
        """Upgrade the release and wait; one that someone uninstalled is installed. Raises Failure, InitFailed."""
        latest = self._latest(target)
        if latest is None:
            self._cluster.log("WARNING", f"{target} was removed outside of Pulumi and is made again", target.urn, False)
        return self._upgrade(target, latest)

    def _latest(self, target: Target) -> Record | None:
        try:
            records = history(self._cluster, target.namespace, target.name)
        except ApiError as error:
            raise Failure(explain(error, f"the records of {target}", "read")) from error
        return records[-1] if records else None

    def _upgrade(self, target: Target, latest: Record | None) -> State:
        latest = self._repair(target, latest)
        chart = helm_inputs.local_chart(target.inputs, self._folder)
        started = time.monotonic()
        with workspace(self._cluster) as space:
            # Helm's own wait costs two seconds a look, so it is for those charts only that need it.
            wait = ["--wait=legacy" if major_version() >= 4 else "--wait"] if _has_post_hooks(chart) else []
            if wait and target.inputs.get("waitForJobs"):
                wait.append("--wait-for-jobs")
            arguments = [
                *("upgrade", target.name, "--install", "--namespace", target.namespace),
                *helm_inputs.chart_flags(target.inputs, self._folder, chart),
                *("--labels", f"{OWNER_LABEL}={owner_of(target.urn)}", "--timeout", f"{target.timeout:.0f}s"),
                *helm_inputs.upgrade_flags(target.inputs, major_version()),
                *([] if target.inputs.get("skipAwait") else wait),
                *self._values(target, space.folder),
            ]
            try:
                self._run_with_progress(target, space, arguments)
            except (HelmFailed, Cancelled) as error:
                self._failed(target, space, latest, [str(error)])
        record = self._latest(target)
        if record is None:
            raise Failure(f"{target} was removed by someone while it was being installed")
        state = _state(target, record)
        if target.inputs.get("skipAwait"):
            return state
        try:
            helm_wait.until_ready(self._cluster, _scope(target), record, target.timeout - (time.monotonic() - started))
        except (waiting.NotReady, Cancelled) as error:
            reasons = error.reasons if isinstance(error, waiting.NotReady) else [str(error)]
            with workspace(self._cluster) as space:
                self._failed(target, space, latest, reasons)
        return state

    def _failed(self, target: Target, space: Workspace, before: Record | None, reasons: list[str]) -> None:
        """Raise for a release that failed; with `atomic` it is first put back to what was there before."""
        record = self._latest(target)
        made = record is not None and (before is None or record.revision > before.revision)
        if target.inputs.get("atomic") and made and not self._cluster.cancelled.is_set():
            raise Failure(f"{target} failed and {self._undo(target, space)} (atomic):\n" + "\n".join(reasons))
        if record is None or not made:
            raise Failure(f"{target}: " + "\n".join(reasons))
        self._repair(target, record)
        state = _state(target, record)
        raise InitFailed(
            state.id, state.outputs, state.secrets, state.inputs, [f"{target}: {reasons[0]}", *reasons[1:]]
        )

    def _undo(self, target: Target, space: Workspace) -> str:
        """Go back to the last revision that worked, or uninstall where there is none. Returns what was done."""
        # The newest revision is the one that failed; for helm it may be deployed, as it did not wait for the pods.
        *older, _ = history(self._cluster, target.namespace, target.name)
        good = [record for record in older if record.status in ("deployed", "superseded")]
        where = ["--namespace", target.namespace, "--timeout", f"{target.timeout:.0f}s"]
        try:
            if not good:
                run(self._cluster, space, ["uninstall", target.name, *where, *_uninstall_wait()])
                return "was uninstalled again"
            run(self._cluster, space, ["rollback", target.name, str(good[-1].revision), *where])
        except HelmFailed as error:
            return f"could not be put back ({error})"
        return f"was rolled back to revision {good[-1].revision}"

    def _repair(self, target: Target, latest: Record | None) -> Record | None:
        """Get a release out of the state in which a killed helm left it. Returns its record as it is then.

        Only one run at a time works on a stack, and helm dies with its provider: a pending record is a dead helm's.
        """
        if latest is None:
            return None
        if latest.status in PENDING:
            self._tell(target, f"was left {latest.status} by a killed run; going on from there")
            try:
                mark_failed(self._cluster, latest)
            except ApiError as error:
                raise Failure(explain(error, f"the record of {target}", "repair")) from error
            return latest
        if latest.status == "uninstalling":
            self._tell(target, "was being uninstalled by a killed run; finishing that first")
            self._uninstall(target, latest)
            return None
        return latest

    def _tell(self, target: Target, message: str) -> None:
        self._cluster.log("INFO", f"{target} {message}", target.urn, False)

    def _values(self, target: Target, folder: Path) -> list[str]:
        flags: list[str] = []
        for index, asset in enumerate(target.inputs.get("valueYamlFiles") or []):
            try:
                content = helm_inputs.read_asset(asset, self._folder)
            except ValueError as error:
                raise Failure(f"{target}: valueYamlFiles[{index}]: {error}") from error
            path = folder / f"file-{index}.yaml"
            path.write_bytes(content)
            flags += ["--values", str(path)]
        # Values given in the program come last, so they win over those from files.
        path = folder / "values.json"
        path.write_text(json.dumps(target.inputs.get("values") or {}))
        return [*flags, "--values", str(path)]

    def _run_with_progress(self, target: Target, space: Workspace, arguments: list[str]) -> None:
        progress = Progress(self._cluster.log, target.urn)
        scope = _scope(target)

        def meanwhile(elapsed: float) -> None:
            if progress.due(elapsed):
                record = None
                with suppress(Failure, Unreachable):
                    record = self._latest(target)
                missing = helm_wait.missing(self._cluster, scope, record) if record else []
                progress.say(elapsed, missing[0] if missing else "helm is at work")

        run(self._cluster, space, arguments, meanwhile)

    # -- read, delete

    def read(self, id_: str, old_inputs: Object, secrets: list[PropertyPath], urn: str) -> State | None:
        """The release as helm's records have it, None where it is gone. Without old inputs it is being imported."""
        namespace, _, name = id_.rpartition("/")
        target = Target(urn, {**old_inputs, "name": name, "namespace": namespace or "default"}, secrets, 0)
        record = self._latest(target)
        if record is None or record.status == "uninstalled":
            return None
        inputs = dict(target.inputs)
        if not old_inputs:
            inputs |= {"chart": record.chart.get("name"), "values": record.values}
            inputs["version"] = record.chart.get("version")
        else:
            if "version" in inputs:
                inputs["version"] = record.chart.get("version")
            # With values files the record holds the sum of all; what of it the program gave cannot be told.
            if not inputs.get("valueYamlFiles") and record.values != (inputs.get("values") or {}):
                inputs["values"] = record.values
                secrets = [*secrets, ("values",)] if any(path[0] == "values" for path in secrets) else secrets
        return _state(Target(urn, inputs, secrets, 0), record)

    def delete(self, id_: str, olds: Object, urn: str, timeout: float) -> None:
        """Uninstall the release and wait until its objects are gone. One that is gone is fine. Raises Failure."""
        namespace, _, name = id_.rpartition("/")
        seconds = timeout or float(olds.get("timeout") or helm_inputs.DEFAULT_TIMEOUT)
        target = Target(urn, {**olds, "name": name, "namespace": namespace or "default"}, [], seconds)
        record = self._latest(target)
        if record is not None:
            self._uninstall(target, record)
        else:
            # Helm drops its record also when its wait ends too early; what it deleted may still be on its way out.
            self._wait_until_gone(target, objects_named(olds.get("resourceNames")), seconds)

    def _uninstall(self, target: Target, record: Record) -> None:
        progress = Progress(self._cluster.log, target.urn)
        objects = record.objects()
        started = time.monotonic()

        def meanwhile(elapsed: float) -> None:
            if progress.due(elapsed):
                held = helm_wait.going(self._cluster, target.namespace, objects)
                progress.say(elapsed, f"waiting for {held[0]}" if held else "helm is at work")

        wait = [] if target.inputs.get("skipAwait") else _uninstall_wait()
        hooks = ["--no-hooks"] if target.inputs.get("disableWebhooks") else []
        timeout = max(target.timeout, 1.0)
        try:
            with workspace(self._cluster) as space:
                where = ["--namespace", target.namespace, "--timeout", f"{timeout:.0f}s"]
                run(self._cluster, space, ["uninstall", target.name, *where, *wait, *hooks], meanwhile)
        except (HelmFailed, Cancelled) as error:
            if isinstance(error, Cancelled) or self._latest(target) is not None:
                raise Failure(f"{target} is not uninstalled: {error}") from error
            self._wait_until_gone(target, objects, timeout - (time.monotonic() - started))

    def _wait_until_gone(self, target: Target, objects: list[Object], timeout: float) -> None:
        if target.inputs.get("skipAwait"):
            return
        try:
            held = helm_wait.until_gone(self._cluster, target.urn, target.namespace, objects, max(timeout, 0.0))
        except Cancelled as error:
            raise Failure(f"{target} is not uninstalled: {error}") from error
        if held:
            listed = "".join(f"\n  {text}" for text in held[:5])
            raise Failure(f"{target} is uninstalled, but still there after {target.timeout:.0f} s:{listed}")


def _scope(target: Target) -> helm_wait.Scope:
    return helm_wait.Scope(target.urn, target.namespace, bool(target.inputs.get("waitForJobs")))


def _uninstall_wait() -> list[str]:
    return ["--wait", "--cascade", "foreground"]


def _has_post_hooks(chart: Path | None) -> bool:
    """Whether a chart has hooks that run after its objects are made; assumed of charts that are not a folder here."""
    if chart is None or not chart.is_dir() or any(chart.rglob("*.tgz")):
        return True
    return any(
        any(word in path.read_bytes() for word in _POST_HOOKS)
        for path in chart.rglob("*")
        if path.is_file() and path.suffix in (".yaml", ".yml", ".tpl")
    )


def _marks(secrets: list[PropertyPath]) -> list[PropertyPath]:
    # The inputs as a whole are secret, as the Pulumi plugin stores them.
    return [*secrets, ("__inputs",)]


def _state(target: Target, record: Record) -> State:
    outputs = {
        **target.inputs,
        "version": record.chart.get("version"),
        "resourceNames": record.resource_names(),
        "status": {
            "status": record.status,
            "name": record.name,
            "namespace": record.namespace,
            "revision": record.revision,
            "chart": record.chart.get("name"),
            "version": record.chart.get("version"),
            "appVersion": record.chart.get("appVersion"),
        },
        "__inputs": target.inputs,
    }
    return State(f"{record.namespace}/{record.name}", outputs, _marks(target.secrets), target.inputs)
