"""`mayfly data push`, `pull` and `ls` as they are typed: only what changed moves, and what was there before comes
back.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.manifests import manifest
from trainer.aws.access import Access
from trainer.bars.check import describe
from trainer.base.instants import iso
from trainer.cli.main import main
from trainer.cli.verbs import data_sync
from trainer.data.read.writing import write_candles
from trainer.rehearsal.kept_bucket import KeptBucket
from trainer.runs.manifest import ManifestInput
from trainer.runs.record_json import to_json

RUN = "20261120-120000-crypto-k3v9"


@dataclass(frozen=True, kw_only=True)
class ToBucket(Access):
    """Access to one bucket in this process."""

    bucket: KeptBucket

    def client(self, service: str, **_: Any) -> Any:
        return self.bucket


class InProcess:
    """The data check without a child."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def report(self) -> dict[str, Any]:
        return describe(self._path)

    def close(self) -> None:
        pass


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KeptBucket:
    bucket = KeptBucket(tmp_path / "bucket")
    bucket.versioned = True

    @contextmanager
    def connected(**_: Any) -> Iterator[Access]:
        yield ToBucket(bucket=bucket)

    monkeypatch.setattr(data_sync, "connected", connected)
    monkeypatch.setattr(data_sync, "read_stack", lambda *_, **__: SimpleNamespace(bucket="b"))
    monkeypatch.setattr(data_sync, "CheckChild", InProcess)
    monkeypatch.delenv("MAYFLY_LOCAL", raising=False)
    monkeypatch.chdir(tmp_path)
    return bucket


@pytest.fixture
def candles(tmp_path: Path, make_candles: Callable[..., Any]) -> Path:
    folder = tmp_path / "mine"
    folder.mkdir()
    for number, symbol in enumerate(("AAA", "BBB")):
        write_candles(folder / f"{symbol}_1m.parquet", [make_candles(100 + number, symbol=symbol)])
    return folder


@pytest.fixture
def mayfly(bucket: KeptBucket, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Run `mayfly data`; return its exit code and what it printed as JSON."""

    def call(*words: object) -> tuple[int, Any]:
        code = main(["data", *map(str, words), "--json"])
        return code, json.loads(capsys.readouterr().out)

    return call


def test_only_what_changed_is_pushed(
    mayfly: Any, candles: Path, make_candles: Callable[..., Any], bucket: KeptBucket
) -> None:
    code, first = mayfly("push", candles)
    assert (code, first["pushed"], first["set"]) == (0, ["AAA_1m.parquet", "BBB_1m.parquet"], "main")
    write_candles(candles / "AAA_1m_2025.parquet", [make_candles(50)])
    write_candles(candles / "BBB_1m.parquet", [make_candles(102, symbol="BBB")])
    (candles / "spoilt.csv").write_text("time,open\n1,2\n")
    code, again = mayfly("push", candles)
    assert (code, again["unchanged"], again["replaced"]) == (2, 1, ["BBB_1m.parquet"])
    assert again["pushed"] == ["AAA_1m_2025.parquet", "BBB_1m.parquet"] and "spoilt.csv" in again["failed"]
    assert len(bucket.versions("raw/main/BBB_1m.parquet")) == 2
    bucket.delete_object(Key=f"raw-index/{bucket.versions('raw/main/AAA_1m.parquet')[0].sha256}.json")
    assert mayfly("push", candles)[1]["pushed"] == ["AAA_1m.parquet"], "its description is missing"
    assert len(bucket.versions("raw/main/AAA_1m.parquet")) == 1, "its bytes were there"


def test_a_push_alone_makes_the_stack_of_a_rehearsal(
    bucket: KeptBucket, candles: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[bool] = []

    @contextmanager
    def connected(*, program: bool, **_: Any) -> Iterator[Access]:
        asked.append(program)
        yield ToBucket(bucket=bucket)

    monkeypatch.setattr(data_sync, "connected", connected)
    assert main(["data", "push", "nowhere", "--rehearse"]) == 2
    assert "nowhere does not exist" in capsys.readouterr().err and asked == []
    for words in (("push", str(candles)), ("ls",), ("pull",)):
        assert main(["data", *words, "--rehearse"]) == 0
    assert asked == [True, False, False]


def test_what_is_pushed_is_pulled_and_listed(mayfly: Any, candles: Path, tmp_path: Path) -> None:
    mayfly("push", candles, "--set", "coins")
    code, pulled = mayfly("pull", "coins")
    assert (code, pulled["folder"], pulled["unchanged"]) == (0, "coins", 0)
    for path in candles.iterdir():
        assert (tmp_path / "coins" / path.name).read_bytes() == path.read_bytes()
    (tmp_path / "coins" / "AAA_1m.parquet").write_text("mine")
    code, again = mayfly("pull", "coins")
    assert (code, again["pulled"], again["differing"]) == (2, [], ["AAA_1m.parquet"])
    assert (tmp_path / "coins" / "AAA_1m.parquet").read_text() == "mine"
    code, over = mayfly("pull", "coins", "--overwrite")
    assert (code, over["pulled"], over["unchanged"]) == (0, ["AAA_1m.parquet"], 1)

    assert [(one["set"], one["files"]) for one in mayfly("ls")[1]["sets"]] == [("coins", 2)]
    rows = mayfly("ls", "coins")[1]["files"]
    assert [
        (row["file"], row["symbols"], row["timeframe"], row["bars"], row["versions"]) for row in rows
    ] == [
        ("AAA_1m.parquet", "AAA", "1m", 100, 1),
        ("BBB_1m.parquet", "BBB", "1m", 101, 1),
    ]


def test_a_new_file_is_one_request_each_way(
    mayfly: Any, candles: Path, bucket: KeptBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, get = list[str](), bucket.get_object
    monkeypatch.setattr(bucket, "head_object", lambda **named: pytest.fail(f"it asks for {named['Key']}"))
    monkeypatch.setattr(bucket, "get_object", lambda **named: (asked.append(named["Key"]), get(**named))[1])
    assert len(mayfly("push", candles)[1]["pushed"]) == 2 and not asked
    assert len(mayfly("pull")[1]["pulled"]) == 2
    assert sorted(asked) == ["raw/main/AAA_1m.parquet", "raw/main/BBB_1m.parquet"]


def test_bytes_that_are_not_those_of_the_hash_get_no_name(
    mayfly: Any, candles: Path, bucket: KeptBucket, tmp_path: Path
) -> None:
    wrong = {"sha256": "0" * 64}
    bucket.put_object(Key="raw/main/AAA_1m.parquet", Body=b"other", Metadata=wrong)
    code, pulled = mayfly("pull", "main")
    assert (
        code == 103
        and "damaged" in str(pulled["failed"])
        and not (tmp_path / "main" / "AAA_1m.parquet").exists()
    )


def test_the_versions_of_then_come_back(
    mayfly: Any, candles: Path, make_candles: Callable[..., Any], bucket: KeptBucket, tmp_path: Path
) -> None:
    mayfly("push", candles)
    old = (candles / "AAA_1m.parquet").read_bytes()
    (pinned,) = [row for row in mayfly("ls", "main")[1]["files"] if row["file"] == "AAA_1m.parquet"]
    stored = [bucket.versions(f"raw/main/{path.name}")[0] for path in candles.iterdir()]
    then = iso(max(version.modified_at for version in stored))
    write_candles(candles / "AAA_1m.parquet", [make_candles(70)])
    mayfly("push", candles)
    bucket.delete_object(Key="raw/main/BBB_1m.parquet")
    assert [row["bars"] for row in mayfly("ls", "main")[1]["files"]] == [70]
    assert sorted(mayfly("pull", "--at", then, "--out", "then")[1]["pulled"]) == sorted(
        path.name for path in candles.iterdir()
    )
    assert (tmp_path / "then" / "AAA_1m.parquet").read_bytes() == old

    item = {name: pinned[name] for name in ("version_id", "sha256", "bytes")}
    read = ManifestInput(path="data/AAA_1m.parquet", key="raw/main/AAA_1m.parquet", **item)
    bucket.put_object(Key=f"runs/{RUN}/run.json", Body=b"{}")
    bucket.put_object(Key=f"runs/{RUN}/manifest.json", Body=to_json(manifest(inputs=(read,))))
    code, pulled = mayfly("pull", "--at", RUN[9:], "--out", "read")
    assert (code, pulled["set"], pulled["pulled"]) == (0, "main", ["AAA_1m.parquet"])
    assert (tmp_path / "read" / "AAA_1m.parquet").read_bytes() == old

    bucket.delete_object(Key=read.key, VersionId=read.version_id)
    code, gone = mayfly("pull", "--at", RUN[9:], "--out", "gone")
    (failed,) = gone["failed"]
    assert code == 2 and f"{read.key} is gone" in failed["what"] and not [*(tmp_path / "gone").iterdir()]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("pull", "nowhere"), "there is no data set 'nowhere'"),
        (("pull", "../x"), "data.set"),
        (("pull", "--at", "2026-13-01"), "is not a time"),
        (("ls", "main", "--at", "2020-01-01"), "no data set 'main' at 2020-01-01 00:00 UTC"),
        (("pull", "--at", "0001-01-01T00:00+05:00"), "is not a time"),
        (("pull", "nowhere", "--at", "2020-01-01T10:00+02:00"), "'nowhere' at 2020-01-01 08:00 UTC"),
        (("pull", "--at", "no-such-run"), "no run"),
    ],
)
def test_what_is_not_there_is_one_line(
    bucket: KeptBucket, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], says: str
) -> None:
    assert main(["data", *words]) in (2, 103)
    assert says in capsys.readouterr().err


def test_a_time_before_a_set_is_not_called_an_empty_set(
    bucket: KeptBucket, candles: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "push", str(candles)]) == 0
    capsys.readouterr()
    assert main(["data", "pull", "main", "--at", "2020-01-01"]) == 2
    said = capsys.readouterr().err
    assert "(it has no file from that time)" in said and "empty" not in said and "Did you mean" not in said


def test_a_person_reads_tables_and_names(
    bucket: KeptBucket, candles: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "ls"]) == 0
    assert main(["data", "push", str(candles)]) == 0
    assert main(["data", "ls", "main"]) == 0
    assert main(["data", "pull", "main"]) == 0
    out, err = capsys.readouterr()
    assert "no data sets yet" in out and "main/AAA_1m.parquet" in out and "2024-01-01T00:00:00Z" in out
    assert "2 files pushed to main" in err and "2 files of main, 201 bars" in err
    assert "2 files of main pulled" in err
