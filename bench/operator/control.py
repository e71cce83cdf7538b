"""A real control plane without nodes: etcd, API server with an audit log, and four of Kubernetes' own controllers.

The scheduler, the node lifecycle controller and the garbage collector do not run: bench/operator/kubelets.py binds
pods and nobody renews the simulated nodes' leases.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections import Counter
from pathlib import Path

from localcloud.kubernetes import cluster, controlplane, network, pki, processes
from localcloud.kubernetes.api import Api
from localcloud.kubernetes.locks import hold
from localcloud.kubernetes.processes import Daemon
from localcloud.paths import Instance
from localcloud.tools import ensure_tools

ACCOUNT = "system:serviceaccount:slurm-operator:slurm-operator"
CONTROLLERS = ("statefulset", "deployment", "replicaset", "serviceaccount")
WRITES = ("create", "update", "patch", "delete", "deletecollection")


def instance() -> Instance:
    """The benchmark's own instance; SLIPWAY_INSTANCE and SLIPWAY_NET choose another one."""
    name = os.environ.get("SLIPWAY_INSTANCE") or "bench-operator"
    return Instance(name, int(os.environ.get("SLIPWAY_NET") or 150), Path("/var/lib/slipway") / name)


def start(inst: Instance) -> Api:
    """Start it from nothing; returns a client with the administrator's rights."""
    cluster.stop_all(inst=inst)
    bin_dir = ensure_tools()
    with cluster.using(inst):
        with hold(inst.run / "pki.lock"):
            pki.ensure_pki(inst)
        network.ensure_bridge(inst)
        store, server, manager = _daemons(inst, bin_dir)
        processes.ensure(store)
        processes.ensure(server)
        controlplane.wait_api(inst, [store, server])
        processes.ensure(manager)
    return Api(inst.kubeconfig)


def _daemons(inst: Instance, bin_dir: Path) -> tuple[Daemon, Daemon, Daemon]:
    policy = inst.run / "audit-policy.json"
    rules = [{"level": "Metadata", "users": [ACCOUNT]}, {"level": "None"}]
    policy.write_text(
        json.dumps({
            "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules,
            "omitStages": ["RequestReceived", "ResponseStarted"],
        })
    )  # fmt: skip
    etcd = controlplane.etcd(inst, bin_dir)
    # The disk is not what is measured, and it is shared.
    etcd = dataclasses.replace(etcd, argv=(*etcd.argv, "--unsafe-no-fsync"))
    server = controlplane.apiserver(inst, bin_dir)
    audit = (f"--audit-policy-file={policy}", f"--audit-log-path={audit_log(inst)}", "--audit-log-mode=batch",
             "--audit-log-batch-max-wait=200ms", "--audit-log-maxsize=2000")  # fmt: skip
    argv = tuple(word for word in server.argv if not word.startswith("--authentication-token-webhook"))
    server = dataclasses.replace(server, argv=(*argv, *audit))
    manager = controlplane.controller_manager(inst, bin_dir)
    only = ",".join(f"{name}-controller" for name in CONTROLLERS)
    return etcd, server, dataclasses.replace(manager, argv=(*manager.argv, f"--controllers={only}"))


def audit_log(inst: Instance) -> Path:
    return inst.run / "audit.log"


class Calls:
    """The operator's API calls, counted in the audit log."""

    def __init__(self, inst: Instance) -> None:
        self._file = audit_log(inst)
        self._offset = 0

    def take(self) -> Counter[str]:
        """Calls since the last time: "reads", "writes", "lease writes" and "create pods" and the like."""
        found: Counter[str] = Counter(reads=0, writes=0)
        if not self._file.exists():
            return found
        with self._file.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            entry = json.loads(line)
            what = entry.get("objectRef") or {}
            resource = "/".join(part for part in (what.get("resource"), what.get("subresource")) if part)
            if entry["verb"] not in WRITES:
                found["reads"] += 1
            else:
                found["lease writes" if resource == "leases" else "writes"] += 1
            found[f"{entry['verb']} {resource}"] += 1
        return found


def operator_access(inst: Instance, api: Api, path: Path) -> None:
    """A kubeconfig for the operator: the token of a service account. It may do anything: any operator can be tried."""
    for space in ("slurm-operator", "slurm"):
        api.apply(f"/api/v1/namespaces/{space}", _object("v1", "Namespace", space))
    name = "slurm-operator"
    api.apply(f"/api/v1/namespaces/{name}/serviceaccounts/{name}", _object("v1", "ServiceAccount", name, name))
    binding = _object("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", name)
    binding["roleRef"] = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    binding["subjects"] = [{"kind": "ServiceAccount", "name": name, "namespace": name}]
    api.apply(f"/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/{name}", binding)
    wish = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 6 * 3600}}
    answer = api.request("POST", f"/api/v1/namespaces/{name}/serviceaccounts/{name}/token", wish)
    user = {"token": answer["status"]["token"]}
    path.write_text(pki.kubeconfig_text(f"slipway-{inst.name}", inst.apiserver_url, name, user, api.ca))


def _object(version: str, kind: str, name: str, namespace: str = "") -> dict[str, object]:
    meta = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": version, "kind": kind, "metadata": meta}
