"""The whole platform: every component, in order, and what its users want to know of it."""

from __future__ import annotations

from typing import Any

import pulumi
import pulumi_aws as aws

from components.addons import Addons
from components.cluster import Cluster, principal_of
from components.context import Context, asked
from components.defaults import ClusterDefaults
from components.encryption import EncryptionKey
from components.images import Images
from components.network import Network
from components.nodes import GroupSpec, NodeGroup, NodeRole, partition_group, system_group
from components.providers import aws_provider, kubernetes_provider
from components.settings import Settings
from components.slurm import LOGIN, SLURM_NAMESPACE, Slurm


class Platform(pulumi.ComponentResource):
    """Slurm on EKS: key, network, cluster, nodes, images and Slurm itself.

    Destroying runs backwards through what each part was given: Slurm, its operator, nodes, add-ons, cluster, network.
    """

    outputs: dict[str, pulumi.Input[Any]]

    def __init__(self, name: str, settings: Settings, stack: str) -> None:
        region = pulumi.Config("aws").require("region")
        tags = {**settings.tags, "slipway:stack": stack, "slipway:cluster": settings.cluster.name}
        provider = aws_provider("aws", tags)
        super().__init__(
            "slipway:index:Platform",
            name,
            asked(cluster=settings.cluster.name),
            pulumi.ResourceOptions(provider=provider),
        )
        child = pulumi.ResourceOptions(parent=self)
        caller = aws.get_caller_identity_output(opts=pulumi.InvokeOutputOptions(parent=self))
        context = Context(name=settings.cluster.name, region=region, account=caller.account_id, tags=tags)

        key = EncryptionKey("key", context, child)
        network = Network("network", settings.network, context, key.arn, settings.cluster.log_retention_days, child)
        images = Images("images", settings.images, context, key.arn, child)
        eks = Cluster(
            "cluster",
            settings.cluster,
            settings.access,
            context,
            subnets=network.private_subnets,
            key_arn=key.arn,
            deployer=caller.arn.apply(self._deployer),
            opts=child,
        )
        addons = Addons("addons", settings.cluster.version, eks.cluster, context, child)
        role = NodeRole("node", context, child)

        def group(spec: GroupSpec, subnets: dict[str, pulumi.Output[str]]) -> NodeGroup:
            return NodeGroup(
                spec.name,
                spec,
                context,
                cluster=eks.cluster,
                version=settings.cluster.version,
                role_arn=role.arn,
                subnets=subnets,
                # The network as a whole: a node without its way out cannot join, and one left behind holds the network.
                after=[network, *addons.before_nodes],
                opts=child,
            )

        system = group(system_group(settings.cluster.system_nodes), network.private_subnets)
        workers: list[pulumi.Resource] = []
        for partition in settings.partitions:
            zone = partition.zone or settings.network.zones[0]
            workers.append(group(partition_group(partition), {zone: network.private_subnets[zone]}))

        kubernetes = kubernetes_provider(
            "kubernetes", eks.cluster, region, pulumi.ResourceOptions(parent=self, depends_on=eks.access)
        )
        in_kubernetes = pulumi.ResourceOptions(parent=self, providers=[kubernetes])
        defaults = ClusterDefaults("defaults", eks.cluster, in_kubernetes)
        Slurm(
            "slurm",
            settings,
            images,
            eks.cluster,
            after=[images, defaults, system, *workers, *addons.after([system])],
            opts=in_kubernetes,
        )
        self.outputs = {
            "clusterName": eks.cluster.name,
            "clusterEndpoint": eks.cluster.endpoint,
            "kubeconfigCommand": pulumi.Output.concat(
                "aws eks update-kubeconfig --region ", region, " --name ", eks.cluster.name
            ),
            "loginCommand": login_command(settings),
            "imageRegistry": images.registry,
            "partitions": partition_table(settings),
        }
        self.register_outputs(self.outputs)

    def _deployer(self, caller_arn: str) -> pulumi.Output[str] | str:
        """ARN of the principal that runs Pulumi; for a session of an assumed role, of the role."""
        return (
            principal_of(caller_arn)
            or aws.iam.get_session_context_output(
                arn=caller_arn, opts=pulumi.InvokeOutputOptions(parent=self)
            ).issuer_arn
        )


def login_command(settings: Settings) -> str:
    """How to get a shell on a login pod, as the first user of the stack."""
    shell = f"su - {settings.users[0].name}" if settings.users else "bash -l"
    return f"kubectl -n {SLURM_NAMESPACE} exec -it deployment/slurm-{LOGIN} -c login -- {shell}"


def partition_table(settings: Settings) -> list[dict[str, Any]]:
    """What each partition offers, for people."""
    return [
        {
            "name": partition.name,
            "nodes": f"{partition.nodes.min}-{partition.nodes.max}",
            "instances": ", ".join(partition.instances),
            "cpusPerNode": partition.cpu,
            "memoryPerNodeMiB": partition.memory_mib,
            "gpusPerNode": f"{partition.gpus} {partition.gpu}" if partition.gpu else "0",
            "zone": partition.zone or settings.network.zones[0],
            "maxTime": partition.slurm.max_time,
            "default": partition.slurm.default,
        }
        for partition in settings.partitions
    ]
