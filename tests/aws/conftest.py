"""A running AWS stand-in of the tests' own, and clients of it."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.config import Config

from localcloud.aws import service
from localcloud.kubernetes import processes
from localcloud.paths import Instance
from tests.aws.plugin import Plugin
from tests.clusters import own_instance


@dataclasses.dataclass
class Server:
    """The stand-in of an instance."""

    inst: Instance

    @property
    def environment(self) -> dict[str, str]:
        """Variables for its clients."""
        return {
            "SLIPWAY_INSTANCE": self.inst.name, "SLIPWAY_NET": str(self.inst.net),
            "AWS_ENDPOINT_URL": self.inst.aws_url,
            "SLIPWAY_STATE": str(self.inst.state), "AWS_ACCESS_KEY_ID": "slipway-local",
            "AWS_SECRET_ACCESS_KEY": "slipway-local", "AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true", "AWS_PAGER": "",
        }  # fmt: skip

    def client(self, name: str, key: str = "slipway-local", secret: str = "slipway-local", token: str = "") -> Any:
        return boto3.client(  # type: ignore[call-overload]
            name, region_name="us-east-1", endpoint_url=self.inst.aws_url, aws_access_key_id=key,
            aws_secret_access_key=secret, aws_session_token=token or None,
            config=Config(retries={"total_max_attempts": 1}),
        )  # fmt: skip

    def kill(self) -> None:
        """As a crash: no chance to write anything."""
        pid = processes.running(service.daemon(self.inst))
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    def start(self) -> None:
        service.start(inst=self.inst)


@pytest.fixture(scope="package")
def server() -> Iterator[Server]:
    with own_instance() as inst:
        found = Server(inst)
        found.start()
        yield found
        service.stop(inst=inst)


@pytest.fixture(scope="package")
def plugin(server: Server) -> Iterator[Plugin]:
    made = Plugin(server.environment, {"project": "slipway"}, sys.executable)
    made.configure()
    yield made
    made.stop()


@pytest.fixture(scope="package")
def ec2(server: Server) -> Any:
    return server.client("ec2")


@pytest.fixture(scope="package")
def iam(server: Server) -> Any:
    return server.client("iam")


@pytest.fixture(scope="package")
def eks(server: Server) -> Any:
    return server.client("eks")
