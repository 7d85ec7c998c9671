"""Reading what a launch has written: S3 may not give it at once."""

from __future__ import annotations

import hashlib

import pytest
from botocore.exceptions import ClientError

from trainer.errors import Stopped
from trainer.node.stage import PAUSES, Origins, fetch_inputs, read_patiently

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
    assert read_patiently(late.read, "runs/r/manifest.json", stopped=lambda: False, pause=late.pauses.append) == b"{}"
    assert late.pauses == list(PAUSES[:3])


def test_one_that_never_comes_is_s3s_own_error_and_a_stop_ends_the_waiting():
    never = Bucket(after=100)
    with pytest.raises(ClientError, match="NoSuchKey"):
        read_patiently(never.read, "raw/main/a.parquet", stopped=lambda: False, pause=never.pauses.append)
    assert never.pauses == list(PAUSES)
    with pytest.raises(Stopped, match="raw/main/a.parquet"):
        read_patiently(never.read, "raw/main/a.parquet", stopped=lambda: len(never.pauses) > 8, pause=never.pauses.append)


def test_a_file_that_lies_there_is_taken_only_on_a_machine_of_ones_own_and_only_byte_for_byte(tmp_path):
    class Asked(Exception):
        pass

    class S3:
        def get_object(self, **_):
            raise Asked

    entry = {"key": "raw/x/a.csv", "version_id": "v", "sha256": hashlib.sha256(b"bars").hexdigest(), "bytes": 4}

    def fetch(content: bytes, *, kept: bool) -> None:
        (tmp_path / "a.csv").write_bytes(content)
        origins = Origins(kept=kept)
        fetch_inputs(S3(), bucket="b", inputs=[entry], folder=tmp_path, stopped=lambda: False, origins=origins)

    fetch(b"bars", kept=True)
    for content, kept in ((b"bars", False), (b"else", True)):
        with pytest.raises(Asked):
            fetch(content, kept=kept)
