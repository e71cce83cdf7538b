"""Writes container images of one layer as docker-archive, without any container tool."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def write_image(out: Path, name: str, programs: Mapping[str, Path], config: Mapping[str, Any]) -> None:
    """Write an image to `out` that holds only the given programs (path in the image -> file), owned by root, 0755.

    config: as in the image specification, for example {"Entrypoint": ["/pause"]}. The result depends on nothing else,
    so equal inputs give equal images.
    """
    layer = out.with_suffix(".layer")
    try:
        with tarfile.open(layer, "w") as tar:
            for target, source in programs.items():
                entry = tarfile.TarInfo(target.lstrip("/"))
                entry.size = source.stat().st_size
                entry.mode = 0o755
                with source.open("rb") as file:
                    tar.addfile(entry, file)
        with layer.open("rb") as file:
            digest = "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()
        description = {
            "architecture": ARCHITECTURES[platform.machine()],
            "os": "linux",
            "config": dict(config),
            "rootfs": {"type": "layers", "diff_ids": [digest]},
        }
        image = json.dumps(description, sort_keys=True).encode()
        image_name = hashlib.sha256(image).hexdigest() + ".json"
        manifest = [{"Config": image_name, "RepoTags": [name], "Layers": ["layer.tar"]}]
        with tarfile.open(out, "w") as tar:
            for member, data in (("manifest.json", json.dumps(manifest).encode()), (image_name, image)):
                entry = tarfile.TarInfo(member)
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
            entry = tarfile.TarInfo("layer.tar")
            entry.size = layer.stat().st_size
            with layer.open("rb") as file:
                tar.addfile(entry, file)
    finally:
        layer.unlink(missing_ok=True)
