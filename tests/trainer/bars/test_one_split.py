"""Series that one model trains on are split at the same instants, and no label of any reads past the next of
them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.jobs import job_of, with_settings
from trainer.bars.document import DataPlan, read_plan
from trainer.bars.job_plan import folder_of, plan_data, plans_of
from trainer.base.errors import DataError
from trainer.data.read.candles import Candles
from trainer.data.read.reading import CandleFolder, read_parts
from trainer.data.read.writing import write_candles
from trainer.job.job import Job

JOBS = {
    "windows": job_of(lookback=20, horizon=3, batch=64, folds=2, pooled=True),
    "chunks": job_of(
        model="tcn", blocks=2, width=4, chunk=64, batch=2, horizon_sessions=0, test_fraction=0.3, pooled=True
    ),
}


def planned(job: Job, folder: Path) -> tuple[DataPlan, Any]:
    found = folder_of(job, folder, scratch=folder)
    return plan_data(job, found), found


@pytest.mark.parametrize("name", JOBS)
def test_one_series_together_is_split_as_by_itself(name, tmp_path, make_candles):
    timeframe = "1m" if name == "windows" else "1h"
    made = make_candles(3000, drop=[700, 701, 1500], timeframe=timeframe)
    write_candles(tmp_path / f"AAA_{timeframe}.parquet", [made])
    pooled, single = (
        planned(with_settings(JOBS[name], pooled=value), tmp_path)[0].symbols for value in (True, False)
    )
    assert pooled == single


@pytest.mark.parametrize("name", JOBS)
def test_no_label_reads_past_the_next_span_of_any_series(name, tmp_path, make_candles):
    timeframe = "1m" if name == "windows" else "1h"
    late = make_candles(3000, symbol="LATE", seed=1, drop=range(900), timeframe=timeframe)
    holes = make_candles(
        3000,
        symbol="HOLES",
        seed=2,
        drop=range(1200, 3000, 31 if name == "windows" else 400),
        timeframe=timeframe,
    )
    for candles in (make_candles(2700, timeframe=timeframe), late, holes):
        write_candles(tmp_path / f"{candles.symbol}_{timeframe}.parquet", [candles])
    job = JOBS[name]
    plan, folder = planned(job, tmp_path)
    assert not plan.refused and len(plan.symbols) == 3
    assert read_plan(plan.to_bytes()) == plan
    times: dict[tuple[int, str], list[tuple[int, int]]] = {}
    for symbol, entry in plan.symbols.items():
        candles = read_parts(symbol, plan.timeframe, folder.parts(symbol))
        for fold, one in enumerate(plans_of(candles, job, entry)):
            for span, bars in one.bars.items():
                first, last = candles.timestamp[bars[0]], candles.timestamp[one.ends[bars].max()]
                times.setdefault((fold, span), []).append((int(first), int(last)))
    for fold in range(job.data.folds):
        for older, newer in (("train", "validation"), ("validation", "test")):
            assert max(last for _, last in times[fold, older]) < min(first for first, _ in times[fold, newer])
    if job.data.folds > 1:
        assert max(last for _, last in times[0, "test"]) < min(first for first, _ in times[1, "test"])
    assert len({str(dict(entry.target)) for entry in plan.symbols.values()}) == 1


def test_pooled_series_share_the_shortest_chosen_target(tmp_path, make_candles):
    for symbol, bars in (("LONG", 12000), ("SHORT", 4000)):
        write_candles(
            tmp_path / f"{symbol}_1h.parquet",
            [make_candles(12000, symbol=symbol, drop=range(12000 - bars), timeframe="1h")],
        )
    job = with_settings(JOBS["chunks"], test_fraction=0.15)
    each = {
        symbol: entry.target
        for symbol, entry in planned(with_settings(job, pooled=False), tmp_path)[0].symbols.items()
    }
    both = planned(job, tmp_path)[0].symbols
    assert each["LONG"]["horizon_sessions"] > both["SHORT"].target["horizon_sessions"]
    assert both["LONG"].target == both["SHORT"].target


def test_a_series_without_bars_in_a_span_is_refused(tmp_path, make_candles):
    job = JOBS["windows"]
    write_candles(tmp_path / "AAA_1m.parquet", [make_candles(3000)])
    write_candles(tmp_path / "NEW_1m.parquet", [make_candles(3000, symbol="NEW", drop=range(2600))])
    plan, _ = planned(job, tmp_path)
    assert list(plan.symbols) == ["AAA"]
    assert (
        plan.refused["NEW"].what == "NEW has no bar in train"
        and "split at one time" in plan.refused["NEW"].why
    )


def test_a_batch_may_be_larger_than_one_series_but_not_all(tmp_path, make_candles):
    for seed, symbol in enumerate(("AAA", "BBB")):
        write_candles(tmp_path / f"{symbol}_1m.parquet", [make_candles(1000, symbol=symbol, seed=seed)])
    job = job_of(lookback=20, batch=900, pooled=True)
    assert len(planned(job, tmp_path)[0].symbols) == 2
    with pytest.raises(DataError, match="batch 1900 is larger than the .* training windows of all series"):
        planned(with_settings(job, batch=1900), tmp_path)


@pytest.mark.parametrize("unread", [["BAD"], ["AAA", "BAD"]])
def test_an_unreadable_series_is_refused_and_the_others_planned(tmp_path, make_candles, monkeypatch, unread):
    for number, symbol in enumerate(("AAA", "BAD")):
        write_candles(tmp_path / f"{symbol}_1m.parquet", [make_candles(3000, symbol=symbol, seed=number)])
    folder, read = folder_of(JOBS["windows"], tmp_path, scratch=tmp_path), CandleFolder.read

    def failing(self: CandleFolder, symbol: str) -> Candles:
        if symbol in unread:
            raise DataError(f"{symbol} has bars that go backwards", why="", do="")
        return read(self, symbol)

    monkeypatch.setattr(CandleFolder, "read", failing)
    if len(unread) == 2:
        with pytest.raises(DataError, match="none of the 2 symbols"):
            plan_data(JOBS["windows"], folder)
        return
    plan = plan_data(JOBS["windows"], folder)
    assert list(plan.symbols) == ["AAA"] and plan.refused["BAD"].what == "BAD has bars that go backwards"


@pytest.mark.parametrize("kind", ["pooled", "panel"])
@pytest.mark.parametrize("bars", [1, 100, 256, 257, 258])
def test_series_as_short_as_the_warm_up_are_refused(kind, bars, tmp_path, make_candles):
    for symbol in ("AAA", "BBB"):
        write_candles(tmp_path / f"{symbol}_1m.parquet", [make_candles(bars, symbol=symbol)])
    with pytest.raises(DataError, match="bars"):
        planned(job_of(lookback=2, horizon=1, batch=1, **{kind: True}), tmp_path)


def test_a_test_fraction_below_one_bar_is_refused(tmp_path, make_candles):
    for symbol in ("AAA", "BBB"):
        write_candles(tmp_path / f"{symbol}_1m.parquet", [make_candles(700, symbol=symbol)])
    with pytest.raises(DataError) as refused:
        planned(job_of(pooled=True, test_fraction=0.001), tmp_path)
    assert "888 bars after the warm-up" in refused.value.what
    assert "test_fraction" in refused.value.do
