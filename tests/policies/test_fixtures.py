"""Each rule against resources that break it and resources that keep it; parameters and exemptions."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest
from pulumi_policy.proxy import unknown_checking_proxy

from localcloud.deploy import policy_config
from policies.slipway_policies import GROUPS, RULES, UNGROUPED
from policies.slipway_policies.rule import Resource, Rule
from policies.slipway_policies.values import thaw
from tests.policies import test_rules
from tests.policies.fixtures import PASSED, REFUSED, Case, pod

BY_ID = {rule.id: rule for rule in RULES}
CONFIGS = sorted((Path(__file__).resolve().parents[2] / "policies" / "stacks").glob("*.json"))
DAY = datetime.date(2026, 11, 21)
GROUP = "aws:eks/nodeGroup:NodeGroup"
BAD_GROUP = Resource(GROUP, "gpu", {"instanceTypes": ["p5.48xlarge"]})
EXEMPTION = {"resource": "gpu*", "reason": "moved next week", "owner": "alice", "until": "2026-11-21"}
DEPLOYMENT = "kubernetes:apps/v1:Deployment"
BUDGET = "kubernetes:policy/v1:PodDisruptionBudget"


def told(case: Case) -> list[str]:
    rule, kind, inputs = case
    assert BY_ID[rule].applies_to(kind), f"{rule} does not look at {kind}"
    return BY_ID[rule].violations(Resource(kind, "thing", thaw(unknown_checking_proxy(inputs))))


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: str(case[0]))
def test_refused(case: Case) -> None:
    texts = told(case)
    assert texts
    for text in texts:
        assert "could not be judged" not in text
        assert "\n  Fix: " in text
        assert text.endswith(f"Docs: docs/policies.md#{case[0]}")


@pytest.mark.parametrize("case", PASSED, ids=lambda case: str(case[0]))
def test_passed(case: Case) -> None:
    assert told(case) == []


def test_every_rule_has_something_that_passes() -> None:
    without = set(BY_ID) - {case[0] for case in PASSED} - {case[0] for case in test_rules.PASSED}
    assert without == {"service-has-pdb", "iam-no-long-lived-keys"}, "these have tests of their own, or allow nothing"


def test_every_rule_is_in_one_group() -> None:
    assert not UNGROUPED
    assert len(RULES) == len({name for names in GROUPS.values() for name in names})


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_what_rules_say_of_themselves_is_whole(rule: Rule) -> None:
    for text in (rule.summary, rule.consequence):
        assert text.endswith("."), text
    assert rule.why and rule.remediation.rstrip().endswith(".")


def workload(labels: dict[str, str], namespace: str = "slurm", replicas: int = 1) -> Resource:
    spec = {"replicas": replicas, "template": {"metadata": {"labels": labels}}}
    return Resource(DEPLOYMENT, "keda", {"metadata": {"namespace": namespace}, "spec": spec})


def budget(selector: Any, namespace: str = "slurm") -> Resource:
    return Resource(BUDGET, "keda", {"metadata": {"namespace": namespace}, "spec": {"selector": selector}})


@pytest.mark.parametrize(
    ("resources", "count"),
    [
        ([workload({"app": "keda"})], 1),
        ([workload({"app": "keda"}), budget({"matchLabels": {"app": "keda"}})], 0),
        ([workload({"app": "keda"}), budget({})], 0),
        ([workload({"app": "keda"}), budget({"matchExpressions": [{"key": "app", "operator": "Exists"}]})], 0),
        ([workload({"app": "keda"}), budget({"matchLabels": {"app": "other"}})], 1),
        ([workload({"app": "keda"}), budget({"matchLabels": {"app": "keda"}}, "other")], 1),
        ([workload({"app": "keda"}, replicas=0)], 0),
    ],
)
def test_services_have_a_budget(resources: list[Resource], count: int) -> None:
    assert len(BY_ID["service-has-pdb"].stack_violations(resources)) == count


def test_a_parameter_changes_what_is_refused() -> None:
    logs = Resource("aws:cloudwatch/logGroup:LogGroup", "thing", {"retentionInDays": 30})
    rule = BY_ID["logs-kept-for-a-set-time"]
    assert rule.violations(logs) == []
    assert rule.violations(logs, {"minimumDays": 90.0})
    allowed = {"allowed": ["ec2:TerminateInstances"]}
    kind, inputs = BY_ID["iam-no-wildcard-resource"].example
    assert BY_ID["iam-no-wildcard-resource"].violations(Resource(kind, "thing", inputs), allowed) == []


def test_an_exemption_holds_for_its_resource_until_its_day() -> None:
    rule, config = BY_ID["gpu-pool-tainted"], {"exemptions": [EXEMPTION]}
    assert rule.violations(BAD_GROUP, config, DAY) == []
    assert rule.config_violations(config, DAY) == []
    assert rule.violations(Resource(GROUP, "other", BAD_GROUP.inputs), config, DAY)


def test_an_exemption_that_has_ended_fails_by_itself() -> None:
    rule, config, later = BY_ID["gpu-pool-tainted"], {"exemptions": [EXEMPTION]}, DAY + datetime.timedelta(1)
    assert rule.violations(BAD_GROUP, config, later)
    (text,) = rule.config_violations(config, later)
    assert "the exemption of gpu* ended on 2026-11-21 (owner alice: moved next week)" in text


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({**EXEMPTION, "owner": " "}, "exemptions[0] has no owner"),
        ({k: v for k, v in EXEMPTION.items() if k != "reason"}, "exemptions[0] has no reason"),
        ({k: v for k, v in EXEMPTION.items() if k != "until"}, "exemptions[0] has no until"),
        ({**EXEMPTION, "until": "next year"}, "which is no date such as 2027-01-31"),
        ({**EXEMPTION, "ticket": "1"}, "has 'ticket'; allowed are resource, reason, owner, until"),
        ("gpu", "exemptions[0] is no object"),
    ],
)
def test_an_exemption_that_lacks_something_fails_and_exempts_nothing(entry: Any, words: str) -> None:
    rule, config = BY_ID["gpu-pool-tainted"], {"exemptions": [entry]}
    (text,) = rule.config_violations(config, DAY)
    assert words in text
    assert rule.violations(BAD_GROUP, config, DAY)


def test_unknown_and_mistyped_parameters_are_told() -> None:
    rule = BY_ID["logs-kept-for-a-set-time"]
    (text,) = rule.config_violations({"minimumDay": 9})
    assert "its config has 'minimumDay'; allowed are enforcementLevel, exemptions, reason, minimumDays" in text
    (text,) = rule.config_violations({"minimumDays": "9"})
    assert "sets minimumDays to '9'" in text


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.stem)
def test_what_our_stacks_soften_has_its_reason(file: Path) -> None:
    for name, entry in json.loads(file.read_text()).items():
        assert name in BY_ID
        assert entry.get("reason"), f"{file.name}: {name} has no reason"
        assert BY_ID[name].config_violations({k: v for k, v in entry.items() if k != "enforcementLevel"}) == []


def test_exempt_namespaces_are_those_of_the_workers() -> None:
    privileged = pod({"name": "a", "securityContext": {"privileged": True}}, namespace="slurm-operator")
    assert BY_ID["no-privileged-pods"].violations(Resource(DEPLOYMENT, "a", privileged))


def test_agents_on_each_node_may_tolerate_everything() -> None:
    agent = pod({"name": "agent"}, tolerations=[{"operator": "Exists"}])
    rule = BY_ID["gpu-nodes-only-for-gpu-pods"]
    assert rule.violations(Resource("kubernetes:apps/v1:DaemonSet", "a", agent)) == []
    assert rule.violations(Resource(DEPLOYMENT, "a", agent))


def test_previews_and_deployments_use_the_config_of_their_stack() -> None:
    assert [file.name for file in policy_config("dev")] == ["dev.json"]
    assert policy_config("a-stack-without-config") == []
