"""Reading ahead: one symbol at a time, for whoever asks for it, and never for nothing."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.jobs import job_of
from tests.pieces import piece_of
from trainer.base.errors import DataError
from trainer.job.pieces.piece import Piece
from trainer.train.inputs.source import Source, plan_and_open, read_source
from trainer.train.inputs.staging import Staging, stages

JOB = job_of(batch=64, lookback=20, folds=2)


def _piece(symbol: str) -> Piece:
    return piece_of(JOB, symbol)


def _taken(staging: Staging, symbol: str) -> Source:
    claimed = staging.claim(symbol)
    assert claimed is not None
    return claimed.result()


class Reader:
    """Reads as a worker does, when it is let."""

    def __init__(self, folder: Path) -> None:
        self._data = plan_and_open(JOB, folder, scratch=folder)
        self.read: list[str] = []
        self.go, self.begun = threading.Event(), threading.Event()
        self.go.set()

    def __call__(self, piece: Piece) -> Source:
        self.begun.set()
        self.go.wait()
        self.read.append(piece.source)
        return read_source(piece, JOB, self._data)


@pytest.fixture
def reader(tmp_path: Path, write_candles: Any) -> Reader:
    for symbol in ("A-USD", "B-USD"):
        write_candles(tmp_path, symbol, bars=2000)
    return Reader(tmp_path)


def test_a_staged_source_is_read_once_and_claimed_once(reader):
    staging = Staging(reader)
    staging.stage(_piece("A-USD"))
    staging.stage(_piece("A-USD"))
    assert _taken(staging, "A-USD").name == "A-USD" and reader.read == ["A-USD"]
    assert staging.claim("A-USD") is None and staging.claim("") is None


def test_a_claimed_source_outlives_the_next_staging(reader):
    staging = Staging(reader)
    reader.go.clear()
    staging.stage(_piece("A-USD"))
    claimed = staging.claim("A-USD")
    staging.stage(_piece("B-USD"))
    reader.go.set()
    assert claimed is not None and claimed.result().name == "A-USD"
    assert _taken(staging, "B-USD").name == "B-USD" and reader.read == ["A-USD", "B-USD"]


def test_an_unclaimed_source_is_dropped_for_the_next(reader):
    staging = Staging(reader)
    reader.go.clear()
    staging.stage(_piece("A-USD"))
    reader.begun.wait()
    staging.stage(_piece("B-USD"))
    assert staging.claim("A-USD") is None
    reader.go.set()
    assert _taken(staging, "B-USD").name == "B-USD"
    staging.stage(_piece("A-USD"))
    staging.stage(None)
    assert staging.claim("A-USD") is None


def test_a_source_is_the_same_bit_for_bit_staged_or_not(reader, tmp_path):
    staging = Staging(reader)
    staging.stage(_piece("A-USD"))
    staged, plain = (
        _taken(staging, "A-USD"),
        read_source(_piece("A-USD"), JOB, plan_and_open(JOB, tmp_path, scratch=tmp_path)),
    )
    assert staged.origin.made == plain.origin.made
    assert staged.folds.keys() == plain.folds.keys() == {1, 2}
    for fold in staged.folds:
        (one,), (other,) = staged.folds[fold].series, plain.folds[fold].series
        for name in ("rows_TF", "mean_F", "std_F"):
            assert torch.equal(getattr(one, name), getattr(other, name))
        assert torch.equal(one.train_labels_TK.nan_to_num(-1), other.train_labels_TK.nan_to_num(-1))
        assert all(torch.equal(one.starts[span], other.starts[span]) for span in one.starts)


def test_an_error_of_staging_is_raised_on_claim(tmp_path):
    def read(piece: Piece) -> Source:
        raise DataError(f"{piece.source} has 3 bars", do="Bring more.")

    staging = Staging(read)
    staging.stage(_piece("A-USD"))
    with pytest.raises(DataError, match="A-USD has 3 bars"):
        _taken(staging, "A-USD")
    assert staging.claim("A-USD") is None


@pytest.mark.parametrize(
    ("kind", "num_workers", "expected"), [("cuda", 8, True), ("cpu", 8, False), ("cpu", 7, True)]
)
def test_workers_read_ahead_where_a_gpu_trains_or_a_core_is_free(kind, num_workers, expected):
    assert stages(kind=kind, num_workers=num_workers, cores=8) == expected
