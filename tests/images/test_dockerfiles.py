"""Rules that every Dockerfile and script of the images keeps."""

from __future__ import annotations

import re
import stat
import subprocess
from pathlib import Path

import pytest

from images.tags import IMAGES, REPOSITORY, SLURM_IMAGES, versions

FOLDER = REPOSITORY / "images"
SCRIPTS = sorted(
    file
    for file in FOLDER.rglob("*")
    if file.is_file() and file.suffix != ".pyc" and file.read_bytes().startswith(b"#!/bin/bash")
)


def dockerfile(name: str) -> str:
    return (FOLDER / name / "Dockerfile").read_text()


def instructions(name: str) -> list[tuple[str, str]]:
    """Instructions with their arguments, without comments, with continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", dockerfile(name), flags=re.MULTILINE).replace("\\\n", " ")
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize("name", IMAGES)
def test_the_only_base_is_the_pinned_one(name: str) -> None:
    steps = instructions(name)
    assert [value for key, value in steps if key == "FROM"] == ["${BASE}"]
    pinned = versions()
    assert set(pinned) == {"BASE", "SLURM"}
    for key, value in steps:
        if key == "ARG":
            argument, _, default = value.partition("=")
            assert pinned[argument] == default, f"{argument} differs from images/versions.env"
    assert not pinned["BASE"].endswith(":latest")
    assert pinned["BASE"].count(":") == 1, "a tag or digest is wanted"


@pytest.mark.parametrize("name", IMAGES)
def test_nothing_is_downloaded_but_packages_and_no_secret_is_inside(name: str) -> None:
    keys = [key for key, _ in instructions(name)]
    assert "ADD" not in keys
    assert not re.search(r"https?://|curl|wget|pip install", dockerfile(name))
    assert not re.search(r"(?i)password|secret|token\b|PRIVATE KEY", " ".join(v for _, v in instructions(name)))


def test_slurm_images_share_their_first_layers() -> None:
    heads = {dockerfile(name).partition("ENV LANG=C.UTF-8")[0].partition("ARG BASE")[2] for name in SLURM_IMAGES}
    assert len(heads) == 1
    assert "install-slurm" in heads.pop()


@pytest.mark.parametrize(
    ("name", "user"),
    [
        ("slurmctld", "slurm"),
        ("slurmdbd", "slurm"),
        ("slurmrestd", "65534:65534"),
        ("slurm-operator", "65532:65532"),
        ("slurmd", None),  # starts jobs as their users
        ("login", None),  # sshd does, too
    ],
)
def test_images_run_without_root_where_they_can(name: str, user: str | None) -> None:
    assert [value for key, value in instructions(name) if key == "USER"] == ([user] if user else [])


@pytest.mark.parametrize(
    ("name", "port"), [("slurmctld", 6817), ("slurmd", 6818), ("slurmdbd", 6819), ("slurmrestd", 6820), ("login", 22)]
)
def test_ports_and_init(name: str, port: int) -> None:
    steps = dict(instructions(name))
    assert steps["EXPOSE"] == str(port)
    assert steps["ENTRYPOINT"] == f'["/usr/bin/tini", "-g", "--", "{name}-entrypoint"]'


def test_scripts_are_executable_and_parse() -> None:
    assert len(SCRIPTS) >= 10
    for script in SCRIPTS:
        assert script.stat().st_mode & stat.S_IXUSR, script
        assert "\nset -euo pipefail\n" in script.read_text() or script.name == "authorized-keys", script
    for script in [*SCRIPTS, FOLDER / "slurm-base/lib/entry.sh"]:
        subprocess.run(["bash", "-n", str(script)], check=True)


def test_each_copied_path_exists() -> None:
    for name in IMAGES:
        for key, value in instructions(name):
            if key == "COPY":
                for source in value.split()[:-1]:
                    assert Path(REPOSITORY / source).exists(), (name, source)
