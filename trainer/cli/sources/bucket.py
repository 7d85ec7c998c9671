"""Download data from another bucket (`--data s3://BUCKET/PREFIX`) with the user's credentials.

From there on they are a local folder: checked, and uploaded to the data set of the stack's bucket, where
nodes may read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from trainer.aws.access import Access, aws_error
from trainer.aws.parts import Moved
from trainer.aws.transfer import fetch_file, several_at_once
from trainer.base.errors import DataError
from trainer.base.symbols import file_flaw, path_flaw
from trainer.data.table import SUFFIXES

SCHEME = "s3://"
MOST_BYTES = 20 * 10**9  # fetched by one launch
MOST_FILES = 10_000
_PUSH = (  # a launch would index files that aws s3 sync put into a data set, 1 GB at a time
    "copy it to this machine and push it: aws s3 sync SOURCE candles/, then mayfly data push candles/"
)
_COPY = (
    "copy it into the stack's bucket and set data.folder to the copy:"
    " aws s3 sync --checksum-algorithm SHA256 SOURCE s3://BUCKET/raw/SET/"
)


def is_in_bucket(path: str) -> bool:
    """Return whether a job's data path names a bucket."""
    return path.startswith(SCHEME)


def fetch_candles(path: str, access: Access, into: Path) -> Path:
    """Download the candle files below s3://BUCKET/PREFIX, or the one of that key, with their folders; return
    the local folder.

    Raises DataError for none, or more than MOST_FILES or MOST_BYTES, ours for what AWS refuses.
    """
    none = f"no object below it ends in {', '.join(SUFFIXES)}"
    return _fetch(path, access, into, _is_candles, none, _PUSH)


def fetch_files(path: str, access: Access, into: Path) -> Path:
    """Download every file below s3://BUCKET/PREFIX as `fetch_candles` does candles, and return their folder.

    Keys with a name that begins with a dot are left out.
    """
    _fetch(path, access, into, _is_file, "no object lies below it", _COPY)
    return into


def _fetch(
    path: str, access: Access, into: Path, is_meant: Callable[[str, list[str]], bool], none: str, many: str
) -> Path:
    # Late: half a second that a local folder need not pay.
    from botocore.exceptions import BotoCoreError, ClientError

    bucket, _, prefix = path.removeprefix(SCHEME).partition("/")
    if not bucket:
        raise DataError(f"{path} names no bucket", do="Write it as --data s3://BUCKET/PREFIX.")
    s3 = access.client("s3", timeout_seconds=120.0)
    try:
        listed = list(islice(_listed(s3, bucket, prefix, is_meant), MOST_FILES + 1))
        _check_size(path, listed, none, many)
        places = {key: into.joinpath(*_parts(key, prefix)) for key, _ in listed}
        known = {"client": s3, "bucket": bucket}
        several_at_once(
            [partial(_fetch_one, places[key], key, size, known) for key, size in listed],
            moved=lambda count: None,
        )
    except (BotoCoreError, ClientError) as error:
        raise aws_error(error, f"cannot read {path}") from error
    return places.get(prefix, into)


def _is_file(key: str, parts: list[str]) -> bool:
    return bool(parts[-1]) and not path_flaw("/".join(parts))


def _is_candles(key: str, parts: list[str]) -> bool:
    return key.lower().endswith(SUFFIXES) and not any(map(file_flaw, parts))


def _listed(
    s3: Any, bucket: str, prefix: str, is_meant: Callable[[str, list[str]], bool]
) -> Iterator[tuple[str, int]]:
    """Yield key and size of each object: the one with exactly this key, else all below it as a folder."""
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
        for item in page.get("Contents", ()):
            key = item["Key"]
            is_below = key == prefix or not prefix or prefix.endswith("/") or key.startswith(f"{prefix}/")
            if is_below and is_meant(key, _parts(key, prefix)):
                yield key, int(item["Size"])


def _parts(key: str, prefix: str) -> list[str]:
    """Return the path of an object below a prefix, in parts; of the object of that key, its name."""
    return [key.rpartition("/")[2]] if key == prefix else key.removeprefix(prefix).lstrip("/").split("/")


def _check_size(path: str, listed: list[tuple[str, int]], none: str, many: str) -> None:
    if not listed:
        raise DataError(f"{path} holds no data", why=none, do=f"Look with aws s3 ls {path}.")
    size = sum(bytes_ for _, bytes_ in listed)
    if len(listed) > MOST_FILES or size > MOST_BYTES:
        files = f"more than {MOST_FILES:,}" if len(listed) > MOST_FILES else f"{len(listed):,}"
        raise DataError(
            f"{path} has {files} files, {size / 1e9:.1f} GB",
            why=f"a launch fetches {MOST_FILES:,} files and {MOST_BYTES / 1e9:.0f} GB at most",
            do=f"Name a narrower prefix, or {many}.",
        )


def _fetch_one(place: Path, key: str, size: int, known: dict[str, Any], moved: Moved) -> None:
    fetch_file(place, key, "", "", size=size, moved=moved, **known)
