from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.candles import fewest
from tests.jobs import job_of
from trainer.aws import parts, transfer
from trainer.aws.access import Access
from trainer.aws.objects import open_objects
from trainer.aws.place import REHEARSAL
from trainer.bars.check import describe, join
from trainer.base.errors import DataError, NotVersioned
from trainer.cli.sources import taken
from trainer.cli.sources.candles import find_candles
from trainer.data.read.writing import write_candles
from trainer.job.job import Job
from trainer.launch import uploads
from trainer.launch.bundle import BundleName
from trainer.launch.inputs import ChosenCandles, choose, described, list_inputs, overlapping, read_summary
from trainer.launch.uploads import DeskFile, upload_candles, upload_data
from trainer.launch.work import ScriptWork, TrainingWork

CODE = BundleName(sha256="c", lock_sha256="l")


def local(path: Path, content: bytes) -> DeskFile:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    summary = {"file": path.name, "timeframe": "1m", "synthetic": False, "further": [], "holds": []}
    return DeskFile(
        place=path,
        path=path.name,
        sha256=hashlib.sha256(content).hexdigest(),
        bytes=len(content),
        summary=summary,
    )


def test_an_upload_is_pinned_by_version_and_hash_and_indexed(access, bucket, tmp_path):
    file = local(tmp_path / "a.parquet", b"one")
    (entry,) = upload_candles([file], access, bucket=bucket, data_set="main")
    (found,) = list_inputs(open_objects(access, bucket), "main")
    assert (
        found.pinned()
        == entry.pinned()
        == {**entry.pinned(), "key": "raw/main/a.parquet", "sha256": file.sha256, "bytes": 3}
    )
    assert found.summary == file.summary


def test_work_by_hash_names_what_its_upload_will_pin(access, bucket, tmp_path):
    file, candles = (
        local(tmp_path / "a.parquet", b"one"),
        ChosenCandles(timeframe="1m", bars={}, synthetic=False),
    )
    made = TrainingWork(job=job_of(), code=CODE, candles=candles, files=(file,)).by_hash().candles.inputs
    sent = upload_candles([file], access, bucket=bucket, data_set=job_of().data.set)
    assert made == tuple(replace(item, version_id="") for item in sent)
    work = ScriptWork(job=job_of(), code=CODE, files={}, sha256="", folder=(file,), names=("s",))
    entries = upload_data([file], access, bucket=bucket)
    assert list(work.by_hash().inputs) == [{**entry, "version_id": ""} for entry in entries]


def test_the_same_bytes_are_uploaded_once(access, bucket, tmp_path):
    (first,) = upload_candles([local(tmp_path / "a.parquet", b"one")], access, bucket=bucket, data_set="main")
    (again,) = upload_candles(
        [local(tmp_path / "b" / "a.parquet", b"one")], access, bucket=bucket, data_set="main"
    )
    (other,) = upload_candles([local(tmp_path / "a.parquet", b"two")], access, bucket=bucket, data_set="main")
    assert again == first
    assert other.key == first.key
    assert other.version_id != first.version_id


def test_a_file_that_s3_keeps_without_a_version_is_no_input(access, bucket, tmp_path):
    access.client("s3").create_bucket(Bucket=f"un{bucket}")
    for _ in range(2):  # the second time it is there already
        with pytest.raises(NotVersioned, match=r"raw/main/a.parquet without a version"):
            upload_candles(
                [local(tmp_path / "a.parquet", b"one")], access, bucket=f"un{bucket}", data_set="main"
            )


def test_two_files_of_one_name_are_refused_before_an_upload(access, bucket, tmp_path):
    files = [local(tmp_path / folder / "a.parquet", folder.encode()) for folder in ("x", "y")]
    with pytest.raises(DataError, match=r"2 files are called a.parquet"):
        upload_candles(files, access, bucket=bucket, data_set="main")
    assert list_inputs(open_objects(access, bucket), "main") == ()


def test_a_file_too_large_for_an_object_is_named(access, bucket, tmp_path, monkeypatch):
    monkeypatch.setattr(uploads, "LARGEST_OBJECT_BYTES", 2)
    with pytest.raises(DataError, match="Split it"):
        upload_candles([local(tmp_path / "a.parquet", b"one")], access, bucket=bucket, data_set="main")


def test_a_large_file_goes_in_parts_and_comes_in_parts(access, bucket, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    monkeypatch.setattr(parts, "PART_BYTES", 5 << 20)  # S3's least
    monkeypatch.setattr(transfer, "WHOLE_BYTES", 6 << 20)
    file, moved = local(tmp_path / "a.parquet", b"0123456789abcde" * 800_000), list[int]()
    (entry,) = upload_candles([file], access, bucket=bucket, data_set="main", moved=moved.append)
    head = access.client("s3").head_object(Bucket=bucket, Key=entry.key, ChecksumMode="ENABLED")
    assert "ChecksumSHA256" not in head and head["Metadata"] == {"sha256": file.sha256}
    (found,) = list_inputs(open_objects(access, bucket), "main")
    assert (found.sha256, found.bytes, sum(moved)) == (file.sha256, file.bytes, file.bytes)
    known = {"bucket": bucket, "size": found.bytes}
    args = (tmp_path / "back", found.key, found.version_id, found.sha256, access.client("s3"))
    assert (
        transfer.fetch_file(*args, **known) == file.sha256
        and (tmp_path / "back").stat().st_size == file.bytes
    )


def test_sets_never_mix_and_a_folder_in_a_set_is_none_of_it(access, bucket, tmp_path):
    upload_candles([local(tmp_path / "a.parquet", b"one")], access, bucket=bucket, data_set="main")
    upload_candles([local(tmp_path / "a.parquet", b"two")], access, bucket=bucket, data_set="main-2")
    for key in ("raw/main/deeper/x.parquet", "raw/old.parquet", "raw/main/.hidden.parquet"):
        access.client("s3").put_object(Bucket=bucket, Key=key, Body=b"x")
    objects = open_objects(access, bucket)
    assert [item.key for item in list_inputs(objects, "main")] == ["raw/main/a.parquet"]
    assert [item.key for item in list_inputs(objects, "main-2")] == ["raw/main-2/a.parquet"]
    assert list_inputs(objects, "other") == ()


def test_a_file_of_somebody_else_is_listed_without_a_hash(access, bucket):
    access.client("s3").put_object(Bucket=bucket, Key="raw/main/x.parquet", Body=b"x")
    (found,) = list_inputs(open_objects(access, bucket), "main")
    assert (found.sha256, found.summary) == ("", {})


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"holds": 5}', b'{"timeframe": "1m", "holds": [{"symbol": "../x"}]}', b"[" * 10**5]
)
def test_an_index_entry_that_no_check_wrote_counts_as_none(body):
    assert read_summary(body) == {}


def synced(access: Access, bucket: str, folder: Path, data_set: str = "main") -> None:
    """Put files into the data set as `aws s3 sync` does."""
    for path in folder.iterdir():
        access.client("s3").put_object(
            Bucket=bucket, Key=f"raw/{data_set}/{path.name}", Body=path.read_bytes()
        )


class InProcess:
    """The data check of a folder, alone or joined, without a child."""

    def __init__(self, folder: str, *, joined: bool = False, columns: Sequence[str] = ()) -> None:
        self._folder, self._read, self._columns = Path(folder), join if joined else describe, columns

    def report(self) -> dict[str, Any]:
        return self._read(self._folder, columns=self._columns)


def test_without_data_a_launch_trains_on_its_set(access, bucket, tmp_path, make_candles, monkeypatch):
    monkeypatch.setattr(taken, "CheckChild", InProcess)
    for name, symbol, seed in (("main", "AAA", 0), ("main", "BBB", 1), ("demo", "AAA", 2)):
        (tmp_path / name).mkdir(exist_ok=True)
        write_candles(tmp_path / name / f"{symbol}_1m.parquet", [make_candles(600, symbol=symbol, seed=seed)])
        synced(access, bucket, tmp_path / name, name)
    objects = open_objects(access, bucket)
    found = find_candles(Job(), None, objects, place=REHEARSAL)
    assert found.candles and [item.key for item in found.candles.inputs] == [
        "raw/main/AAA_1m.parquet",
        "raw/main/BBB_1m.parquet",
    ]
    # Not "no --data": publish and preview of a retrain have no such flag.
    assert found.notes[0] == "trains on data set main, 2 files: AAA_1m.parquet, BBB_1m.parquet"
    demo = find_candles(job_of(set="demo"), None, objects, place=REHEARSAL)
    assert demo.candles and [item.key for item in demo.candles.inputs] == ["raw/demo/AAA_1m.parquet"]


def test_files_of_other_means_are_looked_at_once_and_indexed(
    access, bucket, tmp_path, make_candles, monkeypatch
):
    monkeypatch.setattr(taken, "CheckChild", InProcess)
    write_candles(tmp_path / "AAA_1m_2024.parquet", [make_candles(200)])
    write_candles(
        tmp_path / "more_1m.parquet", [make_candles(150, symbol=symbol) for symbol in ("BBB", "CCC")]
    )
    (tmp_path / "spoilt.csv").write_text("time,open\n1,2\n")
    (tmp_path / "notes.txt").write_text("hello")
    synced(access, bucket, tmp_path)
    objects = open_objects(access, bucket)
    inputs, notes = taken.take(list_inputs(objects, "main"), objects, writes=False)
    assert not any(item.summary for item in list_inputs(objects, "main"))  # a dry run
    inputs, notes = taken.take(list_inputs(objects, "main"), objects)
    assert sorted(notes) == [
        "left out: raw/main/notes.txt (it is not a table of candles)",
        (
            "left out: raw/main/spoilt.csv (spoilt.csv has no column for high, low, close: its columns are"
            " time, open)"
        ),
        "taken: raw/main/AAA_1m_2024.parquet (200 bars; no launch put it there)",
        "taken: raw/main/more_1m.parquet (300 bars; no launch put it there)",
    ]
    chosen = choose(inputs, symbols=(), timeframe="", too_few=fewest(65))
    assert chosen.bars == {"AAA": 200, "BBB": 150, "CCC": 150}
    pinned = chosen.inputs[0].pinned()
    content = (tmp_path / "AAA_1m_2024.parquet").read_bytes()
    assert pinned["sha256"] == hashlib.sha256(content).hexdigest() and pinned["version_id"]

    monkeypatch.setattr(taken, "CheckChild", lambda folder: pytest.fail("it is looked at again"))
    for name in ("spoilt.csv", "notes.txt"):
        access.client("s3").delete_object(Bucket=bucket, Key=f"raw/main/{name}")
    again, _ = taken.take(list_inputs(objects, "main"), objects)
    assert choose(again, symbols=(), timeframe="", too_few=fewest(65)).inputs == chosen.inputs


def test_jobs_that_read_a_file_differently_have_own_reports(access, bucket, tmp_path, monkeypatch):
    monkeypatch.setattr(taken, "CheckChild", InProcess)
    lines = [f"{1_704_067_200 + 60 * row},1,2,1,2,5" for row in range(200)]
    (tmp_path / "AAA_1m.csv").write_text("\n".join(["at,open,high,low,close,volume", *lines]))
    synced(access, bucket, tmp_path)
    objects = open_objects(access, bucket)
    seconds, days = ("time=at:s", "log_return_1 of AAA"), ("time=at:ms",)

    def first(columns: Sequence[str]) -> str:
        (item,) = list_inputs(objects, "main", columns)
        return str(item.summary["holds"][0]["first"]) if item.summary else ""

    for columns in (seconds, days):
        assert first(columns) == "", "another job's report is none of this one"
        taken.take(list_inputs(objects, "main", columns), objects, columns=columns)
    assert (first(seconds), first(days)) == ("2024-01-01T00:00:00Z", "1970-01-20T17:21:07.200Z")
    assert first(()) == "" and first(("index=AAA", *seconds[:1])) == first(seconds)
    key = list_inputs(objects, "main")[0].key
    anyones = described(key, objects, told=None)
    assert anyones is not None and anyones.summary["holds"][0]["bars"] == 200


def test_no_more_than_a_gigabyte_of_new_files_is_fetched(access, bucket, tmp_path, make_candles, monkeypatch):
    monkeypatch.setattr(taken, "CheckChild", InProcess)
    write_candles(tmp_path / "AAA_1m.parquet", [make_candles(200)])
    write_candles(tmp_path / "BBB_1m.parquet", [make_candles(2000, symbol="BBB")])
    synced(access, bucket, tmp_path)
    monkeypatch.setattr(taken, "MOST_BYTES", (tmp_path / "BBB_1m.parquet").stat().st_size)
    objects = open_objects(access, bucket)
    inputs, notes = taken.take(list_inputs(objects, "main"), objects)
    assert [bool(item.summary) for item in inputs] == [True, False] and "name it with --data once" in notes[0]


def test_a_symbol_on_which_files_disagree_is_left_out(access, bucket, tmp_path, make_candles, monkeypatch):
    monkeypatch.setattr(taken, "CheckChild", InProcess)
    for symbol, other in (("AAA", 0), ("BBB", 7)):
        write_candles(
            tmp_path / f"{symbol}_1m_a.parquet", [make_candles(300, symbol=symbol, drop=range(200, 300))]
        )
        write_candles(tmp_path / f"{symbol}_1m_b.parquet", [make_candles(300, symbol=symbol, seed=other)])
    synced(access, bucket, tmp_path)
    objects = open_objects(access, bucket)
    inputs, _ = taken.take(list_inputs(objects, "main"), objects)
    chosen = choose(inputs, symbols=(), timeframe="", too_few=fewest(65))
    assert set(overlapping(chosen)) == {"AAA", "BBB"}
    compared, notes = taken.compare_overlaps(chosen, objects)
    assert set(compared.bars) == {"AAA"} and not notes
    assert "BBB_1m_a.parquet and BBB_1m_b.parquet disagree about BBB" in compared.refused[0]
    assert [item.key for item in compared.inputs] == [
        "raw/main/AAA_1m_a.parquet",
        "raw/main/AAA_1m_b.parquet",
    ]
    side = replace(inputs[0], key="raw/main/fear.side.csv", summary={"holds": []})
    beside, _ = taken.compare_overlaps(replace(chosen, inputs=(*chosen.inputs, side)), objects)
    assert beside.inputs == (*compared.inputs, side), "what no symbol of these holds stays"

    alone = choose(inputs, symbols=("BBB",), timeframe="", too_few=fewest(65))
    with pytest.raises(DataError, match="disagree about BBB"):
        taken.compare_overlaps(alone, objects)
    monkeypatch.setattr(taken, "CheckChild", lambda *_, **__: pytest.fail("they are compared again"))
    agreed = choose(inputs, symbols=("AAA",), timeframe="", too_few=fewest(65))
    assert taken.compare_overlaps(agreed, objects) == (agreed, [])
    monkeypatch.setattr(taken, "MOST_BYTES", 10)
    same, notes = taken.compare_overlaps(alone, objects)
    assert same == alone and notes == [
        "not compared here, but on the machine: BBB in raw/main/BBB_1m_a.parquet and"
        " raw/main/BBB_1m_b.parquet (over 0.0 GB)"
    ]
