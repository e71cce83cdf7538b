"""slurmdbd: its configuration, its pod, and what its log tells."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from slurm_operator.api.common import KeySelector
from slurm_operator.api.controller import ControllerSpec
from slurm_operator.api.load import InvalidSpec, load_spec
from slurm_operator.api.names import keys_secret
from slurm_operator.api.others import AccountingSpec
from slurm_operator.controllers.accounting import choose_keys
from slurm_operator.controllers.base import Waiting
from slurm_operator.desired import accounting as build
from slurm_operator.desired.conf_syntax import BadConf
from slurm_operator.desired.parts import Cluster

STORAGE = {"host": "db.example.com", "username": "slurm"}
OWNER: dict[str, Any] = {
    "apiVersion": "slinky.slurm.net/v1beta1",
    "kind": "Accounting",
    "metadata": {"name": "acc", "namespace": "ns", "uid": "u-1"},
}


def spec(**fields: Any) -> AccountingSpec:
    return load_spec(AccountingSpec, {"spec": {"slurmdbd": {"image": "dbd:1"}, "storageConfig": STORAGE, **fields}})


def conf(password: str = "secret", **fields: Any) -> dict[str, str]:
    text = build.slurmdbd_conf("acc", spec(**fields), password)
    pairs = [line.partition("=")[::2] for line in text.splitlines()]
    assert len({name.lower() for name, _ in pairs}) == len(pairs), f"a parameter is there twice:\n{text}"
    return dict(pairs)


def test_slurmdbd_conf() -> None:
    assert conf() == {
        "DbdHost": "acc-accounting-0",
        "DbdPort": "6819",
        "SlurmUser": "slurm",
        "PidFile": "/run/slurmdbd/slurmdbd.pid",
        "AuthType": "auth/slurm",
        "AuthInfo": "use_client_ids",
        "AuthAltTypes": "auth/jwt",
        "AuthAltParameters": "jwt_key=/etc/slurm/jwt.key",
        "StorageType": "accounting_storage/mysql",
        "StorageHost": "db.example.com",
        "StoragePort": "3306",
        "StorageLoc": "slurm_acct_db",
        "StorageUser": "slurm",
        "StoragePass": "secret",
    }
    assert "StoragePass" not in conf(password="")


def test_lines_of_the_user_take_the_place_of_ours_and_lists_are_joined() -> None:
    extra = "authinfo=ttl=60\nPidFile=/run/x.pid\nStorageParameters=SSL_CA=/etc/ca/ca.pem # RDS\nDebugLevel=verbose\n"
    made = conf(extraConf=extra)
    assert made["AuthInfo"] == "use_client_ids,ttl=60"
    assert made["PidFile"] == "/run/x.pid"
    assert made["StorageParameters"] == "SSL_CA=/etc/ca/ca.pem"
    assert made["DebugLevel"] == "verbose"
    keyset = {"name": "set", "key": "jwks"}
    assert conf(jwksKeyRef=keyset)["AuthAltParameters"].endswith(",jwks=/etc/slurm/jwks.json")


@pytest.mark.parametrize(
    ("password", "written"),
    [
        ("plain-1!", "plain-1!"),
        ("a b", '"a b"'),
        ("a=b,c", '"a=b,c"'),
        ("hash#tag", r'"hash\#tag"'),
        ("back\\slash", r'"back\\slash"'),
        ('quo"te', 'quo"te'),
    ],
)
def test_passwords_are_written_as_slurm_reads_them(password: str, written: str) -> None:
    assert conf(password)["StoragePass"] == written


@pytest.mark.parametrize("password", ['"begins', 'with "blank', "line\nbreak"])
def test_a_password_that_cannot_be_written_is_refused(password: str) -> None:
    with pytest.raises(InvalidSpec, match=r"spec.storageConfig.passwordKeyRef"):
        conf(password)


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ("DbdPrt=1", r"line 1: DbdPrt is no parameter of slurmdbd.conf"),
        ("\nStorageHost=other", r"line 2: StorageHost is set by the operator; use spec.storageConfig"),
        ("DbdHost=x", r"DbdHost is set by the operator"),
        ("Include /etc/x", "Include"),
        ("nonsense", "no Key=Value"),
    ],
)
def test_what_slurmdbd_would_refuse_is_refused_before(extra: str, says: str) -> None:
    with pytest.raises(BadConf, match=says):
        conf(extraConf=extra)


@pytest.mark.parametrize("field", ["host", "username", "database"])
def test_a_database_is_needed(field: str) -> None:
    with pytest.raises(InvalidSpec, match=rf"spec.storageConfig.{field}"):
        conf(storageConfig={**STORAGE, field: ""})


def test_the_password_is_in_a_secret_that_goes_with_the_accounting() -> None:
    made = build.conf_secret(OWNER, "lab", "StoragePass=x\n")
    assert made["kind"] == "Secret"
    assert base64.b64decode(made["data"]["slurmdbd.conf"]) == b"StoragePass=x\n"
    assert made["metadata"]["ownerReferences"][0]["uid"] == "u-1"
    assert made["immutable"] is False


def pod(**fields: Any) -> dict[str, Any]:
    keys = build.keys_of(KeySelector(name="k", key="slurm.key"), KeySelector(name="j", key="jwt"), "lab")
    made = build.stateful_set(OWNER, spec(**fields), "lab", keys, {"hash": "1"})
    assert made["spec"]["replicas"] == 1
    assert made["spec"]["template"]["metadata"]["annotations"] == {"hash": "1"}
    return dict(made["spec"]["template"]["spec"])


def test_the_pod_needs_no_privilege() -> None:
    made = pod()
    assert made["securityContext"]["runAsNonRoot"] is True
    for one in [*made["initContainers"], *made["containers"]]:
        assert one["image"] == "dbd:1"
        assert one["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert one["securityContext"]["allowPrivilegeEscalation"] is False
        assert one["securityContext"]["readOnlyRootFilesystem"] is True
    assert made["automountServiceAccountToken"] is False
    # Killing it while it waits for its database would only add delays.
    assert "livenessProbe" not in made["containers"][0]


def test_a_bundle_of_certificates_is_mounted_by_the_template() -> None:
    volume = {"name": "ca", "configMap": {"name": "rds-ca"}}
    mount = {"name": "ca", "mountPath": "/etc/ca"}
    made = pod(template={"spec": {"volumes": [volume]}}, slurmdbd={"image": "dbd:1", "volumeMounts": [mount]})
    assert volume in made["volumes"]
    assert mount in made["containers"][0]["volumeMounts"]
    assert {"etc-slurm", "run", "tmp", "ca"} == {one["name"] for one in made["containers"][0]["volumeMounts"]}


def test_the_keys_of_the_cluster_are_those_that_follow_a_rotation() -> None:
    def files(slurm: KeySelector | None, jwt: KeySelector | None) -> list[tuple[str, str, str]]:
        return [(one.name, one.key, file) for one, file in build.keys_of(slurm, jwt, "lab")]

    mine = KeySelector(name="mine", key="k")
    own = keys_secret("lab")
    assert files(None, None) == [(own, name, name) for name in ("slurm.jwks", "slurm.key", "jwt.key")]
    assert files(mine, None) == [("mine", "k", "slurm.key"), (own, "jwt.key", "jwt.key")]


def test_whose_keys_slurmdbd_takes() -> None:
    def cluster(name: str, **fields: Any) -> Cluster:
        return Cluster(name, "ns", load_spec(ControllerSpec, {"spec": fields}))

    def names(spec: AccountingSpec, *clusters: Cluster) -> set[str]:
        return {one.name for one, _ in choose_keys("acc", spec, list(clusters))[0]}

    mine = {"slurmKeyRef": {"name": "mine", "key": "k"}}
    old, new = cluster("old"), cluster("new")
    with pytest.raises(Waiting, match="no Controller has accountingRef acc"):
        choose_keys("acc", spec(), [])
    both = spec(**mine, jwtKeyRef={"name": "jwt", "key": "k"})
    assert names(both) == {"mine", "jwt"}
    assert names(spec(), old, new) == {keys_secret("old")}
    assert names(spec(**mine), cluster("old", **mine)) == {keys_secret("old")}, "the same key, which may be rotated"
    assert names(spec(**mine), old) == {"mine", keys_secret("old")}
    assert "Controller new has another slurm key" in choose_keys("acc", spec(), [old, new])[1]
    assert "Controller old has another slurm key" in choose_keys("acc", spec(**mine), [old])[1]
    assert choose_keys("acc", spec(), [cluster("old", **mine), cluster("new", **mine)])[1] == ""


LOG = """\
[2026-11-21T13:19:39.984] error: mysql_real_connect failed: 1045 Access denied for user 'slurm'@'10.0.0.1'
[2026-11-21T13:19:39.984] error: The database must be up when starting the MYSQL plugin.  Trying again in 5 seconds.
"""


@pytest.mark.parametrize(
    ("log", "says"),
    [
        (LOG, "mysql_real_connect failed: 1045 Access denied for user 'slurm'@'10.0.0.1'"),
        ("[x] fatal: slurmdbd.conf file should be 600\n", "slurmdbd.conf file should be 600"),
        ("[x] error: Database settings not recommended values: innodb_buffer_pool_size\n[x] slurmdbd started", ""),
        ("", ""),
    ],
)
def test_its_log_tells_what_is_wrong(log: str, says: str) -> None:
    assert build.trouble(log) == says
