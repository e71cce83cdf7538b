"""Which Kubernetes nodes get a worker, under which name, and which workers have to go."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from slurm_operator.desired import worker as build
from slurm_operator.desired.placement import fits, judged, pins, places
from slurm_operator.desired.scale import Seen, Wanted, Worker, plan_scale
from slurm_operator.kube.resources import Object
from slurm_operator.slurm.states import PREFIX

from desired.things import cluster, node, nodeset_spec, owner

HOSTNAME = "nodeset.slinky.slurm.net/hostname-override"


def machine(name: str, *taints: tuple[str, str], override: str = "", **labels: str) -> Object:
    notes = {HOSTNAME: override} if override else {}
    listed = [{"key": key, "effect": effect} for key, effect in taints]
    return {"metadata": {"name": name, "labels": labels, "annotations": notes}, "spec": {"taints": listed}}


def required(*expressions: dict[str, Any], **more: Any) -> dict[str, Any]:
    terms = [{"matchExpressions": list(expressions), **more}]
    return {
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    }


def needs(key: str, operator: str, *values: str) -> dict[str, Any]:
    return required({"key": key, "operator": operator, "values": list(values)})


GPU = machine("n1", gpu="8", zone="a")


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        ({}, True),
        ({"nodeName": "n1"}, True),
        ({"nodeName": "n2"}, False),
        ({"nodeSelector": {"zone": "a"}}, True),
        ({"nodeSelector": {"zone": "b"}}, False),
        (needs("zone", "In", "a", "b"), True),
        (needs("zone", "In", "b"), False),
        (needs("none", "NotIn", "b"), True),
        (needs("zone", "NotIn", "a"), False),
        (needs("zone", "Exists"), True),
        (needs("none", "Exists"), False),
        (needs("none", "DoesNotExist"), True),
        (needs("zone", "DoesNotExist"), False),
        (needs("gpu", "Gt", "4"), True),
        (needs("gpu", "Lt", "8"), False),
        (needs("zone", "Gt", "4"), False),
        (needs("zone", "Like", "a"), False),
        (required(matchFields=[{"key": "metadata.name", "operator": "In", "values": ["n1"]}]), True),
        (required(matchFields=[{"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}]), False),
        (required(), False),
    ],
)
def test_selection_is_that_of_kubernetes(pod: dict[str, Any], expected: bool) -> None:
    assert fits(pod, GPU) == (expected, expected)


@pytest.mark.parametrize(
    ("toleration", "effect", "run", "keep"),
    [
        (None, "NoSchedule", False, True),
        (None, "NoExecute", False, False),
        (None, "PreferNoSchedule", True, True),
        ({"operator": "Exists"}, "NoExecute", True, True),
        ({"key": "gpu", "operator": "Exists"}, "NoSchedule", True, True),
        ({"key": "gpu", "value": "x"}, "NoSchedule", False, True),
        ({"key": "gpu"}, "NoSchedule", True, True),
        ({"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}, "NoExecute", False, False),
        ({"key": "other", "operator": "Exists"}, "NoExecute", False, False),
        ({"key": "gpu", "operator": "Gt", "value": "1"}, "NoSchedule", False, True),
    ],
)
def test_taints(toleration: dict[str, Any] | None, effect: str, run: bool, keep: bool) -> None:
    pod = {"tolerations": [toleration] if toleration else []}
    assert fits(pod, machine("n1", ("gpu", effect))) == (run, keep)


def test_a_cordoned_or_troubled_machine_keeps_and_gets_its_worker() -> None:
    """The Go operator never brings back a worker that is lost on a cordoned node (its issue 259)."""
    pod = build.template("gpu", nodeset_spec(scalingMode="DaemonSet"), cluster())["spec"]
    for name in ("unschedulable", "disk-pressure", "memory-pressure", "pid-pressure"):
        assert fits(pod, machine("n1", (f"node.kubernetes.io/{name}", "NoSchedule"))) == (True, True)
    for name in ("not-ready", "unreachable"):
        assert fits(pod, machine("n1", (f"node.kubernetes.io/{name}", "NoExecute"))) == (True, True)
    assert fits(pod, machine("n1", ("node.kubernetes.io/not-ready", "NoSchedule"))) == (False, True)
    number = build.template("gpu", nodeset_spec(), cluster())["spec"]
    assert fits(number, machine("n1", ("node.kubernetes.io/unschedulable", "NoSchedule"))) == (False, True)


def test_names_of_slurm_nodes() -> None:
    machines = [machine("ip-10-0-1-2.ec2.internal"), machine("n2", override="rack1-7")]
    assert places({}, machines, set(), {}).names == {"ip-10-0-1-2.ec2.internal": "ip-10-0-1-2", "n2": "rack1-7"}
    assert places({"hostNetwork": True}, machines, set(), {}).names["n2"] == "n2"


def test_a_name_is_given_once_and_the_others_are_told() -> None:
    machines = [machine("a.x"), machine("a.y"), machine("b"), machine("c", override="B_")]
    found = places({}, machines, {"a.y"}, {"b": "other-b"})
    assert found.names == {"a.y": "a"}
    assert [fault.split(": ")[0] for fault in found.faults] == [
        "Kubernetes node b", "Kubernetes node c", "Kubernetes nodes a.y and a.x would both be Slurm node a",
    ]  # fmt: skip


def test_a_no_schedule_taint_only_keeps_new_workers_away() -> None:
    tainted = [machine("n1", ("x", "NoSchedule")), machine("n2", ("x", "NoSchedule"))]
    assert places({}, tainted, {"n2"}, {}).names == {"n2": "n2"}


def daemon(name: str, on: str, **fields: Any) -> Worker:
    return replace(Worker(name, f"uid-{name}", -1, on, "new", machine=on, since=100.0, created=50.0), **fields)


def why(*workers: Worker, wanted: dict[str, str], known: set[str] | None = None) -> dict[str, str]:
    def node_of(name: str) -> Object | None:
        return machine(name) if known is None or name in known else None

    return {one.name: one.unwanted for one in judged(workers, wanted, node_of) if one.unwanted}


def test_workers_that_are_out_of_place() -> None:
    assert why(daemon("a", "n1"), wanted={"n1": "n1"}) == {}
    assert why(daemon("a", "n1"), wanted={}) == {"a": "Kubernetes node n1 does not match the NodeSet any more"}
    assert why(daemon("a", "n1"), wanted={}, known=set()) == {"a": "Kubernetes node n1 is gone"}
    assert why(daemon("a", "n1"), wanted={"n1": "new"}) == {"a": "Kubernetes node n1 is Slurm node new now"}
    twins = (daemon("young", "n1", created=60.0), daemon("old", "n1"), daemon("away", "n1", placed=False, created=1.0))
    second = "it is the second worker on Kubernetes node n1"
    assert why(*twins, wanted={"n1": "n1"}) == {"young": second, "away": second}


def plan_on(places_: dict[str, str], *workers: Worker, busy: bool = False) -> Any:
    slurm = {one.slurm_name: node(one.slurm_name, "ALLOCATED" if busy else "IDLE") for one in workers}
    wanted = Wanted("slurm", len(places_), "new", places=places_)
    return plan_scale(wanted, Seen(judged(workers, places_, machine), slurm, tuple(slurm), now=200.0))


def test_one_worker_on_each_place() -> None:
    plan = plan_on({"n1": "n1", "n2": "n2"}, daemon("a", "n1"))
    assert plan.place == ("n2",)
    assert plan.create == ()
    assert plan.leaving == ()


def test_a_worker_that_is_out_of_place_is_drained_first() -> None:
    plan = plan_on({"n2": "n2"}, daemon("a", "n1"), daemon("b", "n2"), busy=True)
    assert plan.delete == ()
    assert plan.waiting == ("a",)
    assert plan.drain == {
        "n1": f"{PREFIX}Pod (slurm/a) is pending termination: Kubernetes node n1 does not match the NodeSet any more"
    }


def test_a_machine_and_a_name_are_free_when_the_pod_is_gone() -> None:
    assert plan_on({"n1": "n1"}, daemon("a", "n1", deleting=True)).place == ()
    renamed = daemon("a", "n1", slurm_name="x", deleting=True)
    assert plan_on({"n1": "n1", "n2": "x"}, renamed).place == ()


def test_an_ended_worker_waits_its_time() -> None:
    early = plan_on({"n1": "n1"}, daemon("a", "n1", phase="Ended", ready=False, retry_in=7.0))
    assert (early.delete, early.place, early.recheck) == ((), (), 7.0)
    assert [one.name for one in plan_on({"n1": "n1"}, daemon("a", "n1", phase="Ended", ready=False)).delete] == ["a"]


def test_workers_of_the_other_mode_make_room_in_peace() -> None:
    old = replace(daemon("w-0", "n1"), ordinal=0, slurm_name="w-0", unwanted="its NodeSet is in scalingMode DaemonSet")
    plan = plan_on({"n1": "n1", "n2": "n2"}, old, busy=True)
    assert plan.place == ("n2",)
    assert plan.waiting == ("w-0",)
    back = Wanted("slurm", 1, "new")
    daemon_pod = daemon("a", "n1", unwanted="its NodeSet is in scalingMode StatefulSet")
    plan = plan_scale(back, Seen([daemon_pod], {"n1": node("n1")}, now=200.0))
    assert plan.create == (0,)
    assert plan.leaving == ("a",)


def test_the_pod_of_a_machine() -> None:
    spec = nodeset_spec(scalingMode="DaemonSet", template={"spec": {"hostname": "gpu-", **needs("zone", "Exists")}})
    seat = build.on_machine("gpu", "n1.internal", "n1")
    pod = build.worker(owner("NodeSet", "gpu"), spec, cluster(), seat)
    assert pod["metadata"]["name"] == "gpu-n1"
    assert pod["spec"]["hostname"] == "n1"
    assert pod["metadata"]["labels"]["nodeset.slinky.slurm.net/scaling-mode"] == "DaemonSet"
    assert "nodeset.slinky.slurm.net/pod-index" not in pod["metadata"]["labels"]
    affinity = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert affinity["nodeSelectorTerms"] == [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1.internal"]}]}
    ]
    assert pod["spec"]["affinity"]["podAntiAffinity"]
    long = build.on_machine("gpu", "n1", "x" * 63).pod
    assert len(long) <= 63
    assert long != build.on_machine("gpu", "n1", "x" * 62 + "y").pod


def test_a_pin_comes_on_top_of_the_users_affinity() -> None:
    spec = nodeset_spec(pinToNode=True, template={"spec": needs("zone", "Exists")})
    pod = build.worker(owner("NodeSet", "w"), spec, cluster(), build.numbered("w", spec, 3, "n7"))
    terms = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert terms["nodeSelectorTerms"] == [
        {
            "matchExpressions": [{"key": "zone", "operator": "Exists", "values": []}],
            "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n7"]}],
        }
    ]


def test_pins_are_kept_while_the_machine_exists_and_is_free() -> None:
    here = [replace(daemon("w-1", "n1"), ordinal=1), replace(daemon("w-2", "", placed=False), ordinal=2)]

    def node_of(name: str) -> Object | None:
        return None if name == "gone" else machine(name)

    before = {"0": "n1", "1": "n0", "3": "gone", "4": "n4"}
    assert pins(before, here, node_of, shared=False) == {"1": "n1", "4": "n4"}
    assert pins(before, here, node_of, shared=True) == {"0": "n1", "1": "n1", "4": "n4"}


def test_with_the_hosts_network_a_worker_has_the_machines_name() -> None:
    spec = nodeset_spec(template={"spec": {"hostNetwork": True}})
    pod = build.worker(owner("NodeSet", "w"), spec, cluster(), build.numbered("w", spec, 0))
    assert "hostname" not in pod["spec"]
    assert pod["spec"]["dnsPolicy"] == "ClusterFirstWithHostNet"
    assert "nodeset.slinky.slurm.net/pod-hostname" not in pod["metadata"]["labels"]
