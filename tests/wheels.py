"""Small wheels made by tests, in the place of a package index."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path


def write_wheel(
    folder: Path,
    name: str = "tiny",
    *,
    version: str = "1.0",
    requires: tuple[str, ...] = (),
    tag: str = "py3-none-any",
    text: str = "",
    program: str = "",
) -> str:
    """Write a wheel with one module of that text, its requirements and its console script, and return its
    sha256.
    """
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-{version}-{tag}.whl"
    info = f"{name}-{version}.dist-info"
    about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n" + "".join(
        f"Requires-Dist: {one}\n" for one in requires
    )
    files = {
        f"{name}.py": text,
        f"{info}/METADATA": about,
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n",
        **({f"{info}/entry_points.txt": f"[console_scripts]\n{program}\n"} if program else {}),
    }
    hashes = {
        path: base64.urlsafe_b64encode(hashlib.sha256(body.encode()).digest()).rstrip(b"=")
        for path, body in files.items()
    }
    record = "".join(f"{path},sha256={hashes[path].decode()},{len(body)}\n" for path, body in files.items())
    with zipfile.ZipFile(path, "w") as archive:
        for place, body in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(place, body)
    return hashlib.sha256(path.read_bytes()).hexdigest()
