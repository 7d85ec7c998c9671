"""The pieces of a job, and their names."""

from __future__ import annotations

import pytest

from tests.jobs import job_of
from trainer.base.errors import DataError, UsageError
from trainer.job.pieces import kind_of, pieces_of
from trainer.job.pieces.piece import SeriesWork


def work(symbol: str, folds: int = 1, *, bars: int = 1000) -> SeriesWork:
    windows = tuple(100 * fold for fold in range(1, folds + 1))
    return SeriesWork(symbol=symbol, bars=bars, windows=windows, visits=windows, memory_gib=0.5)


def test_a_job_has_a_piece_for_each_symbol():
    job = job_of(epochs=3)
    one, other = pieces_of(job, [work("A"), work("B", bars=2000)], timeframe="1m")
    assert kind_of(job).name == one.kind == "symbol"
    assert (one.name, one.title, one.series, one.source) == ("lstm-direction_A_1m", "A", ("A",), "A")
    assert (one.estimate, one.windows, other.bars, other.memory_gib) == (300, 100, 2000, 0.5)
    assert one.identity == {"model": "lstm-direction_A_1m", "piece": "A", "fold": 1, "seed": 0}


def test_folds_and_seeds_of_a_symbol_share_a_source():
    pieces = pieces_of(job_of(folds=2, seeds=2, seed=3), [work("A", 2)], timeframe="1m")
    assert [piece.title for piece in pieces] == ["A f1 s3", "A f1 s4", "A f2 s3", "A f2 s4"]
    assert pieces[-1].name == "lstm-direction_A_1m_f2_s4" and pieces[-1].draws == "lstm_A_1m"
    assert {piece.source for piece in pieces} == {"A"}
    assert pieces[-1].estimate == 2 * pieces[0].estimate


def test_a_pooled_job_has_a_piece_for_each_fold_and_seed():
    job = job_of(name="mix", pooled=True, folds=2, seeds=2, epochs=3)
    pieces = pieces_of(job, [work("A", 2), work("B", 2, bars=2000)], timeframe="1m")
    assert kind_of(job).one_split and {piece.kind for piece in pieces} == {"pooled"}
    assert [piece.name for piece in pieces][:2] == [
        "lstm-direction_mix_1m_f1_s0",
        "lstm-direction_mix_1m_f1_s1",
    ]
    assert [(piece.title, piece.source) for piece in pieces][::2] == [
        ("mix f1 s0", "mix f1"),
        ("mix f2 s0", "mix f2"),
    ]
    last = pieces[-1]
    assert (last.series, last.bars, last.windows, last.estimate) == (("A", "B"), 3000, 400, 1200)
    assert last.memory_gib == 1.0


def test_a_pooled_job_may_not_have_the_name_of_a_symbol():
    with pytest.raises(DataError, match="the job and its symbol MIX have the same name"):
        pieces_of(job_of(name="mix", pooled=True), [work("A"), work("MIX")], timeframe="1m")


def test_the_last_fold_is_refitted_and_the_plan_counts_it():
    series = [SeriesWork(symbol="A", bars=1000, windows=(100, 200), visits=(110, 220), refit=300)]
    first, last = pieces_of(job_of(folds=2, epochs=3, refit=True), series, timeframe="1m")
    assert (first.refit, first.estimate) == (False, 3 * 110)
    assert (last.refit, last.estimate) == (True, 3 * 220 + 3 * 300)
    short = job_of(folds=2, epochs=3, refit=True, steps_per_epoch=1, batch=50)
    assert pieces_of(short, series, timeframe="1m")[1].estimate == 3 * (220 - 150) + 3 * 50


def test_an_ensemble_is_one_piece_of_several_networks():
    job = job_of(epochs=3, seeds=4, seed=2, ensemble=True)
    (piece,) = pieces_of(job, [work("A")], timeframe="1m")
    assert (piece.name, piece.title, piece.seed) == ("lstm-direction_A_1m", "A", 2)
    assert (piece.members, piece.estimate) == (4, 4 * 300)
    with pytest.raises(UsageError, match="train.ensemble"):
        job_of(ensemble=True)
