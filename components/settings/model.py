"""The schema of a stack's config: every key, its default, its unit and why it is so.

This is the only schema. `python -m components.settings schema` writes it as JSON Schema for editors, `… docs` as a
reference for people. A default is what production wants; a stack that wants cheapness asks for it by key.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from components.data import addon_versions, instance_types
from components.settings.base import Cidr, Model, QuotedText, Range, Resources, refuse
from components.settings.partition import Partition, check_instance

IMAGES = ("slurmctld", "slurmd", "slurmdbd", "slurmrestd", "login", "slurm-operator")


class Network(Model):
    """The VPC: private subnets for nodes, public ones for NAT and load balancers, in each zone."""

    cidr: Cidr = Field(
        default="10.1.0.0/20",
        description="Network of the VPC, /16 to /24. Each zone's nodes get the largest equal power-of-two share of it "
        "that leaves one share for the public subnets: a quarter each with two or three zones.",
    )
    zones: tuple[str, ...] = Field(
        default=(),
        max_length=6,
        description="Availability zones, at least two (EKS asks for two). Default: a and b of the region.",
    )
    nat: Literal["per-zone", "single"] = Field(
        default="per-zone",
        description="NAT gateways: `per-zone` survives the loss of a zone, `single` costs less.",
    )
    flow_logs: bool = Field(default=True, description="Log accepted and refused connections of the VPC, encrypted.")

    @field_validator("cidr")
    @classmethod
    def _size(cls, value: str) -> str:
        prefix = int(value.partition("/")[2])
        if not 16 <= prefix <= 24:
            raise refuse(
                f'"{value}" is a /{prefix}.',
                "AWS allows /16 to /28 for a VPC, and below /24 no nodes fit: use /16 to /24.",
            )
        return value


class Access(Model):
    """Who may administer the cluster, and from where."""

    admins: tuple[str, ...] = Field(
        default=(),
        description="ARNs of IAM roles and users who administer Kubernetes. Default: whoever runs Pulumi. "
        "List the deploying role too as soon as more than one principal deploys the stack.",
    )
    api_from: tuple[Cidr, ...] = Field(
        default=(),
        max_length=40,
        description="Networks that may reach the Kubernetes API from the internet (EKS allows 40). "
        "Default: none; the API is then reached from inside the VPC only.",
    )

    @field_validator("admins")
    @classmethod
    def _principals(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for arn in value:
            if not re.fullmatch(r"arn:aws[a-z-]*:iam::\d{12}:(role|user)/\S+", arn):
                raise refuse(
                    f'"{arn}" is no ARN of an IAM role or user.',
                    "Write arn:aws:iam::<account>:role/<path and name>; for a session of an assumed role, its role.",
                )
        return value

    @field_validator("api_from")
    @classmethod
    def _not_everyone(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for cidr in value:
            if int(cidr.partition("/")[2]) < 8:
                raise refuse(
                    f'"{cidr}" opens the Kubernetes API to the whole internet.',
                    "List the networks of your offices, VPN or CI runners, /8 or smaller, or leave the list empty.",
                )
        return value


class SystemNodes(Model):
    """The node group for everything but jobs: add-ons, the operator, Slurm's daemons."""

    instances: tuple[str, ...] = Field(
        default=("m7i.xlarge",),
        min_length=1,
        max_length=20,
        description="EC2 instance types, any of which may be used.",
    )
    nodes: Range = Field(
        default=Range(min=2, max=3), description="How many there are; two, so that one may fail or be replaced."
    )
    disk_gib: int = Field(default=100, alias="diskGiB", ge=20, le=16384, description="Root volume (gp3) in GiB.")

    @field_validator("instances")
    @classmethod
    def _known(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            check_instance(name)
            if instance_types()[name].gpus:
                raise refuse(
                    f"{name} has GPUs, which nothing on these nodes uses.", "Use a type without, such as m7i.xlarge."
                )
        return value

    @field_validator("nodes")
    @classmethod
    def _some(cls, value: Range) -> Range:
        if value.min < 1:
            raise refuse("min is 0.", "The operator and Slurm's daemons need at least one node.")
        return value


class Cluster(Model):
    """The EKS cluster."""

    name: str = Field(
        default="",
        max_length=60,
        pattern=r"^([A-Za-z0-9][A-Za-z0-9_-]*)?$",
        description="Name of the cluster; changing it makes another cluster. Default: slipway-<stack>.",
    )
    version: QuotedText = Field(
        default="1.36", description="Kubernetes version, in quotes. Raise it by one step at a time, as EKS does."
    )
    deletion_protection: bool = Field(
        default=True, description="EKS refuses to delete the cluster: set false and run `up` before `destroy`."
    )
    log_retention_days: Literal[1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827] = Field(
        default=365, description="Days that logs of the control plane and the network are kept (CloudWatch's steps)."
    )
    system_nodes: SystemNodes = Field(default=SystemNodes(), description="Nodes for everything but jobs.")

    @field_validator("version")
    @classmethod
    def _supported(cls, value: str) -> str:
        known = addon_versions()
        if value not in known:
            raise refuse(
                f'Kubernetes "{value}" is not supported.',
                f"Use one of {', '.join(known)}: those are in EKS's standard support and tested.",
            )
        return value


class Images(Model):
    """Where the container images come from."""

    registry: str | None = Field(
        default=None,
        pattern=r"^[a-z0-9.-]+(:\d+)?(/[a-z0-9._/-]+)?$",
        description="Registry (and path) that holds slipway/<image>:<tag>. Default: the account's ECR in the stack's "
        "region, with repositories made by this stack.",
    )
    overrides: dict[str, str] = Field(
        default={},
        description=f"Full image references by name, for example to use the public Slinky images. "
        f"Names: {', '.join(IMAGES)}.",
    )
    manage_repositories: bool = Field(
        default=True,
        description="Make the ECR repositories. False where another stack of the same account and region makes them.",
    )
    delete_with_stack: bool = Field(
        default=False, description="`destroy` removes the repositories even if they hold images."
    )

    @field_validator("overrides")
    @classmethod
    def _references(cls, value: dict[str, str]) -> dict[str, str]:
        for name, reference in value.items():
            if name not in IMAGES:
                raise refuse(f'there is no image "{name}".', f"Images: {', '.join(IMAGES)}.")
            if not re.fullmatch(r"[a-z0-9.-]+(:\d+)?(/[a-z0-9._-]+)+(:[\w.-]+|@sha256:[0-9a-f]{64})", reference):
                raise refuse(
                    f'"{reference}" is no full image reference.',
                    "Write registry/repository:tag or registry/repository@sha256:<digest>.",
                )
        return value


class Daemon(Model):
    """How many pods of a service there are and what each gets."""

    replicas: int = Field(ge=1, le=10, description="Number of pods.")
    resources: Resources = Field(description="What each pod gets.")


class SlurmController(Model):
    """slurmctld: one pod whose state lives on a volume."""

    storage_gib: int = Field(
        default=8, alias="storageGiB", ge=1, le=1024, description="Volume (gp3) for the state of jobs, in GiB."
    )
    resources: Resources = Field(default=Resources(cpu=1, memory="4Gi"), description="What the pod gets.")


OWNED_BY_SLIPWAY = frozenset(
    {
        "clustername", "slurmctldhost", "slurmctldport", "slurmuser", "slurmduser", "slurmdport", "authtype",
        "authinfo", "authalttypes", "authaltparameters", "credtype", "statesavelocation", "slurmdspooldir",
        "nodename", "nodeset", "partitionname", "include", "proctracktype", "jobacctgathertype", "taskplugin",
    }
)  # fmt: skip


class Slurm(Model):
    """The Slurm cluster and the operator that runs it."""

    cluster_name: str = Field(
        default="",
        pattern=r"^([a-z][a-z0-9_-]{0,39})?$",
        description="Slurm's ClusterName, at most 40 small letters, digits, - and _; fixed for life. "
        "Default: the cluster's name.",
    )
    cgroups: bool = Field(
        default=True,
        description="Confine jobs to their CPUs, memory and GPUs by cgroup v2. Without it a job may take what is not "
        "its own; for nodes that have no cgroup v2.",
    )
    conf: dict[str, str | int] = Field(
        default={}, description="More parameters of slurm.conf, as in {SchedulerParameters: bf_continue}."
    )
    controller: SlurmController = Field(default=SlurmController(), description="slurmctld.")
    login: Daemon = Field(
        default=Daemon(replicas=2, resources=Resources(cpu=2, memory="4Gi")), description="Login pods (sshd, sackd)."
    )
    rest_api: Daemon = Field(
        default=Daemon(replicas=2, resources=Resources(cpu=0.5, memory="512Mi")), description="slurmrestd."
    )
    operator: Daemon = Field(
        default=Daemon(replicas=2, resources=Resources(cpu=0.25, memory="512Mi")),
        description="The operator; one leads, the others wait.",
    )

    @field_validator("conf")
    @classmethod
    def _free_parameters(cls, value: dict[str, str | int]) -> dict[str, str | int]:
        for name, setting in value.items():
            if name.lower() in OWNED_BY_SLIPWAY:
                raise refuse(f"{name} is set by slipway.", "Remove it here; its value follows from the other keys.")
            if not name.isalnum() or "\n" in str(setting):
                raise refuse(
                    f'"{name}" is no parameter of slurm.conf on one line.', "Write Name: value, one line each."
                )
        return value


class Nfs(Model):
    """An NFS export, such as an EFS mount target."""

    server: str = Field(min_length=1, description="Host name or address of the server.")
    path: str = Field(default="/", pattern=r"^/", description="Exported path.")


class Home(Model):
    """What is mounted at /home in login and worker pods: exactly one of these."""

    nfs: Nfs | None = Field(default=None, description="An NFS export.")
    claim: str | None = Field(
        default=None,
        pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$",
        description="A PersistentVolumeClaim (ReadWriteMany) in namespace slurm.",
    )
    host_path: str | None = Field(
        default=None, pattern=r"^/[^/]", description="A directory that every node has and all share."
    )
    ephemeral: bool = Field(
        default=False, description="Nothing shared: each pod has an empty /home of its own, gone when the pod goes."
    )

    @model_validator(mode="after")
    def _one(self) -> Self:
        kinds = [self.nfs, self.claim, self.host_path, self.ephemeral or None]
        if sum(kind is not None for kind in kinds) != 1:
            raise refuse("exactly one kind of home is needed.", "Set one of nfs, claim, hostPath or ephemeral: true.")
        return self


def _public_key(value: str) -> str:
    if not re.fullmatch(r"(ssh-ed25519|ssh-rsa|ecdsa-sha2-\S+|sk-\S+) [A-Za-z0-9+/=]+( .*)?", value):
        raise refuse("this is no SSH public key.", "Paste the line of the .pub file: ssh-ed25519 AAAA… comment.")
    return value


class User(Model):
    """An account on login pods and nodes, where no directory provides them."""

    name: str = Field(
        pattern=r"^[a-z_][a-z0-9_-]{0,31}$", description="Login name: at most 32 small letters, digits, - and _."
    )
    uid: int = Field(ge=1000, le=60000, description="User id, 1000 to 60000; keep it for life, files belong to it.")
    gid: int | None = Field(default=None, ge=1000, le=60000, description="Group id. Default: the uid.")
    shell: str = Field(default="/bin/bash", pattern=r"^/", description="Login shell.")
    ssh_keys: tuple[Annotated[str, AfterValidator(_public_key)], ...] = Field(
        default=(), description="SSH public keys that may log in."
    )


class Settings(Model):
    """A stack's config, all `slipway:` keys."""

    network: Network = Field(default=Network(), description="The VPC.")
    access: Access = Field(default=Access(), description="Who may administer the cluster, and from where.")
    cluster: Cluster = Field(default=Cluster(), description="The EKS cluster.")
    images: Images = Field(default=Images(), description="Where the container images come from.")
    slurm: Slurm = Field(default=Slurm(), description="The Slurm cluster and its operator.")
    home: Home = Field(description="What is mounted at /home in login and worker pods.")
    users: tuple[User, ...] = Field(default=(), description="Accounts, where no directory provides them.")
    partitions: tuple[Partition, ...] = Field(min_length=1, description="Slurm's partitions, each with its nodes.")
    tags: dict[str, str] = Field(
        default={}, max_length=40, description="More tags for everything in AWS, for cost reports for example."
    )

    @field_validator("tags")
    @classmethod
    def _tags(cls, value: dict[str, str]) -> dict[str, str]:
        for key, text in value.items():
            if key.lower().startswith(("aws:", "slipway:")) or not 1 <= len(key) <= 128 or len(text) > 256:
                raise refuse(
                    f'"{key}" cannot be used as a tag.',
                    "Keys have 1 to 128 letters and do not begin with aws: or slipway:, values have at most 256.",
                )
        return value
