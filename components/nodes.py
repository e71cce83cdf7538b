"""Nodes: the role they share, and groups of EC2 instances that EKS manages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from components.context import Context, asked, assume_role, tag_list
from components.region import managed_policy
from components.settings.model import SystemNodes
from components.settings.partition import Partition

PARTITION_KEY = "slipway.dev/partition"
GPU_KEY = "nvidia.com/gpu"
CAPACITY = {"onDemand": "ON_DEMAND", "spot": "SPOT"}


@dataclass(frozen=True)
class Taint:
    """A taint of all nodes of a group. effect: as EKS writes it, NO_SCHEDULE."""

    key: str
    value: str
    effect: str = "NO_SCHEDULE"


@dataclass(frozen=True)
class GroupSpec:
    """What a node group is, apart from where it is.

    capacity: onDemand or spot. disk_gib: root volume, GiB.
    """

    name: str
    instances: tuple[str, ...]
    capacity: str
    minimum: int
    maximum: int
    disk_gib: int
    gpu: bool
    labels: dict[str, str]
    taints: tuple[Taint, ...]
    tags: dict[str, str]

    @property
    def ami_type(self) -> str:
        """EKS's Amazon Linux 2023 image; the NVIDIA one has the GPU driver and container toolkit."""
        return "AL2023_x86_64_NVIDIA" if self.gpu else "AL2023_x86_64_STANDARD"


def system_group(settings: SystemNodes) -> GroupSpec:
    """Nodes for everything but jobs: tainted, so that nothing else keeps them busy."""
    return GroupSpec(
        name="system",
        instances=settings.instances,
        capacity="onDemand",
        minimum=settings.nodes.min,
        maximum=settings.nodes.max,
        disk_gib=settings.disk_gib,
        gpu=False,
        labels={"slipway.dev/role": "system"},
        taints=(Taint("CriticalAddonsOnly", "true"),),
        tags={"slipway:role": "system"},
    )


def partition_group(partition: Partition) -> GroupSpec:
    """Nodes of one partition; the taint keeps all but its own workers off them."""
    gpu_taint = (Taint(GPU_KEY, "true"),) if partition.gpu else ()
    return GroupSpec(
        name=partition.name,
        instances=partition.instances,
        capacity=partition.capacity[0],
        minimum=partition.nodes.min,
        maximum=partition.nodes.max,
        disk_gib=partition.disk_gib,
        gpu=partition.gpu is not None,
        labels={PARTITION_KEY: partition.name},
        taints=(Taint(PARTITION_KEY, partition.name), *gpu_taint),
        tags={"slipway:role": "worker", "slipway:partition": partition.name},
    )


class NodeRole(pulumi.ComponentResource):
    """IAM role of all nodes: to join the cluster and to pull images, and nothing that a pod could misuse."""

    arn: pulumi.Output[str]

    def __init__(self, name: str, context: Context, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("slipway:aws:NodeRole", name, {}, opts)
        child = pulumi.ResourceOptions(parent=self)
        role = aws.iam.Role(name, assume_role_policy=assume_role("ec2.amazonaws.com"), opts=child)
        attached = [
            aws.iam.RolePolicyAttachment(
                f"{name}-{policy}", role=role.name, policy_arn=managed_policy(context.region, policy), opts=child
            )
            for policy in ("AmazonEKSWorkerNodePolicy", "AmazonEC2ContainerRegistryPullOnly")
        ]
        # Nodes that start before the policies are attached cannot join, and EKS gives up on them.
        self.arn = pulumi.Output.all(role.arn, *[a.id for a in attached]).apply(lambda known: str(known[0]))
        self.register_outputs({"arn": self.arn})


class NodeGroup(pulumi.ComponentResource):
    """A managed node group with a launch template of our own.

    Instances answer metadata requests with session tokens only and not through containers (hop limit 1); their
    volumes are encrypted; they, their volumes and interfaces carry the tags that cost reports are made of.
    """

    group: aws.eks.NodeGroup

    def __init__(
        self,
        name: str,
        spec: GroupSpec,
        context: Context,
        *,
        cluster: aws.eks.Cluster,
        version: str,
        role_arn: pulumi.Input[str],
        subnets: Mapping[str, pulumi.Input[str]],
        after: list[pulumi.Resource],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        """version: Kubernetes version of the nodes. subnets: by zone. after: what nodes need to join the cluster."""
        super().__init__(
            "slipway:aws:NodeGroup",
            name,
            asked(instances=list(spec.instances), capacity=spec.capacity, zones=list(subnets)),
            opts,
        )
        tags = {**context.tags, **spec.tags}
        template = aws.ec2.LaunchTemplate(
            name,
            description=f"{context.name}: nodes of {spec.name}",
            update_default_version=True,
            metadata_options={"http_tokens": "required", "http_put_response_hop_limit": 1, "http_endpoint": "enabled"},
            block_device_mappings=[
                {
                    "device_name": "/dev/xvda",
                    "ebs": {
                        "volume_size": spec.disk_gib,
                        "volume_type": "gp3",
                        "encrypted": "true",
                        "delete_on_termination": "true",
                    },
                }
            ],
            tag_specifications=tag_list({"Name": f"{context.name}-{spec.name}", **tags}),
            tags=spec.tags,
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.group = aws.eks.NodeGroup(
            name,
            cluster_name=cluster.name,
            version=version,
            node_role_arn=role_arn,
            subnet_ids=list(subnets.values()),
            ami_type=spec.ami_type,
            capacity_type=CAPACITY[spec.capacity],
            instance_types=list(spec.instances),
            scaling_config={"min_size": spec.minimum, "max_size": spec.maximum, "desired_size": spec.minimum},
            update_config={"max_unavailable": 1},
            labels=spec.labels,
            taints=[{"key": taint.key, "value": taint.value, "effect": taint.effect} for taint in spec.taints],
            launch_template={"id": template.id, "version": template.latest_version.apply(str)},
            tags=spec.tags,
            # Between min and max the number is whoever's who scales; the program would reset it at each run.
            opts=pulumi.ResourceOptions(
                parent=self,
                depends_on=after,
                ignore_changes=["scalingConfig.desiredSize"] if spec.minimum < spec.maximum else None,
            ),
        )
        self.register_outputs({"name": self.group.node_group_name})
