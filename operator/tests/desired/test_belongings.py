"""Claims, revisions, and what Slurm is told about machines."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from slurm_operator.api.load import InvalidSpec
from slurm_operator.controllers.nodeset_belongings import Retries
from slurm_operator.desired import worker as build
from slurm_operator.desired.claims import claims, owners, unused
from slurm_operator.desired.observe import observe, records, worker_of
from slurm_operator.desired.podinfo import Facts, Shape, facts, podinfo_of
from slurm_operator.desired.revisions import plan_history
from slurm_operator.desired.scale import Seen, Wanted, Worker, plan_scale
from slurm_operator.kube.resources import Object
from slurm_operator.slurm.states import PREFIX
from slurm_operator.slurm.types import NodeInfo

from desired.things import cluster, node, nodeset_spec, owner

NODESET = owner("NodeSet", "w")
DATA = {"metadata": {"name": "data"}, "spec": {"resources": {"requests": {"storage": "1Gi"}}}}


def with_claims(**policy: str) -> Any:
    return nodeset_spec(volumeClaimTemplates=[DATA], persistentVolumeClaimRetentionPolicy=policy)


# --- claims ---


def test_a_worker_has_its_claims_by_name() -> None:
    spec = with_claims()
    (claim,) = claims(NODESET, spec, "lab", "3")
    assert claim["metadata"]["name"] == "data-w-3"
    assert claim["spec"] == DATA["spec"]
    assert "ownerReferences" not in claim["metadata"]
    pod = build.worker(NODESET, spec, cluster(), build.numbered("w", spec, 3))
    assert {"name": "data", "persistentVolumeClaim": {"claimName": "data-w-3"}} in pod["spec"]["volumes"]
    daemon = nodeset_spec(scalingMode="DaemonSet", volumeClaimTemplates=[DATA])
    pod = build.worker(NODESET, daemon, cluster(), build.on_machine("w", "n1.x", "n1"))
    assert {"name": "data", "persistentVolumeClaim": {"claimName": "data-w-n1"}} in pod["spec"]["volumes"]


@pytest.mark.parametrize("templates", [[{"spec": {}}], [DATA, DATA]])
def test_a_claim_template_needs_a_name_of_its_own(templates: list[Any]) -> None:
    with pytest.raises(InvalidSpec, match=r"spec\.volumeClaimTemplates\[\d\]\.metadata\.name"):
        claims(NODESET, nodeset_spec(volumeClaimTemplates=templates), "lab", "0")


def test_when_deleted_is_an_owner_reference_and_nothing_else_is() -> None:
    somebody = {"uid": "x", "kind": "Backup", "name": "b"}
    keep, drop = with_claims(), with_claims(whenDeleted="Delete")
    owned = owners([somebody], NODESET, drop)
    assert [one["uid"] for one in owned] == ["x", "uid-of-w"]
    assert owners(owned, NODESET, drop) == owned
    assert owners(owned, NODESET, keep) == [somebody]


def test_when_scaled_gives_up_claims_without_a_worker() -> None:
    present = [{"metadata": {"name": name}} for name in ("data-w-0", "data-w-1", "other-w-1", "data-v-1")]
    assert unused(present, "w", with_claims(), {"0"}) == []
    gone = unused(present, "w", with_claims(whenScaled="Delete"), {"0"})
    assert [claim["metadata"]["name"] for claim in gone] == ["data-w-1"]


# --- revisions ---


def rev(**fields: Any) -> str:
    return build.revision("w", nodeset_spec(**fields), cluster())


def test_only_what_changes_a_worker_is_a_new_revision() -> None:
    def labelled(**labels: str) -> str:
        return rev(template={"metadata": {"labels": labels}})

    chart = {"helm.sh/chart": "slurm-1.2.1", "app.kubernetes.io/version": "26.05"}
    assert rev() == rev(replicas=9, minReadySeconds=3, pinToNode=True) == labelled(**chart)
    assert labelled(team="a") != rev()
    assert rev(extraConf="Weight=2") != rev()
    assert rev(slurmd={"image": "slurmd:2"}) != rev()
    assert rev(ordinalPadding=3) != rev()
    assert rev(ssh={"enabled": True}) != rev()
    users = [
        rev(slurmd={"image": "x", "securityContext": security}) for security in ({}, {"runAsUser": 0}, {"runAsUser": 1})
    ]
    assert len(set(users)) == 3


def history(present: dict[str, int], current: str, *used: str, limit: int = 0) -> Any:
    objects = [
        {"metadata": {"name": name, "labels": {"controller-revision-hash": name}}, "revision": number}
        for name, number in present.items()
    ]
    return plan_history(NODESET, nodeset_spec(revisionHistoryLimit=limit), current, objects, used)


def test_revision_history() -> None:
    first = history({}, "a")
    assert first.create["metadata"]["name"] == "w-a"
    assert (first.create["revision"], first.renumber, first.delete) == (1, None, [])
    assert history({"a": 1}, "a") == type(first)()  # nothing to do, every pass
    assert history({"a": 1, "b": 2}, "a").renumber[1] == 3  # a way back
    gone = history({"a": 1, "b": 2, "c": 3, "d": 4}, "e", "d", limit=1)
    assert [one["metadata"]["name"] for one in gone.delete] == ["a", "b"]
    assert gone.create["revision"] == 5


# --- what Slurm is told ---

TOPOLOGY, FEATURES = "topology.slinky.slurm.net/spec", "features.slinky.slurm.net/spec"


def told(
    info: NodeInfo, notes: dict[str, str] | None = None, pod: dict[str, str] | None = None, **fields: Any
) -> Facts:
    one = replace(Worker("w-0", "u", 0, info.name, "new", machine="n1"), **fields)
    machine: Object = {"metadata": {"name": "n1", "annotations": notes or {}}}
    return facts(NODESET, [one], {info.name: info}, lambda _: machine, lambda _: {"metadata": {"annotations": pod}})


def comment(machine: str = "n1") -> str:
    info = {"namespace": "slurm", "podName": "w-0", "node": machine, "nodeSetName": "w", "nodeSetUID": "uid-of-w"}
    return json.dumps(info, separators=(",", ":"))


def slurm_node(*states: str, reason: str = "", **fields: Any) -> NodeInfo:
    usual: dict[str, Any] = {"features": ("w",), **fields}
    return NodeInfo(name="w-0", states=frozenset(states or ("IDLE",)), reason=reason, **usual)


def test_the_comment_is_written_once_and_a_persons_stays() -> None:
    assert told(slurm_node()).comments == {"w-0": comment()}
    assert told(slurm_node(comment=comment())) == Facts({}, {})
    assert told(slurm_node(comment=comment("n2"))).comments == {"w-0": comment()}
    assert told(slurm_node(comment="ask Eve first")).comments == {}
    assert told(slurm_node(), placed=False).comments == {}


def test_a_worker_that_moved_is_not_down_for_its_old_machine() -> None:
    moved = slurm_node("DOWN", comment=comment("n2"), reason=f"{PREFIX}Pod is terminating")
    assert told(moved).revive == ("w-0",)
    assert told(moved, ready=False).revive == ()
    assert told(slurm_node("DOWN", comment=comment("n2"), reason="bad dimm")).revive == ()
    assert told(slurm_node("DOWN", "DRAIN", comment=comment("n2"), reason="bad dimm")).revive == ()


def test_topology_and_features_follow_the_machine() -> None:
    info = slurm_node(
        comment=comment(),
        features=("w", "k8s/old", "nvlink"),
        active_features=("w", "k8s/old"),
        topology="topo:b2,tree:leaf1",
    )
    wish = {TOPOLOGY: "tree:leaf2,topo:b2", FEATURES: "nvme, rack1"}
    assert told(info, wish).shape == {
        "w-0": Shape("tree:leaf2,topo:b2", ("w", "nvlink", "k8s/nvme", "k8s/rack1"), ("w", "k8s/nvme", "k8s/rack1"))
    }
    assert told(info, {TOPOLOGY: "tree:leaf1,topo:b2", FEATURES: "old"}).shape == {}
    assert told(info, {}).shape == {
        "w-0": Shape(None, ("w", "nvlink"), ("w",))
    }  # no annotation: topology is others' affair
    assert told(slurm_node(comment=comment()), {}, {TOPOLOGY: "tree:leaf3"}).shape == {"w-0": Shape("tree:leaf3")}


def test_a_worker_that_slurm_is_to_be_told_of_registers_drained() -> None:
    spec = nodeset_spec()
    seat = replace(build.numbered("w", spec, 0), drained=True)
    (slurmd,) = build.worker(NODESET, spec, cluster(), seat)["spec"]["containers"]
    assert slurmd["args"][-1] == f"'Features=w State=DRAIN Reason=\"{PREFIX}Pod is starting\"'"
    ready = Worker("w-0", "u", 0, "w-0", "new")
    drained = {"w-0": node("w-0", "IDLE", "DRAIN", reason=f"{PREFIX}Pod is starting")}
    assert plan_scale(Wanted("slurm", 1, "new"), Seen([ready], drained)).undrain == ("w-0",)


# --- records ---


def test_whose_record_it_is() -> None:
    def mine(info: NodeInfo, **fields: Any) -> bool:
        return info.name in records(NODESET, nodeset_spec(**fields), {info.name: info})

    other = comment().replace('"nodeSetName":"w"', '"nodeSetName":"v"')
    assert mine(replace_node(name="anything", comment=comment()))
    assert not mine(replace_node(name="w-0", comment=other))
    assert mine(replace_node(name="w-0"))
    left = {"states": frozenset({"DOWN", "DYNAMIC_NORM"}), "reason": f"{PREFIX}Pod is terminating"}
    assert not mine(replace_node(name="n1", **left))
    assert mine(replace_node(name="n1", **left), scalingMode="DaemonSet")
    assert not mine(replace_node(name="n1", **left, features=("x", "w")), scalingMode="DaemonSet")
    assert not mine(replace_node(name="n1", states=left["states"]), scalingMode="DaemonSet")


def replace_node(**fields: Any) -> NodeInfo:
    return NodeInfo(**{"features": ("w",), **fields})


@pytest.mark.parametrize(("prune", "forgotten"), [("Never", ()), ("NodeNotFound", ("w-0",))])
def test_an_administrators_drain_outlives_the_machine_unless_told_otherwise(prune: str, forgotten: tuple[str]) -> None:
    info = {"w-0": slurm_node("DOWN", "DRAIN", reason="bad dimm", comment=comment())}
    spec = nodeset_spec(pruneSlurmNodeRecords=prune)
    there = observe(NODESET, spec, [], lambda name: {"metadata": {"name": name}}, info, 0.0)
    assert plan_scale(Wanted("slurm", 0, "new"), there).forget == ()
    gone = observe(NODESET, spec, [], lambda name: None, info, 0.0)
    assert plan_scale(Wanted("slurm", 0, "new"), gone).forget == forgotten


@pytest.mark.parametrize(
    ("note", "states", "forgotten"),
    [
        (comment(), ("IDLE",), ("w-0",)),
        ("", ("IDLE",), ()),
        ("", ("DOWN",), ("w-0",)),
        (comment(), ("ALLOCATED",), ()),
    ],
)
def test_a_record_whose_pod_is_gone_is_not_believed(note: str, states: tuple[str], forgotten: tuple[str]) -> None:
    """Slurm would send jobs to a machine that is gone until SlurmdTimeout."""
    info = {"w-0": slurm_node(*states, comment=note)}
    seen = observe(NODESET, nodeset_spec(), [], lambda name: None, info, 0.0)
    assert plan_scale(Wanted("slurm", 0, "new"), seen).forget == forgotten


def test_podinfo_is_what_the_go_operator_writes() -> None:
    found = podinfo_of(comment())
    assert found is not None
    assert (found.pod_name, found.node, found.node_set_uid) == ("w-0", "n1", "uid-of-w")
    assert podinfo_of("words") is None
    assert podinfo_of("{}") is None


# --- workers as observed ---


def test_workers_of_both_modes_are_read_from_their_labels() -> None:
    def seen(mode: str, labels: dict[str, str], **pod: Any) -> Worker:
        meta = {"name": "p", "namespace": "slurm", "uid": "u", "labels": labels, "annotations": pod.pop("notes", {})}
        spec = nodeset_spec(scalingMode=mode)
        return worker_of({"metadata": meta, **pod}, spec, lambda _: None, 0.0)

    # The words of the Go operator: each takes over the workers of the other by them.
    mode, index = "nodeset.slinky.slurm.net/scaling-mode", "nodeset.slinky.slurm.net/pod-index"
    host = "nodeset.slinky.slurm.net/pod-hostname"
    daemon = seen("DaemonSet", {mode: "DaemonSet", host: "n1"}, spec={"nodeName": "n1.x"})
    assert (daemon.ordinal, daemon.slurm_name, daemon.machine, daemon.unwanted) == (-1, "n1", "n1.x", "")
    old = seen("DaemonSet", {index: "4", host: "w-4"}, spec={"nodeName": "n1"})
    assert old.unwanted == "its NodeSet is in scalingMode DaemonSet now"
    shared = seen("StatefulSet", {mode: "StatefulSet", index: "4"}, spec={"nodeName": "n1.x"})
    assert shared.slurm_name == "n1"
    pinned = seen("StatefulSet", {index: "4"}, notes={"slipway.dev/kubernetes-node": "gone"})
    assert (pinned.placed, pinned.machine) == (False, "gone")
    assert "is gone" in pinned.unwanted
    # Never left out: Slurm decides whether it may go.
    assert seen("StatefulSet", {}).unwanted == "its name has no number"


def test_ended_workers_are_replaced_ever_more_slowly() -> None:
    retries = Retries()
    waits, now = [], 1e6
    for number in range(12):
        waits.append(retries.wait("set", "pod", f"uid{number}", now))
        assert retries.wait("set", "pod", f"uid{number}", now + waits[-1]) == 0
        now += waits[-1] + 1
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 900, 900]
    assert retries.wait("set", "other", "uid", now) == 1
    assert retries.wait("set", "pod", "much later", now + 3600) == 1
