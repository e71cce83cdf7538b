"""The provider as a process: how it starts, what it says of itself, and that it never outlives its engine."""

from __future__ import annotations

import json
import signal
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest
from google.protobuf.empty_pb2 import Empty
from pulumi.runtime.proto import plugin_pb2
from pulumi.runtime.proto import provider_pb2 as pb

from tests.k8s_provider.harness import PLUGIN, CallFailed, call, environment, running
from tests.kubernetes.pods import eventually


@pytest.mark.usefixtures("control_plane")  # which makes the tools that the environment names
def test_it_introduces_itself(program: Path) -> None:
    with running(program) as provider:
        answer = provider.stub.Handshake(pb.ProviderHandshakeRequest(engine_address="127.0.0.1:1"))
        assert answer.accept_secrets
        provider.stub.Attach(plugin_pb2.PluginAttach(address="127.0.0.1:1"))
        assert provider.stub.GetPluginInfo(Empty()).version == version("pulumi_kubernetes")
        assert json.loads(provider.stub.GetSchema(pb.GetSchemaRequest()).schema)["name"] == "kubernetes"
        configured = provider.stub.Configure(pb.ConfigureRequest())
        assert configured.acceptSecrets and configured.supportsPreview
        assert not provider.stub.GetMappings(pb.GetMappingsRequest()).providers


@pytest.mark.usefixtures("control_plane")
def test_functions_and_components_are_refused_with_the_way_out(program: Path) -> None:
    with running(program) as provider:
        with pytest.raises(CallFailed, match=r"yaml:decode: this provider has no functions.*helm\.v3\.Release"):
            call(provider.stub.Invoke, pb.InvokeRequest(tok="kubernetes:yaml:decode"))
        with pytest.raises(CallFailed, match=r"Chart: this provider has no components.*helm\.v3\.Release"):
            call(provider.stub.Construct, pb.ConstructRequest(type="kubernetes:helm.sh/v4:Chart"))


@pytest.mark.usefixtures("control_plane")
def test_it_ends_with_its_engine(program: Path) -> None:
    script = f"{PLUGIN} 127.0.0.1:1 & echo $!; wait"
    engine = subprocess.Popen(["bash", "-c", script], env=environment(), stdout=subprocess.PIPE, text=True)
    assert engine.stdout
    pid = int(engine.stdout.readline())
    assert int(engine.stdout.readline())  # the port: it serves
    engine.kill()
    engine.wait()
    eventually(lambda: not _runs(pid), "the provider to end", 10)


@pytest.mark.usefixtures("control_plane")
def test_ctrl_c_is_left_to_the_engine(program: Path) -> None:
    with running(program) as provider:
        provider.process.send_signal(signal.SIGINT)
        assert provider.stub.GetPluginInfo(Empty()).version
    assert provider.process.returncode == 0


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
