"""Objects of Controller, LoginSet and RestApi, and the Secrets."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from slurm_operator.api.others import LoginSetSpec, RestApiSpec
from slurm_operator.desired import controller, secrets
from slurm_operator.kube.resources import Object

from desired.things import cluster, owner

CONTROLLER = owner("Controller", "lab")


def stateful_set(**fields: Any) -> Object:
    return dict(controller.stateful_set(CONTROLLER, cluster(**fields), "hash")["spec"])


def pod(**fields: Any) -> Object:
    return dict(stateful_set(**fields)["template"]["spec"])


def login_spec(**fields: Any) -> LoginSetSpec:
    return msgspec.convert({"controllerRef": {"name": "lab"}, "login": {"image": "login:1"}, **fields}, LoginSetSpec)


def restapi_spec(**fields: Any) -> RestApiSpec:
    return msgspec.convert({"controllerRef": {"name": "lab"}, "slurmrestd": {"image": "r:1"}, **fields}, RestApiSpec)


# --- Controller ---


def test_slurmctld_has_no_privilege() -> None:
    spec = pod()
    security = spec["securityContext"]
    assert (security["runAsUser"], security["fsGroup"], security["runAsNonRoot"]) == (401, 401, True)
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    for one in (*spec["containers"], *spec["initContainers"]):
        assert one["securityContext"]["readOnlyRootFilesystem"]
        assert one["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert not spec["automountServiceAccountToken"]


def test_a_changed_configuration_restarts_nothing_unless_asked_for() -> None:
    assert "annotations" not in stateful_set()["template"]["metadata"]
    restarted = stateful_set(inplaceReconfigure=False)["template"]
    assert restarted["metadata"]["annotations"] == {"slinky.slurm.net/slurm-config-hash": "hash"}
    assert "initContainers" not in restarted["spec"]


@pytest.mark.parametrize(
    ("persistence", "claims", "volume"),
    [
        ({}, 1, None),
        ({"enabled": False}, 0, {"emptyDir": {}}),
        ({"existingClaim": "mine"}, 0, {"persistentVolumeClaim": {"claimName": "mine"}}),
    ],
)
def test_where_the_state_lives(persistence: Any, claims: int, volume: Any) -> None:
    spec = stateful_set(persistence=persistence)
    assert len(spec.get("volumeClaimTemplates", ())) == claims
    found = [one for one in spec["template"]["spec"]["volumes"] if one["name"] == "statesave"]
    assert [{key: value for key, value in one.items() if key != "name"} for one in found] == (
        [volume] if volume else []
    )


def test_the_root_of_the_volume_is_the_state_location_as_with_the_go_operator() -> None:
    """Else a cluster that changes operators would start without its jobs."""
    mounts = {one["name"]: one["mountPath"] for one in pod(clusterName="prod")["containers"][0]["volumeMounts"]}
    assert mounts["statesave"] == "/var/spool/slurmctld/prod"


def test_the_claim_is_as_asked() -> None:
    asked = {"storageClassName": "gp3", "resources": {"requests": {"storage": "9Gi"}}, "accessModes": ["ReadWriteMany"]}
    claim = stateful_set(persistence=asked)["volumeClaimTemplates"][0]["spec"]
    assert claim == {
        "storageClassName": "gp3",
        "resources": {"requests": {"storage": "9Gi"}},
        "accessModes": ["ReadWriteMany"],
    }


def test_only_what_was_proven_and_the_keys_reach_etc_slurm() -> None:
    spec = pod(
        configFileRefs=[{"name": "files"}], prologScriptRefs=[{"name": "prolog"}], slurmKeyRef={"name": "k", "key": "x"}
    )
    sources = next(one for one in spec["volumes"] if one["name"] == "etc-slurm")["projected"]["sources"]
    items = [{"key": name, "path": name} for name in ("slurm.jwks", "slurm.key", "jwt.key")]
    assert sources == [{"configMap": {"name": "lab-config"}}, {"secret": {"name": "lab-keys", "items": items}}]


def test_services_of_slurmctld() -> None:
    fields = {"service": {"spec": {"type": "LoadBalancer", "externalIPs": ["1.2.3.4"]}, "port": 7000}}
    internal, public = controller.services(CONTROLLER, cluster(**fields))
    assert internal["metadata"]["name"] == "lab-controller-internal"
    assert internal["spec"]["publishNotReadyAddresses"]
    assert public["metadata"]["name"] == "lab-controller"
    assert public["spec"]["type"] == "LoadBalancer"
    assert "externalIPs" not in public["spec"]
    assert public["spec"]["ports"] == [{"name": "slurmctld", "port": 7000, "targetPort": 6817, "protocol": "TCP"}]
    assert cluster(**fields).conf_server == "lab-controller.slurm:7000"


HA = {"ha": {"enabled": True, "backups": 2}, "persistence": {"existingClaim": "shared"}}


def test_backups() -> None:
    spec = stateful_set(**HA)
    assert spec["replicas"] == 3
    made = spec["template"]["spec"]
    assert made["containers"][0]["readinessProbe"]["httpGet"]["path"] == "/livez"
    assert made["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert pod()["containers"][0]["readinessProbe"]["httpGet"]["path"] == "/readyz"
    services = {one["metadata"]["name"]: one["spec"] for one in controller.services(CONTROLLER, cluster(**HA))}
    assert services["lab-controller"]["selector"]["controller.slinky.slurm.net/active"] == "true"
    for index in range(3):
        chosen = services[f"lab-controller-{index}"]["selector"]
        assert chosen["statefulset.kubernetes.io/pod-name"] == f"lab-controller-{index}"
    assert controller.disruption_budget(CONTROLLER, cluster(**HA))["spec"]["maxUnavailable"] == 1
    assert controller.disruption_budget(CONTROLLER, cluster())["spec"]["maxUnavailable"] == 0


def test_a_single_slurmctld_is_found_without_the_operators_label() -> None:
    public = controller.services(CONTROLLER, cluster())[1]
    assert set(public["spec"]["selector"]) == {"app.kubernetes.io/name", "app.kubernetes.io/instance"}


def test_a_log_container_is_there_when_asked_for() -> None:
    assert [one["name"] for one in pod()["initContainers"]] == ["reconfigure"]
    spec = pod(logfile={"image": "alpine:3", "resources": {"limits": {"memory": "16Mi"}}})
    sidecar = spec["initContainers"][0]
    assert (sidecar["name"], sidecar["image"], sidecar["restartPolicy"]) == ("logfile", "alpine:3", "Always")
    assert sidecar["resources"] == {"limits": {"memory": "16Mi"}}
    assert spec["containers"][0]["args"] == ["-L", "/var/log/slurm/slurmctld.log"]


def test_what_prometheus_is_told() -> None:
    wanted = {
        "enabled": True,
        "labels": {"release": "prom"},
        "interval": "60s",
        "endpoints": [{"path": "/metrics/jobs"}],
    }
    made = controller.service_monitor(CONTROLLER, cluster(metrics={"serviceMonitor": wanted}))
    assert made["metadata"]["labels"]["release"] == "prom"
    assert made["spec"]["endpoints"] == [
        {"port": "slurmctld", "scheme": "http", "path": "/metrics/jobs", "interval": "60s", "scrapeTimeout": "25s"}
    ]
    chosen = made["spec"]["selector"]["matchLabels"].items()
    scraped = [
        one["metadata"]["name"]
        for one in controller.services(CONTROLLER, cluster(**HA))
        if chosen <= one["metadata"]["labels"].items()
    ]
    assert scraped == ["lab-controller"]
    usual = controller.service_monitor(CONTROLLER, cluster())
    assert [one["path"] for one in usual["spec"]["endpoints"]] == list(controller.METRICS_PATHS)


def test_the_old_name_of_the_jwt_key_works() -> None:
    assert cluster(jwtHs256KeyRef={"name": "old", "key": "k"}).jwt_key.name == "old"


def test_the_reconfigure_loop_acts_once_per_change(tmp_path: Path) -> None:
    """The script itself: one `scontrol reconfigure` for each swap of the volume, again until it works."""
    etc, calls, looked = tmp_path / "etc", tmp_path / "calls", tmp_path / "looked"
    etc.mkdir()
    (etc / "..data").symlink_to("one")
    for name, script in (
        ("scontrol", f'echo "$@" >>{calls}; [ $(wc -l <{calls}) -ne 1 ]'),
        ("readlink", f'echo >>{looked}; exec /usr/bin/readlink "$@"'),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    text = controller.RECONFIGURE.replace("/etc/slurm", str(etc)).replace("pause 1", "pause 0.05")
    process = subprocess.Popen(
        ["bash", "-c", text.replace("pause 2", "pause 0.05")],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        while not looked.exists() or len(looked.read_text()) < 2:
            assert process.poll() is None
            time.sleep(0.02)
        (tmp_path / "new").symlink_to("two")
        (tmp_path / "new").rename(etc / "..data")
        assert process.stdout.readline() == b"configuration two is in effect\n"
        assert calls.read_text() == "reconfigure\nreconfigure\n"
    finally:
        process.terminate()
        assert process.wait(5) == 0


# --- Secrets ---


def test_keys() -> None:
    assert len(secrets.new_slurm_key()) == 1024
    assert len(secrets.new_jwt_key()) >= 32
    assert secrets.new_slurm_key() != secrets.new_slurm_key()
    made = secrets.secret("k", "slurm", "lab", {"slurm.key": b"\x00\xff"})
    assert made["immutable"]
    assert "ownerReferences" not in made["metadata"]
    assert secrets.data_of(made, "slurm.key") == b"\x00\xff"
    assert secrets.data_of(made, "other") is None


def test_host_keys_are_what_ssh_reads(tmp_path: Path) -> None:
    files = secrets.new_host_keys("login.slurm")
    assert sorted(files) == sorted(
        f"ssh_host_{kind}_key{suffix}" for kind in ("ed25519", "ecdsa", "rsa") for suffix in ("", ".pub")
    )
    for kind in ("ed25519", "ecdsa", "rsa"):
        private = files[f"ssh_host_{kind}_key"]
        assert private.startswith(b"-----BEGIN OPENSSH PRIVATE KEY-----")
        assert files[f"ssh_host_{kind}_key.pub"].endswith(b" login.slurm\n")
