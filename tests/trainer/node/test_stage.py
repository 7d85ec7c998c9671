"""Reading what a launch has written: S3 may not give it at once."""

from __future__ import annotations

import hashlib
import io
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from trainer.base.errors import DataError, Stopped, TrainingFailed
from trainer.node.cache import InputCache, open_cache
from trainer.node.stage import PAUSES, SPARE_BYTES, Origins, fetch_inputs, read_patiently
from trainer.runs.manifest import ManifestInput

NOT_YET = ClientError({"Error": {"Code": "NoSuchKey"}}, "GetObject")


class Bucket:
    """An object that S3 gives from the `after`th read on."""

    def __init__(self, after: int) -> None:
        self.left, self.pauses = after, list[float]()

    def read(self) -> bytes:
        self.left -= 1
        if self.left >= 0:
            raise NOT_YET
        return b"{}"


def test_an_object_that_is_not_there_yet_is_read_again_after_growing_pauses():
    late = Bucket(after=3)
    assert (
        read_patiently(late.read, "runs/r/manifest.json", stopped=lambda: False, pause=late.pauses.append)
        == b"{}"
    )
    assert late.pauses == list(PAUSES[:3])


def test_one_that_never_comes_is_s3s_own_error_and_a_stop_ends_the_waiting():
    never = Bucket(after=100)
    with pytest.raises(ClientError, match="NoSuchKey"):
        read_patiently(never.read, "raw/main/a.parquet", stopped=lambda: False, pause=never.pauses.append)
    assert never.pauses == list(PAUSES)
    with pytest.raises(Stopped, match="raw/main/a.parquet"):
        read_patiently(
            never.read, "raw/main/a.parquet", stopped=lambda: len(never.pauses) > 8, pause=never.pauses.append
        )


def test_a_file_that_lies_there_is_taken_only_on_a_machine_of_ones_own_and_only_byte_for_byte(tmp_path):
    class Asked(Exception):
        pass

    class S3:
        def get_object(self, **_):
            raise Asked

    (entry,) = Files(1).entries

    def fetch(content: bytes, *, kept: bool) -> None:
        (tmp_path / entry.stored_as).write_bytes(content)
        origins = Origins(kept=kept)
        fetch_inputs(
            S3(), bucket="b", inputs=[entry], folder=tmp_path, stopped=lambda: False, origins=origins
        )

    fetch(b"   0", kept=True)
    for content, kept in ((b"   0", False), (b"else", True)):
        with pytest.raises(Asked):
            fetch(content, kept=kept)


class Files:
    """S3 with files of a number each, and their entries in a manifest."""

    def __init__(self, number: int) -> None:
        self.entries = [
            ManifestInput(
                path=f"data/{one}.csv",
                key=f"raw/x/{one}.csv",
                version_id="v",
                sha256=hashlib.sha256(b"%4d" % one).hexdigest(),
                bytes=4,
            )
            for one in range(number)
        ]
        self.asked: list[str] = []

    def get_object(self, *, Key: str, **_: str) -> dict[str, Any]:
        self.asked.append(Key)
        body = io.BytesIO(b"%4d" % int(Key[len("raw/x/") : -len(".csv")]))
        return {"Body": SimpleNamespace(iter_chunks=lambda size: iter(lambda: body.read(size), b""))}


def test_after_a_file_that_can_not_be_used_no_other_is_fetched(tmp_path, monkeypatch):
    monkeypatch.setattr("trainer.node.stage.AT_ONCE", 1)
    s3 = Files(100)
    s3.entries[2] = replace(s3.entries[2], sha256="0" * 64)
    with pytest.raises(DataError, match=r"raw/x/2\.csv"):
        fetch_inputs(s3, bucket="b", inputs=s3.entries, folder=tmp_path, stopped=lambda: False)
    assert len(s3.asked) == 3, "nobody pays for the rest"


def test_one_object_of_several_places_is_fetched_once(tmp_path):
    s3 = Files(2)
    again = replace(s3.entries[0], path="data/again.csv", key="raw/y/0.csv")
    fetch_inputs(s3, bucket="b", inputs=[*s3.entries, again], folder=tmp_path, stopped=lambda: False)
    assert len(s3.asked) == 2 and sorted(path.name for path in tmp_path.iterdir()) == sorted(
        entry.sha256 for entry in s3.entries
    )


def test_a_stop_also_ends_the_copies_from_the_cache(tmp_path, monkeypatch):
    s3, cache = Files(3), open_cache(tmp_path)
    taken: list[str] = []
    monkeypatch.setattr(InputCache, "take", lambda self, entry, target: taken.append(entry.key) or "taken")
    with pytest.raises(Stopped):
        fetch_inputs(
            s3,
            bucket="b",
            inputs=s3.entries,
            folder=tmp_path / "n",
            stopped=lambda: True,
            origins=Origins(cache=cache),
        )
    assert not taken


@pytest.mark.parametrize("kept", [True, False])
def test_a_file_that_lies_there_needs_no_more_room(tmp_path, monkeypatch, kept):
    s3, free = Files(1), SimpleNamespace(free=SPARE_BYTES + 3)
    (tmp_path / s3.entries[0].stored_as).write_bytes(b"   0")
    monkeypatch.setattr("shutil.disk_usage", lambda _: free)

    def fetch() -> None:
        origins = Origins(kept=kept)
        fetch_inputs(
            s3, bucket="b", inputs=s3.entries, folder=tmp_path, stopped=lambda: False, origins=origins
        )

    if kept:
        fetch()
        free.free = SPARE_BYTES - 1
    with pytest.raises(TrainingFailed, match="Free some space" if kept else "raise volume_gib"):
        fetch()
