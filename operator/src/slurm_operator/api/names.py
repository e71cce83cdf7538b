"""Every label, annotation and object name that the operator gives or reads, in one place.

They are those of the Go slurm-operator, so that resources, tools and habits work with either.
Names of our own end in `slipway.dev/`.
"""

from __future__ import annotations

from typing import Final

GROUP: Final = "slinky.slurm.net"
VERSION: Final = "v1beta1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
OWN_GROUP: Final = "slipway.dev"
OWN_VERSION: Final = "v1alpha1"

# Labels
LABEL_NAME: Final = "app.kubernetes.io/name"
LABEL_INSTANCE: Final = "app.kubernetes.io/instance"
LABEL_COMPONENT: Final = "app.kubernetes.io/component"
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
LABEL_CLUSTER: Final = "slinky.slurm.net/cluster"
LABEL_POD_NAME: Final = "nodeset.slinky.slurm.net/pod-name"
LABEL_POD_INDEX: Final = "nodeset.slinky.slurm.net/pod-index"
LABEL_POD_HOSTNAME: Final = "nodeset.slinky.slurm.net/pod-hostname"
LABEL_POD_PROTECT: Final = "nodeset.slinky.slurm.net/pod-protect"
LABEL_SCALING_MODE: Final = "nodeset.slinky.slurm.net/scaling-mode"
LABEL_REVISION: Final = "controller-revision-hash"

# Annotations on worker pods
ANNOTATION_POD_CORDON: Final = "nodeset.slinky.slurm.net/pod-cordon"
ANNOTATION_POD_DELETION_COST: Final = "nodeset.slinky.slurm.net/pod-deletion-cost"
ANNOTATION_POD_DEADLINE: Final = "nodeset.slinky.slurm.net/pod-deadline"
ANNOTATION_MACHINE: Final = "slipway.dev/kubernetes-node"  # the only node that the pod may run on
# Annotations on Kubernetes nodes, written by people and other tools
ANNOTATION_TOPOLOGY: Final = "topology.slinky.slurm.net/spec"
ANNOTATION_FEATURES: Final = "features.slinky.slurm.net/spec"
ANNOTATION_HOSTNAME: Final = "nodeset.slinky.slurm.net/hostname-override"
ANNOTATION_NODE_CORDON_REASON: Final = "nodeset.slinky.slurm.net/node-cordon-reason"
# On Kubernetes resources of a cluster
ANNOTATION_CONFIG_DIGEST: Final = "slipway.dev/config-digest"
ANNOTATION_CONFIG_PROVEN: Final = "slipway.dev/config-proven"
ANNOTATION_CONFIG_CHECK: Final = "slipway.dev/config-check"
LABEL_ACTIVE: Final = "controller.slinky.slurm.net/active"
LABEL_SCRAPED: Final = "slipway.dev/metrics"
# Annotations on pods of daemons, and on Secrets with tokens: hashes of what they were made from
ANNOTATION_CONFIG_HASH: Final = "slinky.slurm.net/slurm-config-hash"
ANNOTATION_SLURM_KEY_HASH: Final = "slinky.slurm.net/slurm-key-hash"
ANNOTATION_JWT_KEY_HASH: Final = "slinky.slurm.net/jwt-key-hash"
ANNOTATION_SLURMDBD_HASH: Final = "slinky.slurm.net/slurmdbd-conf-hash"
ANNOTATION_SSHD_HASH: Final = "slinky.slurm.net/sshd-conf-hash"
ANNOTATION_SSSD_HASH: Final = "slinky.slurm.net/sssd-conf-hash"
# Annotation on the ConfigMap with slurm.conf: the host of the slurmdbd that slurmctld knows
ANNOTATION_ACCOUNTING: Final = "slipway.dev/accounting-host"

# Ours: a resource waits for its workers' jobs before it goes; the annotation "true" on it ends the waiting
FINALIZER: Final = "slipway.dev/drain"
FINALIZER_RESERVATION: Final = "nodeset.slinky.slurm.net/reservation"  # of the Go operator, which may have left it
ANNOTATION_SKIP_DRAIN: Final = "slipway.dev/skip-drain"
ANNOTATION_CORDONED_FOR: Final = "slipway.dev/cordoned-for"
"""On Kubernetes nodes that the operator cordoned: `namespace/nodeset/slurm-node` whose drain is the cause."""

TAINT_WORKER: Final = "nodeset.slinky.slurm.net/worker"

# Values of app.kubernetes.io/name
APP_CONTROLLER: Final = "slurmctld"
APP_CONFIG_CHECK: Final = "slurm-config-check"
APP_WORKER: Final = "slurmd"
APP_LOGIN: Final = "login"
APP_RESTAPI: Final = "slurmrestd"
APP_ACCOUNTING: Final = "slurmdbd"

MANAGED_BY: Final = "slurm-operator"

# What the daemons agree on: uid and gid of SlurmUser, ports, paths (interface of the public Slinky images)
SLURM_USER: Final = "slurm"
SLURM_UID: Final = 401
NOBODY_UID: Final = 65534
SLURMCTLD_PORT: Final = 6817
SLURMD_PORT: Final = 6818
SLURMDBD_PORT: Final = 6819
SLURMRESTD_PORT: Final = 6820
SSH_PORT: Final = 22
ETC_SLURM: Final = "/etc/slurm"
LOG_DIRECTORY: Final = "/var/log/slurm"
SPOOL_SLURMCTLD: Final = "/var/spool/slurmctld"
SPOOL_SLURMD: Final = "/var/spool/slurmd"
RUN_SLURM: Final = "/run/slurm"
SLURM_KEY: Final = "slurm.key"
SLURM_JWKS: Final = "slurm.jwks"
JWT_KEY: Final = "jwt.key"
JWKS_FILE: Final = "jwks.json"


def controller_object(controller: str) -> str:
    """Name of the StatefulSet, the Service and the PDB of a Controller."""
    return f"{controller}-controller"


def controller_internal_service(controller: str) -> str:
    """Headless Service that gives each slurmctld pod a stable name."""
    return f"{controller}-controller-internal"


def controller_pod(controller: str, index: int = 0) -> str:
    return f"{controller_object(controller)}-{index}"


def controller_config(controller: str) -> str:
    return f"{controller}-config"


def slurm_key_secret(controller: str) -> str:
    """Secret that the operator makes when `slurmKeyRef` is not given."""
    return f"{controller}-auth-slurm"


def jwt_key_secret(controller: str) -> str:
    """Secret that the operator makes when `jwtKeyRef` is not given."""
    return f"{controller}-auth-jwt"


def keys_secret(controller: str) -> str:
    """Secret with the keys as the daemons read them: what the two above hold, and during a rotation the older ones."""
    return f"{controller}-keys"


def workers_service(controller: str) -> str:
    """Headless Service shared by all workers of a cluster; also the pods' subdomain."""
    return f"slurm-workers-{controller}"


def workers_pdb(controller: str) -> str:
    return f"slurm-workers-pdb-{controller}"


def restapi_object(restapi: str) -> str:
    return f"{restapi}-restapi"


def accounting_object(accounting: str) -> str:
    return f"{accounting}-accounting"


def login_host_keys(loginset: str) -> str:
    return f"{loginset}-ssh-host-keys"


def login_ssh_config(loginset: str) -> str:
    return f"{loginset}-ssh-config"


def worker_host_keys(nodeset: str) -> str:
    """Secret with the host keys that the workers of a NodeSet share."""
    return f"{nodeset}-worker-ssh-host-keys"


def worker_ssh_config(nodeset: str) -> str:
    return f"{nodeset}-worker-ssh-config"


def token_secret(token: str, user: str) -> str:
    return f"{token}-jwt-{user}"


def maintenance_reservation(nodeset: str) -> str:
    """Slurm reservation of updateStrategy ScheduledUpdate."""
    return f"SlurmOperatorMaint-{nodeset}"
