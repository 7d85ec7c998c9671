"""Prepare a symbol for training: unscaled feature rows, scaler, labels, and the first row of each window or
chunk. Windows and chunks are never stored: the training step gathers the rows of a batch from its starts,
then scales them.

Shapes: T bars of the symbol, F features, K label columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer.bars.series_plan import Plan
from trainer.bars.symbol_plan import plan_symbol
from trainer.base.errors import DataError
from trainer.base.freed_memory import LARGE_BARS, release_freed_memory
from trainer.base.settings import CONTEXT
from trainer.base.text import counted
from trainer.data.context import context_of
from trainer.data.features import compute_inputs
from trainer.data.read.candles import Candles, time_text
from trainer.data.splits import Span, Spans
from trainer.job.job import Job
from trainer.targets.scoring import Rows
from trainer.targets.target import TargetSettings
from trainer.train.inputs.encoder import known_scaler
from trainer.train.inputs.row_files import empty_rows

# Deviations to which a baseline's features are clamped: one crash must not decide a linear fit.
FEATURE_LIMIT = 10.0
PART = 1 << 13  # rows that are looked at together: in float64 they stay in the cache of a core


@dataclass(frozen=True, kw_only=True)
class SymbolData:
    """Training data of one symbol in one fold. The output at bar t depends on rows t - bars_seen + 1 to t."""

    candles: Candles
    # float32, unscaled; one for each bar, or for each date of a panel from the series' first to its last
    rows_TF: Tensor
    mean_F: Tensor  # float32, over the rows that training reads
    std_F: Tensor  # float32; 1 where a feature is constant there
    train_labels_TK: Tensor  # float32: scaled for training, NaN everywhere but at the bars of training
    # "train", "validation", "test" -> int64, ascending: the first row of each bar's output.
    starts: dict[str, Tensor]
    reads: Tensor  # int64: the first row of each window, or chunk, of an epoch
    labels_TK: np.ndarray  # float32: unscaled, NaN where there is none
    target: TargetSettings  # with values chosen for settings that the job leaves open
    fitted: Mapping[str, Any]  # by the target, on the labels of training
    spans: Spans
    clock: np.ndarray  # calendar.session_clock
    calendar: str
    ties: int
    embargo: int
    horizon_bars: int
    bars_seen: int
    first_bar: int  # the first row whose inputs are complete
    context_TC: Tensor | None = None  # int16: `data.context`, for a model that reads it
    place_T: np.ndarray | None = None  # int64: the row of each bar, of a panel; None: the bar's own number

    @property
    def symbol(self) -> str:
        """Return the symbol."""
        return self.candles.symbol

    @property
    def num_rows(self) -> int:
        """Return how many rows it has."""
        return len(self.candles) if self.place_T is None else int(self.place_T[-1]) + 1

    def rows(self, span: str) -> np.ndarray:
        """Return the rows (N,) int64 of a span's bars with a label, ascending."""
        return np.asarray(self.starts[span].cpu().numpy() + self.bars_seen - 1)

    def bars(self, span: str) -> np.ndarray:
        """Return the bars (N,) int64 of a span that have a label, ascending."""
        rows = self.rows(span)
        return rows if self.place_T is None else np.searchsorted(self.place_T, rows)

    def labels(self, span: str) -> np.ndarray:
        """Return the labels (N, K) float64 of a span's bars, unscaled."""
        return np.asarray(self.labels_TK[self.bars(span)].astype(np.float64))

    def features(self, bars: np.ndarray) -> np.ndarray:
        """Return scaled features (N, F) float32 of bars, clamped to ten deviations."""
        rows = bars if self.place_T is None else self.place_T[bars]
        if len(rows) and (np.diff(rows) == 1).all():  # side by side: nothing is gathered
            rows_NF = self.rows_TF[int(rows[0]) : int(rows[-1]) + 1]
        else:
            rows_NF = self.rows_TF[torch.from_numpy(rows).to(self.rows_TF.device)]
        scaled_NF = (rows_NF - self.mean_F).div_(self.std_F).clamp_(-FEATURE_LIMIT, FEATURE_LIMIT)
        return np.asarray(scaled_NF.cpu().numpy())

    def scored(self, span: str) -> Rows:
        """Return a span's data for the target's scores."""
        return Rows(
            candles=self.candles,
            clock=self.clock,
            labels_TK=self.labels_TK,
            fitted=self.fitted,
            train=self.bars("train"),
            scored=self.bars(span),
            features=self.features,
        )

    def splits(self) -> dict[str, Any]:
        """Return the spans for a card: first and last bar (their start, UTC), bars and windows of each; the
        embargo in bars.
        """
        summary: dict[str, Any] = {
            name: {**self._ends(span), "windows": len(self.starts[name])} for name, span in self.spans.items()
        }
        if len(self.spans.after):
            summary["after"] = self._ends(self.spans.after)  # whose windows are among those of train
        return {**summary, "embargo": self.embargo}

    def _ends(self, span: Span) -> dict[str, Any]:
        """Return first and last bar of a span, '' for a series of a panel without any, and their number."""
        timestamps = self.candles.timestamp
        return {
            "first": time_text(timestamps[span.start]) if len(span) else "",
            "last": time_text(timestamps[span.stop - 1]) if len(span) else "",
            "bars": len(span),
        }


def prepare_folds(
    candles: Candles, job: Job, plans: Sequence[Plan], rows_TF: Tensor
) -> tuple[SymbolData, ...]:
    """Return a symbol's data for each of its plans, one per fold; all share `rows_TF`, which `inputs_of`
    made. Raises DataError.
    """
    return tuple(prepare(candles, job, features=rows_TF, plan=plan) for plan in plans)


def prepare(
    candles: Candles,
    job: Job,
    *,
    features: Tensor | None = None,
    warmup: int | None = None,
    plan: Plan | None = None,
    series: int = 1,
    folder: Path | None = None,
) -> SymbolData:
    """Return features, labels, spans, scaler and starts of a symbol, on the CPU. Raises DataError.

    `features` (T, F) replaces the job's inputs; their first `warmup` rows are not read. `plan` replaces
    split, labels and bars. `series` is the symbol's number in the piece, from 1 on. Inputs that are computed
    are in a file of `folder` if there is one.
    """
    plan = plan or plan_symbol(candles, job, warmup=warmup)
    rows_TF = inputs_of(candles, job, folder) if features is None else features.float().contiguous()
    names = job.data.inputs if rows_TF.shape[1] == len(job.data.inputs) else ()
    refuse_bad_features(candles, rows_TF, plan.warmup, names)
    read_T = torch.from_numpy(covered(plan.starts["train"], plan.bars_seen, len(candles)))
    mean_F, std_F = known_scaler(job, candles.symbol) or fit_scaler(rows_TF, read_T)
    fitted = plan.target.fit(plan.labels_TK[plan.bars["train"]])
    return symbol_data(
        candles, job, plan, rows_TF=rows_TF, mean_F=mean_F, std_F=std_F, fitted=fitted, series=series
    )


def symbol_data(
    candles: Candles,
    job: Job,
    plan: Plan,
    *,
    rows_TF: Tensor,
    mean_F: Tensor,
    std_F: Tensor,
    fitted: Mapping[str, Any],
    series: int,
) -> SymbolData:
    """Return the training data of a plan with these rows, scaler and fitted values, on the CPU.

    `series` is the symbol's number in the piece, from 1 on; 0 for one without training bars.
    """
    train = plan.bars["train"]
    train_labels_TK = np.full((len(rows_TF), plan.labels_TK.shape[1]), np.nan, dtype=np.float32)
    train_labels_TK[plan.time.rows_of(train)] = plan.target.scale(plan.labels_TK[train], fitted)
    starts = {name: torch.from_numpy(rows) for name, rows in plan.starts.items()}
    chunks = None if plan.chunks is None else torch.from_numpy(plan.chunks - plan.bars_seen + 1)
    return SymbolData(
        candles=candles,
        rows_TF=rows_TF,
        mean_F=mean_F,
        std_F=std_F,
        train_labels_TK=torch.from_numpy(train_labels_TK),
        starts=starts,
        reads=starts["train"] if chunks is None else chunks,
        labels_TK=plan.labels_TK,
        target=plan.target,
        fitted=fitted,
        spans=plan.spans,
        clock=plan.time.clock,
        calendar=plan.time.calendar,
        ties=plan.ties,
        embargo=max(job.data.embargo, plan.horizon_bars),
        horizon_bars=plan.horizon_bars,
        bars_seen=plan.bars_seen,
        first_bar=plan.first_row,
        place_T=plan.rows,
        context_TC=context_rows(candles, plan.rows, series=series) if job.model.reads_context else None,
    )


def context_rows(candles: Candles, place_T: np.ndarray | None, *, series: int) -> Tensor:
    """Return the context (R, C) int16 of a series' rows, 0 on a panel's date without a bar. `place_T`: the
    row of each bar.
    """
    context_TC = context_of(candles.timestamp, candles.timeframe, series=series)
    if place_T is None:
        return torch.from_numpy(context_TC)
    context_RC = np.zeros((int(place_T[-1]) + 1, len(CONTEXT)), dtype=np.int16)
    context_RC[place_T] = context_TC
    return torch.from_numpy(context_RC)


def inputs_of(candles: Candles, job: Job, folder: Path | None = None) -> Tensor:
    """Return the job's inputs (T, F) at each bar, unscaled; in a file of `folder` if there is one."""
    width = len(job.data.computed) + len(candles.columns)
    if len(candles) >= LARGE_BARS:
        release_freed_memory()  # of reading: before rows take several times as much
    into = empty_rows(len(candles), width, folder=folder)
    return compute_inputs(candles, features=job.data.computed, own=job.data.own, into=into)


def fit_scaler(rows_TF: Tensor, chosen_T: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and deviation (divisor n, float32) of the chosen rows (T,) bool, summed in float64;
    deviation 1 where constant.
    """
    total_F = torch.zeros(rows_TF.shape[1], dtype=torch.float64)
    squares_F, number = torch.zeros_like(total_F), int(chosen_T.sum())
    for part in _chosen(rows_TF, chosen_T):  # one part at a time: the rows may be larger than memory
        total_F += part.sum(0)
    mean_F = total_F / number
    for part in _chosen(rows_TF, chosen_T):
        squares_F += part.sub_(mean_F).square_().sum(0)
    std_F = (squares_F / number).sqrt()
    constant_F = std_F <= 1e-6 * mean_F.abs() + 1e-12  # a constant varies only by float32's rounding
    return mean_F.float(), torch.where(constant_F, 1.0, std_F).float()


def _chosen(rows_TF: Tensor, chosen_T: Tensor) -> Iterator[Tensor]:
    """Yield the chosen rows in float64, PART at a time."""
    waiting = torch.empty(0, dtype=torch.int64)
    for first in range(0, len(chosen_T), PART):
        waiting = torch.cat([waiting, chosen_T[first : first + PART].nonzero()[:, 0] + first])
        if len(waiting) >= PART:
            yield _at(rows_TF, waiting[:PART])
            waiting = waiting[PART:]
    if len(waiting):
        yield _at(rows_TF, waiting)


def _at(rows_TF: Tensor, places: Tensor) -> Tensor:
    """Return rows in float64; of neighbours nothing is gathered."""
    first, last = int(places[0]), int(places[-1])
    if last - first + 1 == len(places):  # ascending, each once
        return rows_TF[first : last + 1].double()
    return rows_TF[places].double()


def covered(starts: np.ndarray, seen: int, num_bars: int) -> np.ndarray:
    """Return (T,) bool: whether the row is among the `seen` rows from one of the `starts`."""
    change = np.zeros(num_bars + 1, dtype=np.int32)
    change[starts] += 1
    change[starts + seen] -= 1
    return np.asarray(np.cumsum(change[:-1], out=change[:-1]) > 0)


def refuse_bad_features(candles: Candles, rows_TF: Tensor, warmup: int, names: tuple[str, ...]) -> None:
    """Raise DataError for a row of features that is not finite, after the warm-up. `names` may be empty."""
    if rows_TF.shape[0] != len(candles):
        raise DataError(
            f"{candles.symbol} has {len(candles)} bars and {rows_TF.shape[0]} rows of features",
            do="Give one row per bar.",
        )
    number, first = 0, (0, 0)
    for start in range(warmup, len(rows_TF), PART):
        finite_TF = np.isfinite(rows_TF[start : start + PART].numpy())  # torch's takes eight times as long
        if not finite_TF.all():
            row, column = np.argwhere(~finite_TF)[0].tolist()
            first = first if number else (start + row, column)
            number += int((~finite_TF).sum())
    if number:
        row, column = first
        name = names[column] if names else f"feature {column}"
        raise DataError(
            f"{name} of {candles.symbol} is not finite at {time_text(candles.timestamp[row])}",
            why=counted(number, "such value"),
            do="Look at the bars around that time.",
        )
