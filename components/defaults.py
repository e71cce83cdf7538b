"""What every workload on the cluster relies on: a storage class and priority classes."""

from __future__ import annotations

import pulumi
import pulumi_aws as aws
import pulumi_kubernetes as kubernetes

STORAGE_CLASS = "gp3"
CRITICAL = "slipway-critical"
WORKER = "slipway-worker"


class ClusterDefaults(pulumi.ComponentResource):
    """Storage class gp3 (encrypted EBS volumes, made in the zone of the pod that wants them) and two priorities.

    slipway-critical: Slurm's daemons and the operator; slipway-worker: slurmd, which makes way for nothing but those.
    They vanish with the cluster, so destroying them one by one is left out (deleted_with).
    """

    def __init__(self, name: str, cluster: aws.eks.Cluster, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("slipway:kubernetes:ClusterDefaults", name, {}, opts)
        child = pulumi.ResourceOptions(parent=self, deleted_with=cluster)
        kubernetes.storage.v1.StorageClass(
            STORAGE_CLASS,
            metadata={
                "name": STORAGE_CLASS,
                "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
            },
            provisioner="ebs.csi.aws.com",
            parameters={"type": "gp3", "encrypted": "true"},
            volume_binding_mode="WaitForFirstConsumer",
            allow_volume_expansion=True,
            reclaim_policy="Delete",
            opts=child,
        )
        for priority, value, meaning in (
            (CRITICAL, 1_000_000, "Slurm's daemons and their operator"),
            (WORKER, 100_000, "slurmd, in which jobs run"),
        ):
            kubernetes.scheduling.v1.PriorityClass(
                priority, metadata={"name": priority}, value=value, description=meaning, opts=child
            )
        self.register_outputs({})
