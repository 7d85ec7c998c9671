"""Bars are planned once: one symbol in memory at a time, and workers get the same windows from the plan or
none.
"""

from __future__ import annotations

import gc
import json
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.jobs import job_of
from trainer.bars import symbol_plan
from trainer.bars.document import read_plan
from trainer.bars.job_plan import plans_of
from trainer.base.errors import DataError
from trainer.data.read.candles import Candles
from trainer.data.read.reading import CandleFolder
from trainer.data.read.writing import write_candles
from trainer.job.job import Job

JOBS = {
    "windows": job_of(lookback=20, horizon=3, batch=64, folds=2),
    "chunks": job_of(
        model="tcn", blocks=2, width=4, chunk=64, batch=2, horizon_sessions=0, test_fraction=0.3
    ),
}


@pytest.fixture(params=JOBS)
def job(request: pytest.FixtureRequest) -> Job:
    return JOBS[request.param]


@pytest.fixture
def data(tmp_path: Path, make_candles: Any, job: Job) -> Path:
    """Write a file of one symbol and a file of two."""
    timeframe = "1m" if job is JOBS["windows"] else "1h"
    made = [
        make_candles(3000, symbol=symbol, seed=seed, drop=[700, 701, 1500], timeframe=timeframe)
        for seed, symbol in enumerate(("AAA", "BBB", "CCC"))
    ]
    write_candles(tmp_path / f"AAA_{timeframe}.parquet", made[:1])
    write_candles(tmp_path / f"all_{timeframe}.parquet", made[1:])
    return tmp_path


def test_no_two_symbols_are_in_memory_while_a_job_is_planned(data, job, planned, monkeypatch):
    alive: list[weakref.ref[Any]] = []
    most = []
    read = CandleFolder.read

    def counted(self: CandleFolder, symbol: str) -> Candles:
        most.append(sum(found() is not None for found in alive))
        candles = read(self, symbol)
        alive.extend(weakref.ref(getattr(candles, name)) for name in ("timestamp", "close"))
        return candles

    monkeypatch.setattr(CandleFolder, "read", counted)
    gc.disable()  # what a cycle keeps is in memory, too
    try:
        plan, _ = planned(job)
    finally:
        gc.enable()
    assert list(plan.symbols) == ["AAA", "BBB", "CCC"] and most == [0, 0, 0]


def test_a_refused_symbol_is_reported(planned, make_candles):
    series = [make_candles(n, symbol=symbol) for symbol, n in (("AAA", 100), ("BBB", 3000), ("CCC", 90))]
    plan, _ = planned(JOBS["windows"], *series)
    assert list(plan.symbols) == ["BBB"]
    assert [entry.what for entry in plan.refused.values()] == ["AAA has 100 bars", "CCC has 90 bars"]
    assert plan.summary(JOBS["windows"])["refused"][0].startswith("AAA has 100 bars (one label needs")


def test_workers_derive_the_same_windows_from_the_plan(data, job, planned, monkeypatch):
    plan, folder = planned(job)
    plan = read_plan(plan.to_bytes())
    wanted = {symbol: symbol_plan.plan_folds(folder.read(symbol), job) for symbol in folder.symbols}
    for name in ("times_of", "walk_forward", "choose_target"):
        monkeypatch.setattr(symbol_plan, name, lambda *_, **__: pytest.fail("chosen again"))
    for symbol in folder.symbols:
        derived = plans_of(folder.read(symbol), job, plan.symbols[symbol])
        for one, other in zip(derived, wanted[symbol], strict=True):
            assert (one.spans, one.target, one.horizon_bars, one.ties) == (
                other.spans,
                other.target,
                other.horizon_bars,
                other.ties,
            )
            assert np.array_equal(one.labels_TK, other.labels_TK, equal_nan=True)
            assert all(np.array_equal(one.bars[span], other.bars[span]) for span in one.bars)
            assert np.array_equal(one.time.holes, other.time.holes) and np.array_equal(
                one.time.clock, other.time.clock
            )
            assert (one.chunks is None and other.chunks is None) or np.array_equal(one.chunks, other.chunks)


def test_other_bars_and_other_counts_are_refused(data, job, planned):
    plan, folder = planned(job)
    candles, entry = folder.read("AAA"), plan.symbols["AAA"]
    moved = replace(candles, close=candles.close * np.float64(1 + 1e-15))
    for other in (moved, candles.rows(0, -1)):
        with pytest.raises(DataError, match="the bars of AAA are not those that were planned"):
            plans_of(other, job, entry)
    first = entry.folds[0]
    fewer = replace(first, bars={**first.bars, "test": first.bars["test"] - 1})
    with pytest.raises(DataError, match="fold 1 of AAA has other windows than its plan"):
        plans_of(candles, job, replace(entry, folds=(fewer, *entry.folds[1:])))
    without = replace(entry, holes=())
    with pytest.raises(DataError, match="other windows than its plan"):
        plans_of(candles, job, without)


def test_a_plan_of_another_job_is_refused_with_what_differs(data, job, planned):
    plan, _ = planned(job)
    plan.check_fits(job)
    with pytest.raises(DataError, match="it has another data.validation_fraction"):
        plan.check_fits(replace(job, data=replace(job.data, validation_fraction=0.11)))
    with pytest.raises(DataError, match="it has no XXX"):
        plan.check_fits(replace(job, data=replace(job.data, symbols=("AAA", "XXX"))))


def test_a_symbols_mark_depends_on_bars_not_files(data, job, planned):
    entry = planned(job)[0].symbols["AAA"]
    assert replace(entry, files=("renamed",), rows=9999).mark == entry.mark
    assert replace(entry, sha256="0" * 64).mark != entry.mark
    assert replace(entry, horizon_bars=entry.horizon_bars + 1).mark != entry.mark


def test_a_default_batch_shrinks_to_small_data(planned, make_candles):
    small, large = make_candles(600, symbol="SMALL"), make_candles(3000, symbol="LARGE")
    job = job_of(lookback=10, hidden=4)
    plan, _ = planned(job, small, large)
    assert sorted(plan.symbols) == ["LARGE", "SMALL"]
    windows = plan.symbols["SMALL"].folds[0].num_reads
    assert 0 < windows < job.train.batch == 256
    assert f"the default batch of 256 shrinks to the training windows of SMALL ({windows})" in plan.notes
    refused, _ = planned(job_of(lookback=10, hidden=4, batch=512), small, large)
    assert list(refused.refused) == ["SMALL"] and not refused.notes


def test_a_plan_of_k_folds_is_read_again_and_followed(planned, make_candles):
    job = job_of(
        lookback=20, horizon=3, folds=6, split="kfold", features=["bar_range"], validation_fraction=0.2
    )
    plan, folder = planned(job, make_candles(1500, drop=[700, 701]))
    entry = read_plan(plan.to_bytes()).symbols["AAA"]
    assert entry == plan.symbols["AAA"] and entry.mark == plan.symbols["AAA"].mark
    orders = [fold.spans.validation.start < fold.spans.test.start for fold in entry.folds]
    assert orders == [False, False, True, True, True, True]  # the second has too few bars before its test
    for one, fold in zip(plans_of(folder.read("AAA"), job, entry), entry.folds, strict=True):
        assert one.spans == fold.spans and len(one.bars["train"]) == fold.bars["train"]
    document = json.loads(plan.to_bytes())
    spans = document["symbols"]["AAA"]["folds"][1]
    spans["after"][0] = spans["test"][0]  # would train on bars of the test
    with pytest.raises(DataError, match="the plan can't be used"):
        read_plan(json.dumps(document).encode())


@pytest.mark.parametrize("kind", ["pooled", "panel"])
def test_a_model_of_more_symbols_than_its_card_lists_is_refused(
    kind: str, planned: Any, make_candles: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    candles = [make_candles(1000, symbol=symbol) for symbol in ("AAA", "BBB")]
    planned(job_of(lookback=20, horizon=3, **{kind: True}), *candles)
    monkeypatch.setattr("trainer.bars.job_plan.MOST_SERIES", 1)
    with pytest.raises(DataError, match="one model of 2 symbols .a model's card lists 1 at most"):
        planned(job_of(lookback=20, horizon=3, **{kind: True}))
    planned(job_of(lookback=20, horizon=3))
