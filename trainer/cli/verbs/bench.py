"""`mayfly profiles bench`: measure the training of a large model on this machine: seconds, memory and dollars
for each batch size.
"""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING, Any

from trainer.base.errors import UsageError
from trainer.cli.output import duration, money, say, say_json, warn
from trainer.cli.terminal import show
from trainer.cli.views.table import FittedTable
from trainer.job.job import Job
from trainer.job.reading import parse_job
from trainer.machines.choice import Device, profile_of
from trainer.machines.instances import InstanceType, catalogue
from trainer.models import chunk_models

if TYPE_CHECKING:  # torch takes a second to load, and a wrong setting should not wait for it
    from trainer.train.tuning.timing import Timing

MOST_BARS = 1_000_000_000  # as data.bars has it
EPOCHS = 100  # what the dollars are for
ADVICE = "it/s misleads: a step of more chunks is more work. Samples/s, here chunks/s, is what counts."


def run(arguments: argparse.Namespace) -> int:
    """Measure, then print the table with a line of advice."""
    job = _job(arguments)
    import torch

    from trainer.train.tuning.bench import bench, epoch_seconds, num_chunks, num_parameters
    from trainer.train.workers.devices import choose_device

    kind, choice = choose_device(job, arguments.device)
    if kind == "cpu":
        job = job.with_defaults({f"model.{key}": value for key, value in job.model.small.items()})
    price, price_of = _price(arguments.price, choice.profile.name, kind)
    rows = bench(job, torch.device(kind), quick=arguments.quick, say=warn)
    costs = [
        _costs(epoch_seconds(job, row, bars=arguments.bars), price) if not row.excluded else None
        for row in rows
    ]
    model = (
        f"{job.model.words}, {num_parameters(job):,} weights, chunks of {job.model.bars_out} bars; "
        f"an epoch is {num_chunks(job, bars=arguments.bars):,} chunks, validation aside"
    )
    if arguments.json:
        rows_json = [{**_row(row), **(cost or {})} for row, cost in zip(rows, costs, strict=True)]
        here = {"profile": choice.profile.name, "why": choice.why, "model": model, "epochs": EPOCHS}
        say_json({**here, "price_usd_per_hour": price, "price_of": price_of, "rows": rows_json})
        return 0
    lines = [_line(choice.profile.name, row, cost) for row, cost in zip(rows, costs, strict=True)]
    right = ("batch (chunks)", "it/s", "chunks/s", "memory", "an epoch", f"{EPOCHS} epochs")
    show(FittedTable(lines, right=right, leaving=("profile", "checkpointing", "it/s", "an epoch")))
    say(f"{choice.profile.name}: {choice.why}. {model}.")
    say(f"{EPOCHS} epochs at {money(price)} an hour: {price_of}.")
    say(ADVICE)
    return 0


def _job(arguments: argparse.Namespace) -> Job:
    """Return the full-size job to measure. Raises UsageError for options that can't be measured."""
    model = chunk_models()[0]
    profile = {} if arguments.gpu_profile is None else {"machine.gpu_profile": arguments.gpu_profile}
    job = parse_job({"model": {"name": model}}, profile, arguments.settings)
    for key in ("train.batch", "expert.activation_checkpointing"):
        if key in job.given:
            raise UsageError(
                f"--set {key} is not for bench", why="its table has several", do=f"Leave {key} out."
            )
    if job.model.name != model:
        raise UsageError(
            f"bench measures a {model}", do="`mayfly profiles tune` is for models that read windows."
        )
    if arguments.price is not None and not 0 <= arguments.price < math.inf:
        raise UsageError(f"--price is {arguments.price:g}", do="Give dollars an hour, 0 or more.")
    if not 0 <= arguments.bars <= MOST_BARS:
        do = f"Give 1 to {MOST_BARS:,}; without it, it is seven years of minutes."
        raise UsageError(f"--bars is {arguments.bars}", do=do)
    return job


def _price(given: float | None, profile: str, kind: str) -> tuple[float, str]:
    """Return the price of one device in dollars per hour, and its source."""
    if given is not None:
        return given, "--price"
    if kind == "cpu":
        return 0.0, "your own CPU; change it with --price"
    prices = [
        (one.price_usd_per_hour / one.num_workers, one)
        for one in _instances(profile)
        if one.price_usd_per_hour
    ]
    if not prices:
        return 0.0, f"AWS's price for {profile} is not known; set it with --price"
    price, cheapest = min(prices, key=lambda pair: pair[0])
    gpus = cheapest.num_workers
    share = f"{'a GPU' if gpus == 1 else f'one of {gpus} GPUs'} of {cheapest.name}"
    return price, f"{share}, which is billed whole; on demand, us-east-1, {cheapest.price_date}"


def _instances(profile: str) -> list[InstanceType]:
    def of(one: InstanceType) -> str:
        memory = one.gpu_memory_gib
        return profile_of(Device(name=one.gpu_model, memory_gib=memory, free_gib=memory)).name

    return [one for one in catalogue().values() if one.launchable and of(one) == profile]


def _costs(seconds: float, price: float) -> dict[str, float]:
    return {"epoch_seconds": seconds, "usd": seconds * EPOCHS / 3600 * price}


def _row(row: Timing) -> dict[str, Any]:
    """Return a row as `--json` has it."""
    return {
        "batch": row.batch,
        "activation_checkpointing": row.activation_checkpointing,
        "steps_per_second": row.steps_per_second,
        "chunks_per_second": row.windows_per_second,
        "memory_gib": row.memory_per_model_gib or None,
        "excluded": row.excluded,
    }


def _line(profile: str, row: Timing, cost: dict[str, float] | None) -> dict[str, str]:
    return {
        "profile": profile,
        "batch (chunks)": f"{row.batch:,}",
        "checkpointing": "on" if row.activation_checkpointing else "off",
        "it/s": f"{row.steps_per_second:,.2f}" if cost else row.excluded,
        "chunks/s": f"{row.windows_per_second:,.2f}" if cost else "-",
        "memory": _memory(row.memory_per_model_gib) if cost else "-",
        "an epoch": duration(cost["epoch_seconds"]) if cost else "-",
        f"{EPOCHS} epochs": money(cost["usd"]) if cost else "-",
    }


def _memory(gib: float) -> str:
    if not gib:
        return "-"
    return f"{gib:.2f} GiB" if gib >= 1 else f"{gib * 1024:.0f} MiB"
