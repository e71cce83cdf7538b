"""What a machine has that a cluster could leave behind."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Snapshot:
    """mounts: mount points. links: network links. rules: packet filter. directories: where daemons put things."""

    mounts: set[str]
    links: set[str]
    rules: str
    forwarding: str
    directories: set[str]


def snapshot() -> Snapshot:
    mounts = {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
    directories = [
        *("/etc/cni/net.d", "/etc/kubernetes", "/opt/cni", "/run/containerd", "/run/kubernetes", "/run/flannel"),
        *(
            "/var/lib/kubelet",
            "/var/lib/cni",
            "/var/lib/etcd",
            "/var/lib/calico",
            "/var/log/pods",
            "/var/log/containers",
        ),
    ]
    return Snapshot(
        mounts=mounts,
        links={path.name for path in Path("/sys/class/net").iterdir()},
        rules=subprocess.run(["nft", "list", "ruleset"], capture_output=True, text=True, check=True).stdout,
        forwarding=Path("/proc/sys/net/ipv4/ip_forward").read_text(),
        directories={path for path in directories if Path(path).exists()},
    )
