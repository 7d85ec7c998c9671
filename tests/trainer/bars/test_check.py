from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.jobs import job_of
from trainer.bars.check import main
from trainer.bars.document import read_plan
from trainer.base.errors import DataError
from trainer.data.read.writing import write_candles
from trainer.job.reading import job_from
from trainer.train.inputs.rows import prepare


@pytest.fixture
def folder(tmp_path: Path, make_candles) -> Path:
    write_candles(tmp_path / "AAA_1m.parquet", [make_candles(1000, drop=[500])], synthetic=True)
    write_candles(tmp_path / "BBB_1m.parquet", [make_candles(900, symbol="BBB", seed=3)])
    return tmp_path


def run(capsys, *arguments: str) -> tuple[int, dict]:
    code = main(list(arguments))
    return code, json.loads(capsys.readouterr().out)


def test_the_report_describes_files_and_symbols(folder: Path, tmp_path: Path, capsys, make_candles) -> None:
    job = tmp_path / "job.json"
    job.write_text(json.dumps({"data": {"symbols": ["AAA"]}, "model": {"lookback": 30}}))
    code, report = run(capsys, "--job", str(job), "--data", str(folder))
    path = folder / "AAA_1m.parquet"
    assert code == 0
    assert report["timeframe"] == "1m" and report["synthetic"] is True and len(report["inputs"]) >= 30
    span = {"symbol": "AAA", "bars": 999, "first": "2024-01-01T00:00:00Z", "last": "2024-01-01T16:39:00Z"}
    (file,) = report["files"]
    assert file == {
        "file": "AAA_1m.parquet",
        "path": str(path),
        "bytes": path.stat().st_size,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "symbols": ["AAA"],
        "timeframe": "1m",
        "synthetic": True,
        "further": [],
        "told": [],
        "holds": [span],
    }
    expected = prepare(make_candles(1000, drop=[500]), job_of(lookback=30))
    windows = {name: len(starts) for name, starts in expected.starts.items()}
    (symbol,) = report["symbols"]
    assert symbol == {
        **span,
        "holes": 1,
        "calendar": "24x7",
        "ties": expected.ties,
        "windows": windows,
        "folds": [windows],
        "horizon": 5,
        "horizon_bars": 5,
    }


def test_the_report_has_the_plan_as_it_is_hashed(folder: Path, capsys) -> None:
    _, report = run(capsys, "--data", str(folder))
    plan = read_plan(report["plan"].encode())
    assert list(plan.symbols) == ["AAA", "BBB"] and plan.to_bytes() == report["plan"].encode()


def test_an_unusable_symbol_is_reported_and_left_out(tmp_path: Path, capsys, make_candles) -> None:
    write_candles(tmp_path / "AAA_1m.parquet", [make_candles(1000)])
    write_candles(tmp_path / "BBB_1m.parquet", [make_candles(100, symbol="BBB")])
    broken = make_candles(1000, symbol="CCC")
    broken.close[5] = np.nan
    write_candles(tmp_path / "CCC_1m.parquet", [broken])
    code, report = run(capsys, "--data", str(tmp_path))
    assert code == 0 and [entry["symbol"] for entry in report["symbols"]] == ["AAA"]
    assert [(entry["symbol"], entry["what"]) for entry in report["refused"]] == [
        ("BBB", "BBB has 100 bars"),
        ("CCC", "CCC_1m.parquet: close is NaN in a bar of CCC"),
    ]
    assert list(read_plan(report["plan"].encode()).refused) == ["BBB", "CCC"]
    (tmp_path / "AAA_1m.parquet").unlink()
    code, report = run(capsys, "--data", str(tmp_path))
    assert code == 2 and report["error"]["what"] == "none of the 2 symbols can be trained on"


def test_a_plan_of_many_overlapping_files_can_be_read(folder: Path, capsys, make_candles) -> None:
    broken = make_candles(1000, symbol="CCC")
    broken.close[5] = np.nan
    for number in range(50):
        write_candles(folder / f"CCC_1m_{number:080}.parquet", [broken])
    _, report = run(capsys, "--data", str(folder))
    (refused,) = read_plan(report["plan"].encode()).refused.values()
    assert len(refused.what) < 400
    assert refused.what.endswith(f"{2:080}.parquet and 47 more: close is NaN in a bar of CCC")


def test_a_plan_of_an_index_of_many_symbols_can_be_read(folder: Path, tmp_path: Path, capsys) -> None:
    job = tmp_path / "job.json"
    job.write_text(json.dumps({"data": {"columns": ["log_return_1 of index"]}, "model": {"lookback": 30}}))
    _, report = run(capsys, "--job", str(job), "--data", str(folder))
    plan = read_plan(report["plan"].encode())
    members = "/".join(["AAA", "BBB", *(f"{number:010}" for number in range(500))])
    columns = ["log_return_1 of index", f"index={members}"]
    large = replace(plan, made_for={**plan.made_for, "data": {**plan.made_for["data"], "columns": columns}})
    assert read_plan(large.to_bytes()).made_for["data"]["columns"] == columns


@pytest.mark.parametrize(
    ("data", "planned"),
    [
        ({"exclude": ["CCC", "AAA"]}, ["BBB"]),
        ({"symbols": ["AAA", "CCC"], "exclude": ["CCC"]}, ["AAA"]),
        ({"exclude": ["AAA", "BBB", "CCC"]}, "no symbol is left to train"),
        ({"exclude": ["DDD"]}, "unknown symbol 'DDD' in data.exclude"),
        ({"symbols": ["AAA"], "exclude": ["AAA"]}, "no symbol is left to train"),
        ({"exclude": ["../x"]}, "job key 'data.exclude' has '../x'"),
    ],
)
def test_excluded_symbols_are_neither_planned_nor_refused(folder, data, planned, capsys, make_candles):
    write_candles(folder / "CCC_1m.parquet", [make_candles(100, symbol="CCC")])
    job = folder / "job.json"
    job.write_text(json.dumps({"data": data}))
    code, report = run(capsys, "--job", str(job), "--data", str(folder))
    if isinstance(planned, str):
        assert code == 2 and report["error"]["what"] == planned
        return
    assert code == 0 and not report["refused"]
    assert [entry["symbol"] for entry in report["symbols"]] == planned
    assert [entry["file"] for entry in report["files"]] == [f"{symbol}_1m.parquet" for symbol in planned]


def test_bad_data_is_one_error_and_exit_2(tmp_path: Path, capsys) -> None:
    code, report = run(capsys, "--data", str(tmp_path / "nowhere"))
    assert code == 2
    assert (
        report["error"]["code"] == 2 and "does not exist" in report["error"]["what"] and report["error"]["do"]
    )


def test_a_malformed_job_is_one_error_and_exit_2(folder: Path, capsys) -> None:
    job = folder / "job.json"
    job.write_text("{")
    assert run(capsys, "--job", str(job), "--data", str(folder))[0] == 2
    job.write_text('{"lokback": 3}')
    code, report = run(capsys, "--job", str(job), "--data", str(folder))
    assert code == 2 and "lookback" in report["error"]["do"]


def test_files_are_joined_by_timeframe_for_contradictions(folder: Path, capsys, make_candles) -> None:
    assert run(capsys, "--joined", "--data", str(folder)) == (0, {"errors": {}})
    write_candles(folder / "AAA_1m_2026.parquet", [make_candles(1000, seed=9)])
    write_candles(folder / "BBB_1h.parquet", [make_candles(50, symbol="BBB", timeframe="1h")])
    code, report = run(capsys, "--joined", "--data", str(folder))
    assert code == 0 and list(report["errors"]) == ["AAA"]


def test_the_desk_needs_no_torch_to_check(folder: Path) -> None:
    script = (
        "import sys; from trainer.bars.check import main; main(sys.argv[1:]); assert 'torch' not in"
        " sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "--data", str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["timeframe"] == "1m"


def test_inputs_are_reported_and_a_missing_column_is_refused(folder: Path, tmp_path: Path, capsys) -> None:
    job = tmp_path / "job.json"
    job.write_text(json.dumps({"data": {"symbols": ["AAA"], "columns": ["funding"], "features": "none"}}))
    code, report = run(capsys, "--job", str(job), "--data", str(folder))
    assert code == 2 and "AAA_1m.parquet has no column funding" in report["error"]["what"]
    path = folder / "AAA_1m.parquet"
    table = pq.read_table(path)
    pq.write_table(table.append_column("funding", pa.array(range(table.num_rows))), path)
    code, report = run(capsys, "--job", str(job), "--data", str(folder))
    assert code == 0 and report["inputs"] == ["funding"] and report["files"][0]["further"] == ["funding"]
    assert report["symbols"][0]["windows"]["train"] > 256


def test_an_index_is_pinned_by_the_plan_and_its_files_are_inputs(
    folder: Path, tmp_path: Path, capsys
) -> None:
    job = tmp_path / "job.json"
    values = {"data": {"columns": ["log_return_1 of index"], "symbols": ["BBB"]}, "model": {"lookback": 30}}
    job.write_text(json.dumps(values))
    code, report = run(capsys, "--job", str(job), "--data", str(folder))
    assert code == 0 and report["index"] == ["AAA", "BBB"] and [*report["symbols"]][0]["symbol"] == "BBB"
    assert [file["file"] for file in report["files"]] == ["AAA_1m.parquet", "BBB_1m.parquet"]
    assert report["files"][0]["symbols"] == [] and report["files"][0]["holds"][0]["symbol"] == "AAA"
    plan, asked = read_plan(report["plan"].encode()), job_from(values)
    assert plan.symbols["BBB"].files == ("BBB_1m.parquet", "AAA_1m.parquet")
    assert plan.decided(asked).data.columns == ("log_return_1 of index", "index=AAA/BBB")
    plan.check_fits(plan.decided(asked))
    with pytest.raises(DataError, match="another data.columns"):
        plan.check_fits(asked.with_data(columns=("log_return_1 of index", "index=BBB")))


def test_side_files_are_described_and_planned_with_the_candles(folder: Path, tmp_path: Path, capsys) -> None:
    (folder / "fear.side.csv").write_text("time,value,words\n2023-12-30,20,Fear\n2023-12-31,70,Greed\n")
    job = tmp_path / "job.json"
    columns = ["fear.value lag 1h"]
    job.write_text(json.dumps({"data": {"columns": columns}, "model": {"lookback": 30}}))
    code, report = run(capsys, "--job", str(job), "--data", str(folder))
    assert code == 0 and report["inputs"][-1:] == columns
    about = {"symbols": [], "timeframe": "", "further": ["value"], "holds": [], "synthetic": False}
    assert about.items() <= report["files"][-1].items()
    plan = read_plan(report["plan"].encode())
    assert [file.file for file in plan.files][-1] == "fear.side.csv"
    assert plan.symbols["BBB"].files == ("BBB_1m.parquet", "fear.side.csv")
    for name in ("AAA_1m.parquet", "BBB_1m.parquet"):
        (folder / name).unlink()
    code, report = run(capsys, "--describe", "--data", str(folder))
    assert code == 0 and [file["file"] for file in report["files"]] == ["fear.side.csv"]
