"""The studies of a search: which trials begin, which end early, and which values their models get.

A study's state is what its trials ended with, heard in events: nothing is stored but these. Trials wait in a
queue for each shape, since the models of a pack share one; a study's model waits for its last trial.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trainer.base.errors import DataError, UsageError
from trainer.base.extras import needs
from trainer.base.files import read_plain
from trainer.base.strict_json import Unsound, read_object
from trainer.base.text import counted
from trainer.cluster.waiting import OwnPieces, Waiting
from trainer.job.job import Job
from trainer.job.pieces.piece import Piece
from trainer.job.pieces.queue import PieceQueue
from trainer.job.search import SearchSettings, Values, job_of
from trainer.job.trials import TrialEnd, read_end, told_of
from trainer.train.inputs.source import JobData, made_of
from trainer.train.machine_file import MachineFacts
from trainer.train.observing.meter import Meter
from trainer.train.workers.proposals import propose

ETA = 3  # of successive halving (Li and others 2020, https://arxiv.org/abs/1810.05934): 1 of 3 goes on
MOST_OBSERVED_BYTES = 64 << 20  # of the events of a trial

Emit = Callable[[dict[str, Any]], None]


def trial_done(piece: Piece, end: TrialEnd, **more: Any) -> dict[str, Any]:
    """Return the event of a trial's end."""
    return {"event": "trial_done", **piece.identity, "study": piece.study, **end.to_dict(), **more}


def failed_trial(piece: Piece, failure: Mapping[str, Any]) -> dict[str, Any]:
    """Return the end of a trial whose training failed, by the event of a model that did: it fails no run."""
    more = {key: value for key, value in failure.items() if key not in ("event", *piece.identity)}
    return trial_done(piece, TrialEnd(trial=piece.trial, values=piece.values, end="failed"), **more)


def check_bounds(search: SearchSettings, machine: MachineFacts) -> None:
    """Raise UsageError for a bound that this machine can't keep, and ConfigError without optuna."""
    if search.over and search.dollars and machine.usd_per_hour is None:
        why, do = "it has no price here", "Leave it out, or set search.within."
        raise UsageError(f"search.dollars is {search.dollars:g}, and the machine is yours", why=why, do=do)
    if search.over and not search.is_planned:
        needs("optuna")


def bounds_of(search: SearchSettings, meter: Meter, *, machines: int = 1) -> Callable[[], bool]:
    """Return whether a further trial may begin on one of so many equal machines at this moment."""

    def may_begin() -> bool:
        seconds = meter.paid_seconds + meter.clock() - meter.began
        return seconds < search.within_seconds and not 0 < search.dollars <= machines * (meter.usd or 0.0)

    return may_begin


def ends_observed(pieces: Iterable[Piece], job: Job, data: JobData, folder: Path) -> dict[str, TrialEnd]:
    """Return the ends of trials, by name, that an earlier training of the same bars, settings and code left
    in OUT's files of events. One that was left out then may begin now.
    """
    found = {}
    for piece in pieces:
        try:
            body = read_plain(folder / f"{piece.name}.jsonl", most_bytes=MOST_OBSERVED_BYTES)
        except OSError:
            continue
        for line in reversed(body.splitlines()):
            if b'"trial_done"' not in line:
                continue
            try:
                fields = read_object(line, most_bytes=MOST_OBSERVED_BYTES, name="the event")
                end = read_end(fields, job.search)
                made = made_of(replace(piece, values=end.values), job, data).fingerprint
            except (Unsound, DataError):
                break
            same = end.trial == piece.trial and end.values == (piece.values or end.values)
            told = (fields.values.get("epochs_asked"), fields.values.get("fingerprint"))
            if same and end.end in ("done", "pruned") and told == (job.train.epochs, made):
                found[piece.name] = end
            break
    return found


@dataclass(kw_only=True)
class _Study:
    """The trials of one model."""

    model: Piece
    left: set[str] = field(default_factory=set)  # names of those that are not over
    running: dict[int, Values] = field(default_factory=dict)
    ended: list[TrialEnd] = field(default_factory=list)
    # of this attempt: the least until an epoch
    losses: dict[str, dict[int, float]] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)  # of trials that failed

    def is_behind(self, name: str, epoch: int) -> bool:
        """Return whether a trial is not among the best third of those that have reached its epoch, if that is
        one of 1, 3, 9, ...
        """
        if epoch != ETA ** round(math.log(epoch, ETA)):
            return False
        reached = sorted(its[epoch] for its in self.losses.values() if epoch in its)
        return self.losses[name][epoch] > reached[max(1, len(reached) // ETA) - 1]


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
        self._pieces: dict[str, list[Piece]] = {}  # of each study, by the name of its model
        self._all: set[str] = set()  # names of those that this attempt has to end
        self._studies: dict[str, _Study] = {}  # by the name of their model
        self._begun: dict[str, Piece] = {}  # trials under way, by name
        self._queues: dict[str, PieceQueue] = {}  # by shape
        self._unknown: deque[Piece] = deque()  # trials whose values are not known yet
        self._failed: list[tuple[Piece, str]] = []  # models without a trial that has a score
        self._sources = Counter[str]()
        self.unbegun: set[str] = set()  # trials that ended before they began
        self.has = lambda source: self._sources[source] > 0
        self.ahead = lambda count, **places: PieceQueue(self._waiting()).ahead(count, **places)

    def open(self, pieces: list[Piece]) -> None:
        self._pieces = {piece.name: [] for piece in pieces if not piece.trial}
        left = [piece for piece in pieces if piece.study in self._pieces]  # the models of others are finished
        for piece in left:
            self._pieces[piece.study].append(piece)
        self._all = {piece.name for piece in left} - self._known.keys()
        if self._shared is None:
            self._begin(left)
        else:
            self._shared.open([self._whole(name) for name in self._pieces])

    def _whole(self, name: str) -> Piece:
        """Return a study as machines deal it: its model, with the estimate of all of its pieces."""
        model = next(piece for piece in self._pieces[name] if not piece.trial)
        return replace(model, estimate=sum(piece.estimate for piece in self._pieces[name]))

    def _begin(self, pieces: list[Piece]) -> None:
        """Let the pieces of studies begin here."""
        begun = {piece.name: _Study(model=piece) for piece in pieces if not piece.trial}
        self._studies |= begun
        for piece in sorted((piece for piece in pieces if piece.trial), key=lambda piece: piece.trial):
            study = begun[piece.study]
            if piece.name in self._known:
                study.ended.append(self._known[piece.name])
            else:
                study.left.add(piece.name)
                self.put(piece)
        for study in begun.values():
            self._release(study)

    def _deal(self, **asked: Any) -> bool:
        """Begin a study that machines share; return whether there was one. What its trials ended with on a
        machine that is lost counts.
        """
        study = self._shared.take(**asked) if self._shared else None
        if study is None:
            return False
        ended = {one.trial: one for one in study.trials}
        for piece in self._pieces[study.name]:
            end = ended.get(piece.trial)
            if end is not None and end.values == (piece.values or end.values):
                self._known.setdefault(piece.name, end)
        self._begin(self._pieces[study.name])
        return True

    def take(
        self,
        *,
        held: Collection[str],
        staged: Collection[str],
        elsewhere: Collection[str],
        shape: str = "",
    ) -> Piece | None:
        if not (self._unknown or self._waits):  # machines share the others
            self._deal(held=held, staged=staged, elsewhere=elsewhere, shape=shape)
        if not self._is_open():
            self._leave_out()
        waiting = [queue for name, queue in self._queues.items() if len(queue) and shape in ("", name)]
        if not waiting:
            if not self._unknown or self._waits:  # one of another shape goes first, to a free worker
                return None
            self._propose(self._unknown.popleft())
            return self.take(held=held, staged=staged, elsewhere=elsewhere, shape=shape)
        queue = max(waiting, key=lambda one: one.peek().estimate)
        piece = queue.take(held=held, staged=staged, elsewhere=elsewhere)
        self._sources[piece.source] -= 1
        if piece.trial:
            self._begun[piece.name] = piece
            self._studies[piece.study].running[piece.trial] = piece.values
        return piece

    def put(self, piece: Piece) -> None:
        self._sources[piece.source] += 1
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
        elif event["event"] == "epoch" and self._job.search.prunes:
            epoch, loss = event["epoch"], event.get("validation_loss")
            losses = study.losses.setdefault(piece.name, {})
            loss = loss if loss is not None and math.isfinite(loss) else math.inf
            losses[epoch] = min([loss, *losses.values()])
            return (piece.name,) if study.is_behind(piece.name, epoch) else ()
        return ()

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
        for waiting in (self._studies, self._queues, self._unknown, self._begun, self._sources):
            waiting.clear()
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

    def _waiting(self) -> list[Piece]:
        return [*self._unknown, *(piece for queue in self._queues.values() for piece in queue.pieces)]

    def _propose(self, piece: Piece) -> None:
        """Give a trial values by what has ended and what is under way."""
        study, search = self._studies[piece.study], self._job.search
        self._sources[piece.source] -= 1
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
        for piece in sorted(self._waiting(), key=lambda piece: piece.trial):
            if not piece.trial or piece.study in kept:
                kept.discard(piece.study)
                continue
            self._sources[piece.source] -= 1
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
        if study.left:
            return
        ended = tuple(sorted(study.ended, key=lambda one: one.rank))
        model = replace(study.model, values=ended[0].values if ended else (), trials=ended)
        if not ended or ended[0].score is None:
            first = f": {study.reasons[0]}" if study.reasons else ""
            self._failed.append((model, f"none of its {counted(len(ended), 'trial')} has a score{first}"))
            return
        self._emit({"event": "searched", **model.identity, **told_of(ended)})
        self.put(model)
