"""Which images are missing, and building and pushing them."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence

import yaml

from images.tags import IMAGES, TagError, image_tag, versions
from localcloud.images.base import ensure_base
from localcloud.images.buildah import PREFIX, Store
from localcloud.images.errors import ImageError, Log
from localcloud.images.registry import present
from localcloud.kubernetes.errors import ClusterError
from localcloud.kubernetes.locks import hold
from localcloud.paths import ECR_REGISTRY, REPOSITORY, instance

NEEDED_GIB = 1.5
"""Disk space that a build from nothing takes in the cache, measured: 0.5 store, 0.3 registry, 0.4 while it runs."""

LOCK_SECONDS = 1800


def tags(names: Sequence[str] = IMAGES) -> dict[str, str]:
    """Tag of each image. Raises ImageError for a name that is none."""
    try:
        return {name: image_tag(name) for name in names}
    except TagError as error:
        raise ImageError(str(error)) from None


def ensure_images(log: Log, registry: str | None = None) -> dict[str, str]:
    """Have every image in the registry "host:port" (this instance's by default); build what is missing.

    Returns image -> reference in the name of ECR, which nodes pull from that registry. Raises ImageError.
    """
    wanted = tags()
    registry = registry or instance().registry
    if missing := missing_in(registry, wanted):
        build(missing, log, registry)
    return {name: f"{ECR_REGISTRY}/{reference(name, tag)}" for name, tag in wanted.items()}


def stack_registry() -> str | None:
    """The registry from which the local stack takes its images by its config (images.registry); None for ECR."""
    config = yaml.safe_load((REPOSITORY / "stacks" / "Pulumi.local.yaml").read_text())["config"]
    registry = (config.get("slipway:images") or {}).get("registry")
    if registry and "/" in registry:
        raise ImageError(f"images.registry {registry!r} in stacks/Pulumi.local.yaml: only host:port can be pushed to")
    return registry


def local_image(name: str) -> str:
    """The full reference by which nodes of the local stack pull an image."""
    return f"{stack_registry() or ECR_REGISTRY}/{reference(name, image_tag(name))}"


def reference(name: str, tag: str) -> str:
    """Repository and tag below a registry."""
    return f"slipway/{name}:{tag}"


def missing_in(registry: str, wanted: dict[str, str]) -> dict[str, str]:
    """Those of `wanted` (image -> tag) that the registry does not have."""
    found = present(registry, [reference(name, tag) for name, tag in wanted.items()])
    return {name: tag for name, tag in wanted.items() if reference(name, tag) not in found}


def build(wanted: dict[str, str], log: Log, registry: str | None) -> None:
    """Build images that the store does not have, and push those that the registry does not have (None: no push)."""
    store = Store()
    try:
        with hold(store.lock, wait=LOCK_SECONDS, log=log, what="the images' cache"):
            if registry:  # somebody else may have pushed them while this waited
                wanted = missing_in(registry, wanted)
            _build(store, wanted, log)
            for name, tag in wanted.items() if registry else ():
                begin = time.monotonic()
                log(f"pushing {name}")
                store.push(f"{PREFIX}/{name}:{tag}", f"{registry}/{reference(name, tag)}", f"push-{name}")
                log(f"pushed {name} in {time.monotonic() - begin:.1f} s")
            if registry and (lost := missing_in(registry, wanted)):
                raise ImageError(
                    f"pushed {', '.join(lost)} to http://{registry}, but it does not have them. Its log says more"
                )
    except ClusterError as error:  # the lock is held by another program
        raise ImageError(str(error)) from None


def _build(store: Store, wanted: dict[str, str], log: Log) -> None:
    if store.prepare():
        log("a build was killed here; its remains are removed")
    have = store.images()
    missing = {name: tag for name, tag in wanted.items() if f"{PREFIX}/{name}:{tag}" not in have}
    if not missing:
        return
    free = shutil.disk_usage(store.directory).free / 2**30
    if free < NEEDED_GIB:
        raise ImageError(
            f"{store.directory}: {free:.1f} GiB are free, and building the images needs {NEEDED_GIB} GiB there. "
            "Next: free some, or set SLIPWAY_CACHE to a directory with more"
        )
    arguments = versions()
    ensure_base(store, arguments["BASE"], log)
    for number, (name, tag) in enumerate(missing.items(), 1):
        begin = time.monotonic()
        log(f"building {name} ({number} of {len(missing)})")
        dockerfile = REPOSITORY / "images" / name / "Dockerfile"
        store.build(dockerfile, REPOSITORY, f"{PREFIX}/{name}:{tag}", name, arguments)
        if tags([name])[name] != tag:
            store.remove([f"{PREFIX}/{name}:{tag}"])
            raise ImageError(f"{name}: its files were changed while it was built, so its tag would lie. Repeat")
        log(f"built {name} in {time.monotonic() - begin:.1f} s")
