"""What is read from the machine: groups, processes, locks, ports, tools; and what is said when something is wrong."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from localcloud import tools
from localcloud.kubernetes import __main__ as command_line
from localcloud.kubernetes import cgroups, cluster, inotify, leftovers, node, preflight, processes
from localcloud.kubernetes.errors import ClusterError
from localcloud.kubernetes.locks import hold, holders
from localcloud.kubernetes.preflight import Listener
from localcloud.kubernetes.processes import Daemon
from localcloud.paths import Instance

HYBRID = """31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
34 31 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
50 27 0:38 / /mnt/elsewhere rw - cgroup2 cgroup2 rw
"""
UNIFIED = "31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"


def test_the_hybrid_layout_is_recognised() -> None:
    layout = cgroups.parse_layout(HYBRID)
    assert layout.tracking == Path("/sys/fs/cgroup/unified")
    assert layout.controllers == {"cpu", "cpuacct", "memory"}
    assert [path.name for path in layout.v1] == ["cpu,cpuacct", "memory", "systemd"]
    assert not layout.unified


def test_the_unified_layout_is_recognised() -> None:
    layout = cgroups.parse_layout(UNIFIED, "cpuset cpu io memory pids")
    assert layout.unified
    assert layout.controllers >= {"cpu", "cpuset", "memory", "pids"}


def test_without_cgroup2_the_command_that_mounts_it_is_told() -> None:
    with pytest.raises(ClusterError, match="mount -t cgroup2"):
        cgroups.parse_layout(HYBRID.replace("cgroup2", "tmpfs"))


@pytest.fixture
def inst(tmp_path: Path) -> Iterator[Instance]:
    """An instance of which only the groups are used."""
    inst = Instance(name=f"unit-{os.getpid()}", net=120, state=tmp_path / "state")
    yield inst
    cgroups.kill(inst.cgroup)
    cgroups.remove(inst.cgroup)


@pytest.fixture
def sleeper(inst: Instance) -> Daemon:
    return Daemon(group=f"{inst.cgroup}/sleeper", argv=("sleep", "1000"), log=inst.run / "sleeper.log")


def appear(daemon: Daemon) -> int:
    for _ in range(200):
        if pid := processes.running(daemon):
            return pid
        time.sleep(0.01)
    pytest.fail(f"{daemon.name} does not appear")


def test_a_daemon_is_started_once_and_found_without_a_file(sleeper: Daemon) -> None:
    assert processes.running(sleeper) is None
    assert processes.ensure(sleeper)
    pid = appear(sleeper)
    assert not processes.ensure(sleeper)
    assert processes.running(sleeper) == pid
    assert os.getsid(pid) != os.getsid(0)


def test_a_daemon_with_other_arguments_is_replaced(sleeper: Daemon) -> None:
    processes.ensure(sleeper)
    old = appear(sleeper)
    changed = Daemon(sleeper.group, ("sleep", "2000"), sleeper.log)
    assert processes.ensure(changed)
    assert appear(changed) != old
    assert processes.command_of(old) == ()


def test_a_process_of_another_group_is_never_taken_for_the_daemon(sleeper: Daemon) -> None:
    stranger = subprocess.Popen(sleeper.argv)
    try:
        cgroups.create(sleeper.group)
        assert processes.running(sleeper) is None
        assert not cgroups.send(stranger.pid, signal.SIGKILL, sleeper.group)
        processes.stop(sleeper)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_killing_a_group_takes_its_children_and_leaves_no_directory(inst: Instance) -> None:
    script = "sleep 1000 & setsid sleep 1000 & wait"
    daemon = Daemon(f"{inst.cgroup}/shell", ("sh", "-c", script), inst.run / "shell.log")
    processes.ensure(daemon)
    for _ in range(200):
        if len(cgroups.pids(daemon.group)) == 3:
            break
        time.sleep(0.01)
    assert len(leftovers.find(inst)) == 3 + len(cgroups.existing(inst.cgroup)) + 1  # and the state directory
    cgroups.kill(inst.cgroup)
    cgroups.remove(inst.cgroup)
    assert cgroups.existing(inst.cgroup) == []


def test_the_log_of_the_run_before_is_kept(inst: Instance) -> None:
    daemon = Daemon(f"{inst.cgroup}/echo", ("sh", "-c", "echo it broke"), inst.run / "echo.log")
    for _ in range(2):
        processes.ensure(daemon)
        for _ in range(200):
            if daemon.log.read_text():
                break
            time.sleep(0.01)
    assert daemon.log.with_suffix(".log.1").read_text() == "it broke\n"
    assert processes.last_words(daemon.log) == "it broke"


def test_a_daemon_whose_log_cannot_be_written_says_so(inst: Instance) -> None:
    inst.run.mkdir(parents=True)
    daemon = Daemon("/", ("true",), inst.run / "x.log", joins=(Path("/proc/nowhere"),))
    with pytest.raises(ClusterError, match="cannot start `true`"):
        processes.ensure(daemon)


def test_a_lock_names_its_holder(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    code = (
        f"import fcntl, sys; f = open({str(lock)!r}, 'w'); fcntl.flock(f, fcntl.LOCK_EX);"
        "print(1, flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert other.stdout
        other.stdout.readline()
        assert holders(lock) == [other.pid]
        with pytest.raises(ClusterError) as caught, hold(lock, wait=0, what="the thing"):
            pass
        assert f"the thing is in use by process {other.pid}" in str(caught.value)
        assert "running since" in str(caught.value)
    finally:
        other.kill()
        other.communicate()
    with hold(lock, wait=1):
        pass


def test_a_waiter_is_told_and_then_gets_the_lock(tmp_path: Path) -> None:
    lock, said, order = tmp_path / "lock", list[str](), list[str]()
    taken = threading.Event()

    def first() -> None:
        with hold(lock):
            taken.set()
            time.sleep(1.2)
            order.append("first")

    thread = threading.Thread(target=first)
    thread.start()
    taken.wait()
    with hold(lock, log=said.append, what="the thing"):
        order.append("second")
    thread.join()
    assert order == ["first", "second"]
    assert len(said) == 1
    assert said[0].startswith(f"waiting for process {os.getpid()}")


def test_many_share_a_lock_but_not_with_one_who_wants_it_alone(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with hold(lock, shared=True), hold(lock, shared=True, wait=0), pytest.raises(ClusterError), hold(lock, wait=0):
        pass


def test_a_lock_whose_file_was_removed_holds_the_new_file(tmp_path: Path) -> None:
    lock = tmp_path / "run" / "lock"
    with hold(lock):
        lock.unlink()
        lock.parent.rmdir()
        with hold(lock, wait=0):
            assert lock.exists()


def test_missing_capabilities_are_named() -> None:
    assert preflight.capability_problems("CapEff:\t000001ffffffffff\n") == []
    (said,) = preflight.capability_problems("CapEff:\t00000000a80425fb\n")  # those of a plain container
    assert "CAP_NET_ADMIN, CAP_SYS_PTRACE, CAP_SYS_ADMIN" in said
    assert "--privileged" in said


def test_a_foreign_route_into_our_networks_is_named(inst: Instance) -> None:
    routes = [("default", "eth0"), ("192.168.0.0/16", "eth0"), ("10.121.0.0/16", "tun0"), ("10.0.0.0/9", "vpn")]
    found = preflight.overlaps(inst, routes)
    assert [problem.count("tun0") + 2 * problem.count("vpn") for problem in found] == [1, 2]
    assert "network 10.121.0.0/16 is in use" in found[0]
    assert "SLIPWAY_NET" in found[0]


def test_who_has_a_port_is_named(inst: Instance) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        mine = [listener for listener in preflight._listeners() if listener.port == port]
        assert mine == [Listener("127.0.0.1", port, os.getpid())]
    (said,) = preflight.port_problems(inst, [Listener("127.0.0.1", inst.etcd_port, os.getpid())])
    assert f"port {inst.etcd_port} of 127.0.0.1, which etcd needs, is in use by process {os.getpid()}" in said
    (said,) = preflight.port_problems(inst, [Listener("127.0.0.1", inst.aws_port, os.getpid())])
    assert "which the AWS stand-in needs" in said
    elsewhere = [Listener("192.168.1.1", 6443, 1), Listener("127.0.0.1", 6443, 1)]
    assert preflight.port_problems(inst, elsewhere) == []
    everywhere = preflight.port_problems(inst, [Listener("0.0.0.0", 6443, None)])
    assert "cannot be seen" in everywhere[0]


def test_listening_sockets_are_read_from_the_kernels_table() -> None:
    table = (
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
        "   0: 0100007F:51C3 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1\n"
        "   1: 0100007F:51C3 0100007F:9999 01 00000000:00000000 00:00000000 00000000     0        0 4712 1\n"
    )
    assert preflight.parse_listeners(table) == [("127.0.0.1", 0x51C3, "4711")]


def test_a_full_disk_is_told_with_what_is_needed_where(inst: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 100 * 2**20})())
    said = preflight._space_problems(inst)[0]
    assert "0.1 GiB are free on the disk of" in said
    assert str(inst.state) in said
    assert "SLIPWAY_STATE" in said


def test_too_few_inotify_instances_are_told_with_the_setting() -> None:
    assert inotify.problem(1) is None
    said = inotify.problem(10**6)
    assert said is not None
    assert "1000000 are needed" in said
    assert "sysctl -w fs.inotify.max_user_instances=" in said


def test_no_network_is_a_problem_only_if_something_must_be_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/"
        monkeypatch.setattr(tools, "package_source", lambda: url)
        monkeypatch.setattr(tools, "missing_packages", lambda: [])
        monkeypatch.setattr(tools, "installed", lambda: Path("/"))
        assert preflight._network_problems() == []
        monkeypatch.setattr(tools, "missing_packages", lambda: ["runc"])
        (said,) = preflight._network_problems()
    assert f"runc), and their source {url} does not answer" in said


def test_everybody_but_root_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    (said,) = preflight.problems()
    assert "only root" in said


def test_an_existing_clusters_kubeconfig_must_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIPWAY_KUBECONFIG", "/nowhere/config")
    assert preflight.problems() == ["SLIPWAY_KUBECONFIG=/nowhere/config: there is no such file"]


def test_a_directory_with_other_things_is_not_taken_for_state(inst: Instance) -> None:
    inst.state.mkdir()
    (inst.state / "thesis.tex").write_text("years of work")
    with pytest.raises(ClusterError, match=r"it holds thesis\.tex"), cluster.using(inst):
        pass
    cluster.stop_all(inst=inst)
    assert (inst.state / "thesis.tex").exists()


def test_versions_are_read_from_the_one_place() -> None:
    text = "module x\n\ngo 1.26\n\nrequire k8s.io/a v1.2.3\nrequire (\n\thelm.sh/helm/v4 v4.3.1 // indirect\n)\n"
    assert tools.module_versions(text) == {"k8s.io/a": "v1.2.3", "helm.sh/helm/v4": "v4.3.1"}
    assert tools.kubernetes_version().startswith("v1.36.")


def test_the_build_is_named_by_what_it_depends_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = tools.build_key()
    module = tmp_path / "tools"
    module.mkdir()
    for file in tools.MODULE.iterdir():
        (module / file.name).write_bytes(file.read_bytes())
    monkeypatch.setattr(tools, "MODULE", module)
    assert tools.build_key() == before
    (module / "main.go").write_text("package main")
    assert tools.build_key() != before


def test_without_apt_the_missing_programs_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("shutil.which", lambda *words, **options: None)
    monkeypatch.setenv("SLIPWAY_CACHE", str(tmp_path))
    with pytest.raises(ClusterError, match=r"no apt-get to install .*runc.*package manager, then repeat: buildah"):
        tools.ensure_tools()


def test_a_failed_build_shows_why_and_leaves_nothing_half_done(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = tmp_path / "module"
    module.mkdir()
    (module / "go.mod").write_text((tools.MODULE / "go.mod").read_text())
    (module / "main.go").write_text("package main\n\nfunc main() { undefined() }\n")
    monkeypatch.setattr(tools, "MODULE", module)
    monkeypatch.setenv("SLIPWAY_CACHE", str(tmp_path / "cache"))
    with pytest.raises(ClusterError, match=r"(?s)building the Kubernetes programs .*undefined.*then repeat"):
        tools.ensure_tools()
    assert [path.name for path in (tmp_path / "cache" / "tools").iterdir()] == ["lock"]


def test_an_unknown_instance_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from localcloud import paths

    paths.instance.cache_clear()
    monkeypatch.setenv("SLIPWAY_NET", "7")
    try:
        assert command_line.main(["status"]) == 1
    finally:
        paths.instance.cache_clear()
    assert capsys.readouterr().err.startswith("error: SLIPWAY_NET='7': a multiple of 3 from 60 to 240 is allowed")


def test_containerd_is_waited_for_until_it_serves_kubelets(tmp_path: Path) -> None:
    answers = iter(["server is not initialized yet"] * 3)

    def version(request: bytes, context: grpc.ServicerContext) -> bytes:
        for refusal in answers:
            context.abort(grpc.StatusCode.UNKNOWN, refusal)
        return b""

    methods = {"Version": grpc.unary_unary_rpc_method_handler(version)}
    handler = grpc.method_handlers_generic_handler("runtime.v1.RuntimeService", methods)
    server = grpc.server(ThreadPoolExecutor(1), [handler])
    server.add_insecure_port(f"unix:{tmp_path / 'socket'}")
    later = threading.Timer(0.3, server.start)
    later.start()
    try:
        node.wait_containerd(tmp_path / "socket", Daemon("/none", ("containerd",), tmp_path / "log"))
        assert list(answers) == []
    finally:
        later.join()
        server.stop(None)
