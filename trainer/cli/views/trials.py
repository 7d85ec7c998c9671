"""The trials of a search as a table: the best first, with what was searched as columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType

from trainer.cli.output import counted
from trainer.cli.views.table import Cell, FittedTable, styled
from trainer.job.model_names import ENDS

MOST_SHOWN_TRIALS = 24  # --json has all
LOSS, EPOCHS, END = "validation", "epochs", "end"


def trials_view(trials: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, RenderableType]]:
    """Yield a receipt's trials, which are sorted by model and score; nothing without a search."""
    if not trials:
        return
    shown = [_row(one) for one in trials[:MOST_SHOWN_TRIALS]]
    keys = [key for key in shown[0] if key not in ("trial", END)]
    yield "trials", FittedTable(shown, right=keys, leaving=(EPOCHS,))
    if len(trials) > len(shown):
        yield "", f"and {len(trials) - len(shown):,} more, --json has all"
    counts = {end: sum(one.get("end") == end for one in trials) for end in ENDS}
    told = ", ".join(f"{number} {end.replace('_', ' ')}" for end, number in counts.items() if number)
    best = "the best of each model by validation has its values; it alone was scored on test"
    yield "", styled(f"{counted(len(trials), 'trial')}: {told}; {best}", "dim")


def _row(trial: Mapping[str, Any]) -> dict[str, Cell]:
    score = trial["best"].get("value")
    values = {key.rpartition(".")[2]: str(value) for key, value in trial["values"].items()}
    return {
        "trial": str(trial["piece"]),
        **values,
        LOSS: "-" if score is None else f"{score:.5f}",
        EPOCHS: str(trial.get("epochs", "-")),
        END: str(trial.get("end", "")).replace("_", " "),
    }
