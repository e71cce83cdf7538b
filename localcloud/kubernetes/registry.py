"""Debian's docker-registry: stands in for Amazon ECR as the place from which nodes pull every image.

It has no authentication and one flat name space: the registry's name in an image reference is not part of what it
stores. Its data is in the cache, addressed by content, and is shared by all instances.
"""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from pathlib import Path

from localcloud.kubernetes import network, processes
from localcloud.kubernetes.errors import ClusterError, Log
from localcloud.kubernetes.locks import hold
from localcloud.kubernetes.processes import Daemon
from localcloud.paths import Instance, cache_dir


def daemon(inst: Instance, bin_dir: Path) -> Daemon:
    argv = (str(bin_dir / "docker-registry"), "serve", str(inst.state / "run" / "registry.yml"))
    return Daemon(group=f"{inst.cgroup}/registry", argv=argv, log=inst.run / "registry.log")


def start(inst: Instance, bin_dir: Path, log: Log) -> None:
    """Start the registry at 10.N.0.1:5000 unless it runs; returns when it answers."""
    with hold(inst.run / "registry.lock", log=log, what="the registry"):
        with hold(inst.run / "network.lock"):
            network.ensure_bridge(inst)
        data = cache_dir() / "registry"
        data.mkdir(parents=True, exist_ok=True)
        (inst.run / "registry.yml").write_text(
            "version: 0.1\n"
            "log: {level: warn}\n"
            f"storage: {{filesystem: {{rootdirectory: {data}}}, delete: {{enabled: true}}}}\n"
            f'http: {{addr: "{inst.registry}"}}\n'
        )
        own = daemon(inst, bin_dir)
        if processes.ensure(own):
            _wait(inst, own)
            log(f"registry ready at {inst.registry}")


def _wait(inst: Instance, own: Daemon) -> None:
    end = time.monotonic() + 15
    while True:
        try:
            with urllib.request.urlopen(f"http://{inst.registry}/v2/", timeout=2):
                return
        except (urllib.error.URLError, OSError) as error:
            if time.monotonic() > end:
                said = processes.last_words(own.log)
                raise ClusterError(f"the registry does not answer ({error}). The end of {own.log}:\n{said}") from None
        time.sleep(0.03)
