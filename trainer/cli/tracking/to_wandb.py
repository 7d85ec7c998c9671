"""Write a run to Weights & Biases, by its own variables (WANDB_MODE, WANDB_API_KEY, WANDB_PROJECT, ...).

Its id there is the run's. Online, a run that exists is resumed: rows up to its last step are not sent again.
Offline, it is written beside its place and moved there when it is complete, so that a folder of this id says
that there is nothing to do. Nothing of this machine is sent: no code, host, statistics or output.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import wandb

from trainer.base.errors import ConfigError
from trainer.cli.tracking.reading import TrackedRun

OFFLINE = ("offline", "dryrun")
INIT_SECONDS = 60.0


def write(run: TrackedRun) -> tuple[str, bool]:
    """Write a run; return its page, or its folder for `wandb sync`, and whether it was there."""
    settings = wandb.setup().settings
    if settings.mode in OFFLINE:
        return _offline(run, Path(settings.wandb_dir))
    if settings.mode not in ("online", None):
        why = f"WANDB_MODE is {settings.mode}"
        raise ConfigError("Weights & Biases is off", why=why, do="Unset it, or set online or offline.")
    begun = _begun(run)
    where, before = str(begun.url), begun.step
    _log(begun, run)
    return where, before > max((step for _, step, _, _ in run.points), default=0)


def _offline(run: TrackedRun, folder: Path) -> tuple[str, bool]:
    if there := sorted(folder.glob(f"offline-run-*-{run.run_id}")):
        return str(there[-1]), True
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".mayfly-", dir=folder) as made:
        begun = _begun(run, dir=made)
        written = Path(begun.settings.sync_dir)
        _log(begun, run)
        place = written.rename(folder / written.name)
    return str(place), False


def _begun(run: TrackedRun, **where: str) -> Any:
    quiet = wandb.Settings(
        console="off",
        disable_code=True,
        disable_git=True,
        init_timeout=INIT_SECONDS,
        x_disable_machine_info=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_save_requirements=False,
    )
    return wandb.init(
        id=run.run_id,
        name=run.run_id,
        project=wandb.setup().settings.project or run.job,
        notes=run.verdict,
        resume="allow",
        settings=quiet,
        **where,
    )


def _log(begun: Any, run: TrackedRun) -> None:
    """Send a run's settings, tags, curves and scores, and end it there."""
    begun.config.update({**run.settings, **run.tags}, allow_val_change=True)
    first = begun.step
    for step, numbers in _rows(run):
        if step >= first:
            begun.log(numbers, step=step)
    begun.summary.update(run.scores)
    begun.finish(exit_code=0 if run.state == "done" else 1)


def _rows(run: TrackedRun) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield each step with the numbers of all curves that have it, in order."""

    def by_step(point: tuple[str, int, float, float]) -> int:
        return point[1]

    for step, points in groupby(sorted(run.points, key=by_step), by_step):
        yield step, {name: value for name, _, value, _ in points}
