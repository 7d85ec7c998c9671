"""The device memory that training one model takes, part by part: counted from what autograd keeps, not fitted.

    rows       its symbol's bars on the device
    weights    weights, Adam's two moments, gradients (unless the workspace has them); an average where the job has one
    copies     the best weights so far, and the copy that a checkpoint is written from
    kept       what the forward pass of one slice leaves for the backward pass
    workspace  what the backward pass holds besides, where it holds most

Rows, weights and copies are counted here, the other two by the model (`ModelSettings.activations`). `benchmarks.memory` sets
this beside a device, and tests beside a count of every tensor that autograd keeps on a CPU, within 10 %. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainer.job import Job
from trainer.settings import FLOAT, Training

LANE_COPIES = 4  # weights, gradients, two moments
STACKED_COPIES = LANE_COPIES + 1 + 6  # the modules that evaluation fills, and what the update makes of all rows at once
STREAM_WORKSPACE = 2 * 8 * 2**20  # cuBLAS's, for each stream: 8 MiB for either pass's thread (train/precision.py)


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Bytes of one model in training. `assumed` is the part of `kept` that no count on a CPU can show: cuDNN's own."""

    rows: float
    weights: float
    copies: float
    kept: float
    workspace: float
    assumed: float = 0.0

    @property
    def step(self) -> float:
        """Return what a step takes at its peak: what a device's allocator shows of a model that is trained and not yet kept."""
        return self.rows + self.weights + self.kept + self.workspace

    @property
    def total(self) -> float:
        """Return all of it."""
        return self.step + self.copies


def is_half(job: Job, *, on_gpu: bool) -> bool:
    """Say whether matrix products run in bf16 or fp16: what a job that says `auto` does on a GPU."""
    return on_gpu if job.train.precision == "auto" else job.train.precision != "fp32"


def footprint(job: Job, *, features: int, bars: int, windows: int, on_gpu: bool = True) -> Footprint:
    """Return what one model of the job takes, trained in slices of `windows` windows (or chunks), on so many bars.

    Where the job leaves its strategy open it is the dearer of both kinds.
    """
    stacks = job.model.has_stacked_form
    kinds = {"auto": (False, True), "fused": (True,)}.get(job.train.strategy, (False,)) if stacks else (False,)
    found = [_footprint(job, features=features, bars=bars, reads=windows, on_gpu=on_gpu, fused=fused) for fused in kinds]
    return max(found, key=lambda one: one.total)


def num_weights(job: Job, *, features: int) -> int:
    """Return how many weights a model of the job has."""
    return job.model.num_weights(features=features, outputs=job.target.outputs)


def _footprint(job: Job, *, features: int, bars: int, reads: int, on_gpu: bool, fused: bool) -> Footprint:
    model, target = job.model, job.target
    stacked = model.has_stacked_form and job.train.strategy != "lanes"
    training = Training(
        half=is_half(job, on_gpu=on_gpu),
        fused=fused,
        recompute=job.train.activation_checkpointing,
        accumulates=reads < job.train.batch,
    )
    part = model.activations(training, features=features, outputs=target.outputs, reads=reads)
    streams = stacked and not fused and on_gpu and job.train.strategy in ("auto", "streams")  # a stream a model
    copies = STACKED_COPIES if stacked else LANE_COPIES - (1 if model.counts_gradients else 0)
    numbers = (features + target.label_columns) * FLOAT * (2 if stacked else 1)  # stacked ones are joined
    return Footprint(
        rows=bars * (numbers + 2 * 8 / model.bars_out),  # two indices a window, or chunk
        **_weights(job, features, copies=copies),
        kept=part.kept,
        workspace=part.workspace + (STREAM_WORKSPACE if streams else 0),
        assumed=part.assumed,
    )


def _weights(job: Job, features: int, *, copies: int) -> dict[str, float]:
    one = FLOAT * num_weights(job, features=features)
    averages = 1 if job.train.ema else 0
    saved = 3 + averages if job.train.checkpoint_seconds else 0
    return {"weights": (copies + averages) * one, "copies": (1 + saved) * one}
