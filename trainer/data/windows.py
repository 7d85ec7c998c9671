"""A symbol ready to train on: unscaled feature rows, scaler, labels, and the first rows of its windows. No window is ever
materialized: the training step gathers `rows_TF[start : start + lookback]` for a batch of starts, then scales.

Shapes: T bars of the symbol, F features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer.config import Job
from trainer.data.candles import Candles, time_text
from trainer.data.feature_names import FEATURES, WARMUP
from trainer.data.features import compute_features
from trainer.data.labels import WindowPlan, plan_windows
from trainer.data.splits import Spans
from trainer.errors import DataError


@dataclass(frozen=True, kw_only=True)
class SymbolData:
    """What a model trains on. A window is rows_TF[start : start + lookback], its label is labels_T[start + lookback - 1]."""

    symbol: str
    timeframe: str
    rows_TF: Tensor  # float32, unscaled
    mean_F: Tensor  # float32, over the rows that training windows hold
    std_F: Tensor  # float32; 1 where a feature is constant there
    labels_T: Tensor  # float32: 1 up, 0 down, NaN where none
    starts: dict[str, Tensor]  # "train", "validation", "test" -> int64, ascending
    spans: Spans
    timestamps: np.ndarray  # (T,) int64 ns UTC
    calendar: str
    holes: int
    ties: int
    embargo: int

    def splits(self) -> dict[str, Any]:
        """Return the spans for a card: first and last bar (their start, UTC), bars and windows of each; the embargo in bars."""
        summary: dict[str, Any] = {
            name: {
                "first": time_text(self.timestamps[span.start]),
                "last": time_text(self.timestamps[span.stop - 1]),
                "bars": len(span),
                "windows": len(self.starts[name]),
            }
            for name, span in self.spans.items()
        }
        return {**summary, "embargo": self.embargo}


def prepare(
    candles: Candles,
    job: Job,
    *,
    features: Tensor | None = None,
    warmup: int = WARMUP,
    spans: Spans | None = None,
    device: str | torch.device = "cpu",
    plan: WindowPlan | None = None,
) -> SymbolData:
    """Compute features, labels, spans, scaler and window starts of a symbol; everything lies on `device`. Raises DataError.

    `features` (N, F) replaces the computed ones, with `warmup` rows at their head that no window may hold; `spans` replaces
    the job's split, `plan` the labels and windows with them.
    """
    plan = plan or plan_windows(candles, job, warmup=warmup, spans=spans)
    rows_TF = compute_features(candles, device) if features is None else features.to(device, torch.float32).contiguous()
    _refuse_bad_features(candles, rows_TF, warmup, FEATURES if rows_TF.shape[1] == len(FEATURES) else ())
    mean_F, std_F = fit_scaler(rows_TF, torch.from_numpy(_covered(plan.starts["train"], job.bars_seen, len(candles))))
    return SymbolData(
        symbol=candles.symbol,
        timeframe=candles.timeframe,
        rows_TF=rows_TF,
        mean_F=mean_F,
        std_F=std_F,
        labels_T=torch.from_numpy(plan.labels).to(device),
        starts={name: torch.from_numpy(rows).to(device) for name, rows in plan.starts.items()},
        spans=plan.spans,
        timestamps=candles.timestamp,
        calendar=plan.calendar,
        holes=int(plan.holes.sum()),
        ties=plan.ties,
        embargo=max(job.embargo, job.horizon),
    )


def fit_scaler(rows_TF: Tensor, chosen_T: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and deviation (divisor n, float32) of the chosen rows, summed in float64; deviation 1 where constant."""
    rows = rows_TF[chosen_T.to(rows_TF.device)]
    total_F = torch.zeros(rows.shape[1], dtype=torch.float64, device=rows.device)
    squares_F = torch.zeros_like(total_F)
    for part in torch.split(rows, 1 << 16):  # float64 copies of a part at a time
        total_F += part.double().sum(0)
    mean_F = total_F / len(rows)
    for part in torch.split(rows, 1 << 16):
        squares_F += (part.double() - mean_F).square().sum(0)
    std_F = (squares_F / len(rows)).sqrt()
    constant_F = std_F <= 1e-6 * mean_F.abs() + 1e-12  # float32 rows: a constant varies by its rounding at most
    return mean_F.float(), torch.where(constant_F, 1.0, std_F).float()


def _covered(starts: np.ndarray, lookback: int, num_bars: int) -> np.ndarray:
    """Tell of each row whether a window holds it."""
    change = np.zeros(num_bars + 1, dtype=np.int64)
    change[starts] += 1
    change[starts + lookback] -= 1
    return np.asarray(np.cumsum(change[:-1]) > 0)


def _refuse_bad_features(candles: Candles, rows_TF: Tensor, warmup: int, names: tuple[str, ...]) -> None:
    if rows_TF.shape[0] != len(candles):
        raise DataError(
            f"{candles.symbol} has {len(candles)} bars and {rows_TF.shape[0]} rows of features", do="Give one row a bar."
        )
    bad_TF = ~torch.isfinite(rows_TF[warmup:])
    if bad_TF.any():
        row, column = (int(index) for index in bad_TF.nonzero()[0])
        name = names[column] if names else f"feature {column}"
        raise DataError(
            f"{name} of {candles.symbol} is not finite at {time_text(candles.timestamp[row + warmup])}",
            why=f"{int(bad_TF.sum())} such values",
            do="Look at the bars around that time.",
        )
