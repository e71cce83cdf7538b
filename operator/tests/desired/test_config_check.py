"""What is shown to the scratch Slurm, and what its answer means."""

from __future__ import annotations

from typing import Any

import pytest
from slurm_operator.desired import config_check as checks
from slurm_operator.desired.slurm_conf import ConfFiles, ConfInputs, conf_files

from desired.things import cluster, controller_spec, owner

CONTROLLER = owner("Controller", "lab")
WORKER = {"image": "slurmd:1"}


def files(extra: str = "", accounting: str = "", **given: str) -> ConfFiles:
    named = {name.replace("_", "."): text for name, text in given.items()}
    return conf_files(
        ConfInputs("lab", "slurm", controller_spec(extraConf=extra), files=named, accounting_host=accounting)
    )


def conf(extra: str = "", accounting: str = "") -> list[str]:
    return checks.scratch_files(files(extra, accounting))["slurm.conf"].splitlines()


def test_the_scratch_slurmctld_reaches_nobody_and_keeps_what_matters() -> None:
    text = conf(
        "AccountingStorageEnforce=limits\nSlurmctldPrimaryOnProg=/x\nPriorityWeightTRES=gres/gpu=9\nKillWait=7\n"
        'PartitionName=a Nodes=ALL TRESBillingWeights="CPU=1,gres/gpu=2" MaxTime=5',
        "db",
    )
    gone = ("AccountingStorage", "SlurmctldPrimaryOnProg", "PriorityWeightTRES", "SlurmctldAddr")
    assert not [line for line in text if line.startswith(gone)]
    assert "SlurmctldHost=config-check(127.0.0.1)" in text
    assert len([line for line in text if line.startswith("SlurmctldHost=")]) == 1
    assert {"KillWait=7", "PartitionName=a Nodes=ALL MaxTime=5", "StateSaveLocation=/tmp/state"} <= set(text)


def test_the_real_text_is_read_too() -> None:
    shown = checks.scratch_files(files("AccountingStorageEnforce=limits", "db"))
    assert "AccountingStorageEnforce=limits" in shown["config-check.conf"]


def test_devices_are_made_up_where_the_pod_has_none() -> None:
    text, devices = checks.made_up_devices("Name=gpu File=/dev/nvidia[0-2]\n# File=/dev/x\nName=nic File=/dev/a,/dev/b")
    assert devices == ["/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia2", "/dev/a", "/dev/b"]
    assert "File=/tmp/root/dev/nvidia[0-2]" in text
    assert "# File=/dev/x" in text


def test_a_broken_list_of_devices_is_left_for_slurm_to_refuse() -> None:
    assert checks.made_up_devices("Name=gpu File=/dev/nvidia[0-2") == ("Name=gpu File=/dev/nvidia[0-2\n", [])


def test_each_line_of_gres_conf_is_read_as_by_its_own_node() -> None:
    gres = "NodeName=a[1-2] Name=gpu Fil=/dev/x\nNodeName=b Name=gpu\nNodeName=b Name=nic"
    shown = checks.as_nodes_read(gres)
    assert shown[0] == gres
    assert [text.count("NodeName=config-check") for text in shown] == [0, 1, 2]


def test_every_kind_of_gres_has_a_node_that_makes_slurmd_read_gres_conf() -> None:
    shown = checks.scratch_files(files("GresTypes=gpu,shard"))
    assert shown["config-check.node"] == "NodeName=config-check CPUs=1 State=UNKNOWN Gres=gpu:1,shard:1\n"


def test_the_pod_has_no_privilege_no_network_name_and_the_clusters_images() -> None:
    given = {"tolerations": [{"key": "a"}], "imagePullSecrets": [{"name": "s"}], "volumes": [{"name": "big"}]}
    pod = checks.check_pod(CONTROLLER, cluster(template={"spec": given}), "0123456789", WORKER)["spec"]
    assert [one["image"] for one in pod["containers"]] == ["ctld:1", "slurmd:1"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert all(one["securityContext"]["capabilities"] == {"drop": ["ALL"]} for one in pod["containers"])
    assert pod["tolerations"] == [{"key": "a"}]
    assert pod["imagePullSecrets"] == [{"name": "s"}]
    assert not any(volume["name"] == "big" for volume in pod["volumes"])
    assert "secret" not in repr(pod["volumes"])
    assert len(checks.check_pod(CONTROLLER, cluster(), "0123456789", {})["spec"]["containers"]) == 1


def ended(**codes: tuple[int, str]) -> dict[str, Any]:
    statuses = [
        {"name": name, "state": {"terminated": {"exitCode": code, "message": message, "reason": "Error"}}}
        for name, (code, message) in codes.items()
    ]
    return {"status": {"phase": "Succeeded", "containerStatuses": statuses}}


@pytest.mark.parametrize(
    ("pod", "problem", "state", "says"),
    [
        (ended(slurmctld=(0, ""), slurmd=(0, "")), "", "good", ""),
        (
            ended(slurmctld=(1, "error: a\nerror: a\nfatal: b"), slurmd=(0, "")),
            "",
            "refused",
            "slurmctld: error: a / f",
        ),
        (ended(slurmctld=(0, ""), slurmd=(1, "fatal: g")), "", "refused", "slurmd: fatal: g"),
        (ended(slurmctld=(137, ""), slurmd=(0, "")), "", "stuck", "slurmctld ended with exit code 137"),
        ({"status": {"phase": "Pending"}}, "", "pending", ""),
        ({"status": {"phase": "Pending"}}, "no node fits", "stuck", "no node fits"),
        ({"status": {"phase": "Failed"}}, "Evicted", "stuck", "Evicted"),
        ({}, "", "pending", ""),
    ],
)
def test_what_the_pods_end_means(pod: dict[str, Any], problem: str, state: str, says: str) -> None:
    found = checks.verdict(pod, problem)
    assert found.state == state
    assert says in found.message


def test_one_container_that_goes_on_is_no_verdict() -> None:
    pod = ended(slurmd=(0, ""))
    pod["status"]["containerStatuses"].append({"name": "slurmctld", "state": {"running": {}}})
    assert checks.verdict(pod, "").state == "pending"


def test_another_content_has_another_name() -> None:
    names = {checks.digest(files(extra), image) for extra in ("", "KillWait=9") for image in ("", "slurmd:1")}
    assert len(names) == 4
    assert checks.digest(files(), "slurmd:1") == checks.digest(files(), "slurmd:2")


def test_names_that_the_check_needs_are_refused() -> None:
    assert checks.clashing(["gres.conf", "config-check.node"]) == ["config-check.node"]
