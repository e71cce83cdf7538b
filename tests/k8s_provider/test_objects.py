"""Objects against a real API server: create, adopt, diff, replace, update, refresh, delete."""

from __future__ import annotations

import base64
import threading
from pathlib import Path
from typing import Any

import pytest
from pulumi.runtime.proto import provider_pb2 as pb

from localcloud.kubernetes.api import Api, ApiError
from localcloud.kubernetes.provider.wire import UNKNOWN
from tests.k8s_provider.harness import SEED, CallFailed, Provider, Resource, running

CONFIG_MAP = "kubernetes:core/v1:ConfigMap"
SECRET = "kubernetes:core/v1:Secret"
DEPLOYMENT = "kubernetes:apps/v1:Deployment"
NAMESPACE = "kubernetes:core/v1:Namespace"
CLUSTER_ROLE = "kubernetes:rbac.authorization.k8s.io/v1:ClusterRole"
CRD = "kubernetes:apiextensions.k8s.io/v1:CustomResourceDefinition"


def config_map(namespace: str, name: str | None = None, **data: str) -> dict[str, Any]:
    metadata = {"namespace": namespace} | ({"name": name} if name else {})
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def deployment(namespace: str, replicas: int = 0, app: str = "web", image: str = "nginx") -> dict[str, Any]:
    labels = {"app": app}
    container = {"name": "web", "image": image, "ports": [{"containerPort": 80}]}
    return {
        "metadata": {"name": "web", "namespace": namespace},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }


def test_an_object_without_a_name_gets_the_same_one_for_the_same_seed(provider: Provider, namespace: str) -> None:
    first, _ = provider.checked(CONFIG_MAP, "settings", config_map(namespace))
    again, _ = provider.checked(CONFIG_MAP, "settings", config_map(namespace))
    assert first["metadata"]["name"] == again["metadata"]["name"]
    assert first["metadata"]["name"].startswith("settings-")
    assert first["metadata"]["annotations"] == {"pulumi.com/autonamed": "true"}
    # A later run keeps it, whatever the seed is then.
    request = pb.CheckRequest(randomSeed=b"\x02" * 32)
    assert request.randomSeed != SEED
    kept, _ = provider.checked(CONFIG_MAP, "settings", config_map(namespace, a="b"), first)
    assert kept["metadata"]["name"] == first["metadata"]["name"]


def test_autonaming_of_the_stack_is_obeyed(provider: Provider, namespace: str) -> None:
    mode = pb.CheckRequest.AutonamingOptions
    proposed = mode(proposed_name="prod-settings", mode=mode.ENFORCE)
    inputs, _ = provider.checked(CONFIG_MAP, "settings", config_map(namespace), autonaming=proposed)
    assert inputs["metadata"]["name"] == "prod-settings"
    _, _, failures = provider.check(CONFIG_MAP, "s", config_map(namespace), autonaming=mode(mode=mode.DISABLE))
    assert "turns auto-naming off" in failures["metadata.name"]


def test_the_default_namespace_is_filled_in_where_a_kind_has_one(provider: Provider) -> None:
    inputs, _ = provider.checked(CONFIG_MAP, "a", {"metadata": {"name": "a"}})
    assert inputs["metadata"]["namespace"] == "default"
    assert (inputs["apiVersion"], inputs["kind"]) == ("v1", "ConfigMap")
    inputs, _ = provider.checked(
        "kubernetes:rbac.authorization.k8s.io/v1:ClusterRole", "a", {"metadata": {"name": "a"}}
    )
    assert "namespace" not in inputs["metadata"]


@pytest.mark.parametrize(
    ("type_", "news", "key", "says"),
    [
        (CONFIG_MAP, {"kind": "Secret", "metadata": {"name": "a"}}, "kind", "the resource's type is ConfigMap"),
        (CONFIG_MAP, {"apiVersion": "v2", "metadata": {"name": "a"}}, "apiVersion", "the resource's type says v1"),
        (CONFIG_MAP, {"metadata": {"generateName": "a-"}}, "metadata.generateName", "is not served"),
        (CONFIG_MAP, {"metadata": "a"}, "metadata", "must be an object"),
    ],
)
def test_check_names_what_is_wrong(provider: Provider, type_: str, news: dict[str, Any], key: str, says: str) -> None:
    _, _, failures = provider.check(type_, "a", news)
    assert says in failures[key]


@pytest.mark.parametrize(
    ("annotation", "value", "says"),
    [
        ("pulumi.com/skipAwait", "yes", 'must be "true" or "false"'),
        ("pulumi.com/timeoutSeconds", "5m", "whole number of seconds"),
        ("pulumi.com/deletionPropagationPolicy", "later", "foreground, background, orphan"),
        ("pulumi.com/waitFor", "ready", "use condition=Ready"),
    ],
)
def test_check_reads_the_annotations_that_steer_it(provider: Provider, annotation: str, value: str, says: str) -> None:
    news = {"metadata": {"name": "a", "annotations": {annotation: value}}}
    _, _, failures = provider.check(CONFIG_MAP, "a", news)
    assert says in failures[f'metadata.annotations["{annotation}"]']


@pytest.mark.parametrize(
    ("type_", "news", "says"),
    [
        ("kubernetes:yaml/v2:ConfigGroup", {}, "use helm.v3.Release"),
        ("kubernetes:helm.sh/v4:Chart", {}, "use helm.v3.Release"),
        ("kubernetes:core/v1:PodList", {}, "lists are not served"),
        ("kubernetes:core/v1:NamespacePatch", {"kind": "Namespace"}, "manage the whole Namespace"),
    ],
)
def test_what_is_not_served_is_refused_with_the_way_out(
    provider: Provider, type_: str, news: dict[str, Any], says: str
) -> None:
    with pytest.raises(CallFailed, match=says):
        provider.check(type_, "a", news)


def test_an_object_is_made_changed_and_removed(provider: Provider, api: Api, namespace: str) -> None:
    made = provider.create(DEPLOYMENT, "web", deployment(namespace))
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments/web"
    live = api.get(path)
    assert live
    assert made.id == f"{namespace}/web"
    assert made.outputs["metadata"]["uid"] == live["metadata"]["uid"]
    assert made.outputs["status"]["observedGeneration"] == 1
    assert "managedFields" not in made.outputs["metadata"]
    assert made.outputs["spec"]["template"]["spec"]["containers"][0]["ports"][0]["containerPort"] == 80

    answer = provider.diff(made, deployment(namespace, image="nginx:2"))
    assert answer.changes == pb.DiffResponse.DIFF_SOME
    assert dict(answer.detailedDiff).keys() == {"spec.template.spec.containers[0].image"}
    assert not answer.replaces
    changed = provider.update(made, deployment(namespace, image="nginx:2"))
    assert changed.outputs["spec"]["template"]["spec"]["containers"][0]["image"] == "nginx:2"
    assert provider.diff(changed, deployment(namespace, image="nginx:2")).changes == pb.DiffResponse.DIFF_NONE

    provider.delete(changed)
    assert api.get(path) is None
    provider.delete(changed)  # gone already


def test_a_field_left_out_is_removed(provider: Provider, api: Api, namespace: str) -> None:
    made = provider.create(
        CONFIG_MAP, "a", config_map(namespace, "a") | {"metadata": _labelled(namespace, x="1", y="2")}
    )
    provider.update(made, {"metadata": _labelled(namespace, x="1")})
    live = api.get(f"/api/v1/namespaces/{namespace}/configmaps/a")
    assert live and live["metadata"]["labels"] == {"x": "1"}


def _labelled(namespace: str, **labels: str) -> dict[str, Any]:
    return {"name": "a", "namespace": namespace, "labels": labels}


def test_what_exists_already_is_not_taken_over(provider: Provider, api: Api, namespace: str) -> None:
    api.apply(f"/api/v1/namespaces/{namespace}/configmaps/a", config_map(namespace, "a", mine="yes"))
    for preview in (True, False):
        with pytest.raises(CallFailed, match="exists already") as caught:
            provider.create(CONFIG_MAP, "a", config_map(namespace, "a", mine="no"), preview=preview)
        assert f"import {CONFIG_MAP} <name> {namespace}/a" in caught.value.message
    live = api.get(f"/api/v1/namespaces/{namespace}/configmaps/a")
    assert live and live["data"] == {"mine": "yes"}


def test_what_exists_is_taken_over_where_the_provider_is_told_so(
    kubeconfig: str, api: Api, namespace: str, program: Path
) -> None:
    api.apply(f"/api/v1/namespaces/{namespace}/configmaps/a", config_map(namespace, "a", other="yes"))
    with running(program, kubeconfig=kubeconfig, upsertExistingObjects="true") as provider:
        made = provider.create(CONFIG_MAP, "a", config_map(namespace, "a", mine="yes"))
    assert made.outputs["data"] == {"other": "yes", "mine": "yes"}


def test_a_killed_create_is_taken_up_again(provider: Provider, namespace: str) -> None:
    first = provider.create(CONFIG_MAP, "a", config_map(namespace, "a", x="1"))
    # The engine was killed before it could store the answer, so it asks for the same create again.
    again = provider.create(CONFIG_MAP, "a", config_map(namespace, "a", x="2"))
    assert again.outputs["metadata"]["uid"] == first.outputs["metadata"]["uid"]
    assert again.outputs["data"] == {"x": "2"}
    with pytest.raises(CallFailed, match="exists already"):
        provider.create(CONFIG_MAP, "another-resource", config_map(namespace, "a", x="3"))


def test_create_waits_for_an_older_object_that_is_being_removed(provider: Provider, api: Api, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps/a"
    held = config_map(namespace, "a", old="yes")
    held["metadata"]["finalizers"] = ["slipway.dev/test"]
    api.apply(path, held)
    api.delete(path)
    threading.Timer(1.0, _release, (api, path)).start()
    made = provider.create(CONFIG_MAP, "a", config_map(namespace, "a", new="yes"))
    assert made.outputs["data"] == {"new": "yes"}


def _release(api: Api, path: str) -> None:
    api.request("PATCH", path, {"metadata": {"finalizers": None}}, "application/merge-patch+json")


def test_a_conflict_names_the_fields_and_their_owners(provider: Provider, api: Api, namespace: str) -> None:
    made = provider.create(DEPLOYMENT, "web", deployment(namespace))
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments/web"
    api.apply(path, {"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"replicas": 0}}, "kubectl-scale")
    api.request("PATCH", path, {"spec": {"replicas": 0, "paused": True}}, "application/merge-patch+json")
    news = deployment(namespace, replicas=1)
    for preview in (True, False):
        with pytest.raises(CallFailed) as caught:
            provider.update(made, news, preview=preview)
        assert "spec.replicas  (owned by kubectl-scale)" in caught.value.message
        assert "pulumi.com/patchForce" in caught.value.message
    news["metadata"]["annotations"] = {"pulumi.com/patchForce": "true", "pulumi.com/skipAwait": "true"}
    assert provider.update(made, news).outputs["spec"]["replicas"] == 1


def test_wrong_values_are_told_field_by_field_in_preview_too(provider: Provider, namespace: str) -> None:
    news = deployment(namespace)
    news["spec"]["replicas"] = -1
    for preview in (True, False):
        with pytest.raises(CallFailed, match=r"spec.replicas: Invalid value: -1"):
            provider.create(DEPLOYMENT, "web", news, preview=preview)
    news = deployment(namespace) | {"specs": {}}
    with pytest.raises(CallFailed, match="specs: field not declared in schema"):
        provider.create(DEPLOYMENT, "web", news, preview=True)


def test_a_preview_promises_inputs_and_leaves_the_rest_unknown(provider: Provider, api: Api, namespace: str) -> None:
    service = {"metadata": {"name": "web", "namespace": namespace}, "spec": {"ports": [{"port": 80}]}}
    seen = provider.create("kubernetes:core/v1:Service", "web", service, preview=True)
    assert seen.id == ""
    assert seen.outputs["spec"]["ports"] == [{"port": 80}]
    assert seen.outputs["spec"]["clusterIP"] is UNKNOWN
    assert seen.outputs["status"] is UNKNOWN
    assert seen.outputs["metadata"]["uid"] is UNKNOWN
    assert api.get(f"/api/v1/namespaces/{namespace}/services/web") is None
    # In a namespace, or of a kind, that the same program makes.
    provider.create(CONFIG_MAP, "a", config_map("made-later", "a"), preview=True)
    provider.create("kubernetes:made.later/v1:Thing", "a", {"metadata": {"name": "a"}}, preview=True)
    # With values that are not known yet.
    seen = provider.create(CONFIG_MAP, "a", config_map(namespace, "a") | {"data": {"x": UNKNOWN}}, preview=True)
    assert seen.outputs["data"] == {"x": UNKNOWN}


def test_a_missing_namespace_is_told_with_what_to_do(provider: Provider) -> None:
    with pytest.raises(CallFailed, match=r'namespace "nowhere" does not exist\. Create it in this program'):
        provider.create(CONFIG_MAP, "a", config_map("nowhere", "a"))


def test_a_namespace_of_the_same_run_is_waited_for(provider: Provider) -> None:
    later = threading.Timer(1.0, provider.create, (NAMESPACE, "late", {"metadata": {"name": "late"}}))
    later.start()
    made = provider.create(CONFIG_MAP, "a", config_map("late", "a"))
    later.join()
    provider.delete(made)
    assert made.id == "late/a"


def test_changed_data_makes_a_new_object_unless_told_otherwise(
    provider: Provider, kubeconfig: str, namespace: str, program: Path
) -> None:
    made = provider.create(CONFIG_MAP, "named", config_map(namespace, "named", x="1"))
    answer = provider.diff(made, config_map(namespace, "named", x="2"))
    assert (list(answer.replaces), answer.deleteBeforeReplace) == (["data.x"], True)
    auto = provider.create(CONFIG_MAP, "auto", config_map(namespace, x="1"))
    answer = provider.diff(auto, config_map(namespace, x="2"))
    assert (list(answer.replaces), answer.deleteBeforeReplace) == (["data.x"], False)
    with running(program, kubeconfig=kubeconfig, enableConfigMapMutable="true") as lenient:
        answer = lenient.diff(made, config_map(namespace, "named", x="2"))
        assert (list(answer.replaces), list(answer.diffs)) == ([], ["data"])
        frozen = lenient.create(CONFIG_MAP, "frozen", config_map(namespace, "frozen", x="1") | {"immutable": True})
        news = config_map(namespace, "frozen", x="2") | {"immutable": True}
        assert list(lenient.diff(frozen, news).replaces) == ["data.x"]


def test_fields_that_cannot_change_force_a_replacement(provider: Provider, namespace: str) -> None:
    made = provider.create(DEPLOYMENT, "web", deployment(namespace))
    answer = provider.diff(made, deployment(namespace, app="other"))
    assert list(answer.replaces) == ["spec.selector.matchLabels.app"]
    assert answer.detailedDiff["spec.selector.matchLabels.app"].kind == pb.PropertyDiff.UPDATE_REPLACE
    assert answer.deleteBeforeReplace
    moved = deployment(namespace)
    moved["metadata"]["name"] = "web2"
    answer = provider.diff(made, moved)
    assert (list(answer.replaces), answer.deleteBeforeReplace) == (["metadata.name"], False)

    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "a"}
    binding = {"metadata": {"name": "b", "namespace": namespace}, "roleRef": role, "subjects": []}
    bound = provider.create("kubernetes:rbac.authorization.k8s.io/v1:RoleBinding", "b", binding)
    assert list(provider.diff(bound, binding | {"roleRef": role | {"name": "c"}}).replaces) == ["roleRef.name"]


def test_an_immutable_field_that_no_table_has_is_found_by_asking(provider: Provider, namespace: str) -> None:
    # A ResourceClaimTemplate's spec is immutable; only the API server says so.
    type_ = "kubernetes:resource.k8s.io/v1:ResourceClaimTemplate"
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com"}}
    news: dict[str, Any] = {
        "metadata": {"name": "gpu", "namespace": namespace},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }
    made = provider.create(type_, "gpu", news)
    news["spec"]["spec"]["devices"]["requests"] = [request | {"name": "other"}]
    answer = provider.diff(made, news)
    assert list(answer.replaces) == ["spec.spec.devices.requests[0].name"]


def test_the_same_value_written_otherwise_is_no_change(provider: Provider, namespace: str) -> None:
    quota = {"metadata": {"name": "q", "namespace": namespace}, "spec": {"hard": {"limits.cpu": "1000m"}}}
    made = provider.create("kubernetes:core/v1:ResourceQuota", "q", quota)
    assert made.outputs["spec"]["hard"] == {"limits.cpu": "1"}
    quota["spec"] = {"hard": {"limits.cpu": "1"}}
    assert provider.diff(made, quota).changes == pb.DiffResponse.DIFF_NONE
    read = provider.read(made)
    assert read and read.inputs["spec"]["hard"] == {"limits.cpu": "1"}
    assert provider.diff(read, made.inputs).changes == pb.DiffResponse.DIFF_NONE


def test_ignored_changes_are_left_out(provider: Provider, namespace: str) -> None:
    made = provider.create(DEPLOYMENT, "web", deployment(namespace))
    news = deployment(namespace, replicas=3)
    assert provider.diff(made, news, ["spec.replicas"]).changes == pb.DiffResponse.DIFF_NONE
    news = deployment(namespace, image="nginx:2")
    ignore = ["spec.template.spec.containers[*].image"]
    assert provider.diff(made, news, ignore).changes == pb.DiffResponse.DIFF_NONE


def test_a_refresh_finds_what_others_changed_and_removed(provider: Provider, api: Api, namespace: str) -> None:
    made = provider.create(DEPLOYMENT, "web", deployment(namespace))
    read = provider.read(made)
    assert read and read.inputs == made.inputs
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments/web"
    api.request("PATCH", path, {"spec": {"replicas": 2}}, "application/merge-patch+json")
    read = provider.read(made)
    assert read and read.inputs["spec"]["replicas"] == 2
    answer = provider.diff(read, deployment(namespace))
    assert list(answer.detailedDiff) == ["spec.replicas"]
    api.delete(path)
    assert provider.read(made) is None


def test_an_import_reads_the_whole_object(provider: Provider, api: Api, namespace: str) -> None:
    api.apply(f"/api/v1/namespaces/{namespace}/configmaps/a", config_map(namespace, "a", x="1"))
    known, _ = provider.checked(CONFIG_MAP, "a", config_map(namespace, "a", x="1"))
    read = provider.read(Resource(CONFIG_MAP, "a", f"{namespace}/a", {}, {}))
    assert read and read.inputs == known
    assert provider.diff(read, config_map(namespace, "a", x="1")).changes == pb.DiffResponse.DIFF_NONE


def test_data_of_secrets_is_marked_and_never_logged(provider: Provider, namespace: str) -> None:
    word = "open-sesame-4711"
    encoded = base64.b64encode(word.encode()).decode()
    news = {"metadata": {"name": "s", "namespace": namespace}, "stringData": {"password": word}}
    inputs, marked = provider.checked(SECRET, "s", news)
    assert ("stringData",) in marked
    made = provider.create(SECRET, "s", news)
    assert made.outputs["data"] == {"password": encoded}
    assert {("data",), ("__inputs", "stringData")} <= set(made.secrets)
    seen = provider.create(
        SECRET, "other", {"metadata": {"namespace": namespace}, "stringData": {"a": "b"}}, preview=True
    )
    assert seen.outputs["data"] is UNKNOWN
    read = provider.read(made)
    assert read and read.inputs == inputs
    assert {("data",)} <= set(read.secrets)
    with pytest.raises(CallFailed) as caught:
        provider.create(SECRET, "broken", news | {"metadata": {"name": "UPPER", "namespace": namespace}})
    told = caught.value.message + "".join(message.text for message in provider.engine.messages)
    assert word not in told and encoded not in told


def test_a_secret_value_stays_secret_in_what_comes_back(provider: Provider, namespace: str) -> None:
    news = config_map(namespace, "a", token="hush", plain="x")
    made = provider.create(CONFIG_MAP, "a", news, secrets=[("data", "token")])
    assert set(made.secrets) == {("data", "token"), ("__inputs", "data", "token")}


def thing_definition(plural: str = "widgets", kind: str = "Widget") -> dict[str, Any]:
    schema = {"type": "object", "x_kubernetes_preserve_unknown_fields": True}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}},
    }
    return {
        "metadata": {"name": f"{plural}.test.slipway.dev"},
        "spec": {
            "group": "test.slipway.dev",
            "names": {"plural": plural, "kind": kind},
            "scope": "Namespaced",
            "versions": [version],
        },
    }


def test_a_custom_resource_is_served_as_soon_as_its_definition_is(provider: Provider, namespace: str) -> None:
    definition = provider.create(CRD, "widgets", thing_definition())
    schema = definition.outputs["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert schema["x_kubernetes_preserve_unknown_fields"] is True
    assert provider.diff(definition, thing_definition()).changes == pb.DiffResponse.DIFF_NONE
    type_ = "kubernetes:test.slipway.dev/v1:Widget"
    made = provider.create(type_, "w", {"metadata": {"name": "w", "namespace": namespace}, "spec": {"size": 3}})
    assert made.outputs["spec"] == {"size": 3}
    # Another namespace by default than the one it is in: it would have to move.
    assert list(provider.diff(made, {"metadata": {"name": "w"}, "spec": {"size": 3}}).replaces) == [
        "metadata.namespace"
    ]
    provider.delete(definition)
    assert provider.read(made) is None
    provider.delete(made)
    with pytest.raises(CallFailed, match=r"no kind Widget in test\.slipway\.dev/v1"):
        provider.create(type_, "w", {"metadata": {"name": "w", "namespace": namespace}})


def test_a_removed_object_is_made_again_by_an_update(provider: Provider, api: Api, namespace: str) -> None:
    made = provider.create(CONFIG_MAP, "a", config_map(namespace, "a", x="1"))
    api.delete(f"/api/v1/namespaces/{namespace}/configmaps/a")
    again = provider.update(made, config_map(namespace, "a", x="2"))
    assert again.outputs["data"] == {"x": "2"}
    assert provider.said("was removed outside of Pulumi and is made again")


def test_propagation_of_a_delete_is_chosen_by_annotation(provider: Provider, api: Api, namespace: str) -> None:
    news = deployment(namespace)
    news["metadata"]["annotations"] = {"pulumi.com/deletionPropagationPolicy": "orphan"}
    made = provider.create(DEPLOYMENT, "web", news)
    provider.delete(made)
    sets = api.request("GET", f"/apis/apps/v1/namespaces/{namespace}/replicasets")["items"]
    assert len(sets) == 1


def test_what_holds_a_deleted_object_is_named(provider: Provider, api: Api, namespace: str) -> None:
    news = config_map(namespace, "a")
    news["metadata"]["finalizers"] = ["slipway.dev/held"]
    made = provider.create(CONFIG_MAP, "a", news)
    with pytest.raises(CallFailed, match=r"still there 3 s after it was deleted: finalizers slipway.dev/held"):
        provider.delete(made, timeout=3)
    assert provider.said("waiting for it to go: finalizers slipway.dev/held")
    path = f"/api/v1/namespaces/{namespace}/configmaps/a"
    threading.Timer(0.5, _release, (api, path)).start()
    provider.delete(made)
    with pytest.raises(ApiError):
        api.request("GET", path)
