"""Whatever happens, in whatever order, no job is lost by the operator, and when it is over everything converges.

Hypothesis plays people, machines and faults against the real operator over models of Kubernetes and Slurm. After each
step: no pod was deleted with a job in it, no administrator's drain was lost, no exception was unexpected. At the end
of each life all faults are healed, and within CONVERGE_SECONDS everything is as it was asked for.

SLIPWAY_FAULT_STEPS=100000 makes it run as many steps, others each time.
"""

from __future__ import annotations

import asyncio
import copy
import os
import random
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from slurm_operator.kube.resources import NODES, NODESETS, RESTAPIS, Object

from tests.faults.clock import virtual_time
from tests.faults.wires import KUBE_FAULTS, SLURM_FAULTS
from tests.faults.world import SPACE, World, slurm_name

LONG = "SLIPWAY_FAULT_STEPS" in os.environ
STEPS = int(os.environ.get("SLIPWAY_FAULT_STEPS", "10000"))
STEPS_A_LIFE = 50
MACHINES = 6
CONVERGE_SECONDS = 30.0
OURS = "slurm-operator: "


def nodeset(replicas: int, **spec: Any) -> Object:
    wish = {"controllerRef": {"name": "lab"}, "replicas": replicas, "slurmd": {"image": "slurmd:1"}, **spec}
    return {"metadata": {"name": "w"}, "spec": wish}


class Life(RuleBasedStateMachine):
    """One operator, one NodeSet, and everything that may happen to them."""

    def __init__(self) -> None:
        super().__init__()
        random.seed(7)
        self._time = virtual_time()
        clock, self.loop = self._time.__enter__()
        self.world = World(clock)
        self.steps = 0

    @initialize(replicas=st.integers(0, 4))
    def begin(self, replicas: int) -> None:
        self._do(self.world.begin(MACHINES, nodeset(replicas)))
        self._wait(15)

    def teardown(self) -> None:
        try:
            if self.world.operator is not None and self.steps:
                self._heal_and_converge()
        finally:
            self._do(self.world.end())
            self._time.__exit__(None, None, None)

    # --- people ---

    @rule(replicas=st.integers(0, 5))
    def scale(self, replicas: int) -> None:
        self._edit(lambda new: new["spec"].update(replicas=replicas))

    @rule(image=st.sampled_from(["slurmd:1", "slurmd:2", "slurmd:3"]))
    def new_image(self, image: str) -> None:
        self._edit(lambda new: new["spec"].update(slurmd={"image": image}))

    @rule()
    def delete_nodeset(self) -> None:
        if self.world.nodeset() is not None:
            self.world.kube.delete((str(NODESETS), SPACE, "w"))

    @rule(replicas=st.integers(1, 4))
    def create_nodeset(self, replicas: int) -> None:
        if self.world.nodeset() is None:
            self.world.kube.create(NODESETS, _named(nodeset(replicas)))

    @rule(seconds=st.integers(2, 200), count=st.integers(1, 3))
    def submit(self, seconds: int, count: int) -> None:
        for _ in range(count):
            self.world.slurm.submit(seconds)

    @rule(index=st.integers(0, MACHINES), cordoned=st.booleans())
    def cordon(self, index: int, cordoned: bool) -> None:
        machines = self.world.kube.all(NODES)
        if machines:
            node = machines[index % len(machines)]
            self.world.kube.change(NODES, node, lambda new: new["spec"].update(unschedulable=cordoned))

    @rule(index=st.integers(0, 5), reason=st.sampled_from(["bad gpu", "xid 79", "maintenance tonight"]))
    def administrator_drains(self, index: int, reason: str) -> None:
        names = sorted(self.world.slurm.nodes)
        if names and self.world.slurm.up:
            self.world.slurm.admin_drain(names[index % len(names)], reason)

    @precondition(lambda self: self.world.slurm.admin and self.world.slurm.up)
    @rule()
    def administrator_resumes(self) -> None:
        self.world.slurm.admin_resume(min(self.world.slurm.admin))

    @rule(index=st.integers(0, 5))
    def administrator_resumes_any(self, index: int) -> None:
        """Also what the operator drained, which may have a pod to delete in mind just then."""
        drained = sorted(name for name, node in self.world.slurm.nodes.items() if "DRAIN" in node.flags)
        if drained and self.world.slurm.up:
            self.world.slurm.admin_resume(drained[index % len(drained)])
            self.world.slurm.submit(30)

    @rule(index=st.integers(0, 5))
    def somebody_deletes_a_pod(self, index: int) -> None:
        pods = self.world.pods()
        if pods:
            pod = pods[index % len(pods)]["metadata"]
            self.world.kube.delete(("pods", SPACE, pod["name"]), grace=True)

    @rule(index=st.integers(0, 5))
    def a_machine_dies_and_another_comes(self, index: int) -> None:
        machines = self.world.machines()
        self.steps += 1
        self.world.kill_machine(machines[index % len(machines)])
        self.world.add_machine(f"m{MACHINES + self.steps}")

    # --- faults ---

    @rule(kinds=st.lists(st.sampled_from(KUBE_FAULTS), min_size=1, max_size=4))
    def kubernetes_falters(self, kinds: list[str]) -> None:
        self.world.network.weather.kube.extend(kinds)

    @rule(kinds=st.lists(st.sampled_from(SLURM_FAULTS), min_size=1, max_size=4))
    def slurm_falters(self, kinds: list[str]) -> None:
        self.world.network.weather.slurm.extend(kinds)

    @rule(down=st.booleans())
    def slurmrestd(self, down: bool) -> None:
        self.world.network.weather.rest_down = down

    @rule(up=st.booleans())
    def slurmctld(self, up: bool) -> None:
        self.world.slurm.up = up

    @rule(down=st.booleans())
    def api_server(self, down: bool) -> None:
        self.world.network.weather.kube_down = down

    @rule(lag=st.sampled_from([0.0, 0.5, 3.0, 8.0]), repeat=st.booleans())
    def watches_lag(self, lag: float, repeat: bool) -> None:
        self.world.network.weather.lag = lag
        self.world.network.weather.repeat_events = repeat

    @rule(compact=st.booleans())
    def watches_break(self, compact: bool) -> None:
        if compact:
            self.world.kube.compact()
        self.world.network.drop_watches()

    @rule(present=st.booleans())
    def restapi(self, present: bool) -> None:
        found = self.world.kube.all(RESTAPIS)
        if present and not found:
            self.world.make_restapi()
        elif found and not present:
            self.world.kube.remove((str(RESTAPIS), SPACE, "lab"))
            self.world.kube.remove(("services", SPACE, "lab-restapi"))

    @rule()
    def the_operator_is_killed(self) -> None:
        self._restart()

    @rule(seconds=st.sampled_from([0.05, 0.5, 2.0, 6.0, 20.0, 60.0]))
    def time_passes(self, seconds: float) -> None:
        self._wait(seconds)

    @invariant()
    def nothing_forbidden_happened(self) -> None:
        self.steps += 1
        self._wait(0.3)
        if self.world.operator.dead:
            self._restart()
        self.world.check()

    # --- the end ---

    def _heal_and_converge(self) -> None:
        world = self.world
        world.network.weather.clear()
        world.slurm.up = True
        self.restapi(True)
        if world.operator.dead:
            self._restart()
        for job in world.slurm.jobs.values():
            if job.state in ("RUNNING", "PENDING"):
                job.state = "COMPLETED"
        world.slurm.touch()
        while world.network.hanging:
            self._wait(0.5)
        waited = 0.0
        while (wrong := self._wrong()) and waited < CONVERGE_SECONDS:
            self._wait(0.5)
            waited += 0.5
            world.check()
        log = "\n".join(world.bugs.last)
        found = [*world.slurm.nodes.values(), *((pod["metadata"], pod["spec"].get("nodeName")) for pod in world.pods())]
        state = "\n".join(map(str, [*found, (world.nodeset() or {}).get("status")]))
        assert not wrong, f"{CONVERGE_SECONDS:.0f} s after the last fault was over: {wrong}\n{log}\n{state}"

    def _wrong(self) -> str:
        """What is not yet as it was asked for; "" when all is well."""
        world, slurm = self.world, self.world.slurm
        wish = world.nodeset()
        if wish is None or "deletionTimestamp" in wish["metadata"]:
            # Of a worker that never was in touch with the operator nothing tells whose it was.
            records = {one.name for one in slurm.nodes.values() if one.comment or one.reason} - set(slurm.admin)
            rest: list[object] = [*world.pods(), *records, *([wish] if wish else [])]
            return f"the NodeSet was deleted, and this is left: {rest}" if rest else ""
        replicas = wish["spec"]["replicas"]
        pods = {slurm_name(pod): pod for pod in world.pods()}
        status = wish.get("status") or {}
        cordoned = {node["metadata"]["name"] for node in world.kube.all(NODES) if node["spec"].get("unschedulable")}
        room = min(
            replicas, MACHINES - len(cordoned) + sum(p["spec"].get("nodeName") in cordoned for p in pods.values())
        )
        placed = {name for name, pod in pods.items() if pod["spec"].get("nodeName")}
        if len(pods) != replicas or len(placed) < room:
            return f"{len(pods)} pods, {len(placed)} of them placed, instead of {replicas}"
        for name in placed:
            node = slurm.nodes.get(name)
            if node is None or not node.slurmd or node.base != "IDLE":
                return f"Slurm node {name} is {node}"
            if (pods[name]["spec"]["nodeName"] in cordoned) and "DRAIN" not in node.flags:
                return f"{name} is on a cordoned machine and not drained"
            if pods[name]["spec"]["nodeName"] not in cordoned and "DRAIN" in node.flags and name not in slurm.admin:
                return f"{name} is drained for no cause: {node.reason!r}"
        left = {name for name in slurm.nodes if name not in pods and name not in slurm.admin}
        if left:
            return f"Slurm has records of workers that are gone: {sorted(left)}"
        images = {pod["spec"]["containers"][0]["image"] for pod in world.pods()}
        # An update stops while workers are missing that it may not do without.
        if len(placed) == replicas and not images <= {wish["spec"]["slurmd"]["image"]}:
            return f"pods run {images}"
        if (status.get("replicas"), status.get("readyReplicas")) != (replicas, len(placed)):
            return f"status says {status}"
        return ""

    # --- helpers ---

    def _do(self, work: Any) -> None:
        self.loop.run_until_complete(work)

    def _wait(self, seconds: float) -> None:
        self._do(asyncio.sleep(seconds))

    def _restart(self) -> None:
        self._do(self.world.operator.bury())
        self._do(_soon(self.world.restart_operator))

    def _edit(self, edit: Any) -> None:
        found = self.world.nodeset()
        if found is not None:
            self.world.kube.change(NODESETS, copy.deepcopy(found), edit)


def _named(obj: Object) -> Object:
    return {**obj, "metadata": {**obj["metadata"], "namespace": SPACE}}


async def _soon(call: Any) -> None:
    call()


def test_no_job_is_lost_and_everything_converges() -> None:
    run_state_machine_as_test(
        Life,
        settings=settings(
            max_examples=max(1, STEPS // STEPS_A_LIFE),
            stateful_step_count=STEPS_A_LIFE,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
            # A life of fifty steps is read as it is; making it shorter takes minutes.
            phases=(Phase.explicit, Phase.generate),
            derandomize=not LONG,
        ),
    )
