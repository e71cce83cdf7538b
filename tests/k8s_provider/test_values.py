"""The pure parts: property values on the wire, paths, differences, waitFor expressions, readiness rules."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localcloud.kubernetes.provider import diff, rules, waitfor, wire
from localcloud.kubernetes.provider.config import Settings
from localcloud.kubernetes.provider.wire import UNKNOWN

keys = st.text(min_size=1, max_size=8)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.just(UNKNOWN),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(keys, values, max_size=4))
def test_values_survive_the_wire(value: dict[str, Any]) -> None:
    assert wire.plain(wire.encode(value)) == value


@given(st.lists(keys | st.integers(0, 99), min_size=1, max_size=5))
def test_paths_survive_their_text(path: list[str | int]) -> None:
    whole = ("top", *path)
    assert wire.parse_path(wire.format_path(whole)) == whole


@given(st.dictionaries(keys, values, max_size=4))
def test_nothing_differs_from_itself(value: dict[str, Any]) -> None:
    assert diff.leaves(value, value) == {}


@given(st.dictionaries(keys, values, max_size=4), st.dictionaries(keys, values, max_size=4))
def test_what_differs_is_found(old: dict[str, Any], new: dict[str, Any]) -> None:
    found = diff.leaves(old, new)
    assert found or old == new
    for path, kind in found.items():
        holder: Any = old if kind == diff.DELETE else new
        for step in path:
            holder = holder[step]


def test_whole_numbers_stay_whole() -> None:
    found = wire.plain(wire.encode({"port": 80, "share": 0.5}))
    assert (repr(found["port"]), repr(found["share"])) == ("80", "0.5")


def test_secrets_are_marked_where_they_were() -> None:
    value = {"a": {"b": "x", "c": [{"d": "y"}]}, "e": 1}
    struct = wire.encode(value, [("a", "b"), ("a", "c", 0, "d"), ("gone",)])
    # A list with a secret in it is secret as a whole: the server may return its items in another order.
    assert wire.decode(struct) == (value, [("a", "b"), ("a", "c")])


def test_output_values_of_the_sdk_are_understood() -> None:
    output = {wire.SIGNATURE: wire.OUTPUT, "value": "x", "secret": True, "dependencies": []}
    assert wire.decode(wire.encode({"a": output})) == ({"a": "x"}, [("a",)])
    assert wire.plain(wire.encode({"a": {wire.SIGNATURE: wire.OUTPUT}})) == {"a": UNKNOWN}
    with pytest.raises(wire.WireError, match="a: a whole resource"):
        wire.plain(wire.encode({"a": {wire.SIGNATURE: wire.RESOURCE, "urn": "u"}}))


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("spec.ports[0].name", ("spec", "ports", 0, "name")),
        ('metadata.annotations["a.b/c"]', ("metadata", "annotations", "a.b/c")),
        ("spec.containers[*].image", ("spec", "containers", "*", "image")),
    ],
)
def test_paths_are_written_as_pulumi_does(text: str, path: wire.Path) -> None:
    assert wire.parse_path(text) == path


@pytest.mark.parametrize(
    ("group", "kind", "old", "new", "replaces"),
    [
        ("apps", "StatefulSet", {"spec": {"serviceName": "a"}}, {"spec": {"serviceName": "b"}}, ["spec.serviceName"]),
        ("apps", "StatefulSet", {"spec": {"replicas": 1}}, {"spec": {"replicas": 2}}, []),
        ("apps", "StatefulSet", {"spec": {"volumeClaimTemplates": []}}, {"spec": {}}, ["spec.volumeClaimTemplates"]),
        ("batch", "Job", {"spec": {"template": {"a": 1}}}, {"spec": {"template": {"a": 2}}}, ["spec.template.a"]),
        ("batch", "Job", {"spec": {"parallelism": 1}}, {"spec": {"parallelism": 2}}, []),
        ("", "Service", {"spec": {}}, {"spec": {"clusterIP": "None"}}, ["spec.clusterIP"]),
        ("", "Service", {}, {"spec": {"clusterIP": "None"}}, ["spec"]),
        ("", "Pod", {"spec": {"nodeName": "a"}}, {"spec": {"nodeName": "b"}}, ["spec.nodeName"]),
        ("", "Pod", {"spec": {}}, {"spec": {"activeDeadlineSeconds": 1}}, []),
        ("", "PersistentVolumeClaim", {"spec": {"resources": 1}}, {"spec": {"resources": 2}}, []),
        ("", "PersistentVolumeClaim", {"spec": {"storageClassName": "a"}}, {"spec": {}}, ["spec.storageClassName"]),
        ("storage.k8s.io", "StorageClass", {"parameters": {"a": "1"}}, {"parameters": {}}, ["parameters.a"]),
        ("", "Secret", {"type": "a", "data": {}}, {"type": "b", "data": {"x": "y"}}, ["data.x", "type"]),
        ("", "ConfigMap", {"data": {"x": UNKNOWN}}, {"data": {"x": "a"}}, ["data.x"]),
        ("slinky.slurm.net", "Secret", {"data": 1}, {"data": 2}, []),
        ("apps", "Deployment", {"apiVersion": "apps/v1beta1"}, {"apiVersion": "apps/v1"}, []),
        ("apps", "Deployment", {"apiVersion": "extensions/v1beta1"}, {"apiVersion": "apps/v1"}, ["apiVersion"]),
        ("", "Namespace", {"metadata": {"name": "a"}}, {"metadata": {"name": "b"}}, ["metadata.name"]),
    ],
)
def test_which_changes_make_another_object(
    group: str, kind: str, old: dict[str, Any], new: dict[str, Any], replaces: list[str]
) -> None:
    found = diff.compare(group, {"kind": kind} | old, {"kind": kind} | new, Settings(), [])
    assert diff.paths(found.replaces) == replaces


def test_immutability_is_read_from_the_servers_words() -> None:
    only = [{"field": "spec.selector", "message": "Invalid value: {}: field is immutable"}]
    assert diff.immutable_fields(only) == [("spec", "selector")]
    words = "Forbidden: updates to statefulset spec for fields other than 'replicas' are forbidden"
    assert diff.immutable_fields([{"field": "spec", "message": words}]) == [("spec",)]
    assert diff.immutable_fields([*only, {"field": "spec.replicas", "message": "Invalid value: -1"}]) is None
    shrink = "Forbidden: field can not be less than previous value"
    assert diff.immutable_fields([{"field": "spec.resources.requests.storage", "message": shrink}]) is None


LIVE: dict[str, Any] = {
    "metadata": {"generation": 2, "labels": {"app.kubernetes.io/name": "x"}},
    "status": {
        "phase": "Running",
        "count": 3,
        "conditions": [{"type": "Ready", "status": "True"}, {"type": "Degraded", "status": "False", "reason": "Ok"}],
        "nodes": [{"name": "a", "state": "idle"}, {"name": "b", "state": "down"}],
    },
}


@pytest.mark.parametrize(
    "text",
    [
        "condition=Ready",
        "condition=Ready=true",
        "condition=Degraded=False",
        "jsonpath={.status.phase}",
        "jsonpath={.status.phase}=Running",
        "jsonpath='{.status.phase}'=Running",
        "jsonpath={.status.count}=3",
        'jsonpath={.status.conditions[?(@.type=="Ready")].status}=True',
        "jsonpath={.status.nodes[0].state}=idle",
        "jsonpath={.status.nodes[-1]['state']}=down",
        "jsonpath={.status.nodes[*].name}",
        r"jsonpath={.metadata.labels.app\.kubernetes\.io/name}=x",
        '["condition=Ready", "jsonpath={.status.phase}=Running"]',
    ],
)
def test_expressions_that_hold(text: str) -> None:
    assert waitfor.missing(waitfor.parse(text), LIVE) == ""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("condition=Done", "no condition Done yet"),
        ("condition=Degraded", "condition Degraded is False (Ok)"),
        ("jsonpath={.status.phase}=Done", "{.status.phase} is Running, not yet Done"),
        ("jsonpath={.status.none}", "nothing at {.status.none} yet"),
        ("jsonpath={.status.nodes[*].state}=idle", "{.status.nodes[*].state} is idle, down, not yet idle"),
        ('["condition=Done", "condition=Gone"]', "no condition Done yet; no condition Gone yet"),
    ],
)
def test_expressions_that_do_not_hold_say_what_is_missing(text: str, says: str) -> None:
    assert waitfor.missing(waitfor.parse(text), LIVE) == says


@pytest.mark.parametrize(
    "text",
    [
        "Ready",
        "condition=",
        "jsonpath=.status",
        "jsonpath={status}",
        "jsonpath={.a[}",
        "jsonpath={.a[1:2]}",
        "[]",
        "[1]",
    ],
)
def test_expressions_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(waitfor.BadExpression):
        waitfor.parse(text)


class Nothing:
    """No other objects."""

    def one(self, api_version: str, kind: str, namespace: str | None, name: str) -> None:
        return None

    def many(self, api_version: str, kind: str, namespace: str | None, labels: str = "") -> list[dict[str, Any]]:
        return []


def conditions(**types: str) -> list[dict[str, str]]:
    return [{"type": type_, "status": status} for type_, status in types.items()]


@pytest.mark.parametrize(
    ("api_version", "kind", "body", "missing", "failed"),
    [
        ("apps/v1", "Deployment", {"status": {}}, "the deployment controller has not seen this version yet", False),
        ("apps/v1", "Deployment", {"spec": {"replicas": 0}, "status": {"observedGeneration": 1}}, "", False),
        ("apps/v1", "Deployment", {"status": {"observedGeneration": 1}}, "0 of 1 pods made", False),
        (
            "apps/v1",
            "Deployment",
            {"status": {"observedGeneration": 1, "updatedReplicas": 1, "availableReplicas": 1, "replicas": 2}},
            "1 pods of the old version still there",
            False,
        ),
        (
            "apps/v1",
            "Deployment",
            {
                "status": {
                    "observedGeneration": 1,
                    "conditions": [
                        {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "message": "m"}
                    ],
                }
            },
            "0 of 1 pods available; ProgressDeadlineExceeded: m",
            True,
        ),
        (
            "apps/v1",
            "StatefulSet",
            {
                "spec": {"replicas": 2},
                "status": {
                    "observedGeneration": 1,
                    "readyReplicas": 2,
                    "updatedReplicas": 1,
                    "currentRevision": "a",
                    "updateRevision": "b",
                },
            },
            "1 of 2 pods updated",
            False,
        ),
        (
            "apps/v1",
            "StatefulSet",
            {
                "spec": {"replicas": 2, "updateStrategy": {"type": "OnDelete"}},
                "status": {"observedGeneration": 1, "readyReplicas": 2, "currentRevision": "a", "updateRevision": "b"},
            },
            "",
            False,
        ),
        (
            "apps/v1",
            "DaemonSet",
            {"status": {"observedGeneration": 1, "desiredNumberScheduled": 3, "updatedNumberScheduled": 2}},
            "2 of 3 pods updated",
            False,
        ),
        ("batch/v1", "Job", {"status": {"conditions": conditions(Complete="True")}}, "", False),
        ("batch/v1", "Job", {"spec": {"suspend": True}}, "", False),
        ("v1", "Pod", {"status": {"phase": "Succeeded"}}, "", False),
        ("v1", "Pod", {"status": {"phase": "Failed", "reason": "Evicted"}}, "the pod failed: Evicted", True),
        ("v1", "PersistentVolumeClaim", {"status": {"phase": "Lost"}}, "the volume of the claim is lost", True),
        ("v1", "Namespace", {"status": {"phase": "Terminating"}}, "the namespace is being removed", True),
        ("v1", "Service", {"spec": {"type": "ExternalName"}}, "", False),
        ("v1", "Service", {"spec": {"clusterIP": "10.0.0.1"}}, "", False),
        ("networking.k8s.io/v1", "Ingress", {}, "no address from the ingress controller yet", False),
        (
            "apiregistration.k8s.io/v1",
            "APIService",
            {"status": {"conditions": conditions(Available="False")}},
            "the API it adds does not answer: ",
            False,
        ),
        (
            "apiextensions.k8s.io/v1",
            "CustomResourceDefinition",
            {"status": {"conditions": conditions(NamesAccepted="False")}},
            "its names are not accepted: ",
            True,
        ),
        ("slinky.slurm.net/v1beta1", "Controller", {}, "", False),
    ],
)
def test_readiness_by_kind(api_version: str, kind: str, body: dict[str, Any], missing: str, failed: bool) -> None:
    live = {"apiVersion": api_version, "kind": kind, "metadata": {"name": "x", "generation": 1}} | body
    verdict = rules.verdict(live, Nothing())
    assert (verdict.missing, verdict.failed) == (missing, failed)
