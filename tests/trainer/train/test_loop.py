"""The loop's rules, on a pack whose losses are written down beforehand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from trainer.config import Job
from trainer.train.loop import MAX_LOWERED, MAX_SKIPPED_STEPS, Run, train_pack
from trainer.train.pack import Member, ModelState, fresh_state

WINDOWS = 40


class Constant(nn.Module):
    """A model whose logit is one number."""

    def __init__(self) -> None:
        super().__init__()
        self.logit: torch.Tensor
        self.register_buffer("logit", torch.zeros(1))

    def forward(self, x_TBF: torch.Tensor) -> torch.Tensor:
        return self.logit.expand(x_TBF.shape[1])


class Scripted:
    """A pack of one whose logit after each step is given, and whose losses may be broken."""

    def __init__(self, logits: Sequence[float], *, broken: bool = False) -> None:
        self.module, self._logits, self._broken = Constant(), list(logits), broken
        self.visited: list[torch.Tensor] = []
        self.learning_rates: list[float] = []

    def step(self, active: Sequence[bool], starts: Sequence[torch.Tensor]) -> torch.Tensor:
        self.visited.append(starts[0])
        with torch.no_grad():
            self.module.logit.fill_(self._logits.pop(0) if self._logits else 0.0)
        return torch.tensor([math.nan if self._broken else 0.5])

    def model(self, member: int) -> nn.Module:
        return self.module

    def set_learning_rate(self, member: int, learning_rate: float) -> None:
        self.learning_rates.append(learning_rate)

    def snapshot(self, member: int) -> ModelState:
        return fresh_state(self.module.state_dict(), batches=len(self.visited))

    def restore(self, member: int, state: ModelState) -> None:
        self.module.load_state_dict(dict(state.weights))


def _train(pack: Scripted, **settings: Any) -> tuple[Run, list[dict[str, Any]]]:
    job = Job(lookback=2, batch=WINDOWS, **settings)
    member = Member(name="m", rows_TF=torch.zeros(200, 1), labels_T=torch.ones(200), mean_F=torch.zeros(1), std_F=torch.ones(1))
    starts = {"train": torch.arange(WINDOWS), "validation": torch.arange(50, 60)}
    run = Run(member=member, symbol="S", starts=starts, learning_rate=job.learning_rate)
    events: list[dict[str, Any]] = []
    train_pack(pack, [run], job, events.append)
    return run, events


def test_training_stops_when_validation_has_not_improved_for_as_long_as_patience_allows():
    # Labels are all 1, so a higher logit is a lower validation loss: the third epoch is the best.
    run, events = _train(Scripted([1, 2, 3, 2.5, 2.9, 9]), epochs=10, patience=2)
    assert run.epoch == 5 and run.best_epoch == 3
    assert run.best_weights["logit"].item() == 3
    assert [event["epoch"] for event in events if event["event"] == "epoch"] == [1, 2, 3, 4, 5]


def test_training_stops_after_the_last_epoch_with_the_best_weights():
    run, _ = _train(Scripted([1, 3, 2]), epochs=3, patience=3)
    assert (run.epoch, run.best_epoch, run.failure) == (3, 2, "")


def test_every_epoch_visits_every_training_window_once_in_another_order():
    pack = Scripted([1, 2, 3])
    _train(pack, epochs=2)
    orders = [torch.cat(pack.visited[:1]), torch.cat(pack.visited[1:2])]
    assert all(torch.equal(order.sort().values, torch.arange(WINDOWS)) for order in orders)
    assert not torch.equal(orders[0], orders[1])


def test_losses_that_stay_broken_lower_the_learning_rate_and_then_end_the_model():
    pack = Scripted([], broken=True)
    run, _ = _train(pack, epochs=MAX_SKIPPED_STEPS * 10, patience=100, learning_rate=0.8)
    # One step an epoch here, so no epoch has more than ten broken ones: the validation loss decides.
    assert not run.failure
    job = Job(lookback=2, batch=1, learning_rate=0.8)
    run = Run(member=run.member, symbol="S", starts=run.starts, learning_rate=0.8)
    pack = Scripted([], broken=True)
    train_pack(pack, [run], job, lambda event: None)
    assert pack.learning_rates == [0.4, 0.2, 0.1] and len(pack.learning_rates) == MAX_LOWERED
    assert "not finite" in run.failure and len(pack.visited) == (MAX_SKIPPED_STEPS + 1) * (MAX_LOWERED + 1)


def test_progress_is_reported_about_once_a_second():
    ticks = iter(range(1000))
    job = Job(lookback=2, batch=10, epochs=1)
    run, _ = _train(Scripted([1]), epochs=1)
    fresh = Run(member=run.member, symbol="S", starts=run.starts, learning_rate=1e-3)
    events: list[dict[str, Any]] = []
    train_pack(Scripted([]), [fresh], job, events.append, clock=lambda: next(ticks) * 0.5)
    progress = [event for event in events if event["event"] == "progress"]
    assert 0 < len(progress) < 4
    assert progress[0]["steps"] == 4 and progress[0]["epochs"] == 1 and progress[0]["windows_per_second"] > 0
