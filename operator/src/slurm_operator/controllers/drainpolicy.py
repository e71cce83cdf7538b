"""Reconciles DrainPolicy: says for which NodeSets it is in effect. The NodeSets' own reconciles act by it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from slurm_operator.api.drainpolicy import DrainPolicySpec
from slurm_operator.api.load import InvalidSpec, load_spec
from slurm_operator.controllers.base import Reconciler
from slurm_operator.desired.drain import NO_POLICY, Policy, in_charge, policy_of, weight
from slurm_operator.desired.status import Report, listed
from slurm_operator.kube.informer import Informer
from slurm_operator.kube.objects import is_deleting, key_of, labels_of
from slurm_operator.kube.resources import DRAINPOLICIES, NODESETS, Key, Object, Resource


class Policies:
    """The policies of all namespaces, as NodeSets ask for them."""

    def __init__(self, informer: Informer) -> None:
        self._informer = informer

    def here(self, namespace: str) -> list[tuple[Object, DrainPolicySpec]]:
        """Those of a namespace that can be read."""
        found = []
        for one in self._informer.list(namespace):
            try:
                spec = load_spec(DrainPolicySpec, one)
                policy_of(one["metadata"]["name"], spec)
            except InvalidSpec:
                continue  # its own reconcile reports it
            if not is_deleting(one):
                found.append((one, spec))
        return found

    def chosen(self, nodeset: Object) -> tuple[str, tuple[str, ...]]:
        """Name of the policy of a NodeSet ("": none), and of others that claim it as much."""
        meta = nodeset["metadata"]
        return in_charge(meta["name"], labels_of(nodeset), self.here(meta["namespace"]))

    def of(self, nodeset: Object) -> Policy:
        """The policy of a NodeSet; the defaults where there is none."""
        name, _ = self.chosen(nodeset)
        for one, spec in self.here(nodeset["metadata"]["namespace"]):
            if one["metadata"]["name"] == name:
                return policy_of(name, spec)
        return NO_POLICY


class DrainPolicyController(Reconciler[DrainPolicySpec]):
    """Status only: which NodeSets follow it, and which another policy claims as well."""

    name: ClassVar[str] = "drainpolicy"
    resource: ClassVar[Resource] = DRAINPOLICIES
    spec_type = DrainPolicySpec
    nodesets: Informer

    def setup(self) -> None:
        self.informer = self.watch(self.resource, self._neighbours, status_too=False)
        self.nodesets = self.watch(NODESETS, self._neighbours, status_too=False)
        self.policies = Policies(self.informer)

    def _neighbours(self, obj: Object) -> Iterable[Key]:
        """What changes for one may change for all of the namespace."""
        found = [key_of(policy) for policy in self.informer.list(obj["metadata"]["namespace"])]
        return found if obj.get("kind") != DRAINPOLICIES.kind else {*found, key_of(obj)}

    async def act(self, key: Key, obj: Object, spec: DrainPolicySpec) -> tuple[Report, float | None]:
        policy_of(key.name, spec)
        mine: list[str] = []
        disputed: list[str] = []
        overruled: list[str] = []
        for nodeset in self.nodesets.list(key.namespace):
            name = nodeset["metadata"]["name"]
            if not weight(spec, name, labels_of(nodeset)):
                continue
            chosen, rivals = self.policies.chosen(nodeset)
            if chosen == key.name:
                mine.append(name)
                disputed += [f"NodeSet {name} is also claimed by DrainPolicy {rival}" for rival in rivals]
            elif key.name in rivals:
                disputed.append(f"NodeSet {name} follows DrainPolicy {chosen}, which is older")
            else:
                overruled.append(name)
        fields = {"nodeSets": sorted(mine), "observedGeneration": obj["metadata"].get("generation", 0)}
        if disputed:
            text = f"{listed(sorted(disputed))}. Of two policies with the same claim the older one counts."
            return Report(bool(mine), "Conflict", text, fault=text, fault_reason="Conflict", fields=fields), None
        if mine:
            return Report(True, "InEffect", f"In effect for {listed(sorted(mine))}.", fields=fields), None
        missing = sorted(set(spec.node_sets) - {one["metadata"]["name"] for one in self.nodesets.list(key.namespace)})
        text = f"There is no NodeSet {', '.join(missing)}." if missing else "It selects no NodeSet."
        if overruled:
            text = f"A more specific policy is in effect for {listed(sorted(overruled))}."
        return Report(True, "NothingSelected", text, fields=fields), None
