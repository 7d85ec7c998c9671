"""How a model that streams over a symbol's bars is trained and asked: in chunks, each read with the bars that it looks back on.

    rows      |------ bars_seen - 1 ------|---------- chunk ----------|
    outputs                               |---------- chunk ----------|     one a bar; the loss is theirs alone

Rows lie on the device once. A chunk is gathered inside the step and exists no longer than that; the bars that two chunks share
are read again, which costs less than keeping what each layer made of them.

Shapes: B chunks, F features, X bars read, T bars of output.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from trainer.config import Job
from trainer.models.tcn import CONVOLUTIONS
from trainer.train.packs.pack import Lanes, Member
from trainer.train.precision import autocast
from trainer.train.score import INPUT_LIMIT, scale_

# Numbers that a layer holds of one slice on a CPU: a small TCN's chunks go together, so that its many short calls become few
# (2.2 times faster in eights), a large one's alone (as fast as in fours, and lighter); measured 2026-11-21, AMD EPYC.
CPU_SLICE_NUMBERS = 1 << 20
EVALUATION_CHUNK = 1024  # bars; on a grid, so that the same bars of the same file give the same digits


class Chunks(Lanes):
    """Streaming models, one after another: mean squared error over the bars of a chunk that have a label."""

    def __init__(self, members: Sequence[Member], job: Job, *, micro_batch: int) -> None:
        super().__init__(members, job, micro_batch=micro_batch)
        device = members[0].rows_TF.device
        self._num_dropouts = CONVOLUTIONS * job.blocks
        self._read_X = torch.arange(job.chunk + job.bars_seen - 1, device=device)
        self._out_T = torch.arange(job.bars_seen - 1, job.bars_seen - 1 + job.chunk, device=device)

    def _num_labels(self, member: Member, starts_B: torch.Tensor) -> torch.Tensor:
        """See `Lanes._num_labels`."""
        return torch.isfinite(self._labels(member, starts_B)).sum()

    def _summed_loss(self, number: int, starts_B: torch.Tensor, keys_L2: torch.Tensor, first: int) -> torch.Tensor:
        """See `Lanes._summed_loss`."""
        member = self._members[number]
        x_BFX = gather_chunks(member.rows_TF, starts_B, self._read_X, member.mean_F, member.std_F)
        labels_BT = self._labels(member, starts_B)
        with autocast(self._dtype, starts_B.device):
            outputs_BT = self._models[number](x_BFX, keys_L2, first)
        # `where` and not a product: a bar without a label has NaN for one.
        errors_BT = torch.where(torch.isfinite(labels_BT), outputs_BT - labels_BT.nan_to_num(), 0.0)
        return errors_BT.square().sum()

    def _labels(self, member: Member, starts_B: torch.Tensor) -> torch.Tensor:
        """Return the labels (B, T) of chunks; what lies beyond the series has none, as its last bar has none."""
        rows_BT = (starts_B[:, None] + self._out_T).clamp_(max=len(member.labels_T) - 1)
        return member.labels_T[rows_BT]


def cpu_micro_batch(job: Job) -> int:
    """Return how many chunks a CPU is fastest with at once."""
    return max(1, CPU_SLICE_NUMBERS // (job.width * (job.chunk + job.bars_seen - 1)))


def gather_chunks(
    rows_TF: torch.Tensor,
    starts_B: torch.Tensor,
    read_X: torch.Tensor,
    mean_F: torch.Tensor,
    std_F: torch.Tensor,
    limit: float = INPUT_LIMIT,
) -> torch.Tensor:
    """Cut chunks (B, F, X) out of unscaled rows and scale them. Beyond the last row it stands still: no output looks ahead."""
    index = (starts_B[:, None] + read_X).clamp_(max=len(rows_TF) - 1).view(-1)
    x_BXF = scale_(rows_TF.index_select(0, index), mean_F, std_F, limit).view(len(starts_B), len(read_X), -1)
    return x_BXF.transpose(1, 2).contiguous()


class StreamEvaluator:
    """Run a model over bars of one symbol's rows, without gradients and without dropout."""

    def __init__(
        self,
        *,
        rows_TF: torch.Tensor,
        mean_F: torch.Tensor,
        std_F: torch.Tensor,
        first: int,
        bars_seen: int,
        limit: float = INPUT_LIMIT,
    ) -> None:
        """`first` is the first row that has a whole receptive field behind it: the grid of chunks begins there."""
        self._rows_TF, self._mean_F, self._std_F, self._limit = rows_TF, mean_F, std_F, limit
        self._first, self._bars_seen = first, bars_seen
        self._read_X = torch.arange(EVALUATION_CHUNK + bars_seen - 1, device=rows_TF.device)

    @torch.inference_mode()
    def outputs(self, model: nn.Module, bars: np.ndarray) -> np.ndarray:
        """Return the model's outputs (N,) float64 for the rows `bars` (N,) int64, none of them before `first`."""
        cells, offsets = np.divmod(bars - self._first, EVALUATION_CHUNK)
        found = np.empty(len(bars))
        for cell in np.unique(cells):
            start = self._first + int(cell) * EVALUATION_CHUNK - self._bars_seen + 1
            starts_1 = torch.tensor([start], device=self._rows_TF.device)
            x_1FX = gather_chunks(self._rows_TF, starts_1, self._read_X, self._mean_F, self._std_F, self._limit)
            outputs_T = model(x_1FX)[0].double().cpu().numpy()
            found[cells == cell] = outputs_T[offsets[cells == cell]]
        return found
