"""Recorded steps of plain modules. Here a recording that only runs the same function again stands for a
graph: what it reads must lie in buffers that a step fills, as a graph's does. `test_on_a_gpu` has real ones.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest
import torch

from tests.jobs import job_of, with_settings
from trainer.models.layers import _kept_numbers
from trainer.train.packs import sequential
from trainer.train.packs.pack import Member
from trainer.train.packs.recorded import EAGER_STEPS
from trainer.train.packs.sequential import SequentialPack

JOB = job_of(hidden=4, lookback=6, batch=16, dropout=0.2, ema=0.9, learning_rate=1e-2)


class Again:
    """A graph whose replay runs the function."""

    def __init__(self, run: Callable[[], None]) -> None:
        self.replay = run


class Recording:
    recorded = 0

    def call(self, step: Callable[[], torch.Tensor]) -> torch.Tensor:
        return step()

    def graph_of(self, run: Callable[[], None]) -> Again:
        Recording.recorded += 1
        return Again(run)


def member(name: str, seed: int) -> Member:
    generator = torch.Generator().manual_seed(seed)
    rows_TF = torch.randn(100, 3, generator=generator)
    one_F = torch.ones(3)
    return Member(
        name=name, rows_TF=rows_TF, labels_TK=(rows_TF[:, :1] > 0).float(), mean_F=0 * one_F, std_F=one_F
    )


def losses(pack: SequentialPack, steps: range) -> torch.Tensor:
    """Return the losses of steps; each fifth batch is short, and the rate falls from step to step."""
    generator, told = torch.Generator().manual_seed(7), []
    batches = [torch.randint(0, 90, (16 if step % 5 else 9,), generator=generator) for step in range(20)]
    for step in steps:
        for number in range(2):
            pack.set_learning_rate(number, 1e-2 / (1 + step))
        told.append(pack.step([True, step != 8], [batches[step], batches[step]]))
    return torch.stack(told)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequential, "may_record", lambda _: True)
    monkeypatch.setattr(sequential, "Recording", Recording)
    Recording.recorded = 0


def test_recorded_steps_are_those_that_come(monkeypatch, graphs):
    members = [member("a", 0), member("b", 1)]
    recorded = SequentialPack(members, JOB)
    told = losses(recorded, range(20))
    assert Recording.recorded == 2
    monkeypatch.undo()
    torch.testing.assert_close(told, losses(SequentialPack(members, JOB), range(20)), equal_nan=True)


def test_steps_after_a_restored_state_are_recorded_anew(graphs):
    members = [member("a", 0), member("b", 1)]
    whole, resumed = SequentialPack(members, JOB), SequentialPack(members, JOB)
    losses(whole, range(10))
    states = [whole.snapshot(number) for number in range(2)]
    losses(resumed, range(EAGER_STEPS + 4))
    for number, state in enumerate(states):
        resumed.restore(number, state)
    torch.testing.assert_close(losses(resumed, range(10, 20)), losses(whole, range(10, 20)))


def test_a_pack_that_nobody_holds_is_freed_at_once(graphs):
    """Its memory is there for the next pack, before Python looks for cycles."""
    pack = SequentialPack([member("a", 0), member("b", 1)], JOB)
    losses(pack, range(EAGER_STEPS - 1))
    gone, was_on = weakref.ref(pack), gc.isenabled()
    gc.disable()
    try:
        del pack
        assert gone() is None
    finally:
        if was_on:
            gc.enable()


def test_numbers_that_a_graph_reads_are_not_freed():
    cpu = torch.device("cpu")
    kept = _kept_numbers(0, 7, cpu)
    for rows in range(100):
        _kept_numbers(0, 8 + rows, cpu)
    assert _kept_numbers(0, 7, cpu) is kept


@pytest.mark.parametrize("settings", [{"precision": "fp16"}, {}], ids=["its scale is the host's", ""])
def test_what_the_host_decides_is_not_recorded(monkeypatch, graphs, settings):
    monkeypatch.setattr(
        sequential, "resolve_precision", lambda *_: torch.float16 if settings else torch.float32
    )
    assert bool(SequentialPack([member("a", 0)], with_settings(JOB, **settings))._recorded) == (not settings)
