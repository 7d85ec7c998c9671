"""The code that a node runs, packed into one wheel: the same bytes for the same sources, stored as
code/<sha256>.whl.

It holds only the files that agent and training reach (trainer/base/code_files.py), with the node's lock file,
so a change in `cli` uploads nothing. The wheel is made here and not by a build tool, so that it has no time,
path or file order of the desk.
"""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import trainer
from trainer.aws.objects import Conflict, Objects
from trainer.base.code_files import NODE, code_files, home_modules, path_of
from trainer.base.errors import ConfigError
from trainer.base.own_file import FOLDER
from trainer.job.script import FOLDER as SCRIPT_FOLDER

LOCK = "trainer/node/requirements.lock"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest instant that a zip can name


@dataclass(frozen=True, kw_only=True)
class BundleName:
    """A wheel by its hashes: its own, and that of the lock in it."""

    sha256: str
    lock_sha256: str

    @property
    def key(self) -> str:
        """Return its key in the bucket."""
        return f"code/{self.sha256}.whl"


@dataclass(frozen=True, kw_only=True)
class Bundle(BundleName):
    """A wheel, in memory, and its name."""

    content: bytes


def build_bundle(
    package: Path | None = None,
    *,
    own_files: Mapping[str, bytes] | None = None,
    script_files: Mapping[str, bytes] | None = None,
) -> Bundle:
    """Pack the node's part of the trainer package (this one, unless another folder is given) into a wheel.

    `own_files` are the user's model and target files by hash, placed where `own_file.in_bundle` looks.
    `script_files` are those of a script, by relative path.
    """
    sources = code_files((*NODE, *home_modules(package=package)), package=package)
    _refuse_links(sources, package or Path(next(iter(trainer.__path__))))
    sources |= {
        f"trainer/{FOLDER}/{sha256}.py": content for sha256, content in sorted((own_files or {}).items())
    }
    sources |= {
        f"trainer/{SCRIPT_FOLDER}/{path}": content for path, content in sorted((script_files or {}).items())
    }
    info = f"mayfly-{trainer.__version__}.dist-info"
    sources[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: mayfly\nVersion: {trainer.__version__}\n".encode()
    )
    sources[f"{info}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: mayfly\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    record = "".join(f"{name},{_record_hash(content)},{len(content)}\n" for name, content in sources.items())
    sources[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    content = _zipped(sources)
    return Bundle(
        content=content,
        sha256=hashlib.sha256(content).hexdigest(),
        lock_sha256=hashlib.sha256(sources[LOCK]).hexdigest(),
    )


def upload_bundle(bundle: Bundle, objects: Objects) -> None:
    """Upload the wheel under its hash, unless it exists."""
    with suppress(Conflict):
        objects.put(key=bundle.key, body=bundle.content, create=True)


def _refuse_links(sources: Iterable[str], package: Path) -> None:
    """Raise ConfigError for a source behind a symbolic link, which may lead anywhere."""
    for name in sources:
        path = path_of(name, package)
        end = package if package in path.parents else path.parent.parent
        for part in (path, *path.parents):
            if part == end:
                break
            if part.is_symlink():
                do = "Put the file itself there, or remove the link."
                raise ConfigError("the node's code can't be packed", why=f"{part} is a symbolic link", do=do)


def _zipped(sources: dict[str, bytes]) -> bytes:
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for name in sorted(sources):
            entry = zipfile.ZipInfo(name, date_time=_EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            entry.create_system = 3  # Unix, on any desk
            archive.writestr(entry, sources[name])
    return memory.getvalue()


def _record_hash(content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"sha256={digest}"
