"""What `up` and `down` do beside the rest where the cluster is somebody else's (SLIPWAY_KUBECONFIG)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from localcloud import images, kubectl
from localcloud.aws.eks.compute import CLAIM, is_free
from localcloud.console import Log, UserError
from localcloud.engine import api as engine
from localcloud.engine.operations import Stack
from localcloud.engine.state import Resource
from localcloud.kubernetes import chores, cluster
from localcloud.kubernetes.errors import ClusterError
from localcloud.kubernetes.nodefiles import SHARED_HOME
from localcloud.paths import REPOSITORY, instance

NODES = "/api/v1/nodes"
CRD, CRDS = "CustomResourceDefinition", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
DOCS = "docs/existing-cluster.md"


def check_nodes(say: Log) -> None:
    """Let every free node run a container of one of our images with the shared home directory.

    Raises UserError with each node that cannot, and its reason. Nodes that were claimed have passed before.
    """
    api = cluster.api()
    free = [node["metadata"]["name"] for node in api.request("GET", NODES)["items"] if is_free(node)]
    image = images.local_image("slurmctld")

    def problem(node: str) -> str | None:
        try:
            chores.run(api, node, image, "true", SHARED_HOME)
        except ClusterError as error:
            return str(error)
        return None

    if not free:
        return
    say(f"trying {', '.join(free)}")
    with ThreadPoolExecutor(len(free)) as pool:
        problems = [text for text in pool.map(problem, free) if text]
    if problems:
        raise UserError(
            "nodes of the existing cluster cannot run what is to be deployed:\n"
            + "\n".join(f"  - {text}" for text in problems)
            + f"\nThey must pull images from http://{images.stack_registry() or instance().registry} and have "
            f"{SHARED_HOME}: {DOCS} says how.\nA node that is not to be used: cordon it."
        )


def stand_ins() -> list[str]:
    """Which node of the cluster stands in for which of a node group, one line each."""
    claimed = cluster.api().request("GET", f"{NODES}?labelSelector={CLAIM}")["items"]
    names = {node["metadata"]["labels"][CLAIM]: node["metadata"]["name"] for node in claimed}
    return [f"{name} of the existing cluster stands in for node {wanted}" for wanted, name in sorted(names.items())]


def note_before() -> None:
    """Write down, once, which kinds of resources the cluster had before anything was deployed: those stay."""
    if not _before().exists():
        _before().write_text(
            json.dumps([crd["metadata"]["name"] for crd in cluster.api().request("GET", CRDS)["items"]])
        )


def _before() -> Path:
    return instance().run / "crds-before.json"


def destroy(stack: str, environment: Mapping[str, str]) -> engine.Result:
    """Pulumi's destroy, and after it what that leaves because it vanishes with a cluster: this cluster stays.

    What is left is written down before, so that it is not forgotten where a destroy has to be repeated.
    """
    memory = instance().run / "vanishing.json"
    noted = json.loads(memory.read_text()) if memory.exists() else []
    state = Stack(REPOSITORY, stack, engine.environment(environment)).store.load().live.values()
    noted += [item for item in (*_deleted_with(state), *_kept_crds(state)) if item not in noted]
    memory.write_text(json.dumps(noted))
    result = engine.run("destroy", stack, environment)
    if result.exit_code == 0:
        there = {**environment, "KUBECONFIG": str(cluster.external_kubeconfig())}
        for item in noted:
            if item["kind"] != CRD or not _is_used(item["metadata"]["name"], there):
                kubectl.text(there, "delete", "--ignore-not-found", "-f", "-", stdin=json.dumps(item))
        memory.unlink()
    return result


def _is_used(crd: str, environment: Mapping[str, str]) -> bool:
    """Whether somebody has objects of a kind that would go with its definition."""
    if cluster.api().get(f"{CRDS}/{crd}") is None:
        return False
    return bool(kubectl.text(environment, "get", crd, "--all-namespaces", "--output=name"))


def _deleted_with(state: Iterable[Resource]) -> list[dict[str, Any]]:
    """Objects that are to vanish with another resource: apiVersion, kind, metadata."""
    inputs = [r.inputs for r in state if r.deleted_with and r.type.startswith("kubernetes:")]
    return [_named(i["apiVersion"], i["kind"], i["metadata"]["name"], i["metadata"].get("namespace")) for i in inputs]


def _kept_crds(state: Iterable[Resource]) -> list[dict[str, Any]]:
    """Definitions that releases of the stack brought, and that helm keeps when it uninstalls them."""
    releases = {(r.outputs.get("name"), r.outputs.get("namespace")) for r in state if r.type.endswith(":Release")}
    before = json.loads(_before().read_text()) if _before().exists() else []
    found = []
    for crd in cluster.api().request("GET", CRDS)["items"]:
        notes, name = crd["metadata"].get("annotations") or {}, crd["metadata"]["name"]
        owner = (notes.get("meta.helm.sh/release-name"), notes.get("meta.helm.sh/release-namespace"))
        if owner in releases and name not in before:
            found.append(_named("apiextensions.k8s.io/v1", CRD, name, None))
    return found


def _named(api_version: str, kind: str, name: str, namespace: str | None) -> dict[str, Any]:
    where = {"namespace": namespace} if namespace else {}
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name, **where}}
