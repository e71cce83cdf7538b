"""Short ways to say what the tests are about."""

from __future__ import annotations

from typing import Any

import msgspec
from slurm_operator.api.controller import ControllerSpec
from slurm_operator.api.nodeset import NodeSetSpec
from slurm_operator.desired.parts import Cluster
from slurm_operator.kube.resources import Object
from slurm_operator.slurm.types import NodeInfo


def controller_spec(**fields: Any) -> ControllerSpec:
    return msgspec.convert({"slurmctld": {"image": "ctld:1"}, **fields}, ControllerSpec)


def nodeset_spec(**fields: Any) -> NodeSetSpec:
    return msgspec.convert({"controllerRef": {"name": "lab"}, "slurmd": {"image": "slurmd:1"}, **fields}, NodeSetSpec)


def cluster(**fields: Any) -> Cluster:
    return Cluster("lab", "slurm", controller_spec(**fields))


def owner(kind: str, name: str) -> Object:
    meta = {"name": name, "namespace": "slurm", "uid": f"uid-of-{name}"}
    return {"apiVersion": "slinky.slurm.net/v1beta1", "kind": kind, "metadata": meta}


def node(name: str, *states: str, reason: str = "", features: tuple[str, ...] = ("w",)) -> NodeInfo:
    return NodeInfo(name=name, states=frozenset(states or ("IDLE",)), reason=reason, features=features)
