"""Flags, roles and kubeconfigs: what is accepted, and what a wrong one says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from slurm_operator import __version__
from slurm_operator.__main__ import main
from slurm_operator.kube import rbac
from slurm_operator.kube.auth import AccessError, TokenFile, from_kubeconfig, load_access
from slurm_operator.kube.objects import canonical_hash, condition, holds, set_conditions
from slurm_operator.kube.resources import (
    LEASES,
    NODES,
    PODS,
    SECRETS,
    Resource,
    resource_for,
)
from slurm_operator.runtime.settings import parse


def test_flags() -> None:
    command = parse(["--namespaces", "a,b,a", "--no-leader-elect", "--workers", "2", "--health-port", "0"])
    assert command.name == "run"
    assert command.settings.namespaces == ("a", "b")
    assert not command.settings.leader_elect
    assert (command.settings.workers, command.settings.health_port, command.settings.metrics_port) == (2, 0, 8080)
    assert parse([]).settings.identity != parse([]).settings.identity


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--namespaces", "A b"], "'A b' is no name of a namespace"),
        (["--metrics-port", "70000"], "a port from 1 to 65535"),
        (["--workers", "0"], "1 to 64"),
        (["--log-level", "loud"], "debug"),
        (["serve"], "invalid choice"),
    ],
)
def test_wrong_flags_say_what_is_allowed(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(arguments)
    assert caught.value.code == 2
    assert says in capsys.readouterr().err


def test_version_and_roles_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--version"])
    assert capsys.readouterr().out.strip() == __version__
    assert main(["rbac"]) == 0
    roles = list(yaml.safe_load_all(capsys.readouterr().out))
    assert [role["kind"] for role in roles] == ["ClusterRole", "Role"]


def test_without_a_cluster_it_says_what_is_missing(tmp_path: Path) -> None:
    source = Path(__file__).parents[2] / "src"
    environment = {"PYTHONPATH": str(source), "HOME": str(tmp_path), "PATH": ""}
    ended = subprocess.run(
        [sys.executable, "-m", "slurm_operator"], env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    assert "pass --kubeconfig FILE" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_roles_come_from_the_table() -> None:
    cluster, own = yaml.safe_load_all(rbac.render())
    flat = {(rule["apiGroups"][0], name): rule["verbs"] for rule in cluster["rules"] for name in rule["resources"]}
    assert flat["", "nodes"] == ["get", "list", "watch"]
    assert flat["slinky.slurm.net", "nodesets/status"] == ["patch"]
    assert flat["", "pods/eviction"] == ["create"]
    assert "*" not in rbac.render()
    assert ("coordination.k8s.io", "leases") not in flat
    assert own["rules"] == [
        {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["get", "patch"]},
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update"]},
    ]


def test_roles_of_single_namespaces_give_nothing_elsewhere() -> None:
    cluster, one, two, own = yaml.safe_load_all(rbac.render(namespaces=["a", "b"], own_namespace="op"))
    assert [rule["resources"] for rule in cluster["rules"]] == [["nodes"]]
    assert [role["metadata"]["namespace"] for role in (one, two, own)] == ["a", "b", "op"]
    assert one["rules"] == two["rules"]


def test_the_table_answers() -> None:
    assert rbac.allows("list", PODS, cluster_wide=True)
    assert rbac.allows("update", LEASES)
    assert not rbac.allows("list", LEASES)
    assert not rbac.allows("delete", NODES)
    assert not rbac.allows("update", PODS)
    assert not rbac.allows("get", SECRETS, "status")


def kubeconfig(path: Path, server: str = "http://127.0.0.1:8001", **user: object) -> Path:
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "n"}}],
        "clusters": [{"name": "k", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": user}],
    }
    file = path / "config"
    file.write_text(yaml.safe_dump(config))
    return file


def test_kubeconfig(tmp_path: Path) -> None:
    access = from_kubeconfig(kubeconfig(tmp_path, token="secret"))
    assert (access.server, access.namespace) == ("http://127.0.0.1:8001", "n")
    assert access.token is not None
    assert access.token() == "secret"
    (tmp_path / "t").write_text("from a file\n")
    access = from_kubeconfig(kubeconfig(tmp_path, tokenFile="t"))
    assert access.token is not None
    assert access.token() == "from a file"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("current-context: x", "no entry named 'x'; it has none"),
        ("a: [", "config"),
        ("", "no entry named ''"),
    ],
)
def test_broken_kubeconfigs_name_what_is_wrong(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "config"
    file.write_text(text)
    with pytest.raises(AccessError, match=says):
        from_kubeconfig(file)


def test_plug_ins_and_strange_servers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(AccessError, match="kubectl proxy"):
        from_kubeconfig(kubeconfig(tmp_path, exec={"command": "aws"}))
    with pytest.raises(AccessError, match="ftp://x"):
        from_kubeconfig(kubeconfig(tmp_path, server="ftp://x"))
    with pytest.raises(AccessError, match="certificates cannot be used"):
        from_kubeconfig(kubeconfig(tmp_path, server="https://x", **{"client-certificate": "no", "client-key": "no"}))


def test_no_cluster_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(AccessError, match="no kubeconfig at"):
        load_access()


def test_token_files_are_read_again_and_survive_a_moment_without(tmp_path: Path) -> None:
    now = 0.0
    path = tmp_path / "token"
    token = TokenFile(path, clock=lambda: now)
    with pytest.raises(AccessError):
        token()
    path.write_text("one")
    assert token() == "one"
    path.write_text("two")
    assert token() == "one"
    now = 61
    assert token() == "two"
    path.unlink()
    now = 130
    assert token() == "two"


def test_resources() -> None:
    assert PODS.path("ns", "p", "status") == "/api/v1/namespaces/ns/pods/p/status"
    assert LEASES.path() == "/apis/coordination.k8s.io/v1/leases"
    assert NODES.path(None, "n") == "/api/v1/nodes/n"
    with pytest.raises(ValueError, match="namespace is needed"):
        PODS.path(None, "p")
    assert isinstance(resource_for("slinky.slurm.net/v1beta1", "NodeSet"), Resource)
    with pytest.raises(KeyError, match="Ingress"):
        resource_for("networking.k8s.io/v1", "Ingress")


def test_conditions_keep_their_time_until_the_status_changes() -> None:
    old = [{"type": "Ready", "status": "True", "reason": "A", "lastTransitionTime": "2026-01-01T00:00:00Z"}]
    same = set_conditions(old, [{"type": "Ready", "status": "True", "reason": "B"}])
    assert same[0]["lastTransitionTime"] == "2026-01-01T00:00:00Z"
    assert same[0]["reason"] == "B"
    other = set_conditions(old, [{"type": "Ready", "status": "False", "reason": "B"}])
    assert other[0]["lastTransitionTime"] > "2026-01-01T00:00:00Z"
    assert condition({"status": {"conditions": old}}, "Ready") == old[0]
    assert condition({}, "Ready") is None


def test_hashes_and_comparisons() -> None:
    assert canonical_hash({"a": 1, "b": [2]}) == canonical_hash({"b": [2], "a": 1})
    assert canonical_hash({"a": 1}) != canonical_hash({"a": 2})
    assert holds({"a": {"b": 1, "c": 2}, "l": [1, {"x": 1, "y": 2}]}, {"a": {"b": 1}, "l": [1, {"x": 1}]})
    assert not holds({"a": 1}, {"a": 1, "b": 2})
    assert not holds({"l": [1, 2]}, {"l": [1]})
    assert not holds({}, {"a": None})
