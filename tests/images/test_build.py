"""Building, pushing and looking up, with the real buildah and the real registry on tiny images."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from images.tags import IMAGES, image_tag
from localcloud import tools
from localcloud.images import ImageError, base, build, ensure_images
from localcloud.images.base import mirror_of, root_archive
from localcloud.images.buildah import PREFIX, Store
from localcloud.images.errors import cause
from localcloud.images.registry import present
from localcloud.paths import ECR_REGISTRY, REPOSITORY

TARGETS = """\
http://mirror.example/debian-security/ main Debian-Security
http://mirror.example/cloud/ main cloud-sdk
http://mirror.example/pub/deb/ main Debian
http://mirror.example/debian/ main Debian
"""


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("SLIPWAY_CACHE", str(tmp_path / "cache"))
    return Store()


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """A docker-registry of its own on a free port of loopback; gives "host:port"."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    config = tmp_path / "registry.yml"
    config.write_text(
        f"version: 0.1\nlog: {{level: error}}\nhttp: {{addr: '{address}'}}\n"
        f"storage: {{filesystem: {{rootdirectory: {tmp_path}/registry}}}}\n"
    )
    program = shutil.which("docker-registry", path=f"{tools.installed()}:{os.environ['PATH']}")
    assert program, "docker-registry is missing: run `make tools`"
    with subprocess.Popen([program, "serve", config], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        for _ in range(100):
            try:
                socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))).close()
                break
            except OSError:
                time.sleep(0.05)
        yield address
        process.kill()


def tiny(folder: Path, content: str) -> Path:
    """A Dockerfile that needs no base."""
    folder.mkdir(parents=True)
    (folder / "file").write_text(content)
    (folder / "Dockerfile").write_text("FROM scratch\nCOPY file /file\n")
    return folder / "Dockerfile"


def test_build_push_and_look_up(store: Store, registry: str, tmp_path: Path) -> None:
    assert store.prepare() is False
    assert store.images() == {}
    dockerfile = tiny(tmp_path / "context", "hello")
    store.build(dockerfile, dockerfile.parent, f"{PREFIX}/slurmd:t1", "slurmd", {})
    assert list(store.images()) == [f"{PREFIX}/slurmd:t1"]

    assert build.missing_in(registry, {"slurmd": "t1", "login": "t1"}) == {"slurmd": "t1", "login": "t1"}
    store.push(f"{PREFIX}/slurmd:t1", f"{registry}/slipway/slurmd:t1", "push")
    assert build.missing_in(registry, {"slurmd": "t1", "login": "t1"}) == {"login": "t1"}

    store.remove([f"{PREFIX}/slurmd:t1"])
    assert store.images() == {}
    assert str(store.directory) not in Path("/proc/mounts").read_text()


def test_only_what_the_registry_lacks_is_built_and_pushed(
    store: Store, registry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "ensure_base", lambda *_: None)
    monkeypatch.setattr(build, "REPOSITORY", tmp_path)
    for name in IMAGES:
        tiny(tmp_path / "images" / name, name).write_text(
            f"FROM scratch\nARG BASE\nARG SLURM\nCOPY images/{name}/file /file\n"
        )
    said: list[str] = []
    references = ensure_images(said.append, registry)
    assert (
        references["slurmd"] == f"123456789012.dkr.ecr.us-east-1.amazonaws.com/slipway/slurmd:{build.tags()['slurmd']}"
    )
    assert [line.split()[1] for line in said if line.startswith("pushed")] == list(IMAGES)

    said.clear()
    monkeypatch.setattr(build, "Store", lambda: pytest.fail("the registry has everything, nothing may be opened"))
    assert ensure_images(said.append, registry) == references
    assert said == []


def test_an_image_whose_files_change_during_the_build_is_not_kept(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny(tmp_path / "images" / "slurmd", "x").write_text(
        "FROM scratch\nARG BASE\nARG SLURM\nCOPY images/slurmd/file /file\n"
    )
    monkeypatch.setattr(build, "ensure_base", lambda *_: None)
    monkeypatch.setattr(build, "REPOSITORY", tmp_path)
    with pytest.raises(ImageError, match="slurmd: its files were changed while it was built"):
        build.build({"slurmd": "26.05-of-before"}, lambda _: None, None)
    assert store.images() == {}


def test_a_killed_build_leaves_no_process_no_mount_and_a_usable_store(store: Store, tmp_path: Path) -> None:
    program = textwrap.dedent(
        """
        import sys
        from localcloud.images.buildah import Store
        store = Store()
        store.prepare()
        with store.writes():
            store.run(["sh", "-c", 'mount -t tmpfs none "$0"; touch "$1"; sleep 1000.25', *sys.argv[1:]], "x")
        """
    )
    mounted, ready = tmp_path / "mounted", tmp_path / "ready"
    mounted.mkdir()
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "SLIPWAY_CACHE": str(tmp_path / "cache")}
    process = subprocess.Popen([sys.executable, "-c", program, str(mounted), str(ready)], env=environment)
    while not ready.exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 10
    while "1000.25" in alive():
        assert time.monotonic() < deadline, "a process of the killed build still runs"
        time.sleep(0.05)
    assert str(mounted) not in Path("/proc/mounts").read_text()

    assert store.prepare() is True
    dockerfile = tiny(tmp_path / "context", "after")
    store.build(dockerfile, dockerfile.parent, f"{PREFIX}/slurmd:t2", "slurmd", {})
    assert store.prepare() is False
    assert list(store.images()) == [f"{PREFIX}/slurmd:t2"]


def alive() -> str:
    return subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout


def test_a_failed_build_shows_the_end_of_its_log_and_where_it_is(store: Store, tmp_path: Path) -> None:
    store.prepare()
    (tmp_path / "Dockerfile").write_text("FROM scratch\nCOPY nothing-here /\n")
    with pytest.raises(ImageError) as caught:
        store.build(tmp_path / "Dockerfile", tmp_path, f"{PREFIX}/slurmd:t", "slurmd", {})
    text = str(caught.value)
    assert text.startswith("slurmd failed: ")
    assert "nothing-here" in text
    assert f"Full log: {store.logs / 'slurmd.log'}" in text
    assert "nothing-here" in (store.logs / "slurmd.log").read_text()
    assert store.prepare() is False, "a build that fails by itself does not cost the store"


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("dpkg: error: No space left on device", "the disk is full"),
        ("Err:1 http://m forky InRelease\n  Could not connect to m:80", "the Debian mirror cannot be reached"),
        ("Temporary failure resolving 'deb.example'", "the Debian mirror cannot be reached"),
        ("SyntaxError: invalid syntax", "the last lines say why"),
    ],
)
def test_known_causes(output: str, expected: str) -> None:
    assert cause(output).startswith(expected)


def test_too_little_disk_is_said_before_anything_is_built(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "NEEDED_GIB", 1e6)
    with pytest.raises(ImageError, match=r"GiB are free, and building the images needs .* SLIPWAY_CACHE"):
        build.build({"slurmd": "t"}, lambda _: None, None)


def test_no_network_and_nothing_cached(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "public_registry_answers", lambda _: False)
    monkeypatch.setenv("SLIPWAY_DEBIAN_MIRROR", "http://127.0.0.1:9/debian")
    store.prepare()
    said: list[str] = []
    with pytest.raises(ImageError, match=r"mmdebstrap failed: the Debian mirror cannot be reached"):
        base.ensure_base(store, "docker.io/library/debian:forky-slim", said.append)
    assert said == ["making the base image from Debian packages (forky, http://127.0.0.1:9/debian)"]
    with pytest.raises(ImageError, match=r"base image registry.example/os:1 .* cannot be pulled"):
        base.ensure_base(store, "registry.example/os:1", said.append)


def test_where_the_made_base_is_kept(tmp_path: Path) -> None:
    assert root_archive(tmp_path, "docker.io/library/debian:forky-slim") == tmp_path / "debian-forky.tar"
    for other in ("debian:forky-slim", "docker.io/library/debian@sha256:00", "docker.io/library/alpine:3"):
        assert root_archive(tmp_path, other) is None


def test_the_mirror_is_the_one_that_apt_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    assert mirror_of(TARGETS) == "http://mirror.example/pub/deb"
    before_update = "http://m.example/debian-security/ main\nhttp://m.example/debian/ main\n"
    assert mirror_of(before_update) == "http://m.example/debian"
    with pytest.raises(ImageError, match="SLIPWAY_DEBIAN_MIRROR"):
        mirror_of("http://m.example/ubuntu/ main Ubuntu\n")
    monkeypatch.setenv("SLIPWAY_DEBIAN_MIRROR", "http://chosen.example/debian")
    assert base.debian_mirror() == "http://chosen.example/debian"


def test_a_registry_that_is_none() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        closed = f"127.0.0.1:{probe.getsockname()[1]}"
    with pytest.raises(ImageError, match=f"the registry http://{closed} does not answer"):
        present(closed, ["slipway/slurmd:t"])

    class Other(BaseHTTPRequestHandler):
        """Says 404 to everything, which for a registry would mean that an image is missing."""

        def do_GET(self) -> None:
            self.send_error(404)

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            """Nothing is printed."""

    with HTTPServer(("127.0.0.1", 0), Other) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(ImageError, match=r"answers 404 Not Found, as no container registry does"):
            present(f"127.0.0.1:{server.server_port}", ["slipway/slurmd:t"])
        server.shutdown()


def test_unknown_names_are_refused_before_anything_runs(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "localcloud.images", "build", "slurm", "--no-push"],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env=os.environ | {"SLIPWAY_CACHE": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == f"error: there is no image 'slurm'. Images: {', '.join(IMAGES)}\n"
    assert not list(tmp_path.iterdir())


def test_a_stack_may_name_the_registry_of_its_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert build.local_image("login") == f"{ECR_REGISTRY}/slipway/login:{image_tag('login')}"
    monkeypatch.setattr(build, "REPOSITORY", tmp_path)
    file = tmp_path / "stacks" / "Pulumi.local.yaml"
    file.parent.mkdir()
    file.write_text("config: {'slipway:images': {registry: 'localhost:5001'}}")
    assert build.local_image("login") == f"localhost:5001/slipway/login:{image_tag('login')}"
    file.write_text("config: {'slipway:images': {registry: 'localhost:5001/mine'}}")
    with pytest.raises(ImageError, match="only host:port"):
        build.stack_registry()
