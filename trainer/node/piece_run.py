"""One piece of a command: its files, its process, which is restarted if a signal killed it, its events and
its outcome.

command_run.py decides when it begins and on which devices.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from trainer.base.errors import TrainingFailed
from trainer.base.instants import iso
from trainer.base.process_state import state_of, ticks_of
from trainer.base.silence import FIRST_SECONDS, HALF_MORE, ProgressClock
from trainer.base.text import counted
from trainer.job.trials import TrialEnd
from trainer.node.command_process import CommandProcess
from trainer.node.command_work import CommandWork, PieceToRun
from trainer.node.events import BestMetric, CommandEvents, StepRate
from trainer.node.inside import remove_folder
from trainer.node.script_ray import RAY_TOKEN
from trainer.runs.manifest import ManifestPiece

log = logging.getLogger("trainer.node")
LOOK_SECONDS = 5.0  # between two looks at its processes, which reads all of /proc
MOST_SHOWN = 64  # processes of a silent piece, in the log
MOST_LAST_BLOCKS = 15  # of an ended piece's events: it may have left a file without end


class PieceRun:
    """A piece that has begun on a place, which is a number; `starts` counts those of an earlier try, too."""

    def __init__(
        self,
        work: CommandWork,
        piece: PieceToRun,
        *,
        place: int,
        words: Sequence[str],
        variables: Mapping[str, str],
        starts: int,
        note: str = "",
    ) -> None:
        self.piece, self.place, self.starts = piece, place, starts
        self.done = self.asked_to_end = False
        self.failure: TrainingFailed | None = None
        self._work, self._words, self._variables, self._note = work, words, variables, note
        self._events = CommandEvents(piece.events, work.node.redaction, tells=work.command.tells)
        self._trial = piece.piece.trial if piece.piece else 0
        key = "search.score" if self._trial else "script.best"
        self._rate, self._best = StepRate(), BestMetric(metrics=work.command.metrics, key=key)
        self.end = ""  # of a trial that is over, one of ENDS
        self._reports = 0  # of its score
        self._is_behind = self._pruned = False
        self._began, self._started, self._seconds = time.monotonic(), 0.0, 0.0
        self._open = ExitStack()
        self._process: CommandProcess | None = None
        self._late = False  # it exceeded its time limit
        self._clock: ProgressClock | None = None  # of its current start
        self._seen = (0, 0)  # lines of output and processor ticks, when last looked at
        self._looked_at = 0.0
        self._silent_for = 0.0  # seconds without progress, after which this start was ended; 0: it was not
        self._silences = 0  # starts that ended so
        self._exit_code = 0
        self._last_lines: list[str] = []

    @property
    def seconds_at_work(self) -> float:
        """Return the seconds since it was last started, 0 if it could not be."""
        return time.monotonic() - self._started if self._started else 0.0

    @property
    def progress_bound(self) -> float:
        """Return how many seconds it may be without progress. A program of Mayfly's watches its own workers,
        and must be able to act first.
        """
        bound = self._clock.bound if self._clock else 0.0
        return bound * HALF_MORE if self._work.command.tells == "events" else bound

    def begin(self) -> bool:
        """Start it; one that can't be started has failed. Return whether it runs."""
        return self._has_files() and self._start()

    @property
    def flaw(self) -> str:
        """Return why it has no score; '' if it has."""
        return self._best.note()

    def end_early(self) -> None:
        """Have it end, since it fell behind other trials."""
        self._is_behind = True

    def close(self) -> None:
        """Kill what is left of it."""
        self._open.close()

    def leave(self) -> None:
        """Note that it is over, and remove its copy of the command's files."""
        self._seconds = time.monotonic() - self._began
        if self.piece.copy_of is not None:
            remove_folder(self.piece.folder)

    def has_ended(self) -> bool:
        """Follow it, and restart it if a signal killed it; return whether it has ended."""
        assert self._process is not None
        command, stopping = self._work.command, self._work.node.is_stopping()
        if (code := self._process.poll()) is None:
            self._late = 0 < command.seconds < self.seconds_at_work
            self.asked_to_end = self.asked_to_end or stopping
            self._pruned = self._is_behind
            if self._late or self.asked_to_end or self._pruned:
                self._process.stop()
            self.follow()
            if not (self._silent_for or self._late or self.asked_to_end or self._pruned):
                self._look_at_progress()
            return False
        self.close()
        self._events.writer_ended = True
        self.follow()
        for _ in range(MOST_LAST_BLOCKS):  # it may write all of its events as it ends
            if self._events.has_more:
                self.follow()
        self._exit_code, self._last_lines = code, self._process.output.last_lines
        # One that ended after a notice was asked to, and is not done, even if it exits with 0.
        self.asked_to_end = self.asked_to_end or self._work.node.taken_at is not None
        log.info("%s ended with exit code %d", self.piece.title if self.piece.values else command.title, code)
        if self._events.unsound and not self.piece.piece:
            log.warning("%d lines of its events could not be read", self._events.unsound)
        again = self._silences == 1 if self._silent_for else code < 0 and self.starts <= command.restarts
        if again and not (self._late or stopping or self.asked_to_end or self._pruned):
            reason = _still(self._silent_for) if self._silent_for else f"was {_killed(code)}"
            self.tell("retry", worker=self.place, reason=f"it {reason}")
            return not self._start()
        self._decide()
        return True

    def follow(self) -> None:
        """Take in its new events: as they are, or as numbers of its piece."""
        for event in self._events.new():
            if event.get("event") != "gpu":  # which a timer sends
                self._sign()
            if self.piece.piece:
                self._tell_numbers(event)
                continue
            try:
                self._work.outputs.announced.add(event)
                self._work.tell(event)
                self._work.note_devices()
                if event["event"] == "trial_done":
                    self._work.outputs.trial_done(self._work.trial_of(event))
                if self._work.fetches is not None and event["event"] == "taken_over":
                    self._work.fetches.answer(event, self._work.node.status.progress.trials_of(event))
            except (KeyError, TypeError, ValueError, AttributeError):  # none of ours
                self._events.unsound += 1

    def tell(self, kind: str, **more: Any) -> None:
        """Record an event of the piece; do nothing without one, since its command reports then."""
        if self.piece.piece:
            self._work.tell({"event": kind, **self.piece.identity, **more})

    def result(self, piece: ManifestPiece) -> dict[str, Any]:
        """Return the receipt's entry of its piece."""
        notes = [self._note] if self._note else []
        notes += self._work.outputs.notes(self.piece.prefix)
        notes += [note] if (note := self._best.note()) else []
        if self._events.unsound:
            notes.append(f"{counted(self._events.unsound, 'line')} of its events could not be read")
        return {
            **piece.identity,
            "values": dict(piece.values),
            "sha256": self._work.command.sha256,
            "done": (self.done or bool(self.end)) and not self._work.outputs.lost(self.piece.prefix),
            "exit_code": self._exit_code,
            "starts": self.starts,
            "best": self._best.to_dict(),
            "seconds": round(self._seconds or time.monotonic() - self._began, 3),
            "last_lines": self._last_lines,
            "notes": notes,
            **({"trial": self._trial, "end": self.end, "epochs": self._reports} if self._trial else {}),
        }

    def _has_files(self) -> bool:
        """Copy the command's files for a value, since several run at once and may write beside them; return
        whether they fit.
        """
        if self.piece.copy_of is None:
            return True
        try:
            shutil.copytree(self.piece.copy_of, self.piece.folder)
            if self._work.own_user is not None:
                self._work.own_user.give(self.piece.folder)
        except OSError as error:  # the disk is full
            do = "Have it keep less on its disk, or give the machine a larger one."
            what = f"{self._work.command.title}'s files can't be copied for it"
            self._fail(TrainingFailed(what, why=str(error), do=do), what)
            return False
        return True

    def _start(self) -> bool:
        """Start the command; return whether this machine can run it."""
        work, piece = self._work, self.piece
        # Else all processes of its user are its own, and end with it.
        others = work.several or work.own_user is None or RAY_TOKEN in self._variables
        try:
            process = CommandProcess(
                self._words,
                folder=piece.folder,
                environment=self._variables,
                own_user=work.own_user,
                grace_seconds=work.node.place.stop_seconds,
                redaction=work.node.redaction,
                name=piece.title if work.several else "",
                share=work.log_share,
                mark=f"MAYFLY_EVENTS={piece.events}" if others else "",
            )
        except TrainingFailed as error:
            self._fail(error, error.what)
            return False
        self._process, self._events.writer_ended = self._open.enter_context(process), False
        self.starts, self._started = self.starts + 1, time.monotonic()
        self._silent_for, self._seen, self._looked_at = 0.0, (0, 0), float("-inf")
        allowed = float(work.node.status.identity.boot_seconds or FIRST_SECONDS)
        if work.command.tells == "events":  # its own watch begins with FIRST_SECONDS
            allowed = max(allowed, FIRST_SECONDS)
        self._clock = ProgressClock(began=self._now(), first=allowed, least=allowed)
        work.node.moved()
        self.tell("model_started", worker=self.place)
        named = f" {piece.title}" if work.several else ""
        tried = f" with {shown_values(piece.values)}" if self._trial else ""
        log.info("started%s%s: %s", named, tried, " ".join(self._words))
        return True

    def _decide(self) -> None:
        """Record the outcome, once it is not restarted."""
        if self._pruned:
            self.done = True
            self._tell_end("pruned")
            return
        if self.asked_to_end and self.piece.piece:  # not done, even if it exits with 0
            return
        if self._exit_code == 0 and not (self._late or self._silent_for):
            self.done = True
            if self._trial and self.flaw:
                self._tell_end("failed", reason=self.flaw)
            else:
                self._tell_end("done")
            return
        command = self._work.command
        how = f"ended with exit code {self._exit_code}"
        if self._late:
            how = f"did not end within {command.seconds / 60:.0f} minutes"
        elif self._silent_for:
            how = f"{_still(self._silent_for)}, {counted(self._silences, 'time', 'times')}"
        elif self._exit_code < 0:
            how = f"was {_killed(self._exit_code)}"
        why = self._last_lines[-1] if self._last_lines else "it printed nothing"
        failure = TrainingFailed(f"{command.title} {how}", why=why, do="Read `mayfly logs`.")
        self._fail(failure, f"it {how}: {why}")

    def _sign(self) -> None:
        """Note a sign of its progress."""
        if self._clock is not None:
            self._clock.sign(self._now())
        self._work.node.moved()

    def _now(self) -> float:
        return self._work.node.clock()

    def _look_at_progress(self) -> None:
        """Note what it has printed; end a start that stands still, with what is known of its processes in the
        log.

        Until a script has a rate its processors' work counts too: many say nothing while they begin.
        """
        assert self._process is not None and self._clock is not None
        now, lines = self._now(), self._process.output.num_blocks
        if lines != self._seen[0]:
            self._seen = (lines, self._seen[1])
            self._sign()
        if now - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = now
        if not self._clock.has_rate and self._work.command.tells == "numbers":
            ticks = sum(map(ticks_of, self._process.processes))
            if ticks > self._seen[1]:
                self._clock.stir(now)
                self._work.node.moved()
            self._seen = (lines, ticks)
        if now - self._clock.at > self.progress_bound:
            self._end_silent(now - self._clock.at)

    def _end_silent(self, seconds: float) -> None:
        assert self._process is not None
        self._silent_for, self._silences = seconds, self._silences + 1
        log.warning("%s %s: it is ended", self.piece.title or self._work.command.title, _still(seconds))
        for pid in self._process.processes[:MOST_SHOWN]:
            log.warning("%s", state_of(pid) or f"process {pid} can't be looked at")
        if sample := self._work.node.status.sample:
            log.warning("devices at %s: %s", iso(sample.at), sample.shown)
        self._process.abort()
        self._work.node.moved()  # this node has acted

    def _fail(self, failure: TrainingFailed, reason: str) -> None:
        self.failure = failure
        self._tell_end("failed", reason=reason)

    def _tell_end(self, end: str, **why: Any) -> None:
        """Record how it ended: a trial with its values and its score."""
        if not self._trial:
            self.tell("script_done" if end == "done" else "model_failed", worker=self.place, **why)
            return
        self.end, best, values = end, self._best.to_dict(), dict(self.piece.values)
        told = TrialEnd(
            trial=self._trial,
            values=tuple(values.items()),
            end=end,
            score=best.get("value"),
            epochs=self._reports,
        )
        score = f", the best {best['metric']} {best['value']:.6g}" if best else ""
        after = counted(self._reports, "score")
        log.info("%s %s after %s%s: %s", self.piece.title, end, after, score, shown_values(values))
        self.tell("trial_done", study="", worker=self.place, **told.to_dict(), **why, best=best)

    def _tell_numbers(self, event: Mapping[str, Any]) -> None:
        counts, values = event["counts"], event["values"]
        numbers: dict[str, Any] = {"unit": "steps", "loss": event["loss"], "values": values}
        if self._best.add(event) and self._trial:
            self._reports += 1
            numbers["score"] = self._best.to_dict()["value"]
            if not self.piece.goes_on:  # its first score here is not the first of its training
                numbers["report"] = self._reports
        rate = self._rate.update(counts["step"]) if "step" in counts else self._rate.value or None
        self.tell("script", **counts, worker=self.place, rate=rate and round(rate, 3), **numbers)
        losses = {key: values[key] for key in ("train_loss", "validation_loss") if key in values}
        if losses and "epoch" in counts:
            self.tell("epoch", epoch=counts["epoch"], **losses)


def shown_values(values: Mapping[str, Any]) -> str:
    """Return the values of a trial as text."""
    return ", ".join(f"{key} = {value}" for key, value in values.items())


def _still(seconds: float) -> str:
    return f"made no progress for {seconds:.0f} s"


def _killed(code: int) -> str:
    return f"killed by signal {-code}"
