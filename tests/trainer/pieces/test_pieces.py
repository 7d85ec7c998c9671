"""Which pieces a job has, and what each is called."""

from __future__ import annotations

from trainer.job import job_of
from trainer.pieces import kind_of, pieces_of
from trainer.pieces.piece import SeriesWork


def work(symbol: str, folds: int = 1, *, bars: int = 1000) -> SeriesWork:
    windows = tuple(100 * fold for fold in range(1, folds + 1))
    return SeriesWork(symbol=symbol, bars=bars, windows=windows, visits=windows, memory_gib=0.5)


def test_a_job_has_a_piece_for_each_symbol_with_its_own_source_and_estimate():
    job = job_of(epochs=3)
    one, other = pieces_of(job, [work("A"), work("B", bars=2000)], timeframe="1m")
    assert kind_of(job).name == one.kind == "symbol"
    assert (one.name, one.title, one.series, one.source) == ("lstm-direction_A_1m", "A", ("A",), "A")
    assert (one.estimate, one.windows, other.bars, other.memory_gib) == (300, 100, 2000, 0.5)
    assert one.identity == {"model": "lstm-direction_A_1m", "piece": "A", "fold": 1, "seed": 0}


def test_folds_and_seeds_of_a_symbol_are_pieces_of_one_source_that_are_told_apart():
    pieces = pieces_of(job_of(folds=2, seeds=2, seed=3), [work("A", 2)], timeframe="1m")
    assert [piece.title for piece in pieces] == ["A f1 s3", "A f1 s4", "A f2 s3", "A f2 s4"]
    assert pieces[-1].name == "lstm-direction_A_1m_f2_s4" and pieces[-1].draws == "lstm_A_1m"
    assert {piece.source for piece in pieces} == {"A"}
    assert pieces[-1].estimate == 2 * pieces[0].estimate
