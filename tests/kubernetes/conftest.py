"""A cluster with three nodes and DNS for the tests of this folder; started once, and made whole again by each test."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from localcloud.kubernetes import addons, cluster
from localcloud.kubernetes.api import Api
from localcloud.kubernetes.specs import NodeSpec, Taint
from localcloud.paths import Instance
from tests.clusters import add_nodes, own_instance
from tests.kubernetes.pods import WEB, eventually, ready, start_web

SPECS = [
    NodeSpec("n1", zone="us-east-1a", instance_type="c7i.large"),
    NodeSpec("n2", zone="us-east-1b", labels={"eks.amazonaws.com/nodegroup": "workers"}),
    NodeSpec(
        "ip-10-1-2-3.ec2.internal",
        labels={"node-role.kubernetes.io/worker": "yes"},
        taints=(Taint("slurm", "true", "NoSchedule"),),
        provider_id="aws:///us-east-1c/i-0123456789abcdef0",
    ),
]


@dataclass
class Cluster:
    """The running cluster."""

    inst: Instance
    api: Api

    @property
    def names(self) -> list[str]:
        return [spec.name for spec in SPECS]

    def web_pods(self) -> list[dict[str, Any]]:
        path = f"/api/v1/namespaces/default/pods?labelSelector=app={WEB}"
        return list(self.api.request("GET", path)["items"])

    def ready_web_pods(self) -> list[dict[str, Any]]:
        """The web servers' pods, once all three are ready."""

        def check() -> list[dict[str, Any]] | None:
            pods = self.web_pods()
            return pods if len(pods) == 3 and all(map(ready, pods)) else None

        return list(eventually(check, "web pods on three nodes"))


@pytest.fixture(scope="package")
def own() -> Iterator[Cluster]:
    """Control plane, three nodes, CoreDNS, and one web server pod on each node."""
    with own_instance() as inst:
        cluster.start_control_plane(inst=inst)
        add_nodes(inst, *SPECS)
        api = cluster.api(inst)
        addons.apply_coredns(inst, api)
        start_web(api)
        yield Cluster(inst, api)
