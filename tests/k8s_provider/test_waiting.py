"""Waiting for objects on a real cluster with a real node: readiness of each kind, messages, and reasons of failure."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.empty_pb2 import Empty
from pulumi.runtime.proto import provider_pb2 as pb

from localcloud.kubernetes.api import Api
from localcloud.kubernetes.nodefiles import PAUSE_IMAGE
from tests.k8s_provider.harness import CallFailed, Provider, Resource, later, running
from tests.k8s_provider.test_objects import CRD, thing_definition
from tests.kubernetes.pods import pod_spec

DEPLOYMENT = "kubernetes:apps/v1:Deployment"
STATEFUL_SET = "kubernetes:apps/v1:StatefulSet"
SERVICE = "kubernetes:core/v1:Service"
JOB = "kubernetes:batch/v1:Job"
POD = "kubernetes:core/v1:Pod"
CLAIM = "kubernetes:core/v1:PersistentVolumeClaim"
WIDGET = "kubernetes:test.slipway.dev/v1:Gadget"
MERGE = "application/merge-patch+json"


def workload(namespace: str, spec: dict[str, Any], replicas: int = 1, **more: Any) -> dict[str, Any]:
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": spec}
    return {
        "metadata": {"name": "web", "namespace": namespace},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template, **more},
    }


def idle(image: str = PAUSE_IMAGE) -> dict[str, Any]:
    return {"terminationGracePeriodSeconds": 0, "containers": [{"name": "main", "image": image}]}


def shell(script: str, **more: Any) -> dict[str, Any]:
    return pod_spec(["/usr/bin/bash", "-c", script]) | more


def test_workloads_are_ready_when_their_pods_are(provider: Provider, node: str, namespace: str) -> None:
    made = provider.create(DEPLOYMENT, "web", workload(namespace, idle(), 2))
    assert made.outputs["status"]["availableReplicas"] == 2
    changed = provider.update(made, workload(namespace, idle() | {"hostname": "other"}, 2))
    assert changed.outputs["status"]["updatedReplicas"] == changed.outputs["status"]["replicas"] == 2
    spec = {"selector": {"app": "web"}, "ports": [{"port": 80}]}
    provider.create(SERVICE, "web", {"metadata": {"name": "web", "namespace": namespace}, "spec": spec})

    ordered = workload(namespace, idle(), 2, serviceName="web")
    ordered["metadata"]["name"] = "ordered"
    ordered["spec"]["selector"]["matchLabels"] = ordered["spec"]["template"]["metadata"]["labels"] = {"app": "ordered"}
    made = provider.create(STATEFUL_SET, "ordered", ordered)
    assert made.outputs["status"]["readyReplicas"] == 2
    provider.delete(made)


def test_a_job_is_ready_when_it_has_run(provider: Provider, node: str, namespace: str) -> None:
    template = {"spec": shell("echo counted to three; exit 0", restartPolicy="Never")}
    news: dict[str, Any] = {"metadata": {"name": "count", "namespace": namespace}}
    news["spec"] = {"template": template, "backoffLimit": 0}
    assert provider.create(JOB, "count", news).outputs["status"]["succeeded"] == 1
    template = {"spec": shell("echo the licence is missing >&2; exit 3", restartPolicy="Never")}
    news = {"metadata": {"name": "fail", "namespace": namespace}}
    news["spec"] = {"template": template, "backoffLimit": 0}
    with pytest.raises(CallFailed) as caught:
        provider.create(JOB, "fail", news)
    assert "the job failed: BackoffLimitExceeded" in str(caught.value)
    assert "ended with exit code 3" in str(caught.value)
    assert "the licence is missing" in str(caught.value)
    assert caught.value.id == f"{namespace}/fail"
    half = Resource(JOB, "fail", caught.value.id, caught.value.inputs, caught.value.outputs)
    assert provider.diff(half, news).changes == pb.DiffResponse.DIFF_NONE
    news["metadata"]["annotations"] = {"pulumi.com/replaceUnready": "true"}
    answer = provider.diff(half, news)
    assert list(answer.replaces) == ['metadata.annotations["pulumi.com/replaceUnready"]']
    assert answer.deleteBeforeReplace


def test_a_crash_is_told_with_its_last_words_and_kept_in_the_state(
    provider: Provider, api: Api, node: str, namespace: str
) -> None:
    news = workload(namespace, shell("echo no such partition: gpu >&2; exit 7"))
    with pytest.raises(CallFailed) as caught:
        provider.create(DEPLOYMENT, "web", news, timeout=8)
    told = str(caught.value)
    assert "not ready after 8 s: 0 of 1 pods available" in told
    assert "exit code 7" in told
    assert "no such partition: gpu" in told
    assert "last event: BackOff" in told
    assert caught.value.id == f"{namespace}/web"
    assert caught.value.inputs["spec"]["replicas"] == 1
    assert caught.value.outputs["metadata"]["uid"]
    live = api.get(f"/apis/apps/v1/namespaces/{namespace}/deployments/web")
    assert live and live["metadata"]["uid"] == caught.value.outputs["metadata"]["uid"]


def test_a_missing_image_is_told_while_it_waits(provider: Provider, node: str, namespace: str) -> None:
    news = workload(namespace, idle("registry.invalid/none:1"), 3)
    with pytest.raises(CallFailed) as caught:
        provider.create(DEPLOYMENT, "web", news, timeout=7)
    assert "registry.invalid/none:1" in str(caught.value)
    passing = [m for m in provider.engine.messages if m.passing and "0 of 3 pods available; pod web-" in m.text]
    assert any("ImagePull" in message.text for message in passing)
    assert all(message.urn.endswith("::web") for message in passing)


def test_a_pod_that_fits_nowhere_says_why(provider: Provider, node: str, namespace: str) -> None:
    news = {"metadata": {"name": "p", "namespace": namespace}, "spec": idle() | {"nodeSelector": {"gpu": "h100"}}}
    with pytest.raises(CallFailed, match=r"Unschedulable: 0/1 nodes are available"):
        provider.create(POD, "p", news, timeout=3)


def test_skip_await_and_the_time_limit_come_from_annotations(provider: Provider, namespace: str) -> None:
    nowhere = idle() | {"nodeSelector": {"gpu": "h100"}}
    quick = {"pulumi.com/timeoutSeconds": "2"}
    news = {"metadata": {"name": "p", "namespace": namespace, "annotations": quick}, "spec": nowhere}
    with pytest.raises(CallFailed, match="not ready after 2 s"):
        provider.create(POD, "p", news, timeout=0)
    news["metadata"] = {"name": "q", "namespace": namespace, "annotations": {"pulumi.com/skipAwait": "true"}}
    assert provider.create(POD, "q", news).outputs["status"]["phase"] == "Pending"


def test_a_service_waits_for_what_its_type_needs(provider: Provider, api: Api, namespace: str) -> None:
    news: dict[str, Any] = {"metadata": {"name": "s", "namespace": namespace}}
    news["spec"] = {"selector": {"app": "nobody"}, "ports": [{"port": 80}]}
    with pytest.raises(CallFailed, match="no ready pod with the labels app=nobody"):
        provider.create(SERVICE, "s", news, timeout=1)
    news = {"metadata": {"name": "headless", "namespace": namespace}, "spec": news["spec"] | {"clusterIP": "None"}}
    provider.create(SERVICE, "headless", news)
    news = {
        "metadata": {"name": "lb", "namespace": namespace},
        "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]},
    }
    path = f"/api/v1/namespaces/{namespace}/services/lb/status"
    status = {"status": {"loadBalancer": {"ingress": [{"hostname": "lb.example.com"}]}}}
    with later(1.0, lambda: api.request("PATCH", path, status, MERGE)):
        made = provider.create(SERVICE, "lb", news)
    assert made.outputs["status"]["loadBalancer"]["ingress"][0]["hostname"] == "lb.example.com"


def test_a_claim_waits_unless_its_class_waits_for_a_pod(provider: Provider, api: Api, namespace: str) -> None:
    for name, mode in (("at-once", "Immediate"), ("when-used", "WaitForFirstConsumer")):
        class_ = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name}}
        more = {"provisioner": "slipway.dev/none", "volumeBindingMode": mode}
        api.apply(f"/apis/storage.k8s.io/v1/storageclasses/{name}", class_ | more)
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    news = {"metadata": {"name": "a", "namespace": namespace}, "spec": spec | {"storageClassName": "when-used"}}
    provider.create(CLAIM, "a", news)
    news = {"metadata": {"name": "b", "namespace": namespace}, "spec": spec | {"storageClassName": "at-once"}}
    with pytest.raises(CallFailed, match="no volume is bound to the claim yet"):
        provider.create(CLAIM, "b", news, timeout=1)


@pytest.fixture(scope="module")
def gadgets(provider: Provider) -> None:
    provider.create(CRD, "gadgets", thing_definition("gadgets", "Gadget"))


def gadget(namespace: str, name: str, wait_for: str | None) -> dict[str, Any]:
    annotations = {"pulumi.com/waitFor": wait_for} if wait_for else {}
    return {"metadata": {"name": name, "namespace": namespace, "annotations": annotations}, "spec": {"size": 1}}


def set_status(api: Api, namespace: str, name: str, **status: Any) -> None:
    path = f"/apis/test.slipway.dev/v1/namespaces/{namespace}/gadgets/{name}/status"
    api.request("PATCH", path, {"status": status}, MERGE)


@pytest.mark.usefixtures("gadgets")
def test_a_custom_resource_is_waited_for_by_its_annotation_only(provider: Provider, api: Api, namespace: str) -> None:
    provider.create(WIDGET, "a", gadget(namespace, "a", None))
    ready = {"type": "Ready", "status": "True", "observedGeneration": 1}
    with later(1.0, lambda: set_status(api, namespace, "b", conditions=[ready])):
        made = provider.create(WIDGET, "b", gadget(namespace, "b", "condition=Ready"))
    assert made.outputs["status"]["conditions"][0]["status"] == "True"
    # After a change the condition counts again once the controller has seen that change.
    changed = gadget(namespace, "b", "condition=Ready") | {"spec": {"size": 2}}
    with pytest.raises(CallFailed, match="condition Ready is of generation 1, the object's is 2"):
        provider.update(made, changed, timeout=2)
    set_status(api, namespace, "b", observedGeneration=1, conditions=[ready | {"observedGeneration": 2}])
    with pytest.raises(CallFailed, match="its controller has seen generation 1 of 2"):
        provider.update(made, changed, timeout=2)
    set_status(api, namespace, "b", observedGeneration=2)
    provider.update(made, changed)


@pytest.mark.usefixtures("gadgets")
def test_all_expressions_of_a_list_must_hold(provider: Provider, api: Api, namespace: str) -> None:
    both = '["jsonpath={.status.phase}=Running", "condition=Degraded=False"]'
    with pytest.raises(CallFailed) as caught:
        provider.create(WIDGET, "c", gadget(namespace, "c", both), timeout=1)
    assert "{.status.phase} is nothing, not yet Running; no condition Degraded yet" in str(caught.value)
    set_status(
        api, namespace, "c", phase="Running", conditions=[{"type": "Degraded", "status": "True", "reason": "Lost"}]
    )
    with pytest.raises(CallFailed, match=r"not ready after 1 s: condition Degraded is True \(Lost\)"):
        provider.create(WIDGET, "c", gadget(namespace, "c", both), timeout=1)
    set_status(api, namespace, "c", conditions=[{"type": "Degraded", "status": "False"}])
    provider.create(WIDGET, "c", gadget(namespace, "c", both))


def test_cancel_ends_a_wait_and_keeps_what_was_made(kubeconfig: str, namespace: str, program: Path) -> None:
    news = {"metadata": {"name": "p", "namespace": namespace}, "spec": idle() | {"nodeSelector": {"gpu": "h100"}}}
    with running(program, kubeconfig=kubeconfig) as provider:
        threading.Timer(1.0, lambda: provider.stub.Cancel(Empty())).start()
        with pytest.raises(CallFailed, match="the run was cancelled") as caught:
            provider.create(POD, "p", news)
    assert caught.value.id == f"{namespace}/p"


def test_someone_removes_what_is_waited_for(provider: Provider, api: Api, namespace: str) -> None:
    news = {"metadata": {"name": "p", "namespace": namespace}, "spec": idle() | {"nodeSelector": {"gpu": "h100"}}}
    path = f"/api/v1/namespaces/{namespace}/pods/p"
    with later(1.0, lambda: api.delete(path)), pytest.raises(CallFailed, match="was removed by someone"):
        provider.create(POD, "p", news)
