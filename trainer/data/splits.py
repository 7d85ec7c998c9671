"""Split by time: training, validation and test spans with an embargo between them, once or walking forward.

Works on counts of bars only.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainer.base.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Span:
    """Bars `start` to `stop`, half-open."""

    start: int
    stop: int

    def __len__(self) -> int:
        return max(0, self.stop - self.start)


@dataclass(frozen=True, kw_only=True)
class Spans:
    """Three spans in time order. At least `embargo` bars between two spans belong to none."""

    train: Span
    validation: Span
    test: Span

    def items(self) -> tuple[tuple[str, Span], ...]:
        """Return the spans with their names, oldest first."""
        return (("train", self.train), ("validation", self.validation), ("test", self.test))


def split(
    num_bars: int, *, validation_fraction: float, test_fraction: float, embargo: int, first: int = 0
) -> Spans:
    """Split bars `first` to `num_bars` by time, as `walk_forward` does with one fold."""
    (spans,) = walk_forward(
        num_bars,
        folds=1,
        validation_fraction=validation_fraction,
        test_fraction=test_fraction,
        embargo=embargo,
        first=first,
    )
    return spans


def walk_forward(
    num_bars: int,
    *,
    folds: int,
    validation_fraction: float,
    test_fraction: float,
    embargo: int,
    first: int = 0,
) -> tuple[Spans, ...]:
    """Split into `folds` expanding folds, oldest first: each trains from `first` on, and its test span
    follows the previous.

    The fractions are shares of all usable bars in each fold, so the tests of 4 folds at 0.15 cover the last
    60 %. The embargo is taken from the older span: a window belongs to the span that contains its last bar
    and its whole label, so with `embargo >= horizon` no label of one span shares a bar with the next.

    Raises DataError if the first of several folds keeps less than a tenth of the bars for training.
    """
    usable = max(0, num_bars - first)
    test_bars, validation_bars = int(usable * test_fraction), int(usable * validation_fraction)
    folded = []
    for later in reversed(range(folds)):
        stop = num_bars - later * test_bars
        test = stop - test_bars
        validation = test - validation_bars
        folded.append(
            Spans(
                train=Span(start=first, stop=max(first, validation - embargo)),
                validation=Span(start=validation, stop=max(validation, test - embargo)),
                test=Span(start=test, stop=stop),
            )
        )
    if folds > 1 and len(folded[0].train) < usable // 10:
        raise DataError(
            f"{folds} folds leave {len(folded[0].train)} of {usable} bars to train the first one",
            why=(
                f"each tests {test_fraction:g} of the bars, and the first validates {validation_fraction:g}"
                " before that"
            ),
            do="Lower data.folds or data.test_fraction.",
        )
    return tuple(folded)
