"""The pack as the process that an engine starts, and what it says to everything the stacks register."""

from __future__ import annotations

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

from tests.program.golden import STACKS
from tests.program.harness import recorded_run, wire

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
    assert set(rules) == {"gpu-pool-tainted", "busy-pods-have-pdb", "iam-no-wildcard-action"}
    for policy in rules.values():
        assert policy.enforcementLevel == analyzer_pb2.MANDATORY
        assert policy.severity != analyzer_pb2.POLICY_SEVERITY_UNSPECIFIED
        assert policy.description


@pytest.mark.parametrize("mode", ["preview", "update"])
@pytest.mark.parametrize("stack", STACKS)
def test_stacks_violate_nothing(analyzer: Any, stack: str, mode: str) -> None:
    for resource in recorded_run(stack, mode).resources:
        told = analyze(analyzer, resource.type, resource.inputs)
        assert not told, f"{resource.urn}: {[d.message for d in told]}"


def test_a_violation_is_mandatory(analyzer: Any) -> None:
    (told,) = analyze(analyzer, "aws:eks/nodeGroup:NodeGroup", {"instanceTypes": ["g6.xlarge"]})
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
    def configure(level: Any) -> None:
        analyzer.Configure(
            analyzer_pb2.ConfigureAnalyzerRequest(
                policyConfig={"gpu-pool-tainted": analyzer_pb2.PolicyConfig(enforcementLevel=level)}
            )
        )

    violating = {"instanceTypes": ["g6.xlarge"]}
    try:
        configure(analyzer_pb2.ADVISORY)
        (told,) = analyze(analyzer, "aws:eks/nodeGroup:NodeGroup", violating)
        assert told.enforcementLevel == analyzer_pb2.ADVISORY
        configure(analyzer_pb2.DISABLED)
        assert analyze(analyzer, "aws:eks/nodeGroup:NodeGroup", violating) == []
    finally:
        configure(analyzer_pb2.MANDATORY)
