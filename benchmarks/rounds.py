"""Shared parts of the benchmarks: contenders in turn, medians of ratios of one round, the machine's name, and the JSON file.

Neighbours on a machine come and go. Contenders therefore run in interleaved rounds, forwards and backwards in turn, and a
ratio is that of two contenders in one round; its median over the rounds is what is printed.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import torch

from trainer.job import Job
from trainer.train.precision import matmul_dtype

RESULTS = Path(__file__).parent / "results"


def interleave(contenders: Mapping[str, Callable[[], float]], *, rounds: int) -> dict[str, list[float]]:
    """Run every contender once a round, every other round backwards; return what each returned (a rate), by name."""
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds):
        names = list(contenders) if number % 2 == 0 else list(contenders)[::-1]
        for name in names:
            rates[name].append(contenders[name]())
    return rates


def ratio(rates: Mapping[str, Sequence[float]], name: str, base: str) -> float:
    """Return how many times faster `name` is than `base`: the median of the ratios of each round."""
    return statistics.median(found / against for found, against in zip(rates[name], rates[base], strict=True))


def median(rates: Mapping[str, Sequence[float]], name: str) -> float:
    """Return the median rate of a contender."""
    return statistics.median(rates[name])


def machine() -> dict[str, Any]:
    """Return what a figure depends on: date, chip, cores, load, torch."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "date": date.today().isoformat(),
        "chip": gpu or _cpu(),
        "cores": os.cpu_count(),
        "load_1m": round(os.getloadavg()[0], 1),
        "torch": torch.__version__,
        "instructions": torch.backends.cpu.get_cpu_capability(),
    }


def half_precision(kind: str) -> str:
    """Return the half precision of a training on cuda or cpu: what one gets on this GPU, what one may ask for on a CPU."""
    return "bf16" if kind == "cpu" or matmul_dtype(Job(), torch.device(kind)) == torch.bfloat16 else "fp16"


def write(name: str, found: Mapping[str, Any], out: Path | None) -> Path:
    """Write the figures as JSON; return the file."""
    path = out or RESULTS / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return path


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
