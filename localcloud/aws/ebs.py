"""Stands in for the EBS CSI driver: volumes for StorageClasses of provisioner ebs.csi.aws.com, as directories.

What it does not do: sizes are not enforced, nothing is encrypted, snapshots and resizing do not exist, and a volume is
not bound to a zone: its directory can be reached from every local node. Access modes are not enforced either.
"""

from __future__ import annotations

import logging
import shutil
import threading
from pathlib import Path
from typing import Any

from localcloud.aws.kube import Kube, Object, connect
from localcloud.kubernetes.api import ApiError, Unreachable
from localcloud.kubernetes.errors import ClusterError
from localcloud.paths import instance

log = logging.getLogger(__name__)

PROVISIONER = "ebs.csi.aws.com"
ANNOTATION = "pv.kubernetes.io/provisioned-by"
CLAIMS, VOLUMES = "/api/v1/persistentvolumeclaims", "/api/v1/persistentvolumes"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
WATCH_SECONDS = 300
RETRY_SECONDS = 1.0


def wanted_volume(claim: Object, storage_class: Object | None) -> Object | None:
    """The PersistentVolume that a claim needs from this provisioner now; None when there is nothing to do.

    A claim of a WaitForFirstConsumer class has to be given a node by the scheduler first.
    """
    meta, spec = claim["metadata"], claim["spec"]
    if storage_class is None or storage_class.get("provisioner") != PROVISIONER:
        return None
    if spec.get("volumeName") or "deletionTimestamp" in meta:
        return None
    annotations = meta.get("annotations") or {}
    waits = storage_class.get("volumeBindingMode") == "WaitForFirstConsumer"
    if waits and "volume.kubernetes.io/selected-node" not in annotations:
        return None
    name = f"pvc-{meta['uid']}"
    return {
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {"name": name, "annotations": {ANNOTATION: PROVISIONER}},
        "spec": {
            "capacity": {"storage": spec["resources"]["requests"]["storage"]},
            "accessModes": spec["accessModes"], "volumeMode": spec.get("volumeMode", "Filesystem"),
            "persistentVolumeReclaimPolicy": storage_class.get("reclaimPolicy", "Delete"),
            "storageClassName": storage_class["metadata"]["name"],
            "hostPath": {"path": str(directory(name)), "type": "Directory"},
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": meta["namespace"],
                "name": meta["name"], "uid": meta["uid"],
            },
        },
    }  # fmt: skip


def directory(volume: str) -> Path:
    """Where a volume's files are."""
    return instance().state / "volumes" / volume


def is_over(volume: Object) -> bool:
    """Whether a volume of ours was released and is to be deleted with its files."""
    return (
        (volume["metadata"].get("annotations") or {}).get(ANNOTATION) == PROVISIONER
        and volume["spec"].get("persistentVolumeReclaimPolicy") == "Delete"
        and volume.get("status", {}).get("phase") in ("Released", "Failed")
    )


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
        except (ApiError, OSError, KeyError) as error:
            log.warning("%s %s: %s", item.get("kind", ""), item["metadata"]["name"], error)

    def _provide(self, kube: Kube, claim: Object) -> None:
        class_name = claim["spec"].get("storageClassName")
        if not class_name or claim["spec"].get("volumeName"):
            return
        volume = wanted_volume(claim, kube.get(f"{CLASSES}/{class_name}"))
        if volume is None:
            return
        name = volume["metadata"]["name"]
        if kube.get(f"{VOLUMES}/{name}") is not None:
            return
        path = directory(name)
        path.mkdir(parents=True, exist_ok=True)
        # hostPath volumes get no fsGroup: whoever the pod runs as has to be able to write.
        path.chmod(0o777)
        kube.request("POST", VOLUMES, volume)
        log.info("volume %s for claim %s/%s", name, claim["metadata"]["namespace"], claim["metadata"]["name"])

    def _reclaim(self, kube: Kube, volume: Object) -> None:
        if not is_over(volume):
            return
        name = volume["metadata"]["name"]
        kube.delete(f"{VOLUMES}/{name}")
        shutil.rmtree(directory(name), ignore_errors=True)
        log.info("volume %s is gone", name)
