"""What only the real API server can prove: field ownership, status, eviction, watches, and our roles."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
import yaml
from slurm_operator.kube import rbac
from slurm_operator.kube.auth import Access, StaticToken, load_access
from slurm_operator.kube.client import KubeClient
from slurm_operator.kube.errors import (
    AlreadyExists,
    Conflict,
    EvictionRefused,
    Forbidden,
    Gone,
    Invalid,
    KubeError,
    Unreachable,
)
from slurm_operator.kube.events import EventRecorder
from slurm_operator.kube.informer import Informer
from slurm_operator.kube.objects import resource_version_of
from slurm_operator.kube.resources import (
    CONFIGMAPS,
    EVENTS,
    LEASES,
    NODES,
    PDBS,
    PODS,
    SECRETS,
    SERVICEACCOUNTS,
    SERVICES,
    Key,
    Object,
    Resource,
)

from localcloud.kubernetes import cluster, processes
from localcloud.paths import Instance

pytestmark = pytest.mark.cluster

NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
SPACE = "op-api"


@pytest.fixture
async def real(control_plane: Instance) -> AsyncIterator[KubeClient]:
    async with KubeClient(load_access(control_plane.kubeconfig)) as client:
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}}
        with suppress(AlreadyExists):
            await client.send("create", NAMESPACES, "", "", body=msgspec.json.encode(body))
        # The controller manager makes it a moment later, and pods need it.
        async with asyncio.timeout(20):
            while await client.get(SERVICEACCOUNTS, SPACE, "default") is None:
                await asyncio.sleep(0.05)
        yield client


def config(name: str, **data: str) -> Object:
    return {
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": SPACE}, "data": data,
    }  # fmt: skip


def pod(name: str, **labels: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": SPACE, "labels": labels},
        "spec": {"containers": [{"name": "c", "image": "none"}], "nodeName": "nowhere"},
    }


async def test_apply_owns_its_fields_and_leaves_the_others(real: KubeClient) -> None:
    await real.apply(config("ssa", ours="1", both="a"), "operator")
    await real.patch(CONFIGMAPS, SPACE, "ssa", {"data": {"theirs": "2"}})
    changed = await real.apply(config("ssa", both="a"), "operator")  # `ours` is not wished any more
    assert changed["data"] == {"both": "a", "theirs": "2"}
    again = await real.apply(config("ssa", both="a"), "operator")
    assert resource_version_of(again) == resource_version_of(changed)  # the same apply writes nothing
    with pytest.raises(Conflict, match="both"):
        await real.apply(config("ssa", both="b"), "other", force=False)


async def test_preconditions(real: KubeClient) -> None:
    made = await real.create(config("pre", a="1"))
    with pytest.raises(AlreadyExists):
        await real.create(config("pre"))
    with pytest.raises(Conflict):
        await real.delete(CONFIGMAPS, SPACE, "pre", uid="00000000-0000-0000-0000-000000000000")
    changed = await real.patch(CONFIGMAPS, SPACE, "pre", {"data": {"a": "2"}})
    version = made["metadata"]["resourceVersion"]
    with pytest.raises(Conflict):
        await real.delete(CONFIGMAPS, SPACE, "pre", uid=made["metadata"]["uid"], resource_version=version)
    with pytest.raises(Conflict):
        await real.replace({**changed, "metadata": {**changed["metadata"], "resourceVersion": version}})
    assert await real.delete(CONFIGMAPS, SPACE, "pre", uid=made["metadata"]["uid"]) is not None
    assert await real.delete(CONFIGMAPS, SPACE, "pre") is None
    with pytest.raises(Invalid):
        await real.create(config("Not A Name"))


async def test_status_is_apart_from_the_spec(real: KubeClient) -> None:
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "st", "namespace": SPACE},
        "spec": {"ports": [{"port": 80}]},
    }
    made = await real.apply(service, "operator")
    condition = {
        "type": "Ready", "status": "True", "reason": "R", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    wish = {**service, "spec": {"ports": [{"port": 81}]}, "status": {"conditions": [condition]}}
    after = await real.apply_status(wish, "operator")
    assert after["spec"]["ports"][0]["port"] == 80
    assert after["status"]["conditions"] == [condition]
    assert made["metadata"]["uid"] == after["metadata"]["uid"]


async def test_eviction_honours_the_budget(real: KubeClient) -> None:
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "b", "namespace": SPACE},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"guard": "yes"}}},
    }
    await real.apply(budget, "operator")
    guarded = await real.create(pod("guarded", guard="yes"))
    ready = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    await real.patch(PODS, SPACE, "guarded", ready, content="strategic", subresource="status")
    async with asyncio.timeout(20):
        while (await _budget_generation(real)) < 1:
            await asyncio.sleep(0.05)
    with pytest.raises(EvictionRefused):
        await real.evict(SPACE, "guarded", uid=guarded["metadata"]["uid"])
    assert await real.delete(PDBS, SPACE, "b") is not None
    assert await real.evict(SPACE, "guarded", uid=guarded["metadata"]["uid"], grace_seconds=0)
    assert not await real.evict(SPACE, "absent")


async def _budget_generation(real: KubeClient) -> int:
    budget = await real.get(PDBS, SPACE, "b")
    return int(((budget or {}).get("status") or {}).get("observedGeneration") or 0)


async def test_informer_follows_and_waits_for_own_writes(real: KubeClient) -> None:
    for number in range(25):
        await real.apply(config(f"many-{number}"), "operator")
    informer = Informer(real, CONFIGMAPS, SPACE)
    task = asyncio.create_task(informer.run())
    await asyncio.wait_for(informer.synced.wait(), 10)
    paged = await real.list(CONFIGMAPS, SPACE, limit=7)
    assert len(paged.items) == len(informer) >= 25
    for round_ in range(20):
        written = await real.apply(config("mine", round=str(round_)), "operator")
        informer.note_write(written)
        await informer.caught_up(Key(SPACE, "mine"))
        seen = informer.get(SPACE, "mine")
        assert seen is not None
        assert seen["data"]["round"] == str(round_)
    gone = await real.delete(CONFIGMAPS, SPACE, "mine")
    assert gone is not None
    informer.note_delete(Key(SPACE, "mine"), written["metadata"]["uid"])
    await informer.caught_up(Key(SPACE, "mine"))
    assert informer.get(SPACE, "mine") is None
    assert informer.relists == 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_selector_sees_objects_come_and_go(real: KubeClient) -> None:
    informer = Informer(real, CONFIGMAPS, SPACE, "app=x")
    task = asyncio.create_task(informer.run())
    await asyncio.wait_for(informer.synced.wait(), 10)
    labelled = config("sel")
    labelled["metadata"]["labels"] = {"app": "x"}
    informer.note_write(await real.apply(labelled, "operator"))
    await informer.caught_up(Key(SPACE, "sel"))
    assert informer.get(SPACE, "sel") is not None
    await real.apply(config("sel"), "operator")
    async with asyncio.timeout(5):
        while informer.get(SPACE, "sel") is not None:
            await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_metadata_only_holds_no_data(real: KubeClient) -> None:
    await real.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": SPACE}}, "operator")
    informer = Informer(real, SECRETS, SPACE, metadata_only=True)
    task = asyncio.create_task(informer.run())
    await asyncio.wait_for(informer.synced.wait(), 10)
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "t", "namespace": SPACE}}
    informer.note_write(await real.apply({**secret, "stringData": {"key": "hidden"}}, "operator"))
    await informer.caught_up(Key(SPACE, "t"))
    for name in ("s", "t"):
        seen = informer.get(SPACE, name)
        assert seen is not None
        assert seen["kind"] == "Secret"
        assert "data" not in seen
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_events_are_accepted_and_counted(real: KubeClient) -> None:
    subject = await real.apply(config("told"), "operator")
    now = 0.0
    recorder = EventRecorder(real, "slinky.slurm.net/slurm-operator", "pod-1", clock=lambda: now)
    for _ in range(3):
        recorder.event(subject, "Warning", "Tried", "it did not work")
    await recorder.flush()
    recorder.event(subject, "Warning", "Tried", "it did not work")
    now = 31.0
    await recorder.flush()
    found = [one for one in (await real.list(EVENTS, SPACE)).items if one["regarding"]["name"] == "told"]
    assert len(found) == 1
    assert found[0]["series"]["count"] == 4
    assert found[0]["regarding"]["uid"] == subject["metadata"]["uid"]


async def test_the_generated_roles_are_enough_and_no_more(real: KubeClient, control_plane: Instance) -> None:
    """A service account with exactly the rendered roles: each rule's reads pass, what is not in the table does not."""
    await _grant(real)
    token = await real.send(
        "create", SERVICEACCOUNTS, SPACE, "op", subresource="token",
        body=b'{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{"expirationSeconds":600}}',
    )  # fmt: skip
    admin = load_access(control_plane.kubeconfig)
    kubeconfig = yaml.safe_load(control_plane.kubeconfig.read_text())
    authority = base64.b64decode(kubeconfig["clusters"][0]["cluster"]["certificate-authority-data"]).decode()
    tls = ssl.create_default_context(cadata=authority)
    access = Access(admin.server, tls, StaticToken(msgspec.json.decode(token)["status"]["token"]))
    async with KubeClient(access, guard=True) as limited:
        for resource in (CONFIGMAPS, PODS, SERVICES):
            await limited.list(resource)
        await limited.list(NODES)
        await limited.apply(config("by-role"), "operator")
        assert await limited.get(LEASES, SPACE, "none") is None
    async with KubeClient(access) as unguarded:
        with pytest.raises(Forbidden, match='cannot delete resource "nodes"') as caught:
            await unguarded.delete(NODES, "", "n1")
        assert caught.value.verb == "delete"
        for resource in (LEASES, SECRETS):
            with pytest.raises(Forbidden):
                await unguarded.list(resource)


async def _grant(real: KubeClient) -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "op", "namespace": SPACE}}
    await real.apply(account, "operator")
    for role in yaml.safe_load_all(rbac.render("op", own_namespace=SPACE)):
        kind, name, space = role["kind"], role["metadata"]["name"], role["metadata"].get("namespace", "")
        group = "rbac.authorization.k8s.io"
        roles = Resource(group, "v1", f"{kind.lower()}s", kind, namespaced=bool(space))
        bindings = Resource(group, "v1", f"{kind.lower()}bindings", f"{kind}Binding", namespaced=bool(space))
        binding = {
            "apiVersion": f"{group}/v1",
            "kind": f"{kind}Binding",
            "metadata": role["metadata"],
            "roleRef": {"apiGroup": group, "kind": kind, "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": "op", "namespace": SPACE}],
        }
        for resource, body in ((roles, role), (bindings, binding)):
            await real.send(
                "patch", resource, space, name, body=msgspec.json.encode(body),
                content_type="application/apply-patch+yaml", params={"fieldManager": "t", "force": "true"},
            )  # fmt: skip


async def test_kubeconfig_with_files(control_plane: Instance, tmp_path: Path) -> None:
    config = yaml.safe_load(control_plane.kubeconfig.read_text())
    user, cluster = config["users"][0]["user"], config["clusters"][0]["cluster"]
    for section, name in ((user, "client-certificate"), (user, "client-key"), (cluster, "certificate-authority")):
        (tmp_path / name).write_bytes(base64.b64decode(section.pop(f"{name}-data")))
        section[name] = name
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
    async with KubeClient(load_access(tmp_path / "kubeconfig")) as client:
        assert await client.get(CONFIGMAPS, "kube-system", "none") is None


async def test_informer_survives_the_death_of_the_api_server(real: KubeClient, control_plane: Instance) -> None:
    """And a watch from before it gets 410: the new process has no history."""
    informer = Informer(real, CONFIGMAPS, SPACE)
    task = asyncio.create_task(informer.run())
    await asyncio.wait_for(informer.synced.wait(), 10)
    group = f"{control_plane.cgroup}/apiserver"
    for pid in processes.members(group, "kube-apiserver"):
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(Unreachable):
        await real.create(config("after", a="1"))
    await asyncio.to_thread(cluster.start_control_plane, inst=control_plane)
    await real.apply(config("after", a="2"), "operator")
    async with asyncio.timeout(20):
        while informer.get(SPACE, "after") is None:
            await asyncio.sleep(0.02)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    with pytest.raises(KubeError) as caught:
        async for batch in real.watch(CONFIGMAPS, SPACE, "1", seconds=5):
            for event in batch:
                raise Gone(
                    event.object.get("code") or 0, event.type, "in the stream", verb="watch", target="configmaps"
                )
    assert caught.value.status == 410
