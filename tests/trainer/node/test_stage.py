"""Reading what a launch has written: S3 may not give it at once."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from botocore.exceptions import (
    ClientError,
    ConnectTimeoutError,
    NoCredentialsError,
    ReadTimeoutError,
    ResponseStreamingError,
)

from trainer.aws.place import ACCOUNT, REHEARSAL
from trainer.base.errors import ConnectionFailed, DataError, Stopped, TrainingFailed
from trainer.node.cache import InputCache, open_cache
from trainer.node.origins import Origins
from trainer.node.stage import OUTAGE_SECONDS, PAUSES, SPARE_BYTES, fetch_inputs, read_patiently
from trainer.runs.manifest import ManifestInput

NOT_YET = ClientError({"Error": {"Code": "NoSuchKey"}}, "GetObject")


class LateObject:
    """An object that S3 gives from the `after`th read on."""

    def __init__(self, after: int) -> None:
        self.left, self.pauses = after, list[float]()

    def read(self) -> bytes:
        self.left -= 1
        if self.left >= 0:
            raise NOT_YET
        return b"{}"


def test_a_missing_object_is_read_again_after_growing_pauses():
    late = LateObject(after=3)
    assert (
        read_patiently(late.read, "runs/r/manifest.json", stopped=lambda: False, pause=late.pauses.append)
        == b"{}"
    )
    assert late.pauses == list(PAUSES[:3])


def test_an_object_that_never_comes_is_s3s_error_or_a_stop():
    never = LateObject(after=100)
    with pytest.raises(ClientError, match="NoSuchKey"):
        read_patiently(never.read, "raw/main/a.parquet", stopped=lambda: False, pause=never.pauses.append)
    assert never.pauses == list(PAUSES)
    with pytest.raises(Stopped, match="raw/main/a.parquet"):
        read_patiently(
            never.read, "raw/main/a.parquet", stopped=lambda: len(never.pauses) > 8, pause=never.pauses.append
        )


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (
            ClientError({"Error": {"Code": "SlowDown"}, "ResponseMetadata": {"HTTPStatusCode": 503}}, "Get"),
            True,
        ),
        (ClientError({"Error": {"Code": ""}, "ResponseMetadata": {"HTTPStatusCode": 500}}, "Get"), True),
        (ReadTimeoutError(endpoint_url="s3"), True),
        (ResponseStreamingError(error="the body stalls"), True),
        (ClientError({"Error": {"Code": "ExpiredToken"}}, "Get"), True),
        (NoCredentialsError(), True),
        (ClientError({"Error": {"Code": "AccessDenied"}}, "Get"), False),
        (NOT_YET, False),
    ],
)
def test_an_outage_of_minutes_is_waited_out(error: Exception, is_one: bool):
    now, asked = [0.0], [0]

    def read() -> bytes:
        asked[0] += 1
        if now[0] < 120 + 5:  # two minutes, begun in the middle of a try
            now[0] += 5
            raise error
        return b"{}"

    def pause(seconds: float) -> None:
        now[0] += seconds

    known: Any = {"stopped": lambda: False, "pause": pause, "clock": lambda: now[0]}
    if is_one:
        assert read_patiently(read, "raw/main/a.csv", **known) == b"{}" and now[0] < 150
    else:
        with pytest.raises(type(error)):
            read_patiently(read, "raw/main/a.csv", **known)
        assert asked[0] == 1 + len(PAUSES)


def test_an_outage_without_end_says_so_and_not_to_upload(tmp_path, monkeypatch):
    s3, pauses = Files(1), list[float]()
    monkeypatch.setitem(cast(Any, read_patiently).__kwdefaults__, "pause", pauses.append)

    def refuse(**_: str) -> Any:
        raise ConnectTimeoutError(endpoint_url="https://s3")

    monkeypatch.setattr(s3, "get_object", refuse)
    with pytest.raises(ConnectionFailed, match=r"input raw/x/0\.csv can't be read .*Check the network"):
        fetch(s3, s3.entries, tmp_path)
    assert OUTAGE_SECONDS <= sum(pauses) < OUTAGE_SECONDS + 20


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


def fetch(s3: Any, inputs: Sequence[ManifestInput], folder: Path, **known: Any) -> None:
    """Fetch inputs as a node does."""
    made = {"origins": Origins(), "place": ACCOUNT, "is_stopping": lambda: False, **known}
    fetch_inputs(
        cast(Any, SimpleNamespace(uplink=SimpleNamespace(s3=s3, bucket="b"), moved=lambda: None, **made)),
        inputs,
        folder,
    )


def test_kept_files_are_used_on_an_own_machine_alone(tmp_path):
    for content, kept, fetched in ((b"   0", True, 0), (b"   0", False, 1), (b"else", True, 1)):
        s3 = Files(1)
        (tmp_path / s3.entries[0].stored_as).write_bytes(content)
        fetch(s3, s3.entries, tmp_path, origins=Origins(kept=kept))
        assert len(s3.asked) == fetched


def test_no_file_is_fetched_after_one_that_is_unusable(tmp_path, monkeypatch):
    monkeypatch.setattr("trainer.node.stage.AT_ONCE", 1)
    s3 = Files(100)
    s3.entries[2] = replace(s3.entries[2], sha256="0" * 64)
    why = rf"^input raw/x/2\.csv .*can't be used.*the manifest says {'0' * 64}"
    with pytest.raises(DataError, match=why):
        fetch(s3, s3.entries, tmp_path)
    assert len(s3.asked) == 3, "nobody pays for the rest"


def test_one_object_of_several_places_is_fetched_once(tmp_path):
    s3 = Files(2)
    again = replace(s3.entries[0], path="data/again.csv", key="raw/y/0.csv")
    fetch(s3, [*s3.entries, again], tmp_path)
    assert len(s3.asked) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(entry.sha256 for entry in s3.entries)


def test_a_stop_also_ends_the_copies_from_the_cache(tmp_path, monkeypatch):
    s3, cache = Files(3), open_cache(tmp_path)
    taken: list[str] = []
    monkeypatch.setattr(InputCache, "take", lambda self, entry, target: taken.append(entry.key) or "taken")
    with pytest.raises(Stopped):
        fetch(s3, s3.entries, tmp_path / "n", is_stopping=lambda: True, origins=Origins(cache=cache))
    assert not taken


@pytest.mark.parametrize("kept", [True, False])
def test_a_kept_file_needs_no_more_room(tmp_path, monkeypatch, kept):
    s3, free = Files(1), SimpleNamespace(free=SPARE_BYTES + 3)
    (tmp_path / s3.entries[0].stored_as).write_bytes(b"   0")
    monkeypatch.setattr("shutil.disk_usage", lambda _: free)
    if kept:
        fetch(s3, s3.entries, tmp_path, origins=Origins(kept=True))
        free.free = SPARE_BYTES - 1
    with pytest.raises(TrainingFailed, match=r"inputs take 0 MB, .* has 1,07\d MB free .*raise volume_gib"):
        fetch(s3, s3.entries, tmp_path, origins=Origins(kept=kept))
    with pytest.raises(TrainingFailed, match="Free some space"):
        fetch(s3, s3.entries, tmp_path, origins=Origins(kept=kept), place=REHEARSAL)
