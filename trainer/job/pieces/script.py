"""A user's script: one piece, with all devices of the machine, or one for each combination of its values, or
for each trial of its search.

It has no series and makes no model file. The agent runs it (node/command_run.py), not a training worker.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainer.job.job import Job
from trainer.job.pieces.piece import Kind, Piece, SeriesWork
from trainer.job.script import KIND


def _pieces(job: Job, series: Sequence[SeriesWork], timeframe: str) -> tuple[Piece, ...]:
    trials = job.search.trial_values if job.search.over else ()
    tried = {f"t{number}": values for number, values in enumerate(trials, 1)}
    over = tried or {title: tuple(row.items()) for title, row in job.script.combinations.items()}
    name, several = f"{KIND}_{job.name}", bool(over)
    return tuple(
        Piece(
            name=f"{name}_{title}" if several else name,
            title=title,
            kind=KIND,
            series=(),
            source=title,
            estimate=1.0,  # of itself: rates are in scripts a second
            trial=number if tried else 0,
            values=values,
        )
        for number, (title, values) in enumerate((over or {job.name: ()}).items(), 1)
    )


SCRIPT = Kind(
    name=KIND,
    takes=lambda job: bool(job.script.command),
    pieces=_pieces,
    each="script",
    command=KIND,
    untimed="no whole run of this script has ended yet",
    reads_candles=False,
)
