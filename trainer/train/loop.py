"""The training loop of a pack: batches in order, epochs, validation, early stopping, best weights.

Owns the order of events in one pack's training, and the rule for losses that are not finite. It knows neither files nor
processes: `task.py` brings data and writes models, `workers.py` runs the processes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from trainer.config import Job
from trainer.train.pack import Member, Pack, fresh_state
from trainer.train.score import Evaluator, loss_of
from trainer.train.seeds import batch_order

# The rule for losses that are not finite: such a step is skipped. More than ten in one epoch, and the model goes back to
# its best weights with half the learning rate, three times at most; then it has failed.
MAX_SKIPPED_STEPS = 10
MAX_LOWERED = 3
PROGRESS_SECONDS = 1.0

Report = Callable[[dict[str, Any]], None]


@dataclass(kw_only=True)
class Run:
    """One model's way through its training: where it stands, and the best it has been."""

    member: Member
    symbol: str
    starts: Mapping[str, torch.Tensor]
    learning_rate: float
    epoch: int = 0  # epochs finished
    position: int = 0  # windows of the present epoch that were visited
    order: torch.Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    loss_sum: float = 0.0
    loss_windows: int = 0
    skipped: int = 0  # steps of this epoch
    lowered: int = 0
    best_loss: float = math.inf
    best_epoch: int = 0
    best_weights: dict[str, torch.Tensor] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    active: bool = True
    failure: str = ""

    @property
    def num_windows(self) -> int:
        """Return how many windows an epoch has."""
        return len(self.starts["train"])


def train_pack(
    pack: Pack, runs: Sequence[Run], job: Job, report: Report, *, clock: Callable[[], float] = time.monotonic
) -> None:
    """Train until every run has stopped; each run then holds its best weights, or why it failed.

    Reports `progress` about once a second and `epoch` after each epoch of each model.
    """
    evaluators = [
        Evaluator(rows_TF=run.member.rows_TF, mean_F=run.member.mean_F, std_F=run.member.std_F, lookback=job.lookback)
        for run in runs
    ]
    for number, run in enumerate(runs):
        run.best_weights = _copy(pack.model(number).state_dict())
        _begin_epoch(run, job)
    pace = _Pace(clock)
    while any(run.active for run in runs):
        active = [run.active for run in runs]
        batches = [_next_batch(run, job) for run in runs]
        losses = pack.step(active, batches).tolist()
        for number, run in enumerate(runs):
            if active[number]:
                _take(run, losses[number], len(batches[number]))
        pace.count(sum(len(batch) for batch in batches))
        if pace.due():
            for run in (run for run in runs if run.active):
                report(_progress(run, job, pace.windows_per_second))
        for number, run in enumerate(runs):
            if run.active and run.skipped > MAX_SKIPPED_STEPS:
                _lower(pack, number, run, job)
            elif run.active and run.position >= run.num_windows:
                _end_epoch(pack, number, run, job, evaluators[number], report)


def _begin_epoch(run: Run, job: Job) -> None:
    # Order first by seed, model and epoch; then it lies on the device, so that a step sends nothing there.
    order = batch_order(run.num_windows, seed=job.seed, model=run.member.name, epoch=run.epoch)
    run.order = run.starts["train"][order.to(run.starts["train"].device)]
    run.position, run.loss_sum, run.loss_windows, run.skipped = 0, 0.0, 0, 0


def _next_batch(run: Run, job: Job) -> torch.Tensor:
    if not run.active:
        return run.order[:0]
    return run.order[run.position : run.position + job.batch]


def _take(run: Run, loss: float, windows: int) -> None:
    run.position += windows
    if math.isfinite(loss):
        run.loss_sum += loss * windows
        run.loss_windows += windows
    else:
        run.skipped += 1


def _lower(pack: Pack, number: int, run: Run, job: Job) -> None:
    if run.lowered == MAX_LOWERED:
        run.active = False
        run.failure = (
            f"the loss is not finite, also after halving the learning rate {MAX_LOWERED} times to {run.learning_rate:g}"
        )
        return
    run.lowered += 1
    run.learning_rate /= 2
    pack.restore(number, fresh_state(run.best_weights, batches=pack.snapshot(number).batches))
    pack.set_learning_rate(number, run.learning_rate)
    _begin_epoch(run, job)


def _end_epoch(pack: Pack, number: int, run: Run, job: Job, evaluator: Evaluator, report: Report) -> None:
    model = pack.model(number)
    labels = labels_at(run.member.labels_T, run.starts["validation"], job.lookback)
    validation_loss = loss_of(evaluator.logits(model, run.starts["validation"]), labels)
    train_loss = run.loss_sum / run.loss_windows if run.loss_windows else math.nan
    run.epoch += 1
    losses = {"epoch": run.epoch, "train_loss": train_loss, "validation_loss": validation_loss}
    run.history.append(losses)
    report({"event": "epoch", "model": run.member.name, "symbol": run.symbol, **losses})
    if validation_loss < run.best_loss:
        run.best_loss, run.best_epoch, run.best_weights = validation_loss, run.epoch, _copy(model.state_dict())
    if run.epoch >= job.epochs or run.epoch - run.best_epoch >= job.patience:
        run.active = False
        run.failure = "" if math.isfinite(run.best_loss) else "the validation loss was never finite"
        return
    _begin_epoch(run, job)


def labels_at(labels_T: torch.Tensor, starts: torch.Tensor, lookback: int) -> np.ndarray:
    """Return the labels (N,) float64 of windows: the label of a window is that of its last bar."""
    return labels_T[starts.to(labels_T.device) + (lookback - 1)].double().cpu().numpy()


def _copy(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in state.items()}


def _progress(run: Run, job: Job, windows_per_second: float) -> dict[str, Any]:
    return {
        "event": "progress",
        "model": run.member.name,
        "symbol": run.symbol,
        "epoch": run.epoch + 1,
        "epochs": job.epochs,
        "step": math.ceil(run.position / job.batch),
        "steps": math.ceil(run.num_windows / job.batch),
        "loss": run.loss_sum / run.loss_windows if run.loss_windows else None,
        "windows_per_second": round(windows_per_second, 1),
    }


class _Pace:
    """Windows a second since the last report."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._since, self._windows, self.windows_per_second = clock, clock(), 0, 0.0

    def count(self, windows: int) -> None:
        self._windows += windows

    def due(self) -> bool:
        elapsed = self._clock() - self._since
        if elapsed < PROGRESS_SECONDS:
            return False
        self.windows_per_second = self._windows / elapsed
        self._since, self._windows = self._clock(), 0
        return True
