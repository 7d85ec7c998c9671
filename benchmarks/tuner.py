"""Compare the tuner's choice with the best of a full grid, measured afterwards in interleaved rounds.

    python -m benchmarks.tuner            hidden 64 and 128, batch 256 and 1,024 (five minutes on two cores)
    python -m benchmarks.tuner --quick    a small model and a small grid: only shows that it runs

The tuner (trainer.train.tuning.tune) times a few candidates for some seconds. The grid has these candidates
and, on a CPU, finer slices and fused packs; on a GPU every strategy with every pack, with whole and halved
batches. Ratio: windows per second of the choice divided by those of the grid's best, the median over the
rounds. Exits with 1 if it is below 0.9. Writes benchmarks/results/tuner.json.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.rounds import interleave, machine, median, ratio, write
from trainer.job.job import Job, job_from
from trainer.train.cpu import keep_freed_memory, use_one_thread
from trainer.train.packs.pack import Member
from trainer.train.packs.strategy import form_pack
from trainer.train.tuning.timing import Candidate, batches, is_out_of_memory, make_members
from trainer.train.tuning.tune import GPU_PACKS, candidates, tune

FINE_SLICES = (32, 64, 96, 128, 192, 256, 512)
CPU_PACKS = (2, 4)
FEWEST = 0.9  # least share of the grid's best rate
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def main() -> int:
    """Tune and measure every shape, print the table, write the file; return 1 if a choice is poor."""
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--quick", action="store_true")
    parse.add_argument(
        "--seconds", type=float, default=0.0, help="of each tuning (default: 20, in --quick 3)"
    )
    parse.add_argument("--out", type=Path)
    options = parse.parse_args()
    if DEVICE.type == "cpu":
        use_one_thread()
        keep_freed_memory()
    shapes = (
        [(16, 128)] if options.quick else [(hidden, batch) for hidden in (64, 128) for batch in (256, 1024)]
    )
    lookback = 20 if options.quick else 60
    jobs = [
        job_from({"model": {"hidden": hidden, "lookback": lookback}, "train": {"batch": batch}})
        for hidden, batch in shapes
    ]
    seconds = options.seconds or (3.0 if options.quick else 20.0)
    tables = [_table(job, seconds=seconds, rounds=3 if options.quick else 5) for job in jobs]
    print("wrote", write("tuner", {"machine": machine(), "tables": tables}, options.out))
    worst = min(table["ratio"] for table in tables)
    print(f"the poorest choice reaches {worst:.2f} of the grid's best; {FEWEST} is required")
    return 0 if options.quick or worst >= FEWEST else 1


def grid(job: Job) -> list[Candidate]:
    """Return the candidates to compare with the choice: the tuner's and more."""
    tried = candidates(job, DEVICE.type)
    if DEVICE.type == "cpu":
        more = [
            Candidate(strategy="sequential", pack=1, micro_batch=size)
            for size in FINE_SLICES
            if size <= job.train.batch
        ]
        more += [
            Candidate(strategy="fused", pack=pack, micro_batch=min(128, job.train.batch))
            for pack in CPU_PACKS
        ]
    else:
        more = [
            Candidate(strategy=strategy, pack=pack, micro_batch=size)
            for strategy in ("sequential", "streams", "fused")
            for pack in GPU_PACKS
            for size in (job.train.batch, job.train.batch // 2)
        ]
    return sorted({*tried, *more}, key=lambda option: (option.strategy, option.pack, option.micro_batch))


def _table(job: Job, *, seconds: float, rounds: int) -> dict[str, Any]:
    began = time.perf_counter()
    choice = tune(job, DEVICE, seconds=seconds, say=print)[0].candidate
    tuning_seconds = time.perf_counter() - began
    options = grid(job)
    members = make_members(max(option.pack for option in options), job, DEVICE)
    contenders = {}
    for option in options:
        try:
            contenders[_name(option)] = _Timed(option, members[: option.pack], job)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            print(f"  {_name(option)}: out of memory")
    rates = interleave(
        {name: partial(one.rate, 0.05 * seconds) for name, one in contenders.items()}, rounds=rounds
    )
    best = max(rates, key=lambda name: median(rates, name))
    reached = ratio(rates, _name(choice), best)
    print(f"\nhidden {job.model.hidden}, batch {job.train.batch}: tuned in {tuning_seconds:.0f} s")
    for name in sorted(rates, key=lambda name: -median(rates, name)):
        mark = "  <- the tuner's choice" if name == _name(choice) else ""
        print(f"  {name:32} {median(rates, name):10,.0f} windows/s  {ratio(rates, name, best):.2f} x{mark}")
    return {
        "hidden": job.model.hidden,
        "batch": job.train.batch,
        "tuning_seconds": round(tuning_seconds, 1),
        "choice": asdict(choice),
        "best": best,
        "ratio": round(reached, 3),
        "windows_per_second": {name: round(median(rates, name)) for name in rates},
        "rates": rates,
    }


class _Timed:
    """A candidate ready for timing: built, warmed up, on a GPU with its graph recorded."""

    def __init__(self, option: Candidate, members: Sequence[Member], job: Job) -> None:
        self._members, self._job, self._taken = members, job, 0
        self._pack = form_pack(members, option.of(job))
        for _ in range(2):
            self._step()

    def rate(self, seconds: float) -> float:
        """Train for `seconds`, at least two steps; return windows per second."""
        began, first = time.perf_counter(), self._taken
        while self._taken < first + 2 or time.perf_counter() - began < seconds:
            self._step()
        return (
            (self._taken - first) * self._job.train.batch * len(self._members) / (time.perf_counter() - began)
        )

    def _step(self) -> None:
        starts = batches(self._members, self._job, self._taken)
        self._pack.step([True] * len(self._members), starts).sum().item()  # waits for the device
        self._taken += 1


def _name(option: Candidate) -> str:
    return f"{option.strategy}, pack {option.pack}, slices {option.micro_batch}"


if __name__ == "__main__":
    sys.exit(main())
