"""Learning curves of a run, from the events that its nodes put into S3: a table of the last epochs, and
TensorBoard's files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from trainer.cli.output import piece_noun
from trainer.cli.parts import PartReader
from trainer.cli.views.table import FittedTable, lines, styled
from trainer.control.cloud import Cloud
from trainer.runs.store import read_record
from trainer.runs.training_events import EventReader
from trainer.train.observing.observe import Observed

EVENTS, OBSERVED = "events.jsonl", "observed"  # names in the folder of a pulled run
SHOWN_EPOCHS = 3  # of each model
CURVE_WIDTH = 24
BARS = "▁▂▃▄▅▆▇█"
KEPT = "✓"
LOWEST = f"{KEPT} lowest validation loss"
Epochs = Mapping[str, Mapping[int, Mapping[str, Any]]]  # piece -> epoch -> its event


@dataclass(kw_only=True)
class RunEvents:
    """The events of a run: lines as stored in S3, parsed events, and the number of malformed lines."""

    raw: bytes = b""
    events: list[dict[str, Any]] = field(default_factory=list)
    unsound: int = 0

    @property
    def epochs(self) -> Epochs:
        """Return the epochs of each piece; an epoch that was trained again replaces the first."""
        found: dict[str, dict[int, Mapping[str, Any]]] = {}
        for event in self.events:
            if event["event"] == "epoch":
                found.setdefault(event["piece"], {})[event["epoch"]] = event
        return found


class EventsReader:
    """Reads the events of one run from S3, each part once, in order."""

    def __init__(self, cloud: Cloud, run_id: str) -> None:
        self._objects, self._run_id = cloud.objects, run_id
        self._parts, self._reader = PartReader(cloud.objects), EventReader()

    def read_new(self) -> RunEvents:
        """Return what came since the last call, of the attempt that the run's record names.

        Raises UsageError if there is no such run.
        """
        record, _ = read_record(self._objects, self._run_id)
        raw = b"".join(self._parts.read_new(keys.metrics) for keys in record.nodes)
        return RunEvents(
            raw=raw, events=list(self._reader.read(raw.splitlines())), unsound=self._reader.unsound
        )


def read_events(cloud: Cloud, run_id: str) -> RunEvents:
    """Return the events so far of the attempt that the run's record names. Raises UsageError if there is no
    such run.
    """
    return EventsReader(cloud, run_id).read_new()


def curves_view(epochs: Epochs, *, last: int, work: str = "train") -> RenderableType:
    """Return a table of each model's last epochs and the one that is kept, with the validation loss of all
    drawn small.

    `work` is the run's: a script decides itself which weights it keeps.
    """
    noun = piece_noun(len(epochs), work)
    rows = [
        {noun: name, **row} for piece in sorted(epochs) for name, row in _rows(piece, epochs[piece], last)
    ]
    kept = any(KEPT in row.values() for row in rows)
    means = LOWEST if work == "script" else f"{LOWEST}: these weights are the model"
    table = FittedTable(
        rows,
        right=("epoch", "train loss", "validation loss"),
        leaving=("train loss", "validation loss so far"),
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
        with self._events.open("ab") as file:
            file.write(new.raw)
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
    piece: str, epochs: Mapping[int, Mapping[str, Any]], last: int
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the rows of a piece, the first with its name."""
    numbers = sorted(epochs)
    losses = {number: epochs[number]["validation_loss"] for number in numbers}
    finite = [number for number in numbers if losses[number] is not None]
    best = min(finite, key=lambda number: losses[number], default=None)
    shown = [number for number in numbers if number == best or number in numbers[-last:]]
    for number in shown:
        is_first = number == shown[0]
        row = {
            "epoch": str(number),
            "train loss": _loss(epochs[number]["train_loss"]),
            "validation loss": _loss(losses[number]),
            "": KEPT if number == best else "",
            "validation loss so far": small_curve([losses[each] for each in finite]) if is_first else "",
        }
        yield piece if is_first else "", row


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
