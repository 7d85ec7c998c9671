"""The studies of a search: which trials begin, which end early, and which values their models get.

A study's state is what its trials ended with, heard in events: nothing is stored but these. Trials wait in a
queue for each shape, since the models of a pack share one; a study's model waits for its last trial.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from trainer.base.errors import UsageError
from trainer.base.extras import needs
from trainer.base.text import counted
from trainer.cluster.proposals import Pruner, propose
from trainer.cluster.waiting import OwnPieces, Waiting
from trainer.job.job import Job
from trainer.job.pieces.piece import Piece
from trainer.job.pieces.queue import PieceQueue
from trainer.job.search import SearchSettings, Values, job_of
from trainer.job.trials import TrialEnd, told_of

Emit = Callable[[dict[str, Any]], None]


def trial_done(piece: Piece, end: TrialEnd, **more: Any) -> dict[str, Any]:
    """Return the event of a trial's end."""
    return {"event": "trial_done", **piece.identity, "study": piece.study, **end.to_dict(), **more}


def failed_trial(piece: Piece, failure: Mapping[str, Any]) -> dict[str, Any]:
    """Return the end of a trial whose training failed, by the event of a model that did: it fails no run."""
    more = {key: value for key, value in failure.items() if key not in ("event", *piece.identity)}
    return trial_done(piece, TrialEnd(trial=piece.trial, values=piece.values, end="failed"), **more)


def check_bounds(search: SearchSettings, *, usd_per_hour: float | None) -> None:
    """Raise UsageError for a bound that this machine can't keep, and ConfigError without optuna."""
    if search.over and search.dollars and usd_per_hour is None:
        why, do = "it has no price here", "Leave it out, or set search.within."
        raise UsageError(f"search.dollars is {search.dollars:g}, and the machine is yours", why=why, do=do)
    if search.asks_optuna:
        needs("optuna")


def bounds_of(
    search: SearchSettings, *, seconds: Callable[[], float], usd_per_hour: float | None
) -> Callable[[], bool]:
    """Return whether a further trial may begin at this moment. `seconds`: that the machine has cost so far;
    `usd_per_hour`: of all machines.
    """

    def may_begin() -> bool:
        paid = seconds()
        usd = (usd_per_hour or 0.0) * paid / 3600
        return paid < search.within_seconds and not 0 < search.dollars <= usd

    return may_begin


@dataclass(kw_only=True)
class _Study:
    """The trials of one model, or of a script."""

    model: Piece | None = None  # None of a script's
    left: set[str] = field(default_factory=set)  # names of those that are not over
    running: dict[int, Values] = field(default_factory=dict)
    ended: list[TrialEnd] = field(default_factory=list)
    pruner: Pruner | None = None  # None if none of them ends early
    reasons: list[str] = field(default_factory=list)  # of trials that failed

    @property
    def flaw(self) -> str:
        """Return that none of its trials has a score, with the first reason; '' if one has."""
        if any(one.score is not None for one in self.ended):
            return ""
        first = f": {self.reasons[0]}" if self.reasons else ""
        return f"none of its {counted(len(self.ended), 'trial')} has a score{first}"


class StudyPieces(OwnPieces):
    """The pieces of a job that searches. Machines share whole studies: the trials of one begin, end early and
    are compared on the machine that takes it.
    """

    def __init__(
        self,
        job: Job,
        emit: Emit,
        *,
        known: Mapping[str, TrialEnd],
        is_open: Callable[[], bool] = lambda: True,
        shared: Waiting | None = None,
    ) -> None:
        """`known`: what trials ended with before, by name; `is_open`: whether another may begin; `shared`:
        the studies of several machines, each by its model.
        """
        super().__init__()
        self._job, self._emit, self._known, self._is_open = job, emit, dict(known), is_open
        self._shared, self.handles = shared, shared.handles if shared else ()
        self._pieces: dict[str, list[Piece]] = {}  # of each study, by the name of its model; "": of a script
        self._all: set[str] = set()  # names of those that this attempt has to end
        self._studies: dict[str, _Study] = {}  # by the name of their model
        self._begun: dict[str, Piece] = {}  # trials under way, by name
        # Pieces that wait, which `_queue` has, too: by shape, and trials without known values.
        self._queues: dict[str, PieceQueue] = {}
        self._unknown: deque[Piece] = deque()
        self._failed: list[tuple[Piece, str]] = []  # models without a trial that has a score
        self.unbegun: set[str] = set()  # trials that ended before they began

    def open(self, pieces: list[Piece]) -> None:
        models = [piece.name for piece in pieces if not piece.trial]
        self._pieces = {name: [] for name in ([""] if self._job.script.command else models)}
        left = [piece for piece in pieces if piece.study in self._pieces]  # the models of others are finished
        for piece in left:
            self._pieces[piece.study].append(piece)
        self._all = {piece.name for piece in left} - self._known.keys()
        if self._shared is None:
            self._begin(self._pieces)
        else:
            self._shared.open([self._whole(name) for name in self._pieces])

    def _whole(self, name: str) -> Piece:
        """Return a study as machines deal it: its model, with the estimate of all of its pieces."""
        model = next(piece for piece in self._pieces[name] if not piece.trial)
        return replace(model, estimate=sum(piece.estimate for piece in self._pieces[name]))

    def _begin(self, names: Iterable[str]) -> None:
        """Let the pieces of studies begin here."""
        for name in names:
            study = self._studies[name] = _Study()
            study.model = next((piece for piece in self._pieces[name] if not piece.trial), None)
            study.pruner = Pruner(self._job.search.better) if self._job.search.prunes else None
            if study.model is None:  # a script's pieces are those that are left
                study.ended = list(self._known.values())
        begun = [piece for name in names for piece in self._pieces[name] if piece.trial]
        for piece in sorted(begun, key=lambda piece: piece.trial):
            if piece.name not in self._known:
                self.put(piece)
            elif piece.study:
                self._studies[piece.study].ended.append(self._known[piece.name])
        for name in names:
            self._release(self._studies[name])

    def _deal(self, **asked: Any) -> None:
        """Begin a study that machines share, if there is one. What its trials ended with on a machine that is
        lost counts.
        """
        study = self._shared.take(**asked) if self._shared else None
        if study is None:
            return
        ended = {one.trial: one for one in study.trials}
        for piece in self._pieces[study.name]:
            end = ended.get(piece.trial)
            if end is not None and end.values == (piece.values or end.values):
                self._known.setdefault(piece.name, end)
        self._begin([study.name])

    def take(
        self,
        *,
        held: Collection[str],
        staged: Collection[str],
        elsewhere: Collection[str],
        shape: str = "",
    ) -> Piece | None:
        while True:
            if not (self._unknown or self._waits):  # machines share the others
                self._deal(held=held, staged=staged, elsewhere=elsewhere, shape=shape)
            if not self._is_open():
                self._leave_out()
            waiting = [queue for name, queue in self._queues.items() if len(queue) and shape in ("", name)]
            if waiting:
                break
            if not self._unknown or self._waits:  # one of another shape goes first, to a free worker
                return None
            self._propose(self._unknown.popleft())
        queue = max(waiting, key=lambda one: one.peek().estimate)
        piece = queue.take(held=held, staged=staged, elsewhere=elsewhere)
        self._queue.remove(piece)
        if piece.trial:
            self._begun[piece.name] = piece
            self._studies[piece.study].running[piece.trial] = piece.values
        return piece

    def put(self, piece: Piece) -> None:
        super().put(piece)
        if piece.trial:
            study = self._studies[piece.study]
            study.left.add(piece.name)
            # that of a device which is out of service since
            study.ended = [one for one in study.ended if one.trial != piece.trial]
        if piece.trial and not piece.values:
            self._unknown.append(piece)
        else:
            self._queues.setdefault(piece.shape, PieceQueue(())).put(piece)

    def hear(self, event: Mapping[str, Any]) -> Collection[str]:
        if (piece := self._begun.get(str(event.get("model", "")))) is None:
            return ()
        study = self._studies[piece.study]
        if event["event"] == "trial_done":
            del self._begun[piece.name]
            self._over(study, piece, event)
        elif study.pruner and (at := _reported(event, self._job.search)):
            report, score = at
            return (piece.name,) if study.pruner.is_behind(piece.name, report=report, score=score) else ()
        return ()

    @property
    def flaw(self) -> str:
        """Return why a script's search that is over has failed; '' if it has not."""
        return self._studies[""].flaw

    def done(self, model: str) -> None:
        self._studies.pop(model, None)
        if self._shared and model in self._pieces:
            self._shared.done(model)

    def look(self, *, is_busy: bool) -> list[tuple[Piece, str]]:
        failed, self._failed = self._failed, []
        return failed + (self._shared.look(is_busy=is_busy) if self._shared else [])

    def leave_to_others(self, pieces: Collection[Piece]) -> bool:
        failed = {model.name for model, _ in self._failed}
        whole = [self._whole(name) for name in self._studies if name not in failed]
        if not (self._shared and self._shared.leave_to_others(whole)):
            return False
        for waiting in (self._studies, self._queues, self._unknown, self._begun):
            waiting.clear()
        super().open([])
        return True

    def is_over(self, *, has_devices: bool) -> bool:
        if has_devices and (self._unknown or self._waits or self._failed):
            return False
        return self._shared is None or self._shared.is_over(has_devices=has_devices)

    def elsewhere(self, here: Collection[str]) -> set[str]:
        return self._all - set(here) - self.unbegun if self._shared else set()

    @property
    def _waits(self) -> bool:
        """Return whether a piece waits whose values are known."""
        return any(map(len, self._queues.values()))

    def _propose(self, piece: Piece) -> None:
        """Give a trial values by what has ended and what is under way."""
        study, search = self._studies[piece.study], self._job.search
        self._queue.remove(piece)
        known: Any = {"ended": study.ended, "running": study.running}
        piece = replace(piece, values=propose(search, study=piece.study, trial=piece.trial, **known))
        try:
            job_of(self._job, piece.values)
        except UsageError as error:  # together they make no sense
            self._end(study, piece, "failed", reason=str(error))
        else:
            self.put(piece)

    def _leave_out(self) -> None:
        """Leave out the trials that wait, except the first one of a study without any."""
        kept = {name for name, one in self._studies.items() if not (one.running or one.ended)}
        for piece in sorted(self._queue.pieces, key=lambda piece: piece.trial):
            if not piece.trial or piece.study in kept:
                kept.discard(piece.study)
                continue
            self._queue.remove(piece)
            if piece.values:
                self._queues[piece.shape].remove(piece)
            else:
                self._unknown.remove(piece)
            self._end(self._studies[piece.study], piece, "left_out")

    def _end(self, study: _Study, piece: Piece, end: str, **more: Any) -> None:
        """End a trial that has not begun."""
        event = trial_done(piece, TrialEnd(trial=piece.trial, values=piece.values, end=end), **more)
        self._emit(event)
        self.unbegun.add(piece.name)
        self._over(study, piece, event)

    def _over(self, study: _Study, piece: Piece, event: Mapping[str, Any]) -> None:
        """Take in a trial's end."""
        known = {"end": event["end"], "score": event["score"], "epochs": int(event.get("epochs", 0))}
        end = self._known[piece.name] = TrialEnd(trial=piece.trial, values=piece.values, **known)
        study.ended.append(end)
        study.running.pop(piece.trial, None)
        study.left.discard(piece.name)
        study.reasons += [str(event["reason"])] if event.get("reason") else []
        self._release(study)

    def _release(self, study: _Study) -> None:
        """Let the model of a study begin with the values of its best trial, once its last one is over."""
        if study.left or study.model is None:
            return
        ended = tuple(sorted(study.ended, key=lambda one: one.rank))
        model = replace(study.model, values=ended[0].values if ended else (), trials=ended)
        if study.flaw:
            self._failed.append((model, study.flaw))
            return
        self._emit({"event": "searched", **model.identity, **told_of(ended)})
        self.put(model)


def _reported(event: Mapping[str, Any], search: SearchSettings) -> tuple[int, float] | None:
    """Return the epoch of an event with its validation loss, or which report of a script's score it is with
    that; None if it is neither.
    """
    if search.score:
        return (event["report"], event["score"]) if event["event"] == "script" and "report" in event else None
    if event["event"] != "epoch":
        return None
    loss = event.get("validation_loss")
    return event["epoch"], loss if loss is not None and math.isfinite(loss) else math.inf
