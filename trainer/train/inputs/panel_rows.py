"""Training data of a panel: the rows of each series on the panel's calendar, scaled, with missing days
masked.

A series has a row for each date from its first bar to its last. On a date without a bar, every feature is the
scaler's mean, zero once scaled, and `present`, the first input, is 0. No value is filled forward or backward.

The scaler (`data.scaler`) is one over all series (`pooled`), each series' own (`series`), or the rank of a
value among the series that are present on its date (`rank`), which needs no fit; inputs that are the same for
all series of a date are pooled there. It is fitted on the rows that training reads. A series without training
bars has the one over all series.

Labels are fitted over all series, or with `scaler = "series"` on each.

Shapes: R rows of all series, D dates, S series, F inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from trainer.bars.document import SymbolPlan
from trainer.bars.job_plan import plans_of_panel
from trainer.bars.panel_plan import PanelCalendar, calendar_of
from trainer.bars.series_plan import Plan, on_all_bars
from trainer.bars.symbol_plan import warmup_of
from trainer.base.settings import CHUNKS
from trainer.data.feature_names import named
from trainer.data.features import compute_each
from trainer.data.own_features import OwnFeatures
from trainer.data.ranks import ranks
from trainer.data.read.candles import Candles
from trainer.data.side_names import side_column
from trainer.data.table import BY_SERIES, PRESENT, RANK
from trainer.job.job import Job
from trainer.train.inputs.encoder import known_scaler
from trainer.train.inputs.rows import SymbolData, covered, fit_scaler, refuse_bad_features, symbol_data
from trainer.train.inputs.series import PanelScale, PieceData, lay


@dataclass(frozen=True, kw_only=True)
class PanelRows:
    """The inputs of a panel's series, end to end: features, or ranks of them, not scaled; 0 if a date has no
    bar.
    """

    rows_RF: Tensor  # float32
    present_R: np.ndarray  # bool
    counts: tuple[int, ...]  # rows of each series

    def split(self) -> tuple[Tensor, ...]:
        """Return the rows of each series: views."""
        return torch.split(self.rows_RF, list(self.counts))

    def split_present(self) -> list[np.ndarray]:
        """Return which dates of each series have a bar (D,) bool."""
        return np.split(self.present_R, np.cumsum(self.counts)[:-1])


def panel_rows(
    series: Sequence[Candles],
    calendar: PanelCalendar,
    *,
    inputs: tuple[str, ...],
    features: Sequence[str],
    warmups: Sequence[int],
    scaler: str,
    own: OwnFeatures | None,
) -> PanelRows:
    """Return the input rows of all series.

    `inputs` are the model's input names, `features` the computed ones among them, `warmups` each series'
    warm-up in bars, `scaler` a value of `data.scaler`, `own` the user's features. Raises DataError for a
    feature that is not finite.
    """
    dates = [calendar.dates(candles) for candles in series]
    counts = [int(one[-1] - one[0]) + 1 for one in dates]
    offsets = np.cumsum([0, *counts])
    rows_RF = torch.zeros(int(offsets[-1]), len(inputs))
    present_R = np.zeros(len(rows_RF), dtype=bool)
    each = zip(
        series, dates, offsets[:-1], warmups, compute_each(series, features=features, own=own), strict=True
    )
    for candles, its, offset, warmup, computed_TF in each:
        refuse_bad_features(candles, computed_TF, warmup, inputs[1:])
        computed_TF[:warmup] = 0  # no window reads them
        place_T = its - its[0] + offset
        rows_RF[place_T, 1:] = computed_TF
        present_R[place_T] = True
    rows_RF[:, inputs.index(PRESENT)] = torch.from_numpy(present_R.astype(np.float32))
    if scaler == RANK:
        warm = [np.arange(len(its)) >= warmup for its, warmup in zip(dates, warmups, strict=True)]
        rows_R = np.concatenate(
            [(its - its[0] + at)[one] for its, at, one in zip(dates, offsets[:-1], warm, strict=True)]
        )
        dates_R = np.concatenate([its[one] for its, one in zip(dates, warm, strict=True)])
        series_R = np.repeat(np.arange(len(series)), [int(one.sum()) for one in warm])
        place = (len(calendar.instants), len(series))
        for column, name in enumerate(inputs):
            if is_ranked(name):
                values_DS = np.full(place, np.nan)
                values_DS[dates_R, series_R] = rows_RF[rows_R, column].numpy()
                rows_RF[rows_R, column] = torch.from_numpy(ranks(values_DS)[dates_R, series_R]).float()
    return PanelRows(rows_RF=rows_RF, present_R=present_R, counts=tuple(counts))


def is_ranked(name: str) -> bool:
    """Return whether the scaler `rank` takes the rank of an input. It would be 0 for all series where they
    share the value: of the time of a bar, and of side series.
    """
    feature = named(name)
    is_of_time = feature is not None and feature.feature.is_of_time
    return name != PRESENT and not is_of_time and side_column(name) is None


def masked(rows_DF: Tensor, mean_F: Tensor, present_D: np.ndarray) -> Tensor:
    """Return the rows (D, F) with the scaler's mean on missing dates; `present` is 0 there, since its mean is
    0.
    """
    return torch.where(torch.from_numpy(present_D)[:, None], rows_DF, mean_F)


def read_panel(
    panel: Mapping[str, Candles], job: Job, entries: Sequence[SymbolPlan], fold: int, *, refit: bool = False
) -> PieceData:
    """Return the training data of a panel's fold, or of its `refit`, on the CPU. Raises DataError if bars are
    not those of the plan.
    """
    planned = plans_of_panel(panel, job, entries)
    plans = [planned[entry.symbol][fold - 1] for entry in entries]
    if refit:
        plans = [on_all_bars(plan, job.model) for plan in plans]
    series = [panel[entry.symbol] for entry in entries]
    rows = panel_rows(
        series,
        calendar_of(series, job.data.calendar, series[0].timeframe),
        inputs=job.data.inputs,
        features=job.data.computed,
        warmups=[warmup_of(candles, job) for candles in series],
        scaler=job.data.scaler,
        own=job.data.own,
    )
    scale = _fit(job, plans, rows)
    # A chunk that starts in a series may extend this far beyond it.
    padding = job.model.bars_out if job.model.reads == CHUNKS else 0
    return replace(
        lay(_parts(job, series, plans, rows, scale), rows=rows.counts, padding=padding), panel=scale
    )


def _fit(job: Job, plans: Sequence[Plan], rows: PanelRows) -> PanelScale:
    """Fit the scaler on the rows that training reads and the target on the training labels, over all
    series.
    """
    read_R = np.concatenate(
        [covered(plan.starts["train"], plan.bars_seen, n) for plan, n in zip(plans, rows.counts, strict=True)]
    )
    mean_F, std_F = known_scaler(job) or _neutral(
        job, *fit_scaler(rows.rows_RF, torch.from_numpy(read_R & rows.present_R))
    )
    labels_NK = np.concatenate([plan.labels_TK[plan.bars["train"]] for plan in plans])
    return PanelScale(
        scaler=job.data.scaler,
        mean_F=mean_F,
        std_F=std_F,
        fitted=plans[0].target.fit(labels_NK),
        numbers=tuple(number if len(plan.bars["train"]) else 0 for number, plan in enumerate(plans, 1)),
    )


def _neutral(job: Job, mean_F: Tensor, std_F: Tensor) -> tuple[Tensor, Tensor]:
    """Return the scaler with mean 0 and deviation 1 for inputs that are scaled already: `present`,
    and ranks.
    """
    kept = [name == PRESENT or (job.data.scaler == RANK and is_ranked(name)) for name in job.data.inputs]
    kept_F = torch.tensor(kept)
    return torch.where(kept_F, 0.0, mean_F), torch.where(kept_F, 1.0, std_F)


def _parts(
    job: Job, series: Sequence[Candles], plans: Sequence[Plan], rows: PanelRows, scale: PanelScale
) -> Iterator[SymbolData]:
    each = zip(series, plans, scale.numbers, rows.split(), rows.split_present(), strict=True)
    for candles, plan, number, rows_DF, present_D in each:
        mean_F, std_F, fitted = scale.mean_F, scale.std_F, scale.fitted
        if scale.scaler == BY_SERIES and len(plan.bars["train"]):
            read_D = covered(plan.starts["train"], plan.bars_seen, len(rows_DF)) & present_D
            mean_F, std_F = known_scaler(job, candles.symbol) or _neutral(
                job, *fit_scaler(rows_DF, torch.from_numpy(read_D))
            )
            fitted = plan.target.fit(plan.labels_TK[plan.bars["train"]])
        whole_DF = masked(rows_DF, mean_F, present_D)
        yield symbol_data(
            candles, job, plan, rows_TF=whole_DF, mean_F=mean_F, std_F=std_F, fitted=fitted, series=number
        )
