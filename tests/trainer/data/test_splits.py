from __future__ import annotations

from trainer.data.splits import Span, split


def test_spans_follow_in_time_with_the_embargo_between() -> None:
    spans = split(1000, validation_fraction=0.2, test_fraction=0.1, embargo=7)
    assert spans.train == Span(start=0, stop=693)
    assert spans.validation == Span(start=700, stop=893)
    assert spans.test == Span(start=900, stop=1000)


def test_fractions_are_shares_of_the_bars_after_the_first() -> None:
    spans = split(300, validation_fraction=0.25, test_fraction=0.25, embargo=0, first=100)
    assert [(span.start, span.stop) for _, span in spans.items()] == [(100, 200), (200, 250), (250, 300)]


def test_an_embargo_larger_than_a_span_leaves_it_empty() -> None:
    spans = split(100, validation_fraction=0.1, test_fraction=0.1, embargo=50)
    assert len(spans.validation) == 0
