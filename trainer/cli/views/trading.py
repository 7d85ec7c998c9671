"""Tables: returns of trading on each model's forecasts, and how reliable probabilities are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import accumulate
from typing import Any

from rich.console import RenderableType

from trainer.cli.output import counted
from trainer.cli.views.curves import small_curve
from trainer.cli.views.table import Cell, FittedTable, styled
from trainer.store.card import Card
from trainer.store.comparison import Side
from trainer.targets.described import rule_of, tried_for
from trainer.targets.trading import Traded, deflate, read_traded

RULE, HOLD, TRADED, EVEN, DEFLATED = (
    "rule [95 %]",
    "buy and hold",
    "traded",
    "breaks even at",
    "deflated Sharpe",
)
CHANCE, HAPPENED, BARS = "forecast", "happened [95 %]", "bars"
SURE, LEAST_SHOWN = 0.95, 0.01


class TradedTable:
    """Models of one run, or of several, with what trading on each one's forecasts made."""

    def __init__(
        self, named: Sequence[tuple[Mapping[str, Cell], Mapping[str, Any]]], *, trials: float | None = None
    ) -> None:
        """`named`: the first cells of each row, and a model's metrics. `trials`: the effective number of
        independent ones; None: as many as there are.
        """
        traded = [read_traded(metrics) for _, metrics in named]
        self._more = sum(tried_for(metrics) - 1 for _, metrics in named)
        shares = deflate(traded, trials=trials, more=self._more)
        self._rows = [
            (first, one, share)
            for (first, _), one, share in zip(named, traded, shares, strict=True)
            if one is not None and share is not None
        ]
        self._rules = sorted({rule_of(metrics) for _, metrics in named} - {""})
        self._trials = trials

    def __bool__(self) -> bool:
        """Return whether anything was traded."""
        return bool(self._rows)

    def table(self, most: int) -> FittedTable:
        """Return the table of the first `most` models."""
        rows = [{**first, **_cells(one, share)} for first, one, share in self._rows[:most]]
        return FittedTable(rows, right=(RULE, HOLD, TRADED, EVEN, DEFLATED), leaving=(TRADED, EVEN))

    def legend(self) -> Iterator[str]:
        """Yield what the rule is, and what is deflated."""
        costs = {(one.fee, one.slippage) for _, one, _ in self._rows}
        fee, slippage = (_cost(share) for share in min(costs))
        rule = "; ".join(self._rules[:1]) or "not told"
        yield f"rule: {rule}; fee {fee}, slippage {slippage}"
        yield "buy and hold: equal money at each bar, same costs; cash makes 0; nothing compounded or taxed"
        tried = len(self._rows) + self._more
        models = counted(tried, "model")
        independent = tried if self._trials is None else self._trials + self._more
        worth = f", worth {independent:.3g} independent ones" if independent != tried else ""
        sure = sum(share >= SURE for _, one, share in self._rows if one.turnover)
        yield f"deflated Sharpe: how surely it is skill, with {models} tried{worth}; {sure} reach {SURE}"


def _cells(one: Traded, share: float) -> dict[str, Cell]:
    ends = "" if one.low is None or one.high is None else f" [{_signed(one.low)}, {_signed(one.high)}]"
    even = one.break_even
    return {
        RULE: f"{_signed(one.net)} %{ends}",
        HOLD: f"{_signed(one.hold)} %",
        TRADED: f"{one.turnover:,.1f} x",
        EVEN: _percent(even, 3) if even is not None else "never",
        DEFLATED: _chance(share) if one.turnover else "-",
    }


def _chance(share: float) -> str:
    if LEAST_SHOWN <= share <= 1 - LEAST_SHOWN:
        return f"{share:.2f}"
    return f"< {LEAST_SHOWN}" if share < LEAST_SHOWN else f"> {1 - LEAST_SHOWN}"


def _signed(share: float) -> str:
    return f"{100 * share:+.1f}"


def _percent(share: float, digits: int) -> str:
    return f"{100 * share:.{digits}f} %"


def _cost(share: float) -> str:
    return _percent(share, 2) if share >= 1e-4 or not share else f"{100 * share:.2g} %"


def named_metrics(sides: Sequence[Side]) -> list[tuple[dict[str, Cell], Mapping[str, Any]]]:
    """Return the first cells of each model's row, and its metrics."""
    return [
        ({"run or model": side.name, "piece": card.piece}, card.metrics)
        for side in sides
        for card in side.cards
    ]


def traded_json(sides: Sequence[Side], trials: float) -> list[dict[str, Any]]:
    """Return what trading on each model made, as JSON values."""
    cards = [(side.name, card) for side in sides for card in side.cards]
    traded = [read_traded(card.metrics) for _, card in cards]
    shares = deflate(traded, trials=trials, more=sum(tried_for(card.metrics) - 1 for _, card in cards))
    return [
        {"side": name, "piece": card.piece, **asdict(one), "break_even": one.break_even, "deflated": share}
        for (name, card), one, share in zip(cards, traded, shares, strict=True)
        if one is not None
    ]


def equity_lines(cards: Sequence[Card]) -> Iterator[RenderableType]:
    """Yield what trading on each card's forecasts had made by each cell of the test span, drawn small."""
    rows = [
        {
            "piece": card.piece,
            "equity": small_curve(list(accumulate(net, initial=0.0))),
            "end": f"{_signed(sum(net))} %",
            "lowest": f"{_signed(min(accumulate(net, initial=0.0)))} %",
        }
        for card in cards
        if (net := card.trades.get("net"))
    ]
    if rows:
        yield ""
        yield FittedTable(rows, right=("end", "lowest"))


def reliability_lines(cards: Sequence[Card]) -> Iterator[RenderableType]:
    """Yield how often each event happened by its probability, for each card that has any."""
    for card in cards:
        for event, table in card.reliability.items():
            rows = [_group(dict(zip(table, row, strict=True))) for row in zip(*table.values(), strict=True)]
            yield ""
            yield f"{card.piece}: {event}"
            yield FittedTable(rows, right=(CHANCE, HAPPENED, BARS))
    if any(card.reliability for card in cards):
        yield styled("a forecast is reliable if the interval beside it, over separate cells, holds it", "dim")


def _group(row: Mapping[str, Any]) -> dict[str, Cell]:
    ends = "" if row["low"] is None else f" [{row['low']:.3f}, {row['high']:.3f}]"
    return {
        CHANCE: f"{row['forecast']:.3f}",
        HAPPENED: f"{row['happened']:.3f}{ends}",
        BARS: f"{row['n']:,}",
    }
