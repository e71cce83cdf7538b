"""NodeSet: a group of like workers (slurmd pods)."""

from __future__ import annotations

from typing import Annotated, Literal

from slurm_operator.api.common import (
    Base,
    Conditions,
    Container,
    JsonObject,
    KeySelector,
    LocalRef,
    PodTemplate,
    doc,
    rule,
)

IMMUTABLE_CONTROLLER = [rule("self == oldSelf", "controllerRef cannot be changed: make a new resource")]


class Ssh(Base, frozen=True):
    enabled: Annotated[bool, doc("Run sshd with pam_slurm_adopt in the workers.")] = False
    extra_sshd_config: Annotated[str, doc("Lines added to sshd_config.")] = ""
    sssd_conf_ref: Annotated[KeySelector | None, doc("Secret key with sssd.conf.")] = None


class Partition(Base, frozen=True):
    enabled: Annotated[bool, doc("Make a Slurm partition of the NodeSet's name.")] = False
    config: Annotated[
        str, doc("Its other parameters, one line: `Default=YES MaxTime=1-0`.", pattern="^[^\\n]*$", maxLength=4096)
    ] = ""


class RollingUpdate(Base, frozen=True):
    max_unavailable: Annotated[
        int | str,
        doc("Workers that may be out at a time: a number or a share, rounded up, at least 1."),
    ] = "25%"


class ScheduledUpdate(Base, frozen=True):
    start_time: Annotated[str, doc("Start of the maintenance reservation.", format="date-time")] = ""
    duration: Annotated[str, doc("Its length, `30m` for example.")] = "30m"
    flags: Annotated[list[str], doc("Further reservation flags.", x_kubernetes_list_type="atomic")] = []


class UpdateStrategy(Base, frozen=True):
    type: Annotated[
        Literal["RollingUpdate", "OnDelete", "ScheduledUpdate"], doc("How workers of an old revision are replaced.")
    ] = "RollingUpdate"
    rolling_update: Annotated[RollingUpdate, doc("For type RollingUpdate.")] = RollingUpdate()
    scheduled_update: Annotated[ScheduledUpdate, doc("For type ScheduledUpdate.")] = ScheduledUpdate()


class ClaimRetention(Base, frozen=True):
    when_deleted: Annotated[Literal["Retain", "Delete"], doc("Volumes of workers when the NodeSet is deleted.")] = (
        "Retain"
    )
    when_scaled: Annotated[Literal["Retain", "Delete"], doc("Volumes of workers that scale-in removes.")] = "Retain"


class NodeSetSpec(Base, frozen=True):
    controller_ref: Annotated[
        LocalRef,
        doc("The Controller these workers belong to. Immutable.", x_kubernetes_validations=IMMUTABLE_CONTROLLER),
    ]
    replicas: Annotated[int, doc("Number of workers.", minimum=0, format="int32", default=1)] = 1
    scaling_mode: Annotated[
        Literal["StatefulSet", "DaemonSet"],
        doc("StatefulSet: replicas workers named by number. DaemonSet: one on every matching Kubernetes node."),
    ] = "StatefulSet"
    slurmd: Container = {}
    ssh: Annotated[Ssh, doc("Shell access to workers for users with a job there.")] = Ssh()
    logfile: Container = {}
    template: Annotated[PodTemplate, doc("The worker pods.")] = PodTemplate()
    extra_conf: Annotated[
        str,
        doc("Node parameters as `Key=Value Key=Value`, given to slurmd --conf; Features are joined.", maxLength=8192),
    ] = ""
    partition: Annotated[Partition, doc("A Slurm partition for just these workers.")] = Partition()
    volume_claim_templates: Annotated[
        list[JsonObject], doc("PersistentVolumeClaims of each worker; a change holds for new claims.")
    ] = []
    update_strategy: Annotated[
        UpdateStrategy,
        doc(
            "How changes reach running workers.",
            x_kubernetes_validations=[
                rule(
                    "!has(self.type) || self.type != 'ScheduledUpdate' || (has(self.scheduledUpdate) &&"
                    " has(self.scheduledUpdate.startTime))",
                    "scheduledUpdate.startTime must be set when type is ScheduledUpdate",
                )
            ],
        ),
    ] = UpdateStrategy()
    revision_history_limit: Annotated[
        int, doc("ControllerRevisions to keep of those that no worker has.", minimum=0, format="int32")
    ] = 0
    persistent_volume_claim_retention_policy: Annotated[ClaimRetention, doc("What becomes of workers' volumes.")] = (
        ClaimRetention()
    )
    min_ready_seconds: Annotated[
        int, doc("Time a worker must be ready to count as available.", minimum=0, format="int32")
    ] = 0
    ordinal_padding: Annotated[
        int, doc("Width of zero-filled numbers in names.", minimum=0, maximum=10, format="int32")
    ] = 0
    pin_to_node: Annotated[
        bool, doc("Bring a worker back to the Kubernetes node it ran on, while that exists (scalingMode StatefulSet).")
    ] = False
    workload_disruption_protection: Annotated[
        bool, doc("Protect workers with running jobs by a PodDisruptionBudget.")
    ] = True
    prune_slurm_node_records: Annotated[
        Literal["Never", "NodeNotFound"],
        doc(
            "Slurm's records of workers that are gone are deleted, but what an administrator drained is kept;"
            " NodeNotFound: that too, once the Kubernetes node it was about does not exist any more."
        ),
    ] = "Never"
    oversubscribe_node: Annotated[bool, doc("Allow several workers on one Kubernetes node.")] = False


class NodeSetStatus(Base, frozen=True):
    replicas: Annotated[int, doc("Worker pods that exist.", format="int32")] = 0
    updated_replicas: Annotated[int, doc("Of these, with the newest revision.", format="int32")] = 0
    ready_replicas: Annotated[int, doc("Of these, ready.", format="int32")] = 0
    available_replicas: Annotated[int, doc("Of these, ready for minReadySeconds.", format="int32")] = 0
    unavailable_replicas: Annotated[int, doc("Desired but not available.", format="int32")] = 0
    desired: Annotated[int, doc("Workers there should be.", format="int32")] = 0
    slurm_idle: Annotated[int, doc("Slurm nodes that are idle.", format="int32")] = 0
    slurm_allocated: Annotated[int, doc("Slurm nodes with jobs.", format="int32")] = 0
    slurm_down: Annotated[int, doc("Slurm nodes that are down.", format="int32")] = 0
    slurm_drain: Annotated[int, doc("Slurm nodes that are drained or draining.", format="int32")] = 0
    observed_generation: Annotated[int, doc("The generation this was computed from.", format="int64")] = 0
    node_set_hash: Annotated[str, doc("Hash of the newest revision.")] = ""
    collision_count: Annotated[int | None, doc("Hash collisions seen.", format="int32")] = None
    conditions: Conditions = []
    ordinal_to_node: Annotated[dict[str, str], doc("Where workers were last, by number, for pinToNode.")] = {}
    selector: Annotated[str, doc("Label selector of the worker pods, for autoscalers.")] = ""
