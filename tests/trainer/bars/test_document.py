"""plan.json is read strictly: whatever no planning writes is one DataError."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.jobs import job_of
from trainer.bars import document
from trainer.bars.document import DataPlan, read_plan
from trainer.base.errors import DataError

JOB = job_of(lookback=20, batch=64, folds=2)


@pytest.fixture
def plan(planned: Any, make_candles: Any) -> DataPlan:
    made: DataPlan = planned(JOB, make_candles(2000, drop=[500, 502]), make_candles(100, symbol="BBB"))[0]
    return made


def test_a_plan_comes_back_as_it_was_written(plan):
    assert read_plan(plan.to_bytes()) == plan
    assert plan.symbols["AAA"].holes == ((500, 501), (501, 502)) or plan.symbols["AAA"].num_holes == 2


def test_files_that_every_symbol_reads_are_written_once(planned, make_candles):
    """With an index each symbol reads all files: of 5,000 symbols they were 25 million names."""
    made = [make_candles(900, symbol=f"S{number}", seed=number) for number in range(4)]
    plan = planned(job_of(lookback=20, batch=64, columns=("log_return_5 of index",)), *made)[0]
    content = plan.to_bytes()
    assert all(content.count(f'"{file.file}"'.encode()) == 2 for file in plan.files)
    again = read_plan(content)
    assert {name: sorted(entry.files) for name, entry in again.symbols.items()} == {
        name: sorted(entry.files) for name, entry in plan.symbols.items()
    }
    assert [len(entry.files) for entry in again.symbols.values()] == [4] * 4
    values = json.loads(content)
    values["beside"].append("unknown.parquet")
    with pytest.raises(DataError, match=r"unknown\.parquet"):
        read_plan(json.dumps(values).encode())


def at(values: Any, path: str) -> tuple[Any, Any]:
    *way, last = [int(part) if part.isdecimal() else part for part in path.split(".")]
    for part in way:
        values = values[part]
    return values, last


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("format", 3),
        ("format", True),
        ("synthetic", 0),
        ("inputs", []),
        ("timeframe", 1),
        ("timeframe", "x" * 301),
        ("files", {}),
        ("files.0.file", "../../etc/passwd"),
        ("files.0.file", ""),
        ("files.0.sha256", "0" * 63),
        ("files.0.bytes", -1),
        ("files.0.bytes", 1.0),
        ("files.0.bytes", 1 << 60),
        ("symbols", []),
        ("symbols.AAA.files.0", "unknown.parquet"),
        ("symbols.AAA.bars", 0),
        ("symbols.AAA.rows", 1),
        ("symbols.AAA.calendar", "auto"),
        ("symbols.AAA.holes", [[0, 1]]),
        ("symbols.AAA.holes", [[5, 5]]),
        ("symbols.AAA.holes", [[9, 10], [7, 8]]),
        ("symbols.AAA.holes", [[5, 1 << 40]]),
        ("symbols.AAA.holes", [5]),
        ("symbols.AAA.target", {"horizon": {"deep": 1}}),
        ("symbols.AAA.horizon_bars", 1 << 40),
        ("symbols.AAA.folds", []),
        ("symbols.AAA.folds.0.train", [9, 8]),
        ("symbols.AAA.folds.0.train", [0, 1999]),
        ("symbols.AAA.folds.0.test", [0, 10]),
        ("symbols.AAA.folds.0.bars.train", 0),
        ("symbols.AAA.folds.0.bars.train", 2000),
        ("symbols.AAA.folds.0.bars", {"train": 1}),
        ("symbols.AAA.folds.0.chunks", -1),
        ("symbols.AAA.more", 1),
        ("refused.BBB.what", None),
        ("refused.AAA", {"bars": 1, "what": "", "why": "", "do": ""}),
        ("made_for.data", 1),
        ("made_for.data", {"bars": 0}),
        ("made_for.data.columns", "close"),
        ("made_for.data.columns", [5]),
        ("made_for.data.columns", ["close=a", "close=b"]),
    ],
)
def test_a_malformed_plan_is_refused(plan, path, value):
    values = json.loads(plan.to_bytes())
    table, key = at(values, path)
    table[key] = value
    with pytest.raises(DataError, match="the plan can't be used .*Plan again"):
        read_plan(json.dumps(values).encode())


@pytest.mark.parametrize(
    "content", [b"", b"\xff", b"[]", b"{", b'{"format": NaN}', b"[" * 100_000, b'{"format": 1}']
)
def test_content_that_is_not_a_plan_is_refused(content):
    with pytest.raises(DataError, match="the plan can't be used"):
        read_plan(content)


def test_a_plan_that_would_not_be_read_is_not_written(plan, monkeypatch):
    monkeypatch.setattr(document, "LARGEST_BYTES", 100)
    with pytest.raises(DataError, match=r"the plan takes \d+ bytes, 100 are the most"):
        plan.to_bytes()
    with pytest.raises(DataError, match="more than 100 bytes"):
        read_plan(b" " * 101)


def test_a_target_that_the_job_does_not_allow_is_refused(plan):
    entry = replace(plan.symbols["AAA"], target={"horizon": 7})
    with pytest.raises(DataError, match="the plan has .'horizon': 7. for AAA"):
        entry.target_of(JOB)
