"""A real slurmctld and slurmrestd from Debian's packages, as processes of this machine in a mount namespace each."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

from slurm_operator.slurm.client import SlurmClient

from bench.operator.errors import BenchError
from images.tags import versions
from localcloud.images.base import KEYRING, debian_mirror
from localcloud.kubernetes import processes
from localcloud.kubernetes.processes import Daemon
from localcloud.paths import Instance, cache_dir

PACKAGES = ("slurmctld", "slurmrestd", "slurm-client", "slurm-wlm-basic-plugins", "slurm-wlm-jwt-plugin", "adduser",
            "systemd-standalone-sysusers")  # fmt: skip
USER = "slurm"
REST_PORT = 6821
THREADS = 4
CPUS = 8

_CONF = """\
ClusterName=bench
SlurmctldHost=bench-ctl({address})
SlurmUser=slurm
AuthType=auth/slurm
CredType=auth/slurm
AuthInfo=use_client_ids
AuthAltTypes=auth/jwt
AuthAltParameters=jwt_key=/etc/slurm/jwt.key
CommunicationParameters=NoCtldInAddrAny
StateSaveLocation=/var/spool/slurmctld
SlurmctldPidFile=/run/slurm/slurmctld.pid
ProctrackType=proctrack/linuxproc
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MaxNodeCount={nodes}
SchedulerParameters=sched_interval=1,bf_interval=2
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""

# Everything is mounted in a namespace that goes with the process; the tree itself stays as it was made.
_ENTER = """\
set -e
root=$1 files=$2 spool=$3 user=$4; shift 4
hostname bench-ctl
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
for place in run tmp; do mount -t tmpfs tmpfs "$root/$place"; done
mkdir -p "$root/run/slurm" "$root/run/slurmctld"
chroot "$root" chown slurm /run/slurm /run/slurmctld
mount --bind "$files" "$root/etc/slurm"
mount --bind "$files/hosts" "$root/etc/hosts"
mount --bind "$spool" "$root/var/spool/slurmctld"
exec chroot "$root" setpriv --reuid="$user" --regid="$user" --clear-groups "$@"
"""


class Slurm:
    """slurmctld and slurmrestd of one instance; `key` signs tokens."""

    def __init__(self, inst: Instance, nodes: int) -> None:
        self.address = str(inst.host_ip)
        self.key = os.urandom(32)
        self.slurm_key = os.urandom(1024)
        self._inst = inst
        self._nodes = nodes
        self._files = inst.state / "slurm"
        self._spool = inst.state / "spool"

    def client(self) -> SlurmClient:
        """A client of slurmrestd itself, past the counting proxy."""
        return SlurmClient(f"http://{self.address}:{REST_PORT}", self.key)

    async def start(self) -> None:
        """Start both; returns when slurmctld answers through slurmrestd."""
        root = rootfs()
        for folder in (self._files, self._spool):
            folder.mkdir()
        contents: dict[str, bytes] = {
            "slurm.conf": _CONF.format(address=self.address, nodes=self._nodes).encode(),
            "slurm.key": self.slurm_key,
            "jwt.key": self.key,
            "hosts": f"127.0.0.1 localhost\n{self.address} bench-ctl\n".encode(),
        }
        uid = int(subprocess.run(["chroot", root, "id", "-u", USER], capture_output=True, text=True, check=True).stdout)
        for name, data in contents.items():
            (self._files / name).write_bytes(data)
            if name.endswith(".key"):
                (self._files / name).chmod(0o600)
                os.chown(self._files / name, uid, uid)
        os.chown(self._spool, uid, uid)
        processes.ensure(self._daemon(root, USER, ("/usr/sbin/slurmctld", "-D")))
        rest = ("/usr/sbin/slurmrestd", "-a", "rest_auth/jwt", "-s", "openapi/slurmctld", "-t", str(THREADS),
                f"{self.address}:{REST_PORT}")  # fmt: skip
        processes.ensure(self._daemon(root, "nobody", rest))
        await self._wait()

    def _daemon(self, root: Path, user: str, argv: tuple[str, ...]) -> Daemon:
        name = Path(argv[0]).name
        group = {"nobody": "nogroup"}.get(user, user)
        enter = _ENTER.replace('--regid="$user"', f'--regid="{group}"')
        prefix = ("unshare", "--mount", "--uts", "sh", "-c", enter, "enter", str(root), str(self._files),
                  str(self._spool), user)  # fmt: skip
        secure = "disable_unshare_sysv,disable_unshare_files"
        environment = {"SLURM_JWT": "daemon", "SLURMRESTD_SECURITY": secure} if name == "slurmrestd" else {}
        return Daemon(f"{self._inst.cgroup}/{name}", argv, self._inst.run / f"{name}.log", prefix, environment)

    async def _wait(self) -> None:
        client = self.client()
        end = time.monotonic() + 20
        while True:
            try:
                await client.ping()
                break
            except Exception as error:
                if time.monotonic() > end:
                    words = [
                        processes.last_words(self._inst.run / f"{name}.log") for name in ("slurmctld", "slurmrestd")
                    ]
                    raise BenchError(f"Slurm did not start: {error}\n" + "\n".join(words)) from None
                time.sleep(0.1)
        await client.close()

    def rss(self) -> int:
        """MiB of slurmrestd."""
        for pid in processes.members(f"{self._inst.cgroup}/slurmrestd", "slurmrestd"):
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("VmRSS:"):
                    return int(line.split()[1]) // 1024
        return 0


def rootfs() -> Path:
    """A Debian tree with Slurm's daemons, made once by mmdebstrap and kept in the cache."""
    suite = versions()["BASE"].partition(":")[2].removesuffix("-slim")
    path = cache_dir() / "bench" / f"slurm-{suite}-{versions()['SLURM']}"
    if path.exists():
        return path
    if shutil.which("mmdebstrap") is None:
        raise BenchError("mmdebstrap is not on PATH. Next: apt-get install mmdebstrap")
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    path.parent.mkdir(parents=True, exist_ok=True)
    command = ["mmdebstrap", "--mode=root", "--variant=essential", '--aptopt=Acquire::Check-Valid-Until "false"',
               '--aptopt=APT::Install-Recommends "false"', f"--include={','.join(PACKAGES)}", suite, str(partial),
               debian_mirror()]  # fmt: skip
    command += [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("man", "doc", "locale")]
    command += [f"--keyring={KEYRING}"] if KEYRING.exists() else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        shutil.rmtree(partial, ignore_errors=True)
        raise BenchError(f"the tree with Slurm could not be made:\n{done.stderr[-2000:]}")
    for name in ("etc/slurm", "var/spool/slurmctld"):
        (partial / name).mkdir(parents=True, exist_ok=True)
    (partial / "etc/hosts").touch()
    partial.rename(path)
    return path
