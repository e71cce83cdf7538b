"""Slurm itself: its queue survives, its jobs end, somebody counts them, and its controllers are not alone."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pulumi_policy import Severity

from .busy_pods import chart_name
from .pods import RELEASE
from .rule import Finding, Parameter, Resource, Rule
from .values import UNKNOWN, at, is_false, is_true, mapping, number

MASTERS = {"root", "admin", "master", "mysql", "mariadb", "rdsadmin", "administrator"}
TIME_LIMIT = re.compile(r"(?i)(?:^|\s)MaxTime=(\S+)")


def of_chart(resource: Resource, chart: str) -> bool:
    """Whether a resource is a release of one of our charts."""
    return chart_name(resource.inputs.get("chart")) == chart


def check_state(resource: Resource) -> Iterator[str]:
    """Whether slurmctld's state outlives its pod."""
    controller = at(resource.inputs, "values", "controller")
    if of_chart(resource, "slurm") and is_false(at(controller, "persistence", "enabled")):
        yield f"{resource.title} sets controller.persistence.enabled: false."


def check_accounting(resource: Resource) -> Iterator[str]:
    """Whether slurmdbd is there: made by the chart, or outside."""
    accounting = at(resource.inputs, "values", "accounting")
    if not of_chart(resource, "slurm") or accounting is UNKNOWN:
        return
    if not (is_true(at(accounting, "enabled")) or is_true(at(accounting, "external"))):
        yield f"{resource.title} has no accounting."


def check_database_user(resource: Resource) -> Iterator[Finding | str]:
    """The user that slurmdbd is, and whether it checks whom it talks to."""
    accounting = at(resource.inputs, "values", "accounting")
    if not of_chart(resource, "slurm") or not is_true(at(accounting, "enabled")):
        return
    user = at(accounting, "storageConfig", "username")
    if isinstance(user, str) and user.lower() in MASTERS:
        yield f"{resource.title} lets slurmdbd log in as {user}."
    if not at(accounting, "storageCA") and at(accounting, "storageCA") is not UNKNOWN:
        yield Finding(
            f"{resource.title} sets no accounting.storageCA.",
            "slurmdbd then sends its password without checking who answers, or without encryption at all.",
            "set accounting.storageCA to the ConfigMap with the database's certificate authority.",
        )


def check_time_limits(resource: Resource) -> Iterator[str]:
    """MaxTime of the partitions that the chart makes, which is unlimited where it is not set."""
    if not of_chart(resource, "slurm"):
        return
    for name, nodeset in mapping(at(resource.inputs, "values", "nodesets")).items():
        partition = at(nodeset, "partition")
        line, more = at(partition, "config"), at(partition, "configMap")
        if not is_true(at(partition, "enabled")) or UNKNOWN in (line, more):
            continue
        found = TIME_LIMIT.search(line) if isinstance(line, str) else None
        limit = found[1] if found else mapping(more).get("MaxTime")
        if limit is None or str(limit).upper() in ("INFINITE", "UNLIMITED", "-1"):
            yield f"{resource.title}: partition {name} has no time limit."


def check_replicas(resource: Resource) -> Iterator[str]:
    """Replicas of the operator, of which one leads and the others wait."""
    least = resource.parameters["minimum"]
    replicas = at(resource.inputs, "values", "replicas")
    if of_chart(resource, "slurm-operator") and replicas is not UNKNOWN and (number(replicas) or 1) < least:
        yield f"{resource.title} has {number(replicas) or 1:g} replica of the operator, fewer than {least:g}."


RULES = (
    Rule(
        id="slurm-state-persistent",
        severity=Severity.CRITICAL,
        kinds=re.escape(RELEASE),
        summary="slurmctld's state is on a volume.",
        why="The queue, job numbers, reservations and drained nodes are in StateSaveLocation and nowhere else. "
        "https://slurm.schedmd.com/slurm.conf.html#OPT_StateSaveLocation",
        consequence="When the pod of slurmctld moves, all waiting jobs are gone and running ones are "
        "killed as unknown.",
        remediation="Leave controller.persistence.enabled at its default, true.",
        example=(RELEASE, {"chart": "charts/slurm", "values": {"controller": {"persistence": {"enabled": False}}}}),
        check=check_state,
    ),
    Rule(
        id="slurm-accounting-on",
        severity=Severity.MEDIUM,
        kinds=re.escape(RELEASE),
        summary="Slurm keeps accounts of its jobs.",
        why="Fair share, limits per group, sacct and every report of use need slurmdbd. What ran "
        "before it was switched "
        "on is lost. Stacks to try things out may do without; they say so in their policy config. "
        "https://slurm.schedmd.com/accounting.html",
        consequence="Nobody can say who used the cluster, and one user can take all of it.",
        remediation="Set accounting.enabled: true and storageConfig to a database.",
        example=(RELEASE, {"chart": "charts/slurm", "values": {"clusterName": "prod"}}),
        check=check_accounting,
    ),
    Rule(
        id="slurm-database-user-is-not-master",
        severity=Severity.HIGH,
        kinds=re.escape(RELEASE),
        summary="slurmdbd logs in as a user of its own, by TLS with a checked certificate.",
        why="slurmdbd needs rights on one database. Its password lies in a secret that Slurm's pods read.",
        consequence="Whoever reads slurmdbd's password is master of the database server, backups and "
        "other databases too.",
        remediation="Make a user with rights on slurm_acct_db only, and name it in storageConfig.username.",
        example=(
            RELEASE,
            {
                "chart": "charts/slurm",
                "values": {
                    "accounting": {
                        "enabled": True,
                        "storageConfig": {"host": "db.internal", "username": "admin"},
                        "storageCA": {"configMap": "rds-ca", "key": "global-bundle.pem"},
                    }
                },
            },
        ),
        check=check_database_user,
    ),
    Rule(
        id="partition-has-time-limit",
        severity=Severity.MEDIUM,
        kinds=re.escape(RELEASE),
        summary="Every partition has a time limit.",
        why="Slurm's default is no limit. A job that hangs then holds its nodes until somebody looks. "
        "https://slurm.schedmd.com/slurm.conf.html#OPT_MaxTime",
        consequence="A hanging job keeps its GPU nodes running, and paid for, over a weekend or a month.",
        remediation="Set MaxTime in the partition's config, such as MaxTime=2-00:00:00.",
        example=(
            RELEASE,
            {
                "chart": "charts/slurm",
                "values": {"nodesets": {"h100": {"partition": {"enabled": True, "config": "State=UP"}}}},
            },
        ),
        check=check_time_limits,
    ),
    Rule(
        id="operator-has-replicas",
        severity=Severity.MEDIUM,
        kinds=re.escape(RELEASE),
        summary="The operator has a second replica that takes over.",
        why="While the operator is away nothing is scaled, drained or mended; running jobs go on. A "
        "second replica takes "
        "over within seconds instead of the minutes that a new node needs.",
        consequence="During the drain of its node no worker is drained in Slurm first, and jobs are lost.",
        remediation="Set replicas: 2.",
        example=(RELEASE, {"chart": "charts/slurm-operator", "values": {"replicas": 1}}),
        check=check_replicas,
        parameters={"minimum": Parameter(2, "Smallest number of replicas.")},
    ),
)
