"""The base image: pulled where its registry answers, else made from Debian packages by mmdebstrap.

The made one stands in for Debian's own image of the same name. It holds the same packages within a few, but keeps
this machine's package mirror, and it is not byte for byte the published image.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from localcloud.images.buildah import Store, need_programs
from localcloud.images.errors import ImageError, Log
from localcloud.images.registry import public_registry_answers

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
MIRROR_VARIABLE = "SLIPWAY_DEBIAN_MIRROR"


def ensure_base(store: Store, base: str, log: Log) -> None:
    """Have image `base` in the store. Raises ImageError if it can neither be pulled nor made."""
    if base in store.images():
        return
    root = root_archive(store.directory, base)
    if root is None or not root.exists():
        if public_registry_answers(base):
            log(f"pulling {base}")
            try:
                store.pull(base, "base")
            except ImageError as error:
                if root is None:
                    raise
                log(f"{base} cannot be pulled, it is made instead: {str(error).partition(': ')[2].splitlines()[0]}")
            else:
                return
        if root is None:
            raise ImageError(
                f"the base image {base} (BASE in images/versions.env) cannot be pulled, because its registry does not "
                "answer, and only docker.io/library/debian:<suite>-slim can be made from packages. Check the network, "
                "or take such a name"
            )
        _bootstrap(store, root, log)
    context = Path(tempfile.mkdtemp(dir=store.scratch))
    os.link(root, context / "root.tar")
    (context / "Dockerfile").write_text('FROM scratch\nADD root.tar /\nCMD ["bash"]\n')
    store.build(context / "Dockerfile", context, base, "base", {})


def root_archive(directory: Path, base: str) -> Path | None:
    """Where the made root file system of `base` is kept; None if `base` is not a Debian of that form."""
    found = re.fullmatch(r"docker\.io/library/debian:([a-z]+)-slim", base)
    return directory / f"debian-{found.group(1)}.tar" if found else None


def _bootstrap(store: Store, archive: Path, log: Log) -> None:
    need_programs("mmdebstrap")
    mirror = debian_mirror()
    suite = archive.stem.removeprefix("debian-")
    log(f"making the base image from Debian packages ({suite}, {mirror})")
    begin = time.monotonic()
    partial = store.scratch / archive.name
    # Each option is kept in the image, where packages are installed next. A mirror's index may be past its date.
    options = ['Acquire::Check-Valid-Until "false"', 'APT::Install-Recommends "false"']
    options += [f'Acquire::{scheme}::Proxy "{proxy}"' for scheme, proxy in _proxies().items()]
    excluded = ("man", "doc", "locale", "info")
    store.run(
        ["mmdebstrap", "--mode=root", "--variant=apt"]
        + [f"--aptopt={option}" for option in options]
        + [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in excluded]
        + ([f"--keyring={KEYRING}"] if KEYRING.exists() else [])
        + (["--include=ca-certificates"] if mirror.startswith("https:") else [])
        + [suite, str(partial), mirror],
        "mmdebstrap",
    )
    partial.rename(archive)
    log(f"base image made in {time.monotonic() - begin:.0f} s ({archive.stat().st_size / 1e6:.0f} MB)")


def debian_mirror() -> str:
    """The Debian mirror that this machine's apt uses, or $SLIPWAY_DEBIAN_MIRROR. Raises ImageError if there is none."""
    chosen = os.environ.get(MIRROR_VARIABLE)
    if chosen:
        return chosen
    targets = _output(
        ["apt-get", "indextargets", "--format", "$(REPO_URI) $(COMPONENT) $(LABEL)", "Created-By: Packages"]
    )
    return mirror_of(targets)


def mirror_of(targets: str) -> str:
    """The first source of Debian itself among lines "address component label" of `apt-get indextargets`.

    The label is known only after an `apt-get update`; before it, an address that ends in /debian counts.
    """
    rows = [line.split(maxsplit=2) for line in targets.splitlines()]
    mains = [(row[0].rstrip("/"), row[2] if len(row) > 2 else "") for row in rows if row[1:2] == ["main"]]
    for address, label in mains:
        if label == "Debian":
            return address
    for address, _ in mains:
        if address.endswith("/debian"):
            return address
    raise ImageError(
        "apt's configuration on this machine names no Debian mirror to make the base image from. "
        f"Next: set {MIRROR_VARIABLE} to one, in the form http://host/debian"
    )


def _proxies() -> dict[str, str]:
    found = {}
    for scheme in ("http", "https"):
        value = _output(["apt-config", "shell", "proxy", f"Acquire::{scheme}::Proxy"])
        if match := re.search(r"proxy='([^']+)'", value):
            found[scheme] = match.group(1)
    return found


def _output(argv: list[str]) -> str:
    if shutil.which(argv[0]) is None:
        return ""
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout
