"""Before an uninstall our finalizers go, and nobody else's."""

from __future__ import annotations

from slurm_operator.api.names import FINALIZER
from slurm_operator.kube.auth import Access
from slurm_operator.kube.client import KubeClient
from slurm_operator.kube.resources import NODESETS
from slurm_operator.release import let_go
from support.faulty_apiserver import FaultyApiServer

COLLECTION = "apis/slinky.slurm.net/v1beta1"


async def test_our_finalizers_go_and_others_stay(api: FaultyApiServer) -> None:
    await api.put(f"{COLLECTION}/nodesets", "a", metadata={"finalizers": ["others.example/x", FINALIZER]})
    await api.put(f"{COLLECTION}/nodesets", "b", metadata={"finalizers": [FINALIZER]})
    async with KubeClient(Access(api.url, namespace="ns")) as kube:
        assert await let_go(kube, ("ns",)) == 2
        left = {name: await kube.get(NODESETS, "ns", name) for name in ("a", "b")}
        assert left["a"] is not None and left["a"]["metadata"]["finalizers"] == ["others.example/x"]
        assert left["b"] is not None and not left["b"]["metadata"].get("finalizers")
        assert await let_go(kube, ("ns",)) == 0
