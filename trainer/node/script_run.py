"""Run a script's pieces, one for each of its values, each on a place (its GPUs) of its own, by the queue that
models use.

A piece that a signal killed is restarted alone, with its checkpoints; one that ended with an exit code is
not, unless its device is at fault (device_service.py). Owns order, events and outcomes; folders and variables
come from script.py.
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
from trainer.job.script import KIND, ScriptSettings
from trainer.node.device_service import QUICK_SECONDS, Devices, DeviceService
from trainer.node.progress import advance
from trainer.node.script_events import BestMetric, EventFile, ScriptEvents, StepRate
from trainer.node.script_outputs import Outputs
from trainer.node.script_process import ScriptProcess
from trainer.node.script_user import ScriptUser
from trainer.node.shared import Node

log = logging.getLogger("trainer.node")
POLL_SECONDS = 0.2
GRACE_SECONDS = 30.0  # between SIGTERM and SIGKILL; a shutdown leaves 75 s, of which the upload needs some
REHEARSAL_GRACE_SECONDS = 5.0  # of the 10 s that a rehearsal's machine has
MOST_LAST_BLOCKS = 15  # of an ended script's events: it may have left a file without end
MOST_NAMED = 5  # failures that the run's error names
IDENTITY = ("piece", "kind", "series", "fold", "seed")


@dataclass(frozen=True, kw_only=True)
class ScriptPiece:
    """A piece of the run: its identity in events, its values, and its folders and file."""

    model: Mapping[str, Any]  # its identity in events
    values: Mapping[str, str]  # {} where the script runs once
    folder: Path  # to run in
    copy_of: Path | None  # copied to `folder` when the piece begins; None if `folder` exists already
    prefix: str  # of its files in OUT: its name and a slash, or nothing
    events: Path
    estimate: float = 1.0

    @property
    def title(self) -> str:
        """Return its display name."""
        return str(self.model["piece"])


@dataclass(frozen=True, kw_only=True)
class ScriptStart:
    """Command and environment of a script's process."""

    words: Sequence[str]
    variables: Mapping[str, str]


@dataclass(kw_only=True)
class _Life:
    """A piece that has begun: its process and its outcome."""

    piece: ScriptPiece
    place: int
    start: ScriptStart
    events: ScriptEvents
    rate: StepRate = field(default_factory=StepRate)
    best: BestMetric = field(default_factory=BestMetric)
    began: float
    started: float = 0.0  # when it was last started
    open: ExitStack = field(default_factory=ExitStack)
    process: ScriptProcess | None = None
    starts: int = 0
    exit_code: int = 0
    seconds: float = 0.0
    last_lines: list[str] = field(default_factory=list)
    asked_to_end: bool = False
    done: bool = False
    failure: TrainingFailed | None = None
    note: str = ""


class ScriptRun:
    """Runs a script's pieces, as many at a time as there are places. `start_of` returns a piece's command for
    a place.
    """

    def __init__(
        self,
        node: Node,
        script: ScriptSettings,
        pieces: Sequence[ScriptPiece],
        places: Sequence[tuple[int, ...]],
        start_of: Callable[[ScriptPiece, tuple[int, ...]], ScriptStart],
        *,
        script_user: ScriptUser | None,
    ) -> None:
        self._node, self._script, self._script_user = node, script, script_user
        self._pieces = {piece.title: piece for piece in pieces}
        self._places, self._start_of = places, start_of
        self._service = DeviceService(places)
        self._again: dict[str, _Life] = {}  # title -> its failed try on a device that is out of service
        self._hopeless = False
        self._queue = PieceQueue(_queued(piece) for piece in pieces)
        self._told = EventFile(node.work / "events" / "events.jsonl")
        self._running: dict[int, _Life] = {}  # by place
        self._begun: list[_Life] = []

    def to_the_end(self, outputs: Outputs, *, sha256: str) -> int:
        """Run every piece, upload its outputs and return 0. Raises TrainingFailed or Stopped.

        `sha256` is the script's hash, under which later launches look up its duration.
        """
        node = self._node
        node.enter("train")
        node.status.message = ""
        models = [dict(piece.model) for piece in self._pieces.values()]
        kind = node.status.devices.kind if node.status.devices else ""
        self._tell(
            {"event": "started", "models": models, "workers": len(self._places), "device": kind, "data": {}}
        )
        try:
            with outputs:
                self._run()
        finally:
            for life in self._running.values():
                life.open.close()
            if self._script_user is not None and not self._script_user.kill_all():
                log.warning("the script forks faster than it can be killed: its machine ends all the same")
            node.enter("upload")
            outputs.finish()
            node.status.files = [outputs.sent[path] for path in sorted(outputs.sent)]
            node.status.scripts = [self._end(life, sha256, outputs) for life in self._begun if life.starts]
        return self._ended()

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
                self._tell({"event": "retry", **life.piece.model, "worker": life.place, "reason": reason})
                self._queue.put(_queued(life.piece))

    def _set_out_of_service(self, devices: Devices, line: str) -> None:
        """Record a device that is out of service in the receipt; an empty line removes it."""
        if known := self._node.status.devices:
            others = tuple(one for one in known.out_of_service if not one.startswith(f"{_named(devices)}:"))
            self._node.status.devices = replace(known, out_of_service=(*others, line) if line else others)

    def _begin(self, piece: ScriptPiece, number: int) -> None:
        """Start a piece on a place; a piece that can't be started has failed, and the place stays free."""
        start = self._start_of(piece, self._places[number])
        life = _Life(
            piece=piece,
            place=number,
            start=start,
            events=ScriptEvents(piece.events, self._node.redaction),
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
        """Copy the script's files for a value, since several run at once and may write beside them; return
        whether they fit.
        """
        piece = life.piece
        if piece.copy_of is None:
            return True
        try:
            shutil.copytree(piece.copy_of, piece.folder)
            if self._script_user is not None:
                self._script_user.give(piece.folder)
        except OSError as error:  # the disk is full
            do = "Have the script keep less on its disk, or give the machine a larger one."
            life.failure = TrainingFailed("the script's files can't be copied for it", why=str(error), do=do)
            self._tell({"event": "model_failed", **piece.model, "reason": life.failure.what})
            return False
        return True

    def _start(self, life: _Life) -> bool:
        """Start the command; return whether this machine can run it."""
        grace = REHEARSAL_GRACE_SECONDS if self._node.rehearsal else GRACE_SECONDS
        several = len(self._pieces) > 1
        try:
            process = ScriptProcess(
                life.start.words,
                folder=life.piece.folder,
                environment=life.start.variables,
                script_user=self._script_user,
                grace_seconds=grace,
                redaction=self._node.redaction,
                name=life.piece.title if several else "",
                share=1 / len(self._pieces),
                mark=f"MAYFLY_EVENTS={life.piece.events}" if several else "",
            )
        except TrainingFailed as error:
            life.failure = error
            self._tell({"event": "model_failed", **life.piece.model, "reason": error.what})
            return False
        life.process = life.open.enter_context(process)
        life.starts, life.started = life.starts + 1, time.monotonic()
        self._tell({"event": "model_started", **life.piece.model, "worker": life.place})
        log.info("started%s: %s", f" {life.piece.title}" if several else "", " ".join(life.start.words))
        return True

    def _has_ended(self, life: _Life) -> bool:
        """Follow a running piece, restarting it if a signal killed it; return whether it has ended."""
        assert life.process is not None
        if (code := life.process.poll()) is None:
            if self._node.is_stopping():
                life.asked_to_end = True
                life.process.stop()
            self._follow(life)
            return False
        life.open.close()
        self._follow(life)
        for _ in range(MOST_LAST_BLOCKS):  # a script may write all of its events as it ends
            if life.events.has_more:
                self._follow(life)
        life.exit_code, life.last_lines = code, life.process.output.last_lines
        log.info("%s ended with exit code %d", life.piece.title if life.piece.values else "the script", code)
        if code < 0 and not self._node.is_stopping() and life.starts <= self._script.restarts:
            self._tell(
                {
                    "event": "retry",
                    **life.piece.model,
                    "worker": life.place,
                    "reason": f"it was {_killed(code)}",
                }
            )
            if self._start(life):
                return False
        else:
            self._decide(life)
        self._leave(life)
        return True

    def _decide(self, life: _Life) -> None:
        """Record the outcome of a piece that is not restarted."""
        if life.asked_to_end:  # not done, even if it exits with 0
            return
        piece = {**life.piece.model, "worker": life.place}
        if life.exit_code == 0:
            life.done = True
            self._tell({"event": "script_done", **piece})
            return
        how = (
            f"was {_killed(life.exit_code)}"
            if life.exit_code < 0
            else f"ended with exit code {life.exit_code}"
        )
        why = life.last_lines[-1] if life.last_lines else "it printed nothing"
        life.failure = TrainingFailed(f"the script {how}", why=why, do="Read `mayfly logs`.")
        self._tell({"event": "model_failed", **piece, "reason": f"it {how}: {why}"})

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
        """Turn a script's new events into ours."""
        model = life.piece.model
        for event in life.events.new():
            counts, values = event["counts"], event["values"]
            life.best.add(event)
            if (
                "steps" in counts or "epochs" in counts
            ):  # a progress bar needs both; a missing one counts as one
                counts = {"step": 0, "steps": 1, "epoch": 1, "epochs": 1, **counts}
            rate = life.rate.update(counts["step"]) if "step" in event["counts"] else life.rate.value
            numbers = {
                "rate": round(rate, 3),
                "unit": "steps",
                "worker": life.place,
                "loss": event["loss"],
                "values": values,
            }
            self._tell({"event": "script", **model, **counts, **numbers})
            losses = {key: values[key] for key in ("train_loss", "validation_loss") if key in values}
            if losses and "epoch" in event["counts"]:
                self._tell({"event": "epoch", **model, "epoch": counts["epoch"], **losses})

    def _end(self, life: _Life, sha256: str, outputs: Outputs) -> dict[str, Any]:
        """Return the receipt's entry of a piece that began."""
        left_out = (
            [f"{life.events.unsound:,} lines of its events could not be read"] if life.events.unsound else []
        )
        return {
            **{key: life.piece.model[key] for key in IDENTITY},
            "values": dict(life.piece.values),
            "sha256": sha256,
            "done": life.done,
            "exit_code": life.exit_code,
            "starts": life.starts,
            "best": life.best.to_dict(),
            "seconds": round(life.seconds or time.monotonic() - life.began, 3),
            "last_lines": life.last_lines,
            "notes": [*([life.note] if life.note else []), *outputs.notes(life.piece.prefix), *left_out],
        }

    def _ended(self) -> int:
        done = [life for life in self._begun if life.done]
        failed = [life for life in self._begun if life.failure is not None]
        if self._hopeless and not self._node.is_stopping():
            what = (
                f"the first {len(failed)} values failed within {QUICK_SECONDS:.0f} s each, and no other began"
            )
            raise TrainingFailed(
                what, why=_reason(failed[0]), do="Correct the script or its values; read `mayfly logs`."
            )
        if len(done) + len(failed) < len(self._pieces):
            raise Stopped("the script was stopped")
        if not failed:
            return 0
        if len(self._pieces) == 1 and failed[0].failure:
            raise failed[0].failure
        named = [_reason(life) for life in failed[:MOST_NAMED]]
        more = [f"and {len(failed) - MOST_NAMED} more"] if len(failed) > MOST_NAMED else []
        what = f"{len(failed)} of {len(self._pieces)} values failed"
        raise TrainingFailed(what, why="; ".join([*named, *more]), do="Read `mayfly logs`.")

    def _tell(self, event: dict[str, Any]) -> None:
        self._told.write(event)
        self._node.status.progress = advance(self._node.status.progress, event)


def _queued(piece: ScriptPiece) -> Piece:
    name = str(piece.model["model"])
    return Piece(name=name, title=piece.title, kind=KIND, series=(), source=name, estimate=piece.estimate)


def _reason(life: _Life) -> str:
    error = life.failure
    return (
        f"{life.piece.title}: {error.what}{f' ({error.why})' if error.why else ''}"
        if error
        else life.piece.title
    )


def _named(devices: Devices) -> str:
    return f"GPU{'s' if len(devices) > 1 else ''} {', '.join(map(str, devices))}"


def _killed(code: int) -> str:
    return f"killed by signal {-code}"
