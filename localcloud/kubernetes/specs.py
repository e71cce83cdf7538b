"""What a node is to be: names, labels, taints. Plain data, checked when made, kept as JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from localcloud.kubernetes.errors import ClusterError

EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_LABEL_NAME = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_NODE_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")

# Labels below kubernetes.io and k8s.io that a kubelet may give its own node (kubelet's --node-labels); others of
# these domains are refused from it, and are set through the API instead.
_KUBELET_LABELS = {
    "kubernetes.io/arch",
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "node.kubernetes.io/instance-type",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
}
_KUBELET_DOMAINS = ("kubelet.kubernetes.io", "node.kubernetes.io")


@dataclass(frozen=True)
class Taint:
    """Keeps pods away that do not tolerate it. effect: one of EFFECTS."""

    key: str
    value: str
    effect: str

    def __post_init__(self) -> None:
        text = f"{self.key}={self.value}:{self.effect}"
        if self.effect not in EFFECTS:
            raise ClusterError(f"taint {text}: effect {self.effect!r} is unknown; allowed are {', '.join(EFFECTS)}")
        _check_label(self.key, self.value, f"taint {text}")

    @staticmethod
    def parse(text: str) -> Taint:
        """From "key=value:Effect" or "key:Effect", as kubectl writes it."""
        front, colon, effect = text.rpartition(":")
        key, _, value = front.partition("=")
        if not colon or not key:
            raise ClusterError(f"taint {text!r}: key=value:Effect is expected, as slurm=true:NoSchedule")
        return Taint(key, value, effect)

    def as_json(self) -> dict[str, str]:
        """As in a Node's spec.taints."""
        return {"key": self.key, "effect": self.effect} | ({"value": self.value} if self.value else {})


@dataclass(frozen=True)
class NodeSpec:
    """One node.

    instance_type, zone ("us-east-1a"): become the well-known labels, and the region with them. They do not change
    what the node can hold: every node reports the processors and memory of this machine.
    provider_id: as "aws:///us-east-1a/i-0123456789abcdef0". max_pods: at most 250 (its pod network has 254 addresses).
    Raises ClusterError that names the wrong value.
    """

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    instance_type: str | None = None
    zone: str | None = None
    provider_id: str | None = None
    max_pods: int = 110

    def __post_init__(self) -> None:
        if not _NODE_NAME.fullmatch(self.name) or len(self.name) > 63:
            raise ClusterError(
                f"node name {self.name!r}: up to 63 lower-case letters, digits, dashes and dots are allowed, as node-1"
            )
        if not 1 <= self.max_pods <= 250:
            raise ClusterError(f"node {self.name}: max_pods={self.max_pods}, allowed are 1 to 250")
        for key, value in self.labels.items():
            _check_label(key, value, f"node {self.name}: label {key}={value}")

    def all_labels(self) -> dict[str, str]:
        """The node's labels, those that follow from instance type and zone included."""
        labels = dict(self.labels)
        if self.instance_type:
            labels.setdefault("node.kubernetes.io/instance-type", self.instance_type)
        if self.zone:
            labels.setdefault("topology.kubernetes.io/zone", self.zone)
            labels.setdefault("topology.kubernetes.io/region", self.zone.rstrip("abcdefghijklmnopqrstuvwxyz"))
        return labels

    def kubelet_labels(self) -> dict[str, str]:
        """Those labels that the kubelet itself may set when it registers the node."""
        return {key: value for key, value in self.all_labels().items() if _kubelet_may_set(key)}

    def as_json(self) -> dict[str, Any]:
        """For the state directory."""
        return {
            "name": self.name,
            "labels": dict(self.labels),
            "taints": [taint.as_json() for taint in self.taints],
            "instanceType": self.instance_type,
            "zone": self.zone,
            "providerId": self.provider_id,
            "maxPods": self.max_pods,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> NodeSpec:
        """The inverse of as_json()."""
        return NodeSpec(
            name=data["name"],
            labels=data["labels"],
            taints=tuple(Taint(taint["key"], taint.get("value", ""), taint["effect"]) for taint in data["taints"]),
            instance_type=data["instanceType"],
            zone=data["zone"],
            provider_id=data["providerId"],
            max_pods=data["maxPods"],
        )


def _check_label(key: str, value: str, where: str) -> None:
    if not _LABEL_NAME.fullmatch(key):
        raise ClusterError(f"{where}: key {key!r} is none; expected [domain/]name of letters, digits, '-', '_' and '.'")
    if not _LABEL_VALUE.fullmatch(value):
        raise ClusterError(
            f"{where}: value {value!r} is none; at most 63 letters, digits, '-', '_' and '.' are allowed"
        )


def _kubelet_may_set(key: str) -> bool:
    domain, slash, _ = key.partition("/")
    if not slash or key in _KUBELET_LABELS:
        return True
    if any(domain == own or domain.endswith("." + own) for own in _KUBELET_DOMAINS):
        return True
    return not any(domain == own or domain.endswith("." + own) for own in ("kubernetes.io", "k8s.io"))
