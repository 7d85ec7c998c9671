"""The base classes of targets: what a model forecasts, its labels and loss, its scores and baselines.

A target's module loads with the standard library alone, since the control plane reads a job by its settings;
numpy and torch are imported inside the methods that need them. docs/models.md shows how to add
one.

Shapes: T bars of a series, N bars to score, K label columns, O outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from trainer.base.errors import UsageError
from trainer.base.settings import HomeSettings, check_limits, setting

if TYPE_CHECKING:
    import numpy as np
    import torch

    from trainer.data.read.candles import Candles
    from trainer.targets.bars import Labels
    from trainer.targets.scoring import Events, Holdings, PerBar, Rows

HIGHER, LOWER = "higher", "lower"
BARS, CLOSES, CLOCK = "bars", "closes", "session clock"
PLAIN_RULE = "long for the horizon if the forecast is up, else cash, never short"
TEMPERATURE = "temperature"  # a fitted value: what logits are divided by, calibrated on validation


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A score: its name in the card, its title for people, and which direction is better."""

    name: str
    title: str
    better: str = HIGHER
    unit: str = ""


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a receipt: the path of its value in the scores of a span, and of the value in brackets."""

    title: str
    value: tuple[str, ...]
    beside: tuple[str, ...] = ()


def column(title: str, metric: str, *, baseline: str) -> Column:
    """Return the column of a metric, with that of a baseline in brackets."""
    return Column(title=f"{title} ({baseline})", value=(metric,), beside=("baselines", baseline, metric))


@dataclass(frozen=True, kw_only=True)
class TargetSettings(HomeSettings):
    """A target: its settings, and everything that is computed by them."""

    part = "target"
    label_columns: ClassVar[int] = 1
    metrics: ClassVar[tuple[Metric, ...]] = ()
    # Metrics of which the truth has the best value on average; the first is the headline and decides a mark.
    proper: ClassVar[tuple[str, ...]] = ()
    table: ClassVar[tuple[Column, ...]] = ()
    farther: ClassVar[str] = "target.horizon"  # keys that change how far a label looks ahead, for messages
    long_above: ClassVar[float | None] = None  # of `order`: a forecast above is up; None: nobody trades on it
    # Its outputs act, and an agent learns them by reward: [agent] in place of the supervised step.
    acts: ClassVar[bool] = False
    has_environment: ClassVar[bool] = False  # of the user's own, in which its agents act
    # What baselines and scores read of bars, besides times: the rest is dropped once features are made.
    scores_read: ClassVar[frozenset[str]] = frozenset({BARS, CLOCK})
    needs_fitted: ClassVar[tuple[str, ...]] = ()  # numbers of `fit` without which no output can be read

    def __post_init__(self) -> None:
        check_limits("target", self)

    @property
    def rule(self) -> str:
        """Return how its forecasts are traded, for people; '' if nobody trades on them."""
        return "" if self.long_above is None else PLAIN_RULE

    @property
    def words(self) -> str:
        """Return what a plan says of it besides its name; '' for nothing."""
        return ""

    @property
    def outputs(self) -> int:
        """Return how many numbers the model gives for each bar."""
        return 1

    def features(self, inputs: int) -> int:
        """Return how many numbers of a bar the model reads, of a job with so many inputs."""
        return inputs

    def names_of_features(self, inputs: Sequence[str]) -> list[str]:
        """Return the names of what the model reads of a bar, of a job with these inputs."""
        return list(inputs)

    @property
    def outputs_are(self) -> str:
        """Say what the outputs of a model are, in their order, as its ONNX file does."""
        return f"what the target {self.name} makes its forecast of"

    @property
    def unit_bars(self) -> int:
        """Return the bars of the trailing volatility that is the unit of its labels; 0: they have another
        unit.
        """
        return 0

    @property
    def reach(self) -> int:
        """Return how many bars before its own a label or a column of a prediction reads."""
        return self.unit_bars

    @property
    def bars_ahead(self) -> int:
        """Return how many bars a label reads after its own, at least."""
        return 1

    def options(self) -> tuple[Self, ...]:
        """Return the settings to choose from for a series: the first that leaves enough separate labels in
        test.
        """
        return (self,)

    def about(self) -> dict[str, Any]:
        """Return the description of its metrics for the card. Without `proper` a model gets no mark."""
        described = {
            metric.name: {"title": metric.title, "better": metric.better, "unit": metric.unit}
            for metric in self.metrics
        }
        table = [
            {"title": one.title, "value": list(one.value), "beside": list(one.beside)} for one in self.table
        ]
        rule = {"rule": self.rule} if self.rule else {}
        return {
            "headline": self.proper[0],
            "proper": list(self.proper),
            "metrics": described,
            "table": table,
            **rule,
        }

    def label(self, candles: Candles, clock: np.ndarray) -> Labels:
        """Return the labels (T, K), NaN if there is none, and where each ends. `clock` (T,) is
        `calendar.session_clock`.

        A label must not depend on where the series begins: sum with `targets/bars.py`, not with a running
        total.
        """
        raise NotImplementedError

    def flaw(self, labels_NK: np.ndarray) -> tuple[str, str]:
        """Return why no model can be trained on these labels, and the reason; two empty texts if it can."""
        return "", ""

    def fit(self, labels_NK: np.ndarray) -> dict[str, Any]:
        """Return values fitted on the training labels, for the other methods; JSON values."""
        return {}

    def scale(self, labels_NK: np.ndarray, fitted: Mapping[str, Any]) -> np.ndarray:
        """Return the labels that the network is trained on."""
        return labels_NK

    def loss(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss (...) of each label, not reduced: outputs (..., O), scaled labels (..., K).

        Without statistics of the batch, and recordable as a CUDA graph. It gets the job's settings, not
        those chosen from `options`.
        """
        raise NotImplementedError

    def loss_of_span(self, outputs_NO: np.ndarray, labels_NK: np.ndarray) -> float:
        """Return the loss of a model's outputs on all bars of a span, oldest first, and their scaled labels:
        by it epochs are compared.
        """
        import torch

        return float(self.loss(torch.from_numpy(outputs_NO), torch.from_numpy(labels_NK)).mean())

    def combined(self, outputs_MNO: torch.Tensor) -> torch.Tensor:
        """Return the outputs (..., O) whose forecast is the mean of those of several networks' outputs
        (M, ..., O).
        """
        return outputs_MNO.mean(0)

    def forecast(self, outputs_NO: np.ndarray, fitted: Mapping[str, Any]) -> np.ndarray:
        """Return the forecasts (N, ...) of a model's outputs, in the unit of the labels."""
        return outputs_NO

    def calibrate(
        self, outputs_NO: np.ndarray, labels_NK: np.ndarray, fitted: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return `fitted` with what is calibrated on validation. Of a panel a value of `fit` is an array
        (N,): that of each bar's series.
        """
        return dict(fitted)

    def order(self, forecast_N: np.ndarray) -> np.ndarray:
        """Return the number (N,) of each forecast by which a panel's series are ranked."""
        return forecast_N

    def is_long(self, forecast_N: np.ndarray) -> np.ndarray | None:
        """Return whether each forecast (N,) is up; None of a target that says nothing about that."""
        return None if self.long_above is None else self.order(forecast_N) > self.long_above

    def holdings(self, forecast_N: np.ndarray, rows: Rows) -> Holdings | None:
        """Return what is held by its forecasts (N, ...) of a series' scored bars, one or more; None if nobody
        trades on them.
        """
        from trainer.targets.scoring import plain_holdings

        long_N = self.is_long(forecast_N)
        return None if long_N is None else plain_holdings(long_N, rows.scored, rows.candles, self.bars_ahead)

    def events(self, forecast_N: np.ndarray, labels_NK: np.ndarray) -> Events:
        """Return the probability (N,) of each event that is forecast, and whether it happened (N,)."""
        return {}

    def columns(
        self, outputs_NO: np.ndarray, candles: Candles, bars: np.ndarray, fitted: Mapping[str, Any]
    ) -> dict[str, np.ndarray]:
        """Return the columns (N,) of a prediction at rows `bars` of the candles."""
        raise NotImplementedError

    def check_held(self, held: float) -> None:
        """Raise UsageError for a share of the money that no account of its agents can hold."""
        do = "Leave --held out."
        raise UsageError(f"a model of {self.name} forecasts, and says nothing of what to hold", do=do)

    def columns_of_held(self, columns: Mapping[str, np.ndarray], held: float) -> dict[str, np.ndarray]:
        """Return the columns (N,) of a prediction for an account that holds a share of its money."""
        raise NotImplementedError

    def with_unit(self, candles: Candles, bars: np.ndarray) -> np.ndarray:
        """Return those of the rows `bars` at which the unit of its labels is known."""
        return bars

    def cells(self, rows: Rows) -> tuple[np.ndarray, str]:
        """Return the cell (N,) of each scored bar, for intervals, and the length of a cell as text."""
        raise NotImplementedError

    def baselines(self, *series: Rows) -> dict[str, np.ndarray]:
        """Return the forecasts of each baseline for the scored bars of all series, fitted on the training of
        all. One of them is unconditional.
        """
        raise NotImplementedError

    def per_bar(self, forecast_N: np.ndarray, labels_NK: np.ndarray) -> PerBar:
        """Return each of `metrics` as a value (N,) for each bar, whose mean is the metric; None if it is
        undefined.

        Of a metric that is not a mean of losses, a bar's value is the metric plus the bar's influence on it.
        """
        raise NotImplementedError

    def scores(self, forecast_N: np.ndarray, labels_NK: np.ndarray) -> dict[str, Any]:
        """Return n, the number of bars, and the value of each of `metrics`."""
        return self.scores_of(self.per_bar(forecast_N, labels_NK), forecast_N, labels_NK)

    def scores_of(self, values: PerBar, forecast_N: np.ndarray, labels_NK: np.ndarray) -> dict[str, Any]:
        """Return `scores` of forecasts whose values by bar are known."""
        means = {name: None if each_N is None else float(each_N.mean()) for name, each_N in values.items()}
        return {"n": len(forecast_N), **means}


@dataclass(frozen=True, kw_only=True)
class HorizonSettings(TargetSettings):
    """A target whose labels end `horizon` bars after their own."""

    scores_read = frozenset({CLOSES})

    horizon: int = setting(5, "Bars ahead: from a bar to the end of its label.", least=1, most=100_000)

    @property
    def bars_ahead(self) -> int:
        return self.horizon

    def cells(self, rows: Rows) -> tuple[np.ndarray, str]:
        from trainer.targets.scoring import day_cells

        return day_cells(rows, self.horizon)


@dataclass(frozen=True, kw_only=True)
class VolatilityUnitSettings(HorizonSettings):
    """A target of moves over `horizon` bars in units of their trailing volatility."""

    volatility_bars: int = setting(
        60, "Bars of the trailing volatility, the unit of the label.", least=2, most=1_000_000
    )

    @property
    def unit_bars(self) -> int:
        return self.volatility_bars

    def unit(self, candles: Candles) -> np.ndarray:
        """Return the volatility (T,) over `horizon` bars, estimated from the last `volatility_bars` bars."""
        from trainer.targets.bars import volatility_unit

        return volatility_unit(candles.close, horizon=self.horizon, span=self.volatility_bars)

    def with_unit(self, candles: Candles, bars: np.ndarray) -> np.ndarray:
        """Return the bars at which trailing volatility is known: where the close moved before."""
        import numpy as np

        known: np.ndarray = bars[np.isfinite(self.unit(candles)[bars])]
        return known
