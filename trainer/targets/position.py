"""Position: what an agent holds, chosen at each bar by what it holds already. Its learner is PPO.

At bar t the agent knows the bars up to t and the position it holds, a share of its money, and chooses the
next one. That is filled at the open of t + 1 and held to the open of t + 2 (`fill`). What is traded costs
`fee`, `slippage` and half the `spread`; the share is restored at each bar, and that is not charged. Prices do
not depend on what an agent does, so the network reads bars alone: it says for every position held what to do,
and an account (`position_account`) picks from that bar by bar.

Outputs, P positions: P x P logits of the next position, by the position held, then P values, one for each
held. With continuous actions, at each of P positions held (in between linear): the mean of the next position,
a value; then one log deviation.

Shapes: N bars, P positions, O outputs, K = 3 label columns: the log return of the bar that is held, and when
its own bar and the next one begin, so that an account knows which bars follow each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainer.base.errors import DataError, UsageError
from trainer.base.settings import bad_value, setting
from trainer.targets.target import LOWER, Column, Metric, TargetSettings, column

if TYPE_CHECKING:
    import numpy as np
    import torch

    from trainer.data.read.candles import Candles
    from trainer.targets.bars import Labels
    from trainer.targets.scoring import Holdings, PerBar, Rows

NEXT_OPEN, CLOSE = "next_open", "close"
DISCRETE, CONTINUOUS = "discrete", "continuous"
TIMES = 16_777_213  # seconds that times in labels wrap at: the largest prime that float32 counts up to
BASIS = 10_000  # basis points, the unit of growth: a bar's is small


@dataclass(frozen=True, kw_only=True)
class Position(TargetSettings):
    """The target `position`."""

    name = "position"
    label_columns = 3
    acts = True
    metrics = (
        Metric(name="growth", title="growth bp", unit="basis points of log growth a bar, after costs"),
        Metric(name="gross_growth", title="before costs bp", unit="basis points of log growth a bar"),
        Metric(name="traded_share", title="traded", better=LOWER, unit="times the money a bar"),
        Metric(name="invested", title="invested", better=LOWER, unit="share of the money"),
        Metric(name="drawdown", title="drawdown", better=LOWER, unit="share of the money"),
        Metric(name="sharpe_ratio", title="Sharpe of a bar"),
    )
    proper = ("growth",)
    table = (
        column("growth bp", "growth", baseline="hold"),
        column("drawdown", "drawdown", baseline="hold"),
        Column(title="before costs bp", value=("gross_growth",)),
        Column(title="traded", value=("traded_share",)),
        Column(title="invested", value=("invested",)),
    )
    farther = "target.fill"

    levels: int = setting(3, "Positions to choose from, evenly spaced.", least=2, most=21)
    short: bool = setting(True, "Whether the agent may sell short; levels is odd then.")
    limit: float = setting(1.0, "Largest position, as a share of the money.", above=0, most=1)
    fee: float = setting(0.0010, "Fee, as a share of what is traded.", least=0, below=0.1)
    slippage: float = setting(0.0005, "Slippage, as a share of what is traded.", least=0, below=0.1)
    spread: float = setting(0.0, "Bid-ask spread, as a share of the price; half is paid.", least=0, below=0.1)
    fill: str = setting(
        NEXT_OPEN,
        "Price at which an action is filled: the open of the next bar, or the close that it was chosen at,"
        " which is never given a mark.",
        choices=(NEXT_OPEN, CLOSE),
    )
    actions: str = setting(
        DISCRETE, "Whether it chooses one of the levels, or any share.", choices=(DISCRETE, CONTINUOUS)
    )
    average_bars: int = setting(
        50, "Bars of the moving average of the baseline that is named so.", least=2, most=1_000_000
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.short and self.levels % 2 == 0:
            raise bad_value(
                "target.levels", self.levels, "an odd number with target.short, so that one of them is flat"
            )
        if self.cost <= 0:
            raise UsageError(
                "an agent can't be trained without trading costs",
                why="target.fee, target.slippage and target.spread are all 0",
                do="Set target.fee to what your broker takes; an exchange takes 0.0005 to 0.0025.",
            )

    @property
    def rule(self) -> str:
        at = "the next bar's open" if self.fill == NEXT_OPEN else "a close that it has seen"
        return f"its own positions, {self.positions[0]:g} to {self.positions[-1]:g}, filled at {at}"

    @property
    def words(self) -> str:
        costs = (("fee", self.fee), ("slippage", self.slippage), ("spread", self.spread))
        paid = ", ".join(f"{name} {100 * share:g} %" for name, share in costs if share)
        mark = "" if self.fill == NEXT_OPEN else ", so it gets no mark"
        return f"an agent trades {self.rule}{mark}; {paid}"

    @property
    def is_continuous(self) -> bool:
        """Return whether it may take any share."""
        return self.actions == CONTINUOUS

    @property
    def positions(self) -> tuple[float, ...]:
        """Return the positions held (P,), ascending, that have outputs of their own."""
        low = -self.limit if self.short else 0.0
        if self.is_continuous:
            return (low, 0.0, self.limit) if self.short else (low, self.limit)
        last = self.levels - 1
        steps = range(-last, last + 1, 2) if self.short else range(self.levels)
        return tuple(self.limit * (step / last) for step in steps)  # 0 and the ends are exact

    @property
    def flat(self) -> int:
        """Return the place of 0 among `positions`."""
        return len(self.positions) // 2 if self.short else 0

    @property
    def outputs(self) -> int:
        held = len(self.positions)
        return 2 * held + 1 if self.is_continuous else held * (held + 1)

    @property
    def cost(self) -> float:
        """Return the cost of what is traded, as a share of it."""
        return self.fee + self.slippage + self.spread / 2

    @property
    def bars_ahead(self) -> int:
        return 2 if self.fill == NEXT_OPEN else 1

    def about(self) -> dict[str, Any]:
        """Return the description. Nothing decides if it trades at a close that it has seen: nobody can."""
        return super().about() | ({"proper": []} if self.fill == CLOSE else {})

    def label(self, candles: Candles, clock: np.ndarray) -> Labels:
        """Return the log return of the bar that is held, when its own bar and the next one begin (seconds,
        modulo TIMES); NaN past the end.
        """
        import numpy as np

        from trainer.targets.bars import Labels, ends_after

        ahead, bars = self.bars_ahead, len(candles)
        labels_TK = np.full((bars, self.label_columns), np.nan, dtype=np.float32)
        known = max(0, bars - ahead)
        begins = candles.timestamp // 1_000_000_000 % TIMES
        labels_TK[:known, 0] = np.diff(np.log(self._prices(candles)))[ahead - 1 :]
        labels_TK[:known, 1], labels_TK[:known, 2] = begins[:known], begins[1 : known + 1]
        return Labels(values_TK=labels_TK, ends_T=ends_after(bars, ahead))

    def _prices(self, candles: Candles) -> np.ndarray:
        """Return the prices (T,) at which is traded; at bar t the one `bars_ahead` - 1 bars later is next."""
        return candles.open if self.fill == NEXT_OPEN else candles.close

    def flaw(self, labels_NK: np.ndarray) -> tuple[str, str]:
        if labels_NK[:, 0].any():
            return "", ""
        return "prices that never move in training", "every return is 0"

    def loss(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the regret (...) of a bar, in basis points: by how much the policy's expected growth is
        below that of the best position, as a mean over positions held. The smoke test steps by it; PPO learns
        from accounts.
        """
        from trainer.targets.position_policy import regret

        return regret(self, outputs, labels[..., 0])

    def loss_of_span(self, outputs_NO: np.ndarray, labels_NK: np.ndarray) -> float:
        """Return minus the growth of a bar, in basis points."""
        growth = self.per_bar(self.forecast(outputs_NO, {}), labels_NK)["growth"]
        assert growth is not None
        return 0.0 - float(growth.mean())

    def combined(self, outputs_MNO: torch.Tensor) -> torch.Tensor:
        """Return the outputs (..., O) of the mean chances, or means, and of the mean values."""
        from trainer.targets.position_policy import combined

        return combined(self, outputs_MNO)

    def forecast(self, outputs_NO: np.ndarray, fitted: Mapping[str, Any]) -> np.ndarray:
        """Return the position (N, P) to take for each position held: the likeliest, or the mean. NaN where an
        output is no number.
        """
        import numpy as np
        import torch

        from trainer.targets.position_policy import greedy

        made: np.ndarray = greedy(self, torch.from_numpy(outputs_NO)).numpy()
        return np.where(np.isfinite(outputs_NO).all(axis=1, keepdims=True), made, np.nan)

    def holdings(self, forecast_N: np.ndarray, rows: Rows) -> Holdings:
        """Return what its account holds. A bar's position is held from its fill on."""
        import numpy as np

        from trainer.targets.position_account import account
        from trainer.targets.scoring import Holdings

        first, last = int(rows.scored[0]), int(rows.scored[-1])
        share_T = np.zeros(last - first + 1)
        share_T[rows.scored - first] = account(self, forecast_N, rows.labels(rows.scored)).position
        prices = self._prices(rows.candles)[first + self.bars_ahead - 1 : last + self.bars_ahead + 1]
        slippage = self.slippage + self.spread / 2
        bars = np.arange(first, last + 1)
        return Holdings(bars=bars, share=share_T, prices=prices, fee=self.fee, slippage=slippage)

    def columns(
        self, outputs_NO: np.ndarray, candles: Candles, bars: np.ndarray, fitted: Mapping[str, Any]
    ) -> dict[str, np.ndarray]:
        """Return the position to take for each position held."""
        names = [f"held_{held:g}" for held in self.positions]
        return dict(zip(names, self.forecast(outputs_NO, fitted).T, strict=True))

    def check_held(self, held: float) -> None:
        low, high = self.positions[0], self.positions[-1]
        if not low <= held <= high:
            do = f"Give one from {low:g} to {high:g}: 1 is all of the money long, -1 short."
            raise UsageError(f"what is held, {held:g}, is beyond the agent's positions", do=do)

    def columns_of_held(self, columns: Mapping[str, np.ndarray], held: float) -> dict[str, np.ndarray]:
        """Return the position to take, and what to trade for it. Of the levels the nearest is held. Raises
        DataError for outputs that are no numbers.
        """
        import numpy as np

        knots = np.array(self.positions)
        at = held if self.is_continuous else knots[abs(knots - held).argmin()]
        made_NP = np.stack(list(columns.values()), axis=1)
        if not np.isfinite(made_NP).all():
            raise DataError("the agent's outputs are not numbers", do="Train it again, with a lower rate.")
        position_N = np.array([np.interp(at, knots, row) for row in made_NP])
        return {self.name: position_N, "trade": position_N - held}

    def cells(self, rows: Rows) -> tuple[np.ndarray, str]:
        from trainer.targets.scoring import day_cells

        return day_cells(rows, self.bars_ahead)

    def baselines(self, *series: Rows) -> dict[str, np.ndarray]:
        """Return the positions (N, P) of each baseline.

        hold: always the largest position. flat: never one. average: the largest while the close is above its
        mean over `average_bars`, else the smallest.
        """
        import numpy as np

        from trainer.targets.bars import sums_over

        low, high = self.positions[0], self.positions[-1]
        above = []
        for rows in series:
            counts = np.minimum(rows.scored + 1, self.average_bars)
            means = sums_over(rows.candles.close, rows.scored - counts + 1, counts) / counts
            above.append(rows.candles.close[rows.scored] > means)
        plain = {"average": np.where(np.concatenate(above), high, low)}
        plain |= {name: np.full_like(plain["average"], at) for name, at in (("hold", high), ("flat", 0.0))}
        return {
            name: np.repeat(plain[name][:, None], len(self.positions), axis=1)
            for name in ("hold", "flat", "average")
        }

    def per_bar(self, forecast_N: np.ndarray, labels_NK: np.ndarray) -> PerBar:
        """Return growth, gross_growth, traded_share and invested of its account."""
        from trainer.targets.position_account import account

        made = account(self, forecast_N, labels_NK)
        return {
            "growth": BASIS * made.growth,
            "gross_growth": BASIS * made.gross,
            "traded_share": made.turnover,
            "invested": abs(made.position),
        }

    def scores_of(self, values: PerBar, forecast_N: np.ndarray, labels_NK: np.ndarray) -> dict[str, Any]:
        """Return the scores with drawdown, the largest loss since a peak, and sharpe_ratio, the mean growth
        of a bar over its deviation. Accounts of several series stand one after another.
        """
        from trainer.targets.position_account import drawdown, sharpe

        known = {name: each for name, each in values.items() if each is not None}
        means = {name: float(each.mean()) for name, each in known.items()}
        growth = known["growth"]
        others = {"drawdown": drawdown(growth / BASIS), "sharpe_ratio": sharpe(growth)}
        return {"n": len(forecast_N), **means, **others}
