"""The images' scripts, run by bash on this machine with stand-ins for the daemons they start."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from images.tags import REPOSITORY

IMAGES = REPOSITORY / "images"
HARDWARE = (
    "NodeName=n CPUs=16 Boards=1 SocketsPerBoard=2 CoresPerSocket=4 ThreadsPerCore=2 RealMemory=64000\n"
    "UpTime=1-02:03:04\n"
)

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a script of an image; /usr/sbin and the directories it writes are below tmp_path.

    The stand-in of a daemon prints its arguments, one per line; slurmd -C prints HARDWARE.
    """
    daemons = tmp_path / "sbin"
    daemons.mkdir()
    for name in ("slurmctld", "slurmd", "slurmdbd", "slurmrestd", "sackd"):
        say = f'[ "$1" != -C ] || {{ printf %s "{HARDWARE}"; exit; }}; printf "%s\\n" "$0" "$@"'
        (daemons / name).write_text(f"#!/bin/bash\n{say}\n")
        (daemons / name).chmod(0o755)

    def run(script: str, *arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        text = (IMAGES / script).read_text()
        text = text.replace("/usr/local/lib/slipway", str(IMAGES / "slurm-base/lib"))
        text = text.replace("/usr/sbin/", f"{daemons}/")
        for directory in ("/run/slurmctld", "/run/slurmdbd", "/run/slurm", "/var/spool", "/etc/slurm"):
            text = text.replace(directory, f"{tmp_path}{directory}")
        copy = tmp_path / Path(script).name
        copy.write_text(text)
        path = {"PATH": os.environ["PATH"]}
        return subprocess.run(
            ["bash", str(copy), *arguments],
            env=path | (env or {}),
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )

    return run


def arguments_of(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[1:]


def conf_of(done: subprocess.CompletedProcess[str]) -> str:
    words = arguments_of(done)
    assert words.count("--conf") == 1
    return words[words.index("--conf") + 1]


@pytest.mark.parametrize(
    ("script", "variable", "first"),
    [
        ("slurmctld/slurmctld-entrypoint", "SLURMCTLD_OPTIONS", ["-D"]),
        ("slurmdbd/slurmdbd-entrypoint", "SLURMDBD_OPTIONS", ["-D"]),
        ("slurmd/slurmd-entrypoint", "SLURMD_OPTIONS", ["-D"]),
    ],
)
def test_options_then_arguments_are_appended(run: Run, script: str, variable: str, first: list[str]) -> None:
    done = run(script, "-c", "a b", env={variable: "-v --log 'x y' $HOME *"})
    assert arguments_of(done) == [*first, "-v", "--log", "x y", "$HOME", "*", "-c", "a b"]


def test_slurmrestd_listens_everywhere_and_waits_for_a_configuration(run: Run, tmp_path: Path) -> None:
    conf = tmp_path / "etc/slurm/slurm.conf"
    conf.parent.mkdir(parents=True)
    conf.touch()
    done = run("slurmrestd/slurmrestd-entrypoint", "-s", "openapi/slurmctld", env={"SLURMRESTD_OPTIONS": "-t 4"})
    assert arguments_of(done) == ["-t", "4", "-s", "openapi/slurmctld", "0.0.0.0:6820"]


def test_an_unmatched_quote_is_an_error_that_names_the_variable(run: Run) -> None:
    done = run("slurmd/slurmd-entrypoint", env={"SLURMD_OPTIONS": "--conf 'CPUs=2"})
    assert done.returncode == 1
    assert "error: SLURMD_OPTIONS has an unmatched quote: --conf 'CPUs=2" in done.stderr


@pytest.mark.parametrize(
    ("cpus", "memory", "expected"),
    [
        ("4", "16000", "CoreSpecCount=6 MemSpecLimit=48000"),  # 8 cores of 2 threads: 4 CPUs are 2 cores
        ("1", "0", "CoreSpecCount=7"),  # half a core cannot be reserved
        ("15", "63999", "CoreSpecCount=1 MemSpecLimit=1"),
        ("", "1000", "MemSpecLimit=63000"),
    ],
)
def test_limits_of_the_pod_become_reserved_cores_and_memory(run: Run, cpus: str, memory: str, expected: str) -> None:
    assert conf_of(run("slurmd/slurmd-entrypoint", "-Z", env={"POD_CPUS": cpus, "POD_MEMORY": memory})) == expected


@pytest.mark.parametrize(("cpus", "memory"), [("16", "64000"), ("64", "1000000"), ("0", "0"), ("", "")])
def test_a_pod_that_may_use_the_whole_machine_reserves_nothing(run: Run, cpus: str, memory: str) -> None:
    done = run("slurmd/slurmd-entrypoint", "-Z", env={"POD_CPUS": cpus, "POD_MEMORY": memory})
    assert arguments_of(done) == ["-D", "-Z"]


@pytest.mark.parametrize("form", [["--conf", "Features=a Gres=gpu:8"], ["--conf=Features=a Gres=gpu:8"]])
def test_what_is_reserved_joins_the_given_conf(run: Run, form: list[str]) -> None:
    done = run("slurmd/slurmd-entrypoint", "-Z", *form, "-v", env={"POD_CPUS": "8", "POD_MEMORY": "60000"})
    assert conf_of(done) == "Features=a Gres=gpu:8 CoreSpecCount=4 MemSpecLimit=4000"
    assert arguments_of(done)[:3] == ["-D", "-Z", "-v"]


def test_what_conf_says_is_never_overridden(run: Run) -> None:
    limits = {"POD_CPUS": "8", "POD_MEMORY": "60000", "POD_TOPOLOGY": "t:b"}
    for conf in ("cpus=2 realmemory=2000 topology=t:a", "CoreSpecCount=1 MemSpecLimit=5 Topology=t:a"):
        assert conf_of(run("slurmd/slurmd-entrypoint", "-Z", "--conf", conf, env=limits)) == conf


def test_a_limit_that_is_no_number_is_an_error(run: Run) -> None:
    done = run("slurmd/slurmd-entrypoint", "-Z", env={"POD_MEMORY": "2Gi"})
    assert done.returncode == 1
    assert "POD_MEMORY=2Gi: a whole number of MiB is wanted" in done.stderr


@pytest.mark.parametrize(
    ("topology", "expected"), [("t:leaf1", "Features=gpu Topology=t:leaf1 Weight=2"), ("", "Features=gpu Weight=2")]
)
def test_arguments_in_the_form_of_the_slinky_operator(run: Run, topology: str, expected: str) -> None:
    given = "'Features=gpu Topology='\"$SLINKY_TOPOLOGY\"' Weight=2'"
    done = run("slurmd/slurmd-entrypoint", "-Z", "--conf", given, env={"SLINKY_TOPOLOGY": topology})
    assert conf_of(done) == expected
    done = run("slurmd/slurmd-entrypoint", "-Z", f"--conf={given}", env={"SLINKY_TOPOLOGY": topology})
    assert conf_of(done) == expected


def test_an_argument_that_only_holds_quotes_stays_whole(run: Run) -> None:
    extra = '{"instance": "i-1", "note": "it\'s"}'
    assert arguments_of(run("slurmd/slurmd-entrypoint", "-Z", "--extra", extra)) == ["-D", "-Z", "--extra", extra]


def test_the_topology_of_the_pod(run: Run) -> None:
    assert conf_of(run("slurmd/slurmd-entrypoint", "-Z", env={"POD_TOPOLOGY": "t:leaf2"})) == "Topology=t:leaf2"


def test_it_waits_for_the_controller_and_says_so(run: Run) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))  # taken, but nothing listens yet
        address = f"127.0.0.1:{server.getsockname()[1]}"
        later = threading.Timer(1.0, server.listen)
        later.start()
        done = run("slurmd/slurmd-entrypoint", "-Z", "--conf-server", address)
        later.join()
    assert arguments_of(done) == ["-D", "-Z", "--conf-server", address]
    assert f"waiting for the controller at {address}" in done.stderr
    assert f"the controller at {address} answers" in done.stderr


def test_the_second_of_two_controllers_is_enough(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        servers = f"127.0.0.1:1,127.0.0.1:{server.getsockname()[1]}"
        done = run("slurmd/slurmd-entrypoint", "-Z", f"--conf-server={servers}")
    assert arguments_of(done) == ["-D", "-Z", f"--conf-server={servers}"]
    assert "waiting" not in done.stderr


def test_homes_are_made_once_for_users_of_extrausers(tmp_path: Path) -> None:
    homes = tmp_path / "home"
    homes.mkdir()
    (homes / "old").mkdir(mode=0o755)
    passwd = tmp_path / "passwd"
    uid, gid = os.getuid(), os.getgid()
    entry = "{name}:x:%d:%d::{home}:/bin/bash" % (uid, gid)  # noqa: UP031
    users = {"alice": "/home/alice", "old": "/home/old", "daemon": "/var/lib/daemon", "last": "/home/last"}
    passwd.write_text("# comment\n" + "\n".join(entry.format(name=n, home=h) for n, h in users.items()))
    script = tmp_path / "make-homes"
    script.write_text((IMAGES / "login/make-homes").read_text().replace("/home/?*", f"{homes}/?*"))
    passwd.write_text(passwd.read_text().replace("/home/", f"{homes}/"))
    for _ in range(2):
        done = subprocess.run(["bash", script, passwd], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in homes.iterdir()) == ["alice", "last", "old"]
    assert homes.joinpath("alice").stat().st_mode & 0o777 == 0o700
    assert homes.joinpath("alice", ".bashrc").exists()
    assert not list(homes.joinpath("old").iterdir())


def test_keys_of_users_are_printed_by_name_only(tmp_path: Path) -> None:
    (tmp_path / "alice").write_text("ssh-ed25519 AAAA alice\n")
    (tmp_path / "keys").mkdir()
    script = tmp_path / "authorized-keys"
    text = (IMAGES / "slurm-base/ssh/authorized-keys").read_text()
    script.write_text(text.replace("/etc/ssh/authorized_keys.d", str(tmp_path)))

    def ask(*words: str) -> tuple[int, str]:
        done = subprocess.run(["bash", script, *words], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    assert ask("alice") == (0, "ssh-ed25519 AAAA alice\n")
    assert ask("bob") == (0, "")
    assert ask("../alice") == (1, "")
    assert ask() == (1, "")


def test_no_password_and_no_root_without_a_key() -> None:
    config = (IMAGES / "slurm-base/ssh/sshd_config").read_text().splitlines()
    for line in ("PasswordAuthentication no", "KbdInteractiveAuthentication no", "PermitRootLogin no"):
        assert line in config
    entry = (IMAGES / "login/login-entrypoint").read_text()
    assert "PermitRootLogin=prohibit-password" in entry
    assert "PermitRootLogin=yes" not in entry


@pytest.mark.parametrize(
    ("accounting", "files", "kept"),
    [
        ("accounting_storage/slurmdbd", {"job_state": "x"}, False),
        ("accounting_storage/slurmdbd", {"job_state": "x", "assoc_usage": "x"}, False),
        ("accounting_storage/slurmdbd", {"job_state": "x", "assoc_usage": "x", "qos_usage.old": "x"}, True),
        ("accounting_storage/slurmdbd", {}, False),  # killed before anything was saved
        ("accounting_storage/none", {"job_state": "x"}, True),
        ("accounting_storage/none", {"job_state.old": "x"}, True),
        ("accounting_storage/none", {"node_state": "x"}, True),  # a loss that somebody has to know of
        ("accounting_storage/none", {}, False),
    ],
)
def test_slurmctld_starts_without_what_was_never_saved(
    run: Run, tmp_path: Path, accounting: str, files: dict[str, str], kept: bool
) -> None:
    state, etc = tmp_path / "var/spool/slurmctld/lab", tmp_path / "etc/slurm"
    state.mkdir(parents=True)
    etc.mkdir(parents=True)
    (etc / "slurm.conf").write_text(f"StateSaveLocation={state}\nAccountingStorageType={accounting}\n")
    for name, text in {"clustername": "lab\n1", **files}.items():
        (state / name).write_text(text)
    assert arguments_of(run("slurmctld/slurmctld-entrypoint")) == ["-D"]
    assert (state / "clustername").exists() is kept
    assert all((state / name).exists() for name in files)


# sshd's stand-in refuses settings with the word "bad"; as a daemon it notes what it was started with and each HUP.
SSHD = """\
#!/bin/bash
while [ $# -gt 0 ]; do case $1 in -t) try=yes ;; -f) file=$2; shift ;; esac; shift; done
folder=$(sed -n 's|^Include \\(.*\\)/\\*.conf|\\1|p' "$file")
if [ -n "$try" ]; then ! grep -h bad "$folder"/*.conf; exit; fi
note() { { grep -hv '^$' "$folder"/*.conf; echo --; } >>"$0.notes"; }
trap note HUP
trap 'exit 0' TERM
note
while :; do sleep 0.05; done
"""


def test_settings_of_sshd_are_taken_over_unless_sshd_refuses_them(tmp_path: Path) -> None:
    mounted, etc = tmp_path / "etc/ssh/sshd_config.d", tmp_path / "etc/ssh"
    mounted.mkdir(parents=True)
    (etc / "sshd_config").write_text("Include /etc/ssh/sshd_config.d/*.conf\nUsePAM yes\n")
    text = (IMAGES / "slurm-base/ssh/sshd-service").read_text()
    for old, new in (
        ("/usr/local/lib/slipway", str(IMAGES / "slurm-base/lib")),
        ("/usr/sbin/sshd", str(tmp_path / "sshd")),
        ("/run/sshd", str(tmp_path / "run")),
        ("/etc/ss", f"{tmp_path}/etc/ss"),
        ("sleep 2", "sleep 0.05"),
    ):
        text = text.replace(old, new)
    (tmp_path / "sshd-service").write_text(text)
    (tmp_path / "sshd").write_text(SSHD)
    (tmp_path / "sshd").chmod(0o755)
    notes = tmp_path / "sshd.notes"

    def change(name: str, content: str) -> None:
        (mounted / f".{name}").write_text(content)
        (mounted / f".{name}").rename(mounted / name)

    def seen(rounds: int) -> list[str]:
        for _ in range(200):
            parts = notes.read_text().split("--\n") if notes.exists() else []
            if len(parts) > rounds:
                return parts[rounds - 1].split()
            time.sleep(0.05)
        raise AssertionError(f"sshd was told {len(parts) - 1} times: {notes.read_text()}")

    change("10-a.conf", "one\n")
    change("20-b.conf", "bad\n")
    process = subprocess.Popen(["bash", tmp_path / "sshd-service"], stderr=subprocess.PIPE, text=True)
    try:
        assert seen(1) == ["one"], "what sshd refuses at the start is left out"
        change("20-b.conf", "two\n")
        assert seen(2) == ["one", "two"]
        change("10-a.conf", "also bad\n")
        assert seen(3) == ["one", "two"], "what sshd refuses later stays as it was"
        change("10-a.conf", "three\n")
        assert seen(4) == ["three", "two"]
        (mounted / "20-b.conf").unlink()
        assert seen(5) == ["three"]
    finally:
        process.terminate()
        _, said = process.communicate(timeout=10)
    assert process.returncode == 0
    assert "sshd refuses 20-b.conf" in said
    assert "20-b.conf is left out" in said
    assert "10-a.conf stays in effect as it was before" in said
