"""A target of the user's own: a class in a Python file that labels bars and has a loss. Docs:
docs/models.md.

It is scored by its own loss, and by the correlation of the first output with the first label. A forecast is
the plain outputs. Labels are not scaled.

Shapes: T bars, K label columns, N bars to score, O outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainer.base.errors import UsageError
from trainer.base.own_file import OwnFile, as_usage_error, digest_of, instance_of
from trainer.targets.target import LOWER, Column, Metric, TargetSettings, column

if TYPE_CHECKING:
    import numpy as np
    import torch

    from trainer.data.read.candles import Candles
    from trainer.targets.bars import Labels
    from trainer.targets.scoring import PerBar, Rows

MOST_LABELS = 20_000  # to which the constant baseline is fitted, evenly spread
# Of Adam, with a rate that falls to 0: the loss need not be smooth. It reaches half of their product.
STEPS, FIRST_RATE = 400, 0.1
DO = "See docs/models.md."


@dataclass(frozen=True, kw_only=True)
class MeasuredTarget:
    """Measurements of a user's target: its outputs, and how far its labels reach."""

    of: str  # digest of the measured class, file and settings
    label_columns: int
    outputs: int
    reach: int
    ahead_least: int  # bars from a bar to the end of its label
    ahead_most: int


@dataclass(frozen=True, kw_only=True)
class OwnTarget(OwnFile, TargetSettings):
    """A user's own target."""

    part = "target"
    measured_as = MeasuredTarget
    metrics = (
        Metric(name="loss", title="loss", better=LOWER),
        Metric(name="correlation", title="correlation"),
    )
    proper = ("loss",)
    table = (
        column("loss", "loss", baseline="constant"),
        Column(title="correlation", value=("correlation",)),
    )
    farther = "setting of your target"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_names()

    @property
    def trial(self) -> MeasuredTarget | None:
        """Return the measurements if they are of the current file and settings, else None."""
        measured: MeasuredTarget | None = self.measured
        return measured if self.is_tried else None

    @property
    def code(self) -> str:
        """Return a digest of everything but the bars that its labels depend on."""
        return digest_of(self.sha256, self.class_name, self.given)

    @property
    def label_columns(self) -> int:  # type: ignore[override]
        return self.trial.label_columns if self.trial else 1

    @property
    def outputs(self) -> int:
        return self.trial.outputs if self.trial else 1

    @property
    def reach(self) -> int:
        return self.trial.reach if self.trial else 0

    @property
    def bars_ahead(self) -> int:
        return self.trial.ahead_least if self.trial else 1

    @property
    def horizon(self) -> int:
        """Return the length of the longest label in bars."""
        return self.trial.ahead_most if self.trial else 1

    def label(self, candles: Candles, clock: np.ndarray) -> Labels:
        """Return the labels of the user's class. Raises UsageError, one line, if its `label` fails or returns
        another form.
        """
        import numpy as np

        from trainer.targets.bars import Labels

        own, name = instance_of(self), f"{self.class_name}.label"
        with as_usage_error(f"{name} fails"):
            given = own.label(candles.read_only())
        if not isinstance(given, tuple) or len(given) != 2:
            raise UsageError(
                f"{name} returns {type(given).__name__}", why="it must return labels and their ends", do=DO
            )
        values_TK, ends_T = _values(given[0], name, len(candles)), _ends(given[1], name, len(candles))
        values_TK[ends_T < 0] = np.nan
        return Labels(values_TK=values_TK, ends_T=ends_T)

    def loss(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss (...) of the user's class: outputs (..., O), labels (..., K)."""
        losses: torch.Tensor = instance_of(self).loss(outputs, labels)
        return losses

    def order(self, forecast_N: np.ndarray) -> np.ndarray:
        """Return the first output (N,)."""
        return forecast_N[:, 0]

    def columns(
        self, outputs_NO: np.ndarray, candles: Candles, bars: np.ndarray, fitted: Mapping[str, Any]
    ) -> dict[str, np.ndarray]:
        """Return the outputs. Runs none of the user's code."""
        if outputs_NO.shape[1] == 1:
            return {"output": outputs_NO[:, 0]}
        return {f"output_{number}": column for number, column in enumerate(outputs_NO.T, 1)}

    def cells(self, rows: Rows) -> tuple[np.ndarray, str]:
        from trainer.targets.scoring import day_cells

        return day_cells(rows, self.horizon)

    def baselines(self, *series: Rows) -> dict[str, np.ndarray]:
        """Return, for each scored bar, the constant outputs (N, O) with the least loss in the training of all
        series.
        """
        import numpy as np

        from trainer.targets.scoring import num_scored, of_training

        labels_NK = of_training(series)
        some = labels_NK[:: 1 + len(labels_NK) // MOST_LABELS]
        return {"constant": np.tile(self._constant(some), (num_scored(series), 1))}

    def per_bar(self, forecast_N: np.ndarray, labels_NK: np.ndarray) -> PerBar:
        """Return loss, and correlation (None if either is constant)."""
        import numpy as np
        import torch

        from trainer.targets.scoring import correlation_per_bar

        labels_NK = labels_NK.reshape(len(forecast_N), -1)
        outputs = torch.from_numpy(np.ascontiguousarray(forecast_N))
        return {
            "loss": self.loss(outputs, torch.from_numpy(labels_NK)).numpy(),
            "correlation": correlation_per_bar(forecast_N[:, 0], labels_NK[:, 0]),
        }

    def _constant(self, labels_NK: np.ndarray) -> np.ndarray:
        """Return the constant outputs (O,) float64 with the least mean loss, in whatever unit: found by steps
        of the labels' size, and of 1, as outputs such as logits have; the smaller ones last.
        """
        import numpy as np
        import torch

        labels = torch.from_numpy(labels_NK)

        def mean_loss(outputs_O: torch.Tensor) -> torch.Tensor:
            return self.loss(outputs_O.expand(len(labels), -1), labels).mean()

        best_O = torch.zeros(self.outputs, dtype=torch.float64)
        least = float(mean_loss(best_O).nan_to_num(nan=torch.inf))
        for size in sorted({1.0, float(labels.abs().mean())}, reverse=True):
            outputs_O = best_O.clone().requires_grad_()
            optimizer = torch.optim.Adam([outputs_O], eps=1e-30)  # far below any gradient
            for step in range(STEPS):
                optimizer.param_groups[0]["lr"] = FIRST_RATE * size * (1 - step / STEPS)
                optimizer.zero_grad()
                mean_loss(outputs_O).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            if (loss := float(mean_loss(outputs_O.detach()))) < least:
                best_O, least = outputs_O.detach(), loss
        return np.asarray(best_O.numpy())


def _values(given: Any, name: str, bars: int) -> np.ndarray:
    import numpy as np

    with as_usage_error(f"{name} returns labels that are not numbers", DO):
        values = np.array(given, dtype=np.float32)
    values_TK = values[:, None] if values.ndim == 1 else values
    if values_TK.ndim != 2 or len(values_TK) != bars or not values_TK.shape[1]:
        why = f"labels of {bars} bars are ({bars},) or ({bars}, K)"
        raise UsageError(f"{name} returns labels of shape {values.shape}", why=why, do=DO)
    return values_TK


def _ends(given: Any, name: str, bars: int) -> np.ndarray:
    import numpy as np

    with as_usage_error(f"{name} returns ends that are not whole numbers", DO):
        ends_T = np.array(given).astype(np.int64, casting="same_kind")
    if ends_T.shape != (bars,):
        raise UsageError(f"{name} returns ends of shape {ends_T.shape}", why=f"there are {bars} bars", do=DO)
    ends_T = np.where(ends_T < 0, -1, ends_T)
    if ((ends_T >= 0) & (ends_T <= np.arange(bars))).any() or ends_T.max(initial=-1) >= bars:
        why = "the end of a label is a later bar of the series, or -1 without a label"
        raise UsageError(f"{name} returns invalid ends", why=why, do=DO)
    return ends_T
