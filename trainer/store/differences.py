"""Differences of two models by their cards: settings, data and scores. Standard library only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trainer.store.card import Card

About = Literal["settings", "data", "scores"]
ABOUT: tuple[About, ...] = ("settings", "data", "scores")
_SETTINGS = ("family", "architecture", "features", "columns", "lookback", "timeframe", "target")
_SETTINGS_TOO = ("target_settings", "seed", "fold", "members", "code_sha256", "mayfly", "own_files", "parent")
_NOT_SETTINGS = (
    "others",
    "refit",
    "history",
    "epochs_run",
    "best_epoch",
    "final_learning_rate",
    "lowered",
    "choice",
    "steps",
    "first_steps",
    "pack_mates",
)


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A value in which two cards differ; None where a card has none."""

    about: About
    key: str
    first: Any
    second: Any


def differences(first: Card, second: Card) -> list[Difference]:
    """Return every value in which two cards differ, settings first, then data, then scores of the test
    span.
    """
    return [
        Difference(about=about, key=key, first=one.get(key), second=other.get(key))
        for about, one, other in zip(ABOUT, _parts(first), _parts(second), strict=True)
        for key in dict.fromkeys((*one, *other))
        if one.get(key) != other.get(key)
    ]


def _parts(card: Card) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    settings = {name: getattr(card, name) for name in (*_SETTINGS, *_SETTINGS_TOO)}
    settings["own_files"] = {table: own["sha256"] for table, own in card.own_files.items()}
    settings["training"] = {key: value for key, value in card.training.items() if key not in _NOT_SETTINGS}
    data = {
        "symbols": list(card.symbols),
        **{key: value for key, value in card.data.items() if key not in ("files", "fingerprint")},
        "trained_until": card.trained_until,
        "files": [str(file.get("file", "")) for file in _listed(card.data.get("files"))],
        "splits": {one.symbol: one.splits for one in card.series},
    }
    test = card.metrics.get("test") or {}
    names = (card.metrics.get("about") or {}).get("metrics") or {}
    scores = {name: test.get(name) for name in ("n", "first", "last", *names)}
    return dict(_flat(settings)), dict(_flat(data)), dict(_flat(scores))


def _listed(value: Any) -> Sequence[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value of nested objects under its path, such as training.batch."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
