"""The progress of a pack's runs, as events: two of them a second, in turn, with the rate of all together."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from trainer.job.job import Job
from trainer.train.run import Run, rate_of

PROGRESS_SECONDS, PROGRESS_AT_ONCE = 1.0, 2  # a day's log has a bound


def report_progress(
    runs: Sequence[Run], job: Job, pace: Pace, report: Callable[[dict[str, Any]], None]
) -> None:
    """Report the progress of the runs whose turn it is."""
    under_way = [run for run in runs if run.active]
    for run in pace.turn(under_way):
        report(_progress(run, run.member.job or job, pace.rate, training=len(under_way)))


def _progress(run: Run, job: Job, rate: float, *, training: int) -> dict[str, Any]:
    """Return a run's `progress` event; `rate` is that of all `training` runs together, in windows or chunks
    per second.
    """
    epochs = (run.last_epoch or job.train.epochs) + run.epochs_after
    left = (epochs - run.epoch) * run.num_windows - run.position
    return {
        "event": "progress",
        "model": run.member.name,
        "piece": run.title,
        "epoch": run.epochs_before + run.epoch + 1,
        "epochs": run.epochs_before + epochs,
        "step": math.ceil(run.position / job.reads_of_step),
        "steps": math.ceil(run.num_windows / job.reads_of_step),
        "loss": run.loss_sum / run.loss_windows if run.loss_windows else None,
        "rate": round(rate, 1),  # of all the worker's models together, in `unit` a second
        "unit": job.model.reads,
        "learning_rate": rate_of(run, job),  # of the next step
        # For all epochs: early stopping may shorten it.
        "eta_seconds": round(left * training / rate, 1) if rate else None,
    }


class Pace:
    """Windows, or chunks, per second since the last report."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._since, self._windows, self.rate = clock, clock(), 0, 0.0
        self._turn = 0

    def turn(self, runs: Sequence[Run]) -> list[Run]:
        """Return the runs whose turn it is to report their progress."""
        told = [runs[(self._turn + place) % len(runs)] for place in range(min(len(runs), PROGRESS_AT_ONCE))]
        self._turn += len(told)
        return told

    def count(self, windows: int) -> None:
        self._windows += windows

    def due(self) -> bool:
        elapsed = self._clock() - self._since
        if elapsed < PROGRESS_SECONDS:
            return False
        self.rate = self._windows / elapsed
        self._since, self._windows = self._clock(), 0
        return True
