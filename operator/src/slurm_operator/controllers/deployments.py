"""Reconciles LoginSet and RestApi: each is one Deployment and its Service."""

from __future__ import annotations

from typing import ClassVar

from slurm_operator.api.names import (
    ANNOTATION_SSHD_HASH,
    APP_LOGIN,
    APP_RESTAPI,
    APP_WORKER,
    LABEL_NAME,
    controller_config,
    login_host_keys,
)
from slurm_operator.api.others import LoginSetSpec, RestApiSpec
from slurm_operator.controllers.base import BY_CONTROLLER, Member, Waiting, controller_ref, trim_pod
from slurm_operator.controllers.leaving import LOOK_SECONDS as LEAVE_SECONDS
from slurm_operator.controllers.leaving import restapi_waits, workers_left
from slurm_operator.controllers.references import LOOK_SECONDS, MISSING_SECONDS, secret_value
from slurm_operator.controllers.ssh import SshParts
from slurm_operator.desired import login, restapi
from slurm_operator.desired.slurm_conf import SLURM_CONF
from slurm_operator.desired.status import Report, deployment_report
from slurm_operator.kube.informer import Informer
from slurm_operator.kube.objects import annotations_of, canonical_hash, condition, is_deleting
from slurm_operator.kube.resources import (
    CONFIGMAPS,
    DEPLOYMENTS,
    LOGINSETS,
    NODESETS,
    PODS,
    RESTAPIS,
    SERVICES,
    Key,
    Object,
    Resource,
)


class LoginSetController(Member[LoginSetSpec]):
    """Login pods: sshd with lasting host keys, sackd, and SSSD for users from a directory."""

    name: ClassVar[str] = "loginset"
    resource: ClassVar[Resource] = LOGINSETS
    app: ClassVar[str] = APP_LOGIN
    spec_type = LoginSetSpec
    deployments: Informer
    ssh: SshParts

    def setup(self) -> None:
        super().setup()
        self.deployments = self.owns(DEPLOYMENTS)
        self.owns(SERVICES)
        self.owns(CONFIGMAPS, metadata_only=True)
        self.ssh = SshParts(self)

    async def act(self, key: Key, obj: Object, spec: LoginSetSpec) -> tuple[Report, float | None]:
        _, cluster = self.cluster_of(obj)
        sssd = b""
        if spec.sssd_conf_ref and spec.sssd_conf_ref.name:
            sssd = await secret_value(self.kube, key.namespace, spec.sssd_conf_ref, "spec.sssdConfRef")
        settings = login.ssh_config(obj, spec, cluster)
        await self.ssh.host_keys(key, login_host_keys(key.name), cluster.name)
        await self.ensure(key, settings)
        await self.ensure(key, login.login_service(obj, spec, cluster))
        wish = login.deployment(obj, spec, cluster)
        await self.ensure(key, wish)
        await self._hurry(key, obj, canonical_hash([settings["data"], sssd.hex()]))
        live = self.deployments.get(key.namespace, wish["metadata"]["name"])
        report = deployment_report("login pod", live, spec.replicas, self.pods_of(obj))
        report.fields["replicas"] = ((live or {}).get("status") or {}).get("replicas", 0)
        report.fields["selector"] = login.pod_selector(key.name)
        return report, LOOK_SECONDS if sssd else None

    async def _hurry(self, key: Key, obj: Object, content: str) -> None:
        """A change of a pod makes the kubelet look at its volumes now instead of within minutes.

        The pods take over what is new by themselves: nobody's session ends for it.
        """
        for pod in self.pods_of(obj):
            if annotations_of(pod).get(ANNOTATION_SSHD_HASH) != content and not is_deleting(pod):
                await self.patch(key, pod, {"metadata": {"annotations": {ANNOTATION_SSHD_HASH: content}}})


class RestApiController(Member[RestApiSpec]):
    """slurmrestd."""

    name: ClassVar[str] = "restapi"
    resource: ClassVar[Resource] = RESTAPIS
    app: ClassVar[str] = APP_RESTAPI
    spec_type = RestApiSpec
    holds: ClassVar[bool] = True
    deployments: Informer
    nodesets: Informer
    worker_pods: Informer

    def setup(self) -> None:
        super().setup()
        self.nodesets = self.manager.informer(NODESETS)
        self.worker_pods = self.manager.informer(PODS, f"{LABEL_NAME}={APP_WORKER}", transform=trim_pod)
        self.deployments = self.owns(DEPLOYMENTS)
        self.owns(SERVICES)

    async def act(self, key: Key, obj: Object, spec: RestApiSpec) -> tuple[Report, float | None]:
        _, cluster = self.cluster_of(obj)
        config = await self.kube.get(CONFIGMAPS, key.namespace, controller_config(cluster.name))
        text = ((config or {}).get("data") or {}).get(SLURM_CONF)
        if not text:
            raise Waiting("ControllerNotReady", f"Controller {cluster.name} has no configuration yet", MISSING_SECONDS)
        await self.ensure(key, restapi.restapi_service(obj, spec, cluster))
        wish = restapi.deployment(obj, spec, cluster, text)
        await self.ensure(key, wish)
        live = self.deployments.get(key.namespace, wish["metadata"]["name"])
        return deployment_report("slurmrestd pod", live, spec.replicas, self.pods_of(obj)), None

    async def leave(self, key: Key, obj: Object) -> tuple[Report, float] | None:
        name = controller_ref(obj)
        siblings = self.informer.by_index(BY_CONTROLLER, f"{key.namespace}/{name}")
        text = restapi_waits(
            obj,
            sum(not is_deleting(one) for one in siblings),
            self.controllers.get(key.namespace, name),
            len(workers_left(self.worker_pods, key.namespace, name)),
            any(is_deleting(one) and controller_ref(one) == name for one in self.nodesets.list(key.namespace)),
        )
        # Whether it answers has not changed: others go by that.
        ready = (condition(obj, "Ready") or {}).get("status") == "True"
        return (Report(ready, "Deleting", text, busy=text), LEAVE_SECONDS) if text else None
