"""Drawing of a run's progress: the phase with its bar, the models in training, counts. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from trainer.cli.output import duration, money, one_line, pieces_counted
from trainer.cli.views.table import DIM, GOOD, STRONG, Inline, lines, styled
from trainer.control.progress import RunProgress

PHASE_WIDTH, TIME_WIDTH = 9, 6  # of the longest, `preflight` and `terminate`; of `12m05s`
MOST_ROWS = 6  # models that are drawn; more are counted
MOST_NAME = 24  # characters of a model's name
SHORTEST_SHARE = 0.03  # done, before a time left is said
PHASE_BAR, PIECE_BAR = 30, 20  # characters of a bar, where there is room
AT_WORK = ("training", "scoring")  # states of the models that are drawn
NARROW = 72  # columns below which a model's row has no bar


def share_done(pieces: Iterable[Mapping[str, Any]], total: int = 0) -> float:
    """Return the share of a training that is done, 0 to 1: steps of the pieces that train, and the pieces
    that have ended.

    `total` counts the run's models, of which `pieces` may name fewer.
    """
    shares = [piece_share(piece) for piece in pieces]
    return min(1.0, sum(shares) / max(1, total, len(shares)))


def piece_share(piece: Mapping[str, Any]) -> float:
    """Return the share of one piece that is done, 0 to 1."""
    if piece.get("state") in ("scoring", "done", "failed"):  # it may have stopped early
        return 1.0
    epochs, steps = piece.get("epochs") or 0, piece.get("steps") or 0
    if not epochs or not steps:
        return 0.0
    return min(
        1.0, max(0.0, (max(1, piece.get("epoch") or 1) - 1 + (piece.get("step") or 0) / steps) / epochs)
    )


class PhaseEnded:
    """A phase that has ended: `✓ boot  7s`, followed by as many details as fit in the line."""

    def __init__(self, phase: str, seconds: float, details: Sequence[str] = ()) -> None:
        """`details`: the most important first."""
        self._phase, self._seconds, self._details = phase, seconds, details

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw one line."""
        text = Text.assemble(
            ("  ✓", GOOD), f" {self._phase:{PHASE_WIDTH}} {duration(self._seconds):>{TIME_WIDTH}}"
        )
        for detail in map(one_line, self._details):
            if text.cell_len + 3 + cell_len(detail) > options.max_width:
                break
            text.append(f"   {detail}", DIM)
        yield text


class PhaseBar:
    """The current phase: its time, and during training a bar with the share done, the time left and the
    dollars.
    """

    def __init__(self, progress: RunProgress, seconds: float) -> None:
        self._progress, self._seconds = progress, seconds

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw one line."""
        progress = self._progress
        begin = Text.assemble(
            ("  ●", "cyan"),
            (f" {progress.phase:{PHASE_WIDTH}} ", STRONG),
            f"{duration(self._seconds):>{TIME_WIDTH}}",
        )
        if progress.phase != "train" or not progress.pieces:
            yield from _cut(
                begin.append(f"   {one_line(progress.message)}", DIM).append(
                    f"   {money(progress.spent_usd)}"
                ),
                options,
            )
            return
        share = share_done(progress.pieces.values(), progress.models_total)
        if not share and progress.work != "train":  # which may tell nothing until it ends
            yield from _cut(
                begin.append(f"   {money(progress.spent_usd)}" if progress.spent_usd else ""), options
            )
            return
        ends = [
            f"{share:4.0%}",
            time_left(self._seconds, share),
            money(progress.spent_usd) if progress.spent_usd else "",
        ]
        end = "   ".join(filter(None, ends))
        yield _with_bar(begin, share, end, options.max_width)


class PieceRows:
    """The models in training, one per row: epoch, bar, loss."""

    def __init__(self, pieces: Mapping[str, Mapping[str, Any]], *, work: str) -> None:
        self._pieces, self._silent = pieces, "begins" if work == "train" else "runs"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw a row for each model."""
        begins = _aligned([_short(one_line(name)) for name in self._pieces])
        epochs = _aligned([_epoch(piece) or self._silent for piece in self._pieces.values()])
        ends = _aligned([_numbers(piece) for piece in self._pieces.values()])
        for begin, epoch, end, piece in zip(begins, epochs, ends, self._pieces.values(), strict=True):
            line = Text(f"      {begin}").append(f"  {epoch}", DIM)
            if options.max_width < NARROW or not end.strip():
                yield from _cut(line.append(f"  {end}"), options)
            else:
                yield _with_bar(line, piece_share(piece), end, options.max_width, widest=PIECE_BAR)


def picture(progress: RunProgress, *, seconds: float, hint: str = "") -> RenderableType:
    """Return the live region: the current phase with its seconds, the models in training, counts, and
    a hint.
    """
    if progress.phase != "train" or not progress.pieces:
        return lines(PhaseBar(progress, seconds), *_footer([hint]))
    training = {name: piece for name, piece in progress.pieces.items() if piece.get("state") in AT_WORK}
    drawn = dict(sorted(training.items())[:MOST_ROWS])
    parts = [
        f"{len(training) - len(drawn)} more in training" if len(training) > len(drawn) else "",
        *counts(progress),
        hint,
    ]
    return lines(PhaseBar(progress, seconds), PieceRows(drawn, work=progress.work), *_footer(parts))


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
        one_line(progress.message),
    ]


def rate_of(progress: RunProgress) -> str:
    """Return the rate of all workers: `5,510 windows/s`; few chunks a second have a decimal."""
    if not progress.rate:
        return ""
    return (
        f"{progress.rate:,.0f} {progress.unit}/s"
        if progress.rate >= 10
        else f"{progress.rate:.1f} {progress.unit}/s"
    )


def time_left(seconds: float, share: float) -> str:
    """Return the time left, extrapolated from the share done; empty at the very beginning."""
    return f"{duration(seconds * (1 - share) / share)} left" if SHORTEST_SHARE <= share < 1 else ""


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
        grid = Table.grid()
        grid.add_row("      ", Inline([styled(part, DIM) for part in parts if part]))
        yield grid


def _epoch(piece: Mapping[str, Any]) -> str:
    return f"epoch {piece.get('epoch', 0)}/{piece['epochs']}" if piece.get("epochs") else ""


def _numbers(piece: Mapping[str, Any]) -> str:
    if piece.get("state") == "scoring":
        return "scoring"
    loss = piece.get("loss")
    share = f"{piece_share(piece):4.0%}" if piece.get("steps") else ""
    return share + (f"   loss {loss:.3f}" if isinstance(loss, (int, float)) else "")


def _aligned(texts: list[str]) -> list[str]:
    widest = max(map(cell_len, texts), default=0)
    return [text + " " * (widest - cell_len(text)) for text in texts]


def _with_bar(begin: Text, share: float, end: str, width: int, *, widest: int = PHASE_BAR) -> RenderableType:
    """Return a line whose bar fills the rest of the width; without room, a line without a bar."""
    room = width - begin.cell_len - cell_len(end) - 5
    if room < 8:
        return begin.append(f"  {end}")
    grid = Table.grid(padding=0)
    grid.add_row(
        begin,
        "   ",
        ProgressBar(
            total=1.0, completed=share, width=min(room, widest), complete_style="cyan", finished_style=GOOD
        ),
        Text(f" {end}"),
    )
    return grid


def _cut(text: Text, options: ConsoleOptions) -> Iterator[Text]:
    text.truncate(options.max_width, overflow="ellipsis")
    yield text


def _short(name: str) -> str:
    return name if len(name) <= MOST_NAME else name[: MOST_NAME - 1] + "…"
