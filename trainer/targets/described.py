"""Format scores as text, by their description in the card (`TargetSettings.about`).

Standard library only. Scores of a script have no description and are shown as a dash.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

MOST_COLUMNS = 20  # of a table of scores
MOST_TIME = 40  # letters of a time
REFIT = "refit_until"  # in `about`: until when a refit was trained, whose held-out twin has the scores
RULE, MOST_RULE = "rule", 100  # in `about`: how forecasts are traded, and its letters
# In `about`: of how many trials a model is the best by validation, and the most of them.
TRIED, MOST_TRIED = "tried", 2_000
OF_A_ROLLOUT = ("entropy", "rollout_return", "rollout_drawdown")  # an agent's last one of an epoch
MOST_WORDS = 40  # characters of a date or a length


def check_metrics(metrics: Mapping[str, Any]) -> None:
    """Raise ValueError if the description is malformed, or a span's scores are no table; a score may be
    anything.
    """
    for span in ("train", "validation", "test"):
        if metrics.get(span) is not None and not isinstance(metrics[span], Mapping):
            raise ValueError(f"its {span} is not a table of scores")
    about = metrics.get("about") or {}
    if not about:
        return
    try:
        described = {name: str(item["title"]) for name, item in about["metrics"].items()}
        columns = [(column["title"], column["value"], column["beside"]) for column in about["table"]]
        paths = [place for _, value, beside in columns for place in (value, beside)]
        texts = [
            about["headline"],
            *about["proper"],
            *(title for title, *_ in columns),
            *(part for path in paths for part in path),
        ]
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise ValueError(f"its description can't be read ({error!r})") from error
    if not all(isinstance(path, (list, tuple)) for path in paths) or not all(
        isinstance(text, str) for text in texts
    ):
        raise ValueError("its description has values that are not texts")
    if not isinstance(about.get(REFIT, ""), str) or len(about.get(REFIT, "")) > MOST_TIME:
        raise ValueError(f"its {REFIT} is not a time")
    if not isinstance(about.get(RULE, ""), str) or len(about.get(RULE, "")) > MOST_RULE:
        raise ValueError(f"its {RULE} is not a line")
    tried = about.get(TRIED, 1)
    if type(tried) is not int or not 1 <= tried <= MOST_TRIED:
        raise ValueError(f"its {TRIED} is not a number of trials")
    if not {about["headline"], *about["proper"]} <= described.keys() or len(columns) > MOST_COLUMNS:
        raise ValueError(f"its headline is not described, or it has more than {MOST_COLUMNS} columns")


def refit_until(metrics: Mapping[str, Any]) -> str:
    """Return until when a refit was trained, whose held-out twin has these scores; '' for another model."""
    return str((metrics.get("about") or {}).get(REFIT) or "")


def tried_for(metrics: Mapping[str, Any]) -> int:
    """Return of how many trials a model is the best by validation; 1 without a search."""
    return int((metrics.get("about") or {}).get(TRIED) or 1)


def rule_of(metrics: Mapping[str, Any]) -> str:
    """Return how a model's forecasts are traded, for people; '' if they aren't."""
    return str((metrics.get("about") or {}).get(RULE) or "")


def titles(metrics: Mapping[str, Any]) -> list[str]:
    """Return the titles of a model's columns."""
    return [column["title"] for column in _table(metrics)]


def cells(metrics: Mapping[str, Any]) -> list[str]:
    """Return the values of a model's columns on the test span, each with its baseline in brackets."""
    scores = metrics.get("test") or {}
    return [_cell(scores, column) for column in _table(metrics)]


def shown(metrics: Mapping[str, Any]) -> list[str]:
    """Return each column as title and value, such as `AUC (logistic) 0.5312 (0.5291)`."""
    return [f"{title} {cell}" for title, cell in zip(titles(metrics), cells(metrics), strict=True)]


def headline_title(metrics: Mapping[str, Any]) -> str:
    """Return the title of the score that decides; '' without a description."""
    about = metrics.get("about") or {}
    return str(about["metrics"][about["headline"]]["title"]) if about else ""


def beside_headline(metrics: Mapping[str, Any]) -> list[int]:
    """Return the places of the columns that show other scores than the one that decides."""
    decides = [(metrics.get("about") or {}).get("headline")]
    return [place for place, column in enumerate(_table(metrics)) if list(column["value"]) != decides]


def decided(metrics: Mapping[str, Any], judgement: Mapping[str, Any] | None) -> tuple[str, str]:
    """Return the deciding score, and that of a judgement's baseline with its name; `-` if not known."""
    about, test = metrics.get("about") or {}, metrics.get("test") or {}
    name, baseline = about.get("headline") or "", (judgement or {}).get("baseline") or ""
    theirs = _number(_at(test, ("baselines", baseline, name)))
    return _number(_at(test, (name,))), f"{theirs} {baseline}" if baseline else "-"


def gain(judgement: Mapping[str, Any] | None) -> str:
    """Return the gain of a judgement and its interval, such as `+0.0034 [+0.0011, +0.0057]`."""
    known = judgement and judgement["gain"] is not None
    return "{gain:+.4f} [{low:+.4f}, {high:+.4f}]".format(**judgement) if judgement and known else "-"


def sample(metrics: Mapping[str, Any], judgement: Mapping[str, Any] | None) -> str:
    """Return the bars of the test span and, in brackets, its cells, and of how many that it would take."""
    bars = (metrics.get("test") or {}).get("n")
    if not isinstance(bars, int):
        return "-"
    needed = f" of {judgement['needed']:,}" if judgement and judgement["needed"] else ""
    return f"{bars:,} ({judgement['cells']:,}{needed})" if judgement else f"{bars:,}"


def tested(metrics: Mapping[str, Any]) -> tuple[str, str]:
    """Return the dates of the test span and the length of a cell; '' for what is not known."""
    test = metrics.get("test") or {}
    first, last, cell = (str(test.get(name) or "")[:MOST_WORDS] for name in ("first", "last", "cell"))
    return f"{first} to {last}" if first and last else "", cell


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
