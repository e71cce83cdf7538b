"""Chart slurm: accounting, SSSD, ssh in workers, disruption budgets and tokens."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.charts.helm import HelmError, Values, render, template

DATABASE: Values = {"host": "db.example.com", "passwordKeyRef": {"name": "db", "key": "password"}}
ACCOUNTING: Values = {"accounting": {"enabled": True, "storageConfig": DATABASE}}


def spec(kind: str, name: str, values: Values | None = None) -> Any:
    return render("slurm", values)[kind, name]["spec"]


def test_accounting_is_off_by_default() -> None:
    made = render("slurm")
    assert ("Accounting", "slurm") not in made
    assert "accountingRef" not in made["Controller", "slurm"]["spec"]


def test_slurmdbd() -> None:
    made = spec("Accounting", "slurm", ACCOUNTING)
    assert made["storageConfig"] == {
        "host": "db.example.com",
        "port": 3306,
        "database": "slurm_acct_db",
        "username": "slurm",
        "passwordKeyRef": {"name": "db", "key": "password"},
    }
    assert made["slurmdbd"]["image"] == "slipway/slurmdbd:26.05"
    assert "slurmKeyRef" not in made, "the operator takes the Controller's"
    assert spec("Controller", "slurm", ACCOUNTING)["accountingRef"] == {"name": "slurm"}


def test_slurmdbd_with_everything() -> None:
    more: Values = {
        "storageCA": {"configMap": "rds-ca", "key": "global-bundle.pem"},
        "extraConfMap": {"DebugLevel": "verbose", "PurgeJobAfter": "12month"},
        "podSpec": {"nodeSelector": {"a": "b"}},
        "service": {"port": 6900},
        "slurmdbd": {"args": ["-v"], "volumeMounts": [{"name": "x", "mountPath": "/x"}]},
    }
    values: Values = {
        "accounting": {**ACCOUNTING["accounting"], **more},
        "slurmKey": {"secretRef": {"name": "own", "key": "k"}},
        "jwksKeys": {"enabled": True, "configMapRef": {"name": "set", "key": "jwks"}},
    }
    made = spec("Accounting", "slurm", values)
    lines = "DebugLevel=verbose\nPurgeJobAfter=12month\nStorageParameters=SSL_CA=/etc/slurmdbd-ca/global-bundle.pem\n"
    assert made["extraConf"] == lines
    assert made["template"]["spec"]["volumes"] == [{"name": "storage-ca", "configMap": {"name": "rds-ca"}}]
    assert made["template"]["spec"]["nodeSelector"] == {"a": "b"}
    assert [one["mountPath"] for one in made["slurmdbd"]["volumeMounts"]] == ["/x", "/etc/slurmdbd-ca"]
    assert made["slurmKeyRef"] == {"name": "own", "key": "k"}
    assert made["jwksKeyRef"] == {"name": "set", "key": "jwks"}
    assert made["service"] == {"port": 6900}
    ca: Values = {"storageCA": {"secret": "ca", "key": "ca.pem"}}
    values = {"accounting": {**ACCOUNTING["accounting"], **ca}}
    volumes = spec("Accounting", "slurm", values)["template"]["spec"]["volumes"]
    assert volumes == [{"name": "storage-ca", "secret": {"secretName": "ca"}}]


def test_an_external_slurmdbd_needs_no_database() -> None:
    where = {"host": "dbd", "port": 7000}
    made = spec("Accounting", "slurm", {"accounting": {"enabled": True, "external": True, "externalConfig": where}})
    assert made == {"external": True, "externalConfig": where}


def test_users_of_a_directory() -> None:
    values: Values = {
        "sssd": {"enabled": True, "conf": "[sssd]\n"},
        "nodesets": {"gpu": {"ssh": {"enabled": True}}, "cpu": {}},
    }
    made = render("slurm", values)
    reference = {"name": "slurm-sssd", "key": "sssd.conf"}
    assert made["Secret", "slurm-sssd"]["stringData"] == {"sssd.conf": "[sssd]\n"}
    assert made["LoginSet", "slurm-login"]["spec"]["sssdConfRef"] == reference
    assert made["NodeSet", "gpu"]["spec"]["ssh"] == {"enabled": True, "sssdConfRef": reference}
    assert "ssh" not in made["NodeSet", "cpu"]["spec"]
    own = {"name": "mine", "key": "conf"}
    made = render("slurm", {"sssd": {"enabled": True, "secretRef": own}})
    assert ("Secret", "slurm-sssd") not in made
    assert made["LoginSet", "slurm-login"]["spec"]["sssdConfRef"] == own


def test_workers_with_ssh_know_the_keys_of_users() -> None:
    users = [{"name": "alice", "uid": 2001, "sshAuthorizedKeys": ["ssh-ed25519 A"]}]
    made = spec("NodeSet", "gpu", {"users": users, "nodesets": {"gpu": {"ssh": {"enabled": True}}}})
    assert "/etc/ssh/authorized_keys.d" in {one["mountPath"] for one in made["slurmd"]["volumeMounts"]}
    made = spec("NodeSet", "gpu", {"users": users, "nodesets": {"gpu": {}}})
    assert "/etc/ssh/authorized_keys.d" not in {one["mountPath"] for one in made["slurmd"]["volumeMounts"]}


def test_disruption_budgets_where_asked() -> None:
    assert not [name for kind, name in render("slurm") if kind == "PodDisruptionBudget"]
    values: Values = {
        "restapi": {"replicas": 2, "podDisruptionBudget": {"enabled": True, "minAvailable": 1}},
        "loginsets": {"login": {"podDisruptionBudget": {"enabled": True}}},
    }
    made = spec("PodDisruptionBudget", "slurm-restapi", values)
    labels = {"app.kubernetes.io/name": "slurmrestd", "app.kubernetes.io/instance": "slurm"}
    assert made == {"minAvailable": 1, "selector": {"matchLabels": labels}}
    made = spec("PodDisruptionBudget", "slurm-login", values)
    labels = {"app.kubernetes.io/name": "login", "app.kubernetes.io/instance": "slurm-login"}
    assert made == {"maxUnavailable": 1, "selector": {"matchLabels": labels}}


def test_dcgm_learns_which_job_has_which_gpu(tmp_path: Path) -> None:
    folder = tmp_path / "jobs"
    values: Values = {
        "vendor": {"nvidia": {"dcgm": {"enabled": True, "jobMappingDir": str(folder)}}},
        "nodesets": {"gpu": {"slurmd": {"resources": {"limits": {"nvidia.com/gpu": 8}}}}, "cpu": {}},
        "prologScripts": {"10-own.sh": "#!/bin/sh\n"},
    }
    made = render("slurm", values)
    refs = made["Controller", "slurm"]["spec"]
    assert refs["prologScriptRefs"] == [{"name": "slurm-dcgm-prolog"}, {"name": "slurm-prolog-scripts"}]
    assert refs["epilogScriptRefs"] == [{"name": "slurm-dcgm-epilog"}]
    gpu, cpu = made["NodeSet", "gpu"]["spec"], made["NodeSet", "cpu"]["spec"]
    assert {"name": "dcgm-jobs", "mountPath": str(folder)} in gpu["slurmd"]["volumeMounts"]
    assert "dcgm" not in str(cpu)

    def run(when: str, job: int, gpus: str) -> None:
        script = made["ConfigMap", f"slurm-dcgm-{when}"]["data"]["90-dcgm.sh"]
        environment = {"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": str(job), "SLURM_JOB_GPUS": gpus}
        subprocess.run(["bash", "-c", script], env=environment, check=True)

    def jobs() -> dict[str, list[str]]:
        return {file.name: file.read_text().split() for file in folder.iterdir()}

    run("prolog", 7, "0,1")
    run("prolog", 17, "1")
    run("prolog", 8, "")
    assert jobs() == {"0": ["7"], "1": ["7", "17"]}
    run("epilog", 7, "0,1")
    assert jobs() == {"1": ["17"]}
    run("epilog", 17, "1")
    run("epilog", 17, "1")
    assert jobs() == {}


def test_the_same_comes_out_twice() -> None:
    values: Values = {**ACCOUNTING, "sssd": {"enabled": True, "conf": "x"}, "tokens": {"ci": {"username": "alice"}}}
    assert template("slurm", values) == template("slurm", values)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"accounting": {"enabled": True}}, "accounting.storageConfig.host"),
        ({"accounting": {"enabled": True, "external": True}}, "accounting.externalConfig.host"),
        ({"accounting": {"storageConfig": {"hots": "x"}}}, "hots"),
        ({"accounting": {"storageCA": {"configMap": "x"}}}, "storageCA"),
        ({"accounting": {"storageCA": {"configMap": "x", "secret": "y", "key": "z"}}}, "storageCA"),
        ({"sssd": {"enabled": True}}, "sssd.conf"),
        ({"nodesets": {"gpu": {"ssh": {"on": True}}}}, "on"),
        ({"restapi": {"podDisruptionBudget": {"max": 1}}}, "max"),
    ],
)
def test_wrong_values_are_refused_with_their_name(values: Values, says: str) -> None:
    with pytest.raises(HelmError) as caught:
        template("slurm", values)
    assert says in str(caught.value)
