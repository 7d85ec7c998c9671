"""Train on random walks, from files to cards, and count the marks: no model is any good.

    python -m benchmarks.walks            twenty runs, and 100 stocks (about half an hour on a core)
    python -m benchmarks.walks --quick    two runs and twenty stocks (a few minutes)

- Walks: runs of ten symbols whose prices walk with constant volatility, of each target in turn. Counted: runs
  with a model that is marked better. The rule allows one in twenty.
- Stocks: one run of 100 symbols with one epoch each, daily bars whose volatility clusters.

Of both, marks that are contradicted by a number beside them (`contradictions`). Writes
benchmarks/results/walks.json.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.planted import MINUTE, constant_walk
from benchmarks.rounds import machine, write
from trainer.data.read.candles import Candles
from trainer.data.read.writing import write_candles
from trainer.data.synthetic import synthetic_candles
from trainer.store.card import read_card
from trainer.targets import TARGETS
from trainer.targets.marks import judged, verdict
from trainer.targets.target import LOWER

SYMBOLS, HOURS = 10, 4_000
RUNS, STOCKS, SESSIONS = 20, 100, 1_500
SMALL: dict[str, Any] = {
    "model.hidden": 4,
    "model.layers": 1,
    "model.lookback": 5,
    "train.batch": 128,
    "train.epochs": 2,
    "data.test_fraction": 0.3,
    "data.validation_fraction": 0.1,
}
HORIZON = {"volatility": "target.horizon_sessions"}


def main() -> None:
    """Run both parts, print their tables, write the file."""
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--quick", action="store_true")
    parse.add_argument("--out", type=Path)
    options = parse.parse_args()
    runs, stocks = (2, 20) if options.quick else (RUNS, STOCKS)
    figures: dict[str, Any] = {"machine": machine(), "quick": options.quick}
    began = time.perf_counter()
    figures["walks"] = []
    for run in range(runs):
        figures["walks"].append(row := walk_run(run))
        print(f"{run:>3} {row['target']:<12}{row['verdict']}", flush=True)
    marked = sum(row["marks"].get("better", 0) > 0 for row in figures["walks"])
    print(f"{marked} of {runs} runs on random walks have a model that is marked better")
    figures["stocks"] = stock_run(stocks)
    print(f"{stocks} stocks, one epoch: {figures['stocks']['verdict']}")
    rows = [*figures["walks"], figures["stocks"]]
    print(f"marks contradicted by a number beside them: {sum(len(row['contradictions']) for row in rows)}")
    figures["seconds"] = round(time.perf_counter() - began, 1)
    print(write("walks", figures, options.out))


def walk_run(run: int) -> dict[str, Any]:
    """Train the models of a run on walks; return its marks and its verdict."""
    target = list(TARGETS)[run % len(TARGETS)]
    candles = [
        constant_walk(1_000 * run + number, bars=HOURS, symbol=f"W{number}", timeframe="1h", step=60 * MINUTE)
        for number in range(SYMBOLS)
    ]
    horizon = {} if TARGETS[target].acts else {HORIZON.get(target, "target.horizon"): 1}
    keys = {**SMALL, "train.seed": run, **horizon}
    return {"run": run, "target": target, **marks_of(trained(candles, target, keys))}


def stock_run(stocks: int) -> dict[str, Any]:
    """Train the models of many stocks for one epoch; return their marks and their verdict."""
    candles = [
        synthetic_candles(f"S{number:03d}", bars=SESSIONS, timeframe="1d", seed=7) for number in range(stocks)
    ]
    return marks_of(trained(candles, "direction", {**SMALL, "train.epochs": 1}))


def trained(candles: Sequence[Candles], target: str, keys: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the models of a run of `python -m trainer.train`: their pieces, and the metrics of their
    cards.
    """
    with tempfile.TemporaryDirectory(prefix="mayfly-walks-") as name:
        data, out = Path(name) / "data", Path(name) / "out"
        data.mkdir()
        for one in candles:
            write_candles(data / f"{one.symbol}_{one.timeframe}.parquet", [one])
        settings = [part for key, value in keys.items() for part in ("--set", f"{key}={value}")]
        command = [sys.executable, "-m", "trainer.train", "--data", str(data), "--out", str(out)]
        command += ["--target", target, "--workers", "1", "--device", "cpu", *settings]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2_000:]
        cards = [read_card(path) for path in sorted(out.rglob("*.safetensors"))]
    return [{"piece": card.piece, "metrics": card.metrics} for card in cards]


def marks_of(models: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a run's marks, counted, its verdict, and what contradicts a mark."""
    made = judged(models)
    return {
        "models": len(made),
        "marks": Counter(model["judgement"]["mark"] for model in made),
        "verdict": verdict(made),
        "contradictions": [
            f"{model['piece']}: {why}"
            for model in made
            for why in contradictions(model["metrics"], model["judgement"])
        ],
    }


def contradictions(metrics: Mapping[str, Any], judgement: Mapping[str, Any]) -> list[str]:
    """Return how a model's own numbers contradict its mark: scores, intervals and gains of the test span."""
    about, test, mark = metrics["about"], metrics["test"], judgement["mark"]
    decides = about["proper"][0]
    found = []
    for name, theirs in test["baselines"].items():
        ahead = {score: _ahead(about, score, test[score], theirs[score]) for score in about["proper"]}
        gain = test["better"][name][decides]
        if mark == "better" and (not ahead[decides] or gain is None or gain["low"] <= 0):
            found.append(f"better, and {decides} does not beat {name} beyond chance")
        for score, is_ahead in ahead.items():
            other = test["better"][name][score]
            if mark == "better" and not is_ahead and other["high"] < 0:
                found.append(f"better, and {score} is worse than {name} beyond chance")
    behind = [
        name
        for name, theirs in test["baselines"].items()
        if not _ahead(about, decides, test[decides], theirs[decides])
    ]
    if mark == "worse" and not behind:
        found.append("worse, and its score is the best")
    return found


def _ahead(about: Mapping[str, Any], score: str, ours: float, theirs: float) -> bool:
    return ours < theirs if about["metrics"][score]["better"] == LOWER else ours > theirs


if __name__ == "__main__":
    main()
