"""Compare a head on a pretrained encoder with the same model trained from scratch, on few labels.

    python -m benchmarks.pretraining                                a planted panel (two minutes of a core)
    python -m benchmarks.pretraining --quick                        one seed instead of three
    python -m benchmarks.pretraining --sp500 SP500_1d.parquet       and 40 stocks of the S&P 500

- Planted: the order of the series' returns on a date follows from the product of their volumes one and three
  days before: no input alone says anything. An encoder learns returns on the older dates of all series.
  Its head learns direction on the last dates, of which few train.
- S&P 500: 40 stocks, the encoder on the bars until April 2017, the head on the last 420 days. Nothing is
  planted.

Encoder and head see no bar twice that scores: `model.encoder`'s date rule holds. Each row is one seed: rank
correlation by date on the head's test span, with its 95 % interval. Writes
benchmarks/results/pretraining.json.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.learning import table_of, trained_panel
from benchmarks.planted import planted_panel
from benchmarks.rounds import machine, write
from trainer.data.read.candles import Candles
from trainer.data.read.reading import CandleFolder
from trainer.job.job import Job
from trainer.job.reading import parse_job
from trainer.store.card import read_card
from trainer.targets.inference import CellMean
from trainer.train.inputs.encoder import pinned

SEEDS = range(3)
OLD_DATES, DATES, HEAD_DATES, SERIES = 1_200, 1_400, 210, 40
HEAD_SPANS = {"data.validation_days": 30, "data.test_days": 100}
PLANTED: dict[str, Any] = {
    "name": "planted",
    "data.panel": True,
    "data.scaler": "rank",
    "data.timeframe": "1d",
    "data.calendar": "sessions",
    "data.features": ("volume_zscore_15",),
    "target.horizon": 1,
    "model.name": "transformer",
    "model.preset": "tiny",
    "model.lookback": 4,
    "model.patch": 1,
    "model.dropout": 0.0,
    "model.instance_norm": False,
    "train.batch": 256,
    "train.epochs": 12,
    "train.patience": 4,
    "train.learning_rate": 1e-3,
}
STOCKS: dict[str, Any] = {
    **PLANTED,
    "name": "stocks",
    "data.calendar": "XNYS",
    "data.features": ("auto",),
    "target.horizon": 5,
    "model.lookback": 32,
    "model.patch": 4,
    "model.instance_norm": True,
    "train.batch": 1024,
    "train.epochs": 3,
    "train.patience": 2,
    "train.learning_rate": 3e-4,
}
STOCK_COUNT, HEAD_BARS, ENCODER_BARS = 40, 420, 1_100
STOCK_SPANS = {"data.validation_days": 60, "data.test_days": 200}


def main() -> None:
    """Run both parts, print their tables, write the file."""
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--sp500", type=Path, help="daily bars of stocks in one file")
    parse.add_argument("--quick", action="store_true", help="one seed")
    parse.add_argument("--out", type=Path)
    options = parse.parse_args()
    torch.set_num_threads(1)
    seeds = SEEDS[:1] if options.quick else SEEDS
    figures: dict[str, Any] = {"machine": machine()}
    rows = [row for seed in seeds for row in planted(seed)]
    figures["planted"] = rows
    print(f"\nplanted panel, few labels\n\n{table_of(rows)}\n\n{_together(rows)}", flush=True)
    if options.sp500:
        rows = [row for seed in seeds for row in stocks(options.sp500, seed)]
        figures["sp500"] = rows
        print(f"\nS&P 500, {STOCK_COUNT} stocks\n\n{table_of(rows)}\n\n{_together(rows)}", flush=True)
    write("pretraining", figures, options.out)


def planted(seed: int) -> list[dict[str, Any]]:
    """Return the rows of one seed on a planted panel."""
    candles = planted_panel(seed, series=SERIES, dates=DATES, product=True)
    cut = candles[0].timestamp[0] + (OLD_DATES - 1) * 86_400 * 10**9
    old = [_until(one, int(cut)) for one in candles]
    young = [_last(one, HEAD_DATES) for one in candles if one.timestamp[-1] > cut]
    encoder = {**PLANTED, "target.name": "return", "target.volatility_bars": 20}
    head = {**PLANTED, **HEAD_SPANS, "target.name": "direction"}
    return compared(seed, old, young, encoder=encoder, head=head)


def stocks(path: Path, seed: int) -> list[dict[str, Any]]:
    """Return the rows of one seed on stocks: every tenth of the file, by name."""
    with tempfile.TemporaryDirectory(prefix="mayfly-stocks-") as scratch:
        folder = CandleFolder(path, Path(scratch), timeframe="1d")
        candles = [folder.read(symbol) for symbol in sorted(folder.symbols)[::10]]
    whole = [one for one in candles if len(one) >= ENCODER_BARS + HEAD_BARS][:STOCK_COUNT]
    cut = int(whole[0].timestamp[-HEAD_BARS])
    old = [_last(_until(one, cut), ENCODER_BARS) for one in whole]
    young = [_last(one, HEAD_BARS) for one in whole]
    encoder = {**STOCKS, "target.name": "return", "target.volatility_bars": 20}
    return compared(
        seed, old, young, encoder=encoder, head={**STOCKS, **STOCK_SPANS, "target.name": "direction"}
    )


def compared(
    seed: int,
    old: Sequence[Candles],
    young: Sequence[Candles],
    *,
    encoder: dict[str, Any],
    head: dict[str, Any],
) -> list[dict[str, Any]]:
    """Return the scores of a head on an encoder, with all of it and its head alone trained, and of the same
    model from scratch.
    """
    with tempfile.TemporaryDirectory(prefix="mayfly-pretraining-") as name:
        folder = Path(name)
        made = trained(parse_job({}, {**encoder, "train.seed": seed}), old, folder / "old")
        rows = []
        for start, more in (
            ("scratch", {}),
            ("encoder", {"model.encoder": str(made)}),
            ("encoder, frozen", {"model.encoder": str(made), "model.encoder_training": "frozen"}),
        ):
            began = time.perf_counter()
            job = parse_job({}, {**head, **more, "train.seed": seed})
            card = read_card(trained(job, young, folder / start))
            test = card.metrics["test"]
            low, high = test["intervals"]["rank_correlation"] or (None, None)
            labels = sum(one.splits["train"]["windows"] for one in card.series)
            rows.append(
                {
                    "seed": seed,
                    "start": start,
                    "rank correlation": test["rank_correlation"],
                    "low": low,
                    "high": high,
                    "log loss": test["log_loss"],
                    "labels": labels,
                    "dates": test["dates"],
                    "epochs": card.training["epochs_run"],
                    "seconds": round(time.perf_counter() - began, 1),
                }
            )
        return rows


def trained(job: Job, candles: Sequence[Candles], folder: Path) -> Path:
    """Train a job's one piece on candles, and return its file."""
    folder.mkdir()
    return trained_panel(pinned(job), candles, folder)


def _together(rows: Sequence[dict[str, Any]]) -> str:
    """Return the mean gain of the encoder over training from scratch, with its interval over the seeds."""
    lines = []
    for start in dict.fromkeys(row["start"] for row in rows if row["start"] != "scratch"):
        gains = [
            row["rank correlation"] - other["rank correlation"]
            for row in rows
            for other in rows
            if (row["start"], other["start"], row["seed"]) == (start, "scratch", other["seed"])
        ]
        error = float(np.std(gains, ddof=1) / np.sqrt(len(gains))) if len(gains) > 1 else float("inf")
        found = CellMean(value=float(np.mean(gains)), error=error, freedom=max(1, len(gains) - 1))
        low, high = found.interval()
        text = f"{found.value:+.4f} [{low:+.4f}, {high:+.4f}] in rank correlation over training from scratch"
        lines.append(f"{start}: {text}, {len(gains)} seeds")
    return "\n".join(lines)


def _until(candles: Candles, cut: int) -> Candles:
    """Return the bars before an instant in ns."""
    return _sliced(candles, slice(0, int(np.searchsorted(candles.timestamp, cut))))


def _last(candles: Candles, bars: int) -> Candles:
    """Return the last bars."""
    return _sliced(candles, slice(max(0, len(candles) - bars), len(candles)))


def _sliced(candles: Candles, part: slice) -> Candles:
    names = ("timestamp", "open", "high", "low", "close", "volume")
    return replace(candles, **{name: getattr(candles, name)[part] for name in names})


if __name__ == "__main__":
    main()
