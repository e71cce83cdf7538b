"""The operator that is measured: any command line, started in a session of its own."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

from bench.operator.errors import BenchError

REPOSITORY = Path(__file__).resolve().parents[2]
OURS = (f"{shlex.quote(sys.executable)} -m slurm_operator --namespaces {{namespace}} --lease-namespace {{namespace}} "
        "--health-port 0 --metrics-port 0")  # fmt: skip
_TICKS = os.sysconf("SC_CLK_TCK")

# Names of Services are looked up in DNS, which does not run here: the operator gets an /etc/hosts of its own.
_WITH_HOSTS = 'mount --bind "$1" /etc/hosts; shift; exec "$@"'


class Operator:
    """`command` may hold {kubeconfig} and {namespace}; $KUBECONFIG is set too."""

    def __init__(self, command: str, kubeconfig: Path, namespace: str, folder: Path) -> None:
        self.log = folder / "operator.log"
        self.command = command
        self.hosts = folder / "hosts"
        self.hosts.write_text("127.0.0.1 localhost\n")
        self._argv = shlex.split(command.format(kubeconfig=kubeconfig, namespace=namespace))
        self._environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}
        self._environment["PYTHONPATH"] = str(REPOSITORY / "operator" / "src")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                ["unshare", "--mount", "sh", "-c", _WITH_HOSTS, "operator", str(self.hosts), *self._argv],
                env=self._environment, cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    async def stop(self) -> None:
        """TERM, and KILL after ten seconds."""
        process, self._process = self._process, None
        if process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in _session(process.pid):
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    continue
            try:
                await asyncio.to_thread(process.wait, 10)
                return
            except subprocess.TimeoutExpired:
                continue

    def check(self) -> None:
        """Raises BenchError with the end of its log if it has ended."""
        if self._process is not None and self._process.poll() is not None:
            said = "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])
            raise BenchError(f"the operator ended with code {self._process.returncode}: {self.command}\n{said}")

    def cpu(self) -> float:
        """CPU seconds so far, of all its processes."""
        total = 0
        for pid in self._pids():
            fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
            total += sum(int(value) for value in fields[11:13])
        return total / _TICKS

    def rss(self) -> float:
        """MiB now."""
        return self._memory("VmRSS:")

    def peak(self) -> float:
        """MiB, the most it ever had."""
        return self._memory("VmHWM:")

    def _memory(self, field: str) -> float:
        total = 0
        for pid in self._pids():
            for line in _read(f"/proc/{pid}/status").splitlines():
                if line.startswith(field):
                    total += int(line.split()[1])
        return total / 1024

    def _pids(self) -> list[int]:
        return _session(self._process.pid) if self._process is not None else []


class Window:
    """CPU and wall time from its making until `close`."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self._cpu = operator.cpu()
        self._began = time.monotonic()

    def close(self) -> dict[str, float]:
        return {
            "seconds": round(time.monotonic() - self._began, 2),
            "cpu_seconds": round(self._operator.cpu() - self._cpu, 2),
        }


def _session(leader: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            fields = _read(f"/proc/{entry.name}/stat").rpartition(")")[2].split()
            if len(fields) > 3 and int(fields[3]) == leader:
                found.append(int(entry.name))
    return found


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
