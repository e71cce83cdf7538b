"""slurm.conf: defaults, overrides, partitions, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from slurm_operator.desired.conf_syntax import BadConf, parse
from slurm_operator.desired.slurm_conf import ConfInputs, Group, conf_files, max_node_count, slurm_conf

from desired.things import controller_spec


def conf(extra: str = "", *groups: Group, **fields: Any) -> str:
    inputs = {name: fields.pop(name) for name in list(fields) if name in ConfInputs.__dataclass_fields__}
    spec = controller_spec(extraConf=extra, **fields)
    return slurm_conf(ConfInputs("lab", "slurm", spec, groups, **inputs))


def values(text: str, name: str) -> list[str]:
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    return [line.split("=", 1)[1] for line in lines if line.split("=", 1)[0].lower() == name.lower()]


def test_the_basics() -> None:
    text = conf()
    assert values(text, "ClusterName") == ["slurm_lab"]
    assert values(text, "SlurmctldHost") == ["lab-controller-0(lab-controller-0.lab-controller-internal.slurm)"]
    assert values(text, "SlurmctldAddr") == ["lab-controller.slurm"]
    assert values(text, "AuthAltParameters") == ["jwt_key=/etc/slurm/jwt.key"]
    assert values(text, "ReturnToService") == ["2"]
    assert values(text, "GresTypes") == ["gpu"]
    assert values(text, "MetricsType") == ["metrics/openmetrics"]
    assert values(text, "AccountingStorageType") == []
    assert values(conf(clusterName="prod"), "ClusterName") == ["prod"]
    assert values(conf(metrics={"enabled": False}), "MetricsType") == []


def test_every_line_is_one_that_our_own_check_takes() -> None:
    text = conf("", Group("gpu", 2, "MaxTime=1-0"), accounting_host="db", prolog={"a": ""}, epilog_slurmctld={"b": ""})
    assert parse(text, "slurm.conf")


def test_what_the_user_sets_takes_the_place_of_the_default() -> None:
    text = conf("returntoservice=0\nSlurmdTimeout=33 # short\n\nGresTypes=gpu,mps")
    assert values(text, "ReturnToService") == ["0"]
    assert values(text, "SlurmdTimeout") == ["33"]
    assert values(text, "GresTypes") == ["gpu,mps"]


def test_lists_that_the_operator_needs_are_joined() -> None:
    text = conf("SlurmctldParameters=conmgr_threads=8,Enable_Configless\nAuthInfo=cred_expire=60")
    assert values(text, "SlurmctldParameters") == ["enable_configless,reconfig_on_restart,conmgr_threads=8"]
    assert values(text, "AuthInfo") == ["use_client_ids,cred_expire=60"]


def test_a_parameter_given_twice_counts_as_given_last() -> None:
    assert values(conf("KillWait=10\nKillWait=20"), "KillWait") == ["20"]


def test_several_parameters_on_a_line_and_lines_that_go_on() -> None:
    text = conf("KillWait=10 MaxJobCount=500\nSchedulerParameters=bf_continue,\\\nbf_interval=5\nInclude more.conf")
    assert values(text, "KillWait") == ["10"]
    assert values(text, "MaxJobCount") == ["500"]
    assert "Include more.conf" in text.splitlines()


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        (
            "SlurmdTimout=30",
            "line 1: SlurmdTimout is no parameter of slurm.conf of Slurm 26.05; did you mean SlurmdTimeout",
        ),
        ("KillWait=10\nnonsense", "line 2: 'nonsense' is no Key=Value"),
        ("KillWait=soon", "line 1: KillWait=soon: a number"),
        ("TrackWCKey=maybe", "line 1: TrackWCKey=maybe: YES or NO"),
        ("KillWait=", "line 1: KillWait has no value"),
        ("ClusterName=other", "line 1: ClusterName is set by the operator to slurm_lab"),
        ("SlurmctldHost=me", "line 1: SlurmctldHost is set by the operator"),
        (
            "PartitionName=a Nodes=ALL MaxTim=3",
            "line 1: MaxTim is no partition parameter of Slurm 26.05; did you mean MaxTime",
        ),
        ("PartitionName=a Hidden=perhaps", "Hidden=perhaps: YES or NO"),
        ("NodeName=a CPU=3", "line 1: CPU is no node parameter"),
    ],
)
def test_what_slurmctld_would_die_of_is_refused(extra: str, says: str) -> None:
    with pytest.raises(BadConf, match=r"^spec\.extraConf, ") as caught:
        conf(extra)
    assert says in str(caught.value)


def test_saying_what_is_so_anyway_is_no_fault() -> None:
    assert values(conf("AuthType=auth/slurm"), "AuthType") == ["auth/slurm"]


def test_partitions_of_nodesets() -> None:
    text = conf(
        "", Group("gpu", 2, "MaxTime=1-0 Default=NO", "b"), Group("cpu", 1, "", "c"), Group("none", 1, None, "a")
    )
    assert [line for line in text.splitlines() if line.startswith(("NodeSet", "Partition"))] == [
        "NodeSet=cpu Feature=cpu",
        "NodeSet=gpu Feature=gpu",
        "NodeSet=none Feature=none",
        "PartitionName=cpu Nodes=cpu Default=YES",
        "PartitionName=gpu Nodes=gpu MaxTime=1-0 Default=NO",
    ]


def test_a_new_partition_does_not_take_the_default_away() -> None:
    old, new = Group("z-old", 1, "", "2026-01-01T00:00:00Z"), Group("a-new", 1, "", "2026-02-01T00:00:00Z")
    assert "PartitionName=z-old Nodes=z-old Default=YES" in conf("", old, new)
    assert "Default=YES" not in conf("", Group("x", 1, "Default=yes"), new).replace("Default=yes", "")
    assert conf("PartitionName=all Nodes=ALL Default=YES", old, new).count("Default=YES") == 1


@pytest.mark.parametrize("config", ["MaxTim=1", "Nodes=other", "word"])
def test_a_bad_partition_names_its_nodeset(config: str) -> None:
    with pytest.raises(BadConf, match=r"NodeSet gpu: spec\.partition\.config"):
        conf("", Group("gpu", 1, config))


def test_cgroups_follow_the_users_cgroup_conf() -> None:
    assert values(conf(), "ProctrackType") == ["proctrack/linuxproc"]
    assert values(conf(), "TaskPlugin") == ["task/none"]
    text = conf(files={"cgroup.conf": "CgroupPlugin=cgroup/v2\n"})
    assert values(text, "ProctrackType") == ["proctrack/cgroup"]
    assert values(text, "TaskPlugin") == ["task/cgroup,task/affinity"]
    inputs = ConfInputs("lab", "slurm", controller_spec())
    assert conf_files(inputs).text["cgroup.conf"] == "CgroupPlugin=disabled\n"
    given = ConfInputs("lab", "slurm", controller_spec(), files={"cgroup.conf": "A=b"})
    assert conf_files(given).text["cgroup.conf"] == "A=b"
    with pytest.raises(BadConf, match=r"CgroupPlugin=cgroup/v9: autodetect, cgroup/v1"):
        conf(files={"cgroup.conf": "CgroupPlugin=cgroup/v9\n"})


def test_gres_conf_is_there_without_being_asked_for() -> None:
    def gres(*groups: Group, **given: str) -> str:
        return conf_files(ConfInputs("lab", "slurm", controller_spec(), groups, files=given)).text["gres.conf"]

    assert gres(Group("cpu", 1)) == "AutoDetect=off\n"
    assert gres(Group("cpu", 1), Group("gpu", 1, gpus=True)) == "AutoDetect=nvidia\n"
    assert gres(Group("gpu", 1, gpus=True), **{"gres.conf": "AutoDetect=nvml"}) == "AutoDetect=nvml"


def test_a_job_that_does_not_say_gets_its_share_of_memory() -> None:
    group = Group("a", 1, "", "", cpus=8, memory=16384)
    assert "PartitionName=a Nodes=a DefMemPerCPU=2048 Default=YES" in conf("", group)
    assert "DefMemPerCPU=1024" in conf("", Group("a", 1, "", "", cpus=1, memory=2048))  # two threads of one core
    assert "DefMemPerCPU" not in conf("", Group("a", 1, ""))
    assert "DefMemPerCPU" not in conf("", Group("a", 1, "DefMemPerNode=5", cpus=8, memory=16384))
    assert "DefMemPerCPU" not in conf("DefMemPerGPU=5", group)
    assert "DefMemPerCPU=2048" in conf("PartitionName=b Nodes=ALL DefMemPerNode=5", group)


def test_presets() -> None:
    assert values(conf(preset="high-throughput"), "MinJobAge") == ["60"]
    assert values(conf("MinJobAge=5", preset="high-throughput"), "MinJobAge") == ["5"]
    assert values(conf(), "MinJobAge") == []
    with pytest.raises(BadConf, match=r"slipway.dev/preset: 'fast' is no preset; there is high-throughput"):
        conf(preset="fast")


def test_a_default_does_not_stand_beside_its_rival() -> None:
    assert values(conf(), "PropagateResourceLimitsExcept") == ["MEMLOCK"]
    assert values(conf("PropagateResourceLimits=NONE"), "PropagateResourceLimitsExcept") == []


def test_backups_take_over_in_order_and_soon() -> None:
    text = conf(ha={"enabled": True, "backups": 2})
    assert values(text, "SlurmctldHost") == [f"lab-controller-{n}(lab-controller-{n}.slurm)" for n in range(3)]
    assert values(text, "SlurmctldTimeout") == ["30"]
    assert values(conf(), "SlurmctldTimeout") == []


def test_scripts_are_files_and_parameters() -> None:
    inputs = ConfInputs("lab", "slurm", controller_spec(), prolog={"10-a.sh": "x"}, epilog_slurmctld={"b.sh": "y"})
    files = conf_files(inputs).text
    assert (files["10-a.sh"], files["b.sh"]) == ("x", "y")
    assert values(files["slurm.conf"], "Prolog") == ["10-a.sh"]
    assert values(files["slurm.conf"], "EpilogSlurmctld") == ["/etc/slurm/b.sh"]
    with pytest.raises(BadConf, match=r"script gres\.conf: there is another file of that name"):
        conf_files(ConfInputs("lab", "slurm", controller_spec(), prolog={"gres.conf": "x"}))


def test_files_that_do_not_fit_into_a_configmap_are_named() -> None:
    with pytest.raises(BadConf, match=r"the largest: big\.conf 1,100,000"):
        conf_files(ConfInputs("lab", "slurm", controller_spec(), files={"big.conf": "x" * 1_100_000}))


def test_the_file_of_identity_providers() -> None:
    files = conf_files(ConfInputs("lab", "slurm", controller_spec(), jwks='{"keys": []}')).text
    assert files["jwks.json"] == '{"keys": []}'
    parameters = values(files["slurm.conf"], "AuthAltParameters")
    assert parameters == ["jwt_key=/etc/slurm/jwt.key,jwks=/etc/slurm/jwks.json"]


@pytest.mark.parametrize("name", ["slurm.conf", "slurmdbd.conf", "slurm.key"])
def test_files_of_the_operator_cannot_be_replaced(name: str) -> None:
    with pytest.raises(BadConf, match=name):
        conf_files(ConfInputs("lab", "slurm", controller_spec(), files={name: "x"}))


def test_an_external_slurmctld() -> None:
    text = conf(external=True, externalConfig={"host": "ctl.example.com"})
    assert values(text, "SlurmctldHost") == ["ctl.example.com"]
    keys = {line.split("=")[0] for line in text.splitlines() if "=" in line}
    assert keys == {
        "ClusterName", "SlurmUser", "SlurmctldHost", "SlurmctldPort", "AuthType", "CredType", "AuthInfo", "AuthAltTypes"
    }  # fmt: skip
    inputs = ConfInputs("lab", "slurm", controller_spec(external=True, externalConfig={"host": "ctl"}))
    assert set(conf_files(inputs).text) == {"slurm.conf"}


def test_accounting() -> None:
    text = conf(accounting_host="db.example.com", accounting_port=7000)
    assert values(text, "AccountingStorageHost") == ["db.example.com"]
    assert values(text, "AccountingStoragePort") == ["7000"]


@pytest.mark.parametrize(("replicas", "count"), [(0, 1024), (500, 1024), (513, 2048), (1024, 2048), (15000, 32768)])
def test_room_for_nodes(replicas: int, count: int) -> None:
    assert max_node_count([Group("a", replicas)]) == count
