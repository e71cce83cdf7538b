"""Slurm on the cluster: the operator's chart, and the chart of one Slurm cluster."""

from __future__ import annotations

from typing import Any

import pulumi
import pulumi_aws as aws
import pulumi_kubernetes as kubernetes

from components.charts import release
from components.context import asked
from components.defaults import CRITICAL, STORAGE_CLASS, WORKER
from components.images import Images
from components.nodes import GPU_KEY, PARTITION_KEY
from components.settings import Partition, Settings, User
from components.settings.base import Resources
from components.settings.model import Home
from components.slurm_conf import config_files, node_options, partition_line, slurm_conf

OPERATOR_NAMESPACE = "slurm-operator"
SLURM_NAMESPACE = "slurm"
LOGIN = "login"  # the one login set; the chart makes Deployment slurm-login of it
ON_SYSTEM_NODES: dict[str, Any] = {
    "nodeSelector": {"slipway.dev/role": "system"},
    "tolerations": [{"key": "CriticalAddonsOnly", "operator": "Exists"}],
}


class Slurm(pulumi.ComponentResource):
    """One Slurm cluster with a NodeSet per partition, and the operator that runs it.

    Order: both namespaces (the operator has rights in those that it watches and nowhere else), the operator, Slurm.
    Destroyed the other way round: custom resources go while their controller still runs, and the namespace with the
    volumes goes while nodes and storage driver (`after`) still exist.
    """

    def __init__(
        self,
        name: str,
        settings: Settings,
        images: Images,
        cluster: aws.eks.Cluster,
        *,
        after: list[pulumi.Resource],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        """after: what pods need to run and to go away cleanly: repositories, nodes, add-ons."""
        super().__init__("slipway:kubernetes:Slurm", name, asked(clusterName=settings.slurm.cluster_name), opts)
        operator_namespace = namespace(
            OPERATOR_NAMESPACE,
            "restricted",
            pulumi.ResourceOptions(parent=self, depends_on=after, deleted_with=cluster),
        )
        slurm_namespace = namespace(
            SLURM_NAMESPACE, pod_security(settings), pulumi.ResourceOptions(parent=self, depends_on=after)
        )
        operator = release(
            "slurm-operator",
            "slurm-operator",
            operator_namespace.metadata.name,
            operator_values(settings, images),
            pulumi.ResourceOptions(parent=self, depends_on=[slurm_namespace]),
        )
        release(
            "slurm",
            "slurm",
            slurm_namespace.metadata.name,
            slurm_values(settings, images),
            pulumi.ResourceOptions(parent=self, depends_on=[operator]),
        )
        self.register_outputs({})


def namespace(name: str, level: str, opts: pulumi.ResourceOptions) -> kubernetes.core.v1.Namespace:
    """A namespace that enforces a Pod Security level."""
    labels = {"pod-security.kubernetes.io/enforce": level}
    return kubernetes.core.v1.Namespace(name, metadata={"name": name, "labels": labels}, opts=opts)


def pod_security(settings: Settings) -> str:
    """The strictest Pod Security level that Slurm's own pods keep to.

    slurmd needs privileges to confine jobs by cgroups, and hostPath is above baseline.
    """
    return "privileged" if settings.slurm.cgroups or settings.home.host_path else "baseline"


def operator_values(settings: Settings, images: Images) -> dict[str, Any]:
    """Values of charts/slurm-operator."""
    return {
        "image": images.references["slurm-operator"].values(),
        "replicas": settings.slurm.operator.replicas,
        "resources": pod_resources(settings.slurm.operator.resources),
        "watchNamespaces": [SLURM_NAMESPACE],
        "priorityClassName": CRITICAL,
        **ON_SYSTEM_NODES,
    }


def slurm_values(settings: Settings, images: Images) -> dict[str, Any]:
    """Values of charts/slurm."""
    slurm, partitions = settings.slurm, settings.partitions
    service_pod = {**ON_SYSTEM_NODES, "priorityClassName": CRITICAL}
    return {
        "clusterName": slurm.cluster_name,
        "controller": {
            "slurmctld": {
                "image": images.references["slurmctld"].values(),
                "resources": pod_resources(slurm.controller.resources),
            },
            "extraConf": slurm_conf(slurm, partitions),
            "persistence": {
                "enabled": True,
                "storageClassName": STORAGE_CLASS,
                "resources": {"requests": {"storage": f"{slurm.controller.storage_gib}Gi"}},
            },
            "podSpec": service_pod,
        },
        "restapi": {
            "replicas": slurm.rest_api.replicas,
            "slurmrestd": {
                "image": images.references["slurmrestd"].values(),
                "resources": pod_resources(slurm.rest_api.resources),
            },
            "podSpec": service_pod,
        },
        "loginsets": {
            LOGIN: {
                "enabled": True,
                "replicas": slurm.login.replicas,
                "login": {
                    "image": images.references["login"].values(),
                    "resources": pod_resources(slurm.login.resources),
                },
                "podSpec": service_pod,
            }
        },
        "nodesets": {partition.name: nodeset_values(partition, images) for partition in partitions},
        "configFiles": config_files(slurm, partitions),
        "users": [user_values(user) for user in settings.users],
        "home": home_volume(settings.home),
    }


def nodeset_values(partition: Partition, images: Images) -> dict[str, Any]:
    """One NodeSet: as many workers as nodes, each on a node of its partition."""
    tolerations = [{"key": PARTITION_KEY, "operator": "Equal", "value": partition.name, "effect": "NoSchedule"}]
    size: dict[str, Any] = {"cpu": f"{partition.cpu:g}", "memory": f"{partition.memory_mib}Mi"}
    if partition.gpu:
        tolerations.append({"key": GPU_KEY, "operator": "Exists", "effect": "NoSchedule"})
        size[GPU_KEY] = partition.gpus
    return {
        "enabled": True,
        "replicas": partition.nodes.min,
        "slurmd": {
            "image": images.references["slurmd"].values(),
            "resources": {"requests": size, "limits": size},
        },
        "extraConf": node_options(partition),
        "partition": {"enabled": True, "config": partition_line(partition)},
        "podSpec": {
            "nodeSelector": {PARTITION_KEY: partition.name},
            "tolerations": tolerations,
            "priorityClassName": WORKER,
        },
    }


def pod_resources(resources: Resources) -> dict[str, Any]:
    """Requests for CPU and memory, and a limit for memory: CPU that nobody wants may be used."""
    return {
        "requests": {"cpu": f"{resources.cpu:g}", "memory": resources.memory},
        "limits": {"memory": resources.memory},
    }


def user_values(user: User) -> dict[str, Any]:
    """One account in the chart's words."""
    return {
        "name": user.name,
        "uid": user.uid,
        "gid": user.gid or user.uid,
        "shell": user.shell,
        "sshAuthorizedKeys": list(user.ssh_keys),
    }


def home_volume(home: Home) -> dict[str, Any]:
    """The Kubernetes volume source mounted at /home; none: each pod has a /home of its own."""
    if home.nfs:
        return {"nfs": {"server": home.nfs.server, "path": home.nfs.path}}
    if home.claim:
        return {"persistentVolumeClaim": {"claimName": home.claim}}
    if home.host_path:
        return {"hostPath": {"path": home.host_path, "type": "Directory"}}
    return {}
