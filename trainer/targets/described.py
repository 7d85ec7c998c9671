"""Format scores as text, by their description in the card (`TargetSettings.about`).

Standard library only. Scores of a script have no description and are shown as a dash.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

MOST_COLUMNS = 20  # of a table of scores
BEYOND_CHANCE, BETTER = "beyond chance", "better"  # than every baseline


def check_metrics(metrics: Mapping[str, Any]) -> None:
    """Raise ValueError if the description is malformed; scores may be anything."""
    about = metrics.get("about") or {}
    if not about:
        return
    try:
        described = {name: str(item["title"]) for name, item in about["metrics"].items()}
        columns = [(column["title"], column["value"], column["beside"]) for column in about["table"]]
        paths = [place for _, value, beside in columns for place in (value, beside)]
        texts = [
            about["headline"],
            *(title for title, *_ in columns),
            *(part for path in paths for part in path),
        ]
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise ValueError(f"its description can't be read ({error!r})") from error
    if not all(isinstance(path, (list, tuple)) for path in paths) or not all(
        isinstance(text, str) for text in texts
    ):
        raise ValueError("its description has values that are not texts")
    if about["headline"] not in described or len(columns) > MOST_COLUMNS:
        raise ValueError(f"its headline is not described, or it has more than {MOST_COLUMNS} columns")


def titles(metrics: Mapping[str, Any]) -> list[str]:
    """Return the titles of a model's columns."""
    return [column["title"] for column in _table(metrics)]


def cells(metrics: Mapping[str, Any], span: str = "test") -> list[str]:
    """Return the values of a model's columns on a span, each with its baseline in brackets."""
    scores = metrics.get(span) or {}
    return [_cell(scores, column) for column in _table(metrics)]


def shown(metrics: Mapping[str, Any], span: str = "test") -> list[str]:
    """Return each column as title and value, such as `AUC (logistic) 0.5312 (0.5291)`."""
    return [f"{title} {cell}" for title, cell in zip(titles(metrics), cells(metrics, span), strict=True)]


def headline(metrics: Mapping[str, Any], span: str = "test") -> str:
    """Return title and value of the most important metric, `-` without a description."""
    about, scores = metrics.get("about") or {}, metrics.get(span) or {}
    if not about:
        return "-"
    name = about["headline"]
    return f"{about['metrics'][name]['title']} {_number(_at(scores, (name,)))}"


def headline_column(metrics: Mapping[str, Any]) -> int:
    """Return the index of the column that shows the headline; 0 if none does."""
    places = [
        number
        for number, column in enumerate(_table(metrics))
        if list(column["value"]) == [metrics["about"]["headline"]]
    ]
    return places[0] if places else 0


def gain_over_baselines(metrics: Mapping[str, Any]) -> str:
    """Compare the test headline with every baseline: BEYOND_CHANCE, BETTER, or '' for neither or nothing to
    compare.

    Beyond chance: the interval of every gain lies above zero. With too few blocks for intervals it is BETTER
    at most. A constant baseline has no correlation: that counts as 0, and the gain over it is the model's own
    correlation.
    """
    about, scores = metrics.get("about") or {}, metrics.get("test") or {}
    name = about.get("headline") or ""
    ours, others = _at(scores, (name,)), _at(scores, ("baselines",))
    others = others if isinstance(others, Mapping) else {}
    theirs = {baseline: _at(other, (name,)) for baseline, other in others.items()}
    known = {baseline for baseline, value in theirs.items() if isinstance(value, (int, float))}
    if not known or not isinstance(ours, (int, float)):
        return ""
    values = [value if baseline in known else 0.0 for baseline, value in theirs.items()]
    lower = about["metrics"][name].get("better") == "lower"
    if not (ours < min(values) if lower else ours > max(values)):
        return ""
    lows = [
        _low(_at(scores, ("better", baseline, name) if baseline in known else ("intervals", name)))
        for baseline in theirs
    ]
    return BEYOND_CHANCE if all(low is not None and low > 0 for low in lows) else BETTER


def _low(interval: Any) -> float | None:
    low = interval[0] if isinstance(interval, (list, tuple)) and interval else None
    return low if isinstance(low, (int, float)) else None


def _table(metrics: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return (metrics.get("about") or {}).get("table") or ()


def _cell(scores: Mapping[str, Any], column: Mapping[str, Any]) -> str:
    value = _number(_at(scores, column["value"]))
    beside = _number(_at(scores, column["beside"])) if column["beside"] else "-"
    return f"{value} ({beside})" if column["beside"] and (value, beside) != ("-", "-") else value


def _at(scores: Any, path: Sequence[str]) -> Any:
    for name in path:
        scores = scores.get(name) if isinstance(scores, Mapping) else None
    return scores


def _number(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, (int, float)) else "-"
