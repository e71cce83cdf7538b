"""Login pods, slurmrestd, and sshd in workers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from slurm_operator.api.load import InvalidSpec
from slurm_operator.api.others import LoginSetSpec, RestApiSpec
from slurm_operator.controllers.token import seconds
from slurm_operator.desired import login, restapi, sshd, worker
from slurm_operator.desired.conf_syntax import BadConf

from .things import cluster, nodeset_spec, owner

LOGIN = owner("LoginSet", "login")
CONF = "ClusterName=lab\nSlurmctldHost=a\nAuthType=auth/slurm\n"
DBD = "AccountingStorageHost=dbd\n"


def login_spec(**fields: Any) -> LoginSetSpec:
    return msgspec.convert({"controllerRef": {"name": "lab"}, "login": {"image": "login:1"}, **fields}, LoginSetSpec)


def restapi_spec(**fields: Any) -> RestApiSpec:
    return msgspec.convert({"controllerRef": {"name": "lab"}, "slurmrestd": {"image": "rest:1"}, **fields}, RestApiSpec)


def login_deployment(**fields: Any) -> dict[str, Any]:
    return dict(login.deployment(LOGIN, login_spec(**fields), cluster())["spec"])


def paths(container: dict[str, Any]) -> set[str]:
    return {mount["mountPath"] for mount in container["volumeMounts"]}


# --- LoginSet ---


def test_login_pods() -> None:
    spec = login_deployment(replicas=2)
    assert spec["replicas"] == 2
    pod = spec["template"]["spec"]
    container = pod["containers"][0]
    assert container["env"] == [{"name": "SACKD_OPTIONS", "value": "--conf-server lab-controller.slurm:6817"}]
    wanted = {"/etc/ssh/ssh_host_ed25519_key", "/etc/ssh/ssh_host_rsa_key.pub", "/etc/slurm", "/etc/ssh/sshd_config.d"}
    assert wanted <= paths(container)
    assert "/etc/sssd" not in paths(container)
    assert "fsGroup" not in pod["securityContext"]


def test_nobody_is_thrown_out_for_a_setting() -> None:
    """Settings are taken over by running pods: nothing of them is in the template that would replace the pods."""
    before = login_deployment(sssdConfRef={"name": "s", "key": "c"})
    after = login_deployment(
        sssdConfRef={"name": "s", "key": "c"},
        extraSshdConfig="X11Forwarding yes",
        rootSshAuthorizedKeys="ssh-ed25519 A",
    )
    assert before == after
    assert before["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    assert before["template"]["spec"]["terminationGracePeriodSeconds"] == login.GRACE_SECONDS
    mine = {"type": "Recreate"}
    assert login_deployment(strategy=mine)["strategy"] == mine


def test_root_may_log_in_with_a_key_only_if_one_is_given() -> None:
    def data(**fields: Any) -> Any:
        return login.ssh_config(LOGIN, login_spec(**fields), cluster())["data"]

    assert data() == {"50-extra.conf": "\n"}
    assert data(extraSshdConfig="X11Forwarding yes")["50-extra.conf"] == "X11Forwarding yes\n"
    root = data(rootSshAuthorizedKeys="ssh-ed25519 AAAA")
    assert root["root_authorized_keys"] == "ssh-ed25519 AAAA\n"
    assert root["60-root.conf"].startswith("Match User root\n")


def test_users_from_a_directory() -> None:
    pod = login_deployment(sssdConfRef={"name": "my-sssd", "key": "conf"})["template"]["spec"]
    assert "/etc/sssd" in paths(pod["containers"][0])
    volume = next(one for one in pod["volumes"] if one["name"] == "sssd-conf")
    items = [{"key": "conf", "path": "sssd.conf", "mode": 0o600}]  # SSSD refuses what others can read
    assert volume["secret"] == {"secretName": "my-sssd", "items": items}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("X11Forwarding yes\nPermitRotLogin no", "line 2: PermitRotLogin is no keyword.* did you mean Permit"),
        ("Port 2222", "line 1: Port is set by the operator"),
        ("UsePAM=no", "UsePAM is set by the operator"),
        ("Banner", "Banner has no value"),
    ],
)  # fmt: skip
def test_lines_that_sshd_does_not_know_are_refused(text: str, says: str) -> None:
    with pytest.raises(BadConf, match=f"spec.extraSshdConfig, {says}|spec.extraSshdConfig, line 1: {says}"):
        login.ssh_config(LOGIN, login_spec(extraSshdConfig=text), cluster())


def test_lines_that_sshd_knows_are_taken() -> None:
    sshd.check_sshd("# comment\n\nmatch user bob\n  x11forwarding=yes\n  AllowTcpForwarding no\n", "x")


# --- RestApi ---


def restapi_deployment(conf: str = CONF, **fields: Any) -> dict[str, Any]:
    return dict(restapi.deployment(owner("RestApi", "lab"), restapi_spec(**fields), cluster(), conf))


def args(made: dict[str, Any]) -> list[str]:
    return list(made["spec"]["template"]["spec"]["containers"][0]["args"])


def test_slurmrestd_is_nobody_and_has_no_key() -> None:
    made = restapi_deployment()
    spec = made["spec"]["template"]["spec"]
    assert spec["securityContext"]["runAsUser"] == 65534
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert "secret" not in repr(spec["volumes"]).lower()
    assert made["metadata"]["name"] == "lab-restapi"


def test_slurmrestd_offers_accounting_when_there_is_some() -> None:
    assert args(restapi_deployment()) == ["-a", "rest_auth/jwt", "-t", "4", "-s", "openapi/slurmctld"]
    assert "-s" not in args(restapi_deployment(CONF + DBD))


@pytest.mark.parametrize(
    ("more", "restarts"),
    [("PartitionName=a Nodes=a\nNodeSet=a Feature=a\nMaxNodeCount=2048\n", False), (DBD, True), ("AuthInfo=x\n", True)],
)
def test_slurmrestd_starts_again_only_for_what_it_reads(more: str, restarts: bool) -> None:
    def template(conf: str) -> Any:
        return restapi_deployment(conf)["spec"]["template"]

    assert (template(CONF + more) != template(CONF)) is restarts


def test_images_are_needed() -> None:
    with pytest.raises(InvalidSpec, match=r"spec\.login\.image"):
        login_deployment(login={}, initconf={"image": "x"})
    with pytest.raises(InvalidSpec, match=r"spec\.slurmrestd\.image"):
        restapi_deployment(slurmrestd={})


# --- workers with ssh ---


def slurmd(**fields: Any) -> dict[str, Any]:
    return dict(worker.template("w", nodeset_spec(**fields), cluster())["spec"])


def test_a_worker_has_what_sshd_needs_only_when_asked() -> None:
    plain = slurmd()["containers"][0]
    assert plain["securityContext"]["capabilities"]["add"] == list(worker.CAPABILITIES)
    assert not any(path.startswith("/etc/ssh") for path in paths(plain))
    made = slurmd(ssh={"enabled": True, "sssdConfRef": {"name": "s", "key": "c"}})
    container = made["containers"][0]
    assert container["securityContext"]["capabilities"]["add"] == [*worker.CAPABILITIES, *sshd.WORKER_CAPABILITIES]
    assert {"/etc/ssh/ssh_host_ed25519_key", "/etc/ssh/sshd_config.d", "/etc/sssd"} <= paths(container)
    assert 22 in {port["containerPort"] for port in container["ports"]}
    assert {"ssh-config", "ssh-host-keys", "sssd-conf"} <= {volume["name"] for volume in made["volumes"]}
    assert plain["securityContext"]["capabilities"]["add"] == list(worker.CAPABILITIES), "nothing is shared"


def test_a_changed_sshd_setting_drains_no_worker() -> None:
    def revision(**ssh: Any) -> str:
        return worker.revision("w", nodeset_spec(ssh=ssh), cluster())

    assert revision(enabled=True) != revision()
    assert revision(enabled=True) == revision(enabled=True, extraSshdConfig="Banner none")


# --- Token ---


@pytest.mark.parametrize(
    ("text", "wanted"), [("15m", 900), ("1h30m", 5400), ("1.5h", 5400), ("90s", 90), ("1h0m0s", 3600)]
)
def test_durations(text: str, wanted: int) -> None:
    assert seconds(text, "x") == wanted


@pytest.mark.parametrize("text", ["", "15", "1d", "59s", "m", "1h x", "-5m"])
def test_no_durations(text: str) -> None:
    with pytest.raises(InvalidSpec, match=r"spec\.lifetime"):
        seconds(text, "spec.lifetime")
