"""The supervisor of ranks: one piece after another, each trained by all devices under its own torchrun.

Owns how often a piece starts and on which devices; a start's processes are a `process.TorchRun`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

from trainer.base.errors import DataError, TrainingFailed, UsageError
from trainer.base.silence import FIRST_SECONDS, LEAST_SECONDS, ProgressClock
from trainer.base.strict_json import MOST_TEXT, Fields, Unsound
from trainer.job.job import Job
from trainer.job.pieces.piece import Piece
from trainer.machines.kernels import gains_from_threads
from trainer.train.checkpoint import forget
from trainer.train.cpu import num_cores
from trainer.train.notice import Notice
from trainer.train.piece import kept
from trainer.train.ranks.connection import Assignment
from trainer.train.ranks.hanging import HangWatch
from trainer.train.ranks.meeting import DO, Meeting
from trainer.train.ranks.process import POLL_SECONDS, Among, Emit, TorchRun, Trouble
from trainer.train.smoke import tried
from trainer.train.workers.assignment import Outcome, WorkerSettings
from trainer.train.workers.devices import device_of
from trainer.train.workers.smaller import smaller, with_job

MOST_SESSIONS, MOST_WINDOWS = 1_000_000, 1 << 30


def check_ranks(pieces: Iterable[Piece], job: Job, *, ranks: int) -> None:
    """Raise UsageError for a piece with fewer samples to share than ranks."""
    for piece in pieces:
        shared = min(job.train.batch, piece.windows)
        if 0 < shared < ranks:  # 0: planning refused a series, which is reported when the piece starts
            of = f"a batch of {job.train.batch:,}"
            if piece.windows < job.train.batch:
                of = f"{piece.windows:,} {job.model.reads}"
            raise UsageError(
                f"{ranks} ranks for {of} of {piece.title}",
                why="a rank without a sample has nothing to train on",
                do=f"Raise train.batch, give more bars, or set --workers to at most {shared}.",
            )


class RankSupervisor:
    """Train pieces one after another on `ranks` devices; `close` (or leaving the `with`) ends every process
    at once.

    When a rank or torchrun dies, all of them restart from the newest checkpoint, up to `train.retries` times
    per piece, and once after a silence. Before a piece fails so, every device is tried; those that fail are
    set aside, and the others go on, without being charged.
    """

    def __init__(
        self,
        *,
        kind: str,
        ranks: int,
        settings: WorkerSettings,
        emit: Emit,
        sharded: bool = False,
        meeting: Meeting | None = None,
        first: float = FIRST_SECONDS,
        least: float = LEAST_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        smoke: Callable[[str], str] = tried,
    ) -> None:
        """`ranks`: of this machine; `meeting`: with others that train each piece, too. `first` and `least`:
        bounds of the ranks' progress, as of a `ProgressClock`. `smoke` tries a device and returns why it
        fails, or ''.
        """
        self._kind, self._settings, self._emit = kind, settings, emit
        self._sharded, self._first, self._least, self._clock = sharded, first, least, clock
        self._smoke, self._meeting, self._session = smoke, meeting, 0
        self._nodes = len(meeting.cluster.addresses) if meeting else 1
        self._stopped = 0  # the newest start that node 0 has ended
        self._waiting: list[Fields] = []  # said by node 0, and not acted on
        self._devices = {number: device_of(kind, number) for number in range(ranks)}
        self._all = ranks
        self._set_aside: dict[str, str] = {}  # device -> why it trains nothing any more
        self._outcome = Outcome()
        self._run: TorchRun | None = None

    def __enter__(self) -> RankSupervisor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, pieces: Iterable[Piece], *, finished: Collection[str] = ()) -> Outcome:
        """Train every piece, longest first, without those whose models are `finished`; return when each is
        done or has failed, or a notice has stopped the one under way.
        """
        job = self._settings.job
        threads = 1
        if self._kind == "cpu" and gains_from_threads(job.cost):
            threads = max(1, num_cores() // self._all)
        threads = job.expert.threads or threads
        if self._meeting is not None and not self._meeting.cluster.is_head:
            return self._follow([replace(piece, threads=threads) for piece in pieces], finished)
        notice = Notice(self._settings.notice)
        for piece in sorted(pieces, key=lambda piece: (-piece.estimate, piece.name)):
            if piece.name not in finished and not notice.stops:
                self._train(replace(piece, threads=threads))
        self._tell({"say": "bye"})
        return self._outcome

    def close(self) -> None:
        """Kill torchrun and every rank, and wait for their end: finished models are on disk already."""
        if self._run is not None:
            self._run.close()
            self._run = None

    def _train(self, piece: Piece) -> None:
        settings = self._settings
        try:
            done = kept(piece, settings.job, settings.data, out=settings.out)
        except DataError as error:  # planning refused a series
            failure = {**piece.identity, "reason": str(error), "error": error.as_dict()}
            self._outcome.failed[piece.name] = {"event": "model_failed", **failure}
            self._emit(self._outcome.failed[piece.name])
            return
        if done:
            forget(settings.checkpoints, piece.name)
            self._outcome.done[piece.name] = {**done, "kept": True}
            self._emit(self._outcome.done[piece.name])
            return
        ended = self._ended_by_ranks(piece)
        ends = {"model_done": self._outcome.done, "model_stopped": self._outcome.stopped}
        ends.get(ended["event"], self._outcome.failed)[piece.name] = ended

    def _ended_by_ranks(self, piece: Piece) -> dict[str, Any]:
        """Train a piece until it is done or has failed, with as many starts as that takes; return its last
        event.
        """
        ended, left, silences = None, self._settings.job.train.retries, 0
        while ended is None:
            if not self._devices:
                return self._fail(piece, "no device is left: " + _words_of(self._set_aside))
            self._run = run = self._started(piece, retries=max(0, left), silences=silences)
            try:
                ended = run.run()
            finally:
                self._outcome.retries += run.retries
                left, silences = left - run.retries, run.silences
                self._tell({"say": "stop", "session": self._session})
                self.close()
            if run.out_of_memory and ended is None:
                ended = self._take_less_memory(piece, run.out_of_memory)
            elif run.gives_up and self._nodes == 1 and self._set_aside_broken(piece):
                ended, left, silences = None, self._settings.job.train.retries, 0
            elif run.gives_up and ended is not None:
                self._emit(ended)
        return ended

    def _started(self, piece: Piece, *, retries: int, silences: int) -> TorchRun:
        settings, count = self._settings, len(self._devices)
        among = None
        if self._meeting is not None:
            if self._meeting.cluster.is_head:
                self._session += 1
                start = {"say": "start", "session": self._session, "piece": piece.name}
                self._tell({**start, "micro_batch": settings.job.expert.micro_batch})
            among = Among(
                cluster=self._meeting.cluster,
                session=self._session,
                troubles=self._troubles_of_others,
                is_told_to_stop=self._is_told_to_stop,
            )
            facts = replace(settings.machine, gpus=settings.machine.gpus * self._nodes, bus_gb_per_s=0.0)
            settings = replace(settings, machine=facts)
        if count < self._all and settings.machine.gpus:  # or each rank would miss those set aside
            settings = replace(settings, machine=replace(settings.machine, gpus=count))
        assignment = Assignment(piece=piece, settings=settings, kind=self._kind, sharded=self._sharded)
        watch = HangWatch(clock=ProgressClock(began=self._clock(), first=self._first, least=self._least))
        gpus = tuple(self._devices) if count < self._all else ()
        return TorchRun(
            assignment,
            count,
            self._emit,
            self._clock,
            watch,
            retries=retries,
            silences=silences,
            gpus=gpus,
            among=among,
        )

    def _follow(self, pieces: Sequence[Piece], finished: Collection[str]) -> Outcome:
        """Start and end the ranks of this machine as node 0 says, until it says that all pieces are over."""
        assert self._meeting is not None
        by_name = {piece.name: piece for piece in pieces}
        while True:
            for said in self._said(wait=POLL_SECONDS):
                if said.values["say"] == "bye":
                    self._outcome.elsewhere |= by_name.keys() - set(finished)
                    return self._outcome
                with _understood("node 0"):
                    piece = by_name.get(said.text("piece"))
                if piece is not None:
                    self._serve(piece, said)

    def _serve(self, piece: Piece, start: Fields) -> None:
        """Run this machine's ranks of a start until they end, or are to; tell node 0 if they can't go on."""
        with _understood("node 0"):
            self._session = start.whole("session", least=1, most=MOST_SESSIONS)
            slices = start.whole("micro_batch", most=MOST_WINDOWS)
        self._settings = with_job(self._settings, self._settings.job.with_expert(micro_batch=slices))
        self._run = run = self._started(piece, retries=0, silences=1)
        try:
            run.run()
            if not self._is_told_to_stop() and (trouble := run.trouble) is not None:
                self._tell({"say": "trouble", "session": self._session, **asdict(trouble)})
        finally:
            self.close()

    def _tell(self, message: Mapping[str, Any]) -> None:
        if self._meeting is not None:
            self._meeting.tell(message)

    def _is_told_to_stop(self) -> bool:
        """Return whether node 0 has ended the start that this machine is in. Raises TrainingFailed if it is
        lost.
        """
        if self._meeting is None or self._meeting.cluster.is_head:
            return False
        self._waiting = self._said()
        return self._stopped >= self._session

    def _said(self, *, wait: float = 0.0) -> list[Fields]:
        """Return what node 0 has said, but for ends of starts, which are noted. Raises TrainingFailed if it
        is lost, or speaks otherwise than a leader.
        """
        assert self._meeting is not None
        said, self._waiting = self._waiting, []
        with _understood("node 0"):
            for _, each in self._meeting.heard(wait=0.0 if said else wait):
                if each.choice("say", ("start", "stop", "bye")) == "stop":
                    self._stopped = max(self._stopped, each.whole("session", most=MOST_SESSIONS))
                else:
                    said.append(each)
        return said

    def _troubles_of_others(self) -> list[Trouble]:
        """Return the troubles of other machines in this start. Raises TrainingFailed if one is lost."""
        if self._meeting is None or not self._meeting.cluster.is_head:
            return []
        troubles = []
        for node, said in self._meeting.heard():
            with _understood(f"node {node}"):
                if said.whole("session", most=MOST_SESSIONS) == self._session:
                    troubles.append(_trouble_of(node, said))
        return troubles

    def _fail(self, piece: Piece, reason: str) -> dict[str, Any]:
        failed = {"event": "model_failed", **piece.identity, "worker": 0, "reason": reason}
        self._emit(failed)
        return failed

    def _set_aside_broken(self, piece: Piece) -> bool:
        """Try every device, now that its ranks have ended, and set aside those that fail; return whether the
        piece is to be trained again, on the others.
        """
        tried_here = {number: device for number, device in self._devices.items() if device != "cpu"}
        with ThreadPoolExecutor() as pool:
            found = zip(tried_here.items(), pool.map(self._smoke, tried_here.values()), strict=True)
        broken = {number: (device, reason) for (number, device), reason in found if reason}
        for number, (device, reason) in broken.items():
            del self._devices[number]
            self._set_aside[device] = reason
            aside = {"device": device, "reason": reason, "pieces": [piece.title]}
            self._emit({"event": "device_set_aside", "worker": number, **aside})
        if broken:
            again = {"event": "retry", **piece.identity, "worker": 0, "charged": False}
            self._emit({**again, "reason": f"set aside: {_words_of(self._set_aside)}"})
        return bool(broken)

    def _take_less_memory(self, piece: Piece, reason: str) -> dict[str, Any] | None:
        """Halve the slices of this piece and all later ones, which costs no retry; return the event that ends
        the piece if it can't take less.
        """
        job = smaller(self._settings.job, ranks=len(self._devices) * self._nodes)
        if job is None:
            return self._fail(piece, f"out of memory in the smallest slices: {reason}")
        self._settings = with_job(self._settings, job)
        now = {"pack": 1, "micro_batch": job.expert.micro_batch}
        self._emit({"event": "out_of_memory", "worker": 0, **now, "reason": reason})
        again = {"event": "retry", **piece.identity, "worker": 0, "charged": False}
        self._emit({**again, "reason": f"out of memory: now in slices of {job.expert.micro_batch}"})
        return None


@contextmanager
def _understood(who: str) -> Iterator[None]:
    """Raise TrainingFailed for a message that is malformed."""
    try:
        yield
    except Unsound as error:
        raise TrainingFailed(f"{who} can't be understood", why=str(error), do=DO) from error


def _trouble_of(node: int, said: Fields) -> Trouble:
    """Read a follower's trouble. Raises Unsound for a malformed one."""
    reason, failed = said.text("reason", most=MOST_TEXT), said.values.get("failed")
    if failed is not None:
        told = said.table("failed")
        failed = {"reason": told.text("reason", most=MOST_TEXT)}
        if told.values.get("error") is not None:
            failed["error"] = dict(told.table("error").values)
    return Trouble(
        reason=f"node {node}: {reason}",
        follows=said.values.get("follows") is True,
        out_of_memory=said.values.get("out_of_memory") is True,
        failed=failed,
    )


def _words_of(set_aside: Mapping[str, str]) -> str:
    return "; ".join(f"{device}: {reason}" for device, reason in set_aside.items())
