from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.base.errors import DataError
from trainer.data.splits import Span, k_fold, split, walk_forward


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


def test_folds_grow_and_their_tests_are_adjacent() -> None:
    folds = walk_forward(1100, folds=3, validation_fraction=0.1, test_fraction=0.2, embargo=5, first=100)
    assert [(fold.train.start, fold.train.stop) for fold in folds] == [(100, 395), (100, 595), (100, 795)]
    assert [(fold.validation.start, fold.validation.stop) for fold in folds] == [
        (400, 495),
        (600, 695),
        (800, 895),
    ]
    assert [(fold.test.start, fold.test.stop) for fold in folds] == [(500, 700), (700, 900), (900, 1100)]


def test_one_fold_is_the_split() -> None:
    settings = {"validation_fraction": 0.15, "test_fraction": 0.2, "embargo": 9, "first": 50}
    assert walk_forward(1000, folds=1, **settings) == (split(1000, **settings),)


def test_folds_that_leave_no_training_are_refused() -> None:
    with pytest.raises(
        DataError, match="5 folds leave 0 of 1000 bars.*Lower data.folds or data.test_fraction"
    ):
        walk_forward(1000, folds=5, validation_fraction=0.15, test_fraction=0.2, embargo=5)


def test_tests_of_k_folds_tile_the_bars_between_purged_training() -> None:
    folds = k_fold(1100, folds=4, validation_fraction=0.1, embargo=5, reach=20, first=100)
    assert [(fold.test.start, fold.test.stop) for fold in folds] == [
        (100, 350),
        (350, 600),
        (600, 850),
        (850, 1100),
    ]
    # The first test has nothing before it: validation follows, past the embargo and what inputs reach back.
    assert folds[0].validation == Span(start=375, stop=475) and folds[0].after == Span(start=500, stop=1100)
    assert folds[2].validation == Span(start=500, stop=595)
    assert (folds[2].train, folds[2].after) == (Span(start=100, stop=495), Span(start=875, stop=1100))
    assert not len(folds[3].after)


def test_the_last_of_k_folds_is_a_walk() -> None:
    *_, last = k_fold(1100, folds=4, validation_fraction=0.1, embargo=5, reach=20, first=100)
    walk = split(1100, validation_fraction=0.1, test_fraction=0.25, embargo=5, first=100)
    assert list(last.items()) == list(walk.items())


def test_k_folds_that_leave_no_training_are_refused() -> None:
    with pytest.raises(
        DataError,
        match="fold 1 of 2 leaves 6 of 100 bars to train .5 bars around its spans are purged, and 12 after",
    ):
        k_fold(100, folds=2, validation_fraction=0.1, embargo=5, reach=12)


def test_a_refused_k_fold_never_purges_fewer_than_no_bars() -> None:
    with pytest.raises(DataError, match="45 bars around its spans are purged, and 0 after them are only"):
        k_fold(100, folds=2, validation_fraction=0.1, embargo=45, reach=0)


@settings(max_examples=30, deadline=None)
@given(
    bars=st.integers(0, 3_000),
    folds=st.integers(2, 12),
    share=st.floats(0.01, 0.4),
    embargo=st.integers(0, 40),
    reach=st.integers(0, 80),
    first=st.integers(0, 300),
)
def test_k_folds_hold_their_spans_apart(bars, folds, share, embargo, reach, first) -> None:
    try:
        made = k_fold(bars, folds=folds, validation_fraction=share, embargo=embargo, reach=reach, first=first)
    except DataError:
        return
    assert [fold.test.stop for fold in made[:-1]] == [fold.test.start for fold in made[1:]]
    assert not made or (made[0].test.start, made[-1].test.stop) == (first, max(first, bars))
    for fold in made:
        spans = sorted(
            (one for one in (fold.train, fold.after, fold.validation, fold.test) if len(one)),
            key=lambda one: one.start,
        )
        for one, later in zip(spans, spans[1:], strict=False):
            assert later.start - one.stop >= embargo
            # An input of a later bar may reach into training, and a test's into validation: nothing else.
            if one is not fold.train and (later is fold.after or later is fold.validation):
                assert later.start - reach - one.stop >= embargo
        assert all(first <= one.start and one.stop <= bars for one in spans)
