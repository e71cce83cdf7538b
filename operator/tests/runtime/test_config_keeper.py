"""What becomes of slurm.conf when a NodeSet cannot be read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from slurm_operator.api.controller import ControllerSpec
from slurm_operator.controllers.cluster_config import ConfigKeeper
from slurm_operator.desired.parts import Cluster
from slurm_operator.kube.resources import Key, Object

KEY = Key("slurm", "lab")
LIVE: Object = {"metadata": {"name": "lab-config", "annotations": {"slipway.dev/config-digest": "installed"}}}


async def test_a_nodeset_that_cannot_be_read_keeps_its_partition() -> None:
    """Slurm ends the jobs of a partition that is no longer in slurm.conf."""
    broken = {
        "metadata": {"name": "gpu", "namespace": "slurm", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"controllerRef": {"name": "lab"}, "replicas": "many", "partition": {"enabled": True}},
    }
    informers = SimpleNamespace(
        configs=SimpleNamespace(get=lambda *_: LIVE), nodesets=SimpleNamespace(by_index=lambda *_: [broken])
    )
    keeper = ConfigKeeper(cast(Any, informers))
    told = await keeper.settle(KEY, {"metadata": {"name": "lab"}}, Cluster("lab", "slurm", ControllerSpec()))
    assert told.hash == "installed"
    assert not told.changed
    assert "NodeSet gpu: spec.replicas" in told.fault
