"""slurm.conf and the files beside it: pure text from a Controller, its NodeSets and what they refer to."""

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
from slurm_operator.desired import slurm_defaults, slurm_keys
from slurm_operator.desired.conf_syntax import BadConf, Line, Setting, check, check_partition, parse

CGROUP_CONF = "cgroup.conf"
GRES_CONF = "gres.conf"
SLURM_CONF = "slurm.conf"
RESERVED_FILES = frozenset({SLURM_CONF, "slurmdbd.conf", "slurm.key", "slurm.jwks", JWT_KEY, JWKS_FILE})
CGROUP_PLUGINS = ("autodetect", "cgroup/v1", "cgroup/v2", "disabled")
# What a ConfigMap holds, less what its metadata may take.
MAX_BYTES = (1 << 20) - (16 << 10)

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

    `created` (RFC 3339) decides which partition is the default where nobody says. `cpus` and `memory` (MiB) are what a
    worker may use, 0 where that is not limited; `gpus`: whether its workers have any. `ssh`: people log in to
    them.
    """

    name: str
    replicas: int
    partition: str | None = None
    created: str = ""
    cpus: int = 0
    memory: int = 0
    gpus: bool = False
    ssh: bool = False


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
    prolog: Mapping[str, str] = field(default_factory=dict)  # script name -> content, as the three below
    epilog: Mapping[str, str] = field(default_factory=dict)
    prolog_slurmctld: Mapping[str, str] = field(default_factory=dict)
    epilog_slurmctld: Mapping[str, str] = field(default_factory=dict)
    binary: Mapping[str, str] = field(default_factory=dict)  # files whose content is no text, in base64
    jwks: str = ""
    preset: str = ""


@dataclass(frozen=True)
class ConfFiles:
    """Content of the `<name>-config` ConfigMap: file name -> text, and those that are no text in base64."""

    text: Mapping[str, str]
    binary: Mapping[str, str] = field(default_factory=dict)
    accounting_host: str = ""


def cluster_name(namespace: str, name: str, spec: ControllerSpec) -> str:
    return spec.cluster_name or f"{namespace}_{name}"


def conf_files(inputs: ConfInputs) -> ConfFiles:
    """All files of /etc/slurm but the keys. Raises BadConf where slurmctld would refuse them, as far as text tells."""
    if inputs.spec.external:
        return ConfFiles({SLURM_CONF: slurm_conf(inputs)}, accounting_host=inputs.accounting_host)
    if reserved := sorted(RESERVED_FILES & {*inputs.files, *inputs.binary}):
        raise BadConf(f"configFileRefs: {reserved[0]} is made by the operator; use extraConf")
    files = {SLURM_CONF: slurm_conf(inputs), CGROUP_CONF: DEFAULT_CGROUP_CONF}
    files[GRES_CONF] = slurm_defaults.gres_conf(gpus=any(group.gpus for group in inputs.groups))
    files |= inputs.files
    for scripts in (inputs.prolog, inputs.epilog, inputs.prolog_slurmctld, inputs.epilog_slurmctld):
        for name, text in scripts.items():
            if name in RESERVED_FILES or files.get(name, text) != text:
                raise BadConf(f"script {name}: there is another file of that name; give it a name of its own")
            files[name] = text
    if inputs.jwks:
        files[JWKS_FILE] = inputs.jwks
    _check_size(files, inputs.binary)
    return ConfFiles(files, inputs.binary, inputs.accounting_host)


def _check_size(files: Mapping[str, str], binary: Mapping[str, str]) -> None:
    sizes = {name: len(text.encode()) for name, text in files.items()}
    sizes |= {name: len(text) * 3 // 4 for name, text in binary.items()}
    total = sum(sizes.values())
    if total > MAX_BYTES:
        largest = sorted(sizes, key=lambda name: -sizes[name])[:3]
        named = ", ".join(f"{name} {sizes[name]:,}" for name in largest)
        raise BadConf(
            f"the files of /etc/slurm have {total:,} bytes together, but they share one ConfigMap, which holds"
            f" {MAX_BYTES:,}; the largest: {named}. Mount large ones by spec.template instead"
        )


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


def state_location(namespace: str, name: str, spec: ControllerSpec) -> str:
    """StateSaveLocation. The volume is mounted there and not above it, as the Go operator does: each can take over the
    other's volume, and with it the jobs."""
    return f"{SPOOL_SLURMCTLD}/{cluster_name(namespace, name, spec)}"


def uses_cgroup(files: Mapping[str, str]) -> bool:
    """True if the user's cgroup.conf turns cgroups on. Raises BadConf on a line that is no parameter."""
    lines = parse(files.get(CGROUP_CONF, DEFAULT_CGROUP_CONF), CGROUP_CONF)
    plugin = [s.value.lower() for line in lines for s in line.settings if s.name == "cgroupplugin"]
    if plugin and plugin[-1] not in CGROUP_PLUGINS:
        raise BadConf(f"{CGROUP_CONF}: CgroupPlugin={plugin[-1]}: {', '.join(CGROUP_PLUGINS)} is allowed")
    return not plugin or plugin[-1] != "disabled"


def max_node_count(groups: Iterable[Group]) -> int:
    """Room for twice the nodes there are, in powers of two, so that it seldom changes; at least 1024."""
    wanted = 2 * sum(group.replicas for group in groups)
    return max(_MIN_NODES, 1 << (wanted - 1).bit_length() if wanted > 1 else 1)


def _sections(inputs: ConfInputs) -> dict[str, list[Setting]]:
    spec = inputs.spec
    name = cluster_name(inputs.namespace, inputs.name, spec)
    general = [Setting("ClusterName", name), Setting("SlurmUser", SLURM_USER), *_hosts(inputs)]
    jwks = f",jwks={ETC_SLURM}/{JWKS_FILE}" if inputs.jwks else ""
    authentication = [
        Setting("AuthType", "auth/slurm"),
        Setting("CredType", "cred/slurm"),
        Setting("AuthInfo", "use_client_ids"),
        Setting("AuthAltTypes", "auth/jwt"),
        Setting("AuthAltParameters", f"jwt_key={ETC_SLURM}/{JWT_KEY}{jwks}"),
    ]
    if spec.external:
        # For slurmrestd only, which takes callers' tokens: everyone else gets the configuration from slurmctld.
        kept = [setting for setting in authentication if setting.key != "AuthAltParameters"]
        return {"GENERAL": general, "AUTHENTICATION": kept, "ACCOUNTING": _accounting(inputs, cgroup=False)}
    cgroup = uses_cgroup(inputs.files)
    ssh = any(group.ssh for group in inputs.groups)
    general += [
        Setting("StateSaveLocation", state_location(inputs.namespace, inputs.name, spec)),
        Setting("SlurmdUser", "root"),
        Setting("SlurmdPort", str(SLURMD_PORT)),
        Setting("SlurmdSpoolDir", SPOOL_SLURMD),
        Setting("SlurmctldPidFile", "/run/slurmctld/slurmctld.pid"),
        Setting("SlurmdPidFile", "/run/slurm/slurmd.pid"),
        Setting("MaxNodeCount", str(max_node_count(inputs.groups))),
        Setting("MailProg", "/bin/true"),
    ]
    sections = {
        "GENERAL": general,
        "AUTHENTICATION": authentication,
        "BEHAVIOUR": slurm_defaults.behaviour(cgroup=cgroup, ha=spec.ha.enabled, ssh=ssh),
        "PRESET": list(slurm_defaults.preset(inputs.preset)),
        "ACCOUNTING": _accounting(inputs, cgroup=cgroup),
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
    ha = inputs.spec.ha
    # With backups each has a Service of its own: the headless one does not know the name of a pod that is away.
    domain = inputs.namespace if ha.enabled else f"{controller_internal_service(inputs.name)}.{inputs.namespace}"
    pods = [controller_pod(inputs.name, index) for index in range(1 + (ha.backups if ha.enabled else 0))]
    return [
        # In this order they take over from each other.
        *(Setting("SlurmctldHost", f"{pod}({pod}.{domain})") for pod in pods),
        Setting("SlurmctldPort", str(SLURMCTLD_PORT)),
        # Everyone but slurmctld itself goes through the Service, whose address does not change.
        Setting("SlurmctldAddr", f"{controller_object(inputs.name)}.{inputs.namespace}"),
    ]


def _accounting(inputs: ConfInputs, *, cgroup: bool) -> list[Setting]:
    if not inputs.accounting_host:
        return []
    return [
        Setting("JobAcctGatherType", "jobacct_gather/cgroup" if cgroup else "jobacct_gather/linux"),
        Setting("AccountingStorageType", "accounting_storage/slurmdbd"),
        Setting("AccountingStorageHost", inputs.accounting_host),
        Setting("AccountingStoragePort", str(inputs.accounting_port)),
        # Without it nobody can say afterwards who used how many GPUs.
        Setting("AccountingStorageTRES", "gres/gpu"),
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
    if slurm_defaults.RIVALS.get(setting.name) in given:
        return None
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


def _nodes_and_partitions(groups: Sequence[Group], extra: Sequence[Line]) -> list[str]:
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
        said = [*settings, *(setting for line in extra for setting in _global(line))]
        if share := _memory_share(next(group for group in ordered if group.name == name), said):
            parts.append(f"DefMemPerCPU={share}")
        if name == chosen:
            parts.append("Default=YES")
        text.append(" ".join(parts))
    return ["### NODESETS AND PARTITIONS ###", *text, ""] if text else []


def _global(line: Line) -> Sequence[Setting]:
    """The settings of a line that is about the cluster as a whole."""
    return () if line.settings and line.settings[0].name in slurm_keys.LINES else line.settings


def _memory_share(group: Group, settings: Iterable[Setting]) -> int:
    """MiB that a job gets per CPU when it does not say: its share of the worker. 0 where that is not known.

    Slurm gives a job that does not say all memory of the node, so that it would be alone there. A core has two CPUs on
    most machines and cannot be halved: a worker with one CPU may be seen to have two.
    """
    if any(setting.name in slurm_keys.MEMORY_OF_PARTITION for setting in settings):
        return 0
    return group.memory // max(2, group.cpus) if group.cpus and group.memory else 0


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
