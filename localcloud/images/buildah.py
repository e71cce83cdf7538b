"""Runs buildah and mmdebstrap so that they leave nothing behind, however they end.

Each program gets mount and process namespaces of its own and dies with us: a kill at any moment ends everything it
started and removes its mounts. Its storage is in our cache, its configuration is ours. Nothing here touches the
machine's network: builds use the host's (`--network host`), so that no bridge and no firewall rule is made.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from localcloud.images.errors import ImageError, cause
from localcloud.paths import REPOSITORY, cache_dir

TAIL_LINES = 15
LISTING = "list"
"""Name of the log of commands whose output is read here; what they print goes to the caller instead."""
PREFIX = "localhost/slipway"
"""Names of built images in the store: PREFIX/<image>:<tag>."""


class Store:
    """Where images are built. Everything in it can be made again, so after a killed build it is simply emptied."""

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = directory or cache_dir() / "images"
        self.logs = self.directory / "logs"
        self._layers = self.directory / "store"
        self._writing = self.directory / "writing"
        self.scratch = self.directory / "tmp"  # emptied by prepare()
        self._config = self.directory / "config"
        self._policy = f"--signature-policy={self._config / 'policy.json'}"

    @property
    def lock(self) -> Path:
        return self.directory / "lock"

    def prepare(self) -> bool:
        """Make the store usable; call it with the lock held. True if a build was killed here and it was emptied."""
        need_programs("buildah", "setpriv", "unshare")
        killed = self._writing.exists()
        if killed:
            shutil.rmtree(self._layers, ignore_errors=True)
            self._writing.unlink()
        # Mounts of an earlier run are gone with its namespace; its notes on them must go, too.
        shutil.rmtree(self._layers / "run", ignore_errors=True)
        shutil.rmtree(self.scratch, ignore_errors=True)
        for directory in (self.logs, self.scratch, self._config, self._layers / "cache"):
            directory.mkdir(parents=True, exist_ok=True)
        (self._config / "registries.conf").write_text('unqualified-search-registries = ["docker.io"]\n')
        (self._config / "storage.conf").write_text('[storage]\ndriver = "overlay"\n')
        (self._config / "containers.conf").write_text(f"[containers]\ndefault_ulimits = [{_ulimits()}]\n")
        (self._config / "policy.json").write_text('{"default": [{"type": "insecureAcceptAnything"}]}\n')
        return killed

    @contextlib.contextmanager
    def writes(self) -> Iterator[None]:
        """Around everything that writes images; if it is cut off by a kill, prepare() empties the store."""
        self._writing.touch()
        try:
            yield
        except ImageError:  # buildah has ended by itself and has tidied up
            self._writing.unlink()
            raise
        self._writing.unlink()

    def build(self, dockerfile: Path, context: Path, name: str, log: str, arguments: dict[str, str]) -> None:
        """Build a Dockerfile as image `name`. Output goes to logs/<log>.log; raises ImageError with its end."""
        options = ["--layers", "--pull-never", "--isolation=chroot", "--network=host", self._policy]
        options += [f"--build-arg={key}={value}" for key, value in arguments.items()]
        with self.writes():
            self._buildah(["build", *options, f"--file={dockerfile}", f"--tag={name}", str(context)], log)

    def pull(self, name: str, log: str) -> None:
        """Pull an image from its registry."""
        with self.writes():
            self._buildah(["pull", self._policy, name], log)

    def push(self, name: str, target: str, log: str) -> None:
        """Push image `name` to `target` ("host:port/path:tag"), a registry without TLS, never through a proxy."""
        options = ["--tls-verify=false", self._policy]
        self._buildah(["push", *options, name, f"docker://{target}"], log, {"NO_PROXY": "*", "no_proxy": "*"})

    def images(self) -> dict[str, str]:
        """Named images in the store and their size as text, "103 MB" (shared layers count in each)."""
        if not (self._layers / "root" / "overlay-images" / "images.json").exists():
            return {}
        listing = self._buildah(["images", "--noheading", "--format", "{{.Name}}:{{.Tag}} {{.Size}}"], LISTING)
        rows = (line.partition(" ") for line in listing.splitlines() if not line.startswith("<none>"))
        return {name: size.strip() for name, _, size in rows}

    def remove(self, names: list[str]) -> None:
        """Remove images and the layers that nothing else needs."""
        with self.writes():
            self._buildah(["rmi", "--force", *names], "prune")
            self._buildah(["rmi", "--prune", "--force"], "prune")

    def run(self, command: list[str], log: str) -> str:
        """Run a program in namespaces of its own. Raises ImageError with the end of its output if it fails."""
        file = self.logs / f"{log}.log"
        isolated = ["setpriv", "--pdeathsig", "KILL", "--"]
        isolated += ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--"]
        # buildah notes which registry has which layer below /var/lib/containers; that belongs to our cache, too.
        isolated += ["sh", "-ec", 'mkdir -p /var/lib/containers; mount --bind "$0" /var/lib/containers; exec "$@"']
        isolated += [str(self._layers / "cache")]
        with file.open("wb") as output:
            done = subprocess.run(
                [*isolated, *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if log == LISTING else output,
                stderr=output,
                env=os.environ | self._environment(),
                cwd=REPOSITORY,
                check=False,
            )
        if done.returncode:
            text = file.read_text(errors="replace").strip()
            end = "\n".join(f"    {line}" for line in text.splitlines()[-TAIL_LINES:])
            raise ImageError(f"{log} failed: {cause(text)}.\n{end}\n  Full log: {file}")
        return done.stdout.decode() if done.stdout else ""

    def _buildah(self, words: list[str], log: str, environment: dict[str, str] | None = None) -> str:
        storage = ["--root", str(self._layers / "root"), "--runroot", str(self._layers / "run")]
        before = [f"{key}={value}" for key, value in (environment or {}).items()]
        return self.run(["env", *before, "buildah", "--storage-driver", "overlay", *storage, *words], log)

    def _environment(self) -> dict[str, str]:
        return {
            "CONTAINERS_CONF": str(self._config / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(self._config / "storage.conf"),
            "CONTAINERS_REGISTRIES_CONF": str(self._config / "registries.conf"),
            "TMPDIR": str(self.scratch),
        }


def need_programs(*names: str) -> None:
    """Raise ImageError if a program is not on PATH."""
    missing = [name for name in names if shutil.which(name) is None]
    if missing:
        raise ImageError(
            f"{' and '.join(missing)}: not on PATH, and images cannot be built without. `make up` installs what it "
            "needs with apt-get; elsewhere: install buildah, mmdebstrap and util-linux with the machine's own tools"
        )


def _ulimits() -> str:
    """Limits for what builds run: ours, because raising them takes a privilege that containers often lack."""
    limits = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}
    hard = {name: resource.getrlimit(limit)[1] for name, limit in limits.items()}
    return ", ".join(f'"{name}={value}:{value}"' for name, value in hard.items() if value > 0)
