"""Measure what intervals cover, and how often marks are wrong where no model is any good.

    python -m benchmarks.coverage            all of it (about ten minutes on two cores)
    python -m benchmarks.coverage --quick    fewer replications (a minute)
    python -m benchmarks.coverage --cards DIR   write benchmarks/gains.json anew from the cards of a folder

- Coverage: the log volatility of a session follows an AR(1), phi 0.97, and its realized variance is
  measured from 78 bars. A forecast that knows today's volatility is compared by QLIKE with trailing
  volatility, a week ahead, at every session. The gain is summed by week, a cell; its 95 % interval is
  that of `targets/inference.py` and, for comparison, the middle 95 % over 500 resamplings of single
  cells.
- Marks without any gain: runs of 100 models whose expected gain over the best baseline is exactly zero.
  The gains by cell have the autocorrelation and the quantiles of those of real models
  (benchmarks/gains.json), and are independent or have a common correlation of 0.6. Counted: runs with a
  mark, and single tests at 0.001.
- Power: 20 of 100 models gain 0.15 standard deviations of a cell's gain, over 1,000 cells.

Writes benchmarks/results/coverage.json.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

from benchmarks.rounds import machine, write
from trainer.store.card import read_card
from trainer.targets.direction import Direction
from trainer.targets.inference import estimate, num_cosines, t_quantile
from trainer.targets.marks import judge

GAINS = Path(__file__).with_name("gains.json")
PHI, SPREAD, BARS, WEEK = 0.97, 0.4, 78, 5
CELLS = (20, 28, 42, 120, 250, 500)
RESAMPLED = 500
MODELS, REAL, GAIN = 100, 20, 0.15
QUANTILES = 101
CORRELATION = 0.6


def main() -> None:
    """Run all parts, print their tables, write the file."""
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--quick", action="store_true")
    parse.add_argument("--cards", type=Path)
    parse.add_argument("--out", type=Path)
    options = parse.parse_args()
    if options.cards:
        GAINS.write_text(_one_line_each(gains_of(options.cards)))
        print(f"wrote {GAINS}")
        return
    replications, runs = (500, 50) if options.quick else (5_000, 1_000)
    figures: dict[str, Any] = {"machine": machine(), "quick": options.quick}
    began = time.perf_counter()
    print("cells   ours    resampled   (95 % intervals: share that holds the true gain)")
    figures["coverage"] = []
    for row in coverage(replications):
        figures["coverage"].append(row)
        print(f"{row['cells']:>5} {row['covered']:>7.1%} {row['resampled']:>9.1%}")
    known = json.loads(GAINS.read_text())
    print("\ntarget      correlation  cells  runs with a mark  tests below 0.001")
    figures["nulls"] = []
    for target, facts in known.items():
        for correlation in (0.0, CORRELATION):
            row = {"target": target, **marks(facts, runs=runs, correlation=correlation, cells=250)}
            figures["nulls"].append(row)
            told = f"{row['cells']:>6} {row['marked']:>16.1%} {row['size']:>17.5f}"
            print(f"{target:<12}{correlation:>10.1f} {told}")
    print(
        f"\ntarget      real models found, of {REAL} that gain {GAIN} deviations among {MODELS}, 1,000 cells"
    )
    figures["power"] = []
    for target, facts in known.items():
        row = {"target": target, **marks(facts, runs=max(10, runs // 10), real=REAL, cells=1_000)}
        figures["power"].append(row)
        print(f"{target:<12}{row['found']:>8.1%}   false among the found {row['false']:.1%}")
    figures["seconds"] = round(time.perf_counter() - began, 1)
    print(write("coverage", figures, options.out))


def coverage(replications: int) -> Iterator[dict[str, Any]]:
    """Yield the share of intervals that hold the true gain, for each number of cells."""
    truth = float(np.mean([weekly_gains(200, 1_000, seed=900 + part).mean() for part in range(20)]))
    for cells in CELLS:
        gains_RC = weekly_gains(replications, cells, seed=cells)
        means_R, errors_R = estimates(gains_RC)
        reach = t_quantile(0.975, num_cosines(cells)) * errors_R
        drawn = gains_RC[: replications // 5]
        low, high = resampled(drawn, seed=cells)
        yield {
            "cells": cells,
            "covered": float(np.mean(np.abs(means_R - truth) <= reach)),
            "resampled": float(np.mean((low <= truth) & (truth <= high))),
        }


def weekly_gains(replications: int, cells: int, *, seed: int) -> np.ndarray:
    """Return the mean gain (R, C) in QLIKE, over trailing volatility, of a forecast that knows today's."""
    random = np.random.default_rng(seed)
    sessions = cells * WEEK + 2 * WEEK
    logs_RS = _ar1(random.standard_normal((replications, sessions)), PHI) * SPREAD
    realized_RS = np.exp(2 * logs_RS) * random.chisquare(BARS, (replications, sessions)) / BARS
    total_RS = np.concatenate([np.zeros((replications, 1)), realized_RS.cumsum(axis=1)], axis=1)
    now = np.arange(WEEK - 1, WEEK - 1 + cells * WEEK)
    ahead = 0.5 * np.log(total_RS[:, now + WEEK + 1] - total_RS[:, now + 1])
    trailing = 0.5 * np.log(total_RS[:, now + 1] - total_RS[:, now + 1 - WEEK])
    forecast = logs_RS[:, now] * np.mean(PHI ** np.arange(1, WEEK + 1)) + 0.5 * math.log(WEEK)
    gains = _qlike(ahead - trailing) - _qlike(ahead - forecast)
    return np.asarray(gains.reshape(replications, cells, WEEK).mean(axis=2))


def estimates(gains_RC: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return means and standard errors (R,), all at once; the first is compared with `estimate`'s."""
    cells = gains_RC.shape[1]
    times = (np.arange(cells) + 0.5) / cells
    waves = np.sqrt(2 / cells) * np.cos(np.pi * np.outer(np.arange(1, num_cosines(cells) + 1), times))
    errors_R = np.sqrt(np.mean((gains_RC @ waves.T) ** 2, axis=1) / cells)
    first = estimate(gains_RC[0].tolist(), [1.0] * cells)
    assert first is not None and math.isclose(first.error, float(errors_R[0]), rel_tol=1e-6)
    return gains_RC.mean(axis=1), errors_R


def resampled(gains_RC: np.ndarray, *, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the middle 95 % (R,), (R,) of the means over cells drawn with replacement."""
    random, cells = np.random.default_rng(seed), gains_RC.shape[1]
    weights = random.multinomial(cells, np.full(cells, 1 / cells), size=RESAMPLED) / cells
    low, high = np.quantile(gains_RC @ weights.T, [0.025, 0.975], axis=1)
    return low, high


def marks(
    facts: dict[str, Any], *, runs: int, cells: int, correlation: float = 0.0, real: int = 0
) -> dict[str, Any]:
    """Return how often models of simulated runs are marked better: those without a gain, and `real` ones."""
    random = np.random.default_rng(cells)
    marked, below, found, false = 0, 0, 0, 0
    freedom, about = num_cosines(cells), Direction().about()
    for _ in range(runs):
        gains_MC = null_gains(random, facts, cells=cells, correlation=correlation)
        gains_MC[:real] += GAIN
        means_M, errors_M = estimates(gains_MC)
        told = [
            {"gain": float(mean), "error": float(error), "freedom": freedom}
            for mean, error in zip(means_M, errors_M, strict=True)
        ]
        metrics = [
            {"about": about, "test": {"cells": cells, "better": {"best": {"log_loss": one, "brier": one}}}}
            for one in told
        ]
        better = [judged is not None and judged.mark == "better" for judged in judge(metrics)]
        marked += any(better[real:])
        found, false = found + sum(better[:real]), false + sum(better[real:])
        below += int((means_M[real:] / errors_M[real:] > t_quantile(0.999, freedom)).sum())
    return {
        "correlation": correlation,
        "cells": cells,
        "runs": runs,
        "marked": marked / runs,
        "size": below / runs / (MODELS - real),
        "found": found / runs / real if real else None,
        "false": false / max(1, found + false),
    }


def null_gains(
    random: np.random.Generator,
    facts: dict[str, Any],
    *,
    cells: int,
    correlation: float,
    models: int = MODELS,
) -> np.ndarray:
    """Return the gains by cell (M, C), in deviations, of models that have none on average."""
    own, common = random.standard_normal((models, cells)), random.standard_normal((1, cells))
    normal = _ar1(
        math.sqrt(1 - correlation) * own + math.sqrt(correlation) * common, facts["autocorrelation"]
    )
    shares = np.linspace(0.5 / QUANTILES, 1 - 0.5 / QUANTILES, QUANTILES)
    places = np.array([NormalDist().inv_cdf(share) for share in shares])
    grid = np.linspace(-6, 6, 20_001)
    density = np.exp(-(grid**2) / 2)
    drawn = np.interp(grid, places, facts["quantiles"])
    mean = float(drawn @ density / density.sum())
    spread = math.sqrt(float((drawn - mean) ** 2 @ density / density.sum()))
    return np.asarray((np.interp(normal, places, facts["quantiles"]) - mean) / spread)


def gains_of(folder: Path) -> dict[str, Any]:
    """Return autocorrelation and quantiles of the gains by cell in the deciding score of the models in a
    folder, by target: means over models and baselines.
    """
    by_target: dict[str, list[tuple[float, np.ndarray]]] = {}
    for path in sorted(folder.rglob("*.safetensors")):
        card = read_card(path)
        sums, bars = card.losses["sums"][card.metrics["about"]["headline"]], np.array(card.losses["bars"])
        for name in sums:
            if name == "model":
                continue
            gains = (np.array(sums[name]) - np.array(sums["model"])) / bars
            left = gains - gains.mean()
            shares = np.linspace(0.5 / QUANTILES, 1 - 0.5 / QUANTILES, QUANTILES)
            found = float(left[1:] @ left[:-1] / (left @ left)), np.quantile(left / left.std(), shares)
            by_target.setdefault(card.target, []).append(found)
    return {
        target: {
            "models and baselines": len(found),
            "autocorrelation": round(float(np.mean([one for one, _ in found])), 3),
            "quantiles": [round(float(value), 3) for value in np.mean([one for _, one in found], axis=0)],
        }
        for target, found in by_target.items()
    }


def _one_line_each(by_target: dict[str, Any]) -> str:
    """Return JSON with a line for each target."""
    lines = [f"{json.dumps(target)}: {json.dumps(facts)}" for target, facts in by_target.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _ar1(normal_RS: np.ndarray, phi: float) -> np.ndarray:
    """Return stationary series (R, S) of unit variance whose innovations are these."""
    made = np.empty_like(normal_RS)
    made[:, 0] = normal_RS[:, 0]
    for place in range(1, normal_RS.shape[1]):
        made[:, place] = phi * made[:, place - 1] + math.sqrt(1 - phi**2) * normal_RS[:, place]
    return made


def _qlike(missed: np.ndarray) -> np.ndarray:
    return np.asarray(np.exp(2 * missed) - 2 * missed - 1)


if __name__ == "__main__":
    main()
