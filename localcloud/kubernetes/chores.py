"""Short work on a node of an existing cluster, by a pod that ends: the only way to its files."""

from __future__ import annotations

import hashlib
import time
from typing import Any

from localcloud.kubernetes.api import Api
from localcloud.kubernetes.errors import ClusterError

PODS = "/api/v1/namespaces/kube-system/pods"
SECONDS = 180
"""How long a chore may take, the pull of its image included."""
MOUNT_SECONDS = 10
"""After this a complaint about the pod's volume is final: the node tries again for ever."""
HOPELESS = ("ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "RunContainerError")


def pod(node: str, image: str, script: str, directory: str) -> dict[str, Any]:
    """A pod that runs a shell script as root on a node, with the node's directory at /host."""
    name = hashlib.sha256(f"{node} {script}".encode()).hexdigest()[:12]
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": f"slipway-chore-{name}", "namespace": "kube-system"},
        "spec": {
            "nodeName": node, "restartPolicy": "Never", "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False, "enableServiceLinks": False,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{
                "name": "chore", "image": image, "command": ["sh", "-ec", script],
                "securityContext": {"runAsUser": 0, "runAsGroup": 0},
                "volumeMounts": [{"name": "host", "mountPath": "/host"}],
            }],
            "volumes": [{"name": "host", "hostPath": {"path": directory, "type": "Directory"}}],
        },
    }  # fmt: skip


def run(api: Api, node: str, image: str, script: str, directory: str) -> None:
    """Run a shell script on a node and wait for its end. Raises ClusterError with the node's reason if it fails."""
    body = pod(node, image, script, directory)
    path = f"{PODS}/{body['metadata']['name']}"
    api.delete(path)  # of a run that was killed
    try:
        _create(api, body, path)
        began = time.monotonic()
        while (status := api.request("GET", path)["status"]).get("phase") != "Succeeded":
            waiting, took = _waiting(status), time.monotonic() - began
            unmounted = _events(api, body, "FailedMount") if took > MOUNT_SECONDS else ""
            if status.get("phase") == "Failed" or waiting.get("reason") in HOPELESS or unmounted or took > SECONDS:
                said = unmounted or waiting.get("message") or status.get("message") or f"`{script}` failed in its pod"
                raise ClusterError(f"node {node}: {said}")
            time.sleep(0.2)
    finally:
        api.delete(path)


def _create(api: Api, body: dict[str, Any], path: str) -> None:
    end = time.monotonic() + 30
    while api.get(path) is not None and time.monotonic() < end:
        time.sleep(0.1)
    api.request("POST", PODS, body)


def _waiting(status: dict[str, Any]) -> dict[str, Any]:
    for container in status.get("containerStatuses", []):
        waiting: dict[str, Any] = container["state"].get("waiting", {})
        return waiting
    return {}


def _events(api: Api, body: dict[str, Any], reason: str) -> str:
    """What the node last said for this reason."""
    selector = f"involvedObject.name={body['metadata']['name']},reason={reason}"
    found = api.request("GET", f"/api/v1/namespaces/kube-system/events?fieldSelector={selector}")["items"]
    return str(found[-1]["message"]) if found else ""
