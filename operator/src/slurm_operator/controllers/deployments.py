"""Reconciles LoginSet and RestApi: each is one Deployment and its Service."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from slurm_operator.api.names import APP_LOGIN, APP_RESTAPI, login_host_keys
from slurm_operator.api.others import LoginSetSpec, RestApiSpec
from slurm_operator.controllers.base import Member, unsupported
from slurm_operator.desired import login, restapi
from slurm_operator.desired.secrets import new_host_keys, secret
from slurm_operator.desired.status import Report, deployment_report
from slurm_operator.kube.informer import Informer
from slurm_operator.kube.resources import (
    CONFIGMAPS,
    DEPLOYMENTS,
    LOGINSETS,
    RESTAPIS,
    SECRETS,
    SERVICES,
    Key,
    Object,
    Resource,
)


class LoginSetController(Member[LoginSetSpec]):
    """Login pods: sshd with lasting host keys, and sackd."""

    name: ClassVar[str] = "loginset"
    resource: ClassVar[Resource] = LOGINSETS
    app: ClassVar[str] = APP_LOGIN
    spec_type = LoginSetSpec
    deployments: Informer

    def setup(self) -> None:
        super().setup()
        self.deployments = self.owns(DEPLOYMENTS)
        self.owns(SERVICES)
        self.owns(CONFIGMAPS, metadata_only=True)

    async def act(self, key: Key, obj: Object, spec: LoginSetSpec) -> tuple[Report, float | None]:
        _, cluster = self.cluster_of(obj)
        await self._host_keys(key, cluster.name)
        await self.ensure(key, login.ssh_config(obj, spec, cluster))
        await self.ensure(key, login.login_service(obj, spec, cluster))
        wish = login.deployment(obj, spec, cluster)
        await self.ensure(key, wish)
        live = self.deployments.get(key.namespace, wish["metadata"]["name"])
        report = deployment_report("login pod", live, spec.replicas, self.pods_of(obj))
        fields = {
            "replicas": ((live or {}).get("status") or {}).get("replicas", 0),
            "selector": login.pod_selector(key.name),
        }
        missing = unsupported({"spec.sssdConfRef": spec.sssd_conf_ref and spec.sssd_conf_ref.name})
        return _with(report, fields, missing), None

    async def _host_keys(self, key: Key, cluster: str) -> None:
        """Host keys are made once: people's known_hosts rely on them."""
        name = login_host_keys(key.name)
        if await self.kube.get(SECRETS, key.namespace, name) is not None:
            return
        files = await asyncio.to_thread(new_host_keys, f"{key.name}.{key.namespace}")
        await self.secret_once(key, key.namespace, name, lambda: secret(name, key.namespace, cluster, files))


class RestApiController(Member[RestApiSpec]):
    """slurmrestd."""

    name: ClassVar[str] = "restapi"
    resource: ClassVar[Resource] = RESTAPIS
    app: ClassVar[str] = APP_RESTAPI
    spec_type = RestApiSpec
    deployments: Informer

    def setup(self) -> None:
        super().setup()
        self.deployments = self.owns(DEPLOYMENTS)
        self.owns(SERVICES)

    async def act(self, key: Key, obj: Object, spec: RestApiSpec) -> tuple[Report, float | None]:
        _, cluster = self.cluster_of(obj)
        await self.ensure(key, restapi.restapi_service(obj, spec, cluster))
        wish = restapi.deployment(obj, spec, cluster)
        await self.ensure(key, wish)
        live = self.deployments.get(key.namespace, wish["metadata"]["name"])
        return deployment_report("slurmrestd pod", live, spec.replicas, self.pods_of(obj)), None


def _with(report: Report, fields: dict[str, object], missing: str) -> Report:
    """The report with the status fields of the kind, and with what is not supported if there is no other fault."""
    fault, reason = (report.fault, report.fault_reason) if report.fault else (missing, "NotSupported")
    return Report(report.ready, report.reason, report.message, report.busy, fault, reason, dict(fields))
