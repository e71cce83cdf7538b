"""The nodes of an instance: which there are, and what can be done to them."""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from localcloud.kubernetes import cgroups, processes
from localcloud.kubernetes import node as machine
from localcloud.kubernetes.api import MERGE, Api, ApiError, Unreachable
from localcloud.kubernetes.commands import run
from localcloud.kubernetes.errors import ClusterError, Log
from localcloud.kubernetes.locks import hold
from localcloud.kubernetes.nodefiles import Node
from localcloud.kubernetes.specs import NodeSpec
from localcloud.paths import Instance

MAX_NODES = 200


def known(inst: Instance) -> list[Node]:
    """All nodes that have been added, by their number."""
    found = [_read(inst, file) for file in (inst.state / "nodes").glob("[!.]*/spec.json")]
    return sorted(found, key=lambda node: node.index)


def find(inst: Instance, name: str) -> Node:
    """A node that has been added. Raises ClusterError with the names of those that have."""
    file = inst.state / "nodes" / name / "spec.json"
    if "/" in name or not file.exists():
        names = ", ".join(sorted(node.name for node in known(inst))) or "none"
        raise ClusterError(f"there is no node {name!r}; there is: {names}")
    return _read(inst, file)


def _read(inst: Instance, file: Path) -> Node:
    try:
        data = json.loads(file.read_text())
        return Node(inst, NodeSpec.from_json(data["spec"]), data["index"], data["stopped"])
    except (ValueError, KeyError, TypeError) as error:
        raise ClusterError(
            f"{file} cannot be read ({error!r}). Next: remove the node's directory and add it again"
        ) from None


def _write(node: Node) -> None:
    file = node.home / "spec.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    scratch = file.with_suffix(".new")
    scratch.write_text(
        json.dumps({"spec": node.spec.as_json(), "index": node.index, "stopped": node.stopped}, indent=1)
    )
    scratch.replace(file)


def _lock(inst: Instance, name: str) -> Path:
    return inst.run / f"node-{name}.lock"


def add(inst: Instance, spec: NodeSpec, bin_dir: Path, api: Api, log: Log) -> None:
    """Add a node, or make an existing one what `spec` says; starts what does not run of it."""
    with hold(_lock(inst, spec.name), log=log, what=f"node {spec.name}"):
        before, node = _remember(inst, spec)
        if before and _registration(before) != _registration(spec):
            # What a kubelet tells at registration cannot be changed later: a new machine of that name.
            machine.kill(node)
            _forget(api, node)
        machine.start(node, bin_dir, log)
        _label(api, node, before)
    machine.route_services(inst, known(inst))


def _registration(spec: NodeSpec) -> tuple[str | None, str | None, str | None]:
    return (spec.provider_id, spec.instance_type, spec.zone)


def _remember(inst: Instance, spec: NodeSpec) -> tuple[NodeSpec | None, Node]:
    """Store the specification; returns the one before, if any. A new node gets the lowest free number."""
    with hold(inst.run / "nodes.lock"):
        nodes = known(inst)
        before = next((node for node in nodes if node.name == spec.name), None)
        if before:
            node = replace(before, spec=spec, stopped=False)
        else:
            used = {node.index for node in nodes}
            index = next((number for number in range(1, MAX_NODES + 1) if number not in used), None)
            if index is None:
                raise ClusterError(f"node {spec.name}: there are {MAX_NODES} nodes already, and addresses for no more")
            node = Node(inst, spec, index)
        _write(node)
        return (before.spec if before else None), node


def start(inst: Instance, name: str, bin_dir: Path, log: Log) -> None:
    """Start what does not run of a known node."""
    with hold(_lock(inst, name), log=log, what=f"node {name}"):
        node = find(inst, name)
        if node.stopped:
            node = replace(node, stopped=False)
            _write(node)
        machine.start(node, bin_dir, log)
    machine.route_services(inst, known(inst))


def start_all(inst: Instance, bin_dir: Path, log: Log) -> list[str]:
    """Start what does not run of all nodes that are not switched off, side by side; returns their names."""
    names = [node.name for node in known(inst) if not node.stopped]
    if names:
        with ThreadPoolExecutor(len(names)) as pool:
            for result in [pool.submit(start, inst, name, bin_dir, log) for name in names]:
                result.result()
    return names


def stop(inst: Instance, name: str, log: Log) -> None:
    """Switch a node off: it stays off until it is started or added again."""
    with hold(_lock(inst, name), log=log, what=f"node {name}"):
        node = replace(find(inst, name), stopped=True)
        _write(node)
        machine.kill(node)
    machine.route_services(inst, known(inst))


def kill(inst: Instance, name: str) -> None:
    """End everything in a node at once, as a power failure would; the next start brings it back."""
    machine.kill(find(inst, name))
    machine.route_services(inst, known(inst))


def remove(inst: Instance, name: str, api: Api, log: Log) -> None:
    """End a node and remove it with its data, its Node object and its pods; no error if there is none."""
    with hold(_lock(inst, name), log=log, what=f"node {name}"):
        if not (inst.state / "nodes" / name / "spec.json").exists():
            return
        node = find(inst, name)
        machine.kill(node)
        _forget(api, node)
        # The specification goes last, so that a removal that was interrupted can be repeated.
        run(["rm", "-rf", node.home / "var"])
        run(["rm", "-rf", node.home])
        for suffix in ("crt", "key", "kubeconfig"):
            (inst.state / "pki" / f"node-{name}.{suffix}").unlink(missing_ok=True)
    machine.route_services(inst, known(inst))


def _forget(api: Api, node: Node) -> None:
    """Delete the Node object, and the pods of a machine that is gone for certain: nobody else would end them soon."""
    api.delete(f"/api/v1/nodes/{node.name}")
    pods = api.request("GET", f"/api/v1/pods?fieldSelector=spec.nodeName={node.name}")
    for pod in pods["items"]:
        meta = pod["metadata"]
        api.delete(f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}?gracePeriodSeconds=0")


def _label(api: Api, node: Node, before: NodeSpec | None) -> None:
    """Bring labels and taints of the Node object to what the specification says; others' are left alone.

    A kubelet sets them at registration only, and labels of Kubernetes' own domains not at all. Labels and taints
    that an earlier specification asked for, and this one does not, are removed.
    """
    path = f"/api/v1/nodes/{node.name}"
    end = time.monotonic() + 30
    while (obj := api.get(path)) is None:
        if time.monotonic() > end or not cgroups.pids(f"{node.group}/kubelet"):
            said = processes.last_words(node.log("kubelet"))
            raise ClusterError(f"node {node.name} did not register. The end of {node.log('kubelet')}:\n{said}")
        time.sleep(0.05)
    patch = label_patch(obj, node.spec, before)
    if patch:
        api.request("PATCH", path, patch, MERGE)


def label_patch(obj: Mapping[str, Any], spec: NodeSpec, before: NodeSpec | None) -> dict[str, Any]:
    """The merge patch that turns a Node object into what `spec` says; empty if it is that already."""
    patch: dict[str, Any] = {}
    have, want = obj["metadata"].get("labels", {}), spec.all_labels()
    gone = set(before.all_labels()) - set(want) if before else set()
    labels: dict[str, str | None] = {key: value for key, value in want.items() if have.get(key) != value}
    labels |= {key: None for key in gone if key in have}
    if labels:
        patch["metadata"] = {"labels": labels}
    taints: list[dict[str, str]] = obj["spec"].get("taints", [])
    dropped = {(t.key, t.effect) for t in (before.taints if before else ())} | {(t.key, t.effect) for t in spec.taints}
    target = [t for t in taints if (t["key"], t["effect"]) not in dropped] + [t.as_json() for t in spec.taints]
    if sorted(map(_taint_key, taints)) != sorted(map(_taint_key, target)):
        patch["spec"] = {"taints": target}
    return patch


def _taint_key(taint: Mapping[str, str]) -> tuple[str, str, str]:
    return (taint["key"], taint.get("value", ""), taint["effect"])


def wait_ready(inst: Instance | None, names: Iterable[str], api: Api, seconds: float) -> None:
    """Wait until the nodes are Ready, by a report that their present kubelet made.

    A node that died and came back counts as Ready in the API for 16 s more; that is not taken for an answer.
    inst: None for nodes of an existing cluster. Raises ClusterError that says what is wrong with which node.
    """
    waiting = list(names)
    end = time.monotonic() + seconds
    while waiting:
        try:
            objects = {obj["metadata"]["name"]: obj for obj in api.request("GET", "/api/v1/nodes")["items"]}
        except Unreachable:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
            continue
        reasons = {name: _why_not_ready(inst, name, objects.get(name)) for name in waiting}
        waiting = [name for name, reason in reasons.items() if reason]
        if waiting and time.monotonic() > end:
            details = "; ".join(f"{name}: {reasons[name]}" for name in waiting)
            raise ClusterError(f"not ready after {seconds:.0f} s: {details}")
        if waiting:
            time.sleep(0.05)


def _why_not_ready(inst: Instance | None, name: str, obj: Mapping[str, Any] | None) -> str | None:
    since = 0.0
    if inst is not None:
        node = find(inst, name)
        kubelet = next((pid for pid in _kubelets(node)), None)
        if kubelet is None:
            return f"its kubelet does not run (its log is {node.log('kubelet')})"
        since = processes.started_at(kubelet) or 0.0
    if obj is None:
        return "it has not registered"
    return not_ready(obj, since)


def _kubelets(node: Node) -> list[int]:
    first = machine.first_process(node)
    if first is None:
        return []
    return processes.members(f"{node.group}/kubelet", "kubelet")


def not_ready(obj: Mapping[str, Any], since: float) -> str | None:
    """Why a Node object is not Ready by a report made after `since` (seconds of the epoch); None if it is."""
    conditions = obj.get("status", {}).get("conditions", [])
    ready = next((condition for condition in conditions if condition["type"] == "Ready"), None)
    if ready is None:
        return "its kubelet has not reported"
    heard = datetime.datetime.fromisoformat(ready["lastHeartbeatTime"]).timestamp()
    if heard < int(since):  # the report has whole seconds
        return "its kubelet has not reported since it started"
    return None if ready["status"] == "True" else str(ready.get("message") or ready.get("reason"))


def cordon(name: str, api: Api, unschedulable: bool = True) -> None:
    """Keep new pods from a node (or, with False, let them in again). Raises ClusterError if there is no such node."""
    try:
        api.request("PATCH", f"/api/v1/nodes/{name}", {"spec": {"unschedulable": unschedulable}}, MERGE)
    except ApiError as error:
        if error.status == 404:
            raise ClusterError(f"there is no node {name!r} in the cluster") from None
        raise


def drain(name: str, kubeconfig: Path, bin_dir: Path, seconds: int) -> None:
    """Cordon a node and evict its pods, except those of DaemonSets; waits until they are gone.

    Raises ClusterError if some are not after `seconds`, for example because of a PodDisruptionBudget.
    """
    options = ["--ignore-daemonsets", "--delete-emptydir-data", "--force", f"--timeout={seconds}s"]
    run([bin_dir / "kubectl", f"--kubeconfig={kubeconfig}", "drain", name, *options], timeout=seconds + 30)
