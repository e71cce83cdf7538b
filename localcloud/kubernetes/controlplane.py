"""The control plane: etcd, API server, controller manager and scheduler as processes of the host."""

from __future__ import annotations

import time
from pathlib import Path

from localcloud.kubernetes import processes
from localcloud.kubernetes.api import Api
from localcloud.kubernetes.errors import ClusterError, Log
from localcloud.kubernetes.locks import holders
from localcloud.kubernetes.pki import kubeconfig_text, write_private
from localcloud.kubernetes.processes import Daemon
from localcloud.paths import Instance

READY_SECONDS = 90
"""How long the API server may take; 3 s are usual, a cold page cache on a loaded machine takes several times that."""


def etcd(inst: Instance, bin_dir: Path) -> Daemon:
    client, peer = f"http://127.0.0.1:{inst.etcd_port}", f"http://127.0.0.1:{inst.etcd_peer_port}"
    argv = (
        str(bin_dir / "etcd"),
        "--name=slipway",
        f"--data-dir={inst.state / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=slipway={peer}",
        "--log-level=warn",
    )
    return _daemon(inst, "etcd", argv)


def apiserver(inst: Instance, bin_dir: Path) -> Daemon:
    pki = inst.state / "pki"
    address = str(inst.host_ip)
    argv = (
        str(bin_dir / "kube-apiserver"),
        f"--etcd-servers=http://127.0.0.1:{inst.etcd_port}",
        f"--bind-address={address}",
        f"--advertise-address={address}",
        "--secure-port=6443",
        f"--tls-cert-file={pki}/apiserver.crt",
        f"--tls-private-key-file={pki}/apiserver.key",
        f"--client-ca-file={pki}/ca.crt",
        f"--kubelet-client-certificate={pki}/apiserver-kubelet-client.crt",
        f"--kubelet-client-key={pki}/apiserver-kubelet-client.key",
        f"--kubelet-certificate-authority={pki}/ca.crt",
        "--kubelet-preferred-address-types=InternalIP",
        f"--service-account-key-file={pki}/sa.pub",
        f"--service-account-signing-key-file={pki}/sa.key",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--requestheader-client-ca-file={pki}/front-proxy-ca.crt",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-username-headers=X-Remote-User",
        f"--proxy-client-cert-file={pki}/front-proxy-client.crt",
        f"--proxy-client-key-file={pki}/front-proxy-client.key",
        # Tokens of `aws eks get-token` are checked by the AWS stand-in, which may start later or be down.
        f"--authentication-token-webhook-config-file={pki}/authentication.kubeconfig",
        "--authentication-token-webhook-version=v1",
        "--authentication-token-webhook-cache-ttl=10s",
        # Webhooks of pods are called at the pod's address: the host has no kube-proxy of its own.
        "--enable-aggregator-routing=true",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        f"--service-cluster-ip-range={inst.service_network}",
        "--profiling=false",
        "--shutdown-delay-duration=0s",
    )
    return _daemon(inst, "apiserver", argv)


def controller_manager(inst: Instance, bin_dir: Path) -> Daemon:
    pki = inst.state / "pki"
    argv = (
        str(bin_dir / "kube-controller-manager"),
        f"--kubeconfig={pki}/controller-manager.kubeconfig",
        "--secure-port=0",
        "--leader-elect=false",
        # With the default of 20 requests a second its own controllers wait 5 s for each other on a new cluster.
        "--kube-api-qps=500",
        "--kube-api-burst=1000",
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={pki}/sa.key",
        f"--root-ca-file={pki}/ca.crt",
        f"--cluster-signing-cert-file={pki}/ca.crt",
        f"--cluster-signing-key-file={pki}/ca.key",
        # A dead node is noticed after 16 s; its kubelet reports every 4 s.
        "--node-monitor-period=2s",
        "--node-monitor-grace-period=16s",
        "--allocate-node-cidrs=false",
    )
    return _daemon(inst, "controller-manager", argv)


def scheduler(inst: Instance, bin_dir: Path) -> Daemon:
    pki = inst.state / "pki"
    argv = (
        str(bin_dir / "kube-scheduler"),
        f"--kubeconfig={pki}/scheduler.kubeconfig",
        "--secure-port=0",
        "--leader-elect=false",
        "--kube-api-qps=500",
        "--kube-api-burst=1000",
    )
    return _daemon(inst, "scheduler", argv)


def _daemon(inst: Instance, name: str, argv: tuple[str, ...]) -> Daemon:
    return Daemon(group=f"{inst.cgroup}/{name}", argv=argv, log=inst.run / f"{name}.log")


def daemons(inst: Instance, bin_dir: Path) -> list[Daemon]:
    """The four daemons in the order in which they start."""
    return [make(inst, bin_dir) for make in (etcd, apiserver, controller_manager, scheduler)]


def start(inst: Instance, bin_dir: Path, log: Log) -> None:
    """Start what does not run, and return when the API server says that it is ready.

    The caller holds the lock, and has made certificates and bridge.
    """
    authentication = kubeconfig_text("aws", f"{inst.aws_url}/slipway/authenticate", "apiserver", {}, None).encode()
    file = inst.state / "pki" / "authentication.kubeconfig"
    if not file.exists() or file.read_bytes() != authentication:
        write_private(file, authentication)
    begin = time.monotonic()
    store, api_server, *controllers = daemons(inst, bin_dir)
    started = [daemon.name for daemon in (store, api_server) if processes.ensure(daemon)]
    if started:
        log(f"starting {' and '.join(started)}")
    wait_api(inst, [store, api_server])
    started += [daemon.name for daemon in controllers if processes.ensure(daemon)]
    if started:
        log(f"control plane ready at {inst.apiserver_url} after {time.monotonic() - begin:.1f} s")


def lock(inst: Instance) -> Path:
    """Held by whoever is starting the control plane."""
    return inst.run / "control-plane.lock"


def wait_api(inst: Instance, needed: list[Daemon], *, others_start: bool = False) -> None:
    """Wait until the API server is ready. Raises ClusterError with its log's end if it, or etcd, ends before.

    others_start: the control plane may be started by somebody else, just now or in a moment.
    """
    api = Api(inst.kubeconfig)
    end = time.monotonic() + READY_SECONDS
    while not api.ready():
        for daemon in needed:
            if processes.running(daemon) is None and not _appears(inst, daemon, others_start):
                raise ClusterError(_why_gone(inst, daemon))
        if time.monotonic() > end:
            raise ClusterError(
                f"the API server is not ready after {READY_SECONDS} s. Next: read {needed[-1].log} and {needed[0].log}"
            )
        time.sleep(0.05)


def _appears(inst: Instance, daemon: Daemon, others_start: bool) -> bool:
    # A process is not seen by its own command line until it has replaced the launcher.
    end = time.monotonic() + (3 if others_start else 1)
    while processes.running(daemon) is None:
        if time.monotonic() > end and not (others_start and holders(lock(inst))):
            return False
        time.sleep(0.02)
    return True


def _why_gone(inst: Instance, daemon: Daemon) -> str:
    said = processes.last_words(daemon.log)
    if not said:
        return f"{daemon.name} is not running. Next: start the control plane"
    text = f"{daemon.name} is not running. The end of {daemon.log}:\n{said}"
    if daemon.name == "etcd":
        text += (
            f"\nNext: if its data in {inst.state / 'etcd'} is damaged (the disk was full, or the power failed), "
            "stop the cluster, which removes all that is stored in it, and start it again"
        )
    return text


def stop(inst: Instance, bin_dir: Path) -> None:
    """End the daemons at once. Their data is of no use any more: a cluster that stays is never stopped this way."""
    for daemon in reversed(daemons(inst, bin_dir)):
        processes.stop(daemon)
