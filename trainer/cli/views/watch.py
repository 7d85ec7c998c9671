"""Messages during a run: ended phases, and below them the current one with time and dollars so far."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rich.console import RenderableType

from trainer.cli.output import duration, money
from trainer.cli.terminal import Console
from trainer.cli.views.progress import models_line, phase_ended, picture
from trainer.cli.views.table import BAD, STRONG, lines
from trainer.control.progress import RunProgress
from trainer.control.stop import StopSignal, Wish
from trainer.runs.record import InstanceSeen

PHASES = {
    "capacity": "looking for capacity",
    "lost": "its machine is lost: looking for another",
    "boot": "the machine boots",
    "stage": "devices, data and code on the machine",
    "train": "training",
    "upload": "uploading what it made last",
    "terminate": "ending: waiting to see the machine gone",
}
ORDER = ("preflight", *PHASES)


class Watch:
    """Shows a run. One for each; `on_event` is what `control.drive` calls.

    On a terminal an ended phase is a line with its seconds, and the current one is drawn. Elsewhere each
    event is a line.
    """

    def __init__(
        self,
        console: Console,
        stop: StopSignal | None,
        *,
        below: Callable[[RunProgress], Sequence[RenderableType]] = lambda _: (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`stop`: None for a command that only looks on. `below`: what a terminal shows below the picture."""
        self._console, self._stop, self._below, self._clock = console, stop, below, clock
        self._phase = ""
        self._settled: set[str] = set()
        self._instances: set[str] = set()
        self._ended: dict[str, str] = {}  # piece -> how; one that failed may be tried on another device
        self._printed: set[str] = set()
        self._lost = 0  # attempts
        self._wish = stop.wish if stop else Wish.GO_ON

    def on_event(self, progress: RunProgress) -> None:
        """Print the changes since the last look, and redraw the live region."""
        self._report_wish(progress)
        self._report_lost(progress)
        if self._console.live:
            self._settle(progress)
        else:
            self._report(progress)
        for text, style in ((progress.warning, BAD), (progress.last_error, "")):
            if text and text not in self._printed:
                self._printed.add(text)
                self._console.line(f"{'WARNING: ' if style else 'AWS: '}{text}", style)
        if self._console.live:
            self._draw(progress)
        elif progress.phase == "train" and progress.pieces:
            self._console.update(f"{_clock(progress)}  training  {models_line(progress)}".rstrip())
        else:
            self._console.update(f"{_clock(progress)}  {_words(progress)}  {progress.message}".rstrip())

    def _settle(self, progress: RunProgress) -> None:
        """Print the phases that have ended since the last look, and the models that failed."""
        before = ORDER[: ORDER.index(progress.phase)] if progress.phase in ORDER else ()
        over = [*before, *(["terminate"] if progress.state == "closed" else [])]
        for phase in over:
            if phase == "capacity" and progress.phase == "boot" and not progress.instances:
                continue  # EC2 does not describe it yet
            if phase not in self._settled and progress.seconds.get(phase):
                machines = self._new_instances(progress) if phase == "capacity" else []
                details = [part for seen in machines for part in _machine(seen)]
                self._console.show(phase_ended(phase, progress.seconds[phase], details))
                self._settled.add(phase)
        for name, piece in progress.pieces.items():
            if piece.get("state") == "failed" and name not in self._ended:
                self._ended[name] = "failed"
                self._console.line(f"    ✗ {name} failed", BAD)

    def _draw(self, progress: RunProgress) -> None:
        since, begun = self._clock(), progress.seconds.get(progress.phase, 0.0)
        if progress.state == "closed":
            self._console.close()
            return
        below = self._below(progress)

        def drawn() -> RenderableType:
            now = begun + self._clock() - since
            return lines(picture(progress, seconds=now, hint=self._hint(progress)), *below)

        self._console.draw(drawn)

    def _report(self, progress: RunProgress) -> None:
        """Print a line for each event since the last look."""
        for seen in self._new_instances(progress):
            self._line(progress, "  ".join(_machine(seen)))
        for name, piece in progress.pieces.items():
            if piece.get("state") in ("done", "failed") and self._ended.get(name) != piece["state"]:
                self._ended[name] = piece["state"]
                names_all = progress.models_total <= len(progress.pieces)  # of very many a node names some
                number = max(len(self._ended), 0 if names_all else progress.models_done)
                total = f"{progress.models_total:,}" if progress.models_total else "?"
                self._line(progress, f"{name} {piece['state']} ({number:,}/{total})")
        if progress.phase != self._phase:
            self._phase = progress.phase
            self._line(progress, _words(progress))

    def _report_lost(self, progress: RunProgress) -> None:
        """Print each attempt that lost its machine, once; the next one has its phases anew."""
        for line in progress.lost[self._lost :]:
            self._console.line(line, BAD)
            self._settled &= {"preflight", "capacity"}
        self._lost = len(progress.lost)
        for line in (node.line for node in progress.nodes):
            if line and line not in self._printed:
                self._printed.add(line)
                self._console.line(line, BAD)

    def _new_instances(self, progress: RunProgress) -> list[InstanceSeen]:
        new = [seen for seen in progress.instances if seen.instance_id not in self._instances]
        self._instances |= {seen.instance_id for seen in new}
        return new

    def _report_wish(self, progress: RunProgress) -> None:
        """Print a pending request of the user (stop or leave) once."""
        if self._stop is None or self._stop.wish is self._wish:
            return
        self._wish = self._stop.wish
        if self._wish is Wish.END:
            then = ", then the machine is terminated" if progress.place.has_instances else ""
            self._console.line(f"Ending the run: what is finished is uploaded{then}.", STRONG)
        if self._wish is Wish.LEAVE and not progress.instances and progress.place.has_instances:
            self._console.line("Leaving the run as soon as its machine is started.", STRONG)

    def _hint(self, progress: RunProgress) -> str:
        """Return the effect of Ctrl-C, if there is a terminal, and the latest end of the run."""
        if self._stop is None:
            return "Ctrl-C: stop looking"
        if progress.state == "ending" or self._stop.wish is not Wish.GO_ON:
            return f"ends by {progress.deadline.at:%H:%M} UTC"
        return "Ctrl-C: end or leave" if self._stop.asks else "Ctrl-C: end"

    def _line(self, progress: RunProgress, text: str) -> None:
        self._console.line(f"{_clock(progress)}  {text}")


def _words(progress: RunProgress) -> str:
    return dict(progress.place.phases).get(progress.phase) or PHASES.get(progress.phase, progress.phase)


def _machine(seen: InstanceSeen) -> list[str]:
    return [seen.instance_id, seen.availability_zone, seen.instance_type, seen.market.replace("_", "-")]


def _clock(progress: RunProgress) -> str:
    return f"[{duration(progress.elapsed_seconds):>6} {money(progress.spent_usd):>7}]"
