"""Controller: slurmctld and the cluster's configuration."""

from __future__ import annotations

from typing import Annotated

from slurm_operator.api.common import (
    Base,
    Conditions,
    Container,
    External,
    JsonObject,
    KeySelector,
    LocalRef,
    PodTemplate,
    Service,
    doc,
    rule,
)

_REFS = {"x_kubernetes_list_type": "map", "x_kubernetes_list_map_keys": ["name"], "maxItems": 64}


class NamedRef(Base, frozen=True):
    name: Annotated[str, doc("Name of a ConfigMap in the same namespace.", minLength=1, maxLength=253)]


class HighAvailability(Base, frozen=True):
    enabled: Annotated[bool, doc("Run backup slurmctld pods; needs a ReadWriteMany existingClaim.")] = False
    backups: Annotated[int, doc("Number of backups.", minimum=1, maximum=15)] = 1


class Persistence(Base, frozen=True):
    """Volume of StateSaveLocation; besides the fields here, any field of a PersistentVolumeClaimSpec."""

    enabled: Annotated[bool, doc("Keep Slurm's state on a volume; false: it is lost with the pod.")] = True
    existing_claim: Annotated[str, doc("Use this PersistentVolumeClaim instead of making one.", maxLength=253)] = ""
    access_modes: Annotated[
        list[str], doc("As in a PersistentVolumeClaim; ReadWriteOnce when not given.", x_kubernetes_list_type="atomic")
    ] = []
    storage_class_name: Annotated[str | None, doc("As in a PersistentVolumeClaim.")] = None
    volume_name: Annotated[str, doc("As in a PersistentVolumeClaim.")] = ""
    volume_mode: Annotated[str, doc("As in a PersistentVolumeClaim.")] = ""
    volume_attributes_class_name: Annotated[str, doc("As in a PersistentVolumeClaim.")] = ""
    resources: Annotated[JsonObject, doc("As in a PersistentVolumeClaim; 4Gi when not given.")] = {}
    selector: Annotated[JsonObject, doc("As in a PersistentVolumeClaim.")] = {}
    data_source: Annotated[JsonObject, doc("As in a PersistentVolumeClaim.")] = {}
    data_source_ref: Annotated[JsonObject, doc("As in a PersistentVolumeClaim.")] = {}


class MetricEndpoint(Base, frozen=True):
    path: Annotated[str, doc("Path on slurmctld, /metrics/jobs for example.")] = ""
    interval: Annotated[str, doc("Overrides the interval.")] = ""
    scrape_timeout: Annotated[str, doc("Overrides the time-out.")] = ""


class ServiceMonitor(Base, frozen=True):
    enabled: Annotated[bool, doc("Make a ServiceMonitor.")] = False
    labels: Annotated[dict[str, str], doc("Labels to add.")] = {}
    annotations: Annotated[dict[str, str], doc("Annotations to add.")] = {}
    interval: Annotated[str, doc("Time between two scrapes.")] = ""
    scrape_timeout: Annotated[str, doc("Longest time a scrape may take.")] = ""
    endpoints: Annotated[list[MetricEndpoint], doc("What to scrape.", x_kubernetes_list_type="atomic")] = []


class Metrics(Base, frozen=True):
    enabled: Annotated[
        bool, doc("Serve OpenMetrics on slurmctld's port (/metrics/{jobs,nodes,partitions,scheduler}).")
    ] = True
    service_monitor: Annotated[ServiceMonitor, doc("Prometheus operator's ServiceMonitor.")] = ServiceMonitor()


class ControllerSpec(Base, frozen=True):
    cluster_name: Annotated[
        str, doc("Slurm's ClusterName; <namespace>_<name> when not given. Immutable.", maxLength=40)
    ] = ""
    slurm_key_ref: Annotated[
        KeySelector | None, doc("Key of auth/slurm. Not given: the operator makes one and never changes it.")
    ] = None
    jwt_key_ref: Annotated[
        KeySelector | None, doc("HS256 key of auth/jwt. Not given: the operator makes one and never changes it.")
    ] = None
    jwt_hs256_key_ref: Annotated[KeySelector | None, doc("Old name of jwtKeyRef.")] = None
    jwks_key_ref: Annotated[
        KeySelector | None, doc("ConfigMap key with a JWKS, to trust outside identity providers.")
    ] = None
    accounting_ref: Annotated[LocalRef | None, doc("The Accounting that this cluster reports to.")] = None
    external: Annotated[bool, doc("slurmctld runs outside of Kubernetes; see externalConfig.")] = False
    external_config: Annotated[External, doc("Where the external slurmctld is.")] = External()
    ha: Annotated[HighAvailability, doc("High availability.")] = HighAvailability()
    slurmctld: Container = {}
    inplace_reconfigure: Annotated[
        bool, doc("True: a changed configuration is taken over by `scontrol reconfigure`; false: by a new pod.")
    ] = True
    reconfigure: Container = {}
    logfile: Container = {}
    template: Annotated[PodTemplate, doc("The slurmctld pod.")] = PodTemplate()
    extra_conf: Annotated[
        str, doc("Lines added to slurm.conf. A parameter named here replaces the operator's; lists are joined.")
    ] = ""
    config_file_refs: Annotated[list[NamedRef], doc("ConfigMaps whose keys become files in /etc/slurm.", **_REFS)] = []
    prolog_script_refs: Annotated[list[NamedRef], doc("ConfigMaps whose keys are Prolog scripts.", **_REFS)] = []
    epilog_script_refs: Annotated[list[NamedRef], doc("ConfigMaps whose keys are Epilog scripts.", **_REFS)] = []
    prolog_slurmctld_script_refs: Annotated[
        list[NamedRef], doc("ConfigMaps whose keys are PrologSlurmctld scripts.", **_REFS)
    ] = []
    epilog_slurmctld_script_refs: Annotated[
        list[NamedRef], doc("ConfigMaps whose keys are EpilogSlurmctld scripts.", **_REFS)
    ] = []
    persistence: Annotated[Persistence, doc("Where slurmctld keeps its state. Its kind cannot be changed.")] = (
        Persistence()
    )
    service: Annotated[Service, doc("The Service of slurmctld, port 6817.")] = Service()
    metrics: Annotated[Metrics, doc("Slurm's own metrics.")] = Metrics()


class ControllerStatus(Base, frozen=True):
    conditions: Conditions = []


_ENABLED = "(has({0}.persistence) && has({0}.persistence.enabled) ? {0}.persistence.enabled : true)"
_CLAIM = "(has({0}.persistence) && has({0}.persistence.existingClaim) ? {0}.persistence.existingClaim : '')"

SPEC_RULES = [
    rule(
        f"{_ENABLED.format('self')} == {_ENABLED.format('oldSelf')}",
        "persistence.enabled cannot be changed: slurmctld would lose its state. Make a new Controller",
    ),
    rule(
        f"{_CLAIM.format('self')} == {_CLAIM.format('oldSelf')}",
        "persistence.existingClaim cannot be changed: slurmctld would lose its state. Make a new Controller",
    ),
    rule(
        "(has(self.external) && self.external) ? has(self.externalConfig) : true",
        "externalConfig must be set when external is true",
    ),
    rule(
        "(has(self.clusterName) ? self.clusterName : '') == (has(oldSelf.clusterName) ? oldSelf.clusterName : '')",
        "clusterName cannot be changed: Slurm's saved state belongs to it. Make a new Controller",
    ),
    rule(
        "(has(self.ha) && has(self.ha.enabled) && self.ha.enabled) ? (has(self.persistence) &&"
        " has(self.persistence.existingClaim) && self.persistence.existingClaim.size() > 0) : true",
        "ha.enabled needs persistence.existingClaim, a ReadWriteMany volume that all slurmctld pods share",
    ),
]
