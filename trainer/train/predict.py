"""What a model says about every bar of a file. Over the bars it was tested on, the same numbers that its card was scored from.

Features are computed again from the candles, windows go through `score.Evaluator` as in training. Nothing here trains.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from trainer.artifacts.card import Card
from trainer.artifacts.weights import load
from trainer.data.calendar import holes
from trainer.data.candles import Candles, read_candles, time_text
from trainer.data.features import FEATURES, FEATURES_VERSION, WARMUP, compute_features
from trainer.data.labels import clear_of_holes
from trainer.data.timeframes import step_of
from trainer.errors import DataError
from trainer.models.families import build
from trainer.train.cpu import keep_freed_memory, use_one_thread
from trainer.train.packs.chunks import EVALUATION_CHUNK, StreamEvaluator
from trainer.train.score import Evaluator, probabilities_of


@dataclass(frozen=True)
class Prediction:
    """`bar`: start of the last bar seen. `available_at`: its end, when the prediction could be made (both ISO 8601, UTC)."""

    bar: str
    available_at: str
    probability: float  # that the close `horizon` bars later is higher


@dataclass(frozen=True)
class Volatility:
    """What a volatility model says; `bar` and `available_at` as in `Prediction`."""

    bar: str
    available_at: str
    volatility: float  # realized over the card's horizon_sessions: that of the whole horizon's log return, not annualized


def predict_file(model_path: Path, data_path: Path, last: int | None = None) -> Sequence[Prediction | Volatility]:
    """Predict every bar of the file (the last `last` ones) that has a whole window behind it, oldest first.

    What comes back is all `Prediction`s or all `Volatility`s, as the model's family has it.

    A bar has none within WARMUP + lookback bars of the series' beginning, or where a hole lies in its window.
    Uses one thread, as training did, so that the sums are the same. Raises DataError for a model that does not fit.
    """
    use_one_thread()
    keep_freed_memory()
    tensors, card = load(model_path)
    _check_features(card, model_path)
    candles = read_candles(data_path, symbols=(card.symbol,), timeframe=card.timeframe).symbols[card.symbol]
    starts = _window_starts(candles, card)
    if last is not None:
        starts = starts[max(0, len(starts) - last) :]
    if not len(starts):
        needed = f"{WARMUP + card.lookback} bars of {card.symbol}, the last {card.lookback} without a hole"
        raise DataError(
            f"no bar of {data_path} has a whole window behind it",
            why=f"a prediction needs {needed}; there are {len(candles)}",
            do="Give more bars.",
        )
    model = build(card.family, card.architecture).eval()
    model.load_state_dict(tensors)
    found = (_volatilities if card.family == "tcn" else _chances)(model, card, candles, starts)
    bars = candles.timestamp[starts + card.lookback - 1]
    kind = Volatility if card.family == "tcn" else Prediction
    return [
        kind(time_text(bar), time_text(end), float(value))
        for bar, end, value in zip(bars, _ends(bars, card.timeframe), found, strict=True)
    ]


def _chances(model: nn.Module, card: Card, candles: Candles, starts: np.ndarray) -> np.ndarray:
    first_row = int(starts[0]) - WARMUP  # features look back WARMUP bars and no further, so older bars are not needed
    evaluator = Evaluator(rows_TF=compute_features(candles.rows(first_row)), lookback=card.lookback, **_scaler(card))
    return probabilities_of(evaluator.logits(model, torch.from_numpy(starts - first_row)))


def _volatilities(model: nn.Module, card: Card, candles: Candles, starts: np.ndarray) -> np.ndarray:
    # Older bars are not needed, but the grid of chunks stays where it was in training: the same sums, the same digits.
    first_row = (int(starts[0]) - WARMUP) // EVALUATION_CHUNK * EVALUATION_CHUNK
    evaluator = StreamEvaluator(
        rows_TF=compute_features(candles.rows(first_row)),
        first=WARMUP + card.lookback - 1,
        bars_seen=card.lookback,
        **_scaler(card),
    )
    scaled = evaluator.outputs(model, starts - first_row + card.lookback - 1)
    return np.asarray(np.exp(scaled * card.scaler["label_std"] + card.scaler["label_mean"]))


def _scaler(card: Card) -> dict[str, Any]:
    """Return how inputs are scaled, as both evaluators take it."""
    mean, std = (torch.tensor(card.scaler[name]) for name in ("mean", "std"))
    return {"mean_F": mean, "std_F": std, "limit": card.scaler.get("limit", math.inf)}


def _check_features(card: Card, model_path: Path) -> None:
    if card.features_version != FEATURES_VERSION or tuple(card.features) != FEATURES:
        raise DataError(
            f"{model_path} was trained on features of version {card.features_version}",
            why=f"this Mayfly computes version {FEATURES_VERSION}",
            do=f"Predict with Mayfly {card.mayfly}, or train again.",
        )


def _window_starts(candles: Candles, card: Card) -> np.ndarray:
    """Return the first rows of all whole windows: as in training, but whether or not there is a label yet."""
    hole = holes(candles.timestamp, candles.timeframe, card.calendar)
    last = np.arange(WARMUP + card.lookback - 1, len(candles), dtype=np.int64)
    last = last[clear_of_holes(hole, last - card.lookback + 1, last)]
    return np.asarray(last - card.lookback + 1)


def _ends(bars: np.ndarray, timeframe: str) -> np.ndarray:
    """Return when each bar was complete. Event bars carry their last trade's time, so they end when they say."""
    return np.asarray(bars + step_of(timeframe))
