"""What a model says about windows, and how good that is: the one way probabilities and metrics are made.

The card's metrics and `mayfly predict` both come from here, so that they agree to the last digit: windows go through the
model in batches of one fixed size, on which a window's result does not depend.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import nn

EVALUATION_BATCH = 256
# Deviations that a scaled feature is held to. Real bars reach a hundred of them in a crash, and one bar must decide neither a
# step nor a score.
INPUT_LIMIT = 10.0


class Evaluator:
    """Run a model over windows of one symbol's rows, without gradients and without dropout."""

    def __init__(
        self,
        *,
        rows_TF: torch.Tensor,
        mean_F: torch.Tensor,
        std_F: torch.Tensor,
        lookback: int,
        limit: float = INPUT_LIMIT,
    ) -> None:
        self._rows_TF, self._mean_F, self._std_F, self._limit = rows_TF, mean_F, std_F, limit
        self._steps_T1 = torch.arange(lookback, device=rows_TF.device)[:, None]

    def logits(self, model: nn.Module, starts: torch.Tensor) -> np.ndarray:
        """Return the model's logits (N,) float64 for windows that start at rows `starts` (N,) int64."""
        padded = torch.nn.functional.pad(starts, (0, -len(starts) % EVALUATION_BATCH)).to(self._rows_TF.device)
        batches = [padded[first : first + EVALUATION_BATCH] for first in range(0, len(padded), EVALUATION_BATCH)]
        found = [self._batch(model, batch) for batch in batches]
        if not found:
            return np.empty(0)
        return torch.cat(found)[: len(starts)].double().cpu().numpy()

    @torch.inference_mode()
    def _batch(self, model: nn.Module, starts_B: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = model(gather(self._rows_TF, starts_B, self._steps_T1, self._mean_F, self._std_F, self._limit))
        return logits.float()


def gather(
    rows_TF: torch.Tensor,
    starts_B: torch.Tensor,
    steps_T1: torch.Tensor,
    mean_F: torch.Tensor,
    std_F: torch.Tensor,
    limit: float = INPUT_LIMIT,
) -> torch.Tensor:
    """Cut windows (T, B, F) out of unscaled rows and scale them. No window exists before this or after its step."""
    index = (steps_T1 + starts_B).view(-1)
    x_TBF = rows_TF.index_select(0, index).view(len(steps_T1), len(starts_B), rows_TF.shape[1])
    return scale_(x_TBF, mean_F, std_F, limit)


def scale_(x: torch.Tensor, mean_F: torch.Tensor, std_F: torch.Tensor, limit: float = INPUT_LIMIT) -> torch.Tensor:
    """Scale features in place, and hold them to `limit` deviations; NaN stays NaN."""
    return x.sub_(mean_F).div_(std_F).clamp_(-limit, limit)


def probabilities_of(logits: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + exp(-logit)) in float64, without overflow."""
    chances: np.ndarray = np.exp(-np.logaddexp(0.0, -logits))
    return chances


def loss_of(logits: np.ndarray, labels: np.ndarray) -> float:
    """Return the mean cross entropy of float64 logits against labels 0 and 1."""
    return float(np.mean(np.logaddexp(0.0, logits) - logits * labels))


def metrics(probabilities: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """Return what a forecaster asks for, over windows with labels 0 and 1.

    n, accuracy (probability >= 0.5 says 1), base_rate (the accuracy of always saying the commoner label), auc (by ranks,
    ties count half; null when there is one label only), mcc (0 when undefined), log_loss (natural), brier.
    """
    chances = np.asarray(probabilities, dtype=np.float64)
    truth = np.asarray(labels, dtype=np.float64) > 0.5
    if not len(chances):
        raise ValueError("no window to score")
    said = chances >= 0.5
    # A float64 sigmoid reaches exactly 0 or 1 only beyond logits of about 37; the bound keeps the logarithm finite there.
    bounded = np.clip(chances, 1e-16, 1 - 1e-16)
    share = float(np.mean(truth))
    return {
        "n": len(chances),
        "accuracy": float(np.mean(said == truth)),
        "base_rate": max(share, 1 - share),
        "auc": _auc(chances, truth),
        "mcc": _mcc(said, truth),
        "log_loss": float(np.mean(-np.log(np.where(truth, bounded, 1 - bounded)))),
        "brier": float(np.mean((chances - truth) ** 2)),
    }


def _auc(chances: np.ndarray, truth: np.ndarray) -> float | None:
    """Return the chance that a random 1 is ranked above a random 0 (Mann-Whitney), ties counting half."""
    ones, zeros = int(truth.sum()), int((~truth).sum())
    if not ones or not zeros:
        return None
    _, place, counts = np.unique(chances, return_inverse=True, return_counts=True)
    last_rank = np.cumsum(counts)
    mean_rank = last_rank - (counts - 1) / 2
    return float((mean_rank[place][truth].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def _mcc(said: np.ndarray, truth: np.ndarray) -> float:
    """Return Matthews' correlation coefficient."""
    true_ones, false_ones = int((said & truth).sum()), int((said & ~truth).sum())
    true_zeros, false_zeros = int((~said & ~truth).sum()), int((~said & truth).sum())
    margins = [true_ones + false_ones, true_ones + false_zeros, true_zeros + false_ones, true_zeros + false_zeros]
    if not all(margins):
        return 0.0
    return (true_ones * true_zeros - false_ones * false_zeros) / math.sqrt(math.prod(margins))
