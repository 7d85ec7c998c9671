"""Order and places of pieces: longest first, and pieces of a source preferably on the worker that holds its
rows.

Owns only the choice: no process, no file. Used by `train.workers.supervisor` for models, and by
`node.command_run` for the pieces that a node's agent starts.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from functools import partial
from itertools import islice

from trainer.job.pieces.piece import Piece

# A piece with this share of the longest estimate may be taken first: it lengthens the job by at most a tenth
# of one model, and saves reading a source.
NEARLY = 0.9


class PieceQueue:
    """Pieces that have not begun yet."""

    def __init__(self, pieces: Iterable[Piece]) -> None:
        self._pieces = sorted(pieces, key=_order)
        self._sources = Counter(piece.source for piece in self._pieces)  # 10,000 pieces: no scan for each

    def __len__(self) -> int:
        return len(self._pieces)

    @property
    def pieces(self) -> list[Piece]:
        """Return the pieces, longest first."""
        return list(self._pieces)

    def peek(
        self,
        *,
        held: Collection[str] = (),
        staged: Collection[str] = (),
        elsewhere: Collection[str] = (),
    ) -> Piece:
        """Return the next piece for a worker with a free place. Raises IndexError when none is left.

        Of the pieces with nearly the longest estimate: one whose source the worker holds, else one of a
        source that was staged for it, else one of a source that no other worker holds or stages
        (`elsewhere`), else the longest. So no piece waits for a busy worker while another is free: one held
        elsewhere is taken if no other is as long.
        """
        longest = self._pieces[0]
        end = bisect_right(self._pieces, -NEARLY * longest.estimate, key=_shortness)
        for wished in (held, staged):
            left = {source for source in wished if self._sources[source]}
            if left and (own := self._first(end, partial(_is_of, left))):
                return own
        return self._first(end, lambda piece: piece.source not in elsewhere) or longest

    def _first(self, end: int, suits: Callable[[Piece], bool]) -> Piece | None:
        return next((piece for piece in islice(self._pieces, end) if suits(piece)), None)

    def take(
        self,
        *,
        held: Collection[str] = (),
        staged: Collection[str] = (),
        elsewhere: Collection[str] = (),
    ) -> Piece:
        """Remove and return what `peek` returns."""
        piece = self.peek(held=held, staged=staged, elsewhere=elsewhere)
        self.remove(piece)
        return piece

    def ahead(self, count: int, *, held: Collection[str], elsewhere: Collection[str]) -> list[Piece]:
        """Return the pieces that a worker would take next if it were to get `count` of other sources."""
        taken, known = list[Piece](), {*held, *elsewhere}
        while len(self) and len(taken) < count:
            piece = self.peek(held=held, elsewhere=known)
            if piece.source in known:
                break
            self.remove(piece)
            taken.append(piece)
            known.add(piece.source)
        for piece in taken:  # a copy of 10,000 pieces takes 10 to 50 ms, at each look of each busy worker
            self.put(piece)
        return taken

    def put(self, piece: Piece) -> None:
        """Add a piece that is to begin again."""
        insort(self._pieces, piece, key=_order)
        self._sources[piece.source] += 1

    def remove(self, piece: Piece) -> None:
        """Take out a piece. Raises ValueError if it is not there."""
        place = bisect_left(self._pieces, _order(piece), key=_order)
        del self._pieces[self._pieces.index(piece, place)]
        self._sources[piece.source] -= 1

    def has(self, source: str) -> bool:
        """Return whether a piece of the source is left."""
        return self._sources[source] > 0


def places_on(devices: int, gpus: float) -> list[tuple[int, ...]]:
    """Return the GPUs of each place, where a piece gets so many, or such a share of one; 0: all.

    [] if a piece takes more GPUs than there are. Places that share a GPU are apart in the list, so that the
    first pieces are spread over all GPUs.
    """
    if not gpus:
        return [tuple(range(devices))]
    if gpus >= 1:
        each = int(gpus)
        return [tuple(range(first, first + each)) for first in range(0, devices - each + 1, each)]
    return [(device,) for _ in range(math.floor(1 / gpus + 1e-9)) for device in range(devices)]


def _shortness(piece: Piece) -> float:
    return -piece.estimate


def _is_of(sources: Collection[str], piece: Piece) -> bool:
    return piece.source in sources


def _order(piece: Piece) -> tuple[float, str]:
    return -piece.estimate, piece.name
