"""Accounting, login pods, ssh in workers and tokens, with a real MariaDB and a real LDAP server.

The tests share one cluster and run in this order; each leaves two idle workers behind.
"""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from slurm_operator.api.names import keys_secret
from support import backing
from support.commands import eventually
from support.lab import NAMESPACE, Lab, running_lab

from images.tags import image_tag
from localcloud.paths import ECR_REGISTRY

pytestmark = pytest.mark.cluster

PASSWORD = "a#b c\\d'e=f"
DBD = f"{ECR_REGISTRY}/slipway/slurmdbd:{image_tag('slurmdbd')}"
SSH = (
    "ssh -n -i ~alice/id -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR -o BatchMode=yes"
)
GROUP = "slinky.slurm.net/v1beta1"


def secret(name: str, **values: str) -> dict[str, Any]:
    meta = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "stringData": values}


def resource(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": GROUP, "kind": kind, "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}


SSSD = """\
[sssd]
services = nss, pam, ssh
domains = example
[domain/example]
id_provider = ldap
auth_provider = none
ldap_uri = ldap://ldap.slurm.svc.cluster.local
ldap_id_use_start_tls = false
ldap_search_base = dc=example,dc=com
ldap_user_ssh_public_key = sshPublicKey
"""


class Services(Lab):
    """What the tests need besides the lab; `image` is that of MariaDB and OpenLDAP."""

    image: str
    public: str

    def patch(self, kind: str, name: str, spec: dict[str, Any]) -> None:
        self.kubectl("-n", NAMESPACE, "patch", kind, name, "--type=merge", "-p", json.dumps({"spec": spec}))

    def uids(self, app: str) -> set[str]:
        pods = self.ours("pods", "-l", f"app.kubernetes.io/name={app}")["items"]
        return {pod["metadata"]["uid"] for pod in pods if "deletionTimestamp" not in pod["metadata"]}

    def database(self, *, reachable: bool) -> None:
        """Whether new connections to MariaDB come through; it keeps its data."""
        self.patch("service", "db", {"selector": {"app": "db" if reachable else "nobody"}})

    def sacct(self, job: str) -> str:
        return self.alice(f"sacct -n -X -P -j {job} -o User,State,NNodes").strip()


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    folder = tmp_path_factory.mktemp("lab")
    with running_lab(folder) as here:
        here.__class__ = Services
        assert isinstance(here, Services)
        here.image = backing.image(here.inst)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "t", "-f", folder / "id"], check=True)
        here.public = (folder / "id.pub").read_text().strip()
        storage = {"host": "db.slurm", "passwordKeyRef": {"name": "db", "key": "password"}}
        slurmdbd = {"image": {"tag": image_tag("slurmdbd")}}
        here.apply(*backing.mariadb(here.image, NAMESPACE, "db", PASSWORD), secret("db", password="wrong"))
        here.database(reachable=False)
        here.install_slurm(
            accounting={"enabled": True, "slurmdbd": slurmdbd, "storageConfig": storage},
            users=[
                {"name": "alice", "uid": 2001, "sshAuthorizedKeys": [here.public]},
                {"name": "bob", "uid": 2002, "sshAuthorizedKeys": [here.public]},
            ],
            nodesets={"debug": {"replicas": 2, "partition": {"enabled": True}, "ssh": {"enabled": True}}},
            tokens={"ci": {"username": "alice", "lifetime": "1h"}},
        )
        yield here


# --- Accounting ---


def test_a_cluster_waits_for_its_first_slurmdbd_and_says_why(lab: Services) -> None:
    def says(text: str) -> None:
        eventually(lambda: text in lab.condition("accounting", "slurm")["message"], f"it says {text}", 90)

    says("Can't connect to server on 'db.slurm'")
    assert lab.condition("accounting", "slurm", "Degraded")["status"] == "True"
    assert lab.condition("slurmctld", "slurm")["reason"] == "AccountingNotReady"
    lab.database(reachable=True)
    says("Access denied for user 'slurm'")
    lab.apply(secret("db", password=PASSWORD + "\n"))
    lab.wait_ready("slurmdbd/slurm")
    lab.wait_ready()
    assert lab.condition("accounting", "slurm", "Degraded")["status"] == "False"


def test_a_job_is_in_the_accounts(lab: Services) -> None:
    job = lab.alice("sbatch --parsable --wait -N2 -o /dev/null --wrap 'srun true'").strip()
    eventually(lambda: lab.sacct(job) == "alice|COMPLETED|2", "sacct shows the job")
    assert lab.alice("sacctmgr -n -P show cluster format=cluster").strip() == "lab"


def kill_slurmctld(lab: Services, signal: str) -> None:
    """End slurmctld, and wait until its container is ready again."""

    def restarts(*, ready: bool) -> int:
        found = lab.ours("pod", "slurm-controller-0")["status"]["containerStatuses"]
        return sum(int(one["restartCount"]) for one in found if one["name"] == "slurmctld" and one["ready"] >= ready)

    before = restarts(ready=False)
    command = ("-n", NAMESPACE, "exec", "slurm-controller-0", "-c", "slurmctld", "--", "sh", "-c")
    lab.kubectl(*command, f"kill -{signal} $(pidof slurmctld)", check=False)
    eventually(lambda: restarts(ready=True) == before + 1, "slurmctld is there again, after one start")


def test_slurmctld_may_be_killed_before_it_has_written_anything_about_accounts(lab: Services) -> None:
    """It ends for ever otherwise: "No Assoc usage file to recover"."""
    kill_slurmctld(lab, "KILL")
    eventually(lambda: {state for state, _ in lab.nodes().values()} == {"idle"}, "two idle workers")


def test_without_database_and_slurmdbd_jobs_go_on_and_slurmctld_starts(lab: Services) -> None:
    job = lab.alice(
        "touch here; sbatch --parsable -w debug-0 -o /dev/null --wrap 'while [ -e here ]; do sleep 0.2; done'"
    ).strip()
    eventually(lambda: lab.nodes()["debug-0"][0] == "allocated", "the job runs")
    lab.database(reachable=False)
    lab.kubectl("-n", NAMESPACE, "delete", "pod", "slurm-accounting-0", "--grace-period=0", "--force")
    eventually(lambda: lab.condition("accounting", "slurm")["status"] == "False", "it is noticed")
    kill_slurmctld(lab, "TERM")
    assert lab.nodes()["debug-0"][0].startswith("allocated")
    lab.alice("rm here")
    eventually(lambda: lab.nodes()["debug-0"][0] == "idle", "the job ends")
    lab.database(reachable=True)
    lab.wait_ready("slurmdbd/slurm")
    eventually(lambda: lab.sacct(job) == "alice|COMPLETED|1", "what slurmctld kept is in the accounts")


def test_another_cluster_uses_it_from_outside(lab: Services) -> None:
    key = {"name": "slurm-auth-slurm", "key": "slurm.key"}
    host = lab.ours("service", "slurm-accounting")["spec"]["clusterIP"]  # the operator of the lab is no pod: no names
    ctld = json.loads(lab.values.read_text())["controller"]["slurmctld"]["image"]["tag"]
    lab.apply(
        resource("Accounting", "outside", {"external": True, "externalConfig": {"host": host}}),
        resource(
            "Controller",
            "other",
            {
                "clusterName": "other",
                "slurmKeyRef": key,
                "jwtKeyRef": {"name": "slurm-auth-jwt", "key": "jwt.key"},
                "slurmctld": {"image": f"{ECR_REGISTRY}/slipway/slurmctld:{ctld}"},
                "persistence": {"enabled": False},
            },
        ),
    )
    lab.wait_ready("slurmdbd/outside", "slurmctld/other")
    lab.patch("slurmctld", "other", {"accountingRef": {"name": "outside"}})  # a cluster that runs gets accounting
    assert lab.condition("accounting", "outside")["reason"] == "External"
    clusters = "sacctmgr -n -P show cluster format=cluster"
    eventually(lambda: lab.alice(clusters).split() == ["lab", "other"], "both clusters are registered")
    lab.kubectl("-n", NAMESPACE, "delete", "slurmctld/other", "slurmdbd/outside")
    lab.apply(resource("Accounting", "nowhere", {"external": True, "externalConfig": {"host": "127.0.0.1", "port": 1}}))
    eventually(lambda: lab.condition("accounting", "nowhere")["reason"] == "NotAnswering", "nobody answers there")
    lab.kubectl("-n", NAMESPACE, "delete", "slurmdbd/nowhere")


def test_a_database_that_takes_only_tls(lab: Services) -> None:
    """RDS with require_secure_transport: the authority's certificate by a volume of the template."""
    lab.apply(*backing.mariadb(lab.image, NAMESPACE, "tls", PASSWORD, tls=True))
    lab.kubectl("-n", NAMESPACE, "rollout", "status", "statefulset/tls", "--timeout=90s")
    ca = lab.kubectl("-n", NAMESPACE, "exec", "tls-0", "--", "cat", "/tls/ca.pem")
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "ca", "namespace": NAMESPACE}}
    lab.apply({**config, "data": {"ca.pem": ca}})
    spec = {
        "slurmKeyRef": {"name": "slurm-auth-slurm", "key": "slurm.key"},
        "jwtKeyRef": {"name": "slurm-auth-jwt", "key": "jwt.key"},
        "slurmdbd": {"image": DBD, "volumeMounts": [{"name": "ca", "mountPath": "/ca"}]},
        "template": {"spec": {"volumes": [{"name": "ca", "configMap": {"name": "ca"}}]}},
        "storageConfig": {
            "host": "tls.slurm",
            "username": "slurm",
            "passwordKeyRef": {"name": "db", "key": "password"},
        },
        "extraConf": "StorageParameters=SSL_CA=/etc/hostname\n",
    }
    lab.apply(resource("Accounting", "secure", spec))
    eventually(lambda: "SSL" in lab.condition("accounting", "secure")["message"], "a wrong authority is no way in")
    lab.patch("accounting", "secure", {"extraConf": "StorageParameters=SSL_CA=/ca/ca.pem\n"})
    lab.wait_ready("slurmdbd/secure")
    lab.kubectl("-n", NAMESPACE, "delete", "slurmdbd/secure", "statefulset/tls")


# --- RestApi and Token ---


def token(lab: Services) -> str:
    data = lab.ours("secret", "ci-jwt-alice")["data"]["SLURM_JWT"]
    return base64.b64decode(data).decode()


def ask(lab: Services, path: str) -> str:
    """The answer of slurmrestd to a GET with the token, as the login pod sees it."""
    request = f"GET {path} HTTP/1.0\\r\\nX-SLURM-USER-TOKEN: {token(lab)}\\r\\n\\r\\n"
    return lab.alice(f"exec 3<>/dev/tcp/slurm-restapi/6820; printf '{request}' >&3; timeout 5 cat <&3 || true")


def test_a_token_opens_slurm_and_its_accounts(lab: Services) -> None:
    lab.wait_ready("token/ci")
    assert "200 OK" in ask(lab, "/slurm/v0.0.44/ping/")
    answer = ask(lab, "/slurmdb/v0.0.44/clusters/")
    assert "200 OK" in answer
    assert '"lab"' in answer
    owners = lab.ours("secret", "ci-jwt-alice")["metadata"]["ownerReferences"]
    assert [owner["kind"] for owner in owners] == ["Token"]


def test_a_changed_key_or_user_signs_the_token_anew(lab: Services) -> None:
    lab.apply(secret("mine", key="k" * 32))
    lab.patch("token", "ci", {"jwtKeyRef": {"name": "mine", "key": "key"}, "secretRef": {"name": "out", "key": "t"}})

    def signed() -> str:
        return str(lab.ours("secret", "out")["data"]["t"])

    eventually(signed, "the Secret is there")
    first = signed()
    lab.apply(secret("mine", key="n" * 32))
    eventually(lambda: signed() != first, "another key, another token")
    lab.kubectl("-n", NAMESPACE, "delete", "token", "ci")
    eventually(lambda: "NotFound" in lab.kubectl("-n", NAMESPACE, "get", "secret", "out", check=False), "it goes along")


# --- login pods ---


def test_settings_of_sshd_take_effect_and_nobody_is_thrown_out(lab: Services, tmp_path: Path) -> None:
    key = (lab.folder / "id").read_text()
    lab.kubectl(
        "-n", NAMESPACE, "exec", "-i", "deploy/slurm-login", "-c", "login", "--", "sh", "-c",
        "umask 077; cat >/home/alice/id; chown alice /home/alice/id", stdin=key,
    )  # fmt: skip
    before = lab.uids("login")
    stay = "while [ ! -e leave ]; do sleep 0.2; done; touch stayed"
    lab.alice(f"rm -f stayed; {SSH} localhost '{stay}' >/dev/null 2>&1 &")
    assert "denied" in lab.alice(f"{SSH} root@localhost true 2>&1 || true")
    changes = {"rootSshAuthorizedKeys": lab.public, "extraSshdConfig": "Banner /etc/hostname"}
    lab.patch("loginset", "slurm-login", changes)
    eventually(lambda: lab.alice(f"{SSH} root@localhost id -un 2>&1 || true").strip() == "root", "root may enter")

    def banner() -> str:
        return lab.alice(f"{SSH.replace('LogLevel=ERROR', 'LogLevel=INFO')} localhost true 2>&1 || true")

    eventually(lambda: "slurm-login" in banner(), "the banner is shown")
    assert lab.uids("login") == before
    lab.alice("touch leave")
    eventually(lambda: "stayed" in lab.alice("ls"), "the session went on")


def test_bad_settings_of_sshd_lock_nobody_out(lab: Services) -> None:
    lab.patch("loginset", "slurm-login", {"extraSshdConfig": "Banner none\nPermitRotLogin yes"})
    eventually(lambda: lab.condition("loginset", "slurm-login")["reason"] == "InvalidConfiguration", "it says so")
    assert "line 2: PermitRotLogin" in lab.condition("loginset", "slurm-login")["message"]
    # What only sshd can tell: the setting before stays in effect, also for a new pod no login is lost.
    lab.patch("loginset", "slurm-login", {"extraSshdConfig": "MaxAuthTries many"})
    logs = ("-n", NAMESPACE, "logs", "-l", "app.kubernetes.io/name=login", "-c", "login", "--tail=50")
    eventually(lambda: "sshd refuses 50-extra.conf" in lab.kubectl(*logs), "sshd's refusal is in the log", 90)
    assert lab.alice(f"{SSH} localhost id -un").strip() == "alice"
    lab.kubectl("-n", NAMESPACE, "delete", "pod", "-l", "app.kubernetes.io/name=login", "--grace-period=5")
    lab.wait_ready("loginset/slurm-login")
    assert lab.alice(f"{SSH} localhost id -un").strip() == "alice"
    lab.patch("loginset", "slurm-login", {"extraSshdConfig": ""})


def test_users_of_a_directory(lab: Services) -> None:
    people = backing.root_entry() + backing.person("carol", 3001, lab.public)
    lab.apply(*backing.slapd(lab.image, NAMESPACE, "ldap", people))
    lab.kubectl("-n", NAMESPACE, "rollout", "status", "statefulset/ldap", "--timeout=90s")
    lab.apply(secret("sssd", **{"sssd.conf": SSSD.replace("dc=com", "dc=org")}))
    lab.patch("loginset", "slurm-login", {"sssdConfRef": {"name": "sssd", "key": "sssd.conf"}})
    eventually(lambda: "sssd-conf" in str(lab.ours("deployment", "slurm-login")["spec"]), "the pods get it")
    lab.kubectl("-n", NAMESPACE, "rollout", "status", "deployment/slurm-login", "--timeout=90s")
    lab.wait_ready("loginset/slurm-login")
    assert lab.alice(f"{SSH} localhost id -un").strip() == "alice", "other users are not concerned"
    assert "no such user" in lab.alice("id carol 2>&1 || true")
    before = lab.uids("login")
    lab.apply(secret("sssd", **{"sssd.conf": SSSD}))
    eventually(lambda: "uid=3001(carol)" in lab.alice("id carol 2>&1 || true"), "the edit takes effect", 90)
    assert lab.uids("login") == before
    job = "cd; sbatch --wait -o out.txt --wrap 'srun id -u' >/dev/null; cat out.txt"
    assert lab.alice(f'{SSH} carol@localhost "{job}"').strip() == "3001"


# --- ssh in workers ---


def test_only_who_has_a_job_there_may_enter_a_worker(lab: Services) -> None:
    def enter(where: str) -> str:
        return lab.alice(f"{SSH} {where} 'hostname; echo job $SLURM_JOB_ID' 2>&1 || echo refused").strip()

    assert enter("alice@debug-0") == "refused"
    job = lab.alice("sbatch --parsable -w debug-0 -o /dev/null --wrap 'sleep 300'").strip()
    eventually(lambda: lab.nodes()["debug-0"][0] == "allocated", "the job runs")
    assert enter("alice@debug-0").split("\n") == ["debug-0", f"job {job}"]
    assert enter("alice@debug-1") == "refused"
    assert enter("bob@debug-0") == "refused"
    lab.alice("scancel -u alice")
    eventually(lambda: lab.nodes()["debug-0"][0] == "idle", "the job is over")
    assert enter("alice@debug-0") == "refused"


def test_settings_of_sshd_in_workers_drain_none(lab: Services) -> None:
    before = lab.uids("slurmd")
    lab.patch("nodeset", "debug", {"ssh": {"enabled": True, "extraSshdConfig": "Banner none"}})
    config = "debug-worker-ssh-config"
    eventually(lambda: "Banner" in lab.ours("configmap", config)["data"]["50-extra.conf"], "the setting is there")
    lab.wait_ready("nodeset/debug")
    assert lab.uids("slurmd") == before


def test_slurmdbd_follows_a_rotated_key(lab: Services) -> None:
    job = lab.alice(
        "touch here; sbatch --parsable -w debug-0 -o /dev/null --wrap 'while [ -e here ]; do sleep 0.2; done'"
    ).strip()
    before = lab.uids("slurmdbd")

    def keys() -> list[str]:
        text = base64.b64decode(lab.ours("secret", keys_secret("slurm"))["data"]["slurm.jwks"])
        return [str(one["k"]) for one in json.loads(text)["keys"]]

    (old,) = keys()
    lab.kubectl("-n", NAMESPACE, "delete", "secret", "slurm-auth-slurm")  # the operator makes a new one
    eventually(lambda: len(keys()) == 1 and keys() != [old], "only the new key is left", 300)
    lab.alice("rm here")
    eventually(lambda: lab.sacct(job) == "alice|COMPLETED|1", "the job is in the accounts")
    eventually(lambda: lab.uids("slurmdbd") not in (set(), before), "slurmdbd begins with the new key")
    lab.wait_ready("slurmdbd/slurm")


def test_the_operator_needed_no_more_rights_than_the_chart_gives(lab: Services) -> None:
    lines = [line["msg"] for line in lab.operator.lines()]
    assert [line for line in lines if "orbidden" in line or "OutsideTable" in line] == []
