"""Test that learning is real: find planted signals, and find nothing in random walks.

    python -m benchmarks.learning            all of it (about six minutes on two cores)
    python -m benchmarks.learning --quick    smaller (a minute or two)

- Planted: prices move only once in about 25 bars; the direction depends on the volume of the bars 20 to 40
  before. The inputs are only each bar's return and volume. Two moves are further apart than the bars that
  determine a direction, so that no return reveals it.
- Crossed: a volatility that depends on the volume of the bars 20 to 40 before, for an LSTM, and the direction
  above, for a TCN.
- Panel: the order of the series' volumes on a date determines the order of their returns on the next, beneath
  a larger market return; then the same shuffled.
- Nothing: walks of constant volatility, five seeds; no target's gain over its unconditional baseline may be
  above zero.
- Chance: random walks through features, splits, scalers and training; then the same with one feature read one
  bar ahead.

Writes benchmarks/results/learning.json.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.planted import (
    constant_walk,
    direction_of,
    panel_job,
    planted_candles,
    planted_panel,
    planted_volatility,
)
from benchmarks.rounds import machine, write
from trainer.data.read.candles import Candles
from trainer.data.read.writing import write_candles
from trainer.data.synthetic import synthetic_candles
from trainer.data.timeframes import DAY
from trainer.job.job import Job
from trainer.job.pieces import pieces_of
from trainer.job.pieces.piece import SeriesWork
from trainer.job.reading import parse_job
from trainer.store.card import read_card
from trainer.targets import TARGETS
from trainer.targets.inference import CellMean
from trainer.train.evaluate.evaluation import evaluate
from trainer.train.evaluate.scores import reader_for
from trainer.train.hardware import hardware_of
from trainer.train.inputs.encoder import check_inputs
from trainer.train.inputs.rows import SymbolData, prepare
from trainer.train.inputs.series import alone
from trainer.train.inputs.source import plan_and_open, read_source
from trainer.train.loop import train
from trainer.train.packs.pack import ModelState
from trainer.train.packs.strategy import form_pack
from trainer.train.piece import close_piece, ended, open_piece, outputs_of_trained, run_of
from trainer.train.run import Run

ANNEALED: dict[str, Any] = {"model.dropout": 0.0, "train.learning_rate": 1e-2, "train.schedule": "cosine"}
SPANS = {"data.test_fraction": 0.2, "data.validation_fraction": 0.1}
FOUND_BY_LSTM: dict[str, Any] = {
    "model.hidden": 16,
    "model.layers": 1,
    "model.lookback": 41,
    "train.batch": 64,
    "train.epochs": 12,
    "train.patience": 12,
    **ANNEALED,
}
QUICK_EPOCHS = 6  # for CROSSED: enough for both to find their signal
PLANTED = parse_job({}, {**FOUND_BY_LSTM, **SPANS, "target.horizon": 1})
NOTHING: dict[str, Any] = {
    "model.hidden": 4,
    "model.layers": 1,
    "model.dropout": 0.0,
    "model.lookback": 5,
    "train.epochs": 2,
    "train.batch": 128,
    "train.learning_rate": 3e-3,
    "data.validation_fraction": 0.1,
}
CHANCE = parse_job({}, {**NOTHING, "target.horizon": 1, "data.test_fraction": 0.5})
CROSSED: dict[
    str, dict[str, Any]
] = {  # settings of a pair of model and target that is not the model's default
    "lstm-volatility": {
        "model.name": "lstm",
        "target.name": "volatility",
        "target.horizon_sessions": 1,
        **FOUND_BY_LSTM,
    },
    "tcn-direction": {
        "model.name": "tcn",
        "target.name": "direction",
        "target.horizon": 1,
        "model.blocks": 4,
        "model.width": 8,
        "model.chunk": 256,
        "train.batch": 8,
        "train.epochs": 20,
        "train.patience": 20,
        **ANNEALED,
        **SPANS,
    },
}
NEXT = {
    target: {f"target.{'horizon_sessions' if target == 'volatility' else 'horizon'}": 1}
    for target, home in TARGETS.items()
    if not home.acts
}
PROPER = {name: home.proper[0] for name, home in TARGETS.items() if not home.acts}
TEST_BARS = 10_000
TOLERANCE = 0.01  # of the mean AUC of five seeds around one half: nearly four standard errors
SCALERS = ("pooled", "series", "rank")  # of a panel


def main() -> None:
    """Run all parts, print their tables, write the file."""
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--quick", action="store_true")
    parse.add_argument("--out", type=Path)
    options = parse.parse_args()
    quick = options.quick
    torch.set_num_threads(1)
    figures: dict[str, Any] = {"machine": machine(), "quick": quick}

    def show(part: str, title: str, rows: list[dict[str, Any]]) -> None:
        figures[part] = rows
        print(f"\n{title}\n\n{table_of(rows)}")

    seeds = range(5)
    moves, bars = (8_000, 20_000) if quick else (16_000, 50_000)
    show("planted", "planted signal", [planted(seed, moves=moves) for seed in seeds[:3]])
    pairs = [crossed(pair, seed=seed, quick=quick) for pair in CROSSED for seed in seeds[:3]]
    show("crossed", "planted signals, other pairs of model and target", pairs)
    panels = [
        panel(seed, scaler, shuffled=shuffled, **({"series": 20, "dates": 400} if quick else {}))
        for scaler in (SCALERS[-1:] if quick else SCALERS)
        for seed in seeds[:3]
        for shuffled in (False, True)
    ]
    show("panel", "planted order of a panel's series; then shuffled", panels)
    walks = [nothing(target, seed, bars=bars) for target in PROPER for seed in seeds]
    show("nothing", "walks of constant volatility: the gain over the unconditional baseline", walks)
    chances = [chance(seed, ahead=ahead) for ahead in (False, True) for seed in seeds]
    show("chance", "random walk; then one feature one bar ahead", chances)
    for ahead in (False, True):
        aucs = [row["auc"] for row in chances if row["ahead"] == ahead]
        verdict = "chance" if looks_like_chance(aucs) else "NOT chance"
        print(f"mean AUC {np.mean(aucs):.4f}{' with a feature one bar ahead' if ahead else ''}: {verdict}")
    print(write("learning", figures, options.out))


def planted(seed: int, *, moves: int, epochs: int = PLANTED.train.epochs) -> dict[str, Any]:
    """Train a small model on candles with a planted signal; return its AUC, the attainable one and a
    baseline's.
    """
    candles, features = planted_candles(seed, moves=moves)
    data = prepare(candles, PLANTED, features=features, warmup=0)
    bars, labels = data.bars("test"), data.labels("test")
    known = np.where(direction_of(features[:, 1].double().numpy())[bars + 1] > 0, 0.9, 0.1)
    oracle = data.target.scores(known, labels)
    simple = data.target.baselines(data.scored("test"))["logistic"]
    began = time.perf_counter()
    scored = learn(data, PLANTED.with_train(seed=seed, epochs=epochs))
    return {
        "seed": seed,
        "auc": scored["auc"],
        "attainable": oracle["auc"],
        "logistic on the last bar": data.target.scores(simple, labels)["auc"],
        "test windows": scored["n"],
        "seconds": round(time.perf_counter() - began, 1),
    }


def crossed(pair: str, *, seed: int, quick: bool = False) -> dict[str, Any]:
    """Train a pair on the signal planted for its target; return its headline metric on test and the best
    baseline's.
    """
    job = parse_job(
        {}, {**CROSSED[pair] | ({"train.epochs": QUICK_EPOCHS} if quick else {}), "train.seed": seed}
    )
    candles, features = (
        planted_volatility(seed, bars=6_000 if quick else 12_000)
        if job.target.name == "volatility"
        else planted_candles(seed, moves=4_000 if quick else 16_000)
    )
    data = prepare(candles, job, features=features, warmup=1)
    began = time.perf_counter()
    scored = learn(data, job)
    metric = data.target.metrics[0].name
    labels = data.labels("test")
    simple = [
        data.target.scores(forecast, labels)[metric]
        for forecast in data.target.baselines(data.scored("test")).values()
    ]
    return {
        "pair": pair,
        "seed": seed,
        "metric": metric,
        "found": scored[metric],
        "best baseline": max(value for value in simple if value is not None),
        "test bars": scored["n"],
        "seconds": round(time.perf_counter() - began, 1),
    }


def trained_panel(job: Job, candles: Sequence[Candles], folder: Path) -> Path:
    """Train the one piece of a panel's job on daily candles, written to `folder`; return its file."""
    file = folder / "panel_1d.parquet"
    write_candles(file, list(candles))
    data = plan_and_open(job, file, scratch=folder)
    job = job.with_data(timeframe=data.plan.timeframe)
    check_inputs(job)
    work = [SeriesWork(symbol=one, bars=0, windows=(0,), visits=(0,)) for one in data.plan.symbols]
    piece = pieces_of(job, work, timeframe="1d")[0]
    opened = open_piece(piece, job, read_source(piece, job, data))
    best = best_of(opened.run, job)
    opened = ended(opened, job)
    outputs = outputs_of_trained(opened, best, job)
    close_piece(opened, outputs, job, out=folder, hardware=hardware_of("cpu", "fp32"))
    return folder / f"{piece.name}.safetensors"


def panel(
    seed: int, scaler: str, *, series: int = 40, dates: int = 700, shuffled: bool = False
) -> dict[str, Any]:
    """Train on a planted or a shuffled panel, from files to the card; return the rank correlation by date on
    the test span, with its 95 % interval.
    """
    job = panel_job(scaler, seed=seed)
    with tempfile.TemporaryDirectory(prefix="mayfly-panel-") as name:
        folder = Path(name)
        candles = planted_panel(seed, series=series, dates=dates, shuffled=shuffled)
        test = read_card(trained_panel(job, candles, folder)).metrics["test"]
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


def nothing(target: str, seed: int, *, bars: int) -> dict[str, Any]:
    """Train on a walk of constant volatility; return the 99 % interval of the gain over the unconditional
    baseline, in the target's proper score, and for quantiles the 99 % interval of the coverage.
    """
    candles = constant_walk(seed, bars=bars)
    job = parse_job(
        {}, {**NOTHING, **NEXT[target], "data.test_fraction": 0.3, "target.name": target, "train.seed": seed}
    )
    data = prepare(candles, job)
    model = trained(data, job)
    outputs = {span: reader_for(data, job).outputs(model, data.bars(span)) for span in ("validation", "test")}
    fitted = data.target.calibrate(outputs["validation"], data.labels("validation"), data.fitted)
    forecast, rows = data.target.forecast(outputs["test"], fitted), data.scored("test")
    simple = data.target.baselines(rows)
    name = next(
        name for name, other in simple.items() if len(np.unique(other.reshape(len(other), -1), axis=0)) == 1
    )
    report = evaluate(forecast, data.target, rows, forecasts={name: simple[name]}).scores
    gain = report["better"][name][PROPER[target]]
    known = {part: gain[part] for part in ("error", "freedom")} if gain else {}
    low, high = CellMean(value=gain["gain"], **known).interval(0.99) if gain else (None, None)
    covered: tuple[float | None, float | None] = (None, None)
    if "covered" in report["intervals"]:
        covered = _coverage_interval(data, outputs, fitted)
    return {
        "target": target,
        "seed": seed,
        "over": name,
        "score": PROPER[target],
        "gain low": low,
        "gain high": high,
        "covered low": covered[0],
        "covered high": covered[1],
    }


def _coverage_interval(
    data: SymbolData, outputs: dict[str, np.ndarray], fitted: dict[str, Any]
) -> tuple[float, float]:
    """Return the 99 % interval of the coverage on test over resampled days of test and of validation. Each
    replicate calibrates on its validation days, since both spans contribute to the error of the coverage.
    """
    random, covered = np.random.default_rng(0), []
    days = {}
    for span in outputs:
        block = data.candles.timestamp[data.bars(span)] // DAY
        days[span] = [np.flatnonzero(block == day) for day in np.unique(block)]
    for _ in range(300):
        drawn = {
            span: np.concatenate([rows[n] for n in random.integers(0, len(rows), len(rows))])
            for span, rows in days.items()
        }
        labels = {span: data.labels(span)[rows] for span, rows in drawn.items()}
        again = data.target.calibrate(
            outputs["validation"][drawn["validation"]], labels["validation"], fitted
        )
        forecast = data.target.forecast(outputs["test"][drawn["test"]], again)
        covered.append(data.target.scores(forecast, labels["test"])["covered"])
    low, high = np.quantile(covered, [0.005, 0.995])
    return float(low), float(high)


def chance(seed: int, *, ahead: bool = False) -> dict[str, Any]:
    """Train on a random walk with the usual features and splits; `ahead` shifts one feature one bar too
    early.
    """
    candles = synthetic_candles("WALK", bars=2 * TEST_BARS + 1_000, seed=seed)
    data = prepare(candles, CHANCE)
    if ahead:
        rows_TF = data.rows_TF.clone()
        rows_TF[:-1, 0] = data.rows_TF[1:, 0]  # the return of one bar
        data = replace(data, rows_TF=rows_TF)
    scored = learn(data, CHANCE.with_train(seed=seed))
    return {"seed": seed, "ahead": ahead, "auc": scored["auc"], "test windows": scored["n"]}


def looks_like_chance(aucs: Sequence[float]) -> bool:
    """Return whether the mean AUC of five seeds, 10,000 test bars each, is as near to one half as chance
    explains.
    """
    return bool(abs(np.mean(aucs) - 0.5) <= TOLERANCE)


class _OneRun:
    """A roster of one run that keeps the trained model."""

    def __init__(self, run: Run) -> None:
        self._waiting = [run]
        self.model: torch.nn.Module | None = None

    def arrivals(self, free: int, *, wait: bool, make_room: Callable[[], None]) -> list[Run]:
        waiting, self._waiting = self._waiting, []
        return waiting

    def checkpoint(self, run: Run, state: ModelState, *, snapshot_seconds: float) -> None:
        """Keep none: a run takes seconds."""

    def finished(self, run: Run, model: torch.nn.Module) -> None:
        self.model = model


def best_of(run: Run, job: Job) -> torch.nn.Module:
    """Train one run in this process, with early stopping, and return its model with the best weights."""
    roster = _OneRun(run)
    train(roster, lambda members: form_pack(members, job), job, lambda event: None)
    assert roster.model is not None
    return roster.model


def trained(data: SymbolData, job: Job) -> torch.nn.Module:
    """Return a model trained on one symbol."""
    return best_of(run_of(alone(data), job, model=data.symbol, seed=job.train.seed), job)


def learn(data: SymbolData, job: Job) -> dict[str, Any]:
    """Train one model; return its metrics on test, without intervals."""
    model = trained(data, job)
    outputs = reader_for(data, job).outputs(model, data.bars("test"))
    return dict(data.target.scores(data.target.forecast(outputs, data.fitted), data.labels("test")))


def table_of(rows: Sequence[dict[str, Any]]) -> str:
    """Return rows as a table in Markdown."""
    lines = [list(rows[0]), ["---"] * len(rows[0])]
    for row in rows:
        lines.append([f"{value:.4f}" if isinstance(value, float) else str(value) for value in row.values()])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    main()
