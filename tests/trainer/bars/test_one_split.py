"""Series that one model trains on are split at the same instants, and no label of any reads past the next of
them.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.jobs import job_of, with_settings
from trainer.bars.document import read_plan
from trainer.bars.job_plan import plans_of
from trainer.base.errors import DataError
from trainer.data.read.reading import read_parts

JOBS = {
    "windows": job_of(lookback=20, horizon=3, batch=64, folds=2, pooled=True),
    "chunks": job_of(
        model="tcn", blocks=2, width=4, chunk=64, batch=2, horizon_sessions=0, test_fraction=0.3, pooled=True
    ),
}


@pytest.mark.parametrize("embargo", [0, 80])
@pytest.mark.parametrize("fraction", [0.08, 0.3])
def test_k_folds_of_one_series_together_are_those_of_itself(embargo, fraction, planned, make_candles):
    """Also a validation that follows the test: it keeps its share after what is purged."""
    keys = {"split": "kfold", "folds": 4, "embargo": embargo, "validation_fraction": fraction}
    job = with_settings(JOBS["windows"], **keys, features=["log_return_60"])
    pooled = planned(job, make_candles(3000))[0].symbols
    assert pooled == planned(with_settings(job, pooled=False))[0].symbols


def test_a_refusal_says_where_a_validation_after_the_test_is(planned, make_candles):
    keys = {"split": "kfold", "folds": 3, "validation_fraction": 0.08, "features": ["log_return_5"]}
    job = with_settings(JOBS["windows"], **keys)
    short = make_candles(250, symbol="SHORT", seed=1)
    said = "test begins at 2024-01-01T00:05:00Z, validation follows it until 2024-01-01T0"
    assert said in planned(job, make_candles(900), short)[0].refused["SHORT"].why


@pytest.mark.parametrize("name", JOBS)
def test_one_series_together_is_split_as_by_itself(name, planned, make_candles):
    made = make_candles(3000, drop=[700, 701, 1500], timeframe="1m" if name == "windows" else "1h")
    pooled = planned(JOBS[name], made)[0].symbols
    assert pooled == planned(with_settings(JOBS[name], pooled=False))[0].symbols


@pytest.mark.parametrize("name", JOBS)
def test_no_label_reads_past_the_next_span_of_any_series(name, planned, make_candles):
    timeframe, every = ("1m", 31) if name == "windows" else ("1h", 400)
    whole = make_candles(2700, timeframe=timeframe)
    late = make_candles(3000, symbol="LATE", seed=1, drop=range(900), timeframe=timeframe)
    holes = make_candles(3000, symbol="HOLES", seed=2, drop=range(1200, 3000, every), timeframe=timeframe)
    job = JOBS[name]
    plan, folder = planned(job, whole, late, holes)
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


def test_pooled_series_share_the_shortest_chosen_target(planned, make_candles):
    job = with_settings(JOBS["chunks"], test_fraction=0.15)
    long = make_candles(12000, symbol="LONG", timeframe="1h")
    short = make_candles(12000, symbol="SHORT", drop=range(8000), timeframe="1h")
    both = planned(job, long, short)[0].symbols
    each = planned(with_settings(job, pooled=False))[0].symbols
    assert each["LONG"].target["horizon_sessions"] > both["SHORT"].target["horizon_sessions"]
    assert both["LONG"].target == both["SHORT"].target


def test_a_series_without_bars_in_a_span_is_refused(planned, make_candles):
    new = make_candles(3000, symbol="NEW", drop=range(2600))
    plan, _ = planned(JOBS["windows"], make_candles(3000), new)
    assert list(plan.symbols) == ["AAA"]
    assert plan.refused["NEW"].what == "NEW has no bar in train"
    assert "split at the same times" in plan.refused["NEW"].why


def test_a_refused_series_has_no_part_in_the_split(planned, make_candles):
    job, whole = with_settings(JOBS["windows"], folds=1), make_candles(3000)
    ended = make_candles(3000, symbol="ENDED", drop=range(1500, 3000))
    plan, _ = planned(job, whole, ended)
    assert plan.refused["ENDED"].what == "ENDED has no bar in validation"
    assert plan.symbols == planned(with_settings(job, exclude="ENDED"))[0].symbols


def test_a_batch_may_be_larger_than_one_series_but_not_all(planned, make_candles):
    series = [make_candles(1000, symbol=symbol, seed=seed) for seed, symbol in enumerate(("AAA", "BBB"))]
    job = job_of(lookback=20, batch=900, pooled=True)
    assert len(planned(job, *series)[0].symbols) == 2
    with pytest.raises(DataError, match="batch 1900 is larger than the .* training windows of all series"):
        planned(with_settings(job, batch=1900))


def test_an_unreadable_series_is_refused_and_the_others_planned(planned, make_candles):
    good, bad = make_candles(3000), make_candles(3000, symbol="BAD", close=[-1.0] * 3000)
    plan, _ = planned(JOBS["windows"], good, bad)
    assert list(plan.symbols) == ["AAA"] and "is not above zero" in plan.refused["BAD"].what
    with pytest.raises(DataError, match="none of the 2 symbols"):
        planned(JOBS["windows"], replace(bad, symbol="AAA"))


@pytest.mark.parametrize("kind", ["pooled", "panel"])
@pytest.mark.parametrize("bars", [1, 100, 256, 257, 258])
def test_series_as_short_as_the_warm_up_are_refused(kind, bars, planned, make_candles):
    job = job_of(lookback=2, horizon=1, batch=1, **{kind: True})
    with pytest.raises(DataError, match="bars"):
        planned(job, make_candles(bars), make_candles(bars, symbol="BBB"))


def test_a_test_fraction_below_one_bar_is_refused(planned, make_candles):
    job = job_of(pooled=True, test_fraction=0.001)
    with pytest.raises(DataError, match="888 bars after the warm-up .*test_fraction"):
        planned(job, make_candles(700), make_candles(700, symbol="BBB"))
