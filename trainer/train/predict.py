"""Predict every bar of a file. Over a model's test bars these are the numbers that its card was scored from.

Features are computed again from the candles, and go through `readers` as in training. Nothing here trains.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trainer.artifacts.card import Card, CardSeries
from trainer.artifacts.weights import load
from trainer.data.calendar import holes
from trainer.data.candles import Candles, time_text
from trainer.data.features import FEATURES, FEATURES_VERSION, WARMUP, compute_inputs
from trainer.data.reading import read_candles
from trainer.data.timeframes import step_of
from trainer.errors import DataError, UsageError
from trainer.models import MODELS, is_known, reads_of
from trainer.own_file import read_file
from trainer.plan.plans import clear_of_holes
from trainer.settings import TargetSettings, keys_of
from trainer.targets import OWN, TARGETS, default_of, scores_of
from trainer.train.cpu import keep_freed_memory, use_one_thread
from trainer.train.load_model import check_card, fitted_of, network_from, unfit
from trainer.train.readers import EVALUATION_CHUNK, reader_of


@dataclass(frozen=True)
class Prediction:
    """`bar`: start of the last bar seen. `available_at`: its end, when the prediction could be made (both ISO 8601, UTC)."""

    bar: str
    available_at: str
    values: dict[str, float]  # by the target's columns


def predict_file(
    model_path: Path, data_path: Path, last: int | None = None, *, model_file: Path | None = None, symbol: str = ""
) -> Sequence[Prediction]:
    """Predict every bar of the file (the last `last` ones) that has behind it all that the model sees, oldest first.

    A bar has not within warm-up + lookback bars of the series' beginning, or where a hole lies in them.
    Uses one thread, as training did, so that the sums are the same. A model of the user's own needs its file, for the card runs
    no code. `symbol` is one of those that the model was trained on; a model of one needs none. Raises DataError for a model
    that does not fit, UsageError for another file than the card's, and for a symbol that the card does not know.
    """
    use_one_thread()
    keep_freed_memory()
    tensors, card = load(model_path)
    series = card.of(symbol)
    with_features = _has_features(card, model_path)
    target = target_of(card, model_path)
    check_card(card, target, model_path)
    place = _own_place(card, model_path, model_file)
    symbol = series.symbol
    candles = read_candles(data_path, symbols=(symbol,), timeframe=card.timeframe, columns=card.columns)[symbol]
    warmup = max(WARMUP if with_features else 0, candles.columns_begin)
    bars = _whole_bars(candles, card, series, target, warmup=warmup)
    if last is not None:
        bars = bars[max(0, len(bars) - last) :]
    if not len(bars):
        needed = f"{warmup + card.lookback} bars of {symbol}, the last {card.lookback} without a hole"
        raise DataError(
            f"no bar of {data_path} has behind it what the model sees",
            why=f"a prediction needs {needed}; there are {len(candles)}",
            do="Give more bars.",
        )
    network = network_from(card, tensors, model_path, **place).eval()
    # Inputs look back over the warm-up and no further, so older bars are not needed. The grid of chunks stays where it was in
    # training: the same sums, the same digits.
    first_row = (int(bars[0]) - card.lookback + 1 - warmup) // EVALUATION_CHUNK * EVALUATION_CHUNK
    reader = reader_of(
        reads_of(card.family, card.architecture),
        rows_TF=compute_inputs(candles.rows(first_row), features=with_features),
        mean_F=torch.tensor(series.scaler["mean"]),
        std_F=torch.tensor(series.scaler["std"]),
        limit=series.scaler.get("limit", math.inf),
        bars_seen=card.lookback,
        first_bar=warmup + card.lookback - 1,
    )
    outputs_NO = reader.outputs(network, bars - first_row)
    columns = scores_of(target).columns(target, outputs_NO, candles, bars, fitted_of(series))
    times, values = candles.timestamp[bars], np.stack(list(columns.values()), axis=1).tolist()
    return [
        Prediction(time_text(bar), time_text(end), dict(zip(columns, row, strict=True)))
        for bar, end, row in zip(times, _ends(times, card.timeframe), values, strict=True)
    ]


def target_of(card: Card, model_path: Path) -> TargetSettings:
    """Return the target of a model as its card has it. Raises DataError for a model or target that is unknown here.

    Cards of before 2026-11-22 name none: it is the model's default, with what the card says elsewhere.
    """
    name = card.target or default_of(card.family)
    if not is_known(card.family) or name not in (*TARGETS, OWN.name):
        raise DataError(
            f"{model_path} is a {card.family} model{f' of {name}' if card.target else ''}",
            why=f"this Mayfly knows models {', '.join(MODELS)} and targets {', '.join(TARGETS)}",
            do="Predict with the Mayfly that made it.",
        )
    try:
        if name == OWN.name:  # its outputs are said as they are: nothing of the user's runs
            return OWN.from_keys(card.target_settings)
        first = card.series[0]
        given: dict[str, Any] = card.target_settings if card.target else {"horizon": first.horizon, **first.scaler}
        return TARGETS[name].from_keys({key: given[key] for key in keys_of(TARGETS[name]) if key in given})
    except UsageError as error:
        raise unfit(model_path, f"{error.what}: {error.why}") from error


def _own_place(card: Card, model_path: Path, given: Path | None) -> dict[str, str]:
    """Return what building the network needs besides the card. Raises UsageError where a file is wanted, or not wanted."""
    own = card.own_files.get("model")
    if own is None:
        if given is not None:
            raise UsageError(f"{model_path} is no model of a file", do="Leave --model-file out.")
        return {}
    if given is None:
        why = f"it was made by {own['class']} of {own['file']}, sha256 {own['sha256'][:12]}..., and a card runs no code"
        raise UsageError(f"{model_path} needs its Python file", why=why, do=f"Give it with --model-file {own['file']}.")
    read_file(given, sha256=own["sha256"])
    return {"file": str(given)}


def _has_features(card: Card, model_path: Path) -> bool:
    """Return whether the model reads our features, beside columns. Raises DataError for those of another version."""
    features = tuple(card.features[: len(card.features) - len(card.columns)])
    if features and (card.features_version, features) != (FEATURES_VERSION, FEATURES):
        raise DataError(
            f"{model_path} was trained on features of version {card.features_version}",
            why=f"this Mayfly computes version {FEATURES_VERSION}",
            do=f"Predict with Mayfly {card.mayfly}, or train again.",
        )
    return bool(features)


def _whole_bars(candles: Candles, card: Card, series: CardSeries, target: TargetSettings, *, warmup: int) -> np.ndarray:
    """Return the bars with all that the model and the target's columns read: as in training, but with a label or without."""
    hole = holes(candles.timestamp, candles.timeframe, series.calendar)
    bars = np.arange(max(warmup + card.lookback - 1, target.reach), len(candles), dtype=np.int64)
    return np.asarray(bars[clear_of_holes(hole, bars - max(card.lookback - 1, target.reach), bars)])


def _ends(bars: np.ndarray, timeframe: str) -> np.ndarray:
    """Return when each bar was complete. Event bars carry their last trade's time, so they end when they say."""
    return np.asarray(bars + step_of(timeframe))
