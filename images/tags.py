"""Tags of the images: a hash of what an image is made from, so that equal inputs have one tag on every machine.

Uses the standard library only, because the Pulumi program and the local stand-ins both ask here.
Run as a program (`python images/tags.py [IMAGE…]`) it prints image and tag, for a CI job that builds and pushes.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent

SLURM_IMAGES = ("slurmctld", "slurmd", "slurmdbd", "slurmrestd", "login")
IMAGES = (*SLURM_IMAGES, "slurm-operator")

VERSIONS = "images/versions.env"
OPERATOR_PROJECT = "operator/pyproject.toml"
OPERATOR_PACKAGE = "operator/src/slurm_operator/__init__.py"

JUNK = (
    "__pycache__", "*.pyc", "*.egg-info", ".mypy_cache", ".ruff_cache", ".pytest_cache", "*.swp", "*~", ".DS_Store",
)  # fmt: skip
"""Names (of files and folders) that never get into an image; .dockerignore lists the same."""


class TagError(ValueError):
    """A tag cannot be told; the message says what is wrong and what is allowed."""


def inputs(image: str) -> tuple[str, ...]:
    """Files and folders, relative to the repository, that make up an image."""
    if image not in IMAGES:
        raise TagError(f"there is no image {image!r}. Images: {', '.join(IMAGES)}")
    if image in SLURM_IMAGES:
        return (f"images/{image}", "images/slurm-base", VERSIONS)
    return (f"images/{image}", VERSIONS, "operator/src", OPERATOR_PROJECT)


def image_tag(name: str, root: Path = REPOSITORY) -> str:
    """Tag of image `name` from the files below `root`: the version of what it holds and 12 hex digits of their hash.

    Paths, contents and the owner's execute bit count; dates, owners, and files of JUNK do not.
    """
    digest = hashlib.sha256()
    for path in sorted(_files(root, inputs(name))):
        file = root / path
        if file.is_symlink():
            kind, content = "link", os.fsencode(file.readlink())
        else:
            kind, content = "x" if file.stat().st_mode & 0o100 else "-", file.read_bytes()
        digest.update(f"{path}\0{kind}\0{len(content)}\0".encode() + content)
    version = versions(root)["SLURM"] if name in SLURM_IMAGES else operator_version(root)
    return f"{version}-{digest.hexdigest()[:12]}"


def image_tags(root: Path = REPOSITORY) -> dict[str, str]:
    """Tag of every image."""
    return {name: image_tag(name, root) for name in IMAGES}


def versions(root: Path = REPOSITORY) -> dict[str, str]:
    """What images/versions.env says: BASE (image reference) and SLURM (release)."""
    lines = (root / VERSIONS).read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def operator_version(root: Path = REPOSITORY) -> str:
    """Version of the operator's package (`__version__`, which its pyproject.toml takes too)."""
    found = re.search(r'^__version__ = "([^"]+)"$', (root / OPERATOR_PACKAGE).read_text(), re.MULTILINE)
    if found is None:
        raise TagError(f'{root / OPERATOR_PACKAGE} has no line __version__ = "…", which the tag begins with')
    return found.group(1)


def _files(root: Path, paths: tuple[str, ...]) -> Iterator[str]:
    """Relative paths of the files that `paths` name or hold."""
    for path in paths:
        at = root / path
        if at.is_dir() and not at.is_symlink():
            names = (entry.name for entry in at.iterdir())
            wanted = (name for name in names if not any(fnmatch(name, junk) for junk in JUNK))
            yield from _files(root, tuple(f"{path}/{name}" for name in wanted))
        elif at.is_symlink() or at.is_file():
            yield path
        else:
            raise TagError(f"{at} is missing, so there is no tag for an image made from it. Restore it from git")


if __name__ == "__main__":
    try:
        for chosen in sys.argv[1:] or IMAGES:
            sys.stdout.write(f"{chosen} {image_tag(chosen)}\n")
    except TagError as error:
        sys.exit(f"error: {error}")
