"""Names, places and addresses of one local instance; every part asks here, so that instances never meet.

An instance is chosen by two variables: `SLIPWAY_INSTANCE` (its name, default "local") and `SLIPWAY_NET`
(a number; it gives the second octet of three networks and the ports on loopback, default 90).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent

AWS_ACCOUNT = "123456789012"  # the account that moto answers for
AWS_REGION = "us-east-1"
ECR_REGISTRY = f"{AWS_ACCOUNT}.dkr.ecr.{AWS_REGION}.amazonaws.com"


class InstanceError(ValueError):
    """The variables that choose an instance make no valid one; the message says which and what is allowed."""


@dataclass(frozen=True)
class Instance:
    """One local cloud: where its state lives and which addresses it uses.

    Networks: 10.N.0.0/24 for the host and the nodes, 10.(N+1).K.0/24 for the pods of node K,
    10.(N+2).0.0/16 for services.
    """

    name: str
    net: int
    state: Path

    @property
    def run(self) -> Path:
        """Process ids, logs and locks."""
        return self.state / "run"

    @property
    def kubeconfig(self) -> Path:
        """Kubeconfig of the administrator (client certificate), for kubectl and the stand-ins."""
        return self.state / "kubeconfig"

    @property
    def bridge(self) -> str:
        return f"slw{self.net}"

    @property
    def cgroup(self) -> str:
        """Path of the instance's cgroup below each controller's root."""
        return f"/slipway-{self.name}"

    @property
    def host_ip(self) -> IPv4Address:
        return IPv4Address(f"10.{self.net}.0.1")

    @property
    def node_network(self) -> IPv4Network:
        return IPv4Network(f"10.{self.net}.0.0/24")

    @property
    def pod_network(self) -> IPv4Network:
        return IPv4Network(f"10.{self.net + 1}.0.0/16")

    @property
    def service_network(self) -> IPv4Network:
        return IPv4Network(f"10.{self.net + 2}.0.0/16")

    @property
    def dns_ip(self) -> IPv4Address:
        return IPv4Address(f"10.{self.net + 2}.0.10")

    def node_ip(self, index: int) -> IPv4Address:
        """Address of node number `index` (1-200)."""
        return IPv4Address(f"10.{self.net}.0.{10 + index}")

    def node_pods(self, index: int) -> IPv4Network:
        return IPv4Network(f"10.{self.net + 1}.{index}.0/24")

    def _port(self, offset: int) -> int:
        return 20000 + self.net * 10 + offset

    @property
    def etcd_port(self) -> int:
        return self._port(1)

    @property
    def etcd_peer_port(self) -> int:
        return self._port(2)

    @property
    def aws_port(self) -> int:
        return self._port(6)

    @property
    def aws_url(self) -> str:
        return f"http://127.0.0.1:{self.aws_port}"

    @property
    def apiserver_url(self) -> str:
        return f"https://{self.host_ip}:6443"

    @property
    def registry(self) -> str:
        """Address of the registry that stands in for ECR; nodes pull every image name from it."""
        return f"{self.host_ip}:5000"


def cache_dir() -> Path:
    """What survives `make down` and may be deleted at any time: tools, image layers, registry data."""
    return Path(os.environ.get("SLIPWAY_CACHE") or Path.home() / ".cache" / "slipway")


@cache
def instance() -> Instance:
    """The instance that the environment chooses. Raises InstanceError on values that make none."""
    name = os.environ.get("SLIPWAY_INSTANCE") or "local"
    if not (name.isascii() and name.replace("-", "").isalnum() and len(name) <= 20):
        raise InstanceError(
            f"SLIPWAY_INSTANCE={name!r}: a name of at most 20 letters, digits and dashes is allowed, for example local"
        )
    text = os.environ.get("SLIPWAY_NET") or "90"
    if not text.isdigit() or not 60 <= int(text) <= 240 or int(text) % 3:
        raise InstanceError(f"SLIPWAY_NET={text!r}: a multiple of 3 from 60 to 240 is allowed, for example 90")
    state = Path(os.environ.get("SLIPWAY_STATE") or f"/var/lib/slipway/{name}")
    return Instance(name=name, net=int(text), state=state)
