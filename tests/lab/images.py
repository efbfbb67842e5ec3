"""Static programs of the lab, and the images that carry them, made by hand."""

import hashlib
import io
import json
import os
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import msgspec

from tests.lab.cri import ASK, BOX

PAUSE = "localhost/pause:1"
"""Image of every sandbox's first process, see `src/pause.c`."""

SOURCES = Path(__file__).with_name("src")

_MEDIA = "application/vnd.oci.image"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


class Built(msgspec.Struct, frozen=True):
    """What the lab is made of: an OCI archive of all images, and the CNI plugin `record`."""

    images: Path
    record: Path


def build(directory: Path) -> Built:
    """Compile everything into `directory`, which exists. Takes half a second; needs musl-tools."""
    names = ("pause", "box", "ask", "record")
    pause, box, ask, record = (compile_static(SOURCES / f"{name}.c", directory / name) for name in names)
    archive = directory / "images.tar"
    _write_archive(archive, {PAUSE: pause, BOX: box, ASK: ask})
    return Built(archive, record)


def compile_static(source: Path, program: Path) -> Path:
    """Compile one file of C into a static program; returns its path."""
    command = ["musl-gcc", "-static", "-Os", "-s", "-Wall", "-Wextra", "-o", str(program), str(source)]
    try:
        subprocess.run(command, check=True)
    except FileNotFoundError as error:
        raise RuntimeError(f"cannot compile {source}: install musl-tools") from error
    return program


def _write_archive(archive: Path, programs: dict[str, Path]) -> None:
    """An OCI archive of images by name; each has one layer with one file, its entry point."""
    blobs: dict[str, bytes] = {}

    def add(kind: str, content: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = content
        return {"mediaType": f"{_MEDIA}.{kind}", "digest": f"sha256:{digest}", "size": len(content)}

    manifests = []
    for name, program in programs.items():
        layer = add("layer.v1.tar", _tar({program.name: program.read_bytes()}))
        config = add("config.v1+json", _json(_config(program.name, layer["digest"])))
        manifest = {
            "schemaVersion": 2,
            "mediaType": f"{_MEDIA}.manifest.v1+json",
            "config": config,
            "layers": [layer],
        }
        annotations = {"io.containerd.image.name": name}
        manifests.append(add("manifest.v1+json", _json(manifest)) | {"annotations": annotations})
    index = {"schemaVersion": 2, "manifests": manifests}
    files = {"oci-layout": _json({"imageLayoutVersion": "1.0.0"}), "index.json": _json(index), **blobs}
    archive.write_bytes(_tar(files))


def _config(program: str, layer: str) -> dict[str, Any]:
    return {
        "architecture": _ARCHITECTURES[os.uname().machine],
        "os": "linux",
        "config": {"Entrypoint": [f"/{program}"]},
        "rootfs": {"type": "layers", "diff_ids": [layer]},
    }


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _tar(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o755
            tar.addfile(info, io.BytesIO(content))
    return packed.getvalue()
