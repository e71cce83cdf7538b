"""Names of all parameters of slurm.conf in Slurm 26.05, by the kind of value they take.

slurmctld ends itself at an unknown parameter, so a misspelt one must never reach it. Source of the names: the option
tables of Slurm 26.05's parser (src/common/read_config.c). Slurm does not mind upper or lower case.
"""

from __future__ import annotations

from typing import Final

_SPELLING: dict[str, str] = {}


def _names(text: str) -> frozenset[str]:
    _SPELLING.update((name.lower(), name) for name in text.split())
    return frozenset(text.lower().split())


def spelled(name: str) -> str:
    """A parameter's name as Slurm's documentation writes it."""
    return _SPELLING.get(name.lower(), name)


# A number, or UNLIMITED or INFINITE.
NUMBERS: Final = _names(
    """
    AccountingStoragePort AcctGatherNodeFreq BatchStartTimeout CompleteWait DefCpuPerGPU DefMemPerCPU DefMemPerGPU
    DefMemPerNode
    EioTimeout EpilogMsgTime EpilogTimeout ExtSensorsFreq FairShareDampeningFactor FastSchedule FirstJobId
    GetEnvTimeout GroupUpdateForce GroupUpdateTime HealthCheckInterval HealthCheckTimeout InactiveLimit
    JobCompPort JobFileAppend JobRequeue KeepAliveTime KillOnBadExit KillWait MaxArraySize MaxBatchRequeue
    MaxDBDMsgs MaxJobCount MaxJobId MaxMemPerCPU MaxMemPerNode MaxNodeCount MaxStepCount MaxTasksPerNode
    MessageTimeout MinJobAge OverTimeLimit PriorityWeightAge PriorityWeightAssoc PriorityWeightFairshare
    PriorityWeightJobSize PriorityWeightPartition PriorityWeightQOS PrologEpilogTimeout PrologTimeout
    PropagatePrioProcess ResumeRate ResumeTimeout ResvOverRun ReturnToService SchedulerTimeSlice
    SlurmctldTimeout SlurmdPort SlurmdTimeout SlurmSchedLogLevel SuspendRate SuspendTimeout TCPTimeout TreeWidth
    UnkillableStepTimeout VSizeFactor WaitTime
    """
)

# Yes or no.
BOOLEANS: Final = _names(
    """
    AccountingStoreJobComment AllowSpecResourcesUsage DisableRootJobs PriorityFavorSmall TrackWCKey UsePAM
    """
)

# Parameters that start a line of their own and may come more than once.
LINES: Final = _names(
    """
    DownNodes Epilog EpilogSlurmctld NodeName NodeSet PartitionName PowerAction Prolog PrologSlurmctld
    SlurmctldHost
    """
)

TEXTS: Final = _names(
    """
    AccountingStorageBackupHost AccountingStorageEnforce AccountingStorageExternalHost AccountingStorageHost
    AccountingStorageParameters AccountingStoragePass AccountingStorageTRES AccountingStorageType
    AccountingStorageUser AccountingStoreFlags AcctGatherEnergyType AcctGatherFilesystemType
    AcctGatherInfinibandType AcctGatherInterconnectType AcctGatherProfileType AuthAltParameters AuthAltTypes
    AuthInfo AuthType BackupAddr BackupController BcastExclude BcastParameters BurstBufferParameters
    BurstBufferType CertgenParameters CertgenType CertmgrParameters CertmgrType CliFilterParameters
    CliFilterPlugins ClusterName CommunicationParameters ControlAddr ControlMachine CoreSpecPlugin CpuFreqDef
    CpuFreqGovernors CredType CryptoType DataParserParameters DebugFlags DependencyParameters EnforcePartLimits
    ExtSensorsType FederationParameters GpuFreqDef GresTypes HashPlugin HealthCheckNodeState HealthCheckProgram
    HttpParserType InteractiveStepOptions JobAcctGatherFrequency JobAcctGatherParams JobAcctGatherType
    JobCompHost JobCompLoc JobCompParams JobCompPass JobCompPassScript JobCompType JobCompUser JobContainerType
    JobCredentialPrivateKey JobCredentialPublicCertificate JobSubmitPlugins LaunchParameters LaunchType
    LicenseParameters Licenses LogTimeFormat MailDomain MailProg MCSParameters MCSPlugin MetricsAuthUsers
    MetricsParameters MetricsType MpiDefault MpiParams NamespaceType NodeFeaturesPlugins PluginDir
    PlugStackConfig PowerParameters PowerPlugin PreemptExemptTime PreemptMode PreemptParameters PreemptType
    PrEpParameters PrEpPlugins PriorityCalcPeriod PriorityDecayHalfLife PriorityFlags PriorityMaxAge
    PriorityParameters PrioritySiteFactorParameters PrioritySiteFactorPlugin PriorityType
    PriorityUsageResetPeriod PriorityWeightTRES PrivateData ProctrackType PrologFlags PropagateResourceLimits
    PropagateResourceLimitsExcept RebootProgram ReconfigFlags RequeueExit RequeueExitHold ResumeFailProgram
    ResumeProgram ResvEpilog ResvProlog RoutePlugin SallocDefaultCommand SbcastParameters SchedulerParameters
    SchedulerType ScronParameters SelectType SelectTypeParameters SlurmctldAddr SlurmctldDebug
    SlurmctldHttpAuthParameters SlurmctldLogFile SlurmctldParameters SlurmctldPidFile SlurmctldPort
    SlurmctldPrimaryOffProg SlurmctldPrimaryOnProg SlurmctldSyslogDebug SlurmdDebug SlurmdHttpAuthParameters
    SlurmdLogFile SlurmdParameters SlurmdPidFile SlurmdSpoolDir SlurmdSyslogDebug SlurmdUser SlurmSchedLogFile
    SlurmUser SrunEpilog SrunPortRange SrunProlog StateSaveLocation SuspendExcNodes SuspendExcParts
    SuspendExcStates SuspendProgram SuspendTime SwitchParameters SwitchType TaskEpilog TaskPlugin
    TaskPluginParam TaskProlog TLSParameters TLSType TmpFS TopologyParam TopologyPlugin UnkillableStepProgram
    UrlParserType X11Parameters
    """
)

KNOWN: Final = NUMBERS | BOOLEANS | LINES | TEXTS

# What may follow PartitionName= on its line.
PARTITION_NUMBERS: Final = _names(
    """
    DefCpuPerGPU DefMemPerCPU DefMemPerGPU DefMemPerNode GraceTime MaxCPUsPerNode MaxCPUsPerSocket MaxMemPerCPU
    MaxMemPerNode MaxNodes MinNodes Priority PriorityJobFactor PriorityTier ResumeTimeout SuspendTimeout
    """
)

PARTITION_BOOLEANS: Final = _names(
    """
    Default DisableRootJobs ExclusiveTopo ExclusiveUser Hidden LLN PowerDownOnIdle ReqResv RootOnly
    """
)

PARTITION_TEXTS: Final = _names(
    """
    AllocNodes AllowAccounts AllowGroups AllowQos Alternate CpuBind DefaultTime DenyAccounts DenyQos Exclusive
    MaxTime Nodes OverSubscribe OverTimeLimit PreemptMode QOS SelectTypeParameters Shared State SuspendTime
    Topology TRESBillingWeights
    """
)

PARTITION_KNOWN: Final = PARTITION_NUMBERS | PARTITION_BOOLEANS | PARTITION_TEXTS

# What slurmd --conf and NodeName= lines take.
NODE_KNOWN: Final = _names(
    """
    BcastAddr Boards CoreSpecCount CoresPerSocket CpuBind CPUs CPUSpecList Feature Features Gres GresConf
    MemSpecLimit NodeAddr NodeHostname Parameters Port Procs RealMemory Reason RestrictedCoresPerGPU Sockets
    SocketsPerBoard State SuspendTime ThreadsPerCore TmpDisk Topology TRESWeights Weight
    """
)

# Parameters whose value is a list that the operator needs some entries in: a user's entries join them.
LISTS: Final = _names("SlurmctldParameters AuthInfo AuthAltParameters")

# With one of these a partition, or the whole of slurm.conf, says itself how much memory a job gets.
MEMORY_OF_PARTITION: Final = _names("DefMemPerCPU DefMemPerNode DefMemPerGPU MaxMemPerCPU MaxMemPerNode")
