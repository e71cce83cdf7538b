"""What is written for nodes and daemons: files, certificates, images, patches."""

from __future__ import annotations

import base64
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509

from localcloud.kubernetes import addons, controlplane, nodefiles, nodes, pki
from localcloud.kubernetes.api import Api
from localcloud.kubernetes.archive import write_image
from localcloud.kubernetes.errors import ClusterError
from localcloud.kubernetes.nodefiles import Node
from localcloud.kubernetes.specs import NodeSpec, Taint
from localcloud.paths import Instance


@pytest.fixture
def inst(tmp_path: Path) -> Instance:
    return Instance(name="unit", net=120, state=tmp_path / "state")


def test_a_nodes_files_carry_its_number(inst: Instance) -> None:
    spec = NodeSpec("n7", taints=(Taint("a", "b", "NoSchedule"),), provider_id="aws:///z/i-7")
    files = nodefiles.files(Node(inst, spec, 7), (), hybrid=True)
    kubelet: dict[str, Any] = yaml.safe_load(files["kubelet.yaml"])
    assert kubelet["cgroupRoot"] == "/slipway-unit/n7"
    assert kubelet["clusterDNS"] == ["10.122.0.10"]
    assert kubelet["providerID"] == "aws:///z/i-7"
    assert kubelet["registerWithTaints"] == [{"key": "a", "value": "b", "effect": "NoSchedule"}]
    network = json.loads(files["cni/10-pods.conflist"])
    assert network["plugins"][0]["ipam"]["ranges"] == [[{"subnet": "10.121.7.0/24"}]]
    assert yaml.safe_load(files["kube-proxy.yaml"])["hostnameOverride"] == "n7"
    assert "http://10.120.0.1:5000" in files["registries/_default/hosts.toml"]


def test_a_node_sees_the_state_below_its_own_var(inst: Instance) -> None:
    files = nodefiles.files(Node(inst, NodeSpec("n1"), 1), (Path("/var/lib/slipway/unit"),), hybrid=False)
    own = f"{inst.state}/nodes/n1/var"
    script = files["init.sh"]
    assert script.index(f"'/var/lib/slipway/unit' '{own}/lib/slipway/unit'") < script.index(f"'{own}' /var")
    assert "unified" not in script


def test_every_node_mounts_the_same_home_directories(inst: Instance) -> None:
    script = nodefiles.files(Node(inst, NodeSpec("n1"), 1), (), hybrid=True)["init.sh"]
    bind = script.index(f"mount --bind '{inst.state}/home' {nodefiles.SHARED_HOME}")
    assert script.index("mount -t tmpfs -o mode=755 tmpfs /mnt") < bind < script.index("/var' /var\n")


def test_instances_share_no_address_and_no_port(tmp_path: Path) -> None:
    one, two = (Instance(name=f"i{net}", net=net, state=tmp_path / str(net)) for net in (120, 123))
    words = [
        {word for daemon in controlplane.daemons(inst, Path("/bin")) for word in daemon.argv[1:] if "=" in word}
        for inst in (one, two)
    ]
    same = {word for word in words[0] & words[1] if "10.1" in word or "127.0.0.1" in word}
    assert same == set()
    assert not one.service_network.overlaps(two.node_network)


def test_certificates_are_made_once_and_repaired_alone(inst: Instance) -> None:
    directory = pki.ensure_pki(inst)
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    pki.ensure_pki(inst)
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before
    (directory / "scheduler.crt").write_text("half a certif")
    pki.ensure_pki(inst)
    after = {path.name: path.read_bytes() for path in directory.iterdir()}
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"scheduler.crt", "scheduler.key", "scheduler.kubeconfig"}
    assert all(path.stat().st_mode & 0o077 == 0 for path in [*directory.iterdir(), directory, inst.kubeconfig])


def test_the_api_servers_certificate_names_its_addresses(inst: Instance) -> None:
    certificate = x509.load_pem_x509_certificate((pki.ensure_pki(inst) / "apiserver.crt").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {str(ip) for ip in names.get_values_for_type(x509.IPAddress)} == {"127.0.0.1", "10.120.0.1", "10.122.0.1"}
    assert "kubernetes.default.svc" in names.get_values_for_type(x509.DNSName)


def test_a_node_that_got_another_address_gets_another_certificate(inst: Instance) -> None:
    directory = pki.ensure_pki(inst)
    pki.ensure_certificate(directory, pki.node_subject("n1", "10.120.0.11"))
    first = (directory / "node-n1.crt").read_bytes()
    pki.ensure_certificate(directory, pki.node_subject("n1", "10.120.0.12"))
    assert (directory / "node-n1.crt").read_bytes() != first


def test_a_kubeconfig_that_cannot_be_used_is_told_apart(inst: Instance, tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="No such file"):
        Api(tmp_path / "absent")
    broken = tmp_path / "broken"
    broken.write_text("clusters: []")
    with pytest.raises(ClusterError, match="cannot be read"):
        Api(broken)
    plugin = tmp_path / "plugin"
    plugin.write_text(pki.kubeconfig_text("c", "https://127.0.0.1:1", "u", {"exec": {"command": "x"}}, None))
    with pytest.raises(ClusterError, match="neither a client certificate nor a token; it has: exec"):
        Api(plugin)


def test_a_kubeconfig_may_name_files(inst: Instance, tmp_path: Path) -> None:
    directory = pki.ensure_pki(inst)
    document = yaml.safe_load(inst.kubeconfig.read_text())
    document["clusters"][0]["cluster"] = {"server": "https://x:6443", "certificate-authority": "pki/ca.crt"}
    document["users"][0]["user"] = {"client-certificate": "pki/admin.crt", "client-key": "pki/admin.key"}
    file = inst.state / "by-file"
    file.write_text(yaml.safe_dump(document))
    assert Api(file).ca == (directory / "ca.crt").read_bytes()
    data = yaml.safe_load(inst.kubeconfig.read_text())["clusters"][0]["cluster"]["certificate-authority-data"]
    assert Api(inst.kubeconfig).ca == base64.b64decode(data)


def test_an_image_holds_its_programs_and_depends_on_nothing_else(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF")
    for out in ("a.tar", "b.tar"):
        write_image(tmp_path / out, "local/x:1", {"/bin/program": program}, {"Entrypoint": ["/bin/program"]})
        program.touch()
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()
    with tarfile.open(tmp_path / "a.tar") as archive:
        manifest = json.load(archive.extractfile("manifest.json") or pytest.fail())
        assert manifest[0]["RepoTags"] == ["local/x:1"]
        with tarfile.open(fileobj=archive.extractfile("layer.tar")) as layer:
            member = layer.getmember("bin/program")
            assert (member.mode, member.uid) == (0o755, 0)


def obj(labels: dict[str, str], taints: list[dict[str, str]]) -> dict[str, Any]:
    return {"metadata": {"labels": labels}, "spec": {"taints": taints}}


THEIRS = {"key": "theirs", "effect": "NoExecute"}


@pytest.mark.parametrize(
    ("node", "spec", "before", "patch"),
    [
        (obj({"a": "b"}, []), NodeSpec("n", {"a": "b"}), None, {}),
        (obj({}, []), NodeSpec("n", {"a": "b"}), None, {"metadata": {"labels": {"a": "b"}}}),
        (obj({"a": "b"}, []), NodeSpec("n"), NodeSpec("n", {"a": "b"}), {"metadata": {"labels": {"a": None}}}),
        (obj({"a": "b"}, []), NodeSpec("n"), None, {}),
        (
            obj({}, [THEIRS]),
            NodeSpec("n", taints=(Taint("k", "v", "NoSchedule"),)),
            None,
            {"spec": {"taints": [THEIRS, {"key": "k", "value": "v", "effect": "NoSchedule"}]}},
        ),
        (
            obj({}, [THEIRS, {"key": "k", "effect": "NoSchedule"}]),
            NodeSpec("n"),
            NodeSpec("n", taints=(Taint("k", "", "NoSchedule"),)),
            {"spec": {"taints": [THEIRS]}},
        ),
    ],
    ids=["as-it-is", "label", "dropped-label", "label-of-others", "taint", "dropped-taint"],
)
def test_only_what_differs_and_is_ours_is_patched(
    node: dict[str, Any], spec: NodeSpec, before: NodeSpec | None, patch: dict[str, Any]
) -> None:
    assert nodes.label_patch(node, spec, before) == patch


@pytest.mark.parametrize(
    ("status", "heard", "since", "reason"),
    [
        ("True", "2026-01-01T00:00:10Z", 1767225609.5, None),
        ("True", "2026-01-01T00:00:10Z", 1767225610.9, None),
        ("True", "2026-01-01T00:00:10Z", 1767225611.0, "its kubelet has not reported since it started"),
        ("False", "2026-01-01T00:00:10Z", 0.0, "runtime is down"),
    ],
)
def test_ready_counts_only_if_the_present_kubelet_said_it(
    status: str, heard: str, since: float, reason: str | None
) -> None:
    condition = {"type": "Ready", "status": status, "lastHeartbeatTime": heard, "message": "runtime is down"}
    assert nodes.not_ready({"status": {"conditions": [condition]}}, since) == reason


def test_coredns_answers_at_the_address_that_kubelets_are_told(inst: Instance) -> None:
    objects = {obj["kind"]: obj for _, obj in addons.coredns_objects(inst, replicas=2)}
    assert objects["Service"]["spec"]["clusterIP"] == str(inst.dns_ip)
    assert objects["Deployment"]["spec"]["replicas"] == 2
    container = objects["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}
