"""The search of a script: the queue of its trials, as `CommandRun` takes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trainer.base.errors import TrainingFailed
from trainer.base.settings import read_keys
from trainer.base.strict_json import Fields, Unsound
from trainer.cluster.studies import StudyPieces, bounds_of, check_bounds
from trainer.job.reading import job_from
from trainer.job.search import SearchSettings
from trainer.job.trials import read_end
from trainer.node.shared import Node
from trainer.runs.manifest import Manifest
from trainer.runs.start_file import StartFile


def asks_optuna(manifest: Manifest) -> bool:
    """Return whether the command is a training, or a script, whose search asks optuna. Raises UsageError for
    another table than a search may have.
    """
    table, command = manifest.job.get("search"), manifest.command
    if not isinstance(table, Mapping) or not (manifest.pieces or command.leaves == "models"):
        return False
    return SearchSettings(**read_keys("search", SearchSettings, table)).asks_optuna


def studies_of(
    node: Node,
    manifest: Manifest,
    start: StartFile,
    tell: Callable[[dict[str, Any]], None],
    *,
    machine: Mapping[str, Any],
) -> StudyPieces:
    """Return the queue of a script's trials, with what those of earlier attempts ended with. `machine`: its
    price and the time that it has cost. Raises a TrainerError for a bound that it can't keep, and for ends
    that are not of the search.
    """
    job, began, usd = job_from(manifest.job), node.clock(), machine.get("usd_per_hour")
    names = {piece.piece: piece.model for piece in manifest.pieces}
    check_bounds(job.search, usd_per_hour=usd)
    try:
        ends = {str(one["piece"]): read_end(Fields(one, "a trial's end"), job.search) for one in start.trials}
    except Unsound as error:
        do = "Launch again, with one version of Mayfly."
        raise TrainingFailed("the start file can't be used", why=str(error), do=do) from error
    return StudyPieces(
        job,
        tell,
        known={names[piece]: end for piece, end in ends.items() if piece in names},
        is_open=bounds_of(
            job.search,
            seconds=lambda: float(machine["paid_seconds"]) + node.clock() - began,
            usd_per_hour=usd,
        ),
    )
