"""Output of `mayfly train`: its events as lines, and below them the models in training."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, TextIO

from trainer.aws.place import HERE
from trainer.cli.terminal import Console, is_terminal, show
from trainer.control.progress import RunProgress
from trainer.node.progress import Progress, advance
from trainer.runs.deadline import Deadline
from trainer.train.observing.events import Story, line_of

NEVER = Deadline(
    at=datetime.max.replace(tzinfo=timezone.utc), cause="max_duration"
)  # a desk's training has none

SHOWN_DIGITS = 12  # of a sha256, which a model's file is checked against in whole


class TrainStory(Story):
    """Shows a local training like a run: drawn on a terminal, elsewhere as plain lines."""

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream, clock=clock)
        self._console = Console(stream)
        self._progress, self._since = Progress(), clock()

    def __call__(self, event: dict[str, Any]) -> None:
        """Show one event."""
        if not self._console.live:
            super().__call__(event)
            return
        self._progress = advance(self._progress, event)
        if event["event"] == "started":
            self._since = self._clock()
        if event["event"] != "progress" and (line := line_of(event)):
            self._console.line(line)
        if self._progress.pieces:
            from trainer.cli.views.progress import picture  # late: without a terminal nothing is drawn

            self._console.draw(lambda: picture(self._as_of_a_run(), seconds=self._clock() - self._since))

    def finish(self) -> None:
        """Remove the live region."""
        self._console.close()

    def print_models(self, models: Sequence[Mapping[str, str]]) -> None:
        """Print the models: a table on a terminal, JSON elsewhere."""
        if not is_terminal(sys.stdout):
            super().print_models(models)
            return
        from trainer.cli.views.table import FittedTable  # late, as above

        rows = [
            {"model": model["piece"], "file": model["file"], "sha256": model["sha256"][:SHOWN_DIGITS]}
            for model in sorted(models, key=lambda model: model["piece"])
        ]
        show(FittedTable(rows, leaving=("sha256",)))

    def _as_of_a_run(self) -> RunProgress:
        told = self._progress
        return RunProgress(
            run_id="",
            state="running",
            outcome=None,
            phase="train",
            place=HERE,
            elapsed_seconds=self._clock() - self._since,
            spent_usd=0.0,
            deadline=NEVER,
            pieces=told.pieces,
            models_total=len(told.models),
            models_done=len(told.done),
            rate=told.rate,
            unit=told.unit,
        )
