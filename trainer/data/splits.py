"""Splits by time: training, validation and test spans with an embargo between them. Knows counts of bars, nothing else."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Span:
    """Bars `start` to `stop`, half-open."""

    start: int
    stop: int

    def __len__(self) -> int:
        return max(0, self.stop - self.start)


@dataclass(frozen=True, kw_only=True)
class Spans:
    """Three spans in time order; at least `embargo` bars lie between one and the next and belong to none."""

    train: Span
    validation: Span
    test: Span

    def items(self) -> tuple[tuple[str, Span], ...]:
        """Return the spans with their names, oldest first."""
        return (("train", self.train), ("validation", self.validation), ("test", self.test))


def split(num_bars: int, *, validation_fraction: float, test_fraction: float, embargo: int, first: int = 0) -> Spans:
    """Split bars `first` to `num_bars` by time; the fractions are shares of these bars, and the embargo is taken from the
    older span.

    A window belongs to the span that holds its last bar and the whole of its label, so with `embargo >= horizon` no label of
    one span shares a bar with the next span.
    """
    usable = max(0, num_bars - first)
    test_start = num_bars - int(usable * test_fraction)
    validation_start = test_start - int(usable * validation_fraction)
    return Spans(
        train=Span(start=first, stop=max(first, validation_start - embargo)),
        validation=Span(start=validation_start, stop=max(validation_start, test_start - embargo)),
        test=Span(start=test_start, stop=num_bars),
    )
