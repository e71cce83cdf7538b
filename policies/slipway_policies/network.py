"""Who can reach what: the cluster's API, nodes, load balancers, databases."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from typing import Any

from pulumi_policy import Severity

from .demands import Demand, check_of, kinds, not_true
from .rule import Finding, Parameter, Resource, Rule
from .values import UNKNOWN, at, from_json, is_false, is_true, items, mapping, number, several, texts, walk

CLUSTER = "aws:eks/cluster:Cluster"
GROUP = "aws:ec2/securityGroup:SecurityGroup"
GROUP_RULE = "aws:ec2/securityGroupRule:SecurityGroupRule"
INGRESS = "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule"
SERVICE = "kubernetes:core/v1:Service"
RELEASE = "kubernetes:helm.sh/v3:Release"
ADDON = "aws:eks/addon:Addon"
TEMPLATE = "aws:ec2/launchTemplate:LaunchTemplate"
SCHEME = "service.beta.kubernetes.io/aws-load-balancer-scheme"
INTERNAL = "service.beta.kubernetes.io/aws-load-balancer-internal"
PUBLIC = (
    Demand("aws:ec2/subnet:Subnet", ("mapPublicIpOnLaunch",), not_true, "gives each machine a public address"),
    Demand("aws:ec2/instance:Instance", ("associatePublicIpAddress",), not_true, "has a public address"),
    Demand("aws:rds/instance:Instance", ("publiclyAccessible",), not_true, "is reachable from the internet"),
    Demand(
        "aws:rds/clusterInstance:ClusterInstance", ("publiclyAccessible",), not_true, "is reachable from the internet"
    ),
)
PRIVATE = [
    ipaddress.ip_network(cidr)
    for cidr in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")
]


def too_wide(cidr: str, shortest: float) -> bool:
    """Whether a network is everything there is, or larger than public networks of one owner are."""
    try:
        network = ipaddress.ip_network(cidr, strict=False)
    except ValueError:
        return False
    inside = any(network.version == own.version and network.subnet_of(own) for own in PRIVATE)  # type: ignore[arg-type]
    return not inside and network.prefixlen < shortest


def check_api(resource: Resource) -> Iterator[Finding | str]:
    """The public endpoint of the cluster's API (on, for everybody, unless told otherwise) and the private one."""
    vpc = resource.inputs.get("vpcConfig")
    public, private = at(vpc, "endpointPublicAccess"), at(vpc, "endpointPrivateAccess")
    if private is not UNKNOWN and not is_true(private):
        yield Finding(
            f"{resource.title} has no private API endpoint.",
            "Nodes then reach the API over the internet, and are lost to it when the NAT gateway or its address is.",
            "set vpcConfig.endpointPrivateAccess: true.",
        )
    cidrs = at(vpc, "publicAccessCidrs")
    if is_false(public) or public is UNKNOWN or cidrs is UNKNOWN:
        return
    if not items(cidrs):
        yield f"{resource.title} has a public API endpoint for everybody (publicAccessCidrs is not set)."
    for cidr in texts(cidrs):
        if too_wide(cidr, resource.parameters["shortestPrefix"]):
            yield f"{resource.title} has a public API endpoint for {cidr}."


def check_ingress(resource: Resource) -> Iterator[str]:
    """Rules of security groups, in each of the three forms that Pulumi has for them."""
    if resource.kind == GROUP:
        rules = [mapping(rule) for rule in items(resource.inputs.get("ingress"))]
    elif resource.kind == GROUP_RULE and resource.inputs.get("type") != "ingress":
        rules = []
    else:
        rules = [resource.inputs]
    ports = {number(port) for port in items(resource.parameters["ports"])}
    for rule in rules:
        if number(rule.get("fromPort")) in ports and rule.get("fromPort") == rule.get("toPort"):
            continue
        for key in ("cidrBlocks", "ipv6CidrBlocks", "cidrIpv4", "cidrIpv6"):
            for cidr in texts(rule.get(key)):
                if too_wide(cidr, resource.parameters["shortestPrefix"]):
                    yield f"{resource.title} lets {cidr} in on {_ports(rule)}."


def _ports(rule: dict[str, Any]) -> str:
    first, last = number(rule.get("fromPort")), number(rule.get("toPort"))
    if first is None or rule.get("protocol", rule.get("ipProtocol")) in ("-1", "all"):
        return "all ports"
    return f"port {first:g}" if first == last else f"ports {first:g} to {last:g}"


def check_balancer(resource: Resource) -> Iterator[str]:
    """Services of type LoadBalancer, also those that a chart is told to make."""
    if resource.kind == SERVICE:
        found = [("", resource.inputs)]
    else:  # charts have {metadata: {annotations}, spec: {type}} or {annotations, type} as `service`
        found = [
            (f" {'.'.join(path)}", {**value, "spec": mapping(value.get("spec")) or value})
            for path, value in walk(resource.inputs.get("values"))
            if path and path[-1] == "service"
        ]
    for where, service in found:
        spec = mapping(service.get("spec"))
        notes = mapping(at(service, "metadata", "annotations") or service.get("annotations"))
        internal = notes.get(SCHEME) == "internal" or is_true(notes.get(INTERNAL))
        ranges = spec.get("loadBalancerSourceRanges")
        if spec.get("type") != "LoadBalancer" or internal or ranges is UNKNOWN:
            continue
        shortest = resource.parameters["shortestPrefix"]
        if not items(ranges) or any(too_wide(cidr, shortest) for cidr in texts(ranges)):
            yield f"{resource.title}{where} is a load balancer that everybody reaches."


def check_default_group(resource: Resource) -> Iterator[str]:
    """The group that machines get which name none."""
    if several(resource.inputs.get("ingress")) or several(resource.inputs.get("egress")):
        yield f"{resource.title} lets traffic through."


def check_enforced(resource: Resource) -> Iterator[str]:
    """Whether the network add-on heeds NetworkPolicies."""
    values = resource.inputs.get("configurationValues")
    if resource.inputs.get("addonName") != "vpc-cni" or values is UNKNOWN:
        return
    if not is_true(mapping(from_json(values)).get("enableNetworkPolicy")):
        yield f"{resource.title} does not enforce NetworkPolicies."


def check_metadata(resource: Resource) -> Iterator[str]:
    """The instance metadata service, from which credentials of the node can be had."""
    inputs = resource.inputs if resource.kind == TEMPLATE else mapping(resource.inputs.get("spec"))
    options = inputs.get("metadataOptions")
    # Karpenter's own defaults are tokens and one hop; EC2's are not.
    if (
        options is UNKNOWN
        or (options is None and resource.kind != TEMPLATE)
        or at(options, "httpEndpoint") == "disabled"
    ):
        return
    tokens, hops = at(options, "httpTokens"), at(options, "httpPutResponseHopLimit")
    if tokens is not UNKNOWN and tokens != "required":
        yield f"{resource.title} lets credentials of nodes be read without a session token."
    if hops is not UNKNOWN and number(hops) != 1:
        yield f"{resource.title} lets pods read the credentials of nodes (httpPutResponseHopLimit is not 1)."


SHORTEST = {"shortestPrefix": Parameter(16, "Public networks with a shorter prefix than this are too wide.")}
RULES = (
    Rule(
        id="eks-api-not-open",
        severity=Severity.CRITICAL,
        kinds=re.escape(CLUSTER),
        summary="The cluster's API is private, or open to named networks only.",
        why="EKS opens the API to the whole internet unless told otherwise. What is left then is one "
        "token, or one flaw "
        "in the API server. https://docs.aws.amazon.com/eks/latest/userguide/cluster-endpoint.html",
        consequence="Anybody may try tokens, and flaws of the API server, from anywhere.",
        remediation="Set vpcConfig.endpointPublicAccess: false, or publicAccessCidrs to your own networks.",
        example=(CLUSTER, {"vpcConfig": {"endpointPrivateAccess": True, "publicAccessCidrs": ["0.0.0.0/0"]}}),
        check=check_api,
        parameters=SHORTEST,
    ),
    Rule(
        id="no-open-ingress",
        severity=Severity.CRITICAL,
        kinds="|".join(re.escape(kind) for kind in (GROUP, GROUP_RULE, INGRESS)),
        summary="No security group lets the whole internet in.",
        why="Scanners find a new address within minutes. Login nodes are reached through named networks or a VPN.",
        consequence="SSH, or Slurm's own ports, are tried by everybody within minutes of the deployment.",
        remediation="Name the networks, or another security group; ports that are public by intent go into `ports`.",
        example=(GROUP_RULE, {"type": "ingress", "fromPort": 22, "toPort": 22, "cidrBlocks": ["0.0.0.0/0"]}),
        check=check_ingress,
        parameters={**SHORTEST, "ports": Parameter([], "Ports that are open to everybody by intent, such as 443.")},
    ),
    Rule(
        id="load-balancer-has-source-ranges",
        severity=Severity.HIGH,
        kinds=f"{re.escape(SERVICE)}|{re.escape(RELEASE)}",
        summary="Load balancers are internal, or name the networks they serve.",
        why="A Service of type LoadBalancer gets a security group that lets everybody in, unless it names its sources.",
        consequence="The login nodes' SSH, or Slurm's REST API, answers the whole internet.",
        remediation=f"Set loadBalancerSourceRanges, or the annotation {SCHEME}: internal.",
        example=(SERVICE, {"metadata": {"name": "login"}, "spec": {"type": "LoadBalancer", "ports": [{"port": 22}]}}),
        check=check_balancer,
        parameters=SHORTEST,
    ),
    Rule(
        id="no-public-addresses",
        severity=Severity.HIGH,
        kinds=kinds(PUBLIC),
        summary="Machines and databases have no public addresses.",
        why="Nodes reach the internet by NAT and need not be reached from there.",
        consequence="One mistake in a security group then exposes a node or the database to the internet.",
        remediation="Leave mapPublicIpOnLaunch, associatePublicIpAddress and publiclyAccessible false.",
        example=("aws:rds/instance:Instance", {"engine": "mariadb", "publiclyAccessible": True}),
        check=check_of(PUBLIC),
    ),
    Rule(
        id="default-security-group-empty",
        severity=Severity.MEDIUM,
        kinds=re.escape("aws:ec2/defaultSecurityGroup:DefaultSecurityGroup"),
        summary="The VPC's default security group lets nothing through.",
        why="Whatever is started without a group gets this one, and by default all its members reach each other.",
        consequence="A machine that was started by hand reaches everything else that was.",
        remediation="Set ingress and egress to empty lists, and give each thing a group of its own.",
        example=(
            "aws:ec2/defaultSecurityGroup:DefaultSecurityGroup",
            {"ingress": [{"protocol": "-1", "fromPort": 0, "toPort": 0, "self": True}]},
        ),
        check=check_default_group,
    ),
    Rule(
        id="network-policies-enforced",
        severity=Severity.HIGH,
        kinds=re.escape(ADDON),
        summary="The network add-on enforces NetworkPolicies.",
        why="Kubernetes accepts NetworkPolicies whether or not anything heeds them; the VPC CNI does "
        "only when told so.",
        consequence="Every pod, and so every job, reaches slurmctld, slurmrestd and the metrics, "
        "whatever policies say.",
        remediation='Set enableNetworkPolicy: "true" in the configurationValues of vpc-cni.',
        example=(ADDON, {"addonName": "vpc-cni", "configurationValues": "{}"}),
        check=check_enforced,
    ),
    Rule(
        id="node-credentials-guarded",
        severity=Severity.HIGH,
        kinds=rf"{re.escape(TEMPLATE)}|kubernetes:karpenter\.k8s\.aws/v[0-9a-z]+:EC2NodeClass",
        summary="Pods cannot get the credentials of the node they run on.",
        why="Every machine hands out its role's credentials to whoever asks at 169.254.169.254. With "
        "session tokens and "
        "a hop limit of 1 the answer does not get into a pod.",
        consequence="Any job may act as the node: pull every image, describe the account, detach network interfaces.",
        remediation="Set metadataOptions: httpTokens: required, httpPutResponseHopLimit: 1.",
        example=(TEMPLATE, {"metadataOptions": {"httpTokens": "required", "httpPutResponseHopLimit": 2}}),
        check=check_metadata,
    ),
)
