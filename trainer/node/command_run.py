"""Run a command: each piece that the agent starts as a process on a place (its GPUs) of its own, by the queue
that models use; or one process, which tells its own pieces.

A piece that a signal killed is restarted alone, with its checkpoints; one that ended with an exit code is
not, unless its device is at fault (device_service.py). Owns order, events and outcomes; folders and variables
come from command.py.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trainer.base.errors import Stopped, TrainingFailed
from trainer.job.pieces.piece import Piece
from trainer.job.pieces.queue import PieceQueue
from trainer.node.command_process import CommandProcess
from trainer.node.device_service import QUICK_SECONDS, Devices, DeviceService
from trainer.node.events import MOST_BYTES, BestMetric, CommandEvents, EventFile, StepRate
from trainer.node.outputs import Outputs
from trainer.node.own_user import OwnUser
from trainer.node.progress import advance
from trainer.node.report import failed_models
from trainer.node.shared import Node
from trainer.runs.manifest import Command, ManifestPiece

log = logging.getLogger("trainer.node")
POLL_SECONDS = 0.2
MOST_LAST_BLOCKS = 15  # of an ended script's events: it may have left a file without end
MOST_NAMED = 5  # failures that the run's error names


@dataclass(frozen=True, kw_only=True)
class StartedPiece:
    """A process to start: its piece, if the agent tells it, and its folders and file."""

    piece: ManifestPiece | None
    folder: Path  # to run in
    copy_of: Path | None  # copied to `folder` when it begins; None if `folder` exists already
    prefix: str  # of its files in OUT: its name and a slash, or nothing
    events: Path

    @property
    def title(self) -> str:
        """Return its display name, '' without a piece."""
        return self.piece.piece if self.piece else ""

    @property
    def values(self) -> Mapping[str, str]:
        """Return the values that it runs over."""
        return self.piece.values if self.piece else {}

    @property
    def identity(self) -> dict[str, Any]:
        """Return its piece in events."""
        return {"model": self.piece.model, **self.piece.identity} if self.piece else {}


@dataclass(frozen=True, kw_only=True)
class CommandStart:
    """Words and environment of a process."""

    words: Sequence[str]
    variables: Mapping[str, str]


@dataclass(kw_only=True)
class _Life:
    """A piece that has begun: its process and its outcome."""

    piece: StartedPiece
    place: int
    start: CommandStart
    events: CommandEvents
    rate: StepRate = field(default_factory=StepRate)
    best: BestMetric = field(default_factory=BestMetric)
    began: float
    started: float = 0.0  # when it was last started
    open: ExitStack = field(default_factory=ExitStack)
    process: CommandProcess | None = None
    starts: int = 0
    exit_code: int = 0
    seconds: float = 0.0
    last_lines: list[str] = field(default_factory=list)
    asked_to_end: bool = False
    late: bool = False  # it exceeded its time limit
    done: bool = False
    failure: TrainingFailed | None = None
    note: str = ""


class CommandRun:
    """Runs a command's pieces, as many at a time as there are places. `start_of` returns words and variables
    of a piece on a place.
    """

    def __init__(
        self,
        node: Node,
        command: Command,
        pieces: Sequence[StartedPiece],
        places: Sequence[tuple[int, ...]],
        start_of: Callable[[StartedPiece, tuple[int, ...]], CommandStart],
        outputs: Outputs,
        *,
        own_user: OwnUser | None,
    ) -> None:
        self._node, self._command, self._outputs, self._own_user = node, command, outputs, own_user
        self._pieces = {piece.title: piece for piece in pieces}
        self._places, self._start_of = places, start_of
        self._service = DeviceService(places)
        self._again: dict[str, _Life] = {}  # title -> its failed try on a device that is out of service
        self._hopeless = False
        self._queue = PieceQueue(map(_queued, pieces))
        self._told = EventFile(node.work / "events" / "events.jsonl", most_bytes=MOST_BYTES[command.tells])
        self._running: dict[int, _Life] = {}  # by place
        self._begun: list[_Life] = []

    def to_the_end(self) -> None:
        """Run every piece and upload what it leaves. Raises TrainingFailed or Stopped."""
        node = self._node
        node.enter("train")
        node.status.message = ""
        if models := [piece.identity for piece in self._pieces.values() if piece.piece]:
            kind = node.status.devices.kind if node.status.devices else ""
            on = {"workers": len(self._places), "device": kind, "data": {}}
            self._tell({"event": "started", "models": models, **on})
        try:
            with self._outputs:
                self._run()
        finally:
            for life in self._running.values():
                life.open.close()
            if self._own_user is not None and not self._own_user.kill_all():
                log.warning("it forks faster than it can be killed: its machine ends all the same")
            node.enter("upload")
            self._outputs.finish()
            began = [(life, piece) for life in self._begun if life.starts and (piece := life.piece.piece)]
            node.status.scripts = [self._end(life, piece) for life, piece in began]
        self._judge()

    @property
    def _title(self) -> str:
        return self._command.title

    def _run(self) -> None:
        while True:
            for number, devices in enumerate(self._places):
                if number in self._running and self._has_ended(self._running[number]):
                    del self._running[number]
                    self._look_at_devices()
                while number not in self._running and self._may_begin(devices):
                    self._begin(self._pieces[self._queue.take().title], number)
            self._look_at_devices()
            if not self._running and not any(map(self._may_begin, self._places)):
                return
            time.sleep(POLL_SECONDS)

    def _may_begin(self, devices: Devices) -> bool:
        """Return whether a waiting piece may begin on a device."""
        if not len(self._queue) or self._node.is_stopping():
            return False
        at_work = self._at_work()
        self._hopeless = self._hopeless or self._service.is_hopeless(at_work)
        return not self._hopeless and self._service.may_begin(devices, at_work)

    def _at_work(self) -> dict[Devices, float]:
        """Return the devices at work, with the seconds since their oldest running start."""
        now, at_work = time.monotonic(), dict[Devices, float]()
        for life in self._running.values():
            devices = self._places[life.place]
            at_work[devices] = max(at_work.get(devices, 0.0), now - life.started)
        return at_work

    def _look_at_devices(self) -> None:
        """Take broken devices out of service, and queue their failed pieces once more for other devices."""
        for devices, titles in self._service.taken_out(self._at_work()).items():
            named = (
                f"{_named(devices)}: {', '.join(titles)} failed there within {QUICK_SECONDS:.0f} s each, in"
                " a row"
            )
            log.warning("out of service: %s", named)
            self._set_out_of_service(devices, named)
            for title in titles:
                life = next(life for life in self._begun if life.piece.title == title)
                self._begun.remove(life)
                self._again[title] = life
                reason = f"it failed on {_named(devices)}, which is out of service"
                self._tell_of(life, "retry", worker=life.place, reason=reason)
                self._queue.put(_queued(life.piece))

    def _set_out_of_service(self, devices: Devices, line: str) -> None:
        """Record a device that is out of service in the receipt; an empty line removes it."""
        if known := self._node.status.devices:
            others = tuple(one for one in known.out_of_service if not one.startswith(f"{_named(devices)}:"))
            self._node.status.devices = replace(known, out_of_service=(*others, line) if line else others)

    def _begin(self, piece: StartedPiece, number: int) -> None:
        """Start a piece on a place; a piece that can't be started has failed, and the place stays free."""
        start = self._start_of(piece, self._places[number])
        life = _Life(
            piece=piece,
            place=number,
            start=start,
            events=CommandEvents(piece.events, self._node.redaction, tells=self._command.tells),
            began=time.monotonic(),
        )
        if before := self._again.get(piece.title):
            life.starts, life.note = before.starts, f"it failed on {_named(self._places[before.place])} first"
        self._begun.append(life)
        if self._has_files(life) and self._start(life):
            self._running[number] = life
        else:
            self._leave(life)

    def _has_files(self, life: _Life) -> bool:
        """Copy the command's files for a value, since several run at once and may write beside them; return
        whether they fit.
        """
        piece = life.piece
        if piece.copy_of is None:
            return True
        try:
            shutil.copytree(piece.copy_of, piece.folder)
            if self._own_user is not None:
                self._own_user.give(piece.folder)
        except OSError as error:  # the disk is full
            do = "Have it keep less on its disk, or give the machine a larger one."
            what = f"{self._title}'s files can't be copied for it"
            life.failure = TrainingFailed(what, why=str(error), do=do)
            self._tell_of(life, "model_failed", reason=what)
            return False
        return True

    def _start(self, life: _Life) -> bool:
        """Start the command; return whether this machine can run it."""
        grace = self._node.place.stop_seconds
        several = len(self._pieces) > 1
        alone = self._own_user is not None and not several
        try:
            process = CommandProcess(
                life.start.words,
                folder=life.piece.folder,
                environment=life.start.variables,
                own_user=self._own_user,
                grace_seconds=grace,
                redaction=self._node.redaction,
                name=life.piece.title if several else "",
                share=1 / len(self._pieces),
                mark="" if alone else f"MAYFLY_EVENTS={life.piece.events}",
            )
        except TrainingFailed as error:
            life.failure = error
            self._tell_of(life, "model_failed", reason=error.what)
            return False
        life.process = life.open.enter_context(process)
        life.starts, life.started = life.starts + 1, time.monotonic()
        self._tell_of(life, "model_started", worker=life.place)
        log.info("started%s: %s", f" {life.piece.title}" if several else "", " ".join(life.start.words))
        return True

    def _has_ended(self, life: _Life) -> bool:
        """Follow a running piece, restarting it if a signal killed it; return whether it has ended."""
        assert life.process is not None
        if (code := life.process.poll()) is None:
            late = 0 < self._command.seconds < time.monotonic() - life.started
            life.late, life.asked_to_end = life.late or late, life.asked_to_end or self._node.is_stopping()
            if life.late or life.asked_to_end:
                life.process.stop()
            self._follow(life)
            return False
        life.open.close()
        self._follow(life)
        for _ in range(MOST_LAST_BLOCKS):  # it may write all of its events as it ends
            if life.events.has_more:
                self._follow(life)
        life.exit_code, life.last_lines = code, life.process.output.last_lines
        name = life.piece.title if life.piece.values else self._title
        log.info("%s ended with exit code %d", name, code)
        if life.events.unsound and not life.piece.piece:
            log.warning("%d lines of its events could not be read", life.events.unsound)
        may_start = not (life.late or self._node.is_stopping()) and life.starts <= self._command.restarts
        if code < 0 and may_start:
            self._tell_of(life, "retry", worker=life.place, reason=f"it was {_killed(code)}")
            if self._start(life):
                return False
        else:
            self._decide(life)
        self._leave(life)
        return True

    def _decide(self, life: _Life) -> None:
        """Record the outcome of a piece that is not restarted."""
        if life.asked_to_end and life.piece.piece:  # not done, even if it exits with 0
            return
        if life.exit_code == 0 and not life.late:
            life.done = True
            self._tell_of(life, "script_done", worker=life.place)
            return
        how = f"ended with exit code {life.exit_code}"
        if life.late:
            how = f"did not end within {self._command.seconds / 60:.0f} minutes"
        elif life.exit_code < 0:
            how = f"was {_killed(life.exit_code)}"
        why = life.last_lines[-1] if life.last_lines else "it printed nothing"
        life.failure = TrainingFailed(f"{self._title} {how}", why=why, do="Read `mayfly logs`.")
        self._tell_of(life, "model_failed", worker=life.place, reason=f"it {how}: {why}")

    def _leave(self, life: _Life) -> None:
        now, devices = time.monotonic(), self._places[life.place]
        life.seconds = now - life.began
        if not life.asked_to_end:
            seconds = now - life.started if life.started else 0.0
            if back := self._service.ended(devices, life.piece.title, passed=life.done, seconds=seconds):
                log.info(
                    "%s is back in service: %s failed on %s, too",
                    _named(back),
                    life.piece.title,
                    _named(devices),
                )
                self._set_out_of_service(back, "")
        if life.piece.copy_of is not None:
            shutil.rmtree(life.piece.folder, ignore_errors=True)

    def _follow(self, life: _Life) -> None:
        """Take in the new events of a command: as they are, or as numbers of its piece."""
        for event in life.events.new():
            if life.piece.piece:
                self._tell_numbers(life, event)
                continue
            try:
                self._outputs.announced.add(event)
                self._tell(event)
            except (KeyError, TypeError, ValueError, AttributeError):  # none of ours
                life.events.unsound += 1

    def _tell_numbers(self, life: _Life, event: Mapping[str, Any]) -> None:
        counts, values = event["counts"], event["values"]
        life.best.add(event)
        if "steps" in counts or "epochs" in counts:  # a progress bar needs both; a missing one counts as one
            counts = {"step": 0, "steps": 1, "epoch": 1, "epochs": 1, **counts}
        rate = life.rate.update(counts["step"]) if "step" in event["counts"] else life.rate.value
        numbers = {"rate": round(rate, 3), "unit": "steps", "loss": event["loss"], "values": values}
        self._tell_of(life, "script", **counts, worker=life.place, **numbers)
        losses = {key: values[key] for key in ("train_loss", "validation_loss") if key in values}
        if losses and "epoch" in event["counts"]:
            self._tell_of(life, "epoch", epoch=counts["epoch"], **losses)

    def _end(self, life: _Life, piece: ManifestPiece) -> dict[str, Any]:
        """Return the receipt's entry of a piece that began."""
        notes = [life.note] if life.note else []
        notes += self._outputs.notes(life.piece.prefix)
        if life.events.unsound:
            notes.append(f"{life.events.unsound:,} lines of its events could not be read")
        return {
            **piece.identity,
            "values": dict(piece.values),
            "sha256": self._command.sha256,
            "done": life.done,
            "exit_code": life.exit_code,
            "starts": life.starts,
            "best": life.best.to_dict(),
            "seconds": round(life.seconds or time.monotonic() - life.began, 3),
            "last_lines": life.last_lines,
            "notes": notes,
        }

    def _judge(self) -> None:
        """Raise TrainingFailed or Stopped unless everything is done and was sent."""
        done = [life for life in self._begun if life.done]
        failed = [life for life in self._begun if life.failure is not None]
        if self._hopeless and not self._node.is_stopping():
            what = (
                f"the first {len(failed)} values failed within {QUICK_SECONDS:.0f} s each, and no other began"
            )
            do = f"Correct {self._title} or its values; read `mayfly logs`."
            raise TrainingFailed(what, why=_reason(failed[0]), do=do)
        if len(done) + len(failed) < len(self._pieces):
            raise Stopped(f"{self._title} was stopped")
        if self._command.tells == "events":
            self._judge_told(failed)
        elif len(self._pieces) == 1 and failed and failed[0].failure:
            raise failed[0].failure
        elif failed:
            named = [_reason(life) for life in failed[:MOST_NAMED]]
            more = [f"and {len(failed) - MOST_NAMED} more"] if len(failed) > MOST_NAMED else []
            what = f"{len(failed)} of {len(self._pieces)} values failed"
            raise TrainingFailed(what, why="; ".join([*named, *more]), do="Read `mayfly logs`.")

    def _judge_told(self, failed: Sequence[_Life]) -> None:
        """Raise TrainingFailed unless a command that tells its own pieces has made all of them, by its own
        error if it told one.
        """
        status, lost = self._node.status, self._outputs.announced.lost
        models = failed_models(status, "")
        if (failed or models) and (error := status.progress.error):
            what, why, do = (str(error[key] or "") for key in ("what", "why", "do"))
            raise TrainingFailed(what, why=why, do=do)
        if models:
            reasons = [f"{entry['piece']}: {entry['reason']}" for entry in models if entry["reason"]]
            what = f"{len(models)} of {len(status.progress.models)} models failed"
            why = "; ".join(reasons or map(_reason, failed))
            raise TrainingFailed(what, why=why, do="Read `mayfly logs`.")
        if failed and failed[0].failure:
            raise failed[0].failure
        if lost:
            raise TrainingFailed("a file was not sent", why="; ".join(lost[:MOST_NAMED]), do="Launch again.")

    def _tell_of(self, life: _Life, kind: str, **more: Any) -> None:
        """Tell an event of a piece, unless its command tells its own."""
        if life.piece.piece:
            self._tell({"event": kind, **life.piece.identity, **more})

    def _tell(self, event: Mapping[str, Any]) -> None:
        self._node.status.progress = advance(self._node.status.progress, event)
        self._told.write(event)


def _queued(piece: StartedPiece) -> Piece:
    name = str(piece.identity.get("model", ""))
    estimate = piece.piece.estimate if piece.piece else 1.0
    return Piece(name=name, title=piece.title, kind="", series=(), source=name, estimate=estimate)


def _reason(life: _Life) -> str:
    error, title = life.failure, life.piece.title
    told = f"{error.what}{f' ({error.why})' if error.why else ''}" if error else ""
    return ": ".join(filter(None, (title, told)))


def _named(devices: Devices) -> str:
    return f"GPU{'s' if len(devices) > 1 else ''} {', '.join(map(str, devices))}"


def _killed(code: int) -> str:
    return f"killed by signal {-code}"
