"""Shared parts of the benchmarks: interleaved rounds, medians of their ratios, the machine's description, and
the JSON file.

The load of a machine varies. Contenders therefore run in interleaved rounds, alternately forwards and
backwards. A ratio is the median, over the rounds, of the ratio of two contenders in the same round.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import torch

from trainer.job.reading import job_from
from trainer.train.hardware import processor
from trainer.train.precision import matmul_dtype

RESULTS = Path(__file__).parent / "results"


def interleave(contenders: Mapping[str, Callable[[], float]], *, rounds: int) -> dict[str, list[float]]:
    """Run every contender once per round, every other round backwards; return its results (rates) by name."""
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds):
        names = list(contenders) if number % 2 == 0 else list(contenders)[::-1]
        for name in names:
            rates[name].append(contenders[name]())
    return rates


def ratio(rates: Mapping[str, Sequence[float]], name: str, base: str) -> float:
    """Return how many times faster `name` is than `base`: the median of the ratios of each round."""
    return statistics.median(one / other for one, other in zip(rates[name], rates[base], strict=True))


def median(rates: Mapping[str, Sequence[float]], name: str) -> float:
    """Return the median rate of a contender."""
    return statistics.median(rates[name])


def machine() -> dict[str, Any]:
    """Return the conditions of a measurement: date, chip, cores, load, torch."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "date": date.today().isoformat(),
        "chip": gpu or processor(),
        "cores": os.cpu_count(),
        "load_1m": round(os.getloadavg()[0], 1),
        "torch": torch.__version__,
        "instructions": torch.backends.cpu.get_cpu_capability(),
    }


def half_precision(kind: str) -> str:
    """Return the half precision to measure on `cuda` or `cpu`: this GPU's default for a TCN (a narrow LSTM's
    is fp32), bf16 on a CPU.
    """
    wide = job_from({"model": {"name": "tcn"}})
    return "bf16" if kind == "cpu" or matmul_dtype(wide, torch.device(kind)) == torch.bfloat16 else "fp16"


def write(name: str, found: Mapping[str, Any], out: Path | None) -> Path:
    """Write the figures as JSON to `out` (default: benchmarks/results/NAME.json); return the file."""
    path = out or RESULTS / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return path
