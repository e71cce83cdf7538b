"""Chart slurm: what its values become."""

from __future__ import annotations

from typing import Any

import pytest

from tests.charts.helm import CHARTS, HelmError, Values, helm, render, template

FULL: Values = {
    "clusterName": "prod",
    "imageRegistry": "123456789012.dkr.ecr.us-east-1.amazonaws.com",
    "imagePullSecrets": [{"name": "pull"}],
    "users": [
        {
            "name": "alice",
            "uid": 2001,
            "groups": ["research"],
            "sshAuthorizedKeys": ["ssh-ed25519 AAAA a", "ssh-rsa BBBB b"],
        },
        {"name": "bob", "uid": 2002, "gid": 3000, "shell": "/bin/zsh"},
    ],
    "groups": [{"name": "research", "gid": 3000}],
    "home": {"persistentVolumeClaim": {"claimName": "home"}},
    "slurmKey": {"secretRef": {"name": "own", "key": "slurm.key"}},
    "configFiles": {"gres.conf": "AutoDetect=nvidia\n", "topology.yaml": "- topology: x\n"},
    "prologScripts": {"10-check": "#!/bin/sh\nexit 0\n"},
    "epilogScriptRefs": ["more-epilogs"],
    "controller": {
        "extraConf": "KillWait=10\n",
        "persistence": {"storageClassName": "gp3"},
        "podSpec": {"tolerations": [{"key": "CriticalAddonsOnly", "operator": "Exists"}], "priorityClassName": "high"},
    },
    "restapi": {"replicas": 2},
    "accounting": {"enabled": True, "external": True, "externalConfig": {"host": "db"}},
    "loginsetDefaults": {"rootSshAuthorizedKeys": "ssh-ed25519 CCCC"},
    "loginsets": {"login": {"replicas": 2, "service": {"spec": {"type": "LoadBalancer"}}}, "off": {"enabled": False}},
    "nodesetDefaults": {"podSpec": {"nodeSelector": {"kubernetes.io/os": "linux"}}},
    "nodesets": {
        "gpu": {
            "replicas": 4,
            "slurmd": {"resources": {"limits": {"nvidia.com/gpu": 8}}},
            "extraConfMap": {"Gres": "gpu:h100:8", "Features": ["nvlink", "efa"]},
            "partition": {"enabled": True, "configMap": {"MaxTime": "1-0", "Default": "YES"}},
            "podSpec": {"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]},
        },
        "spot": {
            "autoscaled": True,
            "scalingMode": "StatefulSet",
            "pinToNode": True,
            "pruneSlurmNodeRecords": "NodeNotFound",
            "revisionHistoryLimit": 3,
            "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {"storageClassName": "gp3"}}],
            "persistentVolumeClaimRetentionPolicy": {"whenScaled": "Delete"},
        },
    },
    "partitions": {
        "all": {"nodesets": ["gpu", "spot"], "config": "MaxTime=UNLIMITED"},
        "no": {"enabled": False, "nodesets": ["ALL"]},
    },
    "tokens": {"ci": {"username": "alice", "lifetime": "1h"}},
    "extraObjects": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "extra"}}],
}


def spec(kind: str, name: str, values: Values | None = None) -> Any:
    return render("slurm", values)[kind, name]["spec"]


def test_the_defaults_are_a_cluster_without_workers() -> None:
    assert set(render("slurm")) == {("Controller", "slurm"), ("RestApi", "slurm"), ("LoginSet", "slurm-login")}


def test_everything_at_once() -> None:
    assert set(render("slurm", FULL)) == {
        ("Controller", "slurm"), ("RestApi", "slurm"), ("Accounting", "slurm"), ("LoginSet", "slurm-login"),
        ("NodeSet", "gpu"), ("NodeSet", "spot"), ("Token", "ci"), ("ConfigMap", "slurm-config-files"),
        ("ConfigMap", "slurm-prolog-scripts"), ("ConfigMap", "slurm-users"), ("ConfigMap", "slurm-authorized-keys"),
        ("ConfigMap", "extra"),
    }  # fmt: skip


def test_rendering_twice_gives_the_same_and_no_secret() -> None:
    assert template("slurm", FULL) == template("slurm", FULL)
    assert "kind: Secret" not in template("slurm", FULL)


def test_helm_lint_is_content() -> None:
    for chart in ("slurm", "slurm-operator"):
        assert "0 chart(s) failed" in helm("lint", "--strict", str(CHARTS / chart))


def test_the_controller() -> None:
    made = spec("Controller", "slurm", FULL)
    assert made["clusterName"] == "prod"
    assert made["slurmKeyRef"] == {"name": "own", "key": "slurm.key"}
    assert "jwtKeyRef" not in made
    assert made["accountingRef"] == {"name": "slurm"}
    assert made["extraConf"].splitlines() == ["KillWait=10", "PartitionName=all Nodes=gpu,spot MaxTime=UNLIMITED"]
    assert made["configFileRefs"] == [{"name": "slurm-config-files"}]
    assert made["prologScriptRefs"] == [{"name": "slurm-prolog-scripts"}]
    assert made["epilogScriptRefs"] == [{"name": "more-epilogs"}]
    assert made["persistence"]["storageClassName"] == "gp3"
    assert made["template"]["spec"]["priorityClassName"] == "high"
    assert made["template"]["spec"]["imagePullSecrets"] == [{"name": "pull"}]


def test_no_persistence_is_said_and_not_left_out() -> None:
    made = spec("Controller", "slurm", {"controller": {"persistence": {"enabled": False}, "inplaceReconfigure": False}})
    assert made["persistence"]["enabled"] is False
    assert made["inplaceReconfigure"] is False


def test_images() -> None:
    def image(**fields: Any) -> str:
        return str(
            spec("Controller", "slurm", {"controller": {"slurmctld": {"image": fields}}, **registry})["slurmctld"][
                "image"
            ]
        )

    registry: Values = {}
    assert image() == "slipway/slurmctld:26.05"
    assert image(tag="x") == "slipway/slurmctld:x"
    assert image(digest=f"sha256:{'a' * 64}") == f"slipway/slurmctld@sha256:{'a' * 64}"
    registry = {"imageRegistry": "reg.example.com:5000/team/"}
    assert image() == "reg.example.com:5000/team/slipway/slurmctld:26.05"
    assert image(repository="ghcr.io/slinkyproject/slurmctld", tag=26.05) == "ghcr.io/slinkyproject/slurmctld:26.05"
    assert image(repository="localhost/x") == "localhost/x:26.05"


def test_nodesets() -> None:
    gpu, spot = spec("NodeSet", "gpu", FULL), spec("NodeSet", "spot", FULL)
    assert gpu["replicas"] == 4
    assert "replicas" not in spot
    assert spot["volumeClaimTemplates"] == [{"metadata": {"name": "data"}, "spec": {"storageClassName": "gp3"}}]
    assert spot["persistentVolumeClaimRetentionPolicy"] == {"whenScaled": "Delete"}
    assert (spot["pinToNode"], spot["pruneSlurmNodeRecords"], spot["revisionHistoryLimit"]) == (True, "NodeNotFound", 3)
    assert gpu["extraConf"] == "Features=nvlink,efa Gres=gpu:h100:8"
    assert gpu["partition"] == {"enabled": True, "config": "Default=YES MaxTime=1-0"}
    assert gpu["slurmd"]["resources"] == {"limits": {"nvidia.com/gpu": 8}}
    assert gpu["template"]["spec"]["nodeSelector"] == {"kubernetes.io/os": "linux"}
    assert {mount["mountPath"] for mount in gpu["slurmd"]["volumeMounts"]} == {"/var/lib/extrausers", "/home"}
    assert {volume["name"] for volume in gpu["template"]["spec"]["volumes"]} == {"users", "home"}


def test_what_becomes_of_jobs_is_a_policy_beside_the_nodeset() -> None:
    drain = {"scaleIn": {"mode": "WaitThenRequeue", "timeLimit": "2h"}, "cordonKubernetesNode": True}
    made = render("slurm", {"nodesets": {"gpu": {"drain": drain}, "cpu": {}}})
    assert made["DrainPolicy", "gpu"]["spec"] == {"nodeSets": ["gpu"], **drain}
    assert ("DrainPolicy", "cpu") not in made


def test_a_new_chart_version_does_not_replace_workers() -> None:
    """Workers are made from the template: nothing of the release may be in it."""
    for kind, name in (("NodeSet", "gpu"), ("LoginSet", "slurm-login"), ("Controller", "slurm")):
        assert "helm" not in str(spec(kind, name, FULL)).lower()


def test_login_sets() -> None:
    made = spec("LoginSet", "slurm-login", FULL)
    assert made["replicas"] == 2
    assert made["rootSshAuthorizedKeys"] == "ssh-ed25519 CCCC"
    assert made["service"] == {"spec": {"type": "LoadBalancer"}}
    assert "/etc/ssh/authorized_keys.d" in {mount["mountPath"] for mount in made["login"]["volumeMounts"]}


def test_accounts() -> None:
    made = render("slurm", FULL)
    data = made["ConfigMap", "slurm-users"]["data"]
    assert data["passwd"].splitlines() == [
        "alice:x:2001:2001:alice:/home/alice:/bin/bash",
        "bob:x:2002:3000:bob:/home/bob:/bin/zsh",
    ]
    assert data["group"].splitlines() == ["alice:x:2001:", "research:x:3000:alice"]
    assert [line.split(":")[:2] for line in data["shadow"].splitlines()] == [["alice", "*"], ["bob", "*"]]
    assert made["ConfigMap", "slurm-authorized-keys"]["data"] == {"alice": "ssh-ed25519 AAAA a\nssh-rsa BBBB b\n"}
    assert render("slurm", {"users": [{"name": "x", "uid": 600}]})["ConfigMap", "slurm-authorized-keys"]["data"] == {}


def test_the_release_names_things() -> None:
    assert ("Controller", "lab-slurm") in render("slurm", release="lab")
    assert ("LoginSet", "prod-login") in render("slurm", {"fullnameOverride": "prod"})


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"nodesets": {"gpu": {"replica": 3}}}, "replica"),
        ({"nodeset": {}}, "nodeset"),
        ({"nodesets": {"GPU": {}}}, "GPU"),
        ({"nodesets": {"gpu": {"replicas": -1}}}, "replicas"),
        ({"nodesets": {"gpu": {"partition": {"config": "a\nb"}}}}, "config"),
        ({"users": [{"name": "alice"}]}, "uid"),
        ({"users": [{"name": "root", "uid": 600}]}, "name"),
        ({"users": [{"name": "a", "uid": 1}]}, "uid"),
        ({"users": [{"name": "a", "uid": 600}, {"name": "b", "uid": 600}]}, "b has the uid 600 of another user"),
        ({"users": [{"name": "a", "uid": 600}, {"name": "a", "uid": 601}]}, "a is there twice"),
        ({"users": [{"name": "a", "uid": 600, "groups": ["x"]}]}, "group x, which is not in"),
        ({"partitions": {"all": {"nodesets": ["gpu"]}}}, 'there is no NodeSet "gpu"'),
        ({"configFiles": {"slurm.conf": "x"}}, "slurm.conf"),
        ({"clusterName": "x" * 41}, "clusterName"),
        ({"home": {"emptyDir": {}, "hostPath": {}}}, "home"),
    ],
)
def test_wrong_values_are_refused_with_their_name(values: Values, says: str) -> None:
    with pytest.raises(HelmError) as caught:
        template("slurm", values)
    assert says in str(caught.value)
