"""Many small models on this machine: ours against torch as people run it, on the same work.

    python -m benchmarks.packs            3 and 8 models, hidden 64 and 128, batch 256 and 1,024 (ten minutes on two cores)
    python -m benchmarks.packs --quick    8 models, hidden 64, batch 256 (a minute on an idle machine)

Contenders train the same models on the same windows, fp32, and each step of each ends in a loss that is checked to agree:

    plain                one process, torch's default threads and allocator, nn.LSTM(num_layers=2), model after model
    plain + allocator    the same with glibc told to keep freed memory (trainer/train/cpu.py)
    plain, set up as ours  a process a core, one thread, allocator; what is left is the slices
    one process a model  as mp.spawn is used, default threads (not in --quick: it starves a small machine for a minute)
    ours                 a process a core, one thread each, allocator, slices (trainer.train.pack.Lanes); on a GPU also
                         streams and fused in one CUDA graph
    ours, bf16           the same with matrix products in bf16

Prints windows a second and ratios, GFLOP/s beside the cores' measured peak, and the share of a step outside forward,
backward and optimizer. Rows are half-year slices of real candles where --data has them, else noise. Writes
benchmarks/results/packs.json. Run it on a machine that does nothing else: torch's default threads collapse on busy cores,
which flatters ours; the load stands in the file.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.rounds import interleave, machine, median, ratio, write
from trainer.config import Job
from trainer.data.candles import read_candles
from trainer.data.features import FEATURES, WARMUP, compute_features
from trainer.errors import DataError
from trainer.train.cpu import keep_freed_memory, num_cores, use_one_thread
from trainer.train.pack import Member
from trainer.train.score import gather
from trainer.train.seeds import derive, dropout_keys
from trainer.train.strategy import form_pack

SERIES = ("BTC-USD", "ETH-USD", "SOL-USD", "SPY")
HALF_YEAR = 6 * 30 * 24 * 60
BASE = "plain"


def main() -> None:
    """Run every shape, print the tables, write the file."""
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--quick", action="store_true")
    parse.add_argument("--shape", action="append", metavar="M,H,B", help="only this: models, hidden, batch (repeatable)")
    parse.add_argument("--data", type=Path, default=Path("../shared/data/raw"), help="folder of minute candles")
    parse.add_argument("--out", type=Path)
    options = parse.parse_args()
    rows, source = _rows(options.data)
    shapes: list[tuple[int, ...]] = [
        (models, hidden, batch) for models in (3, 8) for hidden in (64, 128) for batch in (256, 1024)
    ]
    if torch.cuda.is_available():
        shapes += [(models, hidden, batch) for models in (20, 64) for hidden in (64, 128) for batch in (256, 1024)]
    if options.quick:
        shapes = [(8, 64, 256)]
    if options.shape:
        shapes = [tuple(int(number) for number in shape.split(",")) for shape in options.shape]
    print(f"rows: {source}")
    seconds, rounds = (1.0, 3) if options.quick else (2.0, 5)
    tables = [_table(rows, *shape, seconds=seconds, rounds=rounds, spawned=not options.quick) for shape in shapes]
    peak, outside = _peak_gflops(), _outside_share(rows)
    found = {"machine": machine(), "rows": source, "peak_gflops": peak, "outside_share": outside, "tables": tables}
    print(f"peak of {num_cores()} cores, measured by a matrix product: {peak:.0f} GFLOP/s")
    print(f"share of a step outside forward, backward and optimizer: {outside:.1%}")
    print("wrote", write("packs", found, options.out))


def _table(
    rows: Sequence[torch.Tensor], models: int, hidden: int, batch: int, *, seconds: float, rounds: int, spawned: bool
) -> dict[str, Any]:
    job = Job(hidden=hidden, batch=batch, dropout=0.0)
    teams = _teams(job, [rows[number % len(rows)] for number in range(models)], spawned=spawned)
    try:
        losses = {name: team.losses() for name, team in teams.items()}
        rates = interleave({name: partial(team.rate, seconds) for name, team in teams.items()}, rounds=rounds)
    finally:
        for team in teams.values():
            team.close()
    worst = {name: max(abs(a - b) / abs(b) for a, b in zip(losses[name], losses[BASE], strict=True)) for name in teams}
    flops = _flops_per_window(job)
    found = {
        name: {
            "windows_per_second": round(median(rates, name)),
            "ratio": round(ratio(rates, name, BASE), 2),
            "gflops": round(median(rates, name) * flops / 1e9, 1),
            "first_losses_differ_by": float(f"{worst[name]:.1e}"),
        }
        for name in teams
    }
    print(f"{models} models, hidden {hidden}, batch {batch}")
    for name, figures in found.items():
        speed = f"{figures['windows_per_second']:>9,.0f} windows/s  {figures['ratio']:5.2f}x  {figures['gflops']:7.1f} GFLOP/s"
        print(f"  {name:22} {speed}  losses differ by {figures['first_losses_differ_by']:.0e}", flush=True)
    return {"models": models, "hidden": hidden, "batch": batch, "variants": found}


class Team:
    """One contender: its processes, each with its share of the models."""

    def __init__(self, work: Callable[..., None], job: Job, shares: Sequence[Sequence[torch.Tensor]], *, name: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        first = 0
        for share in shares:
            ours, theirs = context.Pipe()
            process = context.Process(target=work, args=(theirs, job, share, first, name), daemon=True)
            process.start()
            first += len(share)
            self._pipes.append(ours)
            self._processes.append(process)

    def losses(self) -> list[float]:
        """Return the loss of each model's first step."""
        return [loss for pipe in self._pipes for loss in pipe.recv()]

    def rate(self, seconds: float) -> float:
        """Let every process step for so long, or one step if that takes longer; return windows a second of all of them."""
        for pipe in self._pipes:
            pipe.send(seconds)
        counts: list[tuple[int, float]] = [pipe.recv() for pipe in self._pipes]
        return sum(windows / elapsed for windows, elapsed in counts)

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
            process.join()


def _teams(job: Job, rows: Sequence[torch.Tensor], *, spawned: bool) -> dict[str, Team]:
    by_core = _in_order(rows, min(num_cores(), len(rows)))
    teams = {
        BASE: Team(_plain, job, [rows], name="default"),
        "plain + allocator": Team(_plain, job, [rows], name="allocator"),
    }
    if spawned:
        teams["one process a model"] = Team(_plain, job, [[one] for one in rows], name="default")
    if not torch.cuda.is_available():
        teams["plain, set up as ours"] = Team(_plain, job, by_core, name="worker")
        teams["ours"] = Team(_ours, job, by_core, name="lanes")
        teams["ours, bf16"] = Team(_ours, replace(job, precision="bf16"), by_core, name="lanes")
        return teams
    for strategy in ("lanes", "streams", "fused"):
        teams[f"ours, {strategy}"] = Team(_ours, replace(job, precision="fp32"), [rows], name=strategy)
        teams[f"ours, {strategy}, bf16"] = Team(_ours, replace(job, precision="bf16"), [rows], name=strategy)
    return teams


def _in_order(rows: Sequence[torch.Tensor], parts: int) -> list[list[torch.Tensor]]:
    """Cut the models into parts that keep their order, so that losses compare one to one."""
    edges = [round(part * len(rows) / parts) for part in range(parts + 1)]
    return [list(rows[first:last]) for first, last in zip(edges, edges[1:], strict=False)]


def _members(job: Job, share: Sequence[torch.Tensor], first: int) -> list[Member]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return [
        Member(
            name=f"m{first + number}",
            rows_TF=rows.to(device),
            labels_T=(rows[:, 0] > 0).float().to(device),
            mean_F=rows.mean(0).to(device),
            std_F=rows.std(0).clamp(min=1e-6).to(device),
        )
        for number, rows in enumerate(share)
    ]


def _batches(members: Sequence[Member], job: Job, step: int) -> list[torch.Tensor]:
    """Return each model's windows, the same in whichever process the model lies."""
    found = []
    for member in members:
        generator = torch.Generator().manual_seed(derive(step, member.name))
        starts = torch.randint(WARMUP, len(member.rows_TF) - job.lookback, (job.batch,), generator=generator)
        found.append(starts.to(member.rows_TF.device))
    return found


def _ours(pipe: Connection, job: Job, share: Sequence[torch.Tensor], first: int, strategy: str) -> None:
    """A worker as `trainer.train.worker` sets it up."""
    use_one_thread()
    keep_freed_memory()
    members = _members(job, share, first)
    pack = form_pack(members, replace(job, strategy=strategy))
    _serve(pipe, len(members) * job.batch, lambda step: pack.step([True] * len(members), _batches(members, job, step)))


def _plain(pipe: Connection, job: Job, share: Sequence[torch.Tensor], first: int, setting: str) -> None:
    """Models as a user writes them: a stacked nn.LSTM, AdamW, a clipped norm, the whole batch at once."""
    if setting in ("allocator", "worker"):
        keep_freed_memory()
    if setting == "worker":
        use_one_thread()
    members = _members(job, share, first)
    nets = [_PlainNet(member, job) for member in members]
    optimizers = [torch.optim.AdamW(net.parameters(), lr=job.learning_rate, weight_decay=job.weight_decay) for net in nets]
    steps_T1 = torch.arange(job.lookback, device=members[0].rows_TF.device)[:, None]

    def step(number: int) -> torch.Tensor:
        losses = []
        for member, net, optimizer, starts in zip(members, nets, optimizers, _batches(members, job, number), strict=True):
            x_TBF = gather(member.rows_TF, starts, steps_T1, member.mean_F, member.std_F)
            labels = member.labels_T[starts + job.lookback - 1]
            loss = nn.functional.binary_cross_entropy_with_logits(net(x_TBF), labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(net.parameters(), job.clip_norm)
            optimizer.step()
            losses.append(loss.detach())
        return torch.stack(losses)

    _serve(pipe, len(members) * job.batch, step)


class _PlainNet(nn.Module):
    """The same function with the same first weights, as a user would write it."""

    def __init__(self, member: Member, job: Job) -> None:
        from trainer.train.pack import new_model  # here: only this contender builds ours to copy its weights

        super().__init__()
        ours = new_model(member, job)
        self.lstm = nn.LSTM(member.rows_TF.shape[1], job.hidden, job.layers).to(member.rows_TF)
        self.head = nn.Linear(job.hidden, 1).to(member.rows_TF)
        state = ours.state_dict()
        self.head.load_state_dict({"weight": state["head.weight"], "bias": state["head.bias"]})
        names = [(layer, kind) for layer in range(job.layers) for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
        self.lstm.load_state_dict({f"{kind}_l{layer}": state[f"lstms.{layer}.{kind}_l0"] for layer, kind in names})

    def forward(self, x_TBF: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.lstm(x_TBF)[0][-1]).squeeze(-1)
        return logits


def _serve(pipe: Connection, windows_a_step: int, step: Callable[[int], torch.Tensor]) -> None:
    """Send the first step's losses; then step for as long as is asked for, again and again, and say what that gave."""
    pipe.send(step(0).tolist())
    done = 1
    while True:
        seconds, windows, began = pipe.recv(), 0, time.perf_counter()
        while not windows or time.perf_counter() - began < seconds:
            step(done).sum().item()  # on a GPU: until it is really done
            done, windows = done + 1, windows + windows_a_step
        pipe.send((windows, time.perf_counter() - began))


def _rows(folder: Path) -> tuple[list[torch.Tensor], str]:
    """Return eight models' feature rows: two half-year slices of each series, else noise."""
    try:
        series = read_candles(folder, symbols=SERIES, timeframe="1m").symbols
    except DataError:
        generator = torch.Generator().manual_seed(0)
        return [torch.randn(100_000, len(FEATURES), generator=generator) for _ in range(8)], "noise"
    slices = []
    for candles in series.values():
        half = min(HALF_YEAR, len(candles) // 2)
        slices += [candles.rows(0, half), candles.rows(len(candles) - half)]
    return [compute_features(part) for part in slices], f"half-year slices of {', '.join(series)}"


def _flops_per_window(job: Job) -> float:
    """Count forward, weight gradients and input gradients (none for the first layer's input), two operations a multiply-add."""
    features, hidden = len(FEATURES), job.hidden
    forward = sum(2 * 4 * hidden * ((hidden if layer else features) + hidden) * job.lookback for layer in range(job.layers))
    return 3 * forward - 2 * 4 * hidden * features * job.lookback


def _peak_gflops() -> float:
    """Measure what the cores multiply at best: a large matrix product on all of them."""
    torch.set_num_threads(num_cores())
    left, right = torch.randn(1536, 1536), torch.randn(1536, 1536)
    best = 0.0
    for _ in range(10):
        began = time.perf_counter()
        left @ right
        best = max(best, 2 * 1536**3 / (time.perf_counter() - began) / 1e9)
    torch.set_num_threads(1)
    return round(best, 1)


def _outside_share(rows: Sequence[torch.Tensor]) -> float:
    """Time what a step of `Lanes` does besides forward, backward and optimizer: order, keys, gather and scaling."""
    use_one_thread()
    keep_freed_memory()
    job = Job(hidden=64, batch=256)
    members = [replace(member, rows_TF=member.rows_TF.cpu()) for member in _members(job, rows[:1], 0)]
    pack = form_pack(members, job)
    steps_T1 = torch.arange(job.lookback)[:, None]
    whole = outside = 0.0
    for step in range(24):
        starts = _batches(members, job, step)
        began = time.perf_counter()
        pack.step([True], starts)
        middle = time.perf_counter()
        dropout_keys(seed=0, model="m0", step=step, layers=job.layers)
        for first in range(0, job.batch, 128):
            part = starts[0][first : first + 128]
            gather(members[0].rows_TF, part, steps_T1, members[0].mean_F, members[0].std_F)
            members[0].labels_T[part + job.lookback - 1]
        if step >= 4:
            whole += middle - began
            outside += time.perf_counter() - middle
    return round(outside / whole, 4)


if __name__ == "__main__":
    main()
