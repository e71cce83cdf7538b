"""The image store that a new node begins with: pause and CoreDNS, which run before any registry can be asked.

It is made once, kept in the cache, and cloned by hard links: its blobs and lower layers are never written again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
import time
from pathlib import Path

from localcloud import tools
from localcloud.kubernetes import processes
from localcloud.kubernetes.archive import write_image
from localcloud.kubernetes.commands import clean_environment, run
from localcloud.kubernetes.errors import ClusterError, Log
from localcloud.kubernetes.locks import hold
from localcloud.kubernetes.nodefiles import PAUSE_IMAGE
from localcloud.kubernetes.processes import Daemon
from localcloud.paths import Instance, cache_dir

_DATABASES = (
    "io.containerd.metadata.v1.bolt/meta.db",
    "io.containerd.snapshotter.v1.overlayfs/metadata.db",
)
"""The only files of containerd's root that are changed in place: copied, not linked."""


def coredns_image() -> str:
    """Name of the CoreDNS image that is in every node."""
    return f"slipway.local/coredns:{tools.coredns_version()}"


def catatonit() -> Path:
    """The small static init program; it is the pause container and process 1 of each node."""
    found = shutil.which("catatonit", path=clean_environment()["PATH"])
    if found is None:
        raise ClusterError("catatonit is not installed. Next: apt-get install catatonit")
    return Path(found)


def _key(bin_dir: Path) -> str:
    digest = hashlib.sha256(f"1 {PAUSE_IMAGE} {coredns_image()} {bin_dir.name}".encode())
    digest.update(Path(__file__).with_name("archive.py").read_bytes())
    digest.update(catatonit().read_bytes())
    return digest.hexdigest()[:16]


def ensure_template(inst: Instance, bin_dir: Path, log: Log) -> Path:
    """Return the directory of the template; it is made when missing (about 3 s)."""
    store = cache_dir() / "node-images"
    directory = store / _key(bin_dir)
    if directory.exists():
        return directory
    with hold(store / "lock", log=log, what="the cache of node images"):
        if not directory.exists():
            log("preparing the nodes' image store")
            for stale in store.glob("new-*"):  # of a run that was killed; the lock says that nobody is at it
                shutil.rmtree(stale)
            scratch = Path(tempfile.mkdtemp(prefix="new-", dir=store))
            _import_images(inst, bin_dir, scratch)
            (scratch / "root").rename(directory)
            shutil.rmtree(scratch)
    return directory


def _import_images(inst: Instance, bin_dir: Path, scratch: Path) -> None:
    """Let a containerd of its own unpack the two images into scratch/root."""
    images: dict[str, tuple[dict[str, Path], dict[str, list[str]]]] = {
        PAUSE_IMAGE: ({"/pause": catatonit()}, {"Entrypoint": ["/pause", "-P"]}),
        coredns_image(): ({"/coredns": (bin_dir / "coredns").resolve()}, {"Entrypoint": ["/coredns"]}),
    }
    socket = scratch / "c.sock"
    config = scratch / "containerd.toml"
    config.write_text(
        f'version = 2\nroot = "{scratch}/root"\nstate = "{scratch}/state"\noom_score = 0\n'
        'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n'
        f'[grpc]\n  address = "{socket}"\n'
    )
    daemon = Daemon(
        group=f"{inst.cgroup}/node-images",
        argv=(str(bin_dir / "containerd"), "--config", str(config)),
        log=scratch / "containerd.log",
        prefix=("unshare", "--mount"),  # its mounts end with it, however it ends
    )
    ctr: list[str | Path] = [bin_dir / "ctr", "--address", socket, "--namespace", "k8s.io"]
    processes.ensure(daemon)
    try:
        end = time.monotonic() + 20
        while not run([*ctr, "version"], check=False):
            if time.monotonic() > end:
                raise ClusterError(f"containerd does not start:\n{processes.last_words(daemon.log)}")
            time.sleep(0.05)
        for name, (programs, image_config) in images.items():
            archive = scratch / "image.tar"
            write_image(archive, name, programs, image_config)
            run([*ctr, "images", "import", "--snapshotter", "overlayfs", archive])
            archive.unlink()
            _share(scratch / "root", programs)
    finally:
        processes.stop(daemon, grace=5)


def _share(root: Path, programs: dict[str, Path]) -> None:
    """Make the unpacked programs of an image the same files as those of the host, where that is one disk.

    The kernel then keeps their pages once: CoreDNS is the binary that every other daemon runs, too.
    """
    for target, source in programs.items():
        for unpacked in root.glob(f"io.containerd.snapshotter.v1.overlayfs/snapshots/*/fs{target}"):
            shared = unpacked.with_name(f".{unpacked.name}")
            with contextlib.suppress(OSError):  # another disk: it stays a copy
                os.link(source, shared)
                shared.replace(unpacked)


def clone(template: Path, target: Path, state: Path) -> None:
    """Make `target` a containerd root with the template's images, unless it is one (of this template) already.

    Where cache and state are on different file systems, one copy in the state is what nodes link to.
    """
    marker = target / ".template"
    if marker.exists() and marker.read_text() == template.name:
        return
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    source = template if template.stat().st_dev == state.stat().st_dev else _copy_of(template, state)
    run(["cp", "-al", f"{source}/.", target])
    for database in _DATABASES:
        (target / database).unlink()
        shutil.copyfile(source / database, target / database)
    marker.write_text(template.name)


def _copy_of(template: Path, state: Path) -> Path:
    copy = state / "nodes" / f".images-{template.name}"
    if not copy.exists():
        scratch = copy.with_name(f"{copy.name}.{os.getpid()}.{os.urandom(4).hex()}")
        run(["cp", "-a", template, scratch])
        with contextlib.suppress(OSError):  # another node was faster
            scratch.rename(copy)
        shutil.rmtree(scratch, ignore_errors=True)
    return copy
