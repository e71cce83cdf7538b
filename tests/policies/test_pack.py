"""The pack as the process that an engine starts, and what it says to everything the stacks register."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import empty_pb2, struct_pb2
from google.protobuf.json_format import ParseDict
from pulumi.runtime.proto import analyzer_pb2, analyzer_pb2_grpc

from policies.slipway_policies import RULES
from tests.program.golden import STACKS
from tests.program.harness import recorded_run, wire

UNTAINTED = {"instanceTypes": ["g6.xlarge"], "scalingConfig": {"maxSize": 2}}
LEVELS = {"mandatory": analyzer_pb2.MANDATORY, "disabled": analyzer_pb2.DISABLED}
PACK = Path(__file__).resolve().parents[2] / "policies"


@pytest.fixture(scope="module")
def analyzer() -> Iterator[Any]:
    """A stub of the running pack."""
    environment = {**os.environ, "PULUMI_PROJECT": "slipway", "PULUMI_STACK": "test", "PULUMI_DRY_RUN": "true"}
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "pulumi.policy", "127.0.0.1:1", str(PACK)],
        cwd=PACK,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        assert port.isdigit(), "the pack printed something before its port"
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield analyzer_pb2_grpc.AnalyzerStub(channel)
    finally:
        process.kill()
        process.wait()


def analyze(analyzer: Any, kind: str, inputs: dict[str, Any]) -> list[Any]:
    request = analyzer_pb2.AnalyzeRequest(
        type=kind,
        name="thing",
        urn=f"urn:pulumi:s::p::{kind}::thing",
        properties=ParseDict(wire(inputs), struct_pb2.Struct()),
    )
    return list(analyzer.Analyze(request).diagnostics)


def test_pack_names_its_rules(analyzer: Any) -> None:
    info = analyzer.GetAnalyzerInfo(empty_pb2.Empty())
    assert info.name == "slipway"
    rules = {policy.name: policy for policy in info.policies}
    assert set(rules) == {rule.id for rule in RULES}
    for policy in rules.values():
        assert policy.enforcementLevel == analyzer_pb2.MANDATORY
        assert policy.severity != analyzer_pb2.POLICY_SEVERITY_UNSPECIFIED
        assert policy.description


def configure(analyzer: Any, stack: str | None) -> None:
    """Gives every rule its level and what the stack's config sets for it, as an engine does."""
    file = PACK / "stacks" / f"{stack}.json"
    given = json.loads(file.read_text()) if file.is_file() else {}
    request = analyzer_pb2.ConfigureAnalyzerRequest()
    for rule in RULES:
        own = dict(given.get(rule.id, {}))
        level = own.pop("enforcementLevel", "mandatory")
        request.policyConfig[rule.id].enforcementLevel = LEVELS[level]
        request.policyConfig[rule.id].properties.update(own)
    analyzer.Configure(request)


@pytest.mark.parametrize("mode", ["preview", "update"])
@pytest.mark.parametrize("stack", STACKS)
def test_stacks_violate_nothing(analyzer: Any, stack: str, mode: str) -> None:
    configure(analyzer, stack)
    try:
        for resource in recorded_run(stack, mode).resources:
            told = analyze(analyzer, resource.type, resource.inputs)
            assert not told, f"{resource.urn}: {[d.message for d in told]}"
    finally:
        configure(analyzer, None)


def test_an_exemption_that_has_ended_fails_the_stack(analyzer: Any) -> None:
    request = analyzer_pb2.ConfigureAnalyzerRequest()
    request.policyConfig["gpu-pool-tainted"].enforcementLevel = analyzer_pb2.MANDATORY
    request.policyConfig["gpu-pool-tainted"].properties.update(
        {"exemptions": [{"resource": "gpu", "reason": "r", "owner": "alice", "until": "2020-01-31"}]}
    )
    try:
        analyzer.Configure(request)
        (told,) = analyze(analyzer, "pulumi:pulumi:Stack", {})
        assert "the exemption of gpu ended on 2020-01-31" in told.message
        assert told.enforcementLevel == analyzer_pb2.MANDATORY
    finally:
        configure(analyzer, None)


def test_a_violation_is_mandatory(analyzer: Any) -> None:
    (told,) = analyze(analyzer, "aws:eks/nodeGroup:NodeGroup", UNTAINTED)
    assert told.policyName == "gpu-pool-tainted"
    assert told.enforcementLevel == analyzer_pb2.MANDATORY


def test_what_the_policies_protect_is_what_the_stacks_have(analyzer: Any) -> None:
    """The same resources with the protection removed are refused: the rules see the shapes that the program makes."""
    recording = recorded_run("dev", "update")
    group = recording.one("nodeGroup:NodeGroup", "gpu")
    assert analyze(analyzer, group.type, {**group.inputs, "taints": []})
    release = recording.one("Release", "slurm")
    values = release.inputs["values"] | {"nodesetDefaults": {"workloadDisruptionProtection": False}}
    assert analyze(analyzer, release.type, {**release.inputs, "values": values})
    policy = recording.one("rolePolicy:RolePolicy", "secrets-encryption")
    wide = policy.inputs["policy"].replace("kms:Encrypt", "kms:*")
    assert analyze(analyzer, policy.type, {**policy.inputs, "policy": wide})


def test_level_can_be_configured(analyzer: Any) -> None:
    def level_is(level: Any) -> None:
        request = analyzer_pb2.ConfigureAnalyzerRequest()
        request.policyConfig["gpu-pool-tainted"].enforcementLevel = level
        analyzer.Configure(request)

    try:
        level_is(analyzer_pb2.ADVISORY)
        (told,) = analyze(analyzer, "aws:eks/nodeGroup:NodeGroup", UNTAINTED)
        assert told.enforcementLevel == analyzer_pb2.ADVISORY
        level_is(analyzer_pb2.DISABLED)
        assert analyze(analyzer, "aws:eks/nodeGroup:NodeGroup", UNTAINTED) == []
    finally:
        level_is(analyzer_pb2.MANDATORY)
