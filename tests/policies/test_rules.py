"""Each rule: what it refuses, in which words, and what it lets pass."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pulumi_policy import ResourceValidationArgs, ResourceValidationPolicy
from pulumi_policy.proxy import UNKNOWN_ARRAY_VALUE, UNKNOWN_STRING_VALUE, unknown_checking_proxy

from components.data import instance_types
from policies.slipway_policies import RULES
from policies.slipway_policies.gpu_pools import is_gpu_type
from policies.slipway_policies.reference import documentation
from policies.slipway_policies.rule import Resource, Rule
from policies.slipway_policies.values import UNKNOWN, thaw

ROOT = Path(__file__).resolve().parents[2]
BY_ID = {rule.id: rule for rule in RULES}
GROUP = "aws:eks/nodeGroup:NodeGroup"
POOL = "kubernetes:karpenter.sh/v1:NodePool"
NODESET = "kubernetes:slinky.slurm.net/v1beta1:NodeSet"
RELEASE = "kubernetes:helm.sh/v3:Release"
ROLE_POLICY = "aws:iam/rolePolicy:RolePolicy"
TAINT = {"key": "nvidia.com/gpu", "value": "true", "effect": "NO_SCHEDULE"}


def judge(rule: str, kind: str, inputs: dict[str, Any]) -> list[str]:
    """What the rule reports by way of Pulumi's own types, unknown values and all."""
    told: list[str] = []
    args = ResourceValidationArgs(kind, unknown_checking_proxy(inputs), "urn", "thing", None, None, None)  # type: ignore[arg-type]
    policy = BY_ID[rule].policy()
    assert isinstance(policy, ResourceValidationPolicy)
    validate = policy.validate
    assert callable(validate)
    validate(args, lambda message, urn: told.append(message))
    return told


def pool(requirements: list[dict[str, Any]], **spec: Any) -> dict[str, Any]:
    return {"spec": {"template": {"spec": {"requirements": requirements, **spec}}}}


def needs(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": list(values)}


def document(**statement: Any) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Resource": "*", **statement}]})


INSTANCE = "node.kubernetes.io/instance-type"
CATEGORY = "karpenter.k8s.aws/instance-category"
START = {"key": "x", "effect": "NoSchedule"}

REFUSED: list[tuple[str, str, dict[str, Any], str]] = [
    ("gpu-pool-tainted", GROUP, {"instanceTypes": ["p5.48xlarge"]}, "NodeGroup thing has no NoSchedule taint."),
    ("gpu-pool-tainted", GROUP, {"amiType": "AL2023_x86_64_NVIDIA"}, "NodeGroup thing has no NoSchedule taint."),
    ("gpu-pool-tainted", GROUP, {"amiType": "BOTTLEROCKET_x86_64_NVIDIA"}, "has no NoSchedule taint"),
    (
        "gpu-pool-tainted",
        GROUP,
        {"instanceTypes": ["g6.xlarge"], "taints": []},
        "taint nvidia.com/gpu=true:NO_SCHEDULE.",
    ),
    (
        "gpu-pool-tainted",
        GROUP,
        {"instanceTypes": ["g6.xlarge"], "taints": [{**TAINT, "effect": "PREFER_NO_SCHEDULE"}]},
        "has no NoSchedule taint",
    ),
    ("gpu-pool-tainted", POOL, pool([needs(INSTANCE, "In", "p5.48xlarge")]), "NodePool thing has no NoSchedule taint."),
    ("gpu-pool-tainted", POOL, pool([needs(CATEGORY, "In", "g", "p")]), "nvidia.com/gpu=true:NoSchedule."),
    ("gpu-pool-tainted", POOL, pool([needs("karpenter.k8s.aws/instance-gpu-count", "Gt", "0")]), "no NoSchedule taint"),
    ("gpu-pool-tainted", POOL, pool([needs("karpenter.k8s.aws/instance-family", "In", "g6e")]), "no NoSchedule taint"),
    ("gpu-pool-tainted", POOL, {"spec": {"limits": {"nvidia.com/gpu": 64}}}, "no NoSchedule taint"),
    (
        "gpu-pool-tainted",
        POOL,
        pool([needs(INSTANCE, "In", "p5.48xlarge")], startupTaints=[START]),
        "no NoSchedule taint",
    ),
    ("busy-pods-have-pdb", NODESET, {"spec": {"workloadDisruptionProtection": False}}, "NodeSet thing sets spec."),
    (
        "busy-pods-have-pdb",
        RELEASE,
        {"chart": "charts/slurm", "values": {"nodesets": {"gpu": {"workloadDisruptionProtection": False}}}},
        "Release thing sets nodesets.gpu.workloadDisruptionProtection: false.",
    ),
    (
        "busy-pods-have-pdb",
        RELEASE,
        {"chart": "./slurm/", "values": {"nodesetDefaults": {"workloadDisruptionProtection": "false"}}},
        "Release thing sets nodesetDefaults.workloadDisruptionProtection: false.",
    ),
    (
        "busy-pods-have-pdb",
        RELEASE,
        {
            "chart": "oci://ghcr.io/slinkyproject/charts/slurm-operator",
            "values": {"operator": {"pdb": {"enabled": False}}},
        },
        "Release thing sets operator.pdb.enabled: false.",
    ),
    (
        "busy-pods-have-pdb",
        RELEASE,
        {"chart": "charts/slurm", "valueYamlFiles": ["x"]},
        "Release thing takes values from files",
    ),
    ("iam-no-wildcard-action", ROLE_POLICY, {"policy": document(Action="*")}, 'RolePolicy thing allows "*".'),
    ("iam-no-wildcard-action", ROLE_POLICY, {"policy": document(Action="s3:*")}, "may do anything in s3"),
    ("iam-no-wildcard-action", ROLE_POLICY, {"policy": document(Action="*:*")}, "may do anything in the account"),
    ("iam-no-wildcard-action", ROLE_POLICY, {"policy": document(Action="s3:?*")}, 'allows "s3:?*"'),
    ("iam-no-wildcard-action", ROLE_POLICY, {"policy": document(Action="*:Get")}, 'allows "*:Get"'),
    (
        "iam-no-wildcard-action",
        "aws:iam/policy:Policy",
        {"policy": document(Sid="All", Action=["ec2:RunInstances", "iam:*"])},
        'Policy thing statement All allows "iam:*".',
    ),
    ("iam-no-wildcard-action", ROLE_POLICY, {"policy": document(NotAction="iam:*")}, "allows all but some actions"),
    (
        "iam-no-wildcard-action",
        ROLE_POLICY,
        {"policy": json.dumps({"Statement": {"Effect": "Allow", "Action": "kms:*", "Resource": "*"}})},
        'allows "kms:*"',
    ),
    ("iam-no-wildcard-action", ROLE_POLICY, {"policy": "{"}, "has a policy that is no JSON"),
    (
        "iam-no-wildcard-action",
        "aws:iam/role:Role",
        {"inlinePolicies": [{"name": "all", "policy": document(Action="s3:*")}]},
        'Role thing, inline policy all, allows "s3:*".',
    ),
    (
        "iam-no-wildcard-action",
        "aws:iam/role:Role",
        {"managedPolicyArns": ["arn:aws:iam::aws:policy/AdministratorAccess"]},
        "Role thing attaches AdministratorAccess.",
    ),
    (
        "iam-no-wildcard-action",
        "aws:iam/rolePolicyAttachment:RolePolicyAttachment",
        {"policyArn": "arn:aws-us-gov:iam::aws:policy/IAMFullAccess"},
        "RolePolicyAttachment thing attaches IAMFullAccess.",
    ),
    (
        "iam-no-wildcard-action",
        "aws:eks/podIdentityAssociation:PodIdentityAssociation",
        {"policy": document(Action="sqs:*")},
        'allows "sqs:*"',
    ),
]

PASSED: list[tuple[str, str, dict[str, Any]]] = [
    ("gpu-pool-tainted", GROUP, {"instanceTypes": ["p5.48xlarge"], "taints": [TAINT]}),
    ("gpu-pool-tainted", GROUP, {"instanceTypes": ["p5.48xlarge"], "taints": [{**TAINT, "effect": "NO_EXECUTE"}]}),
    ("gpu-pool-tainted", GROUP, {"instanceTypes": ["m7i.xlarge"], "amiType": "AL2023_x86_64_STANDARD"}),
    ("gpu-pool-tainted", GROUP, {"instanceTypes": ["p5.48xlarge"], "taints": UNKNOWN_ARRAY_VALUE}),
    ("gpu-pool-tainted", POOL, pool([needs(INSTANCE, "NotIn", "p5.48xlarge")])),
    ("gpu-pool-tainted", POOL, pool([needs(CATEGORY, "In", "c", "m")])),
    ("gpu-pool-tainted", POOL, pool([needs("karpenter.k8s.aws/instance-gpu-count", "DoesNotExist")])),
    ("gpu-pool-tainted", POOL, pool([needs(CATEGORY, "In", "p")], taints=[START])),
    ("busy-pods-have-pdb", NODESET, {"spec": {"workloadDisruptionProtection": True}}),
    ("busy-pods-have-pdb", NODESET, {"spec": {}}),
    ("busy-pods-have-pdb", RELEASE, {"chart": "charts/slurm", "values": {"nodesets": {"gpu": {"replicas": 2}}}}),
    ("busy-pods-have-pdb", RELEASE, {"chart": "charts/other", "values": {"pdb": {"enabled": False}}}),
    (
        "busy-pods-have-pdb",
        RELEASE,
        {"chart": "charts/slurm", "values": {"home": {"nfs": {"server": UNKNOWN_STRING_VALUE}}}},
    ),
    ("iam-no-wildcard-action", ROLE_POLICY, {"policy": document(Action=["ec2:Describe*", "s3:GetObject"])}),
    ("iam-no-wildcard-action", ROLE_POLICY, {"policy": document(Effect="Deny", Action="*")}),
    ("iam-no-wildcard-action", ROLE_POLICY, {"policy": UNKNOWN_STRING_VALUE}),
    (
        "iam-no-wildcard-action",
        "aws:iam/rolePolicyAttachment:RolePolicyAttachment",
        {"policyArn": "arn:aws:iam::aws:policy/AmazonEKSWorkerNodePolicy"},
    ),
    (
        "iam-no-wildcard-action",
        "aws:iam/rolePolicyAttachment:RolePolicyAttachment",
        {"policyArn": "arn:aws:iam::123456789012:policy/PowerUserAccess"},
    ),
    ("iam-no-wildcard-action", "aws:kms/key:Key", {"policy": document(Action="kms:*")}),
]


@pytest.mark.parametrize(("rule", "kind", "inputs", "words"), REFUSED)
def test_refused(rule: str, kind: str, inputs: dict[str, Any], words: str) -> None:
    told = judge(rule, kind, inputs)
    assert len(told) == 1
    assert words in told[0]
    assert f"Docs: docs/policies.md#{rule}" in told[0]


@pytest.mark.parametrize(("rule", "kind", "inputs"), PASSED)
def test_passed(rule: str, kind: str, inputs: dict[str, Any]) -> None:
    assert judge(rule, kind, inputs) == []


def test_a_violation_tells_what_would_happen_and_what_to_do() -> None:
    assert judge("gpu-pool-tainted", POOL, pool([needs(INSTANCE, "In", "p5.48xlarge")])) == [
        "NodePool thing has no NoSchedule taint.\n"
        "  Any pod may land on it: a system pod then keeps a GPU node alive and paid for after its jobs end.\n"
        "  Fix: add the taint nvidia.com/gpu=true:NoSchedule. Docs: docs/policies.md#gpu-pool-tainted"
    ]


def test_every_wildcard_is_told() -> None:
    assert len(judge("iam-no-wildcard-action", ROLE_POLICY, {"policy": document(Action=["s3:*", "ec2:*"])})) == 2


def test_a_known_wildcard_beside_an_unknown_value_is_still_refused() -> None:
    inputs = {"role": UNKNOWN_STRING_VALUE, "policy": document(Action="s3:*")}
    assert len(judge("iam-no-wildcard-action", ROLE_POLICY, inputs)) == 1


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_the_example_in_the_docs_is_refused(rule: Rule) -> None:
    kind, inputs = rule.example
    resource = Resource(kind, "thing", inputs)
    assert rule.stack_violations([resource]) if rule.stack_check else judge(rule.id, kind, inputs)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_that_fails_refuses(rule: Rule) -> None:
    fails = {"stack_check": lambda resources, parameters: 1 / 0} if rule.stack_check else {"check": lambda r: 1 / 0}
    broken = Rule(**{**vars(rule), **fails})
    resource = Resource(rule.example[0], "thing", {})
    (told,) = broken.stack_violations([resource]) if rule.stack_check else broken.violations(resource)
    assert "could not be judged: ZeroDivisionError" in told


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_odd_shapes_are_judged_without_failing(rule: Rule) -> None:
    kind = rule.example[0]
    shapes: list[dict[str, Any]] = [
        {}, {"spec": None}, {"spec": []}, {"taints": "x"}, {"policy": 3}, {"values": [1]}, {"chart": 5},
        {"chart": "slurm", "values": {"nodesets": {"a": 1}, "accounting": 3}}, {"configurationValues": "{"},
        {"spec": {"template": {"spec": {"containers": [1], "tolerations": ["x"], "requirements": [None]}}}},
        {"vpcConfig": [], "ingress": ["x"], "metadata": 1, "blockDeviceMappings": [0], "tagSpecifications": [1]},
        {"policy": {"Statement": [1, {"Effect": "Allow", "Action": {}, "Principal": [], "Condition": "x"}]}},
    ]  # fmt: skip
    for odd in shapes:
        resource = Resource(kind, "thing", odd)
        for told in rule.stack_violations([resource]) if rule.stack_check else rule.violations(resource):
            assert "could not be judged" not in told


def test_thaw_marks_unknowns_and_keeps_the_rest() -> None:
    raw = unknown_checking_proxy({"a": UNKNOWN_STRING_VALUE, "b": [1, UNKNOWN_ARRAY_VALUE], "c": {"d": "e"}})
    assert thaw(raw) == {"a": UNKNOWN, "b": [1, UNKNOWN], "c": {"d": "e"}}


def test_gpu_types_are_those_that_ec2_says() -> None:
    by_name = {name for name in instance_types() if is_gpu_type(name)}
    by_facts = {name for name, kind in instance_types().items() if kind.gpus}
    assert by_facts <= by_name
    assert {name for name in by_name - by_facts if instance_types()[name].accelerator is None} == set()


def test_docs_are_up_to_date() -> None:
    assert (ROOT / "docs" / "policies.md").read_text() == documentation(), "run: make generate"


def test_rules_import_nothing_of_ours() -> None:
    for file in (ROOT / "policies" / "slipway_policies").glob("*.py"):
        assert "components" not in file.read_text()
