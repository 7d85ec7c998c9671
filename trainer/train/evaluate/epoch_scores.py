"""Loss and scores of a network after an epoch: on its validation bars, and on the last bars that it trained
on.

The score is the first column of the target's table, such as accuracy or correlation, of forecasts that are
not calibrated yet. It decides nothing: early stopping follows the validation loss.

On a GPU a model reads many windows at once, in the training's precision, so that a loss differs from that of
a prediction's batches by rounding: 1e-5 of it in fp32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from trainer.base.settings import CHUNKS
from trainer.job.job import Job
from trainer.machines.memory import footprint
from trainer.targets.target import TargetSettings
from trainer.train.evaluate.scores import ALL, readings
from trainer.train.inputs.rows import SymbolData
from trainer.train.inputs.series import PieceData
from trainer.train.precision import matmul_dtype
from trainer.train.predict.readers import EVALUATION_BATCH, AtOnce, Evaluate, forward_of

MOST_TRAINED = 4_096  # the last bars of training that are scored, of all series
# And no more of them than this part of validation's: they are read each epoch, too. Of a model of windows,
# for which each bar is a window, every fourth: labels of neighbours overlap.
TRAINED_SHARE = TRAINED_EVERY = 4
# What a device reads at once takes no more than this of its memory by the formula of training, which also
# counts what the backward pass needs: about a quarter of it is used.
AT_ONCE_BYTES, MOST_WINDOWS, MOST_CHUNKS = 1 << 30, 8_192, 64


@dataclass(frozen=True, kw_only=True)
class Validated:
    """Loss and scores of a network after an epoch."""

    loss: float  # mean over all validation bars
    score: str = ""  # the metric of the other two; empty: none
    train_score: float = 0.0
    validation_score: float = 0.0
    # (N, O) of all validation bars, if the card may have them: in fp32, on one thread or a GPU.
    outputs_NO: np.ndarray | None = None

    @property
    def scores(self) -> dict[str, float]:
        """Return the scores as an epoch's history has them."""
        if not self.score:
            return {}
        return {"train_score": self.train_score, "validation_score": self.validation_score}


@dataclass(frozen=True, kw_only=True)
class Validation:
    """The two halves of a validation: what a device computes, and what the host makes of it once it is read.
    All ranks must call them together.
    """

    outputs: Callable[[nn.Module], torch.Tensor]  # (N, O) of a network, which nothing has waited for
    judged: Callable[[np.ndarray], Validated]  # of these outputs, float64


def at_once_of(job: Job, device: torch.device) -> AtOnce:
    """Return how much a model of the job reads at once in a validation: on a CPU as a prediction does, since
    more is no faster there (5,500 windows/s in batches of 256, 5,300 in 4,096; AMD EPYC, 2026-11-27).
    """
    dtype = matmul_dtype(job, device)
    if device.type == "cpu":
        return AtOnce(dtype=dtype)
    least, most = (1, MOST_CHUNKS) if job.model.reads == CHUNKS else (EVALUATION_BATCH, MOST_WINDOWS)
    if job.model.is_any_module:
        return AtOnce(most=least, dtype=dtype)
    part = footprint(job, features=len(job.data.inputs), bars=0, windows=least)
    room = AT_ONCE_BYTES * least // max(1, int(part.kept + part.workspace))
    return AtOnce(most=min(max(least, room), most), dtype=dtype)


def score_name(target: TargetSettings) -> str:
    """Return the metric that is told by epoch."""
    return target.table[0].value[0] if target.table else target.proper[0]


def validation_of(data: PieceData, job: Job, evaluate: Evaluate | None) -> Validation:
    """Return the validation of networks on a piece's data. `evaluate`, where ranks share it."""
    series, name = data.series, score_name(data.series[0].target)
    bars, at_once = sum(len(one.rows("validation")) for one in series), at_once_of(job, data.rows_TF.device)
    every = 1 if job.model.reads == CHUNKS or job.target.acts else TRAINED_EVERY
    last = max(1, min(MOST_TRAINED, bars * every // TRAINED_SHARE) // len(series))  # of each series
    trained = slice(-last, None, every)
    parts = [
        *readings(data, job, "validation", at_once=at_once),
        *readings(data, job, "train", some=trained, at_once=at_once),
    ]
    scaled = [one.target.scale(one.labels("validation"), one.fitted) for one in series]
    scaled_NK = np.concatenate(scaled)

    def judged(outputs_NO: np.ndarray) -> Validated:
        outputs_NO, trained_NO = outputs_NO[:bars], outputs_NO[bars:]
        is_exact = at_once.dtype == torch.float32
        return Validated(
            loss=job.target.loss_of_span(outputs_NO, scaled_NK),
            score=name,
            train_score=_score(trained_NO, series, "train", name, some=trained),
            validation_score=_score(outputs_NO, series, "validation", name),
            outputs_NO=outputs_NO
            if is_exact and (data.rows_TF.is_cuda or torch.get_num_threads() == 1)
            else None,
        )

    if evaluate is None:
        return Validation(outputs=forward_of(parts), judged=judged)
    return Validation(outputs=lambda network: torch.from_numpy(evaluate(network, parts)), judged=judged)


def _score(
    outputs_NO: np.ndarray, series: Sequence[SymbolData], span: str, name: str, *, some: slice = ALL
) -> float:
    """Return a metric of all series together, of `some` bars of a span each."""
    labels = [one.labels(span)[some] for one in series]
    ends = np.cumsum([len(one) for one in labels])[:-1]
    by_series = zip(np.split(outputs_NO, ends), series, strict=True)
    forecasts = [one.target.forecast(outputs, one.fitted) for outputs, one in by_series]
    scores = series[0].target.scores(np.concatenate(forecasts), np.concatenate(labels))
    value = scores.get(name)
    return float("nan") if value is None else float(value)
