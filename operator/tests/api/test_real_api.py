"""The CRDs on a real API server: accepted, and refusing what they should."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from typing import Any

import pytest
import yaml
from slurm_operator.api.crd import render_all
from slurm_operator.kube.auth import load_access
from slurm_operator.kube.client import KubeClient
from slurm_operator.kube.errors import Invalid, NotFound
from slurm_operator.kube.resources import Object, resource_of
from support.commands import Commands

from localcloud.paths import Instance

pytestmark = pytest.mark.cluster

REF = {"controllerRef": {"name": "lab"}}


@pytest.fixture(scope="module")
def crds(control_plane: Instance) -> Instance:
    """The control plane with our CRDs."""
    commands = Commands(control_plane)
    commands.kubectl("apply", "--server-side", "-f", "-", stdin=render_all())
    names = [document["metadata"]["name"] for document in yaml.safe_load_all(render_all())]
    commands.kubectl("wait", "--for=condition=Established", "--timeout=30s", *(f"crd/{name}" for name in names))
    for found in commands.get("crd")["items"]:
        conditions = {one["type"]: one["status"] for one in found["status"]["conditions"]}
        assert conditions.get("NonStructuralSchema", "False") == "False", found["metadata"]["name"]
    return control_plane


@pytest.fixture
async def client(crds: Instance) -> AsyncIterator[KubeClient]:
    async with KubeClient(load_access(crds.kubeconfig)) as kube:
        yield kube


def thing(kind: str, spec: dict[str, Any], name: str = "x") -> Object:
    meta = {"name": name, "namespace": "default"}
    return {"apiVersion": "slinky.slurm.net/v1beta1", "kind": kind, "metadata": meta, "spec": spec}


@pytest.mark.parametrize(
    ("kind", "spec", "says"),
    [
        ("NodeSet", {}, "controllerRef"),
        ("NodeSet", {**REF, "replicas": -1}, "spec.replicas"),
        ("NodeSet", {**REF, "scalingMode": "Deployment"}, "spec.scalingMode"),
        ("NodeSet", {**REF, "partition": {"config": "a\nb"}}, "spec.partition.config"),
        ("NodeSet", {**REF, "updateStrategy": {"type": "ScheduledUpdate"}}, "startTime must be set"),
        ("Controller", {"external": True}, "externalConfig must be set"),
        ("Controller", {"clusterName": "x" * 41}, "clusterName"),
        ("Controller", {"ha": {"enabled": True}}, "ha.enabled needs persistence.existingClaim"),
        ("Token", {}, "jwtKeyRef or jwtHs256KeyRef must be set"),
    ],
)
async def test_refused(client: KubeClient, kind: str, spec: dict[str, Any], says: str) -> None:
    with pytest.raises(Invalid, match=says):
        await client.create(thing(kind, spec))


async def test_a_name_that_is_too_long_for_what_is_made_from_it(client: KubeClient) -> None:
    with pytest.raises(Invalid, match="40 characters at most"):
        await client.create(thing("Controller", {}, "c" * 41))


@pytest.mark.parametrize(
    ("kind", "spec", "change", "says"),
    [
        ("NodeSet", REF, {"controllerRef": {"name": "other"}}, "controllerRef cannot be changed"),
        ("Controller", {"clusterName": "a"}, {"clusterName": "b"}, "clusterName cannot be changed"),
        ("Controller", {}, {"persistence": {"enabled": False}}, "persistence.enabled cannot be changed"),
        ("Controller", {}, {"persistence": {"enabled": True}, "extraConf": "KillWait=9"}, None),
        (
            "Controller",
            {"persistence": {"enabled": True}},
            {"persistence": {"enabled": False}},
            r"persistence\.enabled cannot",
        ),
        ("Controller", {"persistence": {}}, {"persistence": {"existingClaim": "x"}}, "existingClaim cannot be changed"),
    ],
)
async def test_what_cannot_be_changed(
    client: KubeClient, kind: str, spec: dict[str, Any], change: dict[str, Any], says: str | None
) -> None:
    made = await client.create(thing(kind, copy.deepcopy(spec), "fixed"))
    resource = resource_of(made)
    try:
        if says is None:
            await client.patch(resource, "default", "fixed", {"spec": change})
        else:
            with pytest.raises(Invalid, match=says):
                await client.patch(resource, "default", "fixed", {"spec": change})
    finally:
        await client.delete(resource, "default", "fixed")


async def test_any_pod_or_container_field_is_kept(client: KubeClient) -> None:
    spec = {
        **REF,
        "slurmd": {"image": "x", "securityContext": {"privileged": True}, "futureField": {"a": [1]}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"runtimeClassName": "nvidia", "hostname": "gpu-"}},
        "volumeClaimTemplates": [{"metadata": {"name": "scratch"}, "spec": {"accessModes": ["ReadWriteOnce"]}}],
        "updateStrategy": {"rollingUpdate": {"maxUnavailable": 2}},
    }
    made = await client.create(thing("NodeSet", copy.deepcopy(spec), "kept"))
    try:
        assert {name: made["spec"][name] for name in spec} == spec
        assert made["spec"]["replicas"] == 1
        scale = await client.patch(resource_of(made), "default", "kept", {"spec": {"replicas": 7}}, subresource="scale")
        assert scale["spec"]["replicas"] == 7
    finally:
        await client.delete(resource_of(made), "default", "kept")


async def test_a_status_is_a_subresource(client: KubeClient) -> None:
    made = await client.create(thing("RestApi", REF, "sub") | {"status": {"conditions": []}})
    try:
        assert "status" not in made
        with pytest.raises((Invalid, NotFound)):
            await client.patch(resource_of(made), "default", "nobody", {"status": {}}, subresource="status")
    finally:
        await client.delete(resource_of(made), "default", "sub")
