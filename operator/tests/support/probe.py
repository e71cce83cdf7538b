"""A whole operator process with one small controller, for tests that kill and suspend it.

`python probe.py KUBECONFIG NAMESPACE IDENTITY LEASE DEADLINE RETRY`: for each ConfigMap labelled probe=yes it keeps a
ConfigMap `<name>-seen` that says which identity wrote last and how often the data changed. Every write is a line
"wrote …" on stdout; "leading" and "lost" say when it may act.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import ClassVar

from slurm_operator.kube.auth import load_access
from slurm_operator.kube.client import KubeClient
from slurm_operator.kube.objects import owner_reference
from slurm_operator.kube.resources import CONFIGMAPS, Key, Resource
from slurm_operator.runtime import log
from slurm_operator.runtime.controller import Controller
from slurm_operator.runtime.manager import Manager
from slurm_operator.runtime.settings import Settings


class Probe(Controller):
    name: ClassVar[str] = "probe"
    resource: ClassVar[Resource] = CONFIGMAPS

    def setup(self) -> None:
        self.sources = self.watch(CONFIGMAPS, label_selector="probe=yes")
        self.seen = self.owns(CONFIGMAPS, label_selector="probe=seen")

    async def reconcile(self, key: Key) -> float | None:
        source = self.sources.get(*key)
        if source is None:
            return None
        live = self.seen.get(key.namespace, f"{key.name}-seen")
        before = live["data"] if live else {"of": "", "count": "0"}
        wanted = (source.get("data") or {}).get("value", "")
        if before["of"] != wanted:
            meta = {
                "name": f"{key.name}-seen",
                "namespace": key.namespace,
                "labels": {"probe": "seen"},
                "ownerReferences": [owner_reference(source)],
            }
            count = str(int(before["count"]) + 1)
            data = {"of": wanted, "count": count, "by": self.manager.settings.identity}
            await self.ensure(key, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data})
            self.events.event(source, "Normal", "Copied", f"value {wanted!r}")
            print(f"wrote {key} {wanted} {count}", flush=True)  # noqa: T201 - what the test reads
        return 0.2


async def main() -> int:
    kubeconfig, namespace, identity, lease, deadline, retry = sys.argv[1:]
    settings = Settings(
        namespaces=(namespace,), lease_namespace=namespace, identity=identity, health_port=0, metrics_port=0,
        lease_seconds=float(lease), deadline_seconds=float(deadline), retry_seconds=float(retry),
    )  # fmt: skip
    access = load_access(Path(kubeconfig))
    async with KubeClient(access) as kube, KubeClient(access) as lease_client:
        manager = Manager(settings, kube, lease_client)
        manager.add([Probe(manager)])
        return await manager.run()


if __name__ == "__main__":
    log.set_up("info")
    sys.exit(asyncio.run(main()))
