"""The models of a run as its report shows them: mark, scores beside baselines and production, trades."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from trainer.targets.described import rule_of, tried_for
from trainer.targets.marks import MEANINGS, in_order
from trainer.targets.trading import Traded, deflate, read_traded

MOST_ROWS = 2_000  # models of a page; the receipt has them all
MOST_SERIES = 20  # symbols of a model that are named
MOST_BASELINES, MOST_SCORES = 12, 12
MOST_CELLS = 240  # of an equity
DIGITS = 7  # the page shows four decimals of what is below 1,000


@dataclass(frozen=True, kw_only=True)
class ReadCard:
    """Reliability of a model's probabilities and its trades by cell, as its card gives them."""

    reliability: Mapping[str, Mapping[str, Sequence[Any]]] = field(default_factory=dict)
    begins: Sequence[float] = ()  # of each cell of the test span, in seconds since 1970
    net: Sequence[float] = ()  # that the rule made in it, as a share of the money


@dataclass(frozen=True, kw_only=True)
class InProduction:
    """The production model of a name: its metrics, on a test span of its own."""

    name: str
    metrics: Mapping[str, Any]


def first(models: Sequence[Mapping[str, Any]], most: int) -> list[Mapping[str, Any]]:
    """Return so many judged models, the best first."""
    return in_order(models)[:most]


def model_rows(
    models: Sequence[Mapping[str, Any]],
    cards: Mapping[str, ReadCard],
    production: Mapping[str, InProduction],
) -> dict[str, Any]:
    """Return a run's judged models, the best first. Cards and production models by the models' keys."""
    ordered = in_order(models)
    traded = [read_traded(model.get("metrics") or {}) for model in ordered]
    shares = deflate(traded, more=sum(tried_for(model.get("metrics") or {}) - 1 for model in ordered))
    shown = ordered[:MOST_ROWS]
    rules = sorted({rule_of(model.get("metrics") or {}) for model in shown} - {""})
    return {
        "total": len(ordered),
        "headlines": list(dict.fromkeys(title for model in shown if (title := _headline(model)[1]))),
        "rule": rules[0] if rules else "",
        "meanings": MEANINGS,
        "rows": [
            _row(model, cards.get(str(model["key"])), production.get(str(model["key"])))
            | _trades(trades, share)
            for model, trades, share in zip(shown, traded, shares, strict=False)
        ],
    }


def _row(model: Mapping[str, Any], card: ReadCard | None, champion: InProduction | None) -> dict[str, Any]:
    judgement = model["judgement"] or {}
    score, _ = _headline(model)
    test = _table((model.get("metrics") or {}).get("test"))
    baseline = str(judgement.get("baseline") or "") or _hardest(model, test, score)
    row = {
        **{name: model[name] for name in ("piece", "family", "target", "fold", "seed", "key", "version_id")},
        "series": list(model["series"][:MOST_SERIES]),
        "more_series": max(0, len(model["series"]) - MOST_SERIES),
        "sha256": model["sha256"],
        "mark": judgement.get("mark", ""),
        "baseline": baseline,
        "gain": [number(judgement.get(name)) for name in ("gain", "low", "high")],
        "cells": [judgement.get("cells"), judgement.get("needed")],
        "bars": number(test.get("n")),
        "span": [str(test.get(name) or "")[:40] for name in ("first", "last")],
        "score": [number(test.get(score)), _of_baseline(test, baseline, score)],
        "scores": _scores(model),
    }
    if champion is not None:
        row["production"] = _production(champion, score)
    return row | (_of_card(card) if card else {})


def _production(champion: InProduction, score: str) -> dict[str, Any]:
    test = _table(champion.metrics.get("test"))
    ends = [str(test.get(name) or "")[:40] for name in ("first", "last")]
    return {"name": champion.name, "score": number(test.get(score)), "span": ends}


def _headline(model: Mapping[str, Any]) -> tuple[str, str]:
    """Return the name and the title of the score that decides; '' without one."""
    about = (model.get("metrics") or {}).get("about") or {}
    name = str(about.get("headline") or "")
    return name, str(about["metrics"][name]["title"]) if name else ""


def _scores(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return each described score of the test span, with its interval, in validation and of each baseline."""
    metrics = model.get("metrics") or {}
    described = (metrics.get("about") or {}).get("metrics") or {}
    test, validation = _table(metrics.get("test")), _table(metrics.get("validation"))
    intervals = _table(test.get("intervals"))
    baselines = list(_table(test.get("baselines")).items())[:MOST_BASELINES]
    rows = []
    for name, item in list(described.items())[:MOST_SCORES]:
        ends = intervals.get(name)
        rows.append(
            {
                "title": str(item["title"]),
                "better": str(item.get("better") or ""),
                "test": number(test.get(name)),
                "interval": [number(end) for end in ends[:2]] if isinstance(ends, list) else None,
                "validation": number(validation.get(name)),
                "baselines": [number(_table(its).get(name)) for _, its in baselines],
            }
        )
    return {"baselines": [str(name) for name, _ in baselines], "rows": rows}


def _of_baseline(test: Mapping[str, Any], baseline: str, score: str) -> float | None:
    return number(_table(_table(test.get("baselines")).get(baseline)).get(score))


def _hardest(model: Mapping[str, Any], test: Mapping[str, Any], score: str) -> str:
    """Return the baseline of the best score, for a model with too few cells for a gain over any."""
    known = {
        str(name): value
        for name in _table(test.get("baselines"))
        if (value := _of_baseline(test, str(name), score)) is not None
    }
    lower = score and model["metrics"]["about"]["metrics"][score].get("better") == "lower"
    return (min if lower else max)(known, key=lambda name: known[name], default="")


def _trades(one: Traded | None, share: float | None) -> dict[str, Any]:
    if one is None:
        return {}
    values = (one.net, one.low, one.high, one.hold, one.turnover, one.break_even, share)
    names = ("net", "low", "high", "hold", "turnover", "even", "deflated")
    numbers = {name: number(value) for name, value in zip(names, values, strict=True)}
    return {"traded": {**numbers, "fee": one.fee, "slippage": one.slippage}}


def _of_card(card: ReadCard) -> dict[str, Any]:
    """Return the reliability of a card's probabilities by event, and its equity: the sum of what was made by
    the end of each cell, from zero on. A cell ends where the next begins; the last is as long as the one
    before.
    """
    shown: dict[str, Any] = {}
    if card.reliability:
        shown["reliability"] = {
            event: {name: [number(value) for value in column] for name, column in table.items()}
            for event, table in card.reliability.items()
        }
    if len(card.net) > 1 and len(card.net) == len(card.begins):
        sums = list(accumulate(card.net, initial=0.0))
        times = [*card.begins, 2 * card.begins[-1] - card.begins[-2]]
        every = range(0, len(sums), max(1, math.ceil(len(sums) / MOST_CELLS)))
        places = list(dict.fromkeys((*every, len(sums) - 1)))
        shown["equity"] = {
            "at": [number(times[place], digits=12) for place in places],
            "made": [number(sums[place]) for place in places],
        }
    return shown


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def number(value: Any, *, digits: int = DIGITS) -> float | None:
    """Return a number with few digits; None for what is none, or not finite."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return value if isinstance(value, int) else float(f"{value:.{digits}g}")
