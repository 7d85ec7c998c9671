"""Learning curves of a run, from the events that its nodes put into S3: a table of the last epochs, and TensorBoard's files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from trainer.cli.parts import PartReader
from trainer.cli.table import FittedTable, TableColumn, lines, styled
from trainer.control.cloud import Cloud
from trainer.registry.store import write_whole
from trainer.runs.store import read_record
from trainer.runs.training_events import EventReader
from trainer.train.observing.observe import Observed

EVENTS, OBSERVED = "events.jsonl", "observed"  # names in the folder of a pulled run
SHOWN_EPOCHS = 3  # of each model
CURVE_WIDTH = 24
BARS = "▁▂▃▄▅▆▇█"
KEPT = "✓"
WHAT_KEPT_MEANS = f"{KEPT} lowest validation loss: these weights are the model"
COLUMNS = (
    TableColumn(title="model"),
    TableColumn(title="epoch", right=True),
    TableColumn(title="train loss", right=True, leaves=2),
    TableColumn(title="validation loss", right=True),
    TableColumn(title=""),
    TableColumn(title="validation loss so far", leaves=1),
)
Epochs = Mapping[str, Mapping[int, Mapping[str, Any]]]  # piece -> epoch -> its event


@dataclass(kw_only=True)
class RunEvents:
    """The events of a run: as they lie in S3, read, and how many lines were none of ours."""

    raw: bytes = b""
    events: list[dict[str, Any]] = field(default_factory=list)
    unsound: int = 0

    @property
    def epochs(self) -> Epochs:
        """Return the epochs of each piece; of one that was trained again the last counts."""
        found: dict[str, dict[int, Mapping[str, Any]]] = {}
        for event in self.events:
            if event["event"] == "epoch":
                found.setdefault(event["piece"], {})[event["epoch"]] = event
        return found


def read_events(cloud: Cloud, run_id: str) -> RunEvents:
    """Return the events of the attempt that the run's record names. Raises UsageError where there is no such run."""
    record, _ = read_record(cloud.objects, run_id)
    parts, reader = PartReader(cloud.objects), EventReader()
    raw = b"".join(parts.read_new(keys.metrics) for keys in record.nodes)
    return RunEvents(raw=raw, events=list(reader.read(raw.splitlines())), unsound=reader.unsound)


def curves_view(epochs: Epochs, *, last: int) -> RenderableType:
    """Return a table of each model's last epochs and the one that is kept, with the validation loss of all drawn small."""
    rows = [row for piece in sorted(epochs) for row in _rows(piece, epochs[piece], last)]
    return lines(FittedTable(COLUMNS, rows), styled(WHAT_KEPT_MEANS, "dim"))


def write_curves(events: RunEvents, folder: Path) -> list[Path]:
    """Write the events, and what a training at a desk keeps of them (TensorBoard's files too); return what was written."""
    if not events.raw:
        return []
    write_whole(folder / EVENTS, events.raw)
    observed = folder / OBSERVED
    _clear(observed)
    now = [0.0]
    keep = Observed(observed, clock=lambda: now[0])
    for event in events.events:
        now[0] = event["time"].timestamp()
        keep({key: value for key, value in event.items() if key != "time"})
    return [folder / EVENTS, *([observed] if observed.exists() else [])]


def _clear(observed: Path) -> None:
    """Remove what an earlier pull wrote: events are appended to these files."""
    for path in [*observed.glob("tensorboard/*/events.out.tfevents.*"), *observed.glob("*/*.jsonl"), *observed.glob("*.jsonl")]:
        path.unlink()


def _rows(piece: str, epochs: Mapping[int, Mapping[str, Any]], last: int) -> list[list[str]]:
    numbers = sorted(epochs)
    losses = {number: epochs[number]["validation_loss"] for number in numbers}
    finite = [number for number in numbers if losses[number] is not None]
    best = min(finite, key=lambda number: losses[number], default=None)
    shown = [number for number in numbers if number == best or number in numbers[-last:]]
    return [
        [
            piece if number == shown[0] else "",
            str(number),
            _loss(epochs[number]["train_loss"]),
            _loss(losses[number]),
            KEPT if number == best else "",
            small_curve([losses[each] for each in finite]) if number == shown[0] else "",
        ]
        for number in shown
    ]


def small_curve(values: Sequence[float]) -> str:
    """Draw numbers as bars, the lowest smallest; of many, the last of each equal share."""
    if len(values) > CURVE_WIDTH:
        values = [values[(place + 1) * len(values) // CURVE_WIDTH - 1] for place in range(CURVE_WIDTH)]
    if not values:
        return ""
    low, high = min(values), max(values)
    return "".join(BARS[round((value - low) / (high - low) * (len(BARS) - 1)) if high > low else 0] for value in values)


def _loss(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
