"""The EKS add-ons of a cluster, in two steps: what nodes need to join, and what needs nodes to run."""

from __future__ import annotations

from typing import Any

import pulumi
import pulumi_aws as aws

from components.context import Context, asked, document_json
from components.data import addon_versions
from components.region import managed_policy
from components.subnets import POD_ADDRESSES

ON_SYSTEM_NODES = [{"key": "CriticalAddonsOnly", "operator": "Exists"}]


class Addons(pulumi.ComponentResource):
    """EKS add-ons at pinned versions.

    before_nodes: vpc-cni (else a node never gets Ready), kube-proxy and the Pod Identity agent.
    after(...): CoreDNS and the EBS CSI driver, whose pods wait for nodes.
    Add-ons that call AWS have roles of their own by Pod Identity, so that the nodes' role, which every pod on a node
    could use, needs none of their rights.
    """

    before_nodes: list[pulumi.Resource]

    def __init__(
        self,
        name: str,
        version: str,
        cluster: aws.eks.Cluster,
        context: Context,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        """version: the cluster's Kubernetes version."""
        super().__init__("slipway:aws:Addons", name, asked(kubernetes=version), opts)
        self._versions = addon_versions()[version]
        self._cluster = cluster
        self._context = context
        agent = self._addon("eks-pod-identity-agent")
        cni = self._addon(
            "vpc-cni",
            # A node of Slurm runs few pods: keep a handful of addresses each instead of a whole interface's worth.
            {"env": {"MINIMUM_IP_TARGET": str(POD_ADDRESSES), "WARM_IP_TARGET": "2"}, "enableNetworkPolicy": "true"},
            role=self._role("vpc-cni", "aws-node", "AmazonEKS_CNI_Policy"),
        )
        self.before_nodes = [agent, cni, self._addon("kube-proxy")]
        self.register_outputs({})

    def after(self, nodes: list[pulumi.Resource]) -> list[pulumi.Resource]:
        """CoreDNS and the EBS CSI driver, made once `nodes` are there."""
        dns = self._addon("coredns", {"tolerations": ON_SYSTEM_NODES}, after=nodes)
        storage = self._addon(
            "aws-ebs-csi-driver",
            {"controller": {"tolerations": ON_SYSTEM_NODES}},
            role=self._role("ebs-csi", "ebs-csi-controller-sa", "service-role/AmazonEBSCSIDriverPolicy"),
            after=nodes,
        )
        return [dns, storage]

    def _addon(
        self,
        addon: str,
        values: dict[str, Any] | None = None,
        role: dict[str, pulumi.Input[str]] | None = None,
        after: list[pulumi.Resource] | None = None,
    ) -> aws.eks.Addon:
        return aws.eks.Addon(
            addon,
            cluster_name=self._cluster.name,
            addon_name=addon,
            addon_version=self._versions[addon],
            configuration_values=document_json(values) if values else None,
            pod_identity_associations=[aws.eks.AddonPodIdentityAssociationArgs(**role)] if role else None,
            resolve_conflicts_on_create="OVERWRITE",
            resolve_conflicts_on_update="OVERWRITE",
            opts=pulumi.ResourceOptions(parent=self, depends_on=after),
        )

    def _role(self, name: str, service_account: str, policy: str) -> dict[str, pulumi.Input[str]]:
        """A role that one service account of this cluster may take on; the association that ties the two."""
        role = aws.iam.Role(
            name,
            assume_role_policy=pod_identity_trust(self._context, self._cluster.arn),
            opts=pulumi.ResourceOptions(parent=self),
        )
        attached = aws.iam.RolePolicyAttachment(
            name,
            role=role.name,
            policy_arn=managed_policy(self._context.region, policy),
            opts=pulumi.ResourceOptions(parent=self),
        )
        # The ARN is handed on only once the policy is attached: the add-on's pods would fail without it.
        return {
            "role_arn": pulumi.Output.all(role.arn, attached.id).apply(lambda known: str(known[0])),
            "service_account": service_account,
        }


def pod_identity_trust(context: Context, cluster_arn: pulumi.Input[str]) -> pulumi.Output[str]:
    """Trust policy of a role for EKS Pod Identity; the conditions keep other clusters and accounts from using it."""
    return pulumi.Output.json_dumps(
        {
            "Version": "2012-10-17",
            "Statement": [
                {
                    "Effect": "Allow",
                    "Principal": {"Service": "pods.eks.amazonaws.com"},
                    "Action": ["sts:AssumeRole", "sts:TagSession"],
                    "Condition": {
                        "StringEquals": {"aws:SourceAccount": context.account},
                        "ArnEquals": {"aws:SourceArn": cluster_arn},
                    },
                }
            ],
        }
    )
