"""Output files of a script, downloaded: streamed, their hash checked, each whole or not at all."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.access import Access, aws_error
from trainer.errors import ConfigError, UsageError
from trainer.script import path_flaw

_BLOCK_BYTES = 1 << 20


def save_output(access: Access, bucket: str, item: Mapping[str, Any], into: Path) -> Path:
    """Write an output file under `into`, by its relative path. Raises ConfigError where S3 has other bytes, or none."""
    from botocore.exceptions import BotoCoreError, ClientError

    if why := path_flaw(item["file"]):
        raise ConfigError(f"{item['file'][:80]!r} is not written here", why=why, do="mayfly receipts RUN --json has its key.")
    path: Path = into / str(item["file"])
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.parent.resolve().is_relative_to(into.resolve()):  # a folder that came with a repository
        raise UsageError(f"{path.parent} leads out of {into}", why="it is a link", do="Choose another --out.")
    part, digest = path.with_name(path.name + ".part"), hashlib.sha256()
    part.unlink(missing_ok=True)
    try:
        answer = access.client("s3").get_object(Bucket=bucket, Key=item["key"], VersionId=item["version_id"])
        with part.open("xb") as file:
            for block in answer["Body"].iter_chunks(_BLOCK_BYTES):
                digest.update(block)
                file.write(block)
    except (BotoCoreError, ClientError) as error:
        raise aws_error(error, f"cannot read s3://{bucket}/{item['key']}") from error
    if digest.hexdigest() != item["sha256"]:
        part.unlink()
        why = f"sha256 is {digest.hexdigest()}, it should be {item['sha256']}"
        raise ConfigError(f"{item['file']} is damaged", why=why, do="Fetch it again.")
    part.replace(path)
    return path
