"""Test that a panel learns a planted cross-sectional signal, and nothing from noise.

    python -m benchmarks.panel            three seeds, planted and shuffled, each scaler (a minute)
    python -m benchmarks.panel --quick    smaller, only the scaler `rank`

Planted: on each date, the order of the series' volumes determines the order of their returns on the next,
beneath a larger, unpredictable market return. Shuffled: the same with that order permuted on each date. Some
series begin late, some end early, and each misses days. Runs everything: files, plan, training, card. Writes
benchmarks/results/panel.json.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.rounds import machine, write
from trainer.data.ranks import ranks
from trainer.data.read.candles import Candles
from trainer.data.read.writing import write_candles
from trainer.data.timeframes import DAY
from trainer.job.job import Job, parse_job
from trainer.job.pieces import pieces_of
from trainer.job.pieces.piece import SeriesWork
from trainer.store.card import Card, read_card
from trainer.train.inputs.source import open_data, read_source
from trainer.train.loop import Run, train
from trainer.train.packs.pack import ModelState
from trainer.train.packs.strategy import form_pack
from trainer.train.piece import Opened, close_piece, open_piece, outputs_of_trained

FIRST = 18_262 * DAY  # 2020-01-01
MARKET, SIGNAL, NOISE = 0.02, 0.01, 0.005  # deviations of a day's return
MISSING = 0.02  # share of a series' days
SCALERS = ("pooled", "series", "rank")


def planted_panel(seed: int, *, series: int, dates: int, shuffled: bool = False) -> list[Candles]:
    """Return the candles of a panel with missing days, late beginnings and early ends."""
    random = np.random.default_rng(seed)
    loudness_DS = random.standard_normal((dates, series))
    order_DS = ranks(loudness_DS)
    if shuffled:
        order_DS = random.permuted(order_DS, axis=1)
    market_D1 = MARKET * random.standard_normal((dates, 1))
    noise_DS = NOISE * random.standard_normal((dates, series))
    returns_DS = market_D1 + noise_DS
    returns_DS[1:] += SIGNAL * order_DS[:-1]
    level_S = np.exp(random.normal(0, 2, series))  # volumes differ by series far more than by day
    made = []
    for number in range(series):
        close = 50 * np.exp(np.cumsum(returns_DS[:, number]))
        first = np.concatenate([[50.0], close[:-1]])
        begins = dates // 3 if number % 7 == 3 else 0
        ends = dates - dates // 4 if number % 7 == 5 else dates
        there = (np.arange(dates) >= begins) & (np.arange(dates) < ends) & (random.random(dates) >= MISSING)
        columns = {
            "open": first,
            "high": np.maximum(first, close),
            "low": np.minimum(first, close),
            "close": close,
            "volume": level_S[number] * np.exp(loudness_DS[:, number]),
        }
        timestamp = FIRST + DAY * np.arange(dates, dtype=np.int64)[there]
        bars = {name: values[there] for name, values in columns.items()}
        made.append(Candles(symbol=f"S{number:02d}", timeframe="1d", timestamp=timestamp, **bars))
    return made


def job_for(scaler: str, *, seed: int) -> Job:
    """Return the job of a small model that reads only volume."""
    keys: dict[str, Any] = {
        "name": "planted",
        "data.panel": True,
        "data.scaler": scaler,
        "data.timeframe": "1d",
        "data.calendar": "sessions",
        "data.features": ("volume_zscore_15",),
        "target.name": "return",
        "target.horizon": 1,
        "target.volatility_bars": 20,
        "model.lookback": 3,
        "model.hidden": 8,
        "model.layers": 1,
        "model.dropout": 0.0,
        "train.batch": 256,
        "train.epochs": 6,
        "train.learning_rate": 1e-2,
        "data.test_fraction": 0.25,
        "train.seed": seed,
    }
    return parse_job({}, keys)


class _OneModel:
    """A roster of one piece that writes its model to `out`."""

    def __init__(self, opened: Opened, job: Job, out: Path) -> None:
        self._waiting, self._opened, self._job, self._out = [opened.run], opened, job, out

    def arrivals(self, free: int, *, wait: bool) -> Sequence[Run]:
        return [self._waiting.pop()] if self._waiting else []

    def checkpoint(self, run: Run, state: ModelState, *, snapshot_seconds: float) -> None:
        """Keep nothing."""

    def finished(self, run: Run, model: Any) -> None:
        close_piece(
            self._opened,
            outputs_of_trained(self._opened, model, self._job),
            self._job,
            out=self._out,
            device="cpu",
        )


def trained(panel: Sequence[Candles], job: Job, folder: Path) -> Card:
    """Write the candles, train the panel's first model in `folder` and return its card."""
    write_candles(folder / "panel_1d.parquet", panel)
    data = open_data(job, folder / "panel_1d.parquet", scratch=folder)
    nothing = (0,) * job.data.folds
    series = [
        SeriesWork(symbol=symbol, bars=0, windows=nothing, visits=nothing) for symbol in data.plan.symbols
    ]
    piece = pieces_of(job, series, timeframe="1d")[0]
    opened = open_piece(piece, job, read_source(piece, job, data))
    train(_OneModel(opened, job, folder), lambda members: form_pack(members, job), job, lambda event: None)
    return read_card(folder / f"{piece.name}.safetensors")


def scored(
    seed: int, scaler: str, *, series: int = 40, dates: int = 700, shuffled: bool = False
) -> dict[str, Any]:
    """Return the rank correlation of a planted or a shuffled panel on its test span, with its interval."""
    panel = planted_panel(seed, series=series, dates=dates, shuffled=shuffled)
    with tempfile.TemporaryDirectory(prefix="mayfly-panel-") as folder:
        test = trained(panel, job_for(scaler, seed=seed), Path(folder)).metrics["test"]
    low, high = test["intervals"]["rank_correlation"] or (None, None)
    return {
        "seed": seed,
        "scaler": scaler,
        "shuffled": shuffled,
        "rank correlation": test["rank_correlation"],
        "low": low,
        "high": high,
        "dates": test["dates"],
    }


def main(arguments: list[str] | None = None) -> int:
    """Print and write the figures; return 1 if one is not as expected."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.panel", description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    size = {"series": 20, "dates": 400} if options.quick else {}
    found, good = [], True
    for scaler in SCALERS[-1:] if options.quick else SCALERS:
        for seed in range(3):
            for shuffled in (False, True):
                one = scored(seed, scaler, shuffled=shuffled, **size)
                is_good = one["low"] <= 0 <= one["high"] if shuffled else one["rank correlation"] > 0.3
                good &= is_good
                found.append(one)
                kind = "shuffled" if shuffled else "planted"
                value = f"{one['rank correlation']:+.3f} ({one['low']:+.3f} to {one['high']:+.3f})"
                flag = "" if is_good else "  NOT AS EXPECTED"
                print(f"{scaler:7} seed {seed} {kind:8} {value}, {one['dates']} dates{flag}")
    write("panel", {"machine": machine(), "found": found}, options.out)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
