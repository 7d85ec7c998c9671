"""A symbol's folds, ready to train on: rows once, on the device, and of each fold its scaler, windows and spans."""

from __future__ import annotations

import torch

from trainer.config import Job, with_settings
from trainer.data.candles import Candles
from trainer.data.features import compute_features
from trainer.data.plans import plan_folds
from trainer.data.streams import prepare_stream
from trainer.data.volatility import VolatilityPlan
from trainer.data.windows import SymbolData, prepare


def prepare_folds(candles: Candles, job: Job, *, device: str | torch.device = "cpu") -> tuple[SymbolData, ...]:
    """Prepare a symbol for each fold of the job, oldest first; they share one `rows_TF`. Raises DataError."""
    plans = plan_folds(candles, job)
    rows_TF = compute_features(candles, device)
    folds: list[SymbolData] = []
    for plan in plans:
        if isinstance(plan, VolatilityPlan):
            settled = with_settings(job, horizon_sessions=plan.horizon_sessions)
            folds.append(prepare_stream(candles, settled, features=rows_TF, spans=plan.spans, device=device))
        else:
            folds.append(prepare(candles, job, features=rows_TF, plan=plan, device=device))
    return tuple(folds)
