"""The CRDs: complete, structural, and the same as in the chart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from slurm_operator.api import generate
from slurm_operator.api.controller import ControllerSpec
from slurm_operator.api.crd import crd, render_all
from slurm_operator.api.kinds import KINDS
from slurm_operator.api.load import InvalidSpec, load_spec
from slurm_operator.api.nodeset import NodeSetSpec
from slurm_operator.kube.resources import resource_for

# Fields of the Go operator's v1beta1 by kind: resources written for it must find them here.
FIELDS = {
    "Controller": """clusterName slurmKeyRef jwtHs256KeyRef jwtKeyRef jwksKeyRef accountingRef external externalConfig
        ha slurmctld inplaceReconfigure reconfigure logfile template extraConf configFileRefs prologScriptRefs
        epilogScriptRefs prologSlurmctldScriptRefs epilogSlurmctldScriptRefs
        persistence service metrics""",
    "NodeSet": """controllerRef replicas scalingMode slurmd ssh logfile template extraConf partition
        volumeClaimTemplates updateStrategy revisionHistoryLimit persistentVolumeClaimRetentionPolicy minReadySeconds
        ordinalPadding pinToNode workloadDisruptionProtection pruneSlurmNodeRecords oversubscribeNode""",
    "LoginSet": """controllerRef replicas login initconf template rootSshAuthorizedKeys extraSshdConfig sssdConfRef
        strategy service""",
    "RestApi": "controllerRef replicas slurmrestd template service",
    "Accounting": """slurmKeyRef jwtHs256KeyRef jwtKeyRef jwksKeyRef external externalConfig slurmdbd template
        storageConfig extraConf service""",
    "Token": "jwtHs256KeyRef jwtKeyRef username lifetime refresh secretRef",
}
SLINKY = [kind for kind in KINDS if kind.group == "slinky.slurm.net"]
NODESET_STATUS = (
    "replicas updatedReplicas readyReplicas availableReplicas unavailableReplicas desired slurmIdle slurmAllocated"
    " slurmDown slurmDrain observedGeneration nodeSetHash collisionCount conditions ordinalToNode selector"
)


def schemas() -> dict[str, dict[str, Any]]:
    made = {kind.name: crd(kind)["spec"]["versions"][0] for kind in KINDS}
    return {name: version["schema"]["openAPIV3Schema"]["properties"] for name, version in made.items()}


def test_all_fields_of_the_go_operator_are_there_and_none_of_our_own() -> None:
    assert {kind.name for kind in SLINKY} == set(FIELDS)
    for name, fields in FIELDS.items():
        assert set(schemas()[name]["spec"]["properties"]) == set(fields.split()), name
    assert set(schemas()["NodeSet"]["status"]["properties"]) == set(NODESET_STATUS.split())


def test_the_kinds_are_those_that_the_runtime_watches() -> None:
    for kind in KINDS:
        assert resource_for(f"{kind.group}/{kind.version}", kind.name).plural == kind.plural


def walk(schema: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(schema, dict):
        if "type" in schema or "x-kubernetes-int-or-string" in schema:
            yield path, schema
        for name, value in schema.items():
            yield from walk(value, f"{path}.{name}")


def test_the_schemas_are_structural() -> None:
    for name, properties in schemas().items():
        for path, schema in walk(properties, name):
            for forbidden in ("$ref", "$defs", "title", "uniqueItems", "nullable", "const"):
                assert forbidden not in schema or path.endswith(".properties"), (path, forbidden)
            assert not ("additionalProperties" in schema and "properties" in schema), path
            if schema.get("type") == "array":
                assert "items" in schema, path


def test_every_field_says_what_it_is() -> None:
    for name, properties in schemas().items():
        for field, schema in properties["spec"]["properties"].items():
            assert schema.get("description", "").rstrip().endswith("."), f"{name}.spec.{field}"


def test_defaults_are_told() -> None:
    nodeset = schemas()["NodeSet"]["spec"]["properties"]
    assert nodeset["replicas"]["default"] == 1
    assert nodeset["scalingMode"]["description"].endswith("Default: StatefulSet.")
    assert nodeset["workloadDisruptionProtection"]["description"].endswith("Default: true.")
    assert nodeset["pinToNode"]["description"].endswith("Default: false.")


def test_rendering_is_stable_and_names_all_kinds() -> None:
    assert render_all() == render_all()
    names = [document["metadata"]["name"] for document in yaml.safe_load_all(render_all())]
    assert names == [f"{kind.plural}.{kind.group}" for kind in KINDS]
    assert "&id" not in render_all()


def test_reading_applies_defaults() -> None:
    spec = load_spec(NodeSetSpec, {"spec": {"controllerRef": {"name": "lab"}, "later": 1}})
    assert (spec.replicas, spec.update_strategy.rolling_update.max_unavailable) == (1, "25%")
    assert spec.workload_disruption_protection
    assert load_spec(ControllerSpec, {}).persistence.enabled


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"controllerRef": {"name": "lab"}, "replicas": "two"}, "spec.replicas: Expected int, got str"),
        ({}, "missing required field controllerRef"),
        ({"controllerRef": {"name": "lab"}, "template": {"spec": 3}}, "spec.template.spec: Expected object, got int"),
    ],
)
def test_reading_names_the_field_at_fault(spec: Any, says: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        load_spec(NodeSetSpec, {"spec": spec})
    assert says in str(caught.value)


# --- the chart ---


def test_the_chart_holds_what_the_source_says() -> None:
    assert generate.main(["--check"]) == 0


def test_drift_is_found_and_mended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "files" / "crds").mkdir(parents=True)
    (tmp_path / "files" / "crds" / "old.yaml").write_text("x")
    assert generate.main(["--check", "--chart", str(tmp_path)]) == 1
    assert "make generate" in capsys.readouterr().err
    assert generate.main(["--chart", str(tmp_path)]) == 0
    assert not (tmp_path / "files" / "crds" / "old.yaml").exists()
    assert generate.main(["--check", "--chart", str(tmp_path)]) == 0
    crds = tmp_path / "files" / "crds" / "nodesets.slinky.slurm.net.yaml"
    crds.write_text(crds.read_text() + "# edited\n")
    assert generate.main(["--check", "--chart", str(tmp_path)]) == 1
    assert "nodesets" in capsys.readouterr().out
