"""Folds of a symbol: what they share, what each has of its own, and what is refused by the name of the
symbol.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.jobs import job_of, with_settings
from tests.nightly import others_nightly
from trainer.bars.document import read_plan
from trainer.bars.symbol_plan import plan_folds
from trainer.base.errors import DataError, UsageError
from trainer.data.feature_names import WARMUP
from trainer.data.read.candles import Candles
from trainer.data.read.reading import read_candles
from trainer.data.read.writing import write_candles
from trainer.job.job import Job
from trainer.train.inputs.rows import SymbolData, inputs_of, prepare, prepare_folds
from trainer.train.inputs.series import PieceData
from trainer.train.inputs.source import plan_and_open, read_source
from trainer.train.inputs.survey import survey


def folds_of(candles: Candles, job: Job) -> tuple[SymbolData, ...]:
    return prepare_folds(candles, job, plan_folds(candles, job), inputs_of(candles, job))


JOB = job_of(lookback=20, horizon=3, batch=64, folds=2)


def test_folds_share_their_rows_and_scale_by_their_own_training(make_candles) -> None:
    candles = make_candles(3000)
    first, last = folds_of(candles, JOB)
    assert first.rows_TF.data_ptr() == last.rows_TF.data_ptr()
    assert not torch.equal(first.mean_F, last.mean_F)
    assert set(first.starts["train"].tolist()) < set(last.starts["train"].tolist())
    assert first.starts["test"].max() < last.starts["test"].min()


def test_the_last_fold_is_the_split_of_a_job_without_folds(make_candles) -> None:
    candles = make_candles(3000)
    *_, last = folds_of(candles, with_settings(JOB, folds=4))
    (only,) = folds_of(candles, with_settings(JOB, folds=1))
    whole = prepare(candles, JOB)
    for found in (last, only):
        assert all(torch.equal(found.starts[name], whole.starts[name]) for name in whole.starts)
        assert torch.equal(found.mean_F, whole.mean_F) and torch.equal(found.rows_TF, whole.rows_TF)


def test_labels_of_a_fold_end_before_its_test(make_candles) -> None:
    plans = plan_folds(make_candles(4000), with_settings(JOB, folds=4))
    ends = [{name: starts.max() + 19 + 3 for name, starts in plan.starts.items()} for plan in plans]
    for plan, end in zip(plans, ends, strict=True):
        assert end["train"] < plan.spans.validation.start and end["validation"] < plan.spans.test.start
    for before, after in zip(plans, plans[1:], strict=False):
        assert after.spans.test.start == before.spans.test.stop
        assert after.spans.train.start == before.spans.train.start


def test_a_volatility_model_has_folds_of_one_horizon(make_candles) -> None:
    job = job_of(
        model="tcn", blocks=2, width=4, chunk=64, folds=2, batch=2, test_fraction=0.3, validation_fraction=0.1
    )
    folds = folds_of(make_candles(40 * 24 * 3, timeframe="1h"), job)
    assert len({fold.target for fold in folds}) == 1 and folds[0].target.options() == (folds[0].target,)
    assert folds[0].rows_TF.data_ptr() == folds[1].rows_TF.data_ptr()
    assert folds[0].starts["test"].max() < folds[1].starts["test"].min()


@pytest.mark.parametrize(
    ("bars", "settings", "said"),
    [
        (100, {}, "AAA has 100 bars"),
        (700, {"batch": 512}, "batch 512 is larger than the 221 training windows of fold 1 of AAA"),
        (700, {"batch": 512, "folds": 1}, "batch 512 is larger than the [0-9]+ training windows of AAA"),
        (420, {"folds": 4, "embargo": 30}, "AAA: 4 folds leave"),
    ],
)
def test_too_few_bars_are_refused_by_symbol(make_candles, bars, settings, said) -> None:
    with pytest.raises(DataError, match=said):
        plan_folds(make_candles(bars), with_settings(JOB, **settings))


def test_a_feature_that_is_not_finite_is_named(make_candles, monkeypatch) -> None:
    from trainer.data.features import compute_inputs
    from trainer.train.inputs import rows as prepared

    def broken(*arguments: Any, **settings: Any) -> torch.Tensor:
        rows_TF = compute_inputs(*arguments, **settings)
        rows_TF[700, 0] = np.nan
        return rows_TF

    monkeypatch.setattr(prepared, "compute_inputs", broken)
    with pytest.raises(DataError, match="log_return_1 of AAA is not finite at 2024-01-01T11:40:00Z"):
        folds_of(make_candles(3000), JOB)


def test_a_constant_feature_is_scaled_to_zero(make_candles) -> None:
    candles = make_candles(3000)
    (only,) = folds_of(replace(candles, volume=np.full(3000, 7.0)), with_settings(JOB, folds=1))
    constant = only.rows_TF[WARMUP:].std(0) == 0
    assert constant.any() and (only.std_F[constant] == 1).all()
    assert torch.isfinite((only.rows_TF[WARMUP:] - only.mean_F) / only.std_F).all()


def test_too_many_folds_are_refused_before_data_is_read() -> None:
    with pytest.raises(UsageError, match="test_fraction"):
        job_of(folds=5)


K_FOLD = with_settings(
    JOB, folds=4, split="kfold", features=["log_return_5", "bar_range"], validation_fraction=0.1
)


def wild(candles: Candles, start: int, stop: int) -> Candles:
    """Return the candles with other prices and volumes in bars `start` to `stop`."""
    at = slice(start, stop)
    changed = {name: getattr(candles, name).copy() for name in ("open", "high", "low", "close", "volume")}
    noise = np.exp(np.random.default_rng(1).normal(0, 0.2, len(changed["close"][at])))
    for name in ("open", "high", "low", "close"):
        changed[name][at] *= noise
    changed["volume"][at] *= 9
    return replace(candles, **changed)


def trained_on(data: SymbolData) -> tuple[torch.Tensor, ...]:
    """Return all that the training of a fold reads: scaled windows of training, labels, scaler."""
    starts = data.starts["train"]
    rows = (starts[:, None] + torch.arange(data.bars_seen)).unique()
    scaled = (data.rows_TF[rows] - data.mean_F) / data.std_F
    labels = data.train_labels_TK[starts + data.bars_seen - 1]
    return starts, scaled, labels, data.mean_F, data.std_F


@pytest.mark.parametrize("span", ["test", "validation"])
def test_nothing_that_a_k_fold_trains_on_is_of_its_other_spans(make_candles, span) -> None:
    candles = make_candles(1500)
    for number, fold in enumerate(folds_of(candles, K_FOLD)):
        held_out = getattr(fold.spans, span)
        other = folds_of(wild(candles, held_out.start, held_out.stop), K_FOLD)[number]
        assert not torch.equal(
            fold.rows_TF[held_out.start : held_out.stop], other.rows_TF[held_out.start : held_out.stop]
        )
        for one, same in zip(trained_on(fold), trained_on(other), strict=True):
            assert torch.equal(one, same)


@pytest.mark.parametrize(
    "entry", ["funding", "fear lag 0d age 9d", "log_return_60 of TWO", "log_volatility_15@5m of TWO"]
)
def test_no_column_value_is_carried_from_test_to_training(entry: str, tmp_path: Path, make_candles) -> None:
    """Cells, rows of side files and bars of other symbols whose time is in the test span are changed."""
    candles, other = make_candles(3000), make_candles(5000, symbol="TWO", seed=2)
    other = replace(other, timestamp=other.timestamp - 2000 * 60 * 10**9)  # its features begin before
    cells = np.where(np.arange(3000) % 90 == 7, np.arange(3000), np.nan)
    fear = np.arange(0, 3000, 90)
    job = with_settings(K_FOLD, columns=[entry], features=["none"], symbols=["AAA"])

    def folds(start: int, stop: int) -> tuple[SymbolData, ...]:
        """Return the folds with other values from bar `start` to `stop`."""
        inside = (np.arange(3000) >= start) & (np.arange(3000) < stop)
        one = replace(candles, columns={"funding": np.where(inside, cells + 5000, cells)})
        write_candles(tmp_path / "AAA_1m.parquet", [one])
        write_candles(tmp_path / "TWO_1m.parquet", [wild(other, start + 2000, stop + 2000)])
        lines = [f"{candles.timestamp[row]},{row + 5000 * inside[row]}" for row in fear]
        (tmp_path / "fear.side.csv").write_text("\n".join(["time,value", *lines]))
        (read,) = read_candles(tmp_path, symbols=["AAA"], columns=job.data.columns).values()
        return folds_of(read, job)

    for number, fold in enumerate(folds(0, 0)):
        test = fold.spans.test
        changed = folds(test.start, test.stop)[number]
        assert not torch.equal(fold.rows_TF[test.start : test.stop], changed.rows_TF[test.start : test.stop])
        for one, same in zip(trained_on(fold), trained_on(changed), strict=True):
            assert torch.equal(one, same)


def folds_with_others(
    whole: dict[str, Candles], job: Job, folder: Path, begin: int = 0, end: int = 0
) -> list[PieceData]:
    """Return the folds of several series with other bars of all from an instant to another."""
    for symbol, candles in whole.items():
        rows = np.searchsorted(candles.timestamp, [begin, end])
        write_candles(folder / f"{symbol}_1m.parquet", [wild(candles, *map(int, rows))])
    data = plan_and_open(job, folder, scratch=folder)
    assert read_plan(data.plan.to_bytes()) == data.plan
    pieces = survey(data.plan.decided(job), data.plan).pieces
    return [read_source(piece, data.plan.decided(job), data).folds[piece.fold] for piece in pieces]


@pytest.mark.parametrize(
    ("kind", "span"),
    others_nightly(product(("pooled", "panel"), ("test", "validation")), {("panel", "test")}.__contains__),
)
def test_k_folds_of_several_series_keep_out_each_test_span(
    kind: str, span: str, tmp_path: Path, make_candles
) -> None:
    """One has holes, one begins late: all are split at the same instants, and purged in bars of their own."""
    whole = {
        "AAA": make_candles(1500),
        "BBB": make_candles(1500, symbol="BBB", seed=1, drop=range(300, 1500, 97)),
        "CCC": make_candles(1500, symbol="CCC", seed=2, drop=range(200)),
    }
    keys: dict[str, Any] = {kind: True, "symbols": [*whole], "calendar": "24x7", "folds": 3}
    job = with_settings(K_FOLD, **keys)

    folds = partial(folds_with_others, whole, job, tmp_path)
    tested = dict.fromkeys(whole, 0)
    for number, fold in enumerate(folds()):
        held = [(one.candles, getattr(one.spans, span)) for one in fold.series]
        begin = min(int(candles.timestamp[its.start]) for candles, its in held)
        end = max(int(candles.timestamp[its.stop - 1]) for candles, its in held) + 1
        changed = folds(begin, end)[number]
        for one, other in zip(fold.series, changed.series, strict=True):
            assert len(one.bars("train")) and len(one.bars("test")) and len(one.bars("validation"))
            assert not torch.equal(one.rows_TF, other.rows_TF)
            its, same = trained_on(one), trained_on(other)
            assert all(torch.equal(*pair) for pair in zip(its, same, strict=True))
            tested[one.symbol] += len(one.spans.test)
        assert len({one.spans.after.start > 0 for one in fold.series}) == 1
    assert all(1 >= count / len(whole[symbol]) > 0.98 for symbol, count in tested.items())


def test_ranks_of_a_k_fold_leave_out_the_other_series_test(tmp_path: Path, make_candles) -> None:
    """A series with few bars looks back over more dates than the others, among which it is ranked."""
    whole = {
        "AAA": make_candles(1500),
        "BBB": make_candles(1500, symbol="BBB", seed=1),
        "CCC": make_candles(1500, symbol="CCC", seed=2, drop=[row for row in range(1500) if row % 4]),
        "NEW": make_candles(1500, symbol="NEW", seed=3, drop=range(1300)),
    }
    keys: dict[str, Any] = {"panel": True, "scaler": "rank", "symbols": [*whole], "calendar": "24x7"}
    job = with_settings(K_FOLD, **keys, features=["log_return_60"], folds=3)

    folds = partial(folds_with_others, whole, job, tmp_path)
    for number, fold in enumerate(folds()):
        test = fold.series[0].spans.test
        begin, end = (int(whole["AAA"].timestamp[row]) for row in (test.start, test.stop - 1))
        changed = folds(begin, end + 1)[number]
        for one, other in zip(fold.series, changed.series, strict=True):
            its, same = trained_on(one), trained_on(other)
            assert all(torch.equal(*pair) for pair in zip(its, same, strict=True))
        assert number == 2 or len(fold.series[0].spans.after)


def test_k_folds_train_on_both_sides_and_test_every_bar_once(make_candles) -> None:
    folds = folds_of(make_candles(1500), K_FOLD)
    tested = np.concatenate([np.arange(fold.spans.test.start, fold.spans.test.stop) for fold in folds])
    assert tested.tolist() == list(range(5, 1500))  # after the warm-up
    first, middle, last = folds[0], folds[1], folds[-1]
    assert (
        first.bars("train").min() > first.spans.test.stop and last.bars("train").max() < last.spans.test.start
    )
    below, above = (
        middle.bars("train") < middle.spans.test.start,
        middle.bars("train") >= middle.spans.test.stop,
    )
    assert below.any() and above.any() and (below | above).all()
    # Purged: a label ends before the next span; a window, with what its features look back, begins after it.
    assert middle.bars("train")[below].max() + 3 < middle.spans.validation.start - 3 + 1
    assert middle.bars("train")[above].min() - 19 - 5 >= middle.spans.test.stop + 3
    assert middle.splits()["after"]["bars"] == len(middle.spans.after)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"folds": 1}, "2 or more with data.split = kfold"),
        ({"test_days": 5, "validation_days": 5}, "the tests of k folds cover all bars"),
        ({"folds": 2, "validation_fraction": 0.45}, "take 95% of the bars"),
        ({"target": "position"}, "an agent can't train in k folds"),
    ],
)
def test_settings_that_k_folds_can_not_have_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as refused:
        job_of(**{"folds": 4, "split": "kfold", **settings})
    assert said in str(refused.value)
