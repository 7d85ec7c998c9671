"""Measure a search that ends trials early against the whole grid, on candles with a planted signal.

    python -m benchmarks.search            ten seeds (ten minutes on two cores)
    python -m benchmarks.search --quick    one seed

The grid has 16 trials of an MLP: two sizes, and eight learning rates of which four are too small to learn in
27 epochs. `regret`: the best validation loss of the search less that of the grid. `cost`: the epochs of all
trials and of the model trained last, as a share of the grid's.

Writes benchmarks/results/search.json.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.planted import planted_next
from benchmarks.rounds import machine, write
from trainer.data.read.writing import write_candles
from trainer.train.__main__ import main as train

BARS, EPOCHS = 6_000, 27
RATES = [1e-3, 3e-3, 1e-2, 3e-2, 1e-7, 3e-7, 1e-6, 3e-6]  # the last four can't learn
SIZES = [8, 16]
JOB = {
    "data": {"features": ["log_relative_volume_60", "log_return_1"]},
    "model": {"name": "mlp", "lookback": 2, "layers": 1},
    "target": {"name": "direction", "horizon": 1},
    "train": {"epochs": EPOCHS, "patience": EPOCHS, "batch": 32, "checkpoint_seconds": 0},
    "search": {"method": "grid", "over": {"train.learning_rate": RATES, "model.hidden": SIZES}},
}
LEAST_REGRET, MOST_COST = 0.01, 0.5  # what a search is to keep to


def main() -> None:
    """Measure and print, then write the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one seed")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    rows = []
    for seed in range(1 if asked.quick else 10):
        rows.append(measured(seed))
        print("  ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
    print(write("search", {"machine": machine(), "rows": rows}, asked.out))


def measured(seed: int) -> dict[str, Any]:
    """Return regret and cost of a pruned grid on the candles of a seed."""
    with tempfile.TemporaryDirectory(prefix="mayfly-search-") as folder:
        candles = Path(folder) / "candles"
        candles.mkdir()
        write_candles(candles / "PLANTED_1m.parquet", [planted_next(seed, bars=BARS)])
        whole, pruned = (_searched(Path(folder), prune, seed) for prune in ("never", "halving"))
    return {
        "seed": seed,
        "grid": round(whole["score"], 4),
        "regret": round(pruned["score"] - whole["score"], 5),
        "cost": round(pruned["epochs"] / whole["epochs"], 3),
        "pruned": pruned["pruned"],
        "learned": sum(score < 0.6 for score in whole["scores"]),
    }


def keeps(row: dict[str, Any]) -> bool:
    """Return whether a search found what the grid did, at less than half of its cost."""
    return row["regret"] < LEAST_REGRET and row["cost"] < MOST_COST


def _searched(folder: Path, prune: str, seed: int) -> dict[str, Any]:
    """Train the grid; return the best loss of its trials, all of them, and the epochs that were trained."""
    job, out = folder / "job.json", folder / prune
    tables = {**JOB, "train": {**JOB["train"], "seed": seed}, "search": {**JOB["search"], "prune": prune}}
    job.write_text(json.dumps(tables))
    code = train(["--job", str(job), "--data", str(folder / "candles"), "--out", str(out), "--device", "cpu"])
    assert code == 0, f"the training ended with {code}"
    models = json.loads((out / "training_results.json").read_text())["models"]
    trials = [one for one in models if one["kind"] == "trial"]
    scores = [one["score"] for one in trials if one["score"] is not None]
    return {
        "score": min(one["score"] for one in trials if one["state"] == "done"),
        "scores": scores,
        "epochs": sum(len(one["history"]) for one in models),
        "pruned": sum(one["state"] == "pruned" for one in trials),
    }


if __name__ == "__main__":
    main()
