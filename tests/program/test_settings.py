"""Settings: what is accepted, what is refused and in which words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pydantic import BaseModel

from components.data import addon_versions, instance_types
from components.settings import Settings, SettingsError, parse
from components.settings.__main__ import main
from components.settings.explain import model_of
from components.settings.reference import SCHEMA_FILE, json_schema
from tests.program.harness import ROOT, run, stack_config
from tests.program.refused_settings import BAD, FILE, MINIMAL, F, changed, partition


def read(raw: dict[str, Any], region: str | None = "us-west-2", root: Path = Path("/nowhere")) -> Settings:
    return parse(raw, stack="test", region=region, file=FILE, root=root)


def complaint(raw: dict[str, Any], region: str | None = "us-west-2") -> str:
    with pytest.raises(SettingsError) as caught:
        read(raw, region)
    return str(caught.value)


def test_minimal_config_gets_safe_defaults() -> None:
    settings = read(MINIMAL)
    assert settings.network.zones == ("us-west-2a", "us-west-2b")
    assert settings.network.nat == "per-zone"
    assert settings.network.flow_logs
    assert settings.cluster.name == settings.slurm.cluster_name == "slipway-test"
    assert settings.cluster.deletion_protection
    assert settings.cluster.version == "1.36"
    assert settings.access.api_from == ()
    assert settings.slurm.cgroups
    assert settings.partitions[0].capacity == ("onDemand",)


def test_whole_node_is_its_size_less_what_kubernetes_needs() -> None:
    worker = read(MINIMAL).partitions[0]
    # 4 CPUs less 0.08 for the kubelet and 0.25 for add-ons; 16384 MiB * 0.925 - (255 + 11 * 58) - 100 - 512.
    assert (worker.cpu, worker.memory_mib) == (3, 13650)


def test_named_resources_are_taken_as_they_are() -> None:
    worker = read(partition(resources={"cpu": 0.5, "memory": "1.5Gi"})).partitions[0]
    assert (worker.cpu, worker.memory_mib) == (0.5, 1536)


def test_gpus_come_with_the_type() -> None:
    worker = read(partition(instances=["p5.48xlarge"])).partitions[0]
    assert (worker.gpu, worker.gpus) == ("H100", 8)


@pytest.mark.parametrize(("raw", "expected"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_refused(raw: dict[str, Any], expected: str) -> None:
    assert complaint(raw) == expected


def test_region_is_needed() -> None:
    assert complaint(MINIMAL, region=None) == (
        F + "aws:region: this key is needed.\n  Add the AWS region, for example aws:region: us-west-2."
    )


def test_all_problems_are_told_at_once_and_by_their_place_in_the_file() -> None:
    good = MINIMAL["partitions"][0]
    raw = changed(
        network={"nat": "none"},
        partitions=[good, {**good, "name": "Bad"}, good, {**good, "name": "far", "slurm": {"default": 1}}],
        users=[{"name": "x", "uid": 1}],
    )
    told = complaint(raw).splitlines()[::2]
    assert told == [
        F + 'network.nat: "none" is not allowed.',
        F + 'users[0] "x" uid: 1 is out of range.',
        F + 'partitions[1] "Bad" name: "Bad" cannot name a partition, a Kubernetes object and a host at once.',
        F + 'partitions[3] "far" slurm.default: 1 is not true or false.',
        F + 'partitions[2] "debug" name: partition "debug" is in the list already.',
    ]


def test_problems_name_the_line_in_the_stack_file(tmp_path: Path) -> None:
    (tmp_path / "stacks").mkdir()
    (tmp_path / FILE).write_text(
        "config:\n"
        "  aws:region: us-west-2\n"
        "  slipway:home: {ephemeral: true}\n"
        "  slipway:partitions:\n"
        "    - name: debug\n"
        "      instances: [m7i.xlarge]\n"
        "      nodes: {min: 9, max: 4}\n"
        "    - name: gpu\n"
        "      instances:\n"
        "        - g6.xlage\n"
        "      nodes: {min: 0, max: 4}\n"
    )
    config = yaml.safe_load((tmp_path / FILE).read_text())["config"]
    raw = {key.removeprefix("slipway:"): value for key, value in config.items() if key.startswith("slipway:")}
    with pytest.raises(SettingsError) as caught:
        read(raw, root=tmp_path)
    first, second = str(caught.value).splitlines()[::2]
    assert first.startswith(f'{FILE}:7: partitions[0] "debug" nodes: ')
    assert second.startswith(f'{FILE}:9: partitions[1] "gpu" instances: ')


@pytest.mark.parametrize("text", ["30", "30:00", "12:00:00", "2-0", "2-00:00", "2-00:00:00", "UNLIMITED", "unlimited"])
def test_time_limits_that_slurm_knows(text: str) -> None:
    assert read(partition(slurm={"maxTime": text})).partitions[0].slurm.max_time == text.upper()


@pytest.mark.parametrize("text", ["", "0", "00:00:00", "1:2:3:4", "2-", "-1", "1d", "infinite"])
def test_time_limits_that_slurm_does_not_know(text: str) -> None:
    assert "is no time limit that Slurm knows" in complaint(partition(slurm={"maxTime": text}))


names = st.from_regex(r"[a-z]([a-z0-9-]{0,8}[a-z0-9])?", fullmatch=True).filter(
    lambda name: name not in ("default", "system")
)
usable = sorted(
    name
    for name, kind in instance_types().items()
    if kind.arch == "x86_64" and kind.accelerator in (None, "nvidia") and kind.vcpus >= 2 and kind.memory_mib >= 4096
)


@st.composite
def partitions(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Valid partitions, as many as fit the default network."""
    chosen = draw(st.lists(names, min_size=1, max_size=4, unique=True))
    result = []
    for name in chosen:
        low = draw(st.integers(0, 10))
        entry: dict[str, Any] = {
            "name": name,
            "instances": [draw(st.sampled_from(usable))],
            "nodes": {"min": low, "max": draw(st.integers(max(low, 1), 15))},
            "zone": draw(st.sampled_from(["us-west-2a", "us-west-2b"])),
        }
        if draw(st.booleans()):
            entry["slurm"] = {"maxTime": f"{draw(st.integers(1, 30))}-00:00:00"}
        result.append(entry)
    return result


@hypothesis_settings(max_examples=100, deadline=None)
@given(partitions())
def test_valid_partitions_are_accepted_and_fit_their_nodes(entries: list[dict[str, Any]]) -> None:
    for worker in read(changed(partitions=entries)).partitions:
        kind = worker.types[0]
        assert 1 <= worker.cpu < kind.vcpus
        assert 256 <= worker.memory_mib < kind.memory_mib
        assert worker.gpus == kind.gpus


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
KEYS = ["network", "access", "cluster", "images", "slurm", "home", "users", "partitions", "tags"]


@hypothesis_settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS), json_values, max_size=5))
def test_nonsense_is_refused_in_words(raw: dict[str, Any]) -> None:
    """Whatever is written, the answer is settings or one SettingsError, never another exception."""
    try:
        read({**MINIMAL, **raw})
    except SettingsError as error:
        assert str(error).startswith(F)


@pytest.mark.parametrize("stack", ["local", "dev"])
def test_stacks_are_valid_by_program_and_by_editor(stack: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(ROOT / "stacks" / f"Pulumi.{stack}.yaml")]) == 0
    jsonschema.validate({"config": stack_config(stack)}, json.loads((ROOT / SCHEMA_FILE).read_text()))


def test_editor_refuses_unknown_keys() -> None:
    schema = json.loads(json_schema())
    for key in ("slipway:partitons", "slipway:x"):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({"config": {**stack_config("dev"), key: []}}, schema)


def test_check_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "Pulumi.mine.yaml"
    file.write_text("config: {aws:region: us-west-2, slipway:home: {ephemeral: true}}\n")
    assert main(["check", str(file)]) == 1
    assert f"{file}: partitions: this key is needed." in capsys.readouterr().err


def test_generated_files_are_up_to_date() -> None:
    assert main(["schema", "--check"]) == main(["docs", "--check"]) == 0, "run: make generate"


def test_every_key_is_documented() -> None:
    """A key without a word on it would be refused in words that say nothing."""

    def walk(model: type[BaseModel]) -> None:
        for name, field in model.model_fields.items():
            assert field.description, f"{model.__name__}.{name}"
            inner = model_of(field.annotation)
            if inner:
                walk(inner)

    walk(Settings)


def test_program_refuses_before_it_registers_anything() -> None:
    config = {**stack_config("dev"), "slipway:partitons": []}
    recording = run("dev", config=config)
    assert recording.exit_code != 0
    assert "stacks/Pulumi.dev.yaml: partitons: there is no such key." in recording.output
    assert "Traceback" not in recording.output
    assert [r.type for r in recording.resources] == ["pulumi:pulumi:Stack"]


def test_program_refuses_unknown_keys_of_the_provider() -> None:
    recording = run("dev", config={**stack_config("dev"), "aws:profil": "mine"})
    assert recording.exit_code != 0
    assert 'aws:profil: the AWS provider has no such key.\n  Did you mean "profile"?' in recording.output


def test_keys_of_the_provider_reach_it() -> None:
    config = {**stack_config("dev"), "aws:profile": "mine", "aws:defaultTags": {"tags": {"team": "hpc"}}}
    provider = run("dev", config=config).one("providers:aws")
    assert provider.inputs["profile"] == "mine"
    assert json.loads(provider.inputs["defaultTags"])["tags"]["team"] == "hpc"


def test_addons_are_known_for_every_supported_version() -> None:
    for versions in addon_versions().values():
        assert set(versions) == {
            "vpc-cni",
            "kube-proxy",
            "coredns",
            "eks-pod-identity-agent",
            "aws-ebs-csi-driver",
        }


def test_instance_facts_are_those_of_their_source() -> None:
    from components.data import make_instance_types

    written = json.loads(make_instance_types.TARGET.read_text())
    assert written == json.loads(make_instance_types.text())
