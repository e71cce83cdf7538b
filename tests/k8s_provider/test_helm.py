"""helm.v3.Release with the real helm: install, upgrade, refusals, kills at bad moments, failures, removal."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pulumi.runtime.proto import provider_pb2 as pb

from localcloud import tools
from localcloud.kubernetes.api import Api
from localcloud.kubernetes.nodefiles import PAUSE_IMAGE
from localcloud.kubernetes.provider.wire import ASSET, SIGNATURE, UNKNOWN
from localcloud.paths import Instance
from tests.k8s_provider.harness import CallFailed, Provider, Resource, environment, running
from tests.kubernetes.pods import eventually

RELEASE = "kubernetes:helm.sh/v3:Release"
MERGE = "application/merge-patch+json"


@pytest.fixture
def chart(program: Path) -> Path:
    shutil.copytree(Path(__file__).parent / "chart", program / "chart")
    return program / "chart"


@pytest.fixture
def helm(kubeconfig: str, chart: Path, program: Path) -> Iterator[Provider]:
    """A provider that starts in the program's folder, where the chart is."""
    with running(program, kubeconfig=kubeconfig) as provider:
        yield provider


def release(namespace: str, **values: Any) -> dict[str, Any]:
    inputs: dict[str, Any] = {"chart": "./chart", "name": "app", "namespace": namespace, "compat": "true"}
    return inputs | {"timeout": 30} | ({"values": values} if values else {})


def message(api: Api, namespace: str) -> str:
    live = api.get(f"/api/v1/namespaces/{namespace}/configmaps/app")
    assert live
    return str(live["data"]["message"])


def revisions(api: Api, namespace: str) -> list[tuple[int, str]]:
    """(revision, status) of the release's records."""
    items = api.request("GET", f"/api/v1/namespaces/{namespace}/secrets?labelSelector=owner=helm")["items"]
    return sorted((int(i["metadata"]["labels"]["version"]), i["metadata"]["labels"]["status"]) for i in items)


def helm_cli(inst: Instance, *words: str) -> None:
    """Helm as somebody else would use it."""
    program = tools.installed()
    assert program
    subprocess.run([program / "helm", "--kubeconfig", inst.kubeconfig, *words], check=True, capture_output=True)


def test_install_unchanged_upgrade_uninstall(helm: Provider, api: Api, namespace: str) -> None:
    made = helm.create(RELEASE, "app", release(namespace))
    assert made.id == f"{namespace}/app"
    status = made.outputs["status"]
    assert (status["status"], status["revision"], status["version"]) == ("deployed", 1, "0.1.0")
    assert (status["chart"], status["appVersion"]) == ("sample", "26.05")
    assert made.outputs["resourceNames"] == {"ConfigMap/v1": ["app"]}
    assert message(api, namespace) == "hello"

    assert helm.diff(made, release(namespace)).changes == pb.DiffResponse.DIFF_NONE
    answer = helm.diff(made, release(namespace, message="bye"))
    assert (list(answer.detailedDiff), list(answer.replaces)) == (["values"], [])
    changed = helm.update(made, release(namespace, message="bye", extra="second"))
    assert message(api, namespace) == "bye"
    assert changed.outputs["status"]["revision"] == 2
    assert changed.outputs["resourceNames"] == {"ConfigMap/v1": ["app", "second"]}
    # What is left out of the values is back at the chart's default, what it made is gone.
    helm.update(changed, release(namespace))
    assert message(api, namespace) == "hello"
    assert api.get(f"/api/v1/namespaces/{namespace}/configmaps/second") is None

    helm.delete(changed)
    assert api.get(f"/api/v1/namespaces/{namespace}/configmaps/app") is None
    assert revisions(api, namespace) == []
    helm.delete(changed)


def test_a_changed_file_of_the_chart_is_a_change(helm: Provider, api: Api, namespace: str, chart: Path) -> None:
    made = helm.create(RELEASE, "app", release(namespace))
    template = chart / "templates" / "all.yaml"
    template.write_text(template.read_text().replace("{{ .Values.message | quote }}", "from the template"))
    answer = helm.diff(made, release(namespace))
    assert list(answer.detailedDiff) == ["checksum"]
    assert not helm.diff(made, release(namespace), ["version"]).detailedDiff
    helm.update(made, release(namespace))
    assert message(api, namespace) == "from the template"


def test_another_name_or_namespace_is_another_release(helm: Provider, namespace: str) -> None:
    made = helm.create(RELEASE, "app", release(namespace))
    assert list(helm.diff(made, release(namespace) | {"name": "other"}).replaces) == ["name"]
    assert list(helm.diff(made, release("elsewhere")).replaces) == ["namespace"]


def test_a_release_without_a_name_gets_one_and_its_namespace_is_made(helm: Provider, api: Api, namespace: str) -> None:
    news = {"chart": "./chart", "namespace": f"{namespace}-new", "createNamespace": True}
    made = helm.create(RELEASE, "app", news)
    assert made.inputs["name"].startswith("app-")
    assert (made.inputs["version"], made.inputs["timeout"]) == ("0.1.0", 300)
    assert helm.diff(made, news).changes == pb.DiffResponse.DIFF_NONE
    helm.delete(made)
    api.delete(f"/api/v1/namespaces/{namespace}-new")


@pytest.mark.parametrize(
    ("news", "key", "says"),
    [
        ({"valuez": {}}, "valuez", "did you mean values?"),
        ({"postrender": "./x"}, "postrender", "is not served"),
        ({"replace": True}, "replace", "is not served"),
        ({"timeout": "5m"}, "timeout", "whole number"),
        ({"atomic": "yes"}, "atomic", "true or false"),
        ({"repositoryOpts": {"url": "x"}}, "repositoryOpts", "has no url; allowed: caFile"),
        ({"chart": "./nowhere"}, "chart", "./nowhere does not exist"),
        ({"chart": None}, "chart", "must be given"),
        ({"name": "n" * 54}, "name", "helm allows 53"),
        ({"valueYamlFiles": ["x"]}, "valueYamlFiles[0]", "is not an asset"),
        ({"valueYamlFiles": [{SIGNATURE: ASSET, "path": "no.yaml"}]}, "valueYamlFiles[0]", "no.yaml: No such file"),
    ],
)
def test_check_names_what_is_wrong(helm: Provider, news: dict[str, Any], key: str, says: str) -> None:
    _, _, failures = helm.check(RELEASE, "app", release("default") | news)
    assert says in failures[key]


def test_a_preview_renders_the_chart_and_changes_nothing(helm: Provider, api: Api, namespace: str) -> None:
    seen = helm.create(RELEASE, "app", release(namespace), preview=True)
    assert seen.outputs["status"] is UNKNOWN
    assert seen.outputs["name"] == "app"
    with pytest.raises(CallFailed, match=r"replicas.*minimum"):
        helm.create(RELEASE, "app", release(namespace, replicas=-1), preview=True)
    with pytest.raises(CallFailed, match="image is needed where replicas is above 0"):
        helm.create(RELEASE, "app", release(namespace, replicas=1), preview=True)
    helm.create(RELEASE, "app", release(namespace, message=UNKNOWN), preview=True)
    assert revisions(api, namespace) == []


def test_a_release_of_someone_else_is_not_taken_over(
    helm: Provider, control_plane: Instance, chart: Path, api: Api, namespace: str
) -> None:
    helm_cli(control_plane, "install", "app", str(chart), "--namespace", namespace)
    with pytest.raises(CallFailed, match=f"helm release {namespace}/app exists already"):
        helm.create(RELEASE, "app", release(namespace))
    assert revisions(api, namespace) == [(1, "deployed")]


def test_a_create_whose_answer_was_lost_is_taken_up_again(helm: Provider, api: Api, namespace: str) -> None:
    helm.create(RELEASE, "app", release(namespace))
    again = helm.create(RELEASE, "app", release(namespace, message="again"))
    assert again.outputs["status"]["revision"] == 2
    assert message(api, namespace) == "again"


def call_and_kill(provider: Provider, call: Any, when: Any) -> None:
    """Start a call, wait until `when` is true, kill the provider in the middle of it."""

    def fails() -> None:
        with pytest.raises(CallFailed):
            call()

    thread = threading.Thread(target=fails)
    thread.start()
    eventually(when, "the moment to kill at")
    children = list(Path(f"/proc/{provider.process.pid}/task").glob("*/children"))
    helms = [int(pid) for file in children for pid in file.read_text().split()]
    assert helms
    provider.kill()
    thread.join()
    eventually(lambda: not any(_alive(pid) for pid in helms), "helm to end with its provider")


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_kill_during_an_install_is_repaired(
    helm: Provider, kubeconfig: str, api: Api, namespace: str, program: Path
) -> None:
    stuck = release(namespace, stuckHook="pre-install")
    call_and_kill(
        helm, lambda: helm.create(RELEASE, "app", stuck), lambda: revisions(api, namespace) == [(1, "pending-install")]
    )
    with running(program, kubeconfig=kubeconfig) as provider:
        made = provider.create(RELEASE, "app", release(namespace))
        assert provider.said("was left pending-install by a killed run")
    assert made.outputs["status"]["status"] == "deployed"
    assert message(api, namespace) == "hello"


def test_a_kill_during_an_upgrade_is_repaired_and_keeps_what_is_there(
    helm: Provider, kubeconfig: str, api: Api, namespace: str, program: Path
) -> None:
    made = helm.create(RELEASE, "app", release(namespace))
    before = api.request("GET", f"/api/v1/namespaces/{namespace}/configmaps/app")
    stuck = release(namespace, stuckHook="pre-upgrade")
    call_and_kill(helm, lambda: helm.update(made, stuck), lambda: (2, "pending-upgrade") in revisions(api, namespace))
    with running(program, kubeconfig=kubeconfig) as provider:
        changed = provider.update(made, release(namespace, message="after"))
        assert changed.outputs["status"]["revision"] == 3
    after = api.request("GET", f"/api/v1/namespaces/{namespace}/configmaps/app")
    assert after["data"]["message"] == "after"
    assert after["metadata"]["uid"] == before["metadata"]["uid"]


def test_a_kill_during_an_uninstall_is_finished(
    helm: Provider, kubeconfig: str, api: Api, namespace: str, program: Path
) -> None:
    made = helm.create(RELEASE, "app", release(namespace, finalizer="slipway.dev/held"))
    call_and_kill(helm, lambda: helm.delete(made), lambda: revisions(api, namespace) == [(1, "uninstalling")])
    path = f"/api/v1/namespaces/{namespace}/configmaps/app"
    with running(program, kubeconfig=kubeconfig) as provider:
        for _ in range(2):  # helm forgets the release after the first time; the state knows what it was made of
            with pytest.raises(
                CallFailed, match=r"still there after 3 s:\s+ConfigMap app: finalizers slipway.dev/held"
            ):
                provider.delete(made, timeout=3)
        assert provider.said("waiting for ConfigMap app: finalizers slipway.dev/held")
        api.request("PATCH", path, {"metadata": {"finalizers": None}}, MERGE)
        # The same release asked for again: what is left of the old one goes first.
        again = provider.create(RELEASE, "app", release(namespace))
        assert again.outputs["status"]["revision"] == 1
        provider.delete(again)
    assert revisions(api, namespace) == []


def test_a_failure_names_the_pods_and_keeps_the_release(helm: Provider, node: str, api: Api, namespace: str) -> None:
    broken = release(namespace, replicas=2, image="registry.invalid/none:1") | {"timeout": 6}
    with pytest.raises(CallFailed) as caught:
        helm.create(RELEASE, "app", broken, timeout=0)
    told = str(caught.value)
    assert f"helm release {namespace}/app: not ready: Deployment app" in told
    assert "Deployment app: 0 of 2 pods available" in told
    assert "registry.invalid/none:1" in told
    assert caught.value.id == f"{namespace}/app"
    passing = [text.text for text in helm.engine.messages if text.passing]
    assert any(text.startswith("Deployment app: 0 of 2 pods available; pod app-") for text in passing)
    half = Resource(RELEASE, "app", caught.value.id, caught.value.inputs, caught.value.outputs)
    mended = helm.update(half, release(namespace, replicas=1, image=PAUSE_IMAGE))
    assert mended.outputs["status"]["status"] == "deployed"
    helm.delete(mended)
    # Pods are what a Deployment owns, and gone as well.
    assert api.request("GET", f"/api/v1/namespaces/{namespace}/pods")["items"] == []


def test_atomic_puts_back_what_was_there(helm: Provider, node: str, api: Api, namespace: str) -> None:
    broken = release(namespace, message="new", replicas=1, image="registry.invalid/none:1")
    broken |= {"timeout": 3, "atomic": True}
    with pytest.raises(CallFailed, match="failed and was uninstalled again") as caught:
        helm.create(RELEASE, "app", broken, timeout=0)
    assert not caught.value.id
    assert "registry.invalid/none:1" in str(caught.value)
    assert revisions(api, namespace) == []
    made = helm.create(RELEASE, "app", release(namespace))
    with pytest.raises(CallFailed, match="was rolled back to revision 1"):
        helm.update(made, broken, timeout=0)
    assert message(api, namespace) == "hello"
    assert api.get(f"/apis/apps/v1/namespaces/{namespace}/deployments/app") is None


def test_helms_own_words_are_told(helm: Provider, api: Api, namespace: str, chart: Path) -> None:
    (chart / "templates" / "broken.yaml").write_text("apiVersion: v1\nkind: Nothing\nmetadata: {name: x}\n")
    with pytest.raises(CallFailed, match='no matches for kind "Nothing"') as caught:
        helm.create(RELEASE, "app", release(namespace))
    assert not caught.value.id
    assert revisions(api, namespace) == []


def test_values_files_come_before_values_and_count_by_content(
    helm: Provider, api: Api, namespace: str, program: Path
) -> None:
    (program / "a.yaml").write_text("message: from a file\nextra: second\n")
    news = release(namespace) | {"valueYamlFiles": [{SIGNATURE: ASSET, "path": "a.yaml"}]}
    made = helm.create(RELEASE, "app", news)
    assert message(api, namespace) == "from a file"
    (program / "b.yaml").write_text((program / "a.yaml").read_text())
    moved = news | {"valueYamlFiles": [{SIGNATURE: ASSET, "path": "b.yaml"}]}
    assert helm.diff(made, moved).changes == pb.DiffResponse.DIFF_NONE
    (program / "a.yaml").write_text("message: edited\n")
    assert list(helm.diff(made, news).detailedDiff) == ["valueYamlFiles[0]"]
    text = {SIGNATURE: ASSET, "text": "message: from text\nextra: third"}
    helm.update(made, news | {"valueYamlFiles": [text], "values": {"message": "from the program"}})
    assert message(api, namespace) == "from the program"
    assert api.get(f"/api/v1/namespaces/{namespace}/configmaps/third")


def test_secret_values_stay_secret(helm: Provider, namespace: str) -> None:
    word = "open-sesame-4712"
    made = helm.create(RELEASE, "app", release(namespace, message=word), secrets=[("values", "message")])
    assert {("values", "message"), ("__inputs",)} <= set(made.secrets)
    assert not helm.said(word)
    read = helm.read(made)
    assert read and read.inputs == made.inputs


def test_a_refresh_finds_what_others_did(
    helm: Provider, control_plane: Instance, chart: Path, api: Api, namespace: str
) -> None:
    made = helm.create(RELEASE, "app", release(namespace, message="ours"))
    read = helm.read(made)
    assert read and read.inputs == made.inputs
    helm_cli(control_plane, "upgrade", "app", str(chart), "--namespace", namespace, "--set", "message=theirs")
    read = helm.read(made)
    assert read and read.inputs["values"] == {"message": "theirs"}
    assert list(helm.diff(read, made.inputs).detailedDiff) == ["values.message"]
    imported = helm.read(Resource(RELEASE, "app", made.id, {}, {}))
    assert imported and imported.inputs["version"] == "0.1.0"
    helm_cli(control_plane, "uninstall", "app", "--namespace", namespace)
    assert helm.read(made) is None
    again = helm.update(made, release(namespace, message="ours"))
    assert again.outputs["status"]["revision"] == 1


def test_skip_await_returns_at_once(helm: Provider, api: Api, namespace: str) -> None:
    news = release(namespace, replicas=1, image="registry.invalid/none:1") | {"skipAwait": True}
    started = time.monotonic()
    made = helm.create(RELEASE, "app", news)
    assert time.monotonic() - started < 20
    assert made.outputs["status"]["status"] == "deployed"


def test_without_helm_the_error_says_so_and_a_preview_goes_on(
    kubeconfig: str, chart: Path, program: Path, namespace: str
) -> None:
    env = environment()
    installed = str(tools.installed())
    env["PATH"] = os.pathsep.join(item for item in env["PATH"].split(os.pathsep) if item != installed)
    with running(program, env, kubeconfig=kubeconfig) as provider:
        provider.create(RELEASE, "app", release(namespace), preview=True)
        assert provider.said("helm is not on PATH, so the chart is not rendered")
        with pytest.raises(CallFailed, match="helm is not on PATH"):
            provider.create(RELEASE, "app", release(namespace))
