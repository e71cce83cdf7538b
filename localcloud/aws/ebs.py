"""Stands in for the EBS CSI driver: volumes for StorageClasses of provisioner ebs.csi.aws.com, as directories.

What it does not do: sizes are not enforced, nothing is encrypted, snapshots and resizing do not exist, and a volume is
not bound to a zone: its directory can be reached from every local node. Access modes are not enforced either.
In an existing cluster a volume is a directory of the node that its first pod was given, and bound to that node.
"""

from __future__ import annotations

import logging
import shutil
import threading
from pathlib import Path
from typing import Any

from localcloud.aws.kube import Kube, Object, connect, node_path
from localcloud.images.build import local_image
from localcloud.kubernetes import chores, cluster
from localcloud.kubernetes.api import Unreachable
from localcloud.kubernetes.errors import ClusterError
from localcloud.paths import instance

log = logging.getLogger(__name__)

PROVISIONER = "ebs.csi.aws.com"
SELECTED = "volume.kubernetes.io/selected-node"
NODE = "slipway.dev/node"  # annotation of a volume that is a directory of an existing cluster's node
HOSTNAME = "kubernetes.io/hostname"
NODES_PARENT = Path("/var/lib")
ANNOTATION = "pv.kubernetes.io/provisioned-by"
CLAIMS, VOLUMES = "/api/v1/persistentvolumeclaims", "/api/v1/persistentvolumes"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
WATCH_SECONDS = 300
RETRY_SECONDS = 1.0


def wanted_volume(claim: Object, storage_class: Object | None, on_nodes: bool = False) -> Object | None:
    """The PersistentVolume that a claim needs from this provisioner now; None when there is nothing to do.

    A claim of a WaitForFirstConsumer class has to be given a node by the scheduler first.
    on_nodes: volumes are directories of one node, which any claim has to be given first.
    """
    meta, spec = claim["metadata"], claim["spec"]
    if storage_class is None or storage_class.get("provisioner") != PROVISIONER:
        return None
    if spec.get("volumeName") or "deletionTimestamp" in meta:
        return None
    annotations = meta.get("annotations") or {}
    node = annotations.get(SELECTED)
    if node is None and (on_nodes or storage_class.get("volumeBindingMode") == "WaitForFirstConsumer"):
        return None
    name = f"pvc-{meta['uid']}"
    return {
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {"name": name, "annotations": {ANNOTATION: PROVISIONER, **({NODE: node} if on_nodes else {})}},
        "spec": {
            "capacity": {"storage": spec["resources"]["requests"]["storage"]},
            "accessModes": spec["accessModes"], "volumeMode": spec.get("volumeMode", "Filesystem"),
            "persistentVolumeReclaimPolicy": storage_class.get("reclaimPolicy", "Delete"),
            "storageClassName": storage_class["metadata"]["name"],
            "hostPath": {"path": str(directory(name, on_nodes)), "type": "Directory"},
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": meta["namespace"],
                "name": meta["name"], "uid": meta["uid"],
            },
        },
    }  # fmt: skip


def directory(volume: str, on_node: bool = False) -> Path:
    """Where a volume's files are: on this machine, or on a node of an existing cluster."""
    return (NODES_PARENT / f"slipway-{instance().name}" if on_node else instance().state / "volumes") / volume


def is_over(volume: Object) -> bool:
    """Whether a volume of ours was released and is to be deleted with its files."""
    return (
        _is_ours(volume)
        and volume["spec"].get("persistentVolumeReclaimPolicy") == "Delete"
        and volume.get("status", {}).get("phase") in ("Released", "Failed")
    )


def _is_ours(volume: Object) -> bool:
    """An existing cluster may have volumes of the real driver, too."""
    by = (volume["metadata"].get("annotations") or {}).get(ANNOTATION)
    path = volume["spec"].get("hostPath", {}).get("path", "")
    name = volume["metadata"]["name"]
    return by == PROVISIONER and path in (str(directory(name)), str(directory(name, on_node=True)))


def _at_node(kube: Kube, node: str, script: str) -> None:
    """Run a script with $d, the directory of this instance's volumes on the node of an existing cluster."""
    folder = directory("", on_node=True).name
    chores.run(kube, node, local_image("slurmctld"), f"d=/host/{folder}; {script}", str(NODES_PARENT))


def _delete(kube: Kube, volume: Object) -> None:
    """Remove a volume and its files, wherever they are; those of a node that is gone are gone."""
    name, node = volume["metadata"]["name"], volume["metadata"]["annotations"].get(NODE)
    if node is None:
        shutil.rmtree(directory(name), ignore_errors=True)
    elif kube.get(node_path(node)) is not None:
        _at_node(kube, node, f'rm -rf "$d/{name}"; rmdir "$d" || true')
    kube.delete(f"{VOLUMES}/{name}")
    log.info("volume %s is gone", name)


def reclaim_all(kube: Kube) -> None:
    """Delete every volume of this instance that nobody claims any more; the provisioner may have been ended before."""
    for volume in kube.items(VOLUMES):
        if is_over(volume):
            _delete(kube, volume)


class Provisioner:
    """Two threads that follow claims and volumes by watches; a broken watch starts again with a list."""

    def __init__(self) -> None:
        self._end = threading.Event()
        self._open: dict[str, Kube] = {}

    def start(self) -> None:
        for path, act in ((CLAIMS, self._provide), (VOLUMES, self._reclaim)):
            threading.Thread(target=self._follow, args=(path, act), name=f"ebs {path}", daemon=True).start()

    def stop(self) -> None:
        """End the threads, and their watches at once."""
        self._end.set()
        for kube in list(self._open.values()):
            kube.abandon()

    def _follow(self, path: str, act: Any) -> None:
        while not self._end.is_set():
            try:
                kube = self._open[path] = connect()
                items, version = kube.listed(path)
                for item in items:
                    self._try(act, kube, item)
                for kind, item in kube.watch(path, version, WATCH_SECONDS):
                    if self._end.is_set():
                        return
                    if kind in ("ADDED", "MODIFIED"):
                        self._try(act, kube, item)
            except ClusterError as error:
                log.info("%s: %s", path, error)
                self._end.wait(RETRY_SECONDS)

    def _try(self, act: Any, kube: Kube, item: Object) -> None:
        """One object that cannot be handled must not hold up the others; what cannot be reached ends the watch."""
        try:
            act(kube, item)
        except Unreachable:
            raise
        except (ClusterError, OSError, KeyError) as error:
            log.warning("%s %s: %s", item.get("kind", ""), item["metadata"]["name"], error)

    def _provide(self, kube: Kube, claim: Object) -> None:
        class_name = claim["spec"].get("storageClassName")
        if not class_name or claim["spec"].get("volumeName"):
            return
        on_nodes = cluster.external_kubeconfig() is not None
        volume = wanted_volume(claim, kube.get(f"{CLASSES}/{class_name}"), on_nodes)
        if volume is None:
            return
        name = volume["metadata"]["name"]
        if kube.get(f"{VOLUMES}/{name}") is not None:
            return
        # hostPath volumes get no fsGroup: whoever the pod runs as has to be able to write.
        if on_nodes:
            node = volume["metadata"]["annotations"][NODE]
            _at_node(kube, node, f'mkdir -p "$d/{name}"; chmod 777 "$d/{name}"')
            volume["spec"]["nodeAffinity"] = _only(kube.request("GET", node_path(node)))
        else:
            path = directory(name)
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(0o777)
        kube.request("POST", VOLUMES, volume)
        log.info("volume %s for claim %s/%s", name, claim["metadata"]["namespace"], claim["metadata"]["name"])

    def _reclaim(self, kube: Kube, volume: Object) -> None:
        if is_over(volume):
            _delete(kube, volume)


def _only(node: Object) -> Object:
    """The affinity of a volume that is on this node."""
    label = {"key": HOSTNAME, "operator": "In", "values": [node["metadata"]["labels"][HOSTNAME]]}
    return {"required": {"nodeSelectorTerms": [{"matchExpressions": [label]}]}}
