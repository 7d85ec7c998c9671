"""Split by time: training, validation and test spans with an embargo between them, once, walking forward, or
in k folds whose tests cover all bars.

Works on counts of bars only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

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
    """Three spans in time order, of k folds in any. At least `embargo` bars between two spans belong to none.

    `after` is the part of training after test, of k folds. It begins where no input of its bars reaches back
    into another span.
    """

    train: Span
    validation: Span
    test: Span
    after: Span = Span(start=0, stop=0)

    def items(self) -> tuple[tuple[str, Span], ...]:
        """Return the spans with their names."""
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


def purged(spans: Spans, *, reach: int, clear_of: Callable[[int], int]) -> Spans:
    """Return spans, in bars of a series, of which those after the test begin where no input of their bars is
    of bars before them, as those of `k_fold` do; spans of a walk as they are.
    """

    def begun(span: Span) -> Span:
        return Span(start=min(clear_of(span.start) + reach, span.stop), stop=span.stop)

    follows = spans.validation.start >= spans.test.stop and len(spans.validation)
    after = begun(spans.after) if len(spans.after) else spans.after
    return replace(
        spans,
        validation=begun(spans.validation) if follows else spans.validation,
        after=after if len(after) else Span(start=0, stop=0),
    )


def k_fold(
    num_bars: int,
    *,
    folds: int,
    validation_fraction: float,
    embargo: int,
    reach: int,
    first: int = 0,
    clear_of: Callable[[int], int] = lambda row: row,
) -> tuple[Spans, ...]:
    """Split bars `first` to `num_bars` into `folds` folds, by the time of their tests: purged k-fold
    cross-validation with an embargo (Lopez de Prado, Advances in Financial Machine Learning, 2018, ch. 7).

    The tests tile the bars. Validation is the `validation_fraction` of the bars right before the test; where
    there are too few, right after it. Training has the bars before and after both: labels end `embargo` bars
    before the next span, and bars after a span begin `embargo` + `reach` after it, where `reach` is how many
    bars before it the inputs of a bar go back, from the first row that carries no value of data before it
    (`clear_of`). So nothing that training or validation read is of a later span's bars, or of an earlier
    one's.

    Raises DataError if a fold keeps less than a tenth of the bars for training.
    """
    usable = max(0, num_bars - first)
    validation_bars = int(usable * validation_fraction)
    folded = []
    for fold in range(folds):
        start, stop = (first + usable * edge // folds for edge in (fold, fold + 1))
        begin, end = start, stop
        if start - first >= validation_bars:
            begin = start - validation_bars
            validation = Span(start=begin, stop=max(begin, start - embargo))
        else:
            opened = min(clear_of(stop + embargo) + reach, num_bars)
            end = min(opened + validation_bars, num_bars)
            validation = Span(start=opened, stop=end)
        after = min(clear_of(end + embargo) + reach, num_bars)
        spans = Spans(
            train=Span(start=first, stop=max(first, begin - embargo)),
            validation=validation,
            test=Span(start=start, stop=stop),
            after=Span(start=after, stop=num_bars) if after < num_bars else Span(start=0, stop=0),
        )
        if (left := len(spans.train) + len(spans.after)) < usable // 10:
            inputs = max(0, after - end - embargo)
            raise DataError(
                f"fold {fold + 1} of {folds} leaves {left} of {usable} bars to train",
                why=f"{embargo} bars around its spans are purged, and {inputs} after them are only inputs",
                do="Give more bars, lower data.folds or data.validation_fraction, or name features that look"
                " back less.",
            )
        folded.append(spans)
    return tuple(folded)
