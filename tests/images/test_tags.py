"""Tags: equal inputs give one tag anywhere, and every change that gets into an image changes it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from images import tags
from images.tags import IMAGES, JUNK, SLURM_IMAGES, TagError, image_tag, inputs


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small repository with every input of every image."""
    root = tmp_path / "repository"
    files = {
        "images/versions.env": "# comment\nBASE=docker.io/library/debian:forky-slim\nSLURM=26.05\n",
        "images/slurm-base/install-slurm": "#!/bin/bash\n",
        "images/slurm-base/bin/sackd-entrypoint": "#!/bin/bash\n",
        "operator/pyproject.toml": "[project]\n",
        "operator/src/slurm_operator/__init__.py": '__version__ = "0.1.0"\n',
        "operator/src/slurm_operator/kube/client.py": "x = 1\n",
    }
    files |= {f"images/{name}/Dockerfile": f"FROM {name}\n" for name in IMAGES}
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


def all_tags(root: Path) -> dict[str, str]:
    return {name: image_tag(name, root) for name in IMAGES}


def changed(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {name for name in before if before[name] != after[name]}


def test_a_tag_is_the_version_and_twelve_digits(tree: Path) -> None:
    for name in SLURM_IMAGES:
        assert re.fullmatch(r"26\.05-[0-9a-f]{12}", image_tag(name, tree))
    assert re.fullmatch(r"0\.1\.0-[0-9a-f]{12}", image_tag("slurm-operator", tree))
    assert len(set(all_tags(tree).values())) == len(IMAGES)


def test_a_copy_made_in_another_order_has_the_same_tags(tree: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    for file in sorted((f for f in tree.rglob("*") if f.is_file()), reverse=True):
        target = copy / file.relative_to(tree)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
        os.utime(target, (1, 1))
    assert all_tags(copy) == all_tags(tree)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("images/slurmd/Dockerfile", {"slurmd"}),
        ("images/slurm-base/install-slurm", set(SLURM_IMAGES)),
        ("images/slurm-base/bin/sackd-entrypoint", set(SLURM_IMAGES)),
        ("images/versions.env", set(IMAGES)),
        ("operator/src/slurm_operator/kube/client.py", {"slurm-operator"}),
        ("operator/pyproject.toml", {"slurm-operator"}),
    ],
)
def test_a_changed_input_changes_the_tags_of_its_images_only(tree: Path, path: str, expected: set[str]) -> None:
    before = all_tags(tree)
    with (tree / path).open("a") as file:
        file.write("# changed\n")
    assert changed(before, all_tags(tree)) == expected


def test_every_kind_of_change_counts(tree: Path) -> None:
    script = tree / "images/slurmd/entry"
    script.write_text("a")
    seen = {image_tag("slurmd", tree)}
    script.chmod(0o755)
    seen.add(image_tag("slurmd", tree))
    script.rename(script.with_name("entry2"))
    seen.add(image_tag("slurmd", tree))
    script.symlink_to("entry2")
    seen.add(image_tag("slurmd", tree))
    script.unlink()
    script.symlink_to("Dockerfile")
    seen.add(image_tag("slurmd", tree))
    assert len(seen) == 5


def test_content_cannot_move_between_files_unseen(tree: Path) -> None:
    (tree / "images/slurmd/a").write_text("xy")
    (tree / "images/slurmd/b").write_text("")
    first = image_tag("slurmd", tree)
    (tree / "images/slurmd/a").write_text("x")
    (tree / "images/slurmd/b").write_text("y")
    assert image_tag("slurmd", tree) != first


def test_junk_and_group_permissions_do_not_count(tree: Path) -> None:
    before = all_tags(tree)
    for folder in ("operator/src/slurm_operator", "images/slurmd"):
        cache = tree / folder / "__pycache__"
        cache.mkdir()
        (cache / "x.cpython-311.pyc").write_bytes(b"\0")
        (tree / folder / ".Dockerfile.swp").write_text("editor")
    (tree / "images/slurmd/Dockerfile").chmod(0o664)
    assert all_tags(tree) == before


def test_junk_stays_out_of_the_build_context_too() -> None:
    ignored = (tags.REPOSITORY / ".dockerignore").read_text().splitlines()
    assert {f"**/{name}" for name in JUNK} <= set(ignored)


def test_everything_that_a_dockerfile_copies_is_an_input() -> None:
    for name in IMAGES:
        dockerfile = (tags.REPOSITORY / "images" / name / "Dockerfile").read_text()
        for line in re.findall(r"^COPY (.+)$", dockerfile, re.MULTILINE):
            for source in line.split()[:-1]:
                assert any(source.rstrip("/").startswith(known) for known in inputs(name)), (name, source)


def test_errors_name_what_is_wrong(tree: Path) -> None:
    with pytest.raises(TagError, match=r"no image 'slurm'\. Images: slurmctld, "):
        image_tag("slurm", tree)
    shutil.rmtree(tree / "images/slurm-base")
    with pytest.raises(TagError, match=r"images/slurm-base is missing"):
        image_tag("slurmd", tree)
    (tree / "operator/src/slurm_operator/__init__.py").write_text("")
    with pytest.raises(TagError, match=r"has no line __version__"):
        image_tag("slurm-operator", tree)


def test_as_a_program_it_prints_image_and_tag() -> None:
    program = str(tags.REPOSITORY / "images" / "tags.py")
    done = subprocess.run([sys.executable, program, "slurmd"], capture_output=True, text=True, check=False, cwd="/")
    assert (done.returncode, done.stdout) == (0, f"slurmd {image_tag('slurmd')}\n")
    done = subprocess.run([sys.executable, program, "nope"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: there is no image 'nope'")
