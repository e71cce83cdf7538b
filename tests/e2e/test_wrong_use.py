"""Wrong use gets one clear message, no traceback, and loses nothing."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from .conftest import REPOSITORY


def slipway(*arguments: str, **environment: str) -> tuple[int, str]:
    done = subprocess.run(
        [str(REPOSITORY / "slipway"), *arguments], cwd=REPOSITORY, env={**os.environ, **environment},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    output = done.stdout + done.stderr
    assert "Traceback" not in output
    return done.returncode, output


def test_unknown_stack_lists_those_that_exist() -> None:
    code, output = slipway("preview", "--stack", "produktion")
    assert code == 1
    assert "produktion" in output and "dev" in output and "local" in output


def test_up_of_a_cloud_stack_is_refused() -> None:
    code, output = slipway("up", "--stack", "dev", SLIPWAY_INSTANCE="test-wrong", SLIPWAY_NET="180")
    assert code == 1
    assert "make preview STACK=dev" in output


def test_an_existing_cluster_needs_a_kubeconfig_that_exists() -> None:
    code, output = slipway("up", SLIPWAY_KUBECONFIG="/nowhere/config", SLIPWAY_INSTANCE="test-wrong", SLIPWAY_NET="180")
    assert code == 1
    assert "SLIPWAY_KUBECONFIG=/nowhere/config: there is no such file" in output


def test_invalid_instance_is_named() -> None:
    code, output = slipway("status", SLIPWAY_NET="91")
    assert code == 1
    assert "SLIPWAY_NET='91'" in output and "multiple of 3" in output


def test_not_up_yet_says_how_to_start() -> None:
    code, output = slipway("job", SLIPWAY_INSTANCE="test-wrong", SLIPWAY_NET="180")
    assert code == 1
    assert "make up" in output


@pytest.mark.parametrize("words", ["node drain debug-0", "node list", "engine stack resources", "destroy", "logs aws"])
def test_what_needs_a_cloud_leaves_nothing_when_there_is_none(words: str) -> None:
    code, output = slipway(*words.split(), SLIPWAY_INSTANCE="test-wrong", SLIPWAY_NET="180")
    assert code == 1
    assert ("make up" in output) or ("./slipway logs" in output)
    assert not list(Path("/var/lib/slipway").glob("*test-wrong*"))


def test_a_cache_that_cannot_be_made_is_named() -> None:
    code, output = slipway("--help", SLIPWAY_CACHE="/proc/none")
    assert code == 1
    assert "/proc/none cannot be made" in output and "mkdir" not in output


@pytest.mark.parametrize("part", ["node", "engine"])
def test_usage_names_the_command_that_was_typed(part: str) -> None:
    code, output = slipway(part, "--help", SLIPWAY_INSTANCE="test-wrong", SLIPWAY_NET="180")
    assert code == 0 and f"usage: ./slipway {part} " in output


def test_unknown_command_shows_usage() -> None:
    code, output = slipway("launch")
    assert code == 2
    assert "usage: slipway" in output


def test_help_lists_every_command() -> None:
    code, output = slipway("--help")
    assert code == 0
    for word in ("up", "down", "job", "node", "kubectl", "preview", "shell", "logs"):
        assert word in output


def test_make_help_lists_every_target() -> None:
    output = subprocess.run(["make", "help"], cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    targets = [
        line.split(":")[0]
        for line in Path(REPOSITORY / "Makefile").read_text().splitlines()
        if line and line[0].isalpha() and ":" in line and ":=" not in line and "?=" not in line
    ]
    assert targets
    for target in targets:
        assert f"make {target}" in output


@pytest.mark.parametrize("command", ["up", "job", "preview", "kubectl"])
def test_not_root_is_told_before_anything_is_installed(command: str) -> None:
    script = f"exec setpriv --reuid=65534 --clear-groups /bin/bash -s {command}"
    done = subprocess.run(
        ["bash", "-c", script], input=(REPOSITORY / "slipway").read_text(), cwd="/",
        env={"PATH": os.environ["PATH"], "HOME": "/tmp", "SLIPWAY_CACHE": "/tmp/none-of-slipway"},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert "needs root" in done.stderr and f"sudo -E ./slipway {command}" in done.stderr
    assert not Path("/tmp/none-of-slipway").exists()
