"""What a node may be called, labelled and tainted."""

from __future__ import annotations

import pytest

from localcloud.kubernetes.errors import ClusterError
from localcloud.kubernetes.specs import NodeSpec, Taint


@pytest.mark.parametrize(
    ("text", "taint"),
    [
        ("slurm=true:NoSchedule", Taint("slurm", "true", "NoSchedule")),
        ("nvidia.com/gpu:NoExecute", Taint("nvidia.com/gpu", "", "NoExecute")),
    ],
)
def test_taints_are_read_as_kubectl_writes_them(text: str, taint: Taint) -> None:
    assert Taint.parse(text) == taint


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("slurm=true", "key=value:Effect is expected"),
        (":NoSchedule", "key=value:Effect is expected"),
        ("slurm=true:Never", "'Never' is unknown; allowed are NoSchedule, PreferNoSchedule, NoExecute"),
        ("sl urm=true:NoSchedule", "key 'sl urm' is none"),
    ],
)
def test_a_wrong_taint_is_told_apart(text: str, said: str) -> None:
    with pytest.raises(ClusterError) as caught:
        Taint.parse(text)
    assert said in str(caught.value)


@pytest.mark.parametrize("name", ["", "Node", "a_b", "-a", "a..b", "a" * 64, "../x"])
def test_a_wrong_name_is_refused(name: str) -> None:
    with pytest.raises(ClusterError, match="node name"):
        NodeSpec(name)


def test_a_wrong_label_or_number_of_pods_is_refused() -> None:
    with pytest.raises(ClusterError, match=r"node n1: label a=b c: value 'b c'"):
        NodeSpec("n1", labels={"a": "b c"})
    with pytest.raises(ClusterError, match=r"max_pods=300, allowed are 1 to 250"):
        NodeSpec("n1", max_pods=300)


def test_instance_type_and_zone_become_labels() -> None:
    labels = NodeSpec("n1", instance_type="g6.xlarge", zone="us-west-2b").all_labels()
    assert labels == {
        "node.kubernetes.io/instance-type": "g6.xlarge",
        "topology.kubernetes.io/zone": "us-west-2b",
        "topology.kubernetes.io/region": "us-west-2",
    }


def test_a_kubelet_gets_only_labels_that_it_may_set() -> None:
    allowed = {
        "team": "a",
        "eks.amazonaws.com/nodegroup": "ng",
        "topology.kubernetes.io/zone": "us-east-1a",
        "x.node.kubernetes.io/y": "z",
    }
    forbidden = {"node-role.kubernetes.io/worker": "", "foo.k8s.io/bar": "b", "kubernetes.io/other": "o"}
    assert NodeSpec("n1", labels=allowed | forbidden).kubelet_labels() == allowed


def test_a_specification_survives_the_disk() -> None:
    spec = NodeSpec("n1", {"a": "b"}, (Taint("k", "", "NoExecute"),), "c7i.large", "us-east-1a", "aws:///x/i-1", 29)
    assert NodeSpec.from_json(spec.as_json()) == spec
