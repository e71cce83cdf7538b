"""slurm.conf and cgroup.conf of a cluster: pure text from a Controller, its NodeSets and what they refer to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from slurm_operator.api.controller import ControllerSpec
from slurm_operator.api.names import (
    ETC_SLURM,
    JWKS_FILE,
    JWT_KEY,
    SLURM_USER,
    SLURMCTLD_PORT,
    SLURMD_PORT,
    SLURMDBD_PORT,
    SPOOL_SLURMCTLD,
    SPOOL_SLURMD,
    controller_internal_service,
    controller_object,
    controller_pod,
)
from slurm_operator.desired import slurm_keys
from slurm_operator.desired.conf_syntax import BadConf, Line, Setting, check, check_partition, parse

CGROUP_CONF = "cgroup.conf"
SLURM_CONF = "slurm.conf"
RESERVED_FILES = frozenset({SLURM_CONF, "slurmdbd.conf", "slurm.key", JWT_KEY, JWKS_FILE})

# Workers have no privileges by default, and without them a container cannot make cgroups.
DEFAULT_CGROUP_CONF = "CgroupPlugin=disabled\n"

_MIN_NODES = 1024
# What pods, Services and volumes are built around: a different value could only break the cluster.
_FIXED = frozenset(
    (
        "clustername", "slurmuser", "slurmctldhost", "slurmctldaddr", "slurmctldport", "slurmdport", "slurmduser",
        "statesavelocation", "authtype", "credtype", "authalttypes",
    )
)  # fmt: skip


@dataclass(frozen=True)
class Group:
    """A NodeSet as slurm.conf sees it: its name as a Slurm feature, how many workers, its partition if any.

    `created` (RFC 3339) decides which partition is the default where nobody says.
    """

    name: str
    replicas: int
    partition: str | None = None
    created: str = ""


@dataclass(frozen=True)
class ConfInputs:
    """Everything that slurm.conf is made from."""

    name: str
    namespace: str
    spec: ControllerSpec
    groups: Sequence[Group] = ()
    accounting_host: str = ""
    accounting_port: int = SLURMDBD_PORT
    files: Mapping[str, str] = field(default_factory=dict)  # of configFileRefs
    prolog: Sequence[str] = ()
    epilog: Sequence[str] = ()
    prolog_slurmctld: Sequence[str] = ()
    epilog_slurmctld: Sequence[str] = ()


def cluster_name(namespace: str, name: str, spec: ControllerSpec) -> str:
    return spec.cluster_name or f"{namespace}_{name}"


def conf_files(inputs: ConfInputs) -> dict[str, str]:
    """Files of the `<name>-config` ConfigMap. Raises BadConf where slurmctld would refuse them."""
    if reserved := sorted(RESERVED_FILES & set(inputs.files)):
        raise BadConf(f"configFileRefs: {reserved[0]} is made by the operator; use extraConf")
    files = {SLURM_CONF: slurm_conf(inputs)}
    if CGROUP_CONF not in inputs.files:
        files[CGROUP_CONF] = DEFAULT_CGROUP_CONF
    return files


def slurm_conf(inputs: ConfInputs) -> str:
    """The text of slurm.conf. Raises BadConf, naming the field and line at fault."""
    extra = parse(inputs.spec.extra_conf, "spec.extraConf")
    check(extra, "spec.extraConf")
    given = _scalars(extra, inputs)
    sections = _sections(inputs)
    text: list[str] = []
    for title, settings in sections.items():
        kept = [_joined(setting, given) for setting in settings]
        chosen = [setting for setting in kept if setting is not None]
        if chosen:
            text += [f"### {title} ###", *map(str, chosen), ""]
    text += _nodes_and_partitions(inputs.groups, extra)
    if user := list(_user_lines(extra, given)):
        text += ["### EXTRA ###", *user, ""]
    return "\n".join(text)


def uses_cgroup(files: Mapping[str, str]) -> bool:
    """True if the user's cgroup.conf turns cgroups on. Raises BadConf on a line that is no parameter."""
    lines = parse(files.get(CGROUP_CONF, DEFAULT_CGROUP_CONF), CGROUP_CONF)
    plugin = [s.value.lower() for line in lines for s in line.settings if s.name == "cgroupplugin"]
    return not plugin or plugin[-1] != "disabled"


def max_node_count(groups: Iterable[Group]) -> int:
    """Room for twice the nodes there are, in powers of two, so that it seldom changes; at least 1024."""
    wanted = 2 * sum(group.replicas for group in groups)
    return max(_MIN_NODES, 1 << (wanted - 1).bit_length() if wanted > 1 else 1)


def _sections(inputs: ConfInputs) -> dict[str, list[Setting]]:
    spec = inputs.spec
    cgroup = uses_cgroup(inputs.files)
    jwks = f",jwks={ETC_SLURM}/{JWKS_FILE}" if spec.jwks_key_ref else ""
    name = cluster_name(inputs.namespace, inputs.name, spec)
    sections = {
        "GENERAL": [
            Setting("ClusterName", name),
            Setting("SlurmUser", SLURM_USER),
            *_hosts(inputs),
            Setting("StateSaveLocation", f"{SPOOL_SLURMCTLD}/{name}"),
            Setting("SlurmdUser", "root"),
            Setting("SlurmdPort", str(SLURMD_PORT)),
            Setting("SlurmdSpoolDir", SPOOL_SLURMD),
            Setting("SlurmctldPidFile", "/run/slurmctld/slurmctld.pid"),
            Setting("SlurmdPidFile", "/run/slurm/slurmd.pid"),
            Setting("MaxNodeCount", str(max_node_count(inputs.groups))),
            Setting("MailProg", "/bin/true"),
        ],
        "AUTHENTICATION": [
            Setting("AuthType", "auth/slurm"),
            Setting("CredType", "cred/slurm"),
            Setting("AuthInfo", "use_client_ids"),
            Setting("AuthAltTypes", "auth/jwt"),
            Setting("AuthAltParameters", f"jwt_key={ETC_SLURM}/{JWT_KEY}{jwks}"),
        ],
        "BEHAVIOUR": [
            Setting("SlurmctldParameters", "enable_configless,reconfig_on_restart"),
            # A worker whose pod comes back is of use again whatever it was down for; an administrator's drain stays.
            Setting("ReturnToService", "2"),
            Setting("SlurmdTimeout", "120"),
            Setting("MessageTimeout", "30"),
            Setting("SelectType", "select/cons_tres"),
            Setting("SelectTypeParameters", "CR_Core_Memory"),
            Setting("GresTypes", "gpu"),
            Setting("ProctrackType", "proctrack/cgroup" if cgroup else "proctrack/linuxproc"),
            # Binding the task of another user to CPUs needs CAP_SYS_NICE, which a worker has not by default: with
            # task/affinity alone, launches then fail now and then (task_g_set_affinity).
            Setting("TaskPlugin", "task/cgroup,task/affinity" if cgroup else "task/none"),
            Setting("PrologFlags", "Contain" if cgroup else "Alloc"),
            Setting("LaunchParameters", "use_interactive_step"),
        ],
        "ACCOUNTING": _accounting(inputs, cgroup),
        "SCRIPTS": [
            *(Setting("Prolog", script) for script in sorted(inputs.prolog)),
            *(Setting("Epilog", script) for script in sorted(inputs.epilog)),
            *(Setting("PrologSlurmctld", f"{ETC_SLURM}/{script}") for script in sorted(inputs.prolog_slurmctld)),
            *(Setting("EpilogSlurmctld", f"{ETC_SLURM}/{script}") for script in sorted(inputs.epilog_slurmctld)),
        ],
    }
    if spec.metrics.enabled:
        sections["BEHAVIOUR"].append(Setting("MetricsType", "metrics/openmetrics"))
    return sections


def _hosts(inputs: ConfInputs) -> list[Setting]:
    if inputs.spec.external:
        external = inputs.spec.external_config
        return [
            Setting("SlurmctldHost", external.host),
            Setting("SlurmctldPort", str(external.port or SLURMCTLD_PORT)),
        ]
    pod = controller_pod(inputs.name)
    return [
        Setting("SlurmctldHost", f"{pod}({pod}.{controller_internal_service(inputs.name)}.{inputs.namespace})"),
        Setting("SlurmctldPort", str(SLURMCTLD_PORT)),
        # Everyone but slurmctld itself goes through the Service, whose address does not change.
        Setting("SlurmctldAddr", f"{controller_object(inputs.name)}.{inputs.namespace}"),
    ]


def _accounting(inputs: ConfInputs, cgroup: bool) -> list[Setting]:
    if not inputs.accounting_host:
        return []
    return [
        Setting("JobAcctGatherType", "jobacct_gather/cgroup" if cgroup else "jobacct_gather/linux"),
        Setting("AccountingStorageType", "accounting_storage/slurmdbd"),
        Setting("AccountingStorageHost", inputs.accounting_host),
        Setting("AccountingStoragePort", str(inputs.accounting_port)),
    ]


def _scalars(extra: Iterable[Line], inputs: ConfInputs) -> dict[str, Setting]:
    """The user's settings by lower-case name, the last one where it was given twice."""
    fixed = {setting.name: setting for settings in _sections(inputs).values() for setting in settings}
    given: dict[str, Setting] = {}
    for line in extra:
        if line.settings and line.settings[0].name in slurm_keys.LINES:
            name = line.settings[0].name
            if name in _FIXED:
                raise BadConf(f"spec.extraConf, line {line.number}: {line.settings[0].key} is set by the operator")
            continue
        for setting in line.settings:
            ours = fixed.get(setting.name)
            if setting.name in _FIXED and (ours is None or ours.value != setting.value):
                value = f" to {ours.value}" if ours else ""
                raise BadConf(f"spec.extraConf, line {line.number}: {setting.key} is set by the operator{value}")
            given[setting.name] = setting
    return given


def _joined(setting: Setting, given: Mapping[str, Setting]) -> Setting | None:
    """What to write for a setting of the operator: None when the user's own line takes its place."""
    user = given.get(setting.name)
    if user is None or setting.name in _FIXED:
        return setting
    if setting.name not in slurm_keys.LISTS:
        return None
    entries = setting.value.split(",")
    present = {entry.lower() for entry in entries}
    more = [entry for entry in user.value.strip('"').split(",") if entry and entry.lower() not in present]
    return Setting(setting.key, ",".join(entries + more))


def _user_lines(extra: Iterable[Line], given: Mapping[str, Setting]) -> Iterable[str]:
    """The user's lines as they go below ours, without what was joined above or given again later."""
    for line in extra:
        if line.raw:
            yield line.raw
        elif line.settings and line.settings[0].name in slurm_keys.LINES:
            yield " ".join(map(str, line.settings))
        else:
            for setting in line.settings:
                hidden = setting.name in slurm_keys.LISTS or setting.name in _FIXED
                if not hidden and given.get(setting.name) is setting:
                    yield str(setting)


def partition_settings(config: str, place: str) -> tuple[Setting, ...]:
    """The parameters of a NodeSet's partition. Raises BadConf with `place`."""
    settings = tuple(setting for line in parse(config, place) for setting in line.settings)
    check_partition(settings, place)
    for setting in settings:
        if setting.name == "nodes":
            raise BadConf(f"{place}: Nodes is the NodeSet itself; write a PartitionName line in extraConf for others")
    return settings


def _nodes_and_partitions(groups: Sequence[Group], extra: Iterable[Line]) -> list[str]:
    ordered = sorted(groups, key=lambda group: group.name)
    text = [f"NodeSet={group.name} Feature={group.name}" for group in ordered]
    partitions = [
        (group.name, partition_settings(group.partition, f"NodeSet {group.name}: spec.partition.config"))
        for group in ordered
        if group.partition is not None
    ]
    chosen = _default_partition(groups, dict(partitions), extra)
    for name, settings in partitions:
        parts = [f"PartitionName={name}", f"Nodes={name}", *map(str, settings)]
        if name == chosen:
            parts.append("Default=YES")
        text.append(" ".join(parts))
    return ["### NODESETS AND PARTITIONS ###", *text, ""] if text else []


def _default_partition(
    groups: Iterable[Group], partitions: Mapping[str, Sequence[Setting]], extra: Iterable[Line]
) -> str | None:
    """The partition for jobs that name none, where nobody chose one: the oldest, so that new ones change nothing."""
    given = [settings[1:] for line in extra if (settings := line.settings) and settings[0].name == "partitionname"]
    if any(_default(settings) == "yes" for settings in [*partitions.values(), *given]):
        return None
    free = [group for group in groups if group.name in partitions and not _default(partitions[group.name])]
    return min(free, key=lambda group: (group.created, group.name)).name if free else None


def _default(settings: Iterable[Setting]) -> str:
    """What a partition says of Default=, in lower case; "" when nothing."""
    return next((setting.value.lower() for setting in settings if setting.name == "default"), "")
