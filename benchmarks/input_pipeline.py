"""Compare gathering windows inside the step with a DataLoader: the same batches on the same device, one main
thread.

    python -m benchmarks.input_pipeline     1 M rows, batches of 256 and 2,048, 5 rounds (about three minutes)
    python -m benchmarks.input_pipeline --quick    200 k rows, batch 256, 2 rounds (seconds)

On a GPU the gather reads rows in its memory, and the loaders' batches are pinned and copied. Prints windows
per second and the ratio to a DataLoader without workers; writes benchmarks/results/input_pipeline.json.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.rounds import interleave, machine, median, ratio, write
from trainer.data.features import FEATURES
from trainer.train.predict.readers import gather

LOOKBACK = 60
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ON_GPU = DEVICE.type == "cuda"
BASE = "DataLoader, 0 workers"


class Windows(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """One slice per window, as in most tutorials."""

    def __init__(self, rows: torch.Tensor, labels: torch.Tensor) -> None:
        self.rows, self.labels = rows, labels

    def __len__(self) -> int:
        return len(self.rows) - LOOKBACK

    def __getitem__(self, start: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.rows[start : start + LOOKBACK], self.labels[start + LOOKBACK - 1]


class NumpyWindows(Windows):
    """The same over numpy, with a copy into a tensor for each window: the most common form."""

    def __init__(self, rows: torch.Tensor, labels: torch.Tensor) -> None:
        super().__init__(rows, labels)
        self.array: np.ndarray = rows.numpy()

    def __getitem__(self, start: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor(self.array[start : start + LOOKBACK]), self.labels[start + LOOKBACK - 1]


def main() -> None:
    """Run every contender, print the table, write the file."""
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--quick", action="store_true")
    parse.add_argument("--out", type=Path)
    options = parse.parse_args()
    num_rows, seconds, rounds = (200_000, 0.5, 2) if options.quick else (1_000_000, 1.5, 5)
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(num_rows, len(FEATURES), generator=generator)
    labels = torch.randint(0, 2, (num_rows,), generator=generator).float()
    tables = [
        _table(rows, labels, batch, seconds, rounds) for batch in ((256,) if options.quick else (256, 2048))
    ]
    print(
        "wrote",
        write("input_pipeline", {"machine": machine(), "rows": num_rows, "tables": tables}, options.out),
    )


def _table(
    rows: torch.Tensor, labels: torch.Tensor, batch: int, seconds: float, rounds: int
) -> dict[str, object]:
    def loader(dataset: Windows, workers: int) -> Callable[[], Iterator[object]]:
        settings = {
            "batch_size": batch,
            "shuffle": True,
            "num_workers": workers,
            "drop_last": True,
            "pin_memory": ON_GPU,
        }
        return lambda: (
            [part.to(DEVICE, non_blocking=True) for part in found]
            for found in DataLoader(dataset, **settings)
        )

    rows_here, labels_here = rows.to(DEVICE), labels.to(DEVICE)
    variants = {
        "gather in the step": lambda: _gathered(rows_here, labels_here, batch),
        BASE: loader(Windows(rows, labels), 0),
        "DataLoader, 2 workers": loader(Windows(rows, labels), 2),
        "DataLoader, numpy slices, 0 workers": loader(NumpyWindows(rows, labels), 0),
        "DataLoader, numpy slices, 2 workers": loader(NumpyWindows(rows, labels), 2),
    }
    rates = interleave(
        {name: _rate(begin, batch, seconds) for name, begin in variants.items()}, rounds=rounds
    )
    found = {
        name: {"windows_per_second": round(median(rates, name)), "ratio": round(ratio(rates, name, BASE), 2)}
        for name in rates
    }
    print(f"batch {batch}")
    for name, figures in found.items():
        print(f"  {name:38} {figures['windows_per_second']:>10,.0f} windows/s  {figures['ratio']:6.2f}x")
    return {"batch": batch, "variants": found}


def _gathered(rows: torch.Tensor, labels: torch.Tensor, batch: int) -> Iterator[object]:
    """Yield batches as the training step makes them; they are also scaled, unlike the loaders'."""
    mean, std = torch.zeros(len(FEATURES), device=DEVICE), torch.ones(len(FEATURES), device=DEVICE)
    steps = torch.arange(LOOKBACK, device=DEVICE)[:, None]
    order = torch.randperm(len(rows) - LOOKBACK).to(DEVICE)
    for first in range(0, len(order) - batch, batch):
        starts = order[first : first + batch]
        yield gather(rows, starts, steps, mean, std), labels[starts + LOOKBACK - 1]


def _rate(begin: Callable[[], Iterator[object]], batch: int, seconds: float) -> Callable[[], float]:
    def run() -> float:
        batches = begin()
        next(batches)  # starting workers is not counted
        count, since = 0, time.perf_counter()
        for _ in batches:
            count += 1
            if time.perf_counter() - since > seconds:
                break
        if ON_GPU:
            torch.cuda.synchronize()
        return count * batch / (time.perf_counter() - since)

    return run


if __name__ == "__main__":
    main()
