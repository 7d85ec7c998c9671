"""Loss and scores of a network after an epoch: on its validation bars, and on the last bars that it trained
on.

The score is the first column of the target's table, such as accuracy or correlation, of forecasts that are
not calibrated yet. It decides nothing: early stopping follows the validation loss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from trainer.job.job import Job
from trainer.targets.target import TargetSettings
from trainer.train.evaluate.scores import readings
from trainer.train.inputs.rows import SymbolData
from trainer.train.inputs.series import PieceData
from trainer.train.packs.pack import loss_for
from trainer.train.predict.readers import Evaluate

MOST_TRAINED = 4_096  # bars of training that are scored, of all series; never more than those of validation


@dataclass(frozen=True, kw_only=True)
class Validated:
    """Loss and scores of a network after an epoch."""

    loss: float  # mean over all validation bars
    score: str = ""  # the metric of the other two; empty: none
    train_score: float = 0.0
    validation_score: float = 0.0
    # (N, O) of all validation bars, if a prediction would compute the same ones: on one thread, or a GPU.
    outputs_NO: np.ndarray | None = None

    @property
    def scores(self) -> dict[str, float]:
        """Return the scores as an epoch's history has them."""
        if not self.score:
            return {}
        return {"train_score": self.train_score, "validation_score": self.validation_score}


def score_name(target: TargetSettings) -> str:
    """Return the metric that is told by epoch."""
    return target.table[0].value[0] if target.table else target.proper[0]


def validation_of(data: PieceData, job: Job, evaluate: Evaluate) -> Callable[[nn.Module], Validated]:
    """Return the function that validates a network on a piece's data; all ranks must call it together."""
    series, name = data.series, score_name(data.series[0].target)
    bars = sum(len(one.rows("validation")) for one in series)
    last = max(1, min(MOST_TRAINED, bars) // len(series))  # of each series
    parts, trained = readings(data, job, "validation"), readings(data, job, "train", last=last)
    scaled = [one.target.scale(one.labels("validation"), one.fitted) for one in series]
    loss, scaled_NK = loss_for(job), torch.from_numpy(np.concatenate(scaled))

    def validate(network: nn.Module) -> Validated:
        outputs_NO = evaluate(network, parts)
        return Validated(
            loss=float(loss(torch.from_numpy(outputs_NO), scaled_NK).mean()),
            score=name,
            train_score=_score(evaluate(network, trained), series, "train", name, last=last),
            validation_score=_score(outputs_NO, series, "validation", name),
            outputs_NO=outputs_NO if data.rows_TF.is_cuda or torch.get_num_threads() == 1 else None,
        )

    return validate


def _score(
    outputs_NO: np.ndarray, series: Sequence[SymbolData], span: str, name: str, *, last: int = 0
) -> float:
    """Return a metric of all series together, of their `last` bars of a span each; 0: of all."""
    labels = [one.labels(span)[-last:] for one in series]
    ends = np.cumsum([len(one) for one in labels])[:-1]
    by_series = zip(np.split(outputs_NO, ends), series, strict=True)
    forecasts = [one.target.forecast(outputs, one.fitted) for outputs, one in by_series]
    scores = series[0].target.scores(np.concatenate(forecasts), np.concatenate(labels))
    value = scores.get(name)
    return float("nan") if value is None else float(value)
