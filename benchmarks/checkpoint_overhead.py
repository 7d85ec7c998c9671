"""Measure the cost of checkpoints: ours, written in the background, compared with none and with saving in the
loop.

    python -m benchmarks.checkpoint_overhead            an LSTM and two TCNs (three minutes on two cores)
    python -m benchmarks.checkpoint_overhead --quick    only the LSTM (ten seconds)

Contenders take the same steps from the same weights on one thread and must end with the same loss, to the
last bit; all but the first save once in each round:

    no saves
    ours, background    state copied between two steps, hashed and written by a thread while the next steps
                        run; a round ends
                        when the file is on disk (trainer.train.checkpoint)
    torch.save inside   weights and optimizer written between two steps: the usual loop

Prints the ratios of whole rounds, the time for which training waits (the copy), the time of the background
write, and the time that a save adds to a round, as a share of the default interval. Writes
benchmarks/results/checkpoint_overhead.json.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.rounds import interleave, machine, median, ratio, write
from trainer.data.features import FEATURES
from trainer.job.job import Job, job_from
from trainer.train.checkpoint import CheckpointWriter
from trainer.train.cpu import keep_freed_memory, use_one_thread
from trainer.train.loop import Run
from trainer.train.packs.pack import Member
from trainer.train.packs.strategy import form_pack

NONE, OURS, INSIDE = "no saves", "ours, background", "torch.save inside"
JOBS = {
    "lstm": job_from({"model": {"hidden": 64}, "train": {"batch": 256}}),
    "tcn, middle": job_from(
        {"model": {"name": "tcn", "blocks": 8, "width": 128, "chunk": 256}, "train": {"batch": 2}}
    ),
    "tcn, full": job_from({"model": {"name": "tcn", "chunk": 64}, "train": {"batch": 1}}),
}
STEPS = {"lstm": 40, "tcn, middle": 20, "tcn, full": 6}  # of a round
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def main() -> None:
    """Run every model, print the table, write the file."""
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--quick", action="store_true")
    parse.add_argument("--rounds", type=int, default=0, help="default: 5, in --quick 3")
    parse.add_argument("--out", type=Path)
    options = parse.parse_args()
    if DEVICE.type == "cpu":
        use_one_thread()
        keep_freed_memory()
    rounds = options.rounds or (3 if options.quick else 5)
    tables = [
        _table(name, 6 if options.quick else STEPS[name], rounds)
        for name in (["lstm"] if options.quick else JOBS)
    ]
    print("wrote", write("checkpoint_overhead", {"machine": machine(), "tables": tables}, options.out))


def _table(name: str, steps: int, rounds: int) -> dict[str, Any]:
    job = JOBS[name]
    with tempfile.TemporaryDirectory(prefix="mayfly-bench-") as folder:
        contenders = {kind: _Saving(kind, job, Path(folder) / kind) for kind in (NONE, OURS, INSIDE)}
        for contender in contenders.values():
            contender.steps(2)  # warm-up
        rates = interleave(
            {kind: partial(one.rate, steps) for kind, one in contenders.items()}, rounds=rounds
        )
        losses = {kind: one.loss for kind, one in contenders.items()}
        apart = max(losses.values()) / min(losses.values()) - 1
        # On a GPU a convolution's gradients are summed in no fixed order.
        assert apart <= (0 if DEVICE.type == "cpu" else 1e-3), f"not the same work: last losses {losses}"
        megabytes = (
            sum(file.stat().st_size for file in (Path(folder) / OURS).rglob("*.safetensors")) / 2 / 1e6
        )
    ours = contenders[OURS]
    waits, writes = (
        statistics.median(event[key] for event in ours.events)
        for key in ("snapshot_seconds", "write_seconds")
    )
    rows = {
        kind: {
            "steps_per_second": round(median(rates, kind), 2),
            "ratio": round(ratio(rates, kind, NONE), 3),
            "seconds_a_save": round(_added(rates, kind, steps), 4),
        }
        for kind in rates
    }
    print(f"\n{name}: {steps} steps per round, a file of {megabytes:.1f} MB")
    for kind, row in rows.items():
        share = row["seconds_a_save"] / job.train.checkpoint_seconds
        cost = (
            ""
            if kind == NONE
            else (
                f"  a save adds {row['seconds_a_save'] * 1e3:8.1f} ms, {share:.2%} of"
                f" {job.train.checkpoint_seconds} s"
            )
        )
        print(f"  {kind:18} {row['steps_per_second']:9.2f} steps/s  {row['ratio']:.3f} x{cost}")
    print(
        f"  ours: training waits {waits * 1e3:.1f} ms for the copy; the background write takes"
        f" {writes * 1e3:.1f} ms"
    )
    return {
        "model": name,
        "steps": steps,
        "megabytes": round(megabytes, 1),
        "rows": rows,
        "snapshot_seconds": waits,
        "write_seconds": writes,
        "rates": rates,
    }


def _added(rates: dict[str, list[float]], kind: str, steps: int) -> float:
    """Return the seconds that a save adds to a round, the median over the rounds."""
    return statistics.median(
        steps / rate - steps / base for rate, base in zip(rates[kind], rates[NONE], strict=True)
    )


class _Saving:
    """A model in training that saves by one of the methods."""

    def __init__(self, kind: str, job: Job, folder: Path) -> None:
        self._kind, self._job, self._folder, self._taken = kind, job, folder, 0
        self.loss, self.events = 0.0, list[dict[str, Any]]()
        folder.mkdir()
        member = _member(job)
        self._pack = form_pack([member], job.with_expert(strategy="sequential"))
        best = {name: weight.detach().clone() for name, weight in self._pack.model(0).state_dict().items()}
        self._run = Run(
            member=member,
            title="A",
            reads=torch.arange(1),
            validate=lambda model: 0.0,
            learning_rate=1e-3,
            best_weights=best,
        )
        self._writer = CheckpointWriter(folder, self.events.append)

    def rate(self, steps: int) -> float:
        """Save, take `steps` steps, and wait until the save is on disk; return steps per second."""
        began = time.perf_counter()
        self._save()
        self.steps(steps)
        self._writer.flush()
        return steps / (time.perf_counter() - began)

    def steps(self, count: int) -> None:
        """Take `count` steps, the same for every contender."""
        for _ in range(count):
            generator = torch.Generator().manual_seed(self._taken)
            starts = torch.randint(
                0,
                len(self._run.member.rows_TF) - self._job.model.bars_seen,
                (self._job.train.batch,),
                generator=generator,
            )
            self.loss = self._pack.step([True], [starts.to(DEVICE)]).item()
            self._taken += 1

    def _save(self) -> None:
        if self._kind == OURS:
            began = time.perf_counter()
            state = self._pack.snapshot(0)
            if DEVICE.type == "cuda":
                torch.cuda.synchronize()
            self._writer.submit(
                replace(self._run), state, "bench", snapshot_seconds=time.perf_counter() - began
            )
        elif self._kind == INSIDE:
            state = self._pack.snapshot(0)
            parts = {
                "weights": state.weights,
                "moments": [state.exp_avg, state.exp_avg_sq],
                "best": self._run.best_weights,
            }
            torch.save(parts, self._folder / "checkpoint.pt")


def _member(job: Job) -> Member:
    generator = torch.Generator().manual_seed(0)
    rows = 20_000 + job.model.bars_seen
    return Member(
        name="bench",
        rows_TF=torch.randn(rows, len(FEATURES), generator=generator).to(DEVICE),
        labels_TK=torch.randint(0, 2, (rows, 1), generator=generator).float().to(DEVICE),
        mean_F=torch.zeros(len(FEATURES), device=DEVICE),
        std_F=torch.ones(len(FEATURES), device=DEVICE),
    )


if __name__ == "__main__":
    main()
