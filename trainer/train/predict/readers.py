"""Run a model over bars without gradients and dropout, gathering its windows or chunks from the rows.

Both the scores of the test span and `mayfly predict` use it, so that they agree to the last digit: windows go
through the model in batches of one fixed size, in which a window's result does not depend on the others, and
chunks lie on a grid. Validation needs no such digits: `AtOnce` has it read more of them together, in the
training's precision.

Shapes: N bars asked for, B windows or chunks, T time steps, F features, X bars read, O outputs, C columns of
the context.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import nn

from trainer.base.settings import CHUNKS
from trainer.base.signs import sign
from trainer.train.precision import autocast

EVALUATION_BATCH = 256
EVALUATION_CHUNK = 1024  # bars; on a grid, so that the same bars of the same file give the same digits
# Limit of scaled features, in deviations. Real bars reach a hundred in a crash, and one bar must not dominate
# a step or score.
INPUT_LIMIT = 10.0


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The inputs of a model at each row, not scaled, and how they are scaled."""

    rows_TF: torch.Tensor
    mean_F: torch.Tensor
    std_F: torch.Tensor
    limit: float = INPUT_LIMIT
    context_TC: torch.Tensor | None = None  # for a model that reads it


@dataclass(frozen=True, kw_only=True)
class AtOnce:
    """The size of an evaluation's batches, and the precision of its matrix products."""

    most: int = 0  # windows, or chunks, of any bars; 0: one batch, or chunk, of the grid of predictions
    dtype: torch.dtype = torch.float32  # of matrix products


Forward = Callable[[nn.Module], torch.Tensor]  # a model -> its outputs (N, O), on the device of the rows


class Reader(Protocol):
    """Runs a model over bars of one symbol's rows."""

    def outputs(self, model: nn.Module, bars: np.ndarray) -> np.ndarray:
        """Return the model's outputs (N, O) float64 for the rows `bars` (N,) int64."""

    def forward(self, bars: np.ndarray) -> Forward:
        """Return the function of these outputs, which does not wait for the device; what it needs is there
        already.
        """

    def units(self, bars: np.ndarray) -> np.ndarray:
        """Return the number (N,) of the batch or chunk that computes each of the bars, ascending.

        A call with the bars of whole units gives bit-identical outputs.
        """


Parts = Sequence[tuple[np.ndarray, Reader]]  # rows (N,) of each, and what reads them
Evaluate = Callable[[nn.Module, Parts], np.ndarray]  # see `outputs_of`


def outputs_of(model: nn.Module, parts: Parts) -> np.ndarray:
    """Return the outputs (N, O) float64 of a model for the bars of several parts, concatenated."""
    return np.concatenate([reader.outputs(model, bars) for bars, reader in parts])


def forward_of(parts: Parts) -> Forward:
    """Return the function of a model's outputs (N, O) for the bars of several parts, concatenated. It does
    not wait for the device.
    """
    forwards = [reader.forward(bars) for bars, reader in parts]
    return lambda model: torch.cat([forward(model) for forward in forwards])


def reader_of(
    reads: str,
    inputs: Inputs,
    *,
    bars_seen: int,
    first_bar: int,
    batch: int = EVALUATION_BATCH,
    at_once: AtOnce = AtOnce(),
) -> Reader:
    """Return the reader for a model of windows (in batches of `batch`), or of chunks.

    `first_bar` is the first row whose inputs are complete.
    """
    if reads == CHUNKS:
        return ChunkReader(inputs, bars_seen=bars_seen, first_bar=first_bar, at_once=at_once)
    return WindowReader(inputs, bars_seen=bars_seen, batch=batch, at_once=at_once)


class WindowReader:
    """Run a model over windows."""

    def __init__(
        self, inputs: Inputs, *, bars_seen: int, batch: int = EVALUATION_BATCH, at_once: AtOnce = AtOnce()
    ) -> None:
        self._inputs, self._batch_size, self._at_once = inputs, batch, at_once
        self._steps_T1 = torch.arange(bars_seen, device=inputs.rows_TF.device)[:, None]

    def outputs(self, model: nn.Module, bars: np.ndarray) -> np.ndarray:
        """See `Reader.outputs`."""
        return on_host(self.forward(bars)(model))

    def forward(self, bars: np.ndarray) -> Forward:
        """See `Reader.forward`."""
        starts = torch.from_numpy(bars - len(self._steps_T1) + 1)
        size = self._size(len(starts))
        padded = torch.nn.functional.pad(starts, (0, -len(starts) % size)).to(self._steps_T1.device)

        def outputs(model: nn.Module) -> torch.Tensor:
            made = [self._batch(model, part) for part in torch.split(padded, size) if len(part)]
            return torch.cat(made)[: len(starts)] if made else torch.empty(0, 1, device=padded.device)

        return outputs

    def _size(self, windows: int) -> int:
        """Return the windows of a batch. All are of one size, so that compiled code fits each."""
        if not self._at_once.most:
            return self._batch_size
        parts = max(1, -(-windows // self._at_once.most))
        return self._batch_size * max(1, -(-windows // (parts * self._batch_size)))

    def units(self, bars: np.ndarray) -> np.ndarray:
        """See `Reader.units`."""
        return np.arange(len(bars)) // self._batch_size

    @torch.inference_mode()
    def _batch(self, model: nn.Module, starts_B: torch.Tensor) -> torch.Tensor:
        given = self._inputs
        x_TBF = gather(given.rows_TF, starts_B, self._steps_T1, given.mean_F, given.std_F, given.limit)
        context: dict[str, torch.Tensor] = {}
        if given.context_TC is not None:
            context["context_BC"] = gather_context(given.context_TC, starts_B + (len(self._steps_T1) - 1))
        with autocast(self._at_once.dtype, x_TBF.device):
            outputs_BO: torch.Tensor = model(x_TBF, **context)
        sign("batch read by a model")
        return outputs_BO.float()


class ChunkReader:
    """Run a model over chunks, on a grid from `first_bar` on."""

    def __init__(self, inputs: Inputs, *, bars_seen: int, first_bar: int, at_once: AtOnce = AtOnce()) -> None:
        self._inputs, self._first, self._bars_seen = inputs, first_bar, bars_seen
        self._at_once = at_once
        self._read_X = torch.arange(EVALUATION_CHUNK + bars_seen - 1, device=inputs.rows_TF.device)

    def outputs(self, model: nn.Module, bars: np.ndarray) -> np.ndarray:
        """See `Reader.outputs`; no bar may be before `first_bar`."""
        return on_host(self.forward(bars)(model))

    def forward(self, bars: np.ndarray) -> Forward:
        """See `Reader.forward`; no bar may be before `first_bar`."""
        cells, offsets = np.divmod(bars - self._first, EVALUATION_CHUNK)
        read, places = np.unique(cells, return_inverse=True)
        firsts = self._first + read * EVALUATION_CHUNK - self._bars_seen + 1
        device = self._read_X.device
        starts_B, place_N, offset_N = (
            torch.from_numpy(numbers).to(device) for numbers in (firsts, places, offsets)
        )

        def outputs(model: nn.Module) -> torch.Tensor:
            parts = torch.split(starts_B, max(1, self._at_once.most))
            made = [self._chunks(model, part) for part in parts if len(part)]
            return torch.cat(made)[place_N, offset_N] if made else torch.empty(0, 1, device=device)

        return outputs

    @torch.inference_mode()
    def _chunks(self, model: nn.Module, starts_B: torch.Tensor) -> torch.Tensor:
        given = self._inputs
        x_BFX = gather_chunks(given.rows_TF, starts_B, self._read_X, given.mean_F, given.std_F, given.limit)
        with autocast(self._at_once.dtype, x_BFX.device):
            outputs_BTO: torch.Tensor = model(x_BFX)
        sign("chunk read by a model")
        return outputs_BTO

    def units(self, bars: np.ndarray) -> np.ndarray:
        """See `Reader.units`."""
        return (bars - self._first) // EVALUATION_CHUNK


def on_host(outputs_NO: torch.Tensor) -> np.ndarray:
    """Return outputs (N, O) float64 of a device."""
    return outputs_NO.double().cpu().numpy()


def gather(
    rows_TF: torch.Tensor,
    starts_B: torch.Tensor,
    steps_T1: torch.Tensor,
    mean_F: torch.Tensor,
    std_F: torch.Tensor,
    limit: float = INPUT_LIMIT,
) -> torch.Tensor:
    """Return windows (T, B, F), cut out of unscaled rows and scaled."""
    index = (steps_T1 + starts_B).view(-1)
    x_TBF = rows_TF.index_select(0, index).view(len(steps_T1), len(starts_B), rows_TF.shape[1])
    return scale_(x_TBF, mean_F, std_F, limit)


def gather_context(context_TC: torch.Tensor, last_B: torch.Tensor) -> torch.Tensor:
    """Return the context (B, C) int64 of each window's last bar."""
    return context_TC.index_select(0, last_B).long()


def gather_chunks(
    rows_TF: torch.Tensor,
    starts_B: torch.Tensor,
    read_X: torch.Tensor,
    mean_F: torch.Tensor,
    std_F: torch.Tensor,
    limit: float = INPUT_LIMIT,
) -> torch.Tensor:
    """Return chunks (B, F, X), cut out of unscaled rows and scaled. Beyond the end the last row is
    repeated.
    """
    index = (starts_B[:, None] + read_X).clamp_(max=len(rows_TF) - 1).view(-1)
    x_BXF = scale_(rows_TF.index_select(0, index), mean_F, std_F, limit).view(len(starts_B), len(read_X), -1)
    return x_BXF.transpose(1, 2).contiguous()


def scale_(
    x: torch.Tensor, mean_F: torch.Tensor, std_F: torch.Tensor, limit: float = INPUT_LIMIT
) -> torch.Tensor:
    """Scale features in place and clamp them to `limit` deviations; NaN stays NaN."""
    return x.sub_(mean_F).div_(std_F).clamp_(-limit, limit)
