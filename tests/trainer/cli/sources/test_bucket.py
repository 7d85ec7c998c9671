"""Candles in another bucket: fetched with their folders, bounded, then a folder like any other."""

from __future__ import annotations

import json
import secrets
import tempfile
from pathlib import Path

import pytest

from trainer.aws.access import Access
from trainer.base.errors import ConfigError, DataError, PermissionDenied
from trainer.cli.main import main
from trainer.cli.sources import bucket as bucket_source
from trainer.cli.sources import desk as desk_sources
from trainer.cli.sources.bucket import fetch_candles, fetch_files

BARS = "time,open,high,low,close,volume\n" + "".join(
    f"{1_609_491_600 + 60 * row},1,2,0.5,{1 + row * 7 % 13 / 20},{row}\n" for row in range(600)
)


@pytest.fixture
def bucket(applied: Access) -> str:
    s3, name = applied.client("s3"), f"candles-{secrets.token_hex(4)}"
    s3.create_bucket(Bucket=name)
    keys = (
        "fx/symbol=EUR%2FUSD/part-0.csv",
        "fx/notes.md",
        "fx/.hidden.csv",
        "fx2/GBP_1m.csv",
        "deep/x.csv/../../y.csv",
    )
    for key in keys:
        s3.put_object(Bucket=name, Key=key, Body=BARS.encode())
    return name


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_what_lies_below_a_prefix_is_fetched_with_its_folders(
    applied: Access, bucket: str, tmp_path: Path
) -> None:
    for prefix in ("fx", "fx/"):
        assert fetch_candles(f"s3://{bucket}/{prefix}", applied, tmp_path / prefix) == tmp_path / prefix
    assert files(tmp_path) == ["fx/symbol=EUR%2FUSD/part-0.csv"]
    one = fetch_candles(f"s3://{bucket}/fx2/GBP_1m.csv", applied, tmp_path / "one")
    assert one == tmp_path / "one" / "GBP_1m.csv" and one.read_text() == BARS


def test_a_scripts_data_is_every_file_below_a_prefix(applied: Access, bucket: str, tmp_path: Path) -> None:
    assert fetch_files(f"s3://{bucket}/fx", applied, tmp_path) == tmp_path
    assert files(tmp_path) == ["notes.md", "symbol=EUR%2FUSD/part-0.csv"]
    fetch_files(f"s3://{bucket}/fx2/GBP_1m.csv", applied, tmp_path / "one")
    assert files(tmp_path / "one") == ["GBP_1m.csv"]


def test_nothing_too_much_and_no_such_bucket_are_one_line(
    applied: Access, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("fy", "deep/", ""):
        with pytest.raises(DataError, match="holds no data|names no bucket"):
            fetch_candles(f"s3://{bucket}/{place}" if place else "s3://", applied, tmp_path)
    with pytest.raises((ConfigError, PermissionDenied), match="cannot read s3://there-is-no-such-bucket"):
        fetch_candles("s3://there-is-no-such-bucket/x", applied, tmp_path)
    monkeypatch.setattr(bucket_source, "MOST_BYTES", 100)
    with pytest.raises(DataError, match=r"has 1 files, 0\.0 GB .a launch fetches 10,000 files"):
        fetch_candles(f"s3://{bucket}/fx", applied, tmp_path)
    with pytest.raises(DataError, match="mayfly data push candles/"):
        fetch_candles(f"s3://{bucket}/fx", applied, tmp_path)
    with pytest.raises(
        DataError, match="set data.folder to the copy: aws s3 sync --checksum-algorithm SHA256"
    ):
        fetch_files(f"s3://{bucket}/fx", applied, tmp_path)
    assert not files(tmp_path)


def test_a_launch_trains_on_them_as_on_a_folder(rehearsed: Access, bucket: str, capsys, monkeypatch) -> None:
    monkeypatch.setattr(desk_sources, "own_access", lambda: rehearsed)
    words = [
        "launch",
        "--rehearse",
        "--instance",
        "p3.8xlarge",
        "--data",
        f"s3://{bucket}/fx",
        "--dry-run",
        "--json",
    ]
    assert main([*words, "--set", "train.batch=64"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["data"]["bars"] == {"EUR-USD": 600}
    assert plan["data"]["notes"][:1] == ["EUR/USD: a name can't contain a slash (it trains as EUR-USD)"]


@pytest.mark.parametrize("place", ["bad", "bad/X_1m.csv"])
def test_a_refusal_names_the_bucket_and_no_copy(
    applied: Access, rehearsed: Access, bucket: str, place: str, capsys, monkeypatch
) -> None:
    monkeypatch.setattr(desk_sources, "own_access", lambda: rehearsed)
    applied.client("s3").put_object(Bucket=bucket, Key="bad/X_1m.csv", Body=b"a,b\n1,2\n")
    words = ["--rehearse", "--instance", "p3.8xlarge", "--data", f"s3://{bucket}/{place}", "--dry-run"]
    assert main(["launch", *words]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert f"s3://{bucket}/bad/X_1m.csv" in said and tempfile.gettempdir() not in said


def test_notes_and_plan_name_the_bucket_and_no_copy(
    applied: Access, rehearsed: Access, bucket: str, capsys, monkeypatch
) -> None:
    monkeypatch.setattr(desk_sources, "own_access", lambda: rehearsed)
    for key in ("mix/X_1m.csv", "mix/sub/Y_1m.csv"):
        applied.client("s3").put_object(Bucket=bucket, Key=key, Body=BARS.encode())
    words = ["--rehearse", "--instance", "p3.8xlarge", "--data", f"s3://{bucket}/mix", "--dry-run", "--json"]
    assert main(["launch", *words, "--set", "train.batch=64"]) == 0
    out, err = capsys.readouterr()
    note = f"s3://{bucket}/mix: its folder sub/ is not read, because there are candle files beside it"
    assert json.loads(out)["data"]["notes"][:1] == [note]
    assert tempfile.gettempdir() not in out + err
