"""Reading ahead: the sources of the next pieces, for whoever asks for them, and never for nothing."""

from __future__ import annotations

from concurrent.futures import Future

from tests.pieces import piece
from trainer.job.pieces.piece import Piece
from trainer.train.workers.helpers import Reading
from trainer.train.workers.staging import Staging


class Reader:
    """Begins to read what it is asked for."""

    def __init__(self) -> None:
        self.begun: list[str] = []

    def __call__(self, piece: Piece) -> Reading:
        self.begun.append(piece.source)
        return Reading(source=Future(), foreseen=Future())


def test_each_source_is_read_once_and_claimed_once():
    reader = Reader()
    staging = Staging(reader)
    staging.stage([piece("A-USD"), piece("B-USD")])
    staging.stage([piece("B-USD"), piece("A-USD")])
    assert reader.begun == ["A-USD", "B-USD"]
    assert staging.claim("A-USD") is not None
    assert staging.claim("A-USD") is None and staging.claim("") is None
    assert staging.claim("B-USD") is not None


def test_unwanted_sources_are_dropped_and_claimed_ones_kept():
    reader = Reader()
    staging = Staging(reader)
    staging.stage([piece("A-USD"), piece("B-USD"), piece("C-USD")])
    claimed = staging.claim("A-USD")
    dropped = staging.claim("B-USD")
    staging.stage([piece("B-USD")])
    again = staging.claim("B-USD")
    assert claimed is not None and not claimed.source.cancelled()
    assert dropped is not again and staging.claim("C-USD") is None
    staging.stage([piece("D-USD")])
    staging.stage([])
    assert staging.claim("D-USD") is None
    assert reader.begun == ["A-USD", "B-USD", "C-USD", "B-USD", "D-USD"]
