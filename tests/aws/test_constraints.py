"""What AWS refuses, the stand-in refuses: with AWS's codes."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.aws.conftest import Server


def refused(code: str, words: str, call: Callable[..., Any], **arguments: Any) -> None:
    with pytest.raises(ClientError) as error:
        call(**arguments)
    details = error.value.response["Error"]
    assert details["Code"] == code, details
    assert words in details["Message"], details


def trust(service: str, *actions: str) -> str:
    statement = {"Effect": "Allow", "Principal": {"Service": service}, "Action": ["sts:AssumeRole", *actions]}
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


class Network:
    """A VPC with an internet gateway and a subnet in each of two zones."""

    def __init__(self, ec2: Any) -> None:
        self.ec2 = ec2
        self.vpc = ec2.create_vpc(CidrBlock="10.1.0.0/16")["Vpc"]["VpcId"]
        self.gateway = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
        ec2.attach_internet_gateway(InternetGatewayId=self.gateway, VpcId=self.vpc)
        self.subnets = [
            ec2.create_subnet(VpcId=self.vpc, CidrBlock=f"10.1.{i}.0/24", AvailabilityZone=f"us-east-1{zone}")[
                "Subnet"
            ]["SubnetId"]
            for i, zone in enumerate("ab")
        ]

    def group(self, name: str) -> str:
        made = self.ec2.create_security_group(VpcId=self.vpc, GroupName=name, Description=name)
        return str(made["GroupId"])

    def remove(self) -> None:
        for subnet in self.subnets:
            self.ec2.delete_subnet(SubnetId=subnet)
        self.ec2.detach_internet_gateway(InternetGatewayId=self.gateway, VpcId=self.vpc)
        self.ec2.delete_internet_gateway(InternetGatewayId=self.gateway)
        self.ec2.delete_vpc(VpcId=self.vpc)


@pytest.fixture
def network(ec2: Any) -> Network:
    return Network(ec2)


def test_a_vpc_with_dependants_is_not_deleted_and_tells_which(ec2: Any, network: Network) -> None:
    refused("DependencyViolation", network.subnets[0], ec2.delete_vpc, VpcId=network.vpc)
    for subnet in network.subnets:
        ec2.delete_subnet(SubnetId=subnet)
    refused("DependencyViolation", network.gateway, ec2.delete_vpc, VpcId=network.vpc)
    ec2.detach_internet_gateway(InternetGatewayId=network.gateway, VpcId=network.vpc)
    group = network.group("nodes")
    refused("DependencyViolation", group, ec2.delete_vpc, VpcId=network.vpc)
    ec2.delete_security_group(GroupId=group)
    table = ec2.create_route_table(VpcId=network.vpc)["RouteTable"]["RouteTableId"]
    refused("DependencyViolation", table, ec2.delete_vpc, VpcId=network.vpc)
    ec2.delete_route_table(RouteTableId=table)
    ec2.delete_vpc(VpcId=network.vpc)


def test_a_nat_gateway_holds_subnet_address_and_internet_gateway_until_it_is_gone(ec2: Any, network: Network) -> None:
    address = ec2.allocate_address(Domain="vpc")["AllocationId"]
    subnet = network.subnets[0]
    nat = ec2.create_nat_gateway(SubnetId=subnet, AllocationId=address)["NatGateway"]["NatGatewayId"]
    refused("DependencyViolation", nat, ec2.delete_subnet, SubnetId=subnet)
    refused("InvalidIPAddress.InUse", "in use", ec2.release_address, AllocationId=address)
    refused("Resource.AlreadyAssociated", address, ec2.create_nat_gateway, SubnetId=subnet, AllocationId=address)
    refused(
        "DependencyViolation", nat, ec2.detach_internet_gateway, InternetGatewayId=network.gateway, VpcId=network.vpc
    )
    ec2.delete_nat_gateway(NatGatewayId=nat)
    ec2.release_address(AllocationId=address)
    network.remove()


def test_a_nat_gateway_needs_an_internet_gateway(ec2: Any, network: Network) -> None:
    ec2.detach_internet_gateway(InternetGatewayId=network.gateway, VpcId=network.vpc)
    address = ec2.allocate_address(Domain="vpc")["AllocationId"]
    refused(
        "Gateway.NotAttached", network.vpc, ec2.create_nat_gateway, SubnetId=network.subnets[0], AllocationId=address
    )


def test_security_groups_that_others_refer_to_stay(ec2: Any, network: Network) -> None:
    nodes, login = network.group("nodes"), network.group("login")
    permission = [{"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "UserIdGroupPairs": [{"GroupId": login}]}]
    ec2.authorize_security_group_ingress(GroupId=nodes, IpPermissions=permission)
    refused("DependencyViolation", nodes, ec2.delete_security_group, GroupId=login)
    refused(
        "InvalidPermission.Duplicate", "already exists", ec2.authorize_security_group_ingress, GroupId=nodes,
        IpPermissions=permission,
    )  # fmt: skip
    ec2.revoke_security_group_ingress(GroupId=nodes, IpPermissions=permission)
    ec2.delete_security_group(GroupId=login)
    gone = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": login}]}]
    refused("InvalidGroup.NotFound", login, ec2.authorize_security_group_ingress, GroupId=nodes, IpPermissions=gone)


def test_an_interface_endpoint_needs_dns_and_one_subnet_a_zone(ec2: Any, network: Network) -> None:
    ask = {
        "VpcId": network.vpc, "ServiceName": "com.amazonaws.us-east-1.sts", "VpcEndpointType": "Interface",
        "PrivateDnsEnabled": True, "SubnetIds": network.subnets,
    }  # fmt: skip
    refused("InvalidParameter", "enableDnsHostnames", ec2.create_vpc_endpoint, **ask)
    ec2.modify_vpc_attribute(VpcId=network.vpc, EnableDnsHostnames={"Value": True})
    twice = ec2.create_subnet(VpcId=network.vpc, CidrBlock="10.1.9.0/24", AvailabilityZone="us-east-1a")["Subnet"][
        "SubnetId"
    ]
    refused(
        "DuplicateSubnetsInSameZone", "zone", ec2.create_vpc_endpoint, **{**ask, "SubnetIds": [*network.subnets, twice]}
    )
    ec2.delete_subnet(SubnetId=twice)
    endpoint = ec2.create_vpc_endpoint(**ask)["VpcEndpoint"]["VpcEndpointId"]
    refused("InvalidParameter", "conflicting DNS domain", ec2.create_vpc_endpoint, **ask)
    refused("DependencyViolation", "eni-", ec2.delete_subnet, SubnetId=network.subnets[0])
    ec2.delete_vpc_endpoints(VpcEndpointIds=[endpoint])
    network.remove()


def test_roles_and_policies_in_use_stay(iam: Any) -> None:
    role = iam.create_role(RoleName="in-use", AssumeRolePolicyDocument=trust("ec2.amazonaws.com"))["Role"]["RoleName"]
    body = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:GetObject", "Resource": "*"}]}
    arn = iam.create_policy(PolicyName="in-use", PolicyDocument=json.dumps(body))["Policy"]["Arn"]
    for _ in range(2):
        iam.attach_role_policy(RoleName=role, PolicyArn=arn)
    refused("DeleteConflict", "detach", iam.delete_role, RoleName=role)
    refused("DeleteConflict", "attached", iam.delete_policy, PolicyArn=arn)
    refused(
        "NoSuchEntity", "NoSuchPolicy", iam.attach_role_policy, RoleName=role,
        PolicyArn="arn:aws:iam::aws:policy/NoSuchPolicy",
    )  # fmt: skip
    iam.detach_role_policy(RoleName=role, PolicyArn=arn)
    iam.delete_policy(PolicyArn=arn)
    iam.delete_role(RoleName=role)


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ("{not json", "invalid Json"),
        ('{"Statement": [{"Effect": "Allow", "Action": "sts:AssumeRole"}]}', "Principal"),
        ('{"Statement": [{"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject"}]}', "STS"),
        (
            '{"Statement": [{"Effect": "Allow", "Principal": "*", "Action": "sts:AssumeRole", "Resource": "*"}]}',
            "Resource",
        ),
    ],
)
def test_a_role_needs_a_sound_trust_policy(iam: Any, document: str, words: str) -> None:
    refused("MalformedPolicyDocument", words, iam.create_role, RoleName="unsound", AssumeRolePolicyDocument=document)


def test_a_log_group_is_encrypted_only_with_a_key_that_admits_the_service(server: Server) -> None:
    kms, logs = server.client("kms"), server.client("logs")
    key = kms.create_key()["KeyMetadata"]["Arn"]
    ask = {"logGroupName": "/aws/vpc/encrypted", "kmsKeyId": key}
    refused("InvalidParameterException", "logs.us-east-1.amazonaws.com", logs.create_log_group, **ask)
    statement = {
        "Effect": "Allow",
        "Principal": {"Service": "logs.us-east-1.amazonaws.com"},
        "Action": "kms:*",
        "Resource": "*",
    }
    policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    kms.put_key_policy(KeyId=key, PolicyName="default", Policy=policy)
    logs.create_log_group(**ask)
    refused("ResourceAlreadyExistsException", "exists", logs.create_log_group, **ask)
    logs.delete_log_group(logGroupName=ask["logGroupName"])


@pytest.fixture(scope="module")
def cluster_role(iam: Any) -> str:
    made = iam.create_role(RoleName="constraints-cluster", AssumeRolePolicyDocument=trust("eks.amazonaws.com"))
    return str(made["Role"]["Arn"])


def test_a_cluster_is_refused_for_what_aws_refuses(
    server: Server, eks: Any, network: Network, cluster_role: str
) -> None:
    ask = {"name": "c", "roleArn": cluster_role, "resourcesVpcConfig": {"subnetIds": network.subnets}}
    key = {"resources": ["secrets"], "provider": {"keyArn": "arn:aws:kms:us-east-1:123456789012:key/none"}}
    pods = server.client("iam").create_role(RoleName="not-eks", AssumeRolePolicyDocument=trust("ec2.amazonaws.com"))
    other = network.ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    abroad = network.ec2.create_security_group(VpcId=other, GroupName="abroad", Description="x")["GroupId"]
    for words, change in {
        "could not be assumed because it does not exist": {"roleArn": "arn:aws:iam::123456789012:role/none"},
        "trust policy must allow eks.amazonaws.com": {"roleArn": pods["Role"]["Arn"]},
        "The subnet ID 'subnet-none' does not exist": {"resourcesVpcConfig": {"subnetIds": ["subnet-none"]}},
        "at least two different AZs": {"resourcesVpcConfig": {"subnetIds": network.subnets[:1]}},
        f"The security group '{abroad}' does not exist": {
            "resourcesVpcConfig": {"subnetIds": network.subnets, "securityGroupIds": [abroad]}
        },
        "cannot both be false": {
            "resourcesVpcConfig": {
                "subnetIds": network.subnets, "endpointPublicAccess": False, "endpointPrivateAccess": False,
            }
        },
        "unsupported Kubernetes version 1.21": {"version": "1.21"},
        "keyArn in encryptionConfig provider is invalid": {"encryptionConfig": [key]},
        "does not know outpostConfig": {
            "outpostConfig": {"outpostArns": ["arn:aws:outposts::1:x"], "controlPlaneInstanceType": "m5.large"}
        },
    }.items():  # fmt: skip
        refused("InvalidParameterException", words, eks.create_cluster, **{**ask, **change})
    assert eks.list_clusters()["clusters"] == []
    refused("ResourceNotFoundException", "No cluster found for name: c", eks.describe_cluster, name="c")


def test_what_the_stand_in_lacks_is_named(ec2: Any, eks: Any) -> None:
    refused("NotImplemented", "CreatePlacementGroup", ec2.create_placement_group, GroupName="p", Strategy="cluster")
    refused("NotImplemented", "fargate-profiles", eks.list_fargate_profiles, clusterName="c")


def test_health_and_inventory(server: Server, network: Network) -> None:
    def ask(path: str) -> Any:
        with urllib.request.urlopen(f"{server.inst.aws_url}/slipway/{path}") as response:
            return json.loads(response.read())

    assert ask("health")["status"] == "ok"
    assert {"type": "ec2:vpc", "id": network.vpc, "name": ""} in ask("inventory")
    assert not [item for item in ask("inventory") if item["id"].startswith("vpc-") and item["name"] == "default"]
    network.remove()
    assert network.vpc not in [item["id"] for item in ask("inventory")]
