"""Shares of ranks, over sizes that they don't divide."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.train.packs.layout import slices_of
from trainer.train.ranks.agreement import MOST_STEPS, steps_until_next
from trainer.train.ranks.sharing import share, shares_of_series

COUNTS = st.integers(0, 40)


@given(count=st.integers(0, 300), ranks=st.integers(1, 16), micro_batch=st.integers(1, 50))
@settings(deadline=None, max_examples=60)
def test_ranks_take_every_row_once_in_order_and_about_as_many_each(count, ranks, micro_batch):
    shares = [share(count, rank=rank, ranks=ranks) for rank in range(ranks)]
    assert [row for part in shares for row in part] == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    for part in shares:
        least = math.ceil(math.ceil(count / ranks) / micro_batch)  # of the rank with the most rows
        slices = slices_of(part, micro_batch)
        assert slices, "a rank without rows takes part in the exchange all the same"
        assert len(slices_of(part, micro_batch, least=least)) == max(1, least), (
            "where weights are divided, in every forward's"
        )
        assert [row for rows, counts in slices if counts for row in rows] == list(part)
        assert max(len(rows) for rows, _ in slices) <= micro_batch


@given(sizes=st.lists(COUNTS, min_size=1, max_size=6), batch=st.integers(1, 9), ranks=st.integers(1, 9))
@settings(deadline=None, max_examples=60)
def test_every_output_of_a_validation_is_evaluated_once_and_no_batch_is_divided(sizes, batch, ranks):
    units = [np.arange(size) // batch for size in sizes]
    seen: list[tuple[int, int]] = []
    loads = []
    for rank in range(ranks):
        slices = shares_of_series(units, rank=rank, ranks=ranks)
        bars = [(series, bar) for series, one in enumerate(slices) for bar in range(one.start, one.stop)]
        loads.append(len({(series, int(units[series][bar])) for series, bar in bars}))
        seen += bars
    assert seen == [(series, bar) for series, size in enumerate(sizes) for bar in range(size)]
    assert sum(loads) == sum(len(set(one.tolist())) for one in units)  # none is on two ranks
    assert max(loads) - min(loads) <= 1


def test_agreement_is_about_twice_a_second_however_fast_steps_are():
    assert steps_until_next(1, elapsed=3.0) == 1
    assert (
        steps_until_next(8, elapsed=0.01) == 16
    )  # at most twice as many as before: one slow step may have been chance
    assert steps_until_next(16, elapsed=1.0) == 8
    assert steps_until_next(MOST_STEPS, elapsed=0.0) == MOST_STEPS
