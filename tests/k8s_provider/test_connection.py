"""How the provider gets to its cluster: kubeconfigs, exec plugins, and what it does when there is no way."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from pulumi.runtime.proto import provider_pb2 as pb

from localcloud.kubernetes.api import Api
from localcloud.kubernetes.provider.wire import UNKNOWN
from localcloud.paths import Instance
from tests.k8s_provider.harness import CallFailed, Provider, Resource, environment, later, running
from tests.k8s_provider.test_helm import RELEASE, chart, release  # noqa: F401  # a fixture
from tests.k8s_provider.test_objects import CONFIG_MAP, config_map


@pytest.fixture(scope="package")
def token(api: Api) -> str:
    """A token of a service account that may do everything."""
    account = "/api/v1/namespaces/default/serviceaccounts"
    api.request("POST", account, {"metadata": {"name": "robot"}})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    subject = {"kind": "ServiceAccount", "name": "robot", "namespace": "default"}
    binding = {"metadata": {"name": "robot"}, "roleRef": role, "subjects": [subject]}
    api.request("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding)
    return str(api.request("POST", f"{account}/robot/token", {"spec": {}})["status"]["token"])


def with_user(kubeconfig: str, user: dict[str, Any], **cluster: Any) -> str:
    """The kubeconfig with another user, and with changes to its cluster."""
    config = yaml.safe_load(kubeconfig)
    config["users"][0]["user"] = user
    config["clusters"][0]["cluster"] |= cluster
    return json.dumps(config)


def plugin(folder: Path, tokens: list[str], expires: timedelta | None = None) -> dict[str, Any]:
    """A user with an exec plugin that gives one token after the other and counts how often it was run."""
    (folder / "tokens").write_text("\n".join(tokens))
    script = folder / "get-token"
    status = {"token": "TOKEN"}
    if expires:
        status["expirationTimestamp"] = (datetime.now(UTC) + expires).strftime("%Y-%m-%dT%H:%M:%SZ")
    answer = json.dumps({"kind": "ExecCredential", "apiVersion": API_VERSION, "status": status})
    script.write_text(
        f'#!/bin/bash\ncd {folder}; echo run >>runs; echo "$@" >args\n'
        f"printenv KUBERNETES_EXEC_INFO GREETING >environment\n"
        f'n=$(wc -l <runs); t=$(sed -n ${{n}}p tokens); [ -n "$t" ] || t=$(tail -n1 tokens)\n'
        f"echo '{answer}' | sed s/TOKEN/$t/\n"
    )
    script.chmod(0o755)
    return {"exec": {"apiVersion": API_VERSION, "command": str(script), "args": ["get-token", "--cluster-name", "x"]}}


API_VERSION = "client.authentication.k8s.io/v1beta1"


def runs(folder: Path) -> int:
    return len((folder / "runs").read_text().splitlines()) if (folder / "runs").exists() else 0


def test_an_exec_plugin_is_run_once_for_many_requests(
    kubeconfig: str, token: str, namespace: str, program: Path
) -> None:
    user = plugin(program, [token], timedelta(minutes=14))
    user["exec"]["env"] = [{"name": "GREETING", "value": "hello"}]
    with running(program, kubeconfig=with_user(kubeconfig, user)) as provider:
        provider.create(CONFIG_MAP, "seen-first", config_map(namespace, "a"), preview=True)
        with ThreadPoolExecutor() as pool:
            names = [f"c{number}" for number in range(8)]
            made = list(pool.map(lambda name: provider.create(CONFIG_MAP, name, config_map(namespace, name)), names))
        provider.delete(made[0])
    assert runs(program) == 1
    told = (program / "environment").read_text()
    assert "hello" in told and '"kind": "ExecCredential"' in told
    assert (program / "args").read_text().split() == ["get-token", "--cluster-name", "x"]


def test_an_exec_plugin_is_not_run_where_nothing_is_asked(kubeconfig: str, program: Path, namespace: str) -> None:
    with running(program, kubeconfig=with_user(kubeconfig, plugin(program, ["none"]))) as provider:
        inputs, _ = provider.checked(CONFIG_MAP, "a", config_map(namespace, "a"))
        same = Resource(CONFIG_MAP, "a", f"{namespace}/a", inputs, inputs)
        assert provider.diff(same, config_map(namespace, "a")).changes == pb.DiffResponse.DIFF_NONE
    assert runs(program) == 0


def test_a_token_that_ends_soon_or_is_refused_is_got_anew(
    kubeconfig: str, token: str, namespace: str, program: Path
) -> None:
    user = plugin(program, [token], timedelta(seconds=30))
    with running(program, kubeconfig=with_user(kubeconfig, user)) as provider:
        provider.create(CONFIG_MAP, "a", config_map(namespace, "a"))
    assert runs(program) > 1
    (program / "runs").unlink()
    user = plugin(program, ["refused", token], timedelta(minutes=14))
    with running(program, kubeconfig=with_user(kubeconfig, user)) as provider:
        provider.create(CONFIG_MAP, "b", config_map(namespace, "b"))
    assert runs(program) == 2


def test_helm_uses_the_same_token(kubeconfig: str, token: str, namespace: str, program: Path, chart: Path) -> None:  # noqa: F811
    user = plugin(program, [token], timedelta(minutes=14))
    with running(program, kubeconfig=with_user(kubeconfig, user)) as provider:
        made = provider.create(RELEASE, "app", release(namespace))
        provider.delete(made)
    assert runs(program) == 1


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("no-such-program", "no-such-program is not on PATH. Install no-such-program"),
        ("false", "`false get-token` failed with exit code 1"),
        ("true", "`true get-token` printed no ExecCredential"),
    ],
)
def test_a_plugin_that_does_not_work_is_named(
    kubeconfig: str, namespace: str, program: Path, command: str, says: str
) -> None:
    user = {"exec": {"apiVersion": API_VERSION, "command": command, "args": ["get-token"]}}
    with (
        running(program, kubeconfig=with_user(kubeconfig, user)) as provider,
        pytest.raises(CallFailed) as caught,
    ):
        provider.create(CONFIG_MAP, "a", config_map(namespace, "a"))
    assert says in caught.value.message


def test_credentials_that_are_refused_are_told(kubeconfig: str, namespace: str, program: Path) -> None:
    with (
        running(program, kubeconfig=with_user(kubeconfig, {"token": "wrong"})) as provider,
        pytest.raises(CallFailed, match="the credentials do not allow it: Unauthorized"),
    ):
        provider.create(CONFIG_MAP, "a", config_map(namespace, "a"))


def test_a_kubeconfig_may_be_a_path_or_the_ambient_one(
    control_plane: Instance, kubeconfig: str, namespace: str, program: Path
) -> None:
    (program / "config").write_text(kubeconfig)
    with running(program, kubeconfig="config") as provider:
        provider.create(CONFIG_MAP, "a", config_map(namespace, "a"))
    with running(program, environment(KUBECONFIG=str(control_plane.kubeconfig)), namespace=namespace) as provider:
        made = provider.create(CONFIG_MAP, "b", {"metadata": {"name": "b"}})
    assert made.id == f"{namespace}/b"


QUICK = '{"timeout": 1}'
"""Settings of a client that does not go on trying for long."""


def closed_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_without_the_cluster_a_preview_goes_on_and_all_else_says_what_to_do(kubeconfig: str, program: Path) -> None:
    address = f"https://127.0.0.1:{closed_port()}"
    away = with_user(kubeconfig, {"token": "x"}, server=address)
    with running(program, kubeconfig=away, kubeClientSettings=QUICK) as provider:
        inputs, _ = provider.checked(CONFIG_MAP, "a", config_map("default", "a", x="1"))
        old = Resource(CONFIG_MAP, "a", "default/a", inputs, inputs)
        seen = [provider.create(CONFIG_MAP, f"c{n}", config_map("default", "c"), preview=True) for n in range(3)]
        assert all(resource.outputs["data"] == {} for resource in seen)
        warnings = [m for m in provider.engine.messages if m.severity == "WARNING"]
        assert len(warnings) == 1 and address in warnings[0].text
        assert list(provider.diff(old, config_map("default", "a", x="2")).replaces) == ["data.x"]
        provider.update(old, config_map("default", "a", x="2"), preview=True)

        def fails(call: Any) -> str:
            with pytest.raises(CallFailed) as caught:
                call()
            return caught.value.message

        calls = [
            lambda: provider.create(CONFIG_MAP, "a", config_map("default", "a")),
            lambda: provider.update(old, config_map("default", "a")),
            lambda: provider.read(old),
            lambda: provider.delete(old),
        ]
        with ThreadPoolExecutor() as pool:
            told = list(pool.map(fails, calls))
    for text in told:
        assert f"the Kubernetes API server at {address} cannot be reached: connection refused" in text
        assert "Is the cluster running" in text
    assert "PULUMI_K8S_DELETE_UNREACHABLE=true" in told[3]


def test_a_cluster_that_is_gone_can_be_forgotten(kubeconfig: str, program: Path) -> None:
    away = with_user(kubeconfig, {"token": "x"}, server=f"https://127.0.0.1:{closed_port()}")
    config: dict[str, Any] = {"deleteUnreachable": "true", "skipUpdateUnreachable": True, "kubeClientSettings": QUICK}
    with running(program, kubeconfig=away, **config) as provider:
        inputs, _ = provider.checked(CONFIG_MAP, "a", config_map("default", "a", x="1"))
        old = Resource(CONFIG_MAP, "a", "default/a", inputs, inputs)
        helm_old = Resource(RELEASE, "app", "default/app", {"name": "app"}, {"name": "app"})
        with ThreadPoolExecutor() as pool:
            gone = [pool.submit(provider.delete, item) for item in (old, helm_old)]
            read = pool.submit(provider.read, old)
            kept = pool.submit(provider.update, old, config_map("default", "a", x="2"))
            assert [item.result() for item in gone] == [None, None]
            assert read.result() is None
            assert kept.result().outputs["data"] == {"x": "1"}
        assert provider.said("not updated (skipUpdateUnreachable)")


@contextmanager
def forwarder(port: int, target: tuple[str, int]) -> Iterator[None]:
    """Passes connections to `port` on to `target`."""
    server = socket.create_server(("127.0.0.1", port))

    def pump(source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                sink.sendall(data)
        except OSError:
            pass
        sink.close()

    def accept() -> None:
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                return
            upstream = socket.create_connection(target)
            for pair in ((client, upstream), (upstream, client)):
                threading.Thread(target=pump, args=pair, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield
    server.shutdown(socket.SHUT_RDWR)
    server.close()


def test_a_certificate_is_checked_unless_the_kubeconfig_says_otherwise(
    kubeconfig: str, token: str, namespace: str, program: Path
) -> None:
    config = yaml.safe_load(with_user(kubeconfig, {"token": token}))
    del config["clusters"][0]["cluster"]["certificate-authority-data"]
    with (
        running(program, kubeconfig=json.dumps(config)) as provider,
        pytest.raises(CallFailed, match="its certificate is not trusted"),
    ):
        provider.create(CONFIG_MAP, "a", config_map(namespace, "a"))
    config["clusters"][0]["cluster"]["insecure-skip-tls-verify"] = True
    with running(program, kubeconfig=json.dumps(config)) as provider:
        assert provider.create(CONFIG_MAP, "a", config_map(namespace, "a")).id == f"{namespace}/a"


def test_an_api_server_that_is_restarting_is_waited_for(
    control_plane: Instance, kubeconfig: str, namespace: str, program: Path
) -> None:
    port = closed_port()
    config = yaml.safe_load(kubeconfig)
    config["clusters"][0]["cluster"] |= {
        "server": f"https://127.0.0.1:{port}",
        "tls-server-name": str(control_plane.host_ip),
    }
    opened = threading.Event()

    def restart() -> None:
        with forwarder(port, (str(control_plane.host_ip), 6443)):
            opened.wait(30)

    with running(program, kubeconfig=json.dumps(config)) as provider, later(2.0, restart):
        made = provider.create(CONFIG_MAP, "a", config_map(namespace, "a"))
        opened.set()
    assert made.id == f"{namespace}/a"


def test_a_kubeconfig_that_a_preview_does_not_know_yet(program: Path) -> None:
    with running(program, environment(), kubeconfig=UNKNOWN) as provider:
        inputs, _ = provider.checked(CONFIG_MAP, "a", {"metadata": {"name": "a"}})
        assert inputs["metadata"]["namespace"] == "default"
        assert (
            provider.create(CONFIG_MAP, "a", {"metadata": {"name": "a"}}, preview=True).outputs["kind"] == "ConfigMap"
        )
        old = Resource(CONFIG_MAP, "a", "default/a", inputs, inputs)
        news = {"metadata": {"name": "a", "labels": {"x": "y"}}}
        assert list(provider.diff(old, news).detailedDiff) == ["metadata.labels"]
        assert not [m for m in provider.engine.messages if m.severity == "WARNING"]
        with pytest.raises(CallFailed, match="kubeconfig is not known yet"):
            provider.create(CONFIG_MAP, "a", {"metadata": {"name": "a"}})


def test_no_kubeconfig_at_all_is_told(program: Path) -> None:
    says = r"no kubeconfig: the provider has none and .*\.kube/config does not exist"
    with (
        running(program, environment(HOME=str(program)), namespace="default") as provider,
        pytest.raises(CallFailed, match=says),
    ):
        provider.create(CONFIG_MAP, "a", {"metadata": {"name": "a"}})


def test_an_unchanged_run_of_twenty_objects_asks_nothing(kubeconfig: str, program: Path, token: str) -> None:
    """A second `up` compares what is stored; it starts no plugin and sends no request."""
    user = plugin(program, [token])
    with running(program, kubeconfig=with_user(kubeconfig, user)) as provider:
        for number in range(20):
            news = config_map("default", f"c{number}", x="1")
            inputs, _ = provider.checked(CONFIG_MAP, f"c{number}", news)
            old = Resource(CONFIG_MAP, f"c{number}", f"default/c{number}", inputs, inputs)
            assert provider.diff(old, news).changes == pb.DiffResponse.DIFF_NONE
    assert runs(program) == 0


@pytest.fixture
def local(program: Path) -> Iterator[Provider]:
    with running(program, environment()) as provider:
        yield provider


KUBECONFIG = {
    "current-context": "a",
    "clusters": [
        {"name": "one", "cluster": {"server": "https://one:6443"}},
        {"name": "two", "cluster": {"server": "https://two:6443"}},
    ],
    "users": [{"name": "u", "user": {"token": "t"}}],
    "contexts": [
        {"name": "a", "context": {"cluster": "one", "user": "u"}},
        {"name": "b", "context": {"cluster": "two", "user": "u"}},
    ],
}


@pytest.mark.parametrize(
    ("config", "key", "says"),
    [
        ({"kubeconfg": "x"}, "kubeconfg", "did you mean kubeconfig?"),
        ({"deleteUnreachable": "maybe"}, "deleteUnreachable", "must be true or false"),
        ({"namespace": 3}, "namespace", "must be a string"),
        ({"enableServerSideApply": "false"}, "enableServerSideApply", "always applies on the server"),
        ({"renderYamlToDirectory": "out"}, "renderYamlToDirectory", "does not render YAML"),
        ({"helmReleaseSettings": '{"driver": "sql"}'}, "helmReleaseSettings", "in Secrets only"),
        ({"helmReleaseSettings": '{"drivers": "x"}'}, "helmReleaseSettings", "has no drivers; allowed: driver"),
        ({"kubeconfig": "{"}, "kubeconfig", "neither JSON nor YAML"),
        ({"kubeconfig": json.dumps(KUBECONFIG), "context": "c"}, "kubeconfig", 'no context "c"; it has a, b'),
    ],
)
def test_wrong_configuration_is_refused_by_key(local: Provider, config: dict[str, Any], key: str, says: str) -> None:
    assert says in local.check_config(**config)[key]


def test_all_settings_of_the_sdk_are_known(local: Provider) -> None:
    config: dict[str, Any] = {
        "kubeconfig": json.dumps(KUBECONFIG),
        "context": "a",
        "cluster": "one",
        "clusterIdentifier": "x",
        "namespace": "n",
        "helmReleaseSettings": json.dumps({"driver": "secret", "repositoryCache": "/tmp/x"}),
        "kubeClientSettings": json.dumps({"qps": 5, "burst": 10, "timeout": 7}),
        "version": "4.34.2",
    }
    for key in ("deleteUnreachable", "enableConfigMapMutable", "enablePatchForce", "enableSecretMutable"):
        config[key] = "true"
    for key in ("enableServerSideApply", "skipUpdateUnreachable", "upsertExistingObjects"):
        config[key] = True
    for key in ("suppressDeprecationWarnings", "suppressHelmHookWarnings"):
        config[key] = "false"
    assert local.check_config(**config) == {}
    assert local.check_config(kubeconfig=UNKNOWN, namespace="n") == {}


def test_what_makes_it_another_cluster(local: Provider) -> None:
    text = json.dumps(KUBECONFIG)
    other = json.dumps({**KUBECONFIG, "current-context": "b"})
    renamed = text.replace('"t"', '"another token"')
    plain = {"kubeconfig": text}
    assert local.diff_config(plain, plain) == ([], [])
    assert local.diff_config(plain, {"kubeconfig": renamed}) == (["kubeconfig"], [])
    assert local.diff_config(plain, {"kubeconfig": other}) == (["kubeconfig"], ["kubeconfig"])
    assert local.diff_config(plain, plain | {"context": "b"}) == (["context"], ["context"])
    assert local.diff_config(plain, {"kubeconfig": UNKNOWN}) == (["kubeconfig"], ["kubeconfig"])
    # With an identifier only that counts; adding it changes nothing.
    named = plain | {"clusterIdentifier": "arn:1"}
    assert local.diff_config(plain, named) == (["clusterIdentifier"], [])
    assert local.diff_config(named, named | {"kubeconfig": other})[1] == []
    assert local.diff_config(named, named | {"kubeconfig": UNKNOWN})[1] == []
    assert local.diff_config(named, named | {"clusterIdentifier": "arn:2"})[1] == ["clusterIdentifier"]
