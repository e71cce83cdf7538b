"""What the stand-in itself asks of Kubernetes: nodes to drain, objects to list and watch. Blocking, JSON only."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote, urlencode

from localcloud.kubernetes import cluster, existing
from localcloud.kubernetes.api import MERGE, Api, ApiError, Unreachable
from localcloud.paths import instance

Object = dict[str, Any]
MANAGER = "slipway-aws"


class Kube(Api):
    """The API server of the instance's cluster, with lists, patches and watches."""

    _watching: http.client.HTTPConnection | None = None

    def items(self, path: str, **query: str) -> list[Object]:
        return list(self.request("GET", path + (f"?{urlencode(query)}" if query else ""))["items"])

    def listed(self, path: str) -> tuple[list[Object], str]:
        """All objects of a kind, and the resource version from which a watch goes on."""
        answer = self.request("GET", path)
        return list(answer["items"]), str(answer["metadata"]["resourceVersion"])

    def merge(self, path: str, body: Object) -> Object:
        return self.request("PATCH", path, body, MERGE)

    def watch(self, path: str, version: str, seconds: int) -> Iterator[tuple[str, Object]]:
        """Events since a resource version, for at most `seconds`. Raises ApiError when it is too old, Unreachable when
        the connection breaks."""
        query = urlencode({"watch": "1", "resourceVersion": version, "timeoutSeconds": str(seconds)})
        connection = self.connection(seconds + 10)
        try:
            self._watching = connection
            connection.request("GET", f"{path}?{query}", headers=self._headers)
            response = connection.getresponse()
            if response.status >= 400:
                raise ApiError(response.status, response.read().decode())
            for line in response:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise ApiError(event["object"].get("code", 500), event["object"].get("message", "watch failed"))
                yield event["type"], event["object"]
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Unreachable(f"the watch of {path} broke off: {error}") from error
        finally:
            self._watching = None
            connection.close()

    def abandon(self) -> None:
        """End the watch that another thread is in, which sees it break off. An open one delays the server's end."""
        watching = self._watching
        if watching is not None and watching.sock is not None:
            with contextlib.suppress(OSError):
                watching.sock.shutdown(socket.SHUT_RDWR)


def connect() -> Kube:
    """A client with the administrator's rights. Raises ClusterError when there is no usable kubeconfig."""
    inst = instance()
    if cluster.external_kubeconfig(inst):
        return Kube.of_socket(existing.socket(inst))
    return Kube(inst.kubeconfig)


def node_path(name: str) -> str:
    return f"/api/v1/nodes/{quote(name)}"


def node_ready(node: Object) -> bool:
    conditions = node.get("status", {}).get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def drain(kube: Kube, name: str, seconds: float, leaves: Callable[[Object], bool] = lambda pod: True) -> list[str]:
    """Cordon a node and evict its pods, as EKS does before it ends an instance; pods of DaemonSets stay.

    leaves: whether a pod is among those that have to go.
    Returns the pods (namespace/name) that were still there after `seconds`; empty when the node is empty or gone.
    """
    try:
        kube.merge(node_path(name), {"spec": {"unschedulable": True}})
    except ApiError as error:
        if error.status == 404:
            return []
        raise
    end = time.monotonic() + seconds
    while True:
        there = kube.items("/api/v1/pods", fieldSelector=f"spec.nodeName={name}")
        pods = [pod for pod in there if _must_leave(pod) and leaves(pod)]
        if not pods or time.monotonic() > end:
            return [f"{pod['metadata']['namespace']}/{pod['metadata']['name']}" for pod in pods]
        for pod in pods:
            meta = pod["metadata"]
            if "deletionTimestamp" not in meta:
                body = {"apiVersion": "policy/v1", "kind": "Eviction"}
                body_meta = {"name": meta["name"], "namespace": meta["namespace"]}
                try:
                    kube.request(
                        "POST",
                        f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/eviction",
                        {**body, "metadata": body_meta},
                    )
                except ApiError as error:
                    if error.status not in (404, 429):  # 429: a disruption budget says not now
                        raise
        time.sleep(0.5)


def _must_leave(pod: Object) -> bool:
    meta = pod["metadata"]
    if "kubernetes.io/config.mirror" in meta.get("annotations", {}):
        return False
    if pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return False
    return not any(owner["kind"] == "DaemonSet" for owner in meta.get("ownerReferences", []))
