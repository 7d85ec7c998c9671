"""The cache of inputs, whatever lies in it: what is trained on is what the manifest pins, and nothing outside
it is touched.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from trainer.aws.place import ACCOUNT
from trainer.base.errors import DataError
from trainer.node.cache import (
    HALF_WRITTEN_SECONDS,
    LAYOUT,
    UNUSED_SECONDS,
    CacheUnusable,
    InputCache,
    open_cache,
)
from trainer.node.origins import Origins
from trainer.node.stage import fetch_inputs
from trainer.runs.manifest import ManifestInput

BARS = b"bars of BTC-USD"
OTHER = b"bars of a thief"
ENTRY = ManifestInput(
    path="data/BTC-USD_1m.parquet",
    key="raw/main/BTC-USD_1m.parquet",
    version_id="v1",
    sha256=hashlib.sha256(BARS).hexdigest(),
    bytes=len(BARS),
)


class Body(io.BytesIO):
    """A body as botocore streams it."""

    def iter_chunks(self, size: int) -> Any:
        return iter(lambda: self.read(size), b"")


class CountingBucket:
    """An S3 client that gives one object and counts how often it was asked."""

    def __init__(self, content: bytes = BARS) -> None:
        self.content, self.reads = content, 0

    def get_object(self, **_: str) -> dict[str, Any]:
        self.reads += 1
        return {"Body": Body(self.content)}


def stage(bucket: CountingBucket, folder: Path, *, origins: Origins, entry: ManifestInput = ENTRY) -> None:
    """Fetch the input into a folder as a node does."""
    uplink = SimpleNamespace(s3=bucket, bucket="b")
    node = SimpleNamespace(
        uplink=uplink, origins=origins, place=ACCOUNT, is_stopping=lambda: False, moved=lambda: None
    )
    fetch_inputs(cast(Any, node), [entry], folder)


@pytest.fixture
def mount(tmp_path: Path) -> Path:
    """The folder that plays the file system."""
    (tmp_path / "efs").mkdir()
    return tmp_path / "efs"


@pytest.fixture
def fill(mount: Path, tmp_path: Path) -> Callable[..., Origins]:
    """Fetch the input into a new folder as a node does, check that it has the right bytes, and return what
    came from where.
    """
    nodes = iter(range(10))

    def fetch(bucket: CountingBucket | None = None, entry: ManifestInput = ENTRY) -> Origins:
        origins, folder = Origins(cache=open_cache(mount)), tmp_path / f"node-{next(nodes)}"
        stage(bucket or CountingBucket(), folder, origins=origins, entry=entry)
        assert (folder / entry.stored_as).read_bytes() == (bucket.content if bucket else BARS)
        return origins

    return fetch


def only_entry(mount: Path) -> Path:
    (entry,) = (mount / LAYOUT).iterdir()
    return entry


def test_a_second_fill_asks_s3_for_nothing(fill: Callable[..., Origins], mount: Path) -> None:
    first = fill(bucket := CountingBucket())
    assert (first.counts["s3_files"], first.counts["cache_added"], bucket.reads) == (1, 1, 1)
    second = fill(bucket)
    assert (second.counts["cache_files"], second.counts["cache_bytes"], bucket.reads) == (1, len(BARS), 1)
    assert second.summary == "0 files from S3, 1 from the cache, 0 refused there"


def test_bytes_copied_to_and_from_the_cache_are_progress(mount: Path, tmp_path: Path) -> None:
    moves = list[str]()
    cache = replace(open_cache(mount), moved=lambda: moves.append(""))
    (tmp_path / "fetched").write_bytes(BARS)
    cache.add(ENTRY, tmp_path / "fetched")
    assert len(moves) == 1
    assert cache.take(ENTRY, tmp_path / "taken") == "taken" and len(moves) == 2


def poison(entry: Path, outside: Path) -> None:
    entry.write_bytes(OTHER)


def lengthen(entry: Path, outside: Path) -> None:
    entry.write_bytes(BARS + OTHER)


def link(entry: Path, outside: Path) -> None:
    entry.unlink()
    entry.symlink_to(outside)  # with the very bytes: still no file of the cache's


def pipe(entry: Path, outside: Path) -> None:
    entry.unlink()
    os.mkfifo(entry)


@pytest.mark.parametrize("spoil", [poison, lengthen, link, pipe])
def test_a_spoiled_entry_is_fetched_anew_and_replaced(
    spoil: Callable[[Path, Path], None], fill: Callable[..., Origins], mount: Path, tmp_path: Path
) -> None:
    fill()
    (outside := tmp_path / "outside").write_bytes(BARS)
    spoil(only_entry(mount), outside)
    spoiled = fill(bucket := CountingBucket())
    assert (spoiled.counts["cache_refused"], spoiled.counts["cache_files"], bucket.reads) == (1, 0, 1)
    assert fill(bucket).counts["cache_files"] == 1 and bucket.reads == 1
    assert only_entry(mount).read_bytes() == BARS and not only_entry(mount).is_symlink()
    assert outside.read_bytes() == BARS


def test_another_version_of_a_key_is_another_entry(fill: Callable[..., Origins], mount: Path) -> None:
    fill()
    later = replace(ENTRY, version_id="v2", sha256=hashlib.sha256(OTHER).hexdigest(), bytes=len(OTHER))
    assert fill(CountingBucket(OTHER), later).counts["cache_refused"] == 0
    assert len(list((mount / LAYOUT).iterdir())) == 2


def test_wrong_bytes_from_s3_never_reach_the_cache(mount: Path, tmp_path: Path) -> None:
    origins = Origins(cache=open_cache(mount))
    with pytest.raises(DataError, match="sha256"):
        stage(CountingBucket(OTHER), tmp_path / "n", origins=origins)
    assert not list((mount / LAYOUT).iterdir())


def test_an_input_without_a_hash_or_a_version_is_not_cached(
    fill: Callable[..., Origins], mount: Path
) -> None:
    for name in ("sha256", "version_id"):
        fill(entry=replace(ENTRY, **{name: ""}))
    assert not list((mount / LAYOUT).iterdir())


def test_any_name_stays_in_the_cache(fill: Callable[..., Origins], mount: Path) -> None:
    fill(entry=replace(ENTRY, key=f"raw/../../{'x' * 900}/BTC-USD_1m.parquet"))
    assert len(only_entry(mount).name) == 64


def test_a_cache_folder_that_is_a_link_is_not_entered(mount: Path, tmp_path: Path) -> None:
    (elsewhere := tmp_path / "elsewhere").mkdir()
    (mount / LAYOUT).symlink_to(elsewhere)
    with pytest.raises(CacheUnusable, match="could not be opened"):
        open_cache(mount)
    assert not list(elsewhere.iterdir())


def test_a_file_system_that_fails_in_the_middle_is_done_without(mount: Path, tmp_path: Path) -> None:
    gone = open_cache(mount)
    os.close(gone.folder)
    origins = Origins(cache=gone)
    stage(CountingBucket(), tmp_path / "n", origins=origins)
    assert (tmp_path / "n" / ENTRY.stored_as).read_bytes() == BARS
    assert origins.cache is None and "could not be read" in origins.to_dict()["cache_failed"]


def test_an_entry_whose_handle_is_stale_comes_from_s3(
    fill: Callable[..., Origins], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill()
    opened, fstat = set[int](), os.fstat

    def watched(path: Any, *arguments: Any, open_it: Any = os.open, **how: Any) -> int:
        descriptor = open_it(path, *arguments, **how)
        opened.update({descriptor} if how.get("dir_fd") and arguments[0] & os.O_NONBLOCK else ())
        return int(descriptor)

    def stale(descriptor: int) -> os.stat_result:
        if descriptor in opened:  # an NFS server that forgot it, or is gone
            raise OSError(errno.ESTALE, "Stale file handle")
        return fstat(descriptor)

    monkeypatch.setattr("os.open", watched)
    monkeypatch.setattr("os.fstat", stale)
    origins = fill()
    assert origins.counts["s3_files"] == 1
    assert origins.to_dict()["cache_failed"] == "an input could not be read: Stale file handle"


def test_unused_entries_of_the_cache_are_removed(fill: Callable[..., Origins], mount: Path) -> None:
    fill()
    used = only_entry(mount)
    unused, half, fresh = (mount / LAYOUT / name for name in ("f" * 64, ".new-dead", ".new-alive"))
    for path, age in ((unused, UNUSED_SECONDS), (half, HALF_WRITTEN_SECONDS), (fresh, 0)):
        path.write_bytes(b"x")
        os.utime(path, (then := path.stat().st_mtime - age - 60, then))
    InputCache(folder=open_cache(mount).folder).prune()
    assert set((mount / LAYOUT).iterdir()) == {used, fresh}


def test_a_cache_that_fails_after_the_inputs_harms_no_run(mount: Path, monkeypatch) -> None:
    cache = open_cache(mount)

    def fails(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("os.scandir", fails)
    cache.prune()
