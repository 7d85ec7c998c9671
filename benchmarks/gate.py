"""Measure how often the gate promotes a challenger that is no better than the champion, and what it finds.

    python -m benchmarks.gate            all of it (about ten minutes on a core)
    python -m benchmarks.gate --quick    fewer champions and rows (a minute)

A champion meets 52 challengers, one each Sunday, each on the test span of that Sunday: it ends seven cells
after the last one's, and has most of its cells. The gate is `trainer/targets/gate.py` at its defaults. Gains
by cell have the autocorrelation and quantiles of those of real models (benchmarks/gains.json), over a
champion with either sign: the two could as well have changed places. Those of different Sundays are
independent, or alike with a correlation of 0.9, or the same.

- No gain: the expected gain over the champion is exactly zero, over the baselines large (`champion`); or
  there is no champion, and the gain over the baseline is zero (`baseline`). Counted: champions replaced.
- Power: a challenger that gains 0.15 to 0.5 standard deviations of a cell's gain over the champion. Counted:
  promotions on the first Sunday, and within 52.

Writes benchmarks/results/gate.json.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.coverage import GAINS, estimates, null_gains
from benchmarks.rounds import machine, write
from trainer.targets import TARGETS
from trainer.targets.gate import GateRule, decide
from trainer.targets.inference import num_cosines, t_quantile
from trainer.targets.losses import MODEL, Losses
from trainer.targets.target import LOWER, TargetSettings

SUNDAYS, STEP = 52, 7  # cells from Sunday to Sunday
CELLS = (60, 250)
ALIKE = (0.0, 0.9, 1.0)
REAL = (0.15, 0.3, 0.5)
LARGE = 2.0  # standard deviations of a cell's gain over the baselines, where the champion decides
DAY = 86_400
WORTH_A_LOOK = 0.98  # of the t that a promotion takes: a gain below it needs no exact decision


def main() -> None:
    """Run all parts, print their tables, write the file."""
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--quick", action="store_true")
    parse.add_argument("--out", type=Path)
    options = parse.parse_args()
    champions = 100 if options.quick else 1_000
    figures: dict[str, Any] = {"machine": machine(), "quick": options.quick, "rows": []}
    began = time.perf_counter()
    print("target      null      cells  alike   gain  replaced  first Sunday")
    for asked in rows(quick=options.quick):
        number = champions // 5 if asked["gain"] else champions
        row = {**asked, "champions": number, **replaced(**asked, champions=number)}
        figures["rows"].append(row)
        told = f"{row['cells']:>6} {row['alike']:>6.1f} {row['gain']:>6.2f} {row['replaced']:>9.1%}"
        print(f"{row['target']:<12}{row['null']:<9}{told} {row['first']:>13.2%}", flush=True)
    figures["seconds"] = round(time.perf_counter() - began, 1)
    print(write("gate", figures, options.out))


def rows(*, quick: bool) -> Iterator[dict[str, Any]]:
    """Yield what to measure."""
    for target in json.loads(GAINS.read_text()):
        for cells in CELLS[1:] if quick else CELLS:
            for alike in ALIKE[:1] if quick else ALIKE:
                yield {"target": target, "null": "champion", "cells": cells, "alike": alike, "gain": 0.0}
            yield {"target": target, "null": "baseline", "cells": cells, "alike": 0.0, "gain": 0.0}
        for gain in REAL[1:2] if quick else REAL:
            yield {"target": target, "null": "champion", "cells": 250, "alike": 0.9, "gain": gain}


def replaced(
    *, target: str, null: str, cells: int, alike: float, gain: float, champions: int, seed: int = 0
) -> dict[str, float]:
    """Return the share of champions that any of 52 challengers replaces, and that the first one does."""
    facts, home = json.loads(GAINS.read_text())[target], TARGETS[target]()
    random, rule = np.random.default_rng([seed, cells]), GateRule()
    ever = first = 0
    least_t = WORTH_A_LOOK * t_quantile(1 - rule.alpha / 2, num_cosines(cells))
    with threadpool_limits(1, user_api="blas"):  # threads of tiny products wait for each other
        for _ in range(champions):
            gains_KC = spans(random, facts, cells=cells, alike=alike)
            if null == "champion":
                gains_KC *= random.choice([-1, 1])
            gains_KC += gain
            means_K, errors_K = estimates(gains_KC)
            worth = np.flatnonzero(means_K / errors_K > least_t).tolist()
            promoted = (
                sunday for sunday in worth if _promoted(home, rule, gains_KC[sunday], null, sunday + 1)
            )
            when = next(promoted, None)  # then it is the champion
            ever, first = ever + (when is not None), first + (when == 0)
    return {"replaced": ever / champions, "first": first / champions}


def spans(random: np.random.Generator, facts: dict[str, Any], *, cells: int, alike: float) -> np.ndarray:
    """Return the gains by cell (K, C) of each Sunday's challenger on its test span, none on average."""
    all_KC = null_gains(random, facts, models=SUNDAYS, cells=cells + STEP * (SUNDAYS - 1), correlation=alike)
    return np.stack([all_KC[k, STEP * k : STEP * k + cells] for k in range(SUNDAYS)])


def losses_of(target: TargetSettings, gains_C: np.ndarray) -> Losses:
    """Return the losses of a model that gains so much by cell over a baseline whose scores are constant."""
    cells, bars, level = len(gains_C), 24, 10.0
    lower = {metric.name: metric.better == LOWER for metric in target.metrics}
    sums = {
        score: {
            MODEL: [bars * (level - gain if lower[score] else level + gain) for gain in gains_C.tolist()],
            "best": [bars * level] * cells,
        }
        for score in target.proper
    }
    return Losses(begins=tuple(range(0, cells * DAY, DAY)), bars=(bars,) * cells, sums=sums)


def _promoted(home: TargetSettings, rule: GateRule, gains_C: np.ndarray, null: str, challenge: int) -> bool:
    if null == "baseline":
        challenger, champion = losses_of(home, gains_C), None
    else:  # both are far better than the baseline
        champion = losses_of(home, np.full(len(gains_C), LARGE))
        challenger = losses_of(home, gains_C + LARGE)
    return decide(home, rule, challenger=challenger, champion=champion, challenge=challenge).promote


if __name__ == "__main__":
    main()
