"""`mayfly profiles`: list GPU profiles and the one that applies on this machine. Needs no torch."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from trainer.base.errors import UsageError
from trainer.cli.output import say, say_json
from trainer.cli.terminal import show
from trainer.cli.views.table import FittedTable, lines
from trainer.machines.chips import REFERENCE, GpuProfile, profiles, user_file
from trainer.machines.choice import Choice, Device, choose, gpus_here
from trainer.machines.measurements import file_here
from trainer.machines.memory import CPU, Figure, chunk_slices, figures
from trainer.models import MODELS, chunk_models

BATCHES = {"batch 1m": "1m", "5m": "5m", "1h": "1h"}  # columns with the largest batch of a timeframe
LARGE = chunk_models()[0]  # the model of the column "chunks"


def run(arguments: argparse.Namespace) -> int:
    """List every profile, and print which one applies here and why.

    If $GPU_PROFILE names one that can't apply, the list is printed before the error.
    """
    gpus = gpus_here()
    known = {**profiles(), "cpu": choose("cpu", None).profile}
    try:
        here = choose("", min(gpus, key=lambda gpu: gpu.free_gib) if gpus else None)
    except UsageError:
        if not arguments.json:
            show(_view(known, holds=""))
        raise
    listed = {
        **known,
        here.profile.name: here.profile,
    }  # an unknown chip, or a share of one, has a row of its own
    if arguments.json:
        say_json(_document(here, gpus, list(listed.values())))
        return 0
    show(_view(listed, holds=here.profile.name))
    say(f"* holds here: {here.profile.name}, {here.why}; {here.memory_gib:.1f} GiB to use")
    say(f"yours: {_state(user_file())}    measured: {_state(file_here())}")
    return 0


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
        "files": {"yours": str(user_file()), "measured": str(file_here())},
    }


def _as_dict(profile: GpuProfile) -> dict[str, Any]:
    facts = {
        key: value
        for key, value in vars(profile).items()
        if key not in ("yours", "measured", "windows_per_second")
    }
    plain, again = chunk_slices(profile, LARGE) if profile.name != CPU else (None, None)
    chunks = {"chunks_at_once": plain, "with_activation_checkpointing": again, "basis": "estimate"}
    return {
        **facts,
        "figures": {key: vars(figure) for key, figure in figures(profile).items()},
        LARGE: chunks,
    }


def _state(path: Path) -> str:
    return str(path) if path.exists() else f"{path} (none yet)"
