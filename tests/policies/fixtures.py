"""What each rule refuses and what it lets pass, beyond the examples of the docs: (rule, type, inputs)."""

from __future__ import annotations

from typing import Any

from pulumi_policy.proxy import UNKNOWN_ARRAY_VALUE, UNKNOWN_OBJECT_VALUE, UNKNOWN_STRING_VALUE

Case = tuple[str, str, dict[str, Any]]
GROUP = "aws:eks/nodeGroup:NodeGroup"
POOL = "kubernetes:karpenter.sh/v1:NodePool"
NODE_CLASS = "kubernetes:karpenter.k8s.aws/v1:EC2NodeClass"
RELEASE = "kubernetes:helm.sh/v3:Release"
ROLE = "aws:iam/role:Role"
ROLE_POLICY = "aws:iam/rolePolicy:RolePolicy"
CLUSTER = "aws:eks/cluster:Cluster"
SECURITY = "aws:ec2/securityGroup:SecurityGroup"
INGRESS = "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule"
SERVICE = "kubernetes:core/v1:Service"
NAMESPACE = "kubernetes:core/v1:Namespace"
DEPLOYMENT = "kubernetes:apps/v1:Deployment"
DAEMON_SET = "kubernetes:apps/v1:DaemonSet"
ADDON = "aws:eks/addon:Addon"
TEMPLATE = "aws:ec2/launchTemplate:LaunchTemplate"
PROVIDER = "pulumi:providers:aws"
SCALED = "kubernetes:keda.sh/v1alpha1:ScaledObject"
RDS = "aws:rds/instance:Instance"
PARAMETERS = "aws:rds/parameterGroup:ParameterGroup"
LOGS = "aws:cloudwatch/logGroup:LogGroup"
REPOSITORY = "aws:ecr/repository:Repository"
KEY = "aws:kms/key:Key"
STORAGE = "kubernetes:storage.k8s.io/v1:StorageClass"
NODE = "arn:aws:iam::123456789012:role/node"
TAGGED = {"StringEquals": {"aws:ResourceTag/slipway:cluster": "prod"}}


def allow(*actions: str, resource: Any = "*", **more: Any) -> dict[str, Any]:
    return {"policy": {"Statement": [{"Effect": "Allow", "Action": list(actions), "Resource": resource, **more}]}}


def trust(principal: Any, *actions: str, **more: Any) -> dict[str, Any]:
    statement = {"Effect": "Allow", "Principal": principal, "Action": list(actions), **more}
    return {"assumeRolePolicy": {"Statement": [statement]}}


def jobs(disruption: dict[str, Any] | None = None, **template: Any) -> dict[str, Any]:
    return {"spec": {"limits": {"nvidia.com/gpu": 8}, "template": {"spec": template}, "disruption": disruption or {}}}


def pod(*containers: dict[str, Any], namespace: str = "web", **spec: Any) -> dict[str, Any]:
    template = {"spec": {"containers": list(containers), **spec}}
    return {"metadata": {"namespace": namespace}, "spec": {"template": template}}


def slurm(**values: Any) -> dict[str, Any]:
    return {"chart": "charts/slurm", "values": values}


def of_nodeset(**values: Any) -> dict[str, Any]:
    return slurm(nodesets={"h100": values})


PODS = {"Service": "pods.eks.amazonaws.com"}
OIDC = {"Federated": "arn:aws:iam::123456789012:oidc-provider/oidc.eks.eu-west-1.amazonaws.com/id/ABC"}
EVERYTHING = [{"operator": "Exists"}]
GPU_CONTAINER = {"name": "train", "resources": {"limits": {"nvidia.com/gpu": 8}}}
FOR_GPU = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
HASH = "26.05-1d181db2f148"
TAGS = {"slipway:stack": "dev", "slipway:cluster": "slipway-dev"}
TWO_ZONES = [{"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a", "b"]}]
ONE_ZONE = [{"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a"]}]
P5 = [{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["p5.48xlarge"]}]
KUBERNETES_TAINT = {"key": "slipway.dev/partition", "value": "debug", "effect": "NO_SCHEDULE"}

REFUSED: list[Case] = [
    (
        "partition-pool-tainted",
        GROUP,
        {"labels": {"slipway.dev/partition": "a"}, "taints": [{"key": "b", "effect": "NO_SCHEDULE"}]},
    ),
    ("partition-pool-tainted", POOL, {"spec": {"template": {"metadata": {"labels": {"slipway.dev/partition": "a"}}}}}),
    ("gpu-nodes-only-for-gpu-pods", DEPLOYMENT, pod({"name": "web"}, tolerations=FOR_GPU)),
    (
        "gpu-nodes-only-for-gpu-pods",
        ADDON,
        {"addonName": "coredns", "configurationValues": '{"tolerations":[{"operator":"Exists"}]}'},
    ),
    ("gpu-nodes-only-for-gpu-pods", RELEASE, slurm(restapi={"podSpec": {"tolerations": EVERYTHING}})),
    ("gpu-nodes-only-for-gpu-pods", RELEASE, {"chart": "charts/slurm-operator", "values": {"tolerations": EVERYTHING}}),
    ("gpu-pod-tolerates-gpu-nodes", RELEASE, of_nodeset(slurmd={"resources": {"limits": {"nvidia.com/gpu": 8}}})),
    ("nodepool-never-expires", POOL, jobs()),
    ("nodepool-consolidates-when-empty", POOL, jobs({"consolidateAfter": "10m"})),
    ("nodepool-consolidates-when-empty", POOL, jobs({"consolidationPolicy": "WhenEmpty", "consolidateAfter": "30s"})),
    ("nodepool-has-disruption-budget", POOL, jobs()),
    (
        "nodepool-has-disruption-budget",
        POOL,
        jobs({"budgets": [{"nodes": "0", "schedule": "@daily", "duration": "8h"}]}),
    ),
    ("nodepool-has-disruption-budget", POOL, jobs({"budgets": [{"nodes": "5%", "reasons": ["Empty"]}]})),
    ("nodegroup-update-respects-jobs", GROUP, {"updateConfig": {"maxUnavailablePercentage": 50}}),
    ("iam-no-wildcard-resource", ROLE_POLICY, allow("secretsmanager:GetSecretValue")),
    ("iam-no-wildcard-resource", ROLE_POLICY, allow("s3:GetObject", resource=["arn:aws:s3:::a", "*"])),
    ("iam-no-wildcard-resource", ROLE, {"inlinePolicies": [{"name": "x", **allow("sqs:DeleteMessage")}]}),
    ("iam-no-privilege-escalation", ROLE_POLICY, allow("iam:AttachRolePolicy")),
    ("iam-no-privilege-escalation", ROLE_POLICY, allow("iam:Put*", resource="arn:aws:iam::123456789012:role/*")),
    ("iam-no-privilege-escalation", ROLE_POLICY, allow("sts:AssumeRole")),
    ("iam-no-privilege-escalation", ROLE_POLICY, allow("eks:CreateAccessEntry", "eks:AssociateAccessPolicy")),
    ("iam-pass-role-limited", ROLE_POLICY, allow("iam:Pass*")),
    (
        "pod-identity-trust-has-conditions",
        ROLE,
        trust(PODS, "sts:AssumeRole", Condition={"ArnEquals": {"aws:SourceArn": "x"}}),
    ),
    ("pod-identity-trust-has-conditions", ROLE, trust(OIDC, "sts:AssumeRoleWithWebIdentity")),
    ("no-policy-for-everybody", ROLE, trust("*", "sts:AssumeRole")),
    (
        "no-policy-for-everybody",
        KEY,
        {"policy": {"Statement": {"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": "kms:Decrypt"}}},
    ),
    ("iam-no-long-lived-keys", "aws:iam/user:User", {"name": "ci"}),
    ("node-credentials-guarded", TEMPLATE, {"metadataOptions": {"httpPutResponseHopLimit": 1}}),
    (
        "node-credentials-guarded",
        NODE_CLASS,
        {"spec": {"metadataOptions": {"httpTokens": "required", "httpPutResponseHopLimit": 2}}},
    ),
    ("eks-api-not-open", CLUSTER, {"vpcConfig": {"endpointPrivateAccess": True}}),
    ("eks-api-not-open", CLUSTER, {"vpcConfig": {"endpointPrivateAccess": False, "endpointPublicAccess": False}}),
    ("eks-api-not-open", CLUSTER, {"vpcConfig": {"endpointPrivateAccess": True, "publicAccessCidrs": ["8.0.0.0/8"]}}),
    ("no-open-ingress", SECURITY, {"ingress": [{"fromPort": 22, "toPort": 22, "ipv6CidrBlocks": ["::/0"]}]}),
    ("no-open-ingress", INGRESS, {"cidrIpv4": "0.0.0.0/0", "ipProtocol": "-1"}),
    (
        "load-balancer-has-source-ranges",
        RELEASE,
        slurm(loginsets={"a": {"service": {"spec": {"type": "LoadBalancer"}}}}),
    ),
    (
        "load-balancer-has-source-ranges",
        SERVICE,
        {"spec": {"type": "LoadBalancer", "loadBalancerSourceRanges": ["0.0.0.0/0"]}},
    ),
    ("no-public-addresses", "aws:ec2/subnet:Subnet", {"mapPublicIpOnLaunch": True}),
    ("data-encrypted", TEMPLATE, {"blockDeviceMappings": [{"deviceName": "/dev/xvda", "ebs": {"volumeSize": 100}}]}),
    ("data-encrypted", NODE_CLASS, {"spec": {"blockDeviceMappings": [{"ebs": {"encrypted": False}}]}}),
    ("data-encrypted", RDS, {"storageEncrypted": False}),
    ("data-has-own-key", REPOSITORY, {"encryptionConfigurations": [{"encryptionType": "AES256"}]}),
    ("data-has-own-key", CLUSTER, {"name": "prod"}),
    ("kms-key-rotates", KEY, {"description": "x"}),
    ("deletion-protected", REPOSITORY, {"forceDelete": True}),
    (
        "database-requires-tls",
        PARAMETERS,
        {"family": "mariadb11.8", "parameters": [{"name": "require_secure_transport", "value": "0"}]},
    ),
    ("logs-kept-for-a-set-time", LOGS, {"retentionInDays": 1}),
    ("image-repository-immutable", REPOSITORY, {"imageTagMutability": "IMMUTABLE"}),
    ("image-pinned", DAEMON_SET, pod({"name": "a", "image": "registry:5000/a"})),
    ("image-pinned", RELEASE, slurm(restapi={"slurmrestd": {"image": {"repository": "r", "tag": "26.05"}}})),
    ("no-privileged-pods", DAEMON_SET, pod({"name": "a", "securityContext": {"privileged": True}})),
    ("no-privileged-pods", DEPLOYMENT, pod({"name": "a", "securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}})),
    ("no-privileged-pods", DEPLOYMENT, pod(volumes=[{"name": "a", "hostPath": {"path": "/"}}])),
    (
        "namespace-has-pod-security",
        NAMESPACE,
        {"metadata": {"name": "web", "labels": {"pod-security.kubernetes.io/enforce": "privileged"}}},
    ),
    ("pod-has-resources", RELEASE, of_nodeset(slurmd={"resources": {"requests": {"cpu": 1, "memory": "1Gi"}}})),
    ("pool-has-maximum", GROUP, {"scalingConfig": {"minSize": 0, "maxSize": 5000}}),
    ("cost-tags", PROVIDER, {"defaultTags": '{"tags": {"slipway:stack": "dev"}}'}),
    ("efa-pool-in-one-zone", POOL, {"spec": {"template": {"spec": {"requirements": [*P5, *TWO_ZONES]}}}}),
    (
        "slurm-database-user-is-not-master",
        RELEASE,
        slurm(accounting={"enabled": True, "storageConfig": {"username": "slurm"}}),
    ),
    (
        "partition-has-time-limit",
        RELEASE,
        of_nodeset(partition={"enabled": True, "config": "State=UP MaxTime=INFINITE"}),
    ),
]

SETTLED = {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "1h30m", "budgets": [{"nodes": "10%"}]}
PASSED: list[Case] = [
    ("partition-pool-tainted", GROUP, {"labels": {"slipway.dev/partition": "debug"}, "taints": [KUBERNETES_TAINT]}),
    ("partition-pool-tainted", GROUP, {"labels": {"slipway.dev/role": "system"}}),
    (
        "gpu-nodes-only-for-gpu-pods",
        DEPLOYMENT,
        pod({"name": "web"}, tolerations=[{"key": "CriticalAddonsOnly", "operator": "Exists"}]),
    ),
    ("gpu-nodes-only-for-gpu-pods", DEPLOYMENT, pod(GPU_CONTAINER, tolerations=FOR_GPU)),
    ("gpu-nodes-only-for-gpu-pods", ADDON, {"configurationValues": '{"node":{"tolerations":[{"operator":"Exists"}]}}'}),
    ("gpu-nodes-only-for-gpu-pods", ADDON, {"configurationValues": UNKNOWN_STRING_VALUE}),
    ("gpu-pod-tolerates-gpu-nodes", DEPLOYMENT, pod(GPU_CONTAINER, tolerations=FOR_GPU)),
    ("startup-taint-is-removed", POOL, jobs(startupTaints=[{"key": "ebs.csi.aws.com/agent-not-ready"}])),
    ("nodepool-never-expires", POOL, jobs(expireAfter="Never")),
    ("nodepool-never-expires", POOL, jobs(expireAfter=UNKNOWN_STRING_VALUE)),
    ("nodepool-never-expires", POOL, {"spec": {"limits": {"cpu": 8}}}),
    ("nodepool-no-termination-grace-period", POOL, jobs(expireAfter="Never")),
    ("nodepool-no-termination-grace-period", POOL, {"spec": {"template": {"spec": {"terminationGracePeriod": "1h"}}}}),
    ("nodepool-consolidates-when-empty", POOL, jobs(SETTLED)),
    ("nodepool-consolidates-when-empty", POOL, jobs({"consolidationPolicy": "WhenEmpty", "consolidateAfter": "Never"})),
    ("nodepool-has-disruption-budget", POOL, jobs(SETTLED)),
    ("nodepool-has-disruption-budget", POOL, jobs({"budgets": [{"nodes": "1"}, {"nodes": "0", "schedule": "@daily"}]})),
    ("nodepool-has-limits", POOL, {"spec": {"limits": {"cpu": 100}}}),
    ("nodepool-has-limits", POOL, {"spec": {"replicas": 4}}),
    ("node-image-pinned", NODE_CLASS, {"spec": {"amiSelectorTerms": [{"alias": "al2023@v20260915"}]}}),
    ("nodegroup-update-respects-jobs", GROUP, {"updateConfig": {"maxUnavailable": 1}}),
    ("system-nodes-not-spot", GROUP, {"capacityType": "SPOT", "taints": [KUBERNETES_TAINT]}),
    ("iam-no-wildcard-resource", ROLE_POLICY, allow("ec2:DescribeInstances", "ecr:GetAuthorizationToken")),
    ("iam-no-wildcard-resource", ROLE_POLICY, allow("ec2:TerminateInstances", Condition=TAGGED)),
    ("iam-no-wildcard-resource", ROLE_POLICY, allow("s3:GetObject", resource="arn:aws:s3:::models/*")),
    ("iam-no-wildcard-resource", ROLE_POLICY, {"policy": UNKNOWN_STRING_VALUE}),
    ("iam-no-privilege-escalation", ROLE_POLICY, allow("iam:PassRole", "ec2:RunInstances", resource=NODE)),
    ("iam-no-privilege-escalation", ROLE_POLICY, allow("iam:GetRole")),
    (
        "iam-pass-role-limited",
        ROLE_POLICY,
        allow("iam:PassRole", resource=NODE, Condition={"StringEquals": {"iam:PassedToService": "ec2.amazonaws.com"}}),
    ),
    (
        "pod-identity-trust-has-conditions",
        ROLE,
        trust(PODS, "sts:AssumeRole", "sts:TagSession", Condition={"ArnEquals": {"aws:SourceArn": "x"}}),
    ),
    ("pod-identity-trust-has-conditions", ROLE, trust({"Service": "ec2.amazonaws.com"}, "sts:AssumeRole")),
    (
        "pod-identity-trust-has-conditions",
        ROLE,
        trust(
            OIDC, "sts:AssumeRoleWithWebIdentity", Condition={"StringEquals": {"oidc:sub": "system:serviceaccount:a:b"}}
        ),
    ),
    (
        "no-policy-for-everybody",
        ROLE,
        trust({"AWS": "*"}, "sts:AssumeRole", Condition={"StringEquals": {"aws:PrincipalOrgID": "o-1"}}),
    ),
    ("node-credentials-guarded", NODE_CLASS, {"spec": {}}),
    ("eks-api-not-open", CLUSTER, {"vpcConfig": {"endpointPrivateAccess": True, "endpointPublicAccess": False}}),
    (
        "eks-api-not-open",
        CLUSTER,
        {"vpcConfig": {"endpointPrivateAccess": True, "publicAccessCidrs": ["203.0.113.0/24"]}},
    ),
    (
        "eks-api-not-open",
        CLUSTER,
        {"vpcConfig": {"endpointPrivateAccess": True, "publicAccessCidrs": UNKNOWN_ARRAY_VALUE}},
    ),
    ("no-open-ingress", SECURITY, {"ingress": [{"fromPort": 22, "toPort": 22, "cidrBlocks": ["10.0.0.0/8"]}]}),
    ("no-open-ingress", "aws:ec2/securityGroupRule:SecurityGroupRule", {"type": "egress", "cidrBlocks": ["0.0.0.0/0"]}),
    ("load-balancer-has-source-ranges", SERVICE, {"spec": {"type": "ClusterIP"}}),
    (
        "load-balancer-has-source-ranges",
        SERVICE,
        {"spec": {"type": "LoadBalancer", "loadBalancerSourceRanges": ["10.0.0.0/8"]}},
    ),
    (
        "load-balancer-has-source-ranges",
        SERVICE,
        {
            "metadata": {"annotations": {"service.beta.kubernetes.io/aws-load-balancer-scheme": "internal"}},
            "spec": {"type": "LoadBalancer"},
        },
    ),
    ("no-public-addresses", RDS, {"publiclyAccessible": False}),
    (
        "default-security-group-empty",
        "aws:ec2/defaultSecurityGroup:DefaultSecurityGroup",
        {"ingress": [], "egress": []},
    ),
    (
        "network-policies-enforced",
        ADDON,
        {"addonName": "vpc-cni", "configurationValues": '{"enableNetworkPolicy":"true"}'},
    ),
    ("network-policies-enforced", ADDON, {"addonName": "coredns"}),
    ("data-encrypted", STORAGE, {"provisioner": "ebs.csi.aws.com", "parameters": {"encrypted": "true"}}),
    ("data-encrypted", STORAGE, {"provisioner": "efs.csi.aws.com"}),
    ("data-has-own-key", LOGS, {"kmsKeyId": UNKNOWN_STRING_VALUE}),
    ("kms-key-rotates", KEY, {"enableKeyRotation": True}),
    ("deletion-protected", CLUSTER, {"deletionProtection": True}),
    ("database-backed-up", RDS, {"backupRetentionPeriod": 14}),
    ("database-requires-tls", PARAMETERS, {"family": "mariadb11.8"}),
    ("database-requires-tls", PARAMETERS, {"family": "postgres17"}),
    ("database-password-managed", RDS, {"manageMasterUserPassword": True}),
    ("logs-kept-for-a-set-time", LOGS, {"retentionInDays": 30}),
    (
        "image-repository-immutable",
        REPOSITORY,
        {"imageTagMutability": "IMMUTABLE", "imageScanningConfiguration": {"scanOnPush": True}},
    ),
    ("image-pinned", DEPLOYMENT, pod({"name": "a", "image": f"registry:5000/a:{HASH}"})),
    ("image-pinned", DEPLOYMENT, pod({"name": "a", "image": "a@sha256:0123"})),
    ("image-pinned", RELEASE, slurm(restapi={"slurmrestd": {"image": {"repository": "r", "tag": HASH}}})),
    (
        "no-privileged-pods",
        DAEMON_SET,
        pod({"name": "slurmd", "securityContext": {"privileged": True}}, namespace="slurm"),
    ),
    (
        "namespace-has-pod-security",
        NAMESPACE,
        {"metadata": {"name": "slurm", "labels": {"pod-security.kubernetes.io/enforce": "privileged"}}},
    ),
    ("pod-has-resources", DEPLOYMENT, pod({"name": "a", "resources": {"limits": {"cpu": 1, "memory": "1Gi"}}})),
    ("pod-has-resources", RELEASE, of_nodeset(slurmd={"resources": UNKNOWN_OBJECT_VALUE})),
    ("service-has-readiness-probe", DEPLOYMENT, pod({"name": "a", "readinessProbe": {"tcpSocket": {"port": 22}}})),
    ("pool-has-maximum", GROUP, {"scalingConfig": {"maxSize": 4}}),
    ("pool-has-maximum", SCALED, {"spec": {"maxReplicaCount": 16}}),
    ("scaledobject-has-fallback", SCALED, {"spec": {"fallback": {"failureThreshold": 3, "replicas": 2}}}),
    ("cost-tags", PROVIDER, {"defaultTags": {"tags": TAGS}}),
    (
        "cost-tags",
        TEMPLATE,
        {"tagSpecifications": [{"resourceType": kind, "tags": TAGS} for kind in ("instance", "volume")]},
    ),
    ("efa-pool-in-one-zone", POOL, {"spec": {"template": {"spec": {"requirements": [*P5, *ONE_ZONE]}}}}),
    ("efa-pool-in-one-zone", GROUP, {"instanceTypes": ["g6.xlarge"], "subnetIds": ["a", "b"]}),
    ("slurm-state-persistent", RELEASE, slurm(controller={"persistence": {"enabled": True}})),
    ("slurm-accounting-on", RELEASE, slurm(accounting={"external": True})),
    (
        "slurm-database-user-is-not-master",
        RELEASE,
        slurm(accounting={"enabled": True, "storageConfig": {"username": "slurm"}, "storageCA": {"key": "x"}}),
    ),
    ("partition-has-time-limit", RELEASE, of_nodeset(partition={"enabled": True, "config": "State=UP MaxTime=1-0"})),
    ("partition-has-time-limit", RELEASE, of_nodeset(partition={"enabled": True, "configMap": {"MaxTime": "60"}})),
    ("operator-has-replicas", RELEASE, {"chart": "charts/slurm-operator", "values": {"replicas": 2}}),
]
