"""The trials of a search as a table: the best first, with what was searched as columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType

from trainer.cli.output import counted
from trainer.cli.views.table import Cell, FittedTable, styled
from trainer.job.model_names import ENDS, TRIAL

MOST_SHOWN_TRIALS = 24  # --json has all
VALIDATION, END = "validation", "end"


def is_search(scripts: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a receipt's pieces of a script are trials of a search."""
    return any("trial" in one for one in scripts)


def trials_view(trials: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, RenderableType]]:
    """Yield a receipt's trials, which are sorted by model and score; nothing without a search."""
    if not trials:
        return
    of_models = trials[0]["kind"] == TRIAL
    metric = VALIDATION if of_models else trials[0]["best"].get("metric", "score")
    titles = list(dict.fromkeys(key for one in trials for key in one["values"]))
    count = "epochs" if of_models else "scores"

    def row(trial: Mapping[str, Any]) -> dict[str, Cell]:
        score = trial["best"].get("value")
        values = {key.rpartition(".")[2]: str(trial["values"].get(key, "-")) for key in titles}
        numbers = {metric: "-" if score is None else f"{score:.5f}", count: str(trial.get("epochs", "-"))}
        end = str(trial.get("end", "")).replace("_", " ")
        return {"trial": str(trial["piece"]), **values, **numbers, END: end}

    shown = [row(one) for one in trials[:MOST_SHOWN_TRIALS]]
    keys = [key for key in shown[0] if key not in ("trial", END)]
    yield "trials", FittedTable(shown, right=keys, leaving=(count,))
    if len(trials) > len(shown):
        yield "", f"and {len(trials) - len(shown):,} more, --json has all"
    counts = {end: sum(one.get("end") == end for one in trials) for end in ENDS}
    told = ", ".join(f"{number} {end.replace('_', ' ')}" for end, number in counts.items() if number)
    best = "the best of each model by validation has its values; it alone was scored on test"
    if not of_models and not trials[0]["best"]:
        best = "none has a score"
    elif not of_models:
        best = f"the {'most' if trials[0]['best'].get('better') == 'max' else 'least'} {metric} is the best"
    yield "", styled(f"{counted(len(trials), 'trial')}: {told}; {best}", "dim")
