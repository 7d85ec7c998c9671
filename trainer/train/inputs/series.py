"""Training data of a piece: one series, or several laid end to end in the same tensors.

    rows   |-- first series --|- padding -|-- second series --|- padding -|

Of several series, each is scaled by its own scaler as it is laid down, and the pack gets a neutral scaler. No
window crosses from one series into the next. A chunk may extend beyond the last bar into the padding, which
is as long as a chunk, repeats the last bar and has no labels.

Shapes: T bars of a series, R rows of all, F features, K label columns, C columns of the context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer.train.inputs.row_files import empty_rows
from trainer.train.inputs.rows import PART, SymbolData


@dataclass(frozen=True, kw_only=True)
class PanelScale:
    """Scaler and fitted values that the series of a panel share. A series that training never saw
    gets them.
    """

    scaler: str  # a value of data.scaler
    mean_F: Tensor  # over all series
    std_F: Tensor
    fitted: Mapping[str, Any]  # of the target, over all series
    numbers: tuple[int, ...]  # of each series in the model's embedding, from 1 on; 0: it has no training bars


@dataclass(frozen=True, kw_only=True)
class PieceData:
    """The series of one fold, and the tensors that a pack gathers from."""

    series: tuple[SymbolData, ...]
    # mean_F and std_F of each series, over the rows that its training reads.
    scalers: tuple[tuple[Tensor, Tensor], ...]
    offsets: tuple[int, ...]  # the row at which each series begins
    rows_TF: Tensor  # (R, F)
    train_labels_TK: Tensor  # (R, K); NaN everywhere but at the bars of training
    mean_F: Tensor
    std_F: Tensor
    reads: Tensor  # int64: the first row of each window, or chunk, of an epoch
    context_RC: Tensor | None = None  # int16, for a model that reads it
    panel: PanelScale | None = None  # of a panel

    def moved(self, move: Callable[[Any], Any]) -> PieceData:
        """Return the data with `move` applied to every tensor. Series remain views of the shared rows."""
        scalers = tuple((move(mean_F), move(std_F)) for mean_F, std_F in self.scalers)
        if len(self.series) == 1:
            return replace(alone(_moved(self.series[0], move)), scalers=scalers)
        tensors = ("rows_TF", "train_labels_TK", "mean_F", "std_F", "reads", "context_RC")
        laid = replace(self, scalers=scalers, **{name: move(getattr(self, name)) for name in tensors})
        bare = (
            replace(data, rows_TF=data.rows_TF[:0], train_labels_TK=data.train_labels_TK[:0], context_TC=None)
            for data in self.series
        )
        series = [
            _view(_moved(data, move), laid.rows_TF, laid.train_labels_TK, laid.context_RC, offset)
            for data, offset in zip(bare, self.offsets, strict=True)
        ]
        return replace(laid, series=tuple(series))

    def with_closes(self, *, clock: bool) -> PieceData:
        """Return the data whose candles have times and closes alone, with or without their session clock."""
        bare = [replace(one, candles=one.candles.closes()) for one in self.series]
        kept = bare if clock else [replace(one, clock=one.clock[:0].copy()) for one in bare]
        return replace(self, series=tuple(kept))

    def without_rows(self) -> PieceData:
        """Return the data without rows, training's labels, reads and context, on the CPU."""
        none = torch.empty(0)
        rowless: dict[str, Any] = {"rows_TF": none, "train_labels_TK": none, "reads": none}

        def on_cpu(value: Any) -> Any:
            if isinstance(value, dict):
                return {name: on_cpu(part) for name, part in value.items()}
            return value.cpu() if isinstance(value, Tensor) else value

        series = [_moved(replace(one, **rowless, context_TC=None), on_cpu) for one in self.series]
        scalers = tuple((mean_F.cpu(), std_F.cpu()) for mean_F, std_F in self.scalers)
        scale = {"mean_F": self.mean_F.cpu(), "std_F": self.std_F.cpu()}
        kept: dict[str, Any] = {"series": tuple(series), "scalers": scalers, **scale}
        return replace(self, **rowless, **kept, context_RC=None)


def alone(data: SymbolData) -> PieceData:
    """Return the data of a piece of one series, sharing its tensors."""
    return PieceData(
        series=(data,),
        scalers=((data.mean_F, data.std_F),),
        offsets=(0,),
        rows_TF=data.rows_TF,
        train_labels_TK=data.train_labels_TK,
        mean_F=data.mean_F,
        std_F=data.std_F,
        reads=data.reads,
        context_RC=data.context_TC,
    )


def lay(
    parts: Iterable[SymbolData], *, rows: Sequence[int], padding: int, folder: Path | None = None
) -> PieceData:
    """Return series laid end to end, each followed by `padding` rows. `rows` has the number of rows of each.

    Takes one part at a time and does not keep its rows, so that `parts` may be a generator that reads files.
    The rows are in a file of `folder` if there is one.
    """
    rows_TF = labels_TK = torch.empty(0)
    context_RC: Tensor | None = None
    series: list[SymbolData] = []
    scalers, offsets, reads, total = [], [], [], 0
    for data in parts:
        if not series:
            num_rows = sum(rows) + padding * len(rows)
            rows_TF = empty_rows(num_rows, data.rows_TF.shape[1], folder=folder)
            labels_TK = torch.full((num_rows, data.train_labels_TK.shape[1]), torch.nan)
            if data.context_TC is not None:
                context_RC = torch.zeros(num_rows, data.context_TC.shape[1], dtype=data.context_TC.dtype)
        end = total + len(data.rows_TF)
        # Scale as a pack does before clamping. The pack's neutral scaler changes no digit.
        into = torch.split(rows_TF[total:end], PART)
        for part, scaled in zip(torch.split(data.rows_TF, PART), into, strict=True):
            torch.div(part - data.mean_F, data.std_F, out=scaled)
        rows_TF[end : end + padding] = rows_TF[end - 1]
        labels_TK[total:end] = data.train_labels_TK
        if context_RC is not None and data.context_TC is not None:
            context_RC[total:end] = data.context_TC
        scalers.append((data.mean_F, data.std_F))
        reads.append(data.reads + total)
        offsets.append(total)
        neutral = replace(
            data,
            mean_F=torch.zeros_like(data.mean_F),
            std_F=torch.ones_like(data.std_F),
            reads=data.reads[:0],
        )
        series.append(_view(neutral, rows_TF, labels_TK, context_RC, total))
        total = end + padding
    return PieceData(
        series=tuple(series),
        scalers=tuple(scalers),
        offsets=tuple(offsets),
        rows_TF=rows_TF,
        train_labels_TK=labels_TK,
        mean_F=series[0].mean_F,
        std_F=series[0].std_F,
        reads=torch.cat(reads),
        context_RC=context_RC,
    )


def _view(
    data: SymbolData, rows_TF: Tensor, labels_TK: Tensor, context_RC: Tensor | None, offset: int
) -> SymbolData:
    place = slice(offset, offset + data.num_rows)
    context_TC = None if context_RC is None else context_RC[place]
    return replace(data, rows_TF=rows_TF[place], train_labels_TK=labels_TK[place], context_TC=context_TC)


def _moved(data: SymbolData, move: Callable[[Any], Any]) -> SymbolData:
    return replace(data, **{item.name: move(getattr(data, item.name)) for item in fields(data)})
