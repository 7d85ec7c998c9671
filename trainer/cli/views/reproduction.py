"""Draws a reproduction: recorded losses, or files, beside those computed here, with the verdict on each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import RenderableType

from trainer.cli.output import counted
from trainer.cli.views.table import BAD, GOOD, Cell, FittedTable, lines, styled
from trainer.store.reproduction import TOLERANCE, ComparedFile, ComparedLoss, ComparedModel, Verdict

MOST_ALONE, MOST_EACH = 24, 4  # losses that are shown of one model, and of each of several
SIGNS: dict[Verdict, tuple[str, str]] = {
    "equal to the bit": ("=", GOOD),
    "within the tolerance": ("≈", GOOD),
    "different": ("✗", BAD),
}
Compared = ComparedModel | ComparedFile


def reproduction_view(compared: Sequence[Compared], run_id: str) -> RenderableType:
    """Return the table of a reproduction, and its verdict."""
    models = [one for one in compared if isinstance(one, ComparedModel)]
    most = MOST_ALONE if len(models) == 1 else MOST_EACH
    rows = [_loss_row(model, loss) for model in models for loss in _shown(model.losses, most)]
    if len(models) == 1:  # the verdict names it
        rows = [{name: cell for name, cell in row.items() if name != "model"} for row in rows]
    rows += [_file_row(one) for one in compared if isinstance(one, ComparedFile)]
    right = ("recorded", "here") if models else ()
    return lines(FittedTable(rows, right=right), "", *(styled(*line) for line in _verdicts(compared, run_id)))


def document_of(compared: Sequence[Compared]) -> dict[str, Any]:
    """Return a reproduction as JSON values, with every loss."""
    models = [
        {
            "model": one.model,
            "verdict": one.verdict,
            "inexact": one.inexact,
            "failed": one.failed,
            "missing": one.missing,
            "losses": [
                {
                    **asdict(loss.place),
                    "recorded": loss.recorded,
                    "computed": loss.computed,
                    "equal": loss.is_equal,
                }
                for loss in one.losses
            ],
        }
        for one in compared
        if isinstance(one, ComparedModel)
    ]
    files = [{**asdict(one), "verdict": one.verdict} for one in compared if isinstance(one, ComparedFile)]
    return {"tolerance": TOLERANCE, **({"models": models} if models else {"files": files})}


def _shown(losses: Sequence[ComparedLoss], most: int) -> Iterator[ComparedLoss | None]:
    """Yield the losses to show: the first, the last, and the one that differs most; None for a gap."""
    numbers = range(len(losses))
    worst = max(numbers, key=lambda number: losses[number].difference, default=0)
    first = (most - 1) // 2
    chosen = sorted({*numbers[:first], worst, *numbers[first + 1 - most :]})
    before = -1
    for number in numbers if len(losses) <= most else chosen:
        if number > before + 1:
            yield None
        yield losses[number]
        before = number


def _loss_row(model: ComparedModel, loss: ComparedLoss | None) -> dict[str, Cell]:
    if loss is None:
        return {"model": "", "loss of": "...", "recorded": "", "here": "", "difference": ""}
    return {
        "model": model.model,
        "loss of": str(loss.place),
        "recorded": _number(loss.recorded),
        "here": _number(loss.computed),
        "difference": "equal to the bit" if loss.is_equal else f"{loss.difference:.1e} of it",
    }


def _file_row(one: ComparedFile) -> dict[str, Cell]:
    here = one.computed[:12] or "not made"
    sign, style = SIGNS[one.verdict]
    return {"": styled(sign, style), "file": one.file, "recorded": one.recorded[:12], "here": here}


def _verdicts(compared: Sequence[Compared], run_id: str) -> list[tuple[str, str]]:
    """Return a line for each model that is not equal to the bit, and one for all."""
    told = []
    for one in compared:
        if isinstance(one, ComparedModel) and one.verdict != "equal to the bit":
            told.append((f"{SIGNS[one.verdict][0]} {one.model}: {_why(one)}", SIGNS[one.verdict][1]))
    counts = {verdict: sum(one.verdict == verdict for one in compared) for verdict in SIGNS}
    models = [one for one in compared if isinstance(one, ComparedModel)]
    losses = sum(len(one.losses) for one in models)
    of_losses = f" ({counted(losses, 'loss', 'losses')})" if losses else ""
    what = counted(len(compared), "model" if models else "file")
    what = models[0].model if len(models) == 1 else what
    total = ", ".join(f"{number:,} {verdict}" for verdict, number in counts.items() if number)
    total = compared[0].verdict if len(compared) == 1 else total
    worst: Verdict = next(verdict for verdict in reversed(SIGNS) if counts[verdict])
    sign, style = SIGNS[worst]
    return [*told, (f"{sign} {what} of run {run_id}{of_losses}: {total}", style)]


def _why(one: ComparedModel) -> str:
    if one.failed:
        return f"not trained here: {one.failed}"
    if one.missing:
        return f"{counted(one.missing, 'recorded loss was', 'recorded losses were')} not computed here"
    allowed = f"within {TOLERANCE:.1%}, since {one.inexact}" if one.inexact else "to be equal to the bit"
    return f"apart by {one.worst:.1e} of a loss at most; they are {allowed}"


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.9g}"
