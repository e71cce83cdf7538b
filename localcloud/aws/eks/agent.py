"""The stand-in's background work in a living cluster: resumes what a kill interrupted, follows namespaces, runs EBS."""

from __future__ import annotations

import logging
import threading

from localcloud.aws import ebs
from localcloud.aws.eks import access, addons, clusters, endpoint, nodegroups, nodes
from localcloud.aws.eks.core import Eks, finish_update
from localcloud.aws.eks.store import Document
from localcloud.kubernetes.errors import ClusterError

log = logging.getLogger(__name__)

NAMESPACE_SECONDS = 2.0
"""How soon a new namespace gets the bindings of namespaced access policies."""


def start(eks: Eks) -> None:
    """Go on with what the state says is unfinished, bring back nodes, and keep watch. Returns at once."""
    for cluster in eks.store.all("clusters"):
        resume(eks, cluster)
    threading.Thread(target=_watch, args=(eks,), name="agent", daemon=True).start()


def resume(eks: Eks, cluster: Document) -> None:
    """Start the job that a cluster's state calls for; its parts follow when it is there."""
    name = cluster["name"]
    if cluster["status"] == "DELETING":
        eks.run(f"cluster {name}", lambda: clusters.tear_down(eks, name))
    elif cluster["status"] == "CREATING":
        eks.run(f"cluster {name}", lambda: clusters.bring_up(eks, name))
    elif cluster["status"] in ("ACTIVE", "UPDATING"):
        eks.run(f"cluster {name}", lambda: _reattach(eks, name))


def _reattach(eks: Eks, name: str) -> None:
    """The machine may have restarted: the control plane first, then what was being done in it."""
    eks.compute.restart(log.info)
    endpoint.ensure(eks)
    access.sync(eks, name)
    for update in eks.store.all("updates", name):
        if update["status"] == "InProgress" and not update["_addon"]:
            finish_update(eks, name, update["id"])
    for group in eks.store.all("nodegroups", name):
        _resume_group(eks, name, group["nodegroupName"], group["status"])
    for addon in eks.store.all("addons", name):
        _resume_addon(eks, name, addon["addonName"], addon["status"])


def _resume_group(eks: Eks, cluster: str, name: str, status: str) -> None:
    key = f"nodegroup {cluster}/{name}"
    if status == "DELETING":
        eks.run(key, lambda: nodegroups.tear_down(eks, cluster, name))
    elif status in ("CREATING", "UPDATING"):
        eks.run(key, lambda: nodegroups.bring_up(eks, cluster, name))
    elif status == "ACTIVE":
        eks.run(key, lambda: _restore(eks, cluster, name))


def _restore(eks: Eks, cluster: str, name: str) -> None:
    group = eks.store.get("nodegroups", f"{cluster}/{name}")
    if group is None:
        return
    try:
        nodes.restore(eks, group)
    except ClusterError as error:
        log.warning("node group %s: %s", name, error)


def _resume_addon(eks: Eks, cluster: str, name: str, status: str) -> None:
    if status == "DELETING":
        eks.run(f"addon {cluster}/{name}", lambda: addons.remove(eks, cluster, name))
    elif status in ("CREATING", "UPDATING"):
        eks.run(f"addon {cluster}/{name}", lambda: addons.install(eks, cluster, name))


def _watch(eks: Eks) -> None:
    """Runs for ever; sleeps until something changes when there is nothing to follow."""
    provisioner: ebs.Provisioner | None = None
    while True:
        eks.changed.clear()
        active = [c["name"] for c in eks.store.all("clusters") if c["status"] in ("ACTIVE", "UPDATING")]
        wants_volumes = any(addon["addonName"] == "aws-ebs-csi-driver" and addon["status"] != "DELETING"
                            for name in active for addon in eks.store.all("addons", name))  # fmt: skip
        if wants_volumes and provisioner is None:
            provisioner = ebs.Provisioner()
            provisioner.start()
        elif not wants_volumes and provisioner is not None:
            provisioner.stop()
            provisioner = None
        follow = [name for name in active if access.follows_namespaces(eks, name)]
        for name in follow:
            try:
                access.sync(eks, name)
            except ClusterError as error:
                log.warning("access policies of %s: %s", name, error)
        eks.changed.wait(NAMESPACE_SECONDS if follow else None)
