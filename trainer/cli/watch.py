"""Messages while a run goes on: a line for each phase, and training progress in between, with time and dollars so far."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from trainer.cli.output import BOLD, RED, Console, duration, mayfly, money
from trainer.control.progress import RunProgress
from trainer.control.stop import StopSignal

PHASES = {
    "capacity": "looking for capacity",
    "boot": "the machine boots",
    "stage": "devices, data and code on the machine",
    "train": "training",
    "upload": "uploading the last models",
    "terminate": "ending: waiting to see the machine gone",
}


class Watch:
    """Renders progress. One for each run; `on_event` is what `control.drive` calls."""

    def __init__(self, console: Console, stop: StopSignal, *, where: str) -> None:
        """`where` is what the user adds to the next commands: " --rehearse", or nothing."""
        self._console, self._stop, self._where = console, stop, where
        self._phase = ""
        self._instances: set[str] = set()
        self._presses = 0
        self._ended: set[str] = set()
        self._printed: set[str] = set()

    def on_event(self, progress: RunProgress) -> None:
        """Print the changes since the last look, and update the live line."""
        self._report_presses(progress)
        for seen in progress.instances:
            if seen.instance_id not in self._instances:
                self._instances.add(seen.instance_id)
                market = seen.market.replace("_", "-")
                self._line(progress, f"{seen.instance_id}: {seen.instance_type}, {market}, {seen.availability_zone}")
        for name, piece in progress.pieces.items():
            if piece.get("state") in ("done", "failed") and name not in self._ended:
                self._ended.add(name)
                self._line(progress, f"{name} {piece['state']} ({len(self._ended)}/{progress.models_total or '?'})")
        if progress.phase != self._phase:
            self._phase = progress.phase
            self._line(progress, PHASES.get(progress.phase, progress.phase))
            if progress.phase == "train":
                self._explain_leaving(progress)
        for text, style in ((progress.warning, RED), (progress.last_error, "")):
            if text and text not in self._printed:
                self._printed.add(text)
                self._console.line(f"{'WARNING: ' if style else 'AWS: '}{text}", style)
        self._console.update(f"{_clock(progress)}  {_doing(progress)}")

    def _report_presses(self, progress: RunProgress) -> None:
        if self._stop.presses > self._presses and self._presses == 0:
            self._console.line("Ctrl-C: ending the run; finished models are uploaded, then the machine is terminated.", BOLD)
            self._console.line(f"Press it again to leave at once; the deadline stands, {_utc(progress.deadline.at)}.")
        self._presses = self._stop.presses

    def _explain_leaving(self, progress: RunProgress) -> None:
        self._console.line(
            f"Ctrl-C ends the run. To leave without stopping it, close this terminal: it goes on, and ends by "
            f"{_utc(progress.deadline.at)} at the latest; {mayfly()} status {progress.run_id}{self._where} shows its progress."
        )

    def _line(self, progress: RunProgress, text: str) -> None:
        self._console.line(f"{_clock(progress)}  {text}")


def _clock(progress: RunProgress) -> str:
    return f"[{duration(progress.elapsed_seconds):>6} {money(progress.spent_usd):>7}]"


def _doing(progress: RunProgress) -> str:
    """Return the run's progress, in one line."""
    if progress.phase != "train" or not progress.pieces:
        return f"{PHASES.get(progress.phase, progress.phase)}  {progress.message}".rstrip()
    parts = [f"{progress.models_done}/{progress.models_total or len(progress.pieces)} models"]
    if progress.rate:
        parts.append(
            f"{progress.rate:,.0f} {progress.unit}/s" if progress.rate >= 10 else f"{progress.rate:.1f} {progress.unit}/s"
        )
    parts += [
        _piece(name, seen) for name, seen in progress.pieces.items() if seen.get("state") == "training" and seen.get("epochs")
    ]
    return "training  " + "  ".join(parts)


def _piece(name: str, seen: Mapping[str, Any]) -> str:
    steps = seen.get("steps") or 0
    share = f" {100 * (seen.get('step') or 0) // steps}%" if steps else ""
    loss = seen.get("loss")
    return f"{name} {seen.get('epoch', 0)}/{seen.get('epochs', 0)}{share}" + (f" {loss:.4f}" if isinstance(loss, float) else "")


def _utc(instant: datetime) -> str:
    return f"{instant:%Y-%m-%d %H:%M:%S} UTC"
