"""Learning curves of a run: a table of the last epochs, and TensorBoard's files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from trainer.base.files import append_whole
from trainer.cli.output import piece_noun
from trainer.cli.parts import Epochs, RunEvents
from trainer.cli.views.table import FittedTable, lines, styled
from trainer.train.observing.observe import Observed

EVENTS, OBSERVED = "events.jsonl", "observed"  # names in the folder of a pulled run
SHOWN_EPOCHS = 3  # of each model
CURVE_WIDTH = 24
BARS = "▁▂▃▄▅▆▇█"
KEPT = "✓"
LOWEST = f"{KEPT} lowest validation loss"


def curves_view(epochs: Epochs, *, last: int, work: str = "train") -> RenderableType:
    """Return a table of each model's last epochs and the one that is kept, with the validation loss of all
    drawn small.

    `work` is the run's: a script decides itself which weights it keeps.
    """
    noun = piece_noun(len(epochs), work)
    scores = {str(one["score"]) for piece in epochs.values() for one in piece.values() if one.get("score")}
    score = scores.pop() if len(scores) == 1 else ""
    rows = [
        {noun: name, **row}
        for piece in sorted(epochs)
        for name, row in _rows(piece, epochs[piece], last, score)
    ]
    kept = any(KEPT in row.values() for row in rows)
    means = LOWEST if work == "script" else f"{LOWEST}: these weights are the model"
    table = FittedTable(
        rows,
        right=("epoch", "train loss", "validation loss", *_titles(score)),
        leaving=("train loss", *_titles(score)[:1], "validation loss so far", *_titles(score)[1:]),
    )
    return lines(table, *([styled(means, "dim")] if kept else []))


class CurveFiles:
    """Write a run's events to a folder, with the files that a local training makes of them, such as
    TensorBoard's.
    """

    def __init__(self, folder: Path) -> None:
        self._events, self._observed = folder / EVENTS, folder / OBSERVED
        self._begun = False
        self._now = 0.0
        self._keep = Observed(self._observed, clock=lambda: self._now)

    def add(self, new: RunEvents) -> list[Path]:
        """Append events, the first time to fresh files; return what was written."""
        if not new.raw:
            return []
        if not self._begun:
            self._begun = True
            _clear(self._events, self._observed)
        self._events.parent.mkdir(parents=True, exist_ok=True)
        append_whole(self._events, new.raw)
        for event in new.events:
            self._now = event["time"].timestamp()
            self._keep({key: value for key, value in event.items() if key != "time"})
        return [self._events, *([self._observed] if self._observed.exists() else [])]


def _clear(events: Path, observed: Path) -> None:
    """Remove the files of an earlier pull, since events are appended."""
    events.unlink(missing_ok=True)
    for path in [
        *observed.glob("tensorboard/*/events.out.tfevents.*"),
        *observed.glob("*/*.jsonl"),
        *observed.glob("*.jsonl"),
    ]:
        path.unlink()


def _rows(
    piece: str, epochs: Mapping[int, Mapping[str, Any]], last: int, name: str
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the rows of a piece, the first with its name."""
    numbers = sorted(epochs)
    losses = {number: epochs[number]["validation_loss"] for number in numbers}
    finite = [number for number in numbers if losses[number] is not None]
    fits = {epochs[number].get("fit", 0) for number in finite}
    best = {
        min((n for n in finite if epochs[n].get("fit", 0) == fit), key=lambda number: losses[number])
        for fit in fits
    }
    shown = [number for number in numbers if number in best or number in numbers[-last:]]
    for number in shown:
        is_first = number == shown[0]
        row = {
            "epoch": str(number),
            "train loss": _loss(epochs[number]["train_loss"]),
            "validation loss": _loss(losses[number]),
            **_scores(epochs[number], name),
            "": KEPT if number in best else "",
            "validation loss so far": small_curve([losses[each] for each in finite]) if is_first else "",
        }
        yield piece if is_first else "", row


def _titles(name: str) -> tuple[str, ...]:
    return (f"train {name}", f"validation {name}") if name else ()


def _scores(epoch: Mapping[str, Any], name: str) -> dict[str, str]:
    """Return the cells of the score in training, by its last bars, and in validation."""
    values = (epoch.get("train_score"), epoch.get("validation_score"))
    return {title: _loss(value) for title, value in zip(_titles(name), values, strict=False)}


def small_curve(values: Sequence[float]) -> str:
    """Return a sparkline of the numbers; many are sampled evenly."""
    if len(values) > CURVE_WIDTH:
        values = [values[(place + 1) * len(values) // CURVE_WIDTH - 1] for place in range(CURVE_WIDTH)]
    if not values:
        return ""
    low, high = min(values), max(values)
    return "".join(
        BARS[round((value - low) / (high - low) * (len(BARS) - 1)) if high > low else 0] for value in values
    )


def _loss(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
