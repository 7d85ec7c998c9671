"""Score models again at a desk: the average of a run's models of one symbol, of several seeds and of earlier
folds; and models of several runs on bars that none of them has seen.

The forecasts are averaged in the target's own form (probabilities, logs, quantiles) and scored on the test
bars of the fold, on which each of its models was scored before. The losses in their cards prove it: candles
on which a model has other losses than in its card are refused.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from trainer.base.errors import DataError, UsageError
from trainer.base.files import HeldFolder
from trainer.base.text import some_of
from trainer.job.job import Job
from trainer.job.pieces.piece import Piece
from trainer.store.card import Card
from trainer.targets.boosting import NAME as BOOSTED
from trainer.targets.losses import MODEL
from trainer.train.inputs.rows import SymbolData
from trainer.train.inputs.source import JobData, plan_and_open, read_source
from trainer.train.inputs.survey import survey
from trainer.train.predict.load_model import CheckedModel, check_model
from trainer.train.score import Windows, forecasts_on, outputs_on, unlike, unseen

# Shares by which losses may differ: a model's, of a GPU and a CPU; baselines', which only CPUs compute. Log
# losses of any direction are near log 2: a model's alone tell no candles apart.
TOLERANCE, OF_BASELINES = 0.01, 1e-4
DO = "Give the candles that the run was trained on."


def ensemble_cards(job: Job, data: Path, models: Sequence[Path]) -> list[Card]:
    """Return a card for each symbol and fold of which there are several models: that of one of them, with the
    losses of their average.

    Raises UsageError for a job with files of the user's own, and without several models of anything;
    DataError for candles that are not those of the run.
    """
    _refuse_own_files(job, "the average of the models can't be scored")
    checked = [check_model(path, to_score=True) for path in models]
    with HeldFolder("ensemble") as scratch:
        read = plan_and_open(job, data, scratch=Path(scratch))
        job = read.plan.decided(job)
        made = [
            _ensemble(members, piece, job, read)
            for piece, members in _groups(survey(job, read.plan).models, checked)
        ]
    if not made:
        why = "the run has one model of each symbol and fold"
        raise UsageError("there is nothing to average", why=why, do="Train with train.seeds = 3.")
    return made


def unseen_cards(job: Job, data: Path, sides: Sequence[Sequence[Path]]) -> list[list[Card]]:
    """Return each side's cards with losses on the same bars: those of the job's last test span, without bars
    that trained or selected any of a symbol's models. A symbol that a side lacks is left out.

    Raises UsageError for a job with files of the user's own and without a symbol in common; DataError for a
    model that can't be scored on the candles, and if no bar is left.
    """
    _refuse_own_files(job, "the models can't be scored again")
    checked = [(side, check_model(path, to_score=True)) for side, paths in enumerate(sides) for path in paths]
    with HeldFolder("compare") as scratch:
        read = plan_and_open(job, data, scratch=Path(scratch))
        job = read.plan.decided(job)
        made: list[list[Card]] = [[] for _ in sides]
        last = {piece.series: piece for piece in survey(job, read.plan).models}
        for series, piece in last.items():
            members = [(side, one) for side, one in checked if set(one.card.symbols) == set(series)]
            if {side for side, _ in members} == set(range(len(sides))):
                cards = _unseen([model for _, model in members], piece, job, read)
                for (side, _), card in zip(members, cards, strict=True):
                    made[side].append(card)
    if not made[0]:
        why = f"the candles have {some_of([' '.join(series) for series in last], 3)}"
        raise UsageError("the models have no symbol in common in these candles", why=why, do=DO)
    return made


def _unseen(models: Sequence[CheckedModel], piece: Piece, job: Job, data: JobData) -> list[Card]:
    fold = read_source(piece, job, data).folds[piece.fold]
    _refuse_unlike(models, fold.series[0], job, "scored beside the others")
    windows = [Windows(data=one, bars=one.bars("test")) for one in fold.series]
    for model in models:
        windows = [replace(one, bars=one.bars[unseen(windows, one, model)]) for one in windows]
    outputs = [outputs_on(windows, model) for model in models]
    made = forecasts_on(windows, outputs, title=piece.title, is_panel=fold.panel is not None)
    found = [made.compared(forecast) for forecast in made.of_models]
    return [
        replace(
            model.card,
            losses=one.losses,
            trades={},
            reliability=one.reliability,
            metrics={"about": model.card.metrics["about"], "test": one.scores},
        )
        for model, one in zip(models, found, strict=True)
    ]


def _refuse_own_files(job: Job, what: str) -> None:
    if job.own_files:
        raise UsageError(
            what,
            why="their job has a Python file of yours, which this command does not run",
            do="Leave --data out.",
        )


def _refuse_unlike(models: Sequence[CheckedModel], data: SymbolData, job: Job, how: str) -> None:
    for model in models:
        if why := unlike(model.card, data, index=job.data.told.index):
            raise DataError(f"{model.name} can't be {how}", why=why, do=DO)


def _groups(
    pieces: Sequence[Piece], models: Sequence[CheckedModel]
) -> Iterator[tuple[Piece, list[CheckedModel]]]:
    """Yield a piece of each series and fold with its models, those of its own fold first."""
    by_fold: dict[tuple[frozenset[str], int], list[CheckedModel]] = defaultdict(list)
    for model in models:
        by_fold[frozenset(model.card.symbols), model.card.fold].append(model)
    for piece in {(one.series, one.fold): one for one in pieces}.values():
        symbols = frozenset(piece.series)
        own = by_fold[symbols, piece.fold]
        earlier = [
            model
            for fold in range(1, piece.fold)
            for model in by_fold[symbols, fold]
            if not model.card.knows_later_bars  # as those of k folds do
        ]
        if own and len(own) + len(earlier) > 1:
            yield piece, [*own, *earlier]


def _ensemble(members: Sequence[CheckedModel], piece: Piece, job: Job, data: JobData) -> Card:
    fold = read_source(piece, job, data).folds[piece.fold]
    _refuse_unlike(members, fold.series[0], job, "averaged")
    windows = [Windows(data=one, bars=one.bars("test")) for one in fold.series]
    outputs = [outputs_on(windows, member) for member in members]
    made = forecasts_on(windows, outputs, title=piece.title, is_panel=fold.panel is not None)
    for member, forecast in zip(members, made.of_models, strict=True):
        losses = made.compared(forecast).losses
        if member.card.fold == piece.fold and not _are_alike(losses, member.card.losses):
            why = f"{member.name} has other losses on {data.plan.files[0].file} than in its card"
            raise DataError("these are not the candles that the run was tested on", why=why, do=DO)
    first = members[0].card
    average = made.compared(np.mean(made.of_models, axis=0))
    metrics = {"about": first.metrics["about"], "test": average.scores}
    return replace(first, losses=average.losses, trades={}, reliability=average.reliability, metrics=metrics)


def _are_alike(found: Mapping[str, Any], told: Mapping[str, Any]) -> bool:
    """Return whether losses are those of a card, but for rounding."""
    if not told or (found["begins"], found["bars"]) != (told["begins"], told["bars"]):
        return False
    pairs = [
        (np.array(ours), np.array(theirs), TOLERANCE if name == MODEL else OF_BASELINES)
        for score, by_name in found["sums"].items()
        for name, ours in by_name.items()
        if name != BOOSTED  # which may be of another version
        and ours is not None
        and (theirs := told["sums"][score].get(name)) is not None
    ]
    return all(abs(ours - theirs).sum() <= share * abs(theirs).sum() for ours, theirs, share in pairs)
