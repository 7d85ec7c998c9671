"""Ranks evaluate a model together with the outputs of one process, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.planted import planted_panel
from tests.trainer.train.inputs.test_panel_rows import job_with, prepared
from tests.trainer.train.ranks.ranks import TwoRanks
from trainer.job.job import Job
from trainer.train.evaluate.scores import Outputs, outputs_by_span
from trainer.train.packs.pack import new_model
from trainer.train.piece import run_of
from trainer.train.predict.readers import Evaluate, outputs_of
from trainer.train.ranks.group import Ranks
from trainer.train.ranks.validation import shared_outputs, shares_of_series

TCN = {"model": "tcn", "width": 4, "blocks": 2, "dilation_cap": 2, "chunk": 8}


def scored(job: Job, evaluate: Evaluate) -> tuple[Outputs, int]:
    """Return the outputs of an untrained model on a panel, and on how many windows or chunks this process ran
    it.
    """
    data, ran = prepared(planted_panel(0, series=24, dates=260), job), list[int]()
    model = new_model(run_of(data, job, model="m", seed=0).member, job)
    model.register_forward_hook(lambda network, arguments, outputs: ran.append(len(outputs)))
    return outputs_by_span(model, data, job, evaluate), sum(ran)


def scored_on_rank(ranks: Ranks, job: Job) -> tuple[Outputs, int]:
    """Return `scored` of one of two ranks."""
    return scored(job, shared_outputs(ranks, job.target.outputs))


@pytest.mark.parametrize("keys", [{}, TCN], ids=["lstm", "tcn"])
def test_ranks_share_the_evaluation_for_the_scores(keys: dict[str, Any], two_ranks: TwoRanks):
    job = job_with(**keys)
    alone, whole = scored(job, outputs_of)
    parts = two_ranks(scored_on_rank, job)
    for shared, ran in parts:
        assert 0 < ran < 0.75 * whole
        for span, outputs in alone.items():
            assert len(outputs) == 24
            assert all(np.array_equal(one, other) for one, other in zip(outputs, shared[span], strict=True))
    assert sum(ran for _, ran in parts) == whole


@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=6),
    batch=st.integers(1, 9),
    ranks=st.integers(1, 9),
)
@settings(deadline=None, max_examples=60)
def test_ranks_evaluate_every_output_once_in_whole_batches(sizes, batch, ranks):
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
