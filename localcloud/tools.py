"""The programs that the local cloud needs: found on PATH, installed as Debian packages, or built from Go modules.

`ensure_tools()` returns one directory that holds all of them. It is named by what the build depends on, is complete
or absent, and costs a few file look-ups when it exists.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from localcloud.kubernetes.errors import ClusterError, Log, quiet
from localcloud.kubernetes.locks import hold
from localcloud.paths import cache_dir

MODULE = Path(__file__).resolve().parent / "kubernetes" / "tools"
"""The Go module of all Kubernetes programs. Its go.mod is the one place where their versions are written."""

KUBERNETES_PROGRAMS = (
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kube-proxy",
    "kubelet",
    "kubectl",
)
PROGRAMS = (*KUBERNETES_PROGRAMS, "helm", "coredns")

# Program -> Debian package. Those of SERVICES would start a daemon when installed, so they are unpacked instead.
PACKAGES = {
    "buildah": "buildah",
    "catatonit": "catatonit",
    "conntrack": "conntrack",
    "ip": "iproute2",
    "iptables": "iptables",
    "mmdebstrap": "mmdebstrap",
    "mount": "mount",
    "nft": "nftables",
    "nsenter": "util-linux",
    "runc": "runc",
    "zstd": "zstd",
    "/usr/lib/cni/ptp": "containernetworking-plugins",
}
SERVICES = {
    "containerd": "containerd",
    "containerd-shim-runc-v2": "containerd",
    "ctr": "containerd",
    "docker-registry": "docker-registry",
    "etcd": "etcd-server",
}

BUILD_GIB = 7
"""Disk space that an empty Go cache needs for the build, measured: 1.2 modules, 3.3 objects, 0.8 while linking."""


def module_versions(go_mod: str) -> dict[str, str]:
    """Version of each required module in the text of a go.mod."""
    return dict(re.findall(r"^\s*(?:require )?([\w./-]+) (v[\w.+-]+)", go_mod, re.MULTILINE))


def kubernetes_version() -> str:
    """Version of Kubernetes that this repository is made for, as "v1.36.3"."""
    return module_versions((MODULE / "go.mod").read_text())["k8s.io/kubernetes"]


def coredns_version() -> str:
    """Version of CoreDNS, as "v1.15.0"."""
    return module_versions((MODULE / "go.mod").read_text())["github.com/coredns/coredns"]


def _build_command(out: Path) -> list[str]:
    versions = module_versions((MODULE / "go.mod").read_text())
    version = versions["k8s.io/kubernetes"]
    major, minor, _ = version.lstrip("v").split(".", 2)
    # Without these a node reports version v0.0.0-master, and kubectl fails to compare versions.
    strings = {"gitVersion": version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    flags = ["-s", "-w"]
    for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version"):
        flags += [f"-X {package}.{name}={value}" for name, value in strings.items()]
    flags.append(f"-X helm.sh/helm/v4/internal/version.version={versions['helm.sh/helm/v4']}")
    return ["go", "build", "-trimpath", "-ldflags", " ".join(flags), "-o", str(out), "."]


def build_key() -> str:
    """What the build depends on, as a short name: sources, pinned versions and flags."""
    digest = hashlib.sha256(" ".join(_build_command(Path("kube"))).encode())
    for file in sorted(MODULE.iterdir()):
        digest.update(f"{file.name}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def tools_dir() -> Path:
    """Where the programs are once ensure_tools() has run."""
    return cache_dir() / "tools" / f"bin-{build_key()}"


def installed() -> Path | None:
    """The directory of programs if ensure_tools() has made it before; nothing is installed or built."""
    directory = tools_dir()
    return directory if _complete(directory) else None


def ensure_tools(log: Log = quiet) -> Path:
    """Return the directory that holds every program, after installing or building what is missing.

    Raises ClusterError if a package cannot be installed or the build fails, with the reason and what to do.
    """
    directory = tools_dir()
    if not missing_packages() and _complete(directory):
        return directory
    with hold(cache_dir() / "tools" / "lock", wait=1800, log=log, what="the tools' cache"):
        _install_packages(log)
        if not _complete(directory):
            _fill(directory, log)
    return directory


def _complete(directory: Path) -> bool:
    return all((directory / name).exists() for name in (*PROGRAMS, *SERVICES))


def _which(program: str) -> Path | None:
    if program.startswith("/"):
        return Path(program) if Path(program).exists() else None
    # Administrators' programs are not on the PATH of every root shell.
    found = shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    return Path(found) if found else None


def missing_packages() -> list[str]:
    """Debian packages that have to be installed because their program is not on this machine."""
    return sorted({package for program, package in PACKAGES.items() if _which(program) is None})


def package_source() -> str | None:
    """Address of the first of apt's package sources; None if there is none (or no apt)."""
    if shutil.which("apt-get") is None:
        return None
    lines = _output(["apt-get", "indextargets", "--format", "$(SITE)"]).split()
    return lines[0] if lines else None


def module_source() -> str | None:
    """Address of the proxy from which Go downloads modules; None if it uses none, or is not installed."""
    if shutil.which("go") is None:
        return None
    first = re.split(r"[,|]", _output(["go", "env", "GOPROXY"]).strip())[0]
    return first if first.startswith("http") else None


def _apt(*words: str, cwd: Path | None = None) -> None:
    if shutil.which("apt-get") is None:
        raise ClusterError(
            f"this machine has no apt-get to install {', '.join(missing_packages() or sorted(SERVICES.values()))}. "
            "Next: install these programs with its own package manager, then repeat: "
            + ", ".join(program for program in (*PACKAGES, *SERVICES) if _which(program) is None)
        )
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        ["apt-get", "-q", "-y", *words], capture_output=True, text=True, env=environment, cwd=cwd, check=False
    )
    if done.returncode:
        said = "\n".join(line for line in done.stderr.splitlines() if line.startswith("E:"))
        raise ClusterError(
            f"`apt-get {' '.join(words)}` failed: {said or done.stderr.strip()[-500:]}\n"
            "Next: check the network and the package sources (`apt-get update`), then repeat"
        )


def _install_packages(log: Log) -> None:
    packages = missing_packages()
    if packages:
        log(f"installing Debian packages: {' '.join(packages)}")
        _apt("update")
        _apt("install", "--no-install-recommends", *packages)


def _fill(directory: Path, log: Log) -> None:
    """Make the directory of programs beside its place, then move it there."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="new-", dir=directory.parent))
    try:
        for program, source in (_fitting_programs() or _build(scratch, log)).items():
            (scratch / program).symlink_to(source)
        for program, source in _services(directory.parent / "debian", log).items():
            (scratch / program).symlink_to(source)
        scratch.chmod(0o755)
        if directory.exists():
            shutil.rmtree(directory)
        scratch.rename(directory)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _fitting_programs() -> dict[str, Path] | None:
    """All Kubernetes programs from PATH, if they are there in the minor version that the module pins, else None.

    CoreDNS must be linked statically, because it goes into an image without libraries.
    """
    versions = module_versions((MODULE / "go.mod").read_text())
    wanted = dict.fromkeys(KUBERNETES_PROGRAMS, versions["k8s.io/kubernetes"])
    wanted |= {"helm": versions["helm.sh/helm/v4"], "coredns": versions["github.com/coredns/coredns"]}
    ask = {"kubectl": ["version", "--client"], "helm": ["version", "--short"], "coredns": ["-version"]}
    found: dict[str, Path] = {}
    for name, version in wanted.items():
        program = shutil.which(name)
        if program is None:
            return None
        said = _output([program, *ask.get(name, ["--version"])]).replace("CoreDNS-", "v")
        if not re.search(rf"\b{re.escape(version.rpartition('.')[0])}\.\d", said):
            return None
        found[name] = Path(program)
    return found if "not a dynamic executable" in _output(["ldd", str(found["coredns"])]) else None


def _output(argv: list[str]) -> str:
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.stdout


def _build(directory: Path, log: Log) -> dict[str, Path]:
    """Build the multi-call binary into `directory`; returns its name for each program."""
    if shutil.which("go") is None:
        raise ClusterError(
            f"Go is needed once to build Kubernetes {kubernetes_version()}, and `go` is not on PATH. "
            f"Next: install Go {_go_version()} or newer, then repeat"
        )
    go_cache = Path(_output(["go", "env", "GOCACHE"]).strip() or Path.home())
    _need_space(next(p for p in (go_cache, *go_cache.parents) if p.exists()))
    log(f"building Kubernetes {kubernetes_version()}, CoreDNS and helm from Go modules (once; 6 minutes on 2 cores)")
    begin = time.monotonic()
    binary = directory / "kube"
    done = subprocess.run(
        _build_command(binary),
        cwd=MODULE,
        env=os.environ | {"CGO_ENABLED": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ClusterError(
            f"building the Kubernetes programs in {MODULE} failed:\n{done.stdout.strip()[-1500:]}\n"
            "Next: check the network (Go modules are downloaded) and the disk, then repeat; finished parts are kept"
        )
    log(f"built in {time.monotonic() - begin:.0f} s")
    return dict.fromkeys(PROGRAMS, Path("kube"))


def _go_version() -> str:
    found = re.search(r"^go (\S+)", (MODULE / "go.mod").read_text(), re.MULTILINE)
    assert found
    return found.group(1)


def _need_space(directory: Path) -> None:
    # A cache that was filled before needs little more; how much of it fits is not known, so that is let pass.
    free = shutil.disk_usage(directory).free / 2**30
    filled = sum(1 for _ in directory.glob("[0-9a-f][0-9a-f]")) == 256
    if free < (1 if filled else BUILD_GIB):
        raise ClusterError(
            f"{directory}: {free:.1f} GiB are free, and building the Kubernetes programs needs {BUILD_GIB} GiB there. "
            "Next: free some, or set GOCACHE to a directory with more"
        )


def _services(directory: Path, log: Log) -> dict[str, Path]:
    """Where the programs of SERVICES are: on PATH, else unpacked from their Debian packages into `directory`."""
    found: dict[str, Path] = {}
    for program, package in SERVICES.items():
        at = _which(program)
        if at is None:
            at = directory / package / "usr" / "bin" / program
            if not at.exists():
                _unpack(package, directory, log)
        found[program] = at
    return found


def _unpack(package: str, directory: Path, log: Log) -> None:
    log(f"unpacking Debian package {package}")
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        try:
            _apt("download", package, cwd=Path(scratch))
        except ClusterError:  # the lists of packages may be missing or old
            _apt("update")
            _apt("download", package, cwd=Path(scratch))
        archive = next(Path(scratch).glob("*.deb"))
        unpacked = Path(scratch) / "unpacked"
        subprocess.run(["dpkg", "-x", str(archive), str(unpacked)], check=True)
        shutil.rmtree(directory / package, ignore_errors=True)
        unpacked.rename(directory / package)


if __name__ == "__main__":  # for scripts: prepares the tools and prints the folder that goes on PATH
    sys.stdout.write(f"{ensure_tools(lambda line: print(line, file=sys.stderr))}\n")  # noqa: T201
