"""Run a command: each piece that the agent starts as a process on a place (its GPUs) of its own, by the queue
that models use; or one process, which tells its own pieces.

A piece that a signal killed, or that made no progress, is restarted alone, with its checkpoints; one that
ended with an exit code is not, unless its device is at fault (device_service.py). Owns order and outcome; a
piece is piece_run.py's, and folders and variables come from command.py.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from trainer.base.errors import Stopped, TrainingFailed
from trainer.base.silence import FIRST_SECONDS
from trainer.cluster.waiting import OwnPieces, Waiting
from trainer.job.pieces.piece import Piece
from trainer.node.command_work import CommandWork, PieceToRun
from trainer.node.device_service import IN_A_ROW, QUICK_SECONDS, Devices, DeviceService
from trainer.node.devices import tried
from trainer.node.other_nodes import Fetches
from trainer.node.outputs import Outputs
from trainer.node.own_user import OwnUser
from trainer.node.piece_run import PieceRun
from trainer.node.report import failed_models
from trainer.node.shared import Node
from trainer.runs.manifest import Command

log = logging.getLogger("trainer.node")
POLL_SECONDS = 0.2
MOST_NAMED = 5  # failures that the run's error names
Start = Callable[[PieceToRun, Devices], tuple[Sequence[str], Mapping[str, str]]]


class CommandRun:
    """Runs a command's pieces, as many at a time as there are places. `start_of` returns the words and the
    variables of a piece on a place.
    """

    def __init__(
        self,
        node: Node,
        command: Command,
        pieces: Sequence[PieceToRun],
        places: Sequence[Devices],
        start_of: Start,
        outputs: Outputs,
        *,
        own_user: OwnUser | None,
        queue: Waiting | None = None,
        fetches: Fetches | None = None,
    ) -> None:
        """`queue` has the pieces that wait, of all nodes if there are several, or the trials of a search;
        `fetches` what other nodes left.
        """
        self._node, self._command, self._outputs, self._own_user = node, command, outputs, own_user
        self._pieces = {piece.title: piece for piece in pieces}
        self._places, self._start_of = places, start_of
        self._queue: Waiting = queue or OwnPieces()
        by: Any = {"pieces": len(pieces), "fetches": fetches, "hear": self._hear}
        self._work = CommandWork(node, command, outputs, own_user, **by)
        self._service = DeviceService(places)
        self._again: dict[str, PieceRun] = {}  # title -> its failed try on a device that is out of service
        self._hopeless = False
        self._unscored: list[PieceRun] = []  # trials that came to their end without a score
        self._broken: dict[Devices, str] = {}  # devices that failed the smoke test -> how
        self._queued = {piece.title: _queued(piece) for piece in pieces}  # as last taken
        self._unsaid: list[str] = []  # models that failed, until nothing can begin them again
        self._lost: list[str] = []  # pieces that failed with the nodes that had them, and why
        self._running: dict[int, PieceRun] = {}  # by place
        self._begun: list[PieceRun] = []

    def tell(self, event: Mapping[str, Any]) -> None:
        """Record an event of the queue, such as the end of a trial that has not begun."""
        self._work.tell(event)
        if event["event"] == "trial_done":
            self._outputs.trial_done(self._work.trial_of(event))

    def _hear(self, event: Mapping[str, Any]) -> None:
        """Let the queue hear an event, and end the trials that have fallen behind."""
        for model in self._queue.hear(event):
            for run in self._running.values():
                if run.piece.identity.get("model") == model:
                    run.end_early()

    def to_the_end(self) -> None:
        """Run every piece and upload what it leaves. Raises TrainingFailed or Stopped."""
        node = self._node
        node.enter("train")
        node.status.message = ""
        if models := [piece.identity for piece in self._pieces.values() if piece.piece]:
            kind = node.status.devices.kind if node.status.devices else ""
            on = {"workers": len(self._places), "device": kind, "data": {}}
            self._work.tell({"event": "started", "models": models, **on})
        try:
            with self._outputs:
                self._run()
                self._leave_out_others()
        finally:
            for run in self._running.values():
                run.close()
            if self._own_user is not None and not self._own_user.kill_all():
                log.warning("it forks faster than it can be killed: its machine ends all the same")
            node.enter("upload")
            self._outputs.finish()
            node.status.scripts = [
                run.result(piece)
                for run in self._begun
                if run.starts and (piece := run.piece.piece) and (run.end or not piece.trial)
            ]
        self._judge()

    def _run(self) -> None:
        self._queue.open(list(self._queued.values()))
        while True:
            for place, devices in enumerate(self._places):
                if place in self._running and self._running[place].has_ended():
                    self._leave(self._running.pop(place))
                    self._look_at_devices()
                while place not in self._running and self._may_begin(devices):
                    if (piece := self._queue.take(held=(), staged=(), elsewhere=())) is None:
                        break
                    self._queued[piece.title] = piece
                    self._begin(self._pieces[piece.title].with_values(piece.values), place)
            self._look_at_devices()
            self._look_at_others()
            self._node.at_work = tuple(run.piece.prefix for run in self._running.values())
            bounds = [run.progress_bound for run in self._running.values()]
            self._node.status.progress_bound = max(bounds, default=FIRST_SECONDS)
            if not self._running and not any(map(self._may_begin, self._places)):
                return
            time.sleep(POLL_SECONDS)

    def _look_at_others(self) -> None:
        """Say which pieces failed here, once nothing begins them again, and take in what other nodes did."""
        if self._node.is_stopping():
            return
        for model in () if self._running else self._unsaid:
            self._queue.done(model)
        self._unsaid = self._unsaid if self._running else []
        for piece, reason in self._queue.look(is_busy=bool(self._running)):
            self._work.tell({"event": "model_failed", **self._pieces[piece.title].identity, "reason": reason})
            self._lost.append(f"{piece.title}: {reason}")
        if not self._running:  # it waits for other nodes, whose own watches end what hangs
            self._node.moved()

    def _may_begin(self, devices: Devices) -> bool:
        """Return whether a waiting piece may begin on a device."""
        if self._queue.is_over(has_devices=True) or not self._node.may_begin():
            return False
        at_work = self._at_work()
        self._hopeless = self._hopeless or self._service.is_hopeless(at_work)
        return not self._hopeless and self._service.may_begin(devices, at_work)

    def _at_work(self) -> dict[Devices, float]:
        """Return the devices at work, with the seconds since their oldest running start."""
        at_work = dict[Devices, float]()
        for run in self._running.values():
            devices = self._places[run.place]
            at_work[devices] = max(at_work.get(devices, 0.0), run.seconds_at_work)
        return at_work

    def _begin(self, piece: PieceToRun, place: int) -> None:
        """Start a piece on a place; the place stays free if it can't be started."""
        words, variables = self._start_of(piece, self._places[place])
        starts, note = 0, ""
        if before := self._again.get(piece.title):
            starts, note = before.starts, f"it failed on {_named(self._places[before.place])} first"
        run = PieceRun(
            self._work, piece, place=place, words=words, variables=variables, starts=starts, note=note
        )
        self._begun.append(run)
        if run.begin():
            self._running[place] = run
        else:
            self._leave(run)

    def _leave(self, run: PieceRun) -> None:
        """Take leave of a piece that has ended; its failure may bring a device back into service."""
        devices, title = self._places[run.place], run.piece.title
        if not run.asked_to_end:
            back = self._service.ended(devices, title, passed=run.done, seconds=run.seconds_at_work)
            if back is not None:
                log.info("%s is back in service: %s failed on %s, too", _named(back), title, _named(devices))
                self._set_out_of_service(back, "")
        run.leave()
        if run.done and run.end == "failed":
            self._unscored.append(run)
            has_score = any(one["best"] for one in self._node.status.progress.trials)
            self._hopeless = self._hopeless or (len(self._unscored) >= IN_A_ROW and not has_score)
        model = str(run.piece.identity.get("model", ""))
        if run.done and not self._node.is_stopping():
            self._queue.done(model)
        elif run.failure:
            self._unsaid.append(model)
        if (run.done or run.end) and (piece := run.piece.piece) and not self._node.is_stopping():
            self._outputs.piece_done(run.piece.prefix, partial(run.result, piece))

    def _look_at_devices(self) -> None:
        """Take broken devices out of service, and queue their failed pieces once more for other devices."""
        if self._command.devices == "tested" and not self._node.is_stopping():
            self._test_devices()
        for devices, titles in self._service.taken_out(self._at_work()).items():
            within = f"within {QUICK_SECONDS:.0f} s each, in a row"
            self._take_out(devices, titles, f"{', '.join(titles)} failed there {within}")

    def _test_devices(self) -> None:
        """Try suspect GPUs by the smoke test that they passed before, once no value is at work on them: one
        may have taken all of their memory.
        """
        at_work = self._at_work()
        for devices in (one for one in self._service.to_test() if one not in at_work):
            known = self._node.status.devices
            names = [f"cuda:{gpu}" for gpu in devices] if known and known.kind == "cuda" else []
            reason = tried(names, folder=self._node.work) if names else ""
            titles = self._service.tested(devices, passed=not reason)
            if reason:
                self._broken[devices] = reason
                self._take_out(devices, titles, reason)

    def _take_out(self, devices: Devices, titles: Sequence[str], why: str) -> None:
        """Name devices that are out of service, and queue the pieces that failed there again, uncharged."""
        line = f"{_named(devices)}: {why}"
        log.warning("out of service: %s", line)
        self._node.status.message = f"out of service: {line}"
        self._set_out_of_service(devices, line)
        for title in titles:
            run = next(run for run in self._begun if run.piece.title == title)
            model = str(run.piece.identity.get("model", ""))
            if model not in self._unsaid:  # other nodes were told that it has failed
                continue
            self._unsaid.remove(model)
            self._begun.remove(run)
            self._again[title] = run
            reason = f"it failed on {_named(devices)}, which is out of service"
            run.tell("retry", worker=run.place, reason=reason, charged=False)
            self._outputs.begun_again(run.piece.prefix)
            self._queue.put(self._queued[title])

    def _set_out_of_service(self, devices: Devices, line: str) -> None:
        """Record a device that is out of service in the receipt; an empty line removes it."""
        if known := self._node.status.devices:
            others = tuple(one for one in known.out_of_service if not one.startswith(f"{_named(devices)}:"))
            self._node.status.devices = replace(known, out_of_service=(*others, line) if line else others)

    def _leave_out_others(self) -> None:
        """Leave the pieces out that are other nodes' matter, unless this node was stopped."""
        if self._node.is_stopping() or not self._node.may_begin():
            return
        over = [run.piece for run in self._begun if run.done or run.failure]
        named = {str(piece.identity.get("model", "")) for piece in over}
        lost = {line.partition(":")[0] for line in self._lost}
        elsewhere = self._queue.elsewhere(named)
        titles = [title for title, piece in self._pieces.items() if piece.identity.get("model") in elsewhere]
        titles = [title for title in titles if title not in lost]
        for title in titles:
            del self._pieces[title]
        if titles:
            self._work.tell({"event": "ended", "elsewhere": titles})

    def _judge(self) -> None:
        """Raise TrainingFailed or Stopped unless everything is done and was sent."""
        title, trials = self._command.title, self._node.status.progress.trials
        failed = [run for run in self._begun if run.failure]
        before = [f"{entry['piece']}: {entry['reason']}" for entry in self._node.status.failed_before]
        before += self._lost
        if len(self._unscored) >= IN_A_ROW and self._hopeless and self._node.may_begin():
            what = f"the first {len(self._unscored)} trials came to their end without a score"
            do = "Name a number of the script's events in search.score."
            raise TrainingFailed(f"{what}, and no other began", why=self._unscored[0].flaw, do=do)
        waits = not self._queue.is_over(has_devices=True)
        if self._service.none_left and waits and not self._node.is_stopping():
            why = "; ".join(f"{_named(devices)}: {reason}" for devices, reason in self._broken.items())
            raise TrainingFailed("no device is left", why=why, do="Launch again, on another machine.")
        if self._hopeless and self._node.may_begin():
            within = f"within {QUICK_SECONDS:.0f} s each"
            what = f"the first {len(failed)} values failed {within}, and no other began"
            do = f"Correct {title} or its values; read `mayfly logs`."
            raise TrainingFailed(what, why=_reason(failed[0]), do=do)
        over = {run.piece.title for run in self._begun if run.done or run.failure}
        if len(over.union(str(one["piece"]) for one in trials)) + len(self._lost) < len(self._pieces):
            raise Stopped(f"{title} was stopped")
        failed = [run for run in failed if not run.end]  # a trial that failed fails no run
        if self._command.tells == "events":
            self._judge_told(failed)
        elif len(self._pieces) == 1 and failed and failed[0].failure:
            raise failed[0].failure
        elif failed or before:
            named = [*map(_reason, failed), *before]
            more = [f"and {len(named) - MOST_NAMED} more"] if len(named) > MOST_NAMED else []
            what = f"{len(named)} of {len(self._pieces) + len(before)} values failed"
            raise TrainingFailed(what, why="; ".join([*named[:MOST_NAMED], *more]), do="Read `mayfly logs`.")
        if lost := self._outputs.lost():
            raise TrainingFailed("a file was not sent", why="; ".join(lost[:MOST_NAMED]), do="Launch again.")

    def _judge_told(self, failed: Sequence[PieceRun]) -> None:
        """Raise TrainingFailed unless a command that tells its own pieces has made all of them, by its own
        error if it told one, and Stopped if it was stopped before.
        """
        status = self._node.status
        models = failed_models(status, "")
        if (failed or models) and self._node.is_stopping():
            raise Stopped(f"{self._command.title} was stopped")
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


def _queued(piece: PieceToRun) -> Piece:
    name = str(piece.identity.get("model", ""))
    known: Any = {"kind": "", "series": (), "source": name, "estimate": 1.0}
    if piece.piece:
        known |= {"estimate": piece.piece.estimate, "trial": piece.piece.trial}
    return Piece(name=name, title=piece.title, values=tuple(piece.values.items()), **known)


def _reason(run: PieceRun) -> str:
    error, title = run.failure, run.piece.title
    told = f"{error.what}{f' ({error.why})' if error.why else ''}" if error else ""
    return ": ".join(filter(None, (title, told)))


def _named(devices: Devices) -> str:
    return f"GPU{'s' if len(devices) > 1 else ''} {', '.join(map(str, devices))}"
