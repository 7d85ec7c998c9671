"""Drawing of a run's progress: the phase with its bar, the models in training, counts. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from trainer.cli.output import duration, money, one_line, pieces_counted
from trainer.cli.views.table import DIM, GOOD, STRONG, Inline, lines, styled
from trainer.control.progress import RunProgress
from trainer.runs.reports import piece_share, share_done

PHASE_WIDTH, TIME_WIDTH = 9, 6  # of the longest, `preflight` and `terminate`; of `12m05s`
MOST_ROWS = 6  # models that are drawn; more are counted
MOST_NAME = 24  # characters of a model's name
SHORTEST_SHARE = 0.03  # done, before a time left is said
PHASE_BAR, PIECE_BAR = 30, 20  # characters of a bar, where there is room
AT_WORK = ("training", "scoring")  # states of the models that are drawn
INDENT = 6  # of what is below the current phase


def phase_ended(phase: str, seconds: float, details: Sequence[str] = ()) -> RenderableType:
    """Return the line of a phase that has ended: `✓ boot  7s`, and details, the most important first."""
    text = _line(("  ✓", GOOD), f" {phase:{PHASE_WIDTH}} {duration(seconds):>{TIME_WIDTH}}")
    for detail in details:
        text.append(f"   {one_line(detail)}", DIM)
    return lines(text)


def current_phase(progress: RunProgress, seconds: float) -> RenderableType:
    """Return the line of the current phase: its time, and during training a bar with the share done, the time
    left and the dollars.
    """
    named = (f" {progress.phase:{PHASE_WIDTH}} ", STRONG)
    begin = _line(("  ●", "cyan"), named, f"{duration(seconds):>{TIME_WIDTH}}")
    if progress.phase != "train" or not progress.pieces:
        return begin.append(f"   {one_line(progress.message)}", DIM).append(f"   {money(progress.spent_usd)}")
    spent = money(progress.spent_usd) if progress.spent_usd else ""
    share = share_done(progress.pieces.values(), progress.models_total)
    if not share and progress.work != "train":  # which may tell nothing until it ends
        return begin.append(f"   {spent}")
    end = "   ".join(filter(None, [f"{share:4.0%}", _left(progress, seconds, share), spent]))
    grid = Table.grid(Column(no_wrap=True), Column(), Column(no_wrap=True), padding=(0, 2, 0, 0))
    grid.add_row(begin, share_bar(share, PHASE_BAR), end)
    return grid


def pieces_drawn(pieces: Mapping[str, Mapping[str, Any]], *, work: str) -> RenderableType:
    """Return the models in training, one per row: epoch, bar, share, loss."""
    silent = "begins" if work == "train" else "running"
    texts = [Column(no_wrap=True) for _ in range(3)]
    grid = Table.grid(*texts[:2], Column(), texts[2], padding=(0, 2, 0, 0))
    for name, piece in pieces.items():
        epoch = f"epoch {piece.get('epoch', 0)}/{piece['epochs']}" if piece.get("epochs") else silent
        numbers = _numbers(piece)
        bar = share_bar(piece_share(piece), PIECE_BAR) if numbers else ""
        grid.add_row(_short(one_line(name)), Text(f"{epoch} ", DIM), bar, numbers)
    return Padding(grid, (0, 0, 0, INDENT))


def picture(progress: RunProgress, *, seconds: float, hint: str = "") -> RenderableType:
    """Return the live region: the current phase with its seconds, the models in training, counts, and
    a hint.
    """
    if progress.phase != "train" or not progress.pieces:
        return lines(current_phase(progress, seconds), *_footer([hint]))
    training = {name: piece for name, piece in progress.pieces.items() if piece.get("state") in AT_WORK}
    drawn = dict(sorted(training.items())[:MOST_ROWS])
    parts = [
        f"{len(training) - len(drawn)} more in training" if len(training) > len(drawn) else "",
        *counts(progress),
        hint,
    ]
    return lines(current_phase(progress, seconds), pieces_drawn(drawn, work=progress.work), *_footer(parts))


def counts(progress: RunProgress) -> list[str]:
    """Return the numbers of waiting, done and failed models, and the rate; empty for none."""
    states = [str(piece.get("state")) for piece in progress.pieces.values()]
    total = max(progress.models_total, len(states))
    done, failed, training, scoring = (
        states.count(state) for state in ("done", "failed", "training", "scoring")
    )
    if total > len(states):  # the node names some of very many
        done = max(done, progress.models_done)
    waiting = total - done - failed - training - scoring
    shown = [(waiting, "waiting"), (scoring, "scoring"), (done, "done"), (failed, "failed")]
    return [
        *(f"{number:,} {word}" for number, word in shown if number > 0),
        rate_of(progress),
        durable_of(progress.durable),
        one_line(progress.message),
    ]


def durable_of(durable: Mapping[str, Any]) -> str:
    """Return the age of the newest checkpoints in S3: `in S3 45s ago`; empty without any."""
    return f"checkpoints in S3 {duration(durable['lag_seconds'])} ago" if durable else ""


def rate_of(progress: RunProgress) -> str:
    """Return the rate of all workers: `5,510 windows/s`; few chunks a second have a decimal. Empty for a
    silent node.
    """
    if not progress.rate or progress.is_silent:
        return ""
    return (
        f"{progress.rate:,.0f} {progress.unit}/s"
        if progress.rate >= 10
        else f"{progress.rate:.1f} {progress.unit}/s"
    )


def time_left(seconds: float, share: float) -> str:
    """Return the time left, extrapolated from the share done; empty at the very beginning."""
    return f"{duration(seconds * (1 - share) / share)} left" if SHORTEST_SHARE <= share < 1 else ""


def _left(progress: RunProgress, seconds: float, share: float) -> str:
    return "" if progress.is_silent else time_left(seconds, share)


def models_line(progress: RunProgress) -> str:
    """Return the progress of a training in one line, for output without a terminal."""
    share = share_done(progress.pieces.values(), progress.models_total)
    number = max(progress.models_total, len(progress.pieces))
    total = pieces_counted(number, progress.work)
    if progress.work != "train" and not share:
        total = total if number > 1 else ""
    else:
        total = f"{share:.0%} of {total}"
    return "  ".join(filter(None, [total, *counts(progress)]))


def _footer(parts: list[str]) -> Iterator[RenderableType]:
    if any(parts):
        yield Padding(Inline([styled(part, DIM) for part in parts]), (0, 0, 0, INDENT))


def _numbers(piece: Mapping[str, Any]) -> str:
    if piece.get("state") == "scoring":
        return "scoring"
    loss = piece.get("loss")
    share = f"{piece_share(piece):4.0%}" if piece.get("steps") else ""
    return share + (f"   loss {loss:.3f}" if isinstance(loss, (int, float)) else "")


def share_bar(share: float, width: int) -> ProgressBar:
    return ProgressBar(total=1.0, completed=share, width=width, complete_style="cyan", finished_style=GOOD)


def _line(*parts: str | tuple[str, str]) -> Text:
    """Return a text that is cut where it does not fit."""
    return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")


def _short(name: str) -> Text:
    return Text(name if len(name) <= MOST_NAME else name[: MOST_NAME - 1] + "…")
