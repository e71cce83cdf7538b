"""Data: encrypted with keys of one's own, backed up, kept for a set time, and not deleted by accident."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pulumi_policy import Severity

from .demands import Demand, at_least, check_of, given, kinds, not_true
from .karpenter import NODE_CLASS
from .rule import Check, Finding, Parameter, Resource, Rule
from .values import UNKNOWN, at, is_true, items, mapping, number

CLUSTER = "aws:eks/cluster:Cluster"
INSTANCE = "aws:rds/instance:Instance"
DB_CLUSTER = "aws:rds/cluster:Cluster"
LUSTRE = "aws:fsx/lustreFileSystem:LustreFileSystem"
EFS = "aws:efs/fileSystem:FileSystem"
TEMPLATE = "aws:ec2/launchTemplate:LaunchTemplate"
LOGS = "aws:cloudwatch/logGroup:LogGroup"
REPOSITORY = "aws:ecr/repository:Repository"
KEY = "aws:kms/key:Key"
STORAGE_CLASS = "kubernetes:storage.k8s.io/v1:StorageClass"
PARAMETERS = "aws:rds/parameterGroup:ParameterGroup"
EBS_DRIVERS = {"ebs.csi.aws.com", "ebs.csi.eks.amazonaws.com"}

ENCRYPTED = (
    Demand(INSTANCE, ("storageEncrypted",), is_true, "stores its data unencrypted"),
    Demand(DB_CLUSTER, ("storageEncrypted",), is_true, "stores its data unencrypted"),
    Demand(EFS, ("encrypted",), is_true, "stores its files unencrypted"),
    Demand("aws:ebs/volume:Volume", ("encrypted",), is_true, "is unencrypted"),
)
OWN_KEY = (
    Demand(CLUSTER, ("encryptionConfig", "provider", "keyArn"), given, "encrypts secrets with no key of its own"),
    Demand(INSTANCE, ("kmsKeyId",), given, "has no kmsKeyId"),
    Demand(DB_CLUSTER, ("kmsKeyId",), given, "has no kmsKeyId"),
    Demand(LUSTRE, ("kmsKeyId",), given, "has no kmsKeyId"),
    Demand(EFS, ("kmsKeyId",), given, "has no kmsKeyId"),
    Demand(LOGS, ("kmsKeyId",), given, "has no kmsKeyId"),
    Demand("aws:secretsmanager/secret:Secret", ("kmsKeyId",), given, "has no kmsKeyId"),
)
LOST_AT_ONCE = (
    Demand(CLUSTER, ("deletionProtection",), is_true, "has no deletionProtection"),
    Demand(INSTANCE, ("deletionProtection",), is_true, "has no deletionProtection"),
    Demand(DB_CLUSTER, ("deletionProtection",), is_true, "has no deletionProtection"),
    Demand(INSTANCE, ("skipFinalSnapshot",), not_true, "is deleted without a final snapshot"),
    Demand(DB_CLUSTER, ("skipFinalSnapshot",), not_true, "is deleted without a final snapshot"),
    Demand("aws:s3/bucket:Bucket", ("forceDestroy",), not_true, "is deleted with all objects in it (forceDestroy)"),
    Demand(REPOSITORY, ("forceDelete",), not_true, "is deleted with all images in it (forceDelete)"),
)
BACKED_UP = (
    Demand(INSTANCE, ("backupRetentionPeriod",), at_least(7), "keeps backups for less than 7 days"),
    Demand(DB_CLUSTER, ("backupRetentionPeriod",), at_least(7), "keeps backups for less than 7 days"),
)
KEYS = (
    Demand(KEY, ("enableKeyRotation",), is_true, "is never rotated"),
    Demand(
        KEY,
        ("deletionWindowInDays",),
        lambda days: days is None or at_least(14)(days),
        "can be lost within two weeks (deletionWindowInDays)",
    ),
)
IMAGES = (
    Demand(
        REPOSITORY,
        ("imageTagMutability",),
        lambda value: isinstance(value, str) and value.startswith("IMMUTABLE"),
        "lets tags be moved to other images",
    ),
    Demand(REPOSITORY, ("imageScanningConfiguration", "scanOnPush"), is_true, "does not look for known weaknesses"),
)
PASSWORDS = (
    Demand(INSTANCE, ("password",), lambda value: value is None, "is given its master password by the program"),
    Demand(DB_CLUSTER, ("masterPassword",), lambda value: value is None, "is given its master password by the program"),
)


def check_encrypted(resource: Resource) -> Iterator[Finding | str]:
    """Disks of nodes, volumes that pods claim, databases and file systems."""
    yield from _ENCRYPTED(resource)
    if resource.kind == STORAGE_CLASS:
        encrypted = at(resource.inputs, "parameters", "encrypted")
        if resource.inputs.get("provisioner") in EBS_DRIVERS and not is_true(encrypted) and encrypted is not UNKNOWN:
            yield f"{resource.title} makes unencrypted volumes."
    disks = resource.inputs if resource.kind == TEMPLATE else mapping(resource.inputs.get("spec"))
    for disk in items(disks.get("blockDeviceMappings")):
        encrypted = at(disk, "ebs", "encrypted")
        if mapping(disk).get("ebs") and not is_true(encrypted) and encrypted is not UNKNOWN:
            yield f"{resource.title} gives nodes the unencrypted volume {mapping(disk).get('deviceName')}."


def check_own_key(resource: Resource) -> Iterator[Finding | str]:
    """Keys by the table, and those of image repositories, which stand in a list."""
    yield from _OWN_KEY(resource)
    if resource.kind == REPOSITORY:
        configurations = resource.inputs.get("encryptionConfigurations")
        kinds_ = [at(entry, "encryptionType") for entry in items(configurations)]
        if configurations is not UNKNOWN and not any(kind in ("KMS", "KMS_DSSE", UNKNOWN) for kind in kinds_):
            yield f"{resource.title} encrypts images with no key of its own."


def check_retention(resource: Resource) -> Iterator[Finding | str]:
    """How long logs are kept: not for ever, and not for a day."""
    days, least = resource.inputs.get("retentionInDays"), resource.parameters["minimumDays"]
    if days is UNKNOWN:
        return
    if not number(days):
        yield f"{resource.title} keeps its logs for ever."
    elif (number(days) or 0) < least:
        yield f"{resource.title} keeps its logs for {number(days):g} days, less than {least:g}."


def check_tls(resource: Resource) -> Iterator[Finding | str]:
    """Whether databases take connections without TLS, by their parameter group."""
    family = resource.inputs.get("family")
    if not isinstance(family, str) or not family.startswith(("mysql", "mariadb")):
        return
    given_ = [at(entry, "value") for entry in items(resource.inputs.get("parameters"))
              if at(entry, "name") == "require_secure_transport"]  # fmt: skip
    on = [UNKNOWN if value is UNKNOWN else str(value).lower() in ("1", "on") for value in given_]
    # MariaDB 11.8 of RDS asks for TLS by default; the others do not.
    default = (number(family.removeprefix("mariadb")) or 0) >= 11.8 if family.startswith("mariadb") else False
    if not (on[-1] if on else default) and UNKNOWN not in on:
        yield f"{resource.title} lets clients connect without TLS (require_secure_transport)."


_ENCRYPTED, _OWN_KEY = check_of(ENCRYPTED), check_of(OWN_KEY)


def _rule(
    name: str,
    severity: Severity,
    kinds_: str,
    said: tuple[str, str, str, str],
    example: tuple[str, dict[str, Any]],
    check: Check,
    **more: Any,
) -> Rule:
    summary, why, consequence, remediation = said
    return Rule(name, severity, kinds_, summary, why, consequence, remediation, example, check, **more)


RULES = (
    _rule(
        "data-encrypted",
        Severity.HIGH,
        "|".join((kinds(ENCRYPTED), TEMPLATE, STORAGE_CLASS, NODE_CLASS)),
        (
            "Disks, volumes, databases and file systems are encrypted.",
            "Encryption cannot be switched on later: the data has to be copied to a new volume.",
            "A snapshot that is shared by mistake can be read by whoever gets it.",
            "Set the property that encrypts it to true.",
        ),
        (STORAGE_CLASS, {"provisioner": "ebs.csi.aws.com", "parameters": {"type": "gp3"}}),
        check_encrypted,
    ),
    _rule(
        "data-has-own-key",
        Severity.MEDIUM,
        "|".join((kinds(OWN_KEY), REPOSITORY)),
        (
            "What holds data is encrypted with a KMS key of the account's own.",
            "With AWS's own keys nobody can say who may decrypt, or take that right away from everybody at once.",
            "After a leak the data cannot be made unreadable, and no log says who decrypted it.",
            "Name the stack's KMS key.",
        ),
        (LOGS, {"name": "/aws/eks/prod/cluster", "retentionInDays": 30}),
        check_own_key,
    ),
    _rule(
        "kms-key-rotates",
        Severity.MEDIUM,
        kinds(KEYS),
        (
            "KMS keys are rotated, and cannot be deleted within two weeks.",
            "Without its key all data of a cluster is lost, at once and for good; the waiting time is what is left to "
            "notice. Rotation bounds what one leaked key opens.",
            "A key that is deleted by mistake takes secrets, images and logs with it before anybody "
            "is back from holiday.",
            "Set enableKeyRotation: true and deletionWindowInDays: 30.",
        ),
        (KEY, {"description": "slurm", "deletionWindowInDays": 7, "enableKeyRotation": True}),
        check_of(KEYS),
    ),
    _rule(
        "deletion-protected",
        Severity.HIGH,
        kinds(LOST_AT_ONCE),
        (
            "Clusters, databases, buckets and image repositories are not deleted by one wrong command.",
            "A renamed resource is a deleted and a new one to Pulumi. Stacks that are thrown away as "
            "a whole may differ; "
            "they say so in their policy config.",
            "A wrong `destroy`, or a rename, deletes it with what is in it.",
            "Set deletionProtection: true, and leave forceDelete, forceDestroy and skipFinalSnapshot away.",
        ),
        (CLUSTER, {"name": "prod", "deletionProtection": False}),
        check_of(LOST_AT_ONCE),
    ),
    _rule(
        "database-backed-up",
        Severity.HIGH,
        kinds(BACKED_UP),
        (
            "Databases keep at least a week of backups.",
            "Slurm's accounting holds who used what: fair share, limits and bills are computed from it.",
            "A mistaken deletion that is noticed after a weekend cannot be undone.",
            "Set backupRetentionPeriod to 7 days or more.",
        ),
        (INSTANCE, {"engine": "mariadb", "backupRetentionPeriod": 1}),
        check_of(BACKED_UP),
    ),
    _rule(
        "database-requires-tls",
        Severity.HIGH,
        PARAMETERS,
        (
            "Databases take connections by TLS only.",
            "slurmdbd sends its password and every job's name and account over the network. "
            "https://docs.aws.amazon.com/AmazonRDS/latest/UserGuide/mariadb-ssl-connections.html",
            "Whoever can see the network between slurmdbd and the database reads the password.",
            "Set the parameter require_secure_transport to 1, and storageCA of the chart's accounting.",
        ),
        (PARAMETERS, {"family": "mariadb10.11", "parameters": []}),
        check_tls,
    ),
    _rule(
        "database-password-managed",
        Severity.HIGH,
        kinds(PASSWORDS),
        (
            "Master passwords of databases are made and rotated by RDS.",
            "A password that the program sets lies in the stack's config and state, and stays the same for years.",
            "Whoever reads the state, or an old copy of it, is master of the database.",
            "Set manageMasterUserPassword: true and remove the password.",
        ),
        (INSTANCE, {"engine": "mariadb", "username": "admin", "password": "not-a-secret"}),
        check_of(PASSWORDS),
    ),
    _rule(
        "logs-kept-for-a-set-time",
        Severity.LOW,
        LOGS,
        (
            "Log groups have a retention.",
            "CloudWatch keeps logs for ever unless told otherwise; the control plane's audit log "
            "alone grows by gigabytes.",
            "The bill grows every month, or the log of an incident is gone before anybody looks.",
            "Set retentionInDays, such as 30, or 365 in production.",
        ),
        (LOGS, {"name": "/aws/eks/prod/cluster"}),
        check_retention,
        parameters={"minimumDays": Parameter(7, "Shortest retention, days.")},
    ),
    _rule(
        "image-repository-immutable",
        Severity.HIGH,
        kinds(IMAGES),
        (
            "Tags of image repositories never move, and images are scanned.",
            "A tag that can be moved makes two nodes of one partition run different software.",
            "Half of a partition may run another image than the other half, and jobs across both "
            "fail for no visible reason.",
            "Set imageTagMutability: IMMUTABLE and imageScanningConfiguration.scanOnPush: true.",
        ),
        (
            REPOSITORY,
            {"name": "slurmd", "imageTagMutability": "MUTABLE", "imageScanningConfiguration": {"scanOnPush": True}},
        ),
        check_of(IMAGES),
    ),
)
