"""Kubernetes objects of an Accounting: slurmdbd, its configuration and its Service."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from slurm_operator.api.common import KeySelector
from slurm_operator.api.load import InvalidSpec
from slurm_operator.api.names import (
    APP_ACCOUNTING,
    ETC_SLURM,
    JWKS_FILE,
    JWT_KEY,
    SLURM_JWKS,
    SLURM_KEY,
    SLURM_USER,
    SLURMDBD_PORT,
    accounting_object,
    keys_secret,
)
from slurm_operator.api.others import AccountingSpec
from slurm_operator.desired.conf_syntax import BadConf, Setting, check_names, parse
from slurm_operator.desired.parts import (
    LOCKED_DOWN,
    TMP_MOUNT,
    Map,
    container,
    dns,
    key_projection,
    labels,
    meta,
    pod_template,
    selector,
    service,
    slurm_pod_security,
    tcp_probe,
)
from slurm_operator.desired.secrets import secret
from slurm_operator.kube.resources import Object

Keys = list[tuple[KeySelector, str]]
"""Keys of Secrets, and the names of their files in /etc/slurm."""

SLURMDBD_CONF = "slurmdbd.conf"
_SOURCE = "/mnt/slurm"

# slurmdbd takes a slurmdbd.conf only if it belongs to SlurmUser and nobody else can read it (mode 600); files of a
# volume belong to root.
COPY_CONF = f"umask 077; cp -L {_SOURCE}/* {ETC_SLURM}/; chmod 600 {ETC_SLURM}/*"

# Parameters of slurmdbd.conf: those that slurmdbd 26.05 itself knows.
KNOWN: Final = frozenset(
    """
    AllResourcesAbsolute AllowNoDefAcct ArchiveDir ArchiveEvents ArchiveJobEnv ArchiveJobScript ArchiveJobs ArchiveResvs
    ArchiveScript ArchiveSteps ArchiveSuspend ArchiveTXN ArchiveUsage AuthAltParameters AuthAltTypes AuthInfo AuthType
    CommitDelay CommunicationParameters DbdAddr DbdBackupHost DbdHost DbdPort DebugFlags DebugLevel DebugLevelSyslog
    DefaultQOS DisableArchiveCommands DisableCoordDBD DisableRollups HashPlugin LogFile LogTimeFormat MaxPurgeLimit
    MaxQueryTimeRange MessageTimeout Parameters PidFile PluginDir PrivateData PurgeEventAfter PurgeEventMonths
    PurgeJobAfter PurgeJobEnvAfter PurgeJobMonths PurgeJobScriptAfter PurgeResvAfter PurgeStepAfter PurgeStepMonths
    PurgeSuspendAfter PurgeSuspendMonths PurgeTXNAfter PurgeTXNMonths PurgeUsageAfter PurgeUsageMonths SlurmUser
    StorageBackupHost StorageHost StorageLoc StorageParameters StoragePass StoragePassScript StoragePort StorageType
    StorageUser TCPTimeout TLSParameters TLSType TrackSlurmctldDown TrackWCKey
    """.lower().split()
)
# What the pod, its Service and storageConfig are built around.
_FIXED = frozenset(
    (
        "dbdhost", "dbdport", "slurmuser", "authtype", "authalttypes", "storagetype", "storagehost", "storageport",
        "storageuser", "storagepass", "storageloc",
    )
)  # fmt: skip
_JOINED = frozenset(("authaltparameters", "authinfo"))


def _own(name: str, cluster: str) -> dict[str, str]:
    return labels(APP_ACCOUNTING, name, cluster, "accounting")


def slurmdbd_conf(name: str, spec: AccountingSpec, password: str) -> str:
    """The text of slurmdbd.conf. Raises InvalidSpec or BadConf, naming the field at fault."""
    storage = spec.storage_config
    for field, value in (("host", storage.host), ("username", storage.username), ("database", storage.database)):
        if not value:
            raise InvalidSpec(f"spec.storageConfig.{field}: missing; slurmdbd needs a MySQL or MariaDB server")
    jwks = f",jwks={ETC_SLURM}/{JWKS_FILE}" if spec.jwks_key_ref else ""
    settings = [
        Setting("DbdHost", f"{accounting_object(name)}-0"),
        Setting("DbdPort", str(SLURMDBD_PORT)),
        Setting("SlurmUser", SLURM_USER),
        Setting("PidFile", "/run/slurmdbd/slurmdbd.pid"),
        Setting("AuthType", "auth/slurm"),
        # Users that only LDAP or the login pods know may use sacctmgr, too.
        Setting("AuthInfo", "use_client_ids"),
        Setting("AuthAltTypes", "auth/jwt"),
        Setting("AuthAltParameters", f"jwt_key={ETC_SLURM}/{JWT_KEY}{jwks}"),
        Setting("StorageType", "accounting_storage/mysql"),
        Setting("StorageHost", quoted(storage.host, "spec.storageConfig.host")),
        Setting("StoragePort", str(storage.port)),
        Setting("StorageLoc", quoted(storage.database, "spec.storageConfig.database")),
        Setting("StorageUser", quoted(storage.username, "spec.storageConfig.username")),
    ]
    if password:
        settings.append(Setting("StoragePass", quoted(password, "spec.storageConfig.passwordKeyRef")))
    given = _given(spec.extra_conf)
    lines = [str(_joined(setting, given.pop(setting.name, None))) for setting in settings]
    return "\n".join([*lines, *map(str, given.values()), ""])


def quoted(value: str, where: str) -> str:
    """A value as Slurm's parser reads it back: `#` begins a comment and a backslash escapes, also inside quotes."""
    if any(ord(letter) < 32 for letter in value):
        raise InvalidSpec(f"{where}: a line break or control character cannot be written to slurmdbd.conf")
    text = re.sub(r"([\\#])", r"\\\1", value)
    if '"' not in value:
        return f'"{text}"' if re.search(r"[\s=,'\\#]", value) else text
    if re.search(r"\s", value) or value.startswith('"'):
        raise InvalidSpec(f'{where}: a `"` at the beginning or beside a blank cannot be written to slurmdbd.conf')
    return text


def _given(text: str) -> dict[str, Setting]:
    """The user's settings by lower-case name. Raises BadConf for what slurmdbd would not take."""
    where = "spec.extraConf"
    given: dict[str, Setting] = {}
    for line in parse(text, where):
        if line.raw:
            raise BadConf(f"{where}, line {line.number}: Include is not for slurmdbd.conf")
        check_names(line.settings, KNOWN, f"{where}, line {line.number}", "parameter of slurmdbd.conf")
        for setting in line.settings:
            if setting.name in _FIXED:
                hint = "; use spec.storageConfig" if setting.name.startswith("storage") else ""
                raise BadConf(f"{where}, line {line.number}: {setting.key} is set by the operator{hint}")
            given[setting.name] = setting
    return given


def _joined(ours: Setting, theirs: Setting | None) -> Setting:
    """The user's setting in place of ours, or both lists where ours is needed."""
    if theirs is None or ours.name not in _JOINED:
        return theirs or ours
    entries = ours.value.split(",")
    more = [entry for entry in theirs.value.strip('"').split(",") if entry and entry not in entries]
    return Setting(ours.key, ",".join(entries + more))


def conf_secret(owner: Object, cluster: str, text: str) -> Object:
    """slurmdbd.conf holds the password, so it is a Secret; unlike keys it goes with its Accounting."""
    name, namespace = owner["metadata"]["name"], owner["metadata"]["namespace"]
    made = secret(accounting_object(name), namespace, cluster, {SLURMDBD_CONF: text.encode()}, immutable=False)
    made["metadata"] = meta(accounting_object(name), namespace, _own(name, cluster), owner=owner)
    return made


def accounting_service(owner: Object, spec: AccountingSpec, cluster: str) -> Object:
    name, namespace = owner["metadata"]["name"], owner["metadata"]["namespace"]
    return service(
        meta(accounting_object(name), namespace, _own(name, cluster), owner=owner),
        {"type": "ClusterIP", "selector": selector(APP_ACCOUNTING, name)},
        spec.service,
        port_name="slurmdbd",
        port=SLURMDBD_PORT,
    )


def stateful_set(
    owner: Object,
    spec: AccountingSpec,
    cluster: str,
    keys: Keys,
    hashes: Mapping[str, str],
) -> Object:
    """slurmdbd: one pod, which may be evicted and restarted at any time, since slurmctld keeps what it could not send.

    `keys` are (Secret key, file name); with other `hashes` (annotation -> hash of a file) the pod is replaced.
    """
    name, namespace = owner["metadata"]["name"], owner["metadata"]["namespace"]
    pod = _pod(name, spec, [key_projection(key, path) for key, path in keys])
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": meta(accounting_object(name), namespace, _own(name, cluster), owner=owner),
        "spec": {
            "replicas": 1,
            "serviceName": accounting_object(name),
            "podManagementPolicy": "Parallel",
            "revisionHistoryLimit": 1,
            "selector": {"matchLabels": selector(APP_ACCOUNTING, name)},
            "template": pod_template(_own(name, cluster), pod, spec.template, dict(hashes)),
        },
    }


def keys_of(slurm_key: KeySelector | None, jwt_key: KeySelector | None, cluster: str) -> Keys:
    """Keys that slurmdbd needs, and the names of their files.

    One that is None is the cluster's: from the Secret that follows a rotation and holds old and new key meanwhile.
    """

    def of_cluster(*files: str) -> Keys:
        return [(KeySelector(name=keys_secret(cluster), key=file), file) for file in files]

    slurm = [(slurm_key, SLURM_KEY)] if slurm_key else of_cluster(SLURM_JWKS, SLURM_KEY)
    return [*slurm, *([(jwt_key, JWT_KEY)] if jwt_key else of_cluster(JWT_KEY))]


def _pod(name: str, spec: AccountingSpec, keys: list[Map]) -> Map:
    conf = {"secret": {"name": accounting_object(name), "items": [{"key": SLURMDBD_CONF, "path": SLURMDBD_CONF}]}}
    sources = [conf, *keys]
    if spec.jwks_key_ref:
        reference = spec.jwks_key_ref
        sources.append({"configMap": {"name": reference.name, "items": [{"key": reference.key, "path": JWKS_FILE}]}})
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        # A roll-up of the hour's usage is finished before the end.
        "terminationGracePeriodSeconds": 60,
        "securityContext": slurm_pod_security(),
        "dnsConfig": dns(),
        "initContainers": [_init(spec)],
        "containers": [_slurmdbd(spec)],
        "volumes": [
            {"name": "etc-slurm", "emptyDir": {"medium": "Memory"}},
            {"name": "conf", "projected": {"defaultMode": 0o440, "sources": sources}},
            {"name": "run", "emptyDir": {"medium": "Memory"}},
            {"name": "tmp", "emptyDir": {}},
        ],
    }


def _init(spec: AccountingSpec) -> Map:
    base: Map = {
        "name": "initconf",
        "command": ["/bin/sh", "-ec", COPY_CONF],
        "securityContext": LOCKED_DOWN,
        "volumeMounts": [
            {"name": "etc-slurm", "mountPath": ETC_SLURM},
            {"name": "conf", "mountPath": _SOURCE, "readOnly": True},
        ],
    }
    same = {field: spec.slurmdbd[field] for field in ("image", "imagePullPolicy") if spec.slurmdbd.get(field)}
    return container(base | same, {}, "spec.slurmdbd")


def _slurmdbd(spec: AccountingSpec) -> Map:
    base = {
        "name": "slurmdbd",
        "ports": [{"name": "slurmdbd", "containerPort": SLURMDBD_PORT, "protocol": "TCP"}],
        # slurmdbd opens its port when it has its database, and waits for that by itself: to kill it would only add
        # the kubelet's growing delays.
        "readinessProbe": tcp_probe(SLURMDBD_PORT, period=3),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": LOCKED_DOWN,
        "volumeMounts": [
            {"name": "etc-slurm", "mountPath": ETC_SLURM, "readOnly": True},
            {"name": "run", "mountPath": "/run"},
            TMP_MOUNT,
        ],
    }
    return container(base, spec.slurmdbd, "spec.slurmdbd")


_TROUBLE = re.compile(r"(?:fatal|error): (.+)")
_NOISE = re.compile(r"^(?:Database settings not recommended|.*trying again in \d+ seconds)", re.IGNORECASE)


def trouble(log: str) -> str:
    """The last error that slurmdbd tells of in its log, in its own words; "" if there is none."""
    found = [match[1].strip() for line in log.splitlines() if (match := _TROUBLE.search(line))]
    return next((text for text in reversed(found) if not _NOISE.match(text)), "")
