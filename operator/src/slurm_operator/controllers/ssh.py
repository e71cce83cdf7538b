"""What pods with sshd need besides themselves: its settings, and host keys that are made once."""

from __future__ import annotations

import asyncio
from typing import Any

from slurm_operator.api.names import APP_WORKER, worker_host_keys, worker_ssh_config
from slurm_operator.api.nodeset import NodeSetSpec
from slurm_operator.controllers.base import Reconciler
from slurm_operator.desired import sshd
from slurm_operator.desired.parts import Cluster, labels
from slurm_operator.desired.secrets import new_host_keys, secret
from slurm_operator.kube.resources import SECRETS, Key, Object


class SshParts:
    """One per controller."""

    def __init__(self, controller: Reconciler[Any]) -> None:
        self._do = controller
        self._known: set[tuple[str, str]] = set()  # Secrets seen: a NodeSet is looked at far too often to ask each time

    async def for_workers(self, key: Key, nodeset: Object, spec: NodeSetSpec, cluster: Cluster) -> None:
        """ConfigMap and host keys of a NodeSet with ssh. Raises BadConf for a setting that sshd does not know."""
        own = labels(APP_WORKER, key.name, cluster.name, "worker")
        name, extra = worker_ssh_config(key.name), spec.ssh.extra_sshd_config
        wish = sshd.settings_map(nodeset, name, own, extra=extra, where="spec.ssh.extraSshdConfig")
        await self._do.ensure(key, wish)
        if (key.namespace, key.name) not in self._known:
            await self.host_keys(key, worker_host_keys(key.name), cluster.name)
            self._known.add((key.namespace, key.name))

    async def host_keys(self, key: Key, name: str, cluster: str) -> None:
        """Host keys are made once: people's known_hosts rely on them."""
        if await self._do.kube.get(SECRETS, key.namespace, name) is not None:
            return
        files = await asyncio.to_thread(new_host_keys, f"{key.name}.{key.namespace}")
        await self._do.secret_once(key, key.namespace, name, lambda: secret(name, key.namespace, cluster, files))
