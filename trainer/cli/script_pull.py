"""Download a script's output files: streamed, checked by hash, written atomically."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.access import Access, aws_error
from trainer.errors import ConfigError, UsageError
from trainer.symbols import path_flaw
from trainer.transfer import fetch_file


def save_output(access: Access, bucket: str, item: Mapping[str, Any], into: Path) -> Path:
    """Write an output file under `into`, by its relative path. Raises ConfigError if it is missing or has another hash."""
    from botocore.exceptions import BotoCoreError, ClientError

    if why := path_flaw(item["file"]):
        raise ConfigError(f"{item['file'][:80]!r} is not written here", why=why, do="mayfly receipts RUN --json has its key.")
    path: Path = into / str(item["file"])
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.parent.resolve().is_relative_to(into.resolve()):  # a folder that came with a repository
        raise UsageError(f"{path.parent} leads out of {into}", why="it is a link", do="Choose another --out.")
    try:
        sha256 = fetch_file(path, item["key"], item["version_id"], item["sha256"], access.client("s3"), bucket=bucket)
    except (BotoCoreError, ClientError) as error:
        raise aws_error(error, f"cannot read s3://{bucket}/{item['key']}") from error
    if sha256 != item["sha256"]:
        why = f"sha256 is {sha256}, it should be {item['sha256']}"
        raise ConfigError(f"{item['file']} is damaged", why=why, do="Fetch it again.")
    return path
