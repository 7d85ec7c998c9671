"""Pack the archives of the Pulumi program's functions, byte for byte the same from the same files."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pulumi

from trainer.base.errors import ConfigError

ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)  # the same sources make the same zip


def zip_archive(archive: pulumi.AssetArchive) -> bytes:
    """Pack an archive as Pulumi would: paths in order, each with its file's bytes."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive_file:
        for path, content in _archive_files(archive):
            entry = zipfile.ZipInfo(path, ZIP_EPOCH)
            entry.external_attr = 0o644 << 16  # readable, or Lambda could not load it
            archive_file.writestr(entry, content, zipfile.ZIP_DEFLATED, 1)
    return packed.getvalue()


def _archive_files(archive: pulumi.AssetArchive) -> Iterator[tuple[str, bytes]]:
    for path, asset in sorted(archive.assets.items()):
        if isinstance(asset, pulumi.FileAsset):
            yield path, Path(str(asset.path)).read_bytes()
        elif isinstance(asset, pulumi.StringAsset):
            yield path, str(asset.text).encode()
        else:
            raise ConfigError(
                f"the embedded AWS can't pack {path}",
                why=f"{type(asset).__name__} in an archive",
                do="Use FileAsset.",
            )
