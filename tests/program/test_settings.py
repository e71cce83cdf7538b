"""Settings: what is accepted, what is refused and in which words."""

from __future__ import annotations

import copy
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

FILE = Path("stacks/Pulumi.test.yaml")
MINIMAL: dict[str, Any] = {
    "home": {"ephemeral": True},
    "partitions": [{"name": "debug", "instances": ["m7i.xlarge"], "nodes": {"min": 1, "max": 4}}],
}


def read(raw: dict[str, Any], region: str | None = "us-west-2", root: Path = Path("/nowhere")) -> Settings:
    return parse(raw, stack="test", region=region, file=FILE, root=root)


def changed(**keys: Any) -> dict[str, Any]:
    return {**copy.deepcopy(MINIMAL), **keys}


def partition(**keys: Any) -> dict[str, Any]:
    return changed(partitions=[{**copy.deepcopy(MINIMAL["partitions"][0]), **keys}])


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


F = f"{FILE}: "
P = F + 'partitions[0] "debug"'
BAD: list[tuple[str, dict[str, Any], str]] = [
    (
        "unknown key",
        changed(partitons=[]),
        F + "partitons: there is no such key.\n"
        '  Did you mean "partitions"? '
        "Keys here: access, cluster, home, images, network, partitions, slurm, tags, users.",
    ),
    (
        "unknown key inside a list",
        partition(slurm={"maxtime": "30"}),
        P + " slurm.maxtime: there is no such key.\n"
        '  Did you mean "maxTime"? Keys here: default, maxTime, priorityTier.',
    ),
    (
        "missing key",
        {"home": {"ephemeral": True}},
        F + "partitions: this key is needed.\n  Add it: Slurm's partitions, each with its nodes.",
    ),
    (
        "wrong type",
        partition(nodes={"min": "1", "max": 4}),
        P + ' nodes.min: "1" is not a whole number.\n  Write a whole number: Nodes that always run.',
    ),
    (
        "wrong choice",
        changed(network={"nat": "perzone"}),
        F + 'network.nat: "perzone" is not allowed.\n  Did you mean "per-zone"? Allowed: per-zone or single.',
    ),
    (
        "out of range",
        partition(diskGiB=5),
        P + " diskGiB: 5 is out of range.\n  Write at least 20: Root volume (gp3) in GiB.",
    ),
    (
        "min above max",
        partition(nodes={"min": 5, "max": 4}),
        P + " nodes: min is 5 and max is 4.\n  min may not be above max.",
    ),
    (
        "mistyped instance type",
        partition(instances=["g6.xlagre"]),
        P + ' instances: there is no EC2 instance type "g6.xlagre".\n'
        '  Did you mean "g6.xlarge"? See components/data/instance_types.json for all that are known.',
    ),
    (
        "arm",
        partition(instances=["m7g.xlarge"]),
        P + " instances: m7g.xlarge has arm64 processors.\n  The images are built for x86_64: use such a type.",
    ),
    (
        "accelerators that are no NVIDIA GPUs",
        partition(instances=["trn1.2xlarge"]),
        P + " instances: trn1.2xlarge has neuron accelerators.\n  Only NVIDIA GPUs and plain CPU types are supported.",
    ),
    (
        "types that differ in GPUs",
        partition(instances=["g6.xlarge", "m7i.xlarge"]),
        P + ": g6.xlarge has 1 L4 and m7i.xlarge has no GPU.\n"
        "  The nodes of a partition must be alike: make two partitions.",
    ),
    (
        "types that differ in size",
        partition(instances=["m7i.xlarge", "m7i.2xlarge"]),
        P + ": m7i.xlarge has 4 CPUs and m7i.2xlarge has 8.\n"
        "  The nodes of a partition must be alike: use types of one size, or make two partitions.",
    ),
    (
        "more CPUs than a node has",
        partition(resources={"cpu": 64}),
        P + ": resources.cpu asks for 64 per node, m7i.xlarge has 4 CPUs of which 3.67 are free for Slurm.\n"
        "  Ask for at most 3.67, use a larger type, or leave cpu out to get the whole node.",
    ),
    (
        "more memory than a node has",
        partition(resources={"memory": "64Gi"}),
        P + ": resources.memory asks for 64Gi per node, m7i.xlarge has 16384 MiB of which 13650 MiB are free for Slurm."
        "\n  Ask for at most 13650Mi, use a larger type, or leave memory out to get the whole node.",
    ),
    (
        "more GPUs than a node has",
        partition(instances=["g6.xlarge"], resources={"gpus": 2}),
        P + ": resources.gpus asks for 2 per node, g6.xlarge has 1 L4.\n"
        "  Ask for no more than it has, or use a larger type.",
    ),
    (
        "GPUs of a type without",
        partition(resources={"gpus": 1}),
        P + ": resources.gpus asks for 1 per node, m7i.xlarge has no GPU.\n"
        "  Remove it, or use a GPU type such as g6.xlarge.",
    ),
    (
        "too small a type",
        partition(instances=["t3.nano"]),
        P + ": t3.nano is too small: nothing is left for Slurm.\n  Use a type with 2 CPUs and 2 GiB or more.",
    ),
    (
        "spot where there is none",
        partition(instances=["hpc7a.12xlarge"], capacity=["spot"]),
        P + ": hpc7a.12xlarge cannot be bought as spot.\n  Use capacity: [onDemand], or another type.",
    ),
    (
        "two kinds of capacity",
        partition(capacity=["spot", "onDemand"]),
        P + " capacity: there are 2 entries.\n  Write at most 1: How nodes are bought: `onDemand`, or `spot`, "
        "which AWS may take back with two minutes' notice.",
    ),
    (
        "name that Slurm or Kubernetes refuses",
        changed(partitions=[{**MINIMAL["partitions"][0], "name": "GPU_1"}]),
        F + 'partitions[0] "GPU_1" name: "GPU_1" cannot name a partition, a Kubernetes object and a host at once.\n'
        "  Use at most 30 small letters, digits and dashes, a letter first and no dash last.",
    ),
    (
        "reserved name",
        changed(partitions=[{**MINIMAL["partitions"][0], "name": "default"}]),
        F + 'partitions[0] "default" name: "default" is reserved: Slurm reads PartitionName=DEFAULT as the defaults of '
        "all partitions.\n  Choose another name.",
    ),
    (
        "time that is none",
        partition(slurm={"maxTime": "2 days"}),
        P + ' slurm.maxTime: "2 days" is no time limit that Slurm knows.\n'
        '  Write "30" (minutes), "12:00:00", "2-00:00:00" (days-hours:minutes:seconds) or "UNLIMITED".',
    ),
    (
        "time that YAML took for a number",
        partition(slurm={"maxTime": 43200}),
        P + ' slurm.maxTime: YAML reads it as the number 43200, and this is text.\n  Put it in quotes: "…".',
    ),
    (
        "two partitions of one name",
        changed(partitions=MINIMAL["partitions"] * 2),
        F + 'partitions[1] "debug" name: partition "debug" is in the list already.\n'
        "  Remove one of the two or rename it.",
    ),
    (
        "two default partitions",
        changed(
            partitions=[
                {**MINIMAL["partitions"][0], "name": name, "slurm": {"default": True}} for name in ("one", "two")
            ]
        ),
        F + 'partitions[1] "two" slurm.default: "one" is the default partition already.\n'
        "  Slurm has one: set default: true on one partition only.",
    ),
    (
        "zone outside the network",
        partition(zone="us-west-2d"),
        P + ' zone: zone "us-west-2d" is not one of network.zones.\n'
        "  Use one of us-west-2a, us-west-2b, or add it to network.zones.",
    ),
    (
        "one zone",
        changed(network={"zones": ["us-west-2a"]}),
        F + "network.zones: there is only 1 zone.\n  EKS needs two: add another, for example us-west-2b.",
    ),
    (
        "zone of another region",
        changed(network={"zones": ["us-west-2a", "us-east-1a"]}),
        F + 'network.zones[1]: "us-east-1a" is no availability zone of aws:region us-west-2.\n'
        "  Use names such as us-west-2a.",
    ),
    (
        "no network",
        changed(network={"cidr": "10.1.3.0/20"}),
        F + 'network.cidr: "10.1.3.0/20" is no network in CIDR notation.\n  Use 10.1.0.0/20.',
    ),
    (
        "network too small for the nodes",
        changed(
            network={"cidr": "10.1.0.0/24"},
            partitions=[{**MINIMAL["partitions"][0], "nodes": {"min": 0, "max": 20}}],
        ),
        F + "network.cidr: 10.1.0.0/24 gives zone us-west-2a 59 addresses, and its 23 nodes may take 276 (12 each, for "
        "the node and its pods).\n  Use a larger network (up to /16; each step up has twice as many), lower nodes.max, "
        "or move partitions to other zones.",
    ),
    (
        "network of services",
        changed(network={"cidr": "172.20.0.0/20"}),
        F
        + "network.cidr: 172.20.0.0/20 overlaps 10.100.0.0/16 or 172.20.0.0/16, from which EKS takes the addresses of "
        "services.\n  Use another network, for example 10.1.0.0/20.",
    ),
    (
        "API open to the world",
        changed(access={"apiFrom": ["0.0.0.0/0"]}),
        F + 'access.apiFrom: "0.0.0.0/0" opens the Kubernetes API to the whole internet.\n'
        "  List the networks of your offices, VPN or CI runners, /8 or smaller, or leave the list empty.",
    ),
    (
        "API from a private network",
        changed(access={"apiFrom": ["192.168.0.0/16"]}),
        F + "access.apiFrom[0]: 192.168.0.0/16 is a private network, which the internet does not carry.\n"
        "  List the public addresses that your network shows to the internet, for example 203.0.114.7/32.",
    ),
    (
        "session instead of role",
        changed(access={"admins": ["arn:aws:sts::123456789012:assumed-role/dev/me"]}),
        F + 'access.admins: "arn:aws:sts::123456789012:assumed-role/dev/me" is no ARN of an IAM role or user.\n'
        "  Write arn:aws:iam::<account>:role/<path and name>; for a session of an assumed role, its role.",
    ),
    (
        "Kubernetes that EKS has not",
        changed(cluster={"version": "1.29"}),
        F + 'cluster.version: Kubernetes "1.29" is not supported.\n'
        "  Use one of 1.36, 1.35: those are in EKS's standard support and tested.",
    ),
    (
        "version that YAML took for a number",
        changed(cluster={"version": 1.36}),
        F + 'cluster.version: YAML reads it as the number 1.36, and this is text.\n  Put it in quotes: "…".',
    ),
    (
        "system nodes with GPUs",
        changed(cluster={"systemNodes": {"instances": ["g6.xlarge"]}}),
        F + "cluster.systemNodes.instances: g6.xlarge has GPUs, which nothing on these nodes uses.\n"
        "  Use a type without, such as m7i.xlarge.",
    ),
    (
        "no system node",
        changed(cluster={"systemNodes": {"nodes": {"min": 0, "max": 1}}}),
        F + "cluster.systemNodes.nodes: min is 0.\n  The operator and Slurm's daemons need at least one node.",
    ),
    (
        "parameter that slipway sets",
        changed(slurm={"conf": {"AuthType": "auth/munge"}}),
        F + "slurm.conf: AuthType is set by slipway.\n  Remove it here; its value follows from the other keys.",
    ),
    (
        "parameter with a line of its own",
        changed(slurm={"conf": {"Prolog": "x\nSlurmUser=root"}}),
        F + 'slurm.conf: "Prolog" is no parameter of slurm.conf on one line.\n  Write Name: value, one line each.',
    ),
    (
        "two homes",
        changed(home={"ephemeral": True, "hostPath": "/home"}),
        F + "home: exactly one kind of home is needed.\n  Set one of nfs, claim, hostPath or ephemeral: true.",
    ),
    (
        "image that is none",
        changed(images={"overrides": {"slurmd": "slurmd"}}),
        F + 'images.overrides: "slurmd" is no full image reference.\n'
        "  Write registry/repository:tag or registry/repository@sha256:<digest>.",
    ),
    (
        "image that nobody uses",
        changed(images={"overrides": {"munge": "ghcr.io/x/munge:1"}}),
        F + 'images.overrides: there is no image "munge".\n'
        "  Images: slurmctld, slurmd, slurmdbd, slurmrestd, login, slurm-operator.",
    ),
    (
        "system account",
        changed(users=[{"name": "alice", "uid": 401}]),
        F + 'users[0] "alice" uid: 401 is out of range.\n'
        "  Write at least 1000: User id, 1000 to 60000; keep it for life, files belong to it.",
    ),
    (
        "two users of one uid",
        changed(users=[{"name": "alice", "uid": 2001}, {"name": "bob", "uid": 2001}]),
        F + 'users[1] "bob" uid: 2001 is the uid of "alice" already.\n'
        "  Give each user a uid of their own: who shares one shares all files and jobs.",
    ),
    (
        "private key",
        changed(users=[{"name": "alice", "uid": 2001, "sshKeys": ["-----BEGIN"]}]),
        F + 'users[0] "alice" sshKeys[0]: this is no SSH public key.\n'
        "  Paste the line of the .pub file: ssh-ed25519 AAAA… comment.",
    ),
    (
        "tag of AWS",
        changed(tags={"aws:x": "y"}),
        F + 'tags: "aws:x" cannot be used as a tag.\n'
        "  Keys have 1 to 128 letters and do not begin with aws: or slipway:, values have at most 256.",
    ),
    (
        "text where keys are wanted",
        changed(images="ghcr.io"),
        F + 'images: "ghcr.io" is not keys with values.\n'
        "  Write keys with values: Where the container images come from.",
    ),
]


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
