"""Pack of models that read chunks: each chunk is read with the bars before it that its outputs see.

    rows      |------ bars_seen - 1 ------|---------- chunk ----------|
    outputs                              |---------- chunk ----------|     one per bar; only these have a loss

Rows are on the device once. A chunk is gathered inside the step and freed after it; bars that two chunks
share are computed twice, which costs less than keeping each layer's activations.

Shapes: B chunks, F features, X bars read, T bars of output, K label columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trainer.job.job import Job
from trainer.train.packs.layout import ONE, Layout
from trainer.train.packs.pack import Member
from trainer.train.packs.sequential import SequentialPack
from trainer.train.precision import autocast
from trainer.train.predict.readers import gather_chunks


class Chunks(SequentialPack):
    """Streaming models, one after another: the mean loss over the bars of a chunk that have a label."""

    def __init__(
        self, members: Sequence[Member], job: Job, *, micro_batch: int, layout: Layout = ONE
    ) -> None:
        super().__init__(members, job, micro_batch=micro_batch, layout=layout)
        device, chunk = members[0].rows_TF.device, job.model.bars_out
        self._read_X = torch.arange(chunk + self._seen - 1, device=device)
        self._out_T = torch.arange(self._seen - 1, self._seen - 1 + chunk, device=device)

    def _num_labels(self, member: Member, starts_B: torch.Tensor) -> torch.Tensor:
        """See `SequentialPack._num_labels`."""
        return _has_label(self._labels(member, starts_B)).sum()

    def _summed_loss(
        self, number: int, starts_B: torch.Tensor, keys_L2: torch.Tensor, first: int
    ) -> torch.Tensor:
        """See `SequentialPack._summed_loss`."""
        member = self._members[number]
        x_BFX = gather_chunks(member.rows_TF, starts_B, self._read_X, member.mean_F, member.std_F)
        labels_BTK = self._labels(member, starts_B)
        with autocast(self._dtype, starts_B.device):
            outputs_BTO = self._networks[number](x_BFX, keys_L2, first)
        # A bar without a label has label 0, and `where` leaves its loss out of the sum: a product would keep
        # NaN.
        losses_BT = self._loss(outputs_BTO, labels_BTK.nan_to_num())
        return torch.where(_has_label(labels_BTK), losses_BT, 0.0).sum()

    def _labels(self, member: Member, starts_B: torch.Tensor) -> torch.Tensor:
        """Return the labels (B, T, K) of chunks. Bars beyond the end get the last bar's label, which
        is NaN.
        """
        rows_BT = (starts_B[:, None] + self._out_T).clamp_(max=len(member.labels_TK) - 1)
        return member.labels_TK[rows_BT]


def _has_label(labels_BTK: torch.Tensor) -> torch.Tensor:
    return torch.isfinite(labels_BTK).all(-1)
