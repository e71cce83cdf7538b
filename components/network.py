"""The VPC of a platform."""

from __future__ import annotations

import pulumi
import pulumi_aws as aws

from components.context import Context, asked, assume_role
from components.settings.model import Network as NetworkSettings
from components.subnets import shares

ANYWHERE = "0.0.0.0/0"


class Network(pulumi.ComponentResource):
    """A VPC with a public and a private subnet in each zone.

    Nodes and the API's interfaces live in the private subnets and reach the internet by NAT; S3, from which image
    layers come, is reached by a gateway endpoint, which costs nothing and does not pass the NAT.
    Subnets carry the tags by which EKS's load balancers find them.

    vpc_id; private_subnets: id by zone; public_subnets: id by zone.
    """

    vpc_id: pulumi.Output[str]
    private_subnets: dict[str, pulumi.Output[str]]
    public_subnets: dict[str, pulumi.Output[str]]

    def __init__(
        self,
        name: str,
        settings: NetworkSettings,
        context: Context,
        key_arn: pulumi.Input[str],
        log_retention_days: int,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("slipway:aws:Network", name, asked(**settings.model_dump(mode="json", by_alias=True)), opts)
        self._context = context
        self._child = pulumi.ResourceOptions(parent=self)
        vpc = aws.ec2.Vpc(
            name,
            cidr_block=settings.cidr,
            enable_dns_support=True,
            enable_dns_hostnames=True,
            tags={"Name": context.name},
            opts=self._child,
        )
        self.vpc_id = vpc.id
        # The default group lets everything in it talk to each other; whoever forgets to name a group gets nothing.
        aws.ec2.DefaultSecurityGroup(
            name,
            vpc_id=vpc.id,
            ingress=[],
            egress=[],
            tags={"Name": f"{context.name}-default-unused"},
            opts=self._child,
        )
        gateway = aws.ec2.InternetGateway(name, vpc_id=vpc.id, tags={"Name": context.name}, opts=self._child)
        private, public = shares(settings.cidr, len(settings.zones))
        self.public_subnets = {
            zone: self._subnet("public", zone, str(cidr)) for zone, cidr in zip(settings.zones, public, strict=False)
        }
        self.private_subnets = {
            zone: self._subnet("private", zone, str(cidr)) for zone, cidr in zip(settings.zones, private, strict=False)
        }
        public_table = self._route_table("public", {"gateway_id": gateway.id})
        for zone, subnet in self.public_subnets.items():
            self._associate(f"public-{zone}", subnet, public_table)
        tables = [public_table]
        nat: aws.ec2.NatGateway | None = None
        for zone in settings.zones:
            if nat is None or settings.nat == "per-zone":
                nat = self._nat(zone, gateway)
            table = self._route_table(f"private-{zone}", {"nat_gateway_id": nat.id})
            self._associate(f"private-{zone}", self.private_subnets[zone], table)
            tables.append(table)
        aws.ec2.VpcEndpoint(
            "s3",
            vpc_id=vpc.id,
            vpc_endpoint_type="Gateway",
            service_name=f"com.amazonaws.{context.region}.s3",
            route_table_ids=[table.id for table in tables],
            tags={"Name": f"{context.name}-s3"},
            opts=self._child,
        )
        if settings.flow_logs:
            self._flow_logs(key_arn, log_retention_days)
        self.register_outputs(
            {"vpcId": vpc.id, "privateSubnets": self.private_subnets, "publicSubnets": self.public_subnets}
        )

    def _subnet(self, kind: str, zone: str, cidr: str) -> pulumi.Output[str]:
        role = "kubernetes.io/role/elb" if kind == "public" else "kubernetes.io/role/internal-elb"
        subnet = aws.ec2.Subnet(
            f"{kind}-{zone}",
            vpc_id=self.vpc_id,
            availability_zone=zone,
            cidr_block=cidr,
            map_public_ip_on_launch=False,
            tags={
                "Name": f"{self._context.name}-{kind}-{zone}",
                role: "1",
                f"kubernetes.io/cluster/{self._context.name}": "shared",
            },
            opts=self._child,
        )
        return subnet.id

    def _route_table(self, name: str, target: dict[str, pulumi.Output[str]]) -> aws.ec2.RouteTable:
        """A route table whose way to everywhere outside the VPC is `target`."""
        table = aws.ec2.RouteTable(
            name, vpc_id=self.vpc_id, tags={"Name": f"{self._context.name}-{name}"}, opts=self._child
        )
        aws.ec2.Route(
            name,
            route_table_id=table.id,
            destination_cidr_block=ANYWHERE,
            gateway_id=target.get("gateway_id"),
            nat_gateway_id=target.get("nat_gateway_id"),
            opts=self._child,
        )
        return table

    def _associate(self, name: str, subnet: pulumi.Output[str], table: aws.ec2.RouteTable) -> None:
        aws.ec2.RouteTableAssociation(name, subnet_id=subnet, route_table_id=table.id, opts=self._child)

    def _nat(self, zone: str, gateway: aws.ec2.InternetGateway) -> aws.ec2.NatGateway:
        # AWS refuses to map addresses and to start NAT gateways in a VPC without internet gateway.
        after_gateway = pulumi.ResourceOptions(parent=self, depends_on=[gateway])
        tags = {"Name": f"{self._context.name}-nat-{zone}"}
        address = aws.ec2.Eip(f"nat-{zone}", domain="vpc", tags=tags, opts=after_gateway)
        return aws.ec2.NatGateway(
            f"nat-{zone}",
            allocation_id=address.id,
            subnet_id=self.public_subnets[zone],
            tags=tags,
            opts=after_gateway,
        )

    def _flow_logs(self, key_arn: pulumi.Input[str], retention_days: int) -> None:
        group = aws.cloudwatch.LogGroup(
            "flow-logs",
            name=f"/slipway/{self._context.name}/flow-logs",
            retention_in_days=retention_days,
            kms_key_id=key_arn,
            opts=self._child,
        )
        role = aws.iam.Role(
            "flow-logs", assume_role_policy=assume_role("vpc-flow-logs.amazonaws.com"), opts=self._child
        )
        writing = {
            "Effect": "Allow",
            "Action": [
                "logs:CreateLogStream",
                "logs:PutLogEvents",
                "logs:DescribeLogGroups",
                "logs:DescribeLogStreams",
            ],
            "Resource": [group.arn, pulumi.Output.concat(group.arn, ":*")],
        }
        policy = aws.iam.RolePolicy(
            "flow-logs",
            role=role.id,
            policy=pulumi.Output.json_dumps({"Version": "2012-10-17", "Statement": [writing]}),
            opts=self._child,
        )
        aws.ec2.FlowLog(
            "flow-logs",
            vpc_id=self.vpc_id,
            traffic_type="ALL",
            log_destination_type="cloud-watch-logs",
            log_destination=group.arn,
            iam_role_arn=role.arn,
            max_aggregation_interval=600,
            opts=pulumi.ResourceOptions(parent=self, depends_on=[policy]),
        )
