"""The code that a node runs: one wheel of the trainer package, the same bytes for the same sources, at code/<sha256>.whl.

The node's lock file (trainer/node/requirements.lock) is in it. The wheel is made here and not by a build tool, so that it
carries no time, no path and no order of the desk, and the same code is uploaded once and never again.
"""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import trainer
from trainer.runs.store import Conflict, Objects

LOCK = "trainer/node/requirements.lock"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest instant that a zip can name
_LEFT_OUT = {"__pycache__", "_infra"}


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """A wheel, in memory, and its name."""

    content: bytes
    sha256: str
    lock_sha256: str

    @property
    def key(self) -> str:
        """Return where the bucket keeps it."""
        return f"code/{self.sha256}.whl"


def build_bundle(package: Path | None = None) -> Bundle:
    """Pack the trainer package (this one, unless another folder is given) into a wheel.."""
    folder = package or Path(trainer.__file__).parent
    sources = {
        f"trainer/{path.relative_to(folder).as_posix()}": path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not _LEFT_OUT.intersection(path.parts) and path.suffix not in (".pyc", ".pyo")
    }
    info = f"mayfly-{trainer.__version__}.dist-info"
    sources[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: mayfly\nVersion: {trainer.__version__}\n".encode()
    sources[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: mayfly\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = "".join(f"{name},{_record_hash(content)},{len(content)}\n" for name, content in sources.items())
    sources[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    content = _zipped(sources)
    return Bundle(
        content=content,
        sha256=hashlib.sha256(content).hexdigest(),
        lock_sha256=hashlib.sha256(sources.get(LOCK, b"")).hexdigest(),
    )


def upload_bundle(bundle: Bundle, objects: Objects) -> None:
    """Put the wheel where its hash says, unless it is there: same name, same bytes."""
    with suppress(Conflict):
        objects.put(key=bundle.key, body=bundle.content, create=True)


def _zipped(sources: dict[str, bytes]) -> bytes:
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for name in sorted(sources):
            entry = zipfile.ZipInfo(name, date_time=_EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            entry.create_system = 3  # Unix, whatever the desk is
            archive.writestr(entry, sources[name])
    return memory.getvalue()


def _record_hash(content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"sha256={digest}"
