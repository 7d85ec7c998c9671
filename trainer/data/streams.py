"""A symbol ready for a model that streams over its bars: rows and scaler as for windows, labels a number instead of a class.

Owns the scale of the labels and what the simple forecasts of volatility are made of. No chunk is ever materialized: the
training step gathers `rows_TF[start : start + chunk + bars_seen - 1]` for a batch of starts.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from trainer.config import Job
from trainer.data.candles import Candles
from trainer.data.feature_names import WARMUP
from trainer.data.splits import Spans
from trainer.data.volatility import plan_volatility
from trainer.data.windows import SymbolData, prepare


@dataclass(frozen=True, kw_only=True)
class StreamData(SymbolData):
    """What a volatility model trains on. `labels_T` are logs, unscaled; a bar's row in `starts` is the first that it sees."""

    chunk_starts: Tensor  # int64: the first row that each chunk of training reads
    train_labels_T: Tensor  # float32: scaled, NaN everywhere but at the bars of training
    label_mean: float
    label_std: float
    horizon_sessions: int
    horizon_bars: int
    close: np.ndarray
    clock: np.ndarray  # calendar.session_clock
    first_bar: int  # the first row with all that a forecast sees behind it


def prepare_stream(
    candles: Candles,
    job: Job,
    *,
    features: Tensor | None = None,
    warmup: int = WARMUP,
    spans: Spans | None = None,
    device: str | torch.device = "cpu",
) -> StreamData:
    """Compute features, labels, spans, scalers and chunks of a symbol; tensors lie on `device`. Raises DataError.

    `features` (N, F) replaces the computed ones, with `warmup` rows at their head that nothing may see; `spans` replaces the
    job's split.
    """
    plan = plan_volatility(candles, job, warmup=warmup, spans=spans)
    base = prepare(candles, job, features=features, warmup=warmup, device=device, plan=plan)
    bars = plan.starts["train"] + job.bars_seen - 1
    seen = plan.labels[bars].astype(np.float64)
    mean, std = float(seen.mean()), float(seen.std()) or 1.0
    scaled = np.full_like(plan.labels, np.nan)
    scaled[bars] = (seen - mean) / std
    shared = {item.name: getattr(base, item.name) for item in fields(SymbolData)}
    return StreamData(
        **{**shared, "embargo": max(job.embargo, plan.horizon_bars)},
        chunk_starts=torch.from_numpy(plan.chunks - job.bars_seen + 1).to(device),
        train_labels_T=torch.from_numpy(scaled).to(device),
        label_mean=mean,
        label_std=std,
        horizon_sessions=plan.horizon_sessions,
        horizon_bars=plan.horizon_bars,
        close=candles.close,
        clock=plan.clock,
        first_bar=warmup + job.bars_seen - 1,
    )
