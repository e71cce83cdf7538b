"""What the operator puts into slurm.conf where the user says nothing, and why.

A parameter in spec.extraConf takes the place of the one here. docs/operator/slurm-conf.md tells the same to users.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from slurm_operator.desired.conf_syntax import BadConf, Setting

PRESET_ANNOTATION: Final = "slipway.dev/preset"

HIGH_THROUGHPUT: Final = (
    # Submissions do not each try to start a job; starts come in rounds, and while many calls wait, the rounds do.
    # A round looks at ten times as many jobs, so that one partition's queue does not hide another's.
    Setting(
        "SchedulerParameters",
        "defer,batch_sched_delay=1,sched_min_interval=200000,default_queue_depth=1000,max_rpc_cnt=150,"
        "bf_continue,bf_interval=10,bf_max_job_test=1000",
    ),
    # Ended jobs leave slurmctld's memory after a minute, and there may be 100,000 at a time.
    Setting("MinJobAge", "60"),
    Setting("MaxJobCount", "100000"),
    # Short jobs that are told to end are not given half a minute for it.
    Setting("KillWait", "10"),
)

PRESETS: Final[Mapping[str, tuple[Setting, ...]]] = {"high-throughput": HIGH_THROUGHPUT}

# A user's parameter that must not stand beside ours of the other name.
RIVALS: Final = {"propagateresourcelimitsexcept": "propagateresourcelimits"}


def behaviour(*, cgroup: bool, ha: bool, ssh: bool = False) -> list[Setting]:
    """Scheduling, limits and time-outs."""
    chosen = [
        Setting("SlurmctldParameters", "enable_configless,reconfig_on_restart"),
        # A worker whose pod comes back is of use again whatever it was down for; an administrator's drain stays.
        Setting("ReturnToService", "2"),
        # The jobs of a node that is silent for so long are given up. A pod that ends says so itself (preStop), so this
        # is about lost machines, which are rare, and networks that hiccup, which are not.
        Setting("SlurmdTimeout", "300"),
        # Calls that cross a loaded or far slurmctld; Slurm's 10 s end jobs' launches at a few hundred nodes.
        Setting("MessageTimeout", "30"),
        # Connecting goes through DNS and a Service; a node that is being scaled away does not answer at once.
        Setting("TCPTimeout", "10"),
        # A prolog that looks after GPUs takes longer than 10 s.
        Setting("BatchStartTimeout", "60"),
        # Processes in a GPU driver or on a stuck file system die late; 60 s drain the node ("Kill task failed").
        Setting("UnkillableStepTimeout", "180"),
        Setting("SelectType", "select/cons_tres"),
        Setting("SelectTypeParameters", "CR_Core_Memory"),
        Setting("GresTypes", "gpu"),
        Setting("ProctrackType", "proctrack/cgroup" if cgroup else "proctrack/linuxproc"),
        # Binding the task of another user to CPUs needs CAP_SYS_NICE, which a worker has not by default: with
        # task/affinity alone, launches then fail now and then (task_g_set_affinity).
        Setting("TaskPlugin", "task/cgroup,task/affinity" if cgroup else "task/none"),
        # Contain makes the step into which pam_slurm_adopt puts those who log in to a worker with ssh.
        Setting("PrologFlags", "Contain" if cgroup or ssh else "Alloc"),
        # RDMA and NCCL pin memory: the limit of the worker counts, not that of the login pod.
        Setting("PropagateResourceLimitsExcept", "MEMLOCK"),
        Setting("LaunchParameters", "use_interactive_step"),
    ]
    if ha:
        # A backup takes over after so long. A slurmctld that only restarts is back in two seconds.
        chosen.append(Setting("SlurmctldTimeout", "30"))
    return chosen


def preset(name: str) -> tuple[Setting, ...]:
    """The settings of a preset; none for "". Raises BadConf for a name that there is not."""
    if name and name not in PRESETS:
        raise BadConf(f"annotation {PRESET_ANNOTATION}: {name!r} is no preset; there is {', '.join(PRESETS)}")
    return PRESETS.get(name, ())


def gres_conf(*, gpus: bool) -> str:
    """gres.conf where the user gives none.

    `nvidia` reads what the driver tells in /proc, so it needs no NVML in Slurm, and finds nothing on other machines;
    without GPUs `off` keeps slurmd from looking for them, which it would report as errors at each start.
    """
    return f"AutoDetect={'nvidia' if gpus else 'off'}\n"
