"""`mayfly profiles`: list GPU profiles and the one that applies on this machine. Needs no torch."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from trainer.base.errors import UsageError
from trainer.cli.output import counted, duration, say, say_json
from trainer.cli.terminal import show
from trainer.cli.views.table import FittedTable, lines
from trainer.job.job import Job, refuse_script
from trainer.job.reading import load_job, parse_job
from trainer.machines.chips import REFERENCE, GpuProfile, profiles, user_file
from trainer.machines.choice import Choice, Device, choose, gpus_here
from trainer.machines.memory import (
    CPU,
    MINUTES_OF_SEVEN_YEARS,
    TIMEFRAME_MINUTES,
    Figure,
    batch_limit,
    chunk_slices,
    figures,
    fit,
)
from trainer.machines.planner import workload
from trainer.machines.rates import rate_of
from trainer.models import MODELS, chunk_models

BATCHES = {"batch 1m": "1m", "5m": "5m", "1h": "1h"}  # columns with the largest batch of a timeframe
OF_JOBS = ("1h", "1d")  # timeframes at which --job shows a job
LARGE = chunk_models()[0]  # the model of the column "chunks"


def run(arguments: argparse.Namespace) -> int:
    """List every profile, and print which one applies here and why; with --job what each makes of a job.

    If $GPU_PROFILE names one that can't apply, the list is printed before the error.
    """
    if arguments.job:
        return _of_job(parse_job(load_job(Path(arguments.job)), {}), as_json=arguments.json)
    gpus = gpus_here()
    known = {**profiles(), "cpu": choose("cpu", None).profile}
    try:
        here = choose("", min(gpus, key=lambda gpu: gpu.free_gib) if gpus else None)
    except UsageError:
        if not arguments.json:
            show(_view(known, holds=""))
        raise
    listed = {**known, here.profile.name: here.profile}  # an unknown chip, or a share of one, has a row
    if arguments.json:
        say_json(_document(here, gpus, list(listed.values())))
        return 0
    show(_view(listed, holds=here.profile.name))
    say(f"* holds here: {here.profile.name}, {here.why}; {here.memory_gib:.1f} GiB to use")
    say(f"yours: {_state(user_file())}")
    return 0


def _of_job(job: Job, *, as_json: bool) -> int:
    """Print batch, models at a time and time of a job for every GPU profile, hourly and daily."""
    refuse_script(job, "profiles --job")
    rows = [
        {"profile": profile.name, "memory_gib": profile.memory_gib}
        | {timeframe: _figures_of(job, profile, timeframe) for timeframe in OF_JOBS}
        for profile in profiles().values()
        if profile.name != CPU
    ]
    if as_json:
        say_json({"job": job.to_dict(), "profiles": rows})
        return 0
    symbols = counted(max(1, len(job.data.symbols)), "symbol")
    last = f"the last {job.data.bars:,} of " if job.data.bars else ""
    show(
        lines(
            FittedTable(
                [_job_row(row) for row in rows],
                right=("GiB", *(f"{name} {part}" for part in OF_JOBS for name in ("batch", "models"))),
                leaving=("GiB",),
            ),
            f"batch: the job's {job.train.batch:,}, in slices of so many where the whole does not fit"
            if job.train.batch
            else "batch: the largest of train.batch = auto",
            f"models: at a time on one GPU; time: of {symbols} with {last}seven years of bars on it, without"
            " boot",
        )
    )
    return 0


def _figures_of(job: Job, profile: GpuProfile, timeframe: str) -> dict[str, Any]:
    """Return what one GPU of a profile makes of a job at a timeframe."""
    timed, bars = job.with_data(timeframe=timeframe), MINUTES_OF_SEVEN_YEARS // TIMEFRAME_MINUTES[timeframe]
    work = workload(timed, dict.fromkeys(job.data.symbols or ("one",), bars))
    windows = max(piece.windows for piece in work.pieces)
    known: dict[str, Any] = {
        "memory_gib": profile.memory_gib,
        "features": len(timed.data.inputs),
        "bars": max(piece.bars for piece in work.pieces),
    }
    batch = job.train.batch or batch_limit(profile, timed, windows=windows, timeframe=timeframe, **known)
    try:
        fits = fit(profile, timed.with_train(batch=batch), **known)
    except UsageError as error:
        return {"refused": error.what}
    rate = rate_of(profile, timed)
    seconds = sum(piece.estimate for piece in work.pieces) / rate.per_second
    return {
        "batch": batch,
        "slice": min(batch, fits.micro_batch),
        "models": min(fits.models, len(work.pieces)),
        "seconds": round(seconds, 1),
        "source": rate.source,
    }


def _time(seconds: float) -> str:
    return f"{seconds:.1f}s" if seconds < 10 else duration(seconds)


def _job_row(row: dict[str, Any]) -> dict[str, str]:
    cells = {"profile": row["profile"], "GiB": f"{row['memory_gib']:.1f}"}
    for timeframe in OF_JOBS:
        found = row[timeframe]
        known = "refused" not in found
        whole = known and found["slice"] == found["batch"]
        sliced = "" if whole or not known else f" by {found['slice']:,}"
        cells |= {
            f"batch {timeframe}": f"{found['batch']:,}{sliced}" if known else "does not fit",
            f"models {timeframe}": str(found["models"]) if known else "",
            f"time {timeframe}": _time(found["seconds"]) if known else "",
        }
    return cells


def _view(listed: dict[str, GpuProfile], *, holds: str) -> RenderableType:
    large = MODELS[LARGE]()
    rows = [_row(profile, figures(profile), holds=name == holds) for name, profile in listed.items()]
    return lines(
        FittedTable(
            rows,
            right=("GiB", "TFLOP/s", "models", "GiB each", *BATCHES, "windows/s", "chunks"),
            leaving=("1h", "5m", "figures", "chunks", "GiB each", "compute", "bf16", "TFLOP/s", "batch 1m"),
        ),
        f"models: {REFERENCE.model.words} on 7 years of 1m bars that a GPU trains at a time; batch: the"
        " largest then",
        f"chunks: of {large.bars_out:,} bars of a {large.words} in one slice, activations kept; always the"
        " formula's",
        "TFLOP/s: bf16, or fp16 where there is none, dense, by data sheet; estimates are the memory"
        " formula's, until measured",
    )


def _row(profile: GpuProfile, figures: dict[str, Figure], *, holds: bool) -> dict[str, str]:
    said = {key: figure.basis for key, figure in figures.items() if figure.basis != "estimate"}
    peak, rate = profile.peak_tflops.get("bf16"), figures["windows_per_second"].value
    batch = figures["batch"].value
    return {
        "": "*" if holds else "",
        "profile": profile.name,
        "GiB": f"{profile.memory_gib:.1f}",
        "compute": profile.compute_capability or "-",
        "bf16": "yes" if profile.bf16 else "no",
        "TFLOP/s": f"{peak:,.0f}" if peak else "-",
        "models": str(figures["models_per_gpu"].value),
        "GiB each": f"{figures['memory_per_model_gib'].value:.2f}",
        **{title: f"{batch[timeframe]:,}" for title, timeframe in BATCHES.items()},
        "windows/s": f"{rate:,.0f}" if rate else "-",
        "chunks": "-" if profile.name == CPU else f"{chunk_slices(profile, LARGE)[0]:,}",
        "figures": ", ".join(f"{key} {basis}" for key, basis in said.items()) or "estimate",
    }


def _document(here: Choice, gpus: tuple[Device, ...], listed: list[GpuProfile]) -> dict[str, Any]:
    return {
        "here": {
            "profile": here.profile.name,
            "why": here.why,
            "memory_gib": round(here.memory_gib, 2),
            "gpus": [vars(gpu) for gpu in gpus],
        },
        "profiles": [_as_dict(profile) for profile in listed],
        "files": {"yours": str(user_file())},
    }


def _as_dict(profile: GpuProfile) -> dict[str, Any]:
    own = ("yours", "windows_per_second")
    facts = {key: value for key, value in vars(profile).items() if key not in own}
    plain, again = chunk_slices(profile, LARGE) if profile.name != CPU else (None, None)
    chunks = {"chunks_at_once": plain, "with_activation_checkpointing": again, "basis": "estimate"}
    by_key = {key: vars(figure) for key, figure in figures(profile).items()}
    return {**facts, "figures": by_key, LARGE: chunks}


def _state(path: Path) -> str:
    return str(path) if path.exists() else f"{path} (none yet)"
