"""One rank: read the piece's source, then run the training loop together with the other ranks. torchrun
starts it.

    python -m trainer.train.ranks.rank     with the variables of `environment.RankEnvironment`

Only rank 0 reports on the model and writes its file; the first rank of another machine gives signs of
progress. A TrainerError fails the piece; after any other error the rank sends its traceback and ends, and
torchrun restarts all ranks.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record

from trainer.base import environment
from trainer.base.errors import TrainerError, TrainingFailed
from trainer.base.signs import sign, tell_signs
from trainer.train.checkpoint import Checkpoint
from trainer.train.evaluate.epoch_scores import Validated
from trainer.train.evaluate.scores import Outputs
from trainer.train.inputs.source import on_device, read_source
from trainer.train.loop import Report, train
from trainer.train.machine_file import CheckpointInterval
from trainer.train.notice import Notice
from trainer.train.observing.meter import with_memory
from trainer.train.packs.layout import Layout
from trainer.train.packs.pack import ModelState
from trainer.train.packs.strategy import form_pack
from trainer.train.piece import Opened, open_piece
from trainer.train.ranks.connection import RankConnection
from trainer.train.ranks.group import AgreedClock, Ranks, process_group
from trainer.train.ranks.layout import DataParallel, FullySharded
from trainer.train.ranks.links import check_links
from trainer.train.ranks.shards import spread, write_shards
from trainer.train.ranks.validation import shared_outputs
from trainer.train.run import Run
from trainer.train.stages import Stages
from trainer.train.workers.devices import device_of
from trainer.train.workers.piece_files import PieceFiles
from trainer.train.workers.station import Station, set_up_process


@record
def main() -> None:
    """Train the piece that the supervisor assigns, as one of its ranks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it reaches the whole terminal group; the supervisor acts
    place = environment.rank_environment()
    connection = RankConnection(place)
    try:
        train_as(place, connection)
    except TrainerError as error:
        # Not retried: it would fail the same way.
        failure = {**connection.assignment.piece.identity, "reason": str(error), "error": error.as_dict()}
        connection.report({"event": "model_failed", **failure})
    except BaseException as error:  # broad on purpose: report it, then let the process end as it would have
        connection.crashed(error)
        raise


def train_as(place: environment.RankEnvironment, connection: RankConnection) -> None:
    """Train the assigned piece as the rank of `place`. Raises TrainerError if the piece can't be trained."""
    assignment = connection.assignment
    piece, settings, kind = assignment.piece, assignment.settings, assignment.kind
    device = device_of(kind, place.local_rank)
    placed = set_up_process(Station(number=place.local_rank, device=device))
    tell_signs(connection.report)
    connection.report({"event": "rank_started", **piece.identity, "device": device, **placed})
    torch.set_num_threads(piece.threads)

    report = reporter(place, connection, device)
    with process_group(place.rank, place.count, torch.device(device), nodes=place.nodes) as ranks:
        links = check_links(ranks, settings.machine)
        report({**links.to_event(), **piece.identity})
        store = partial(write_shards, ranks=ranks.in_background())
        files = PieceFiles(settings, device, report, store=store)
        roster = _RankRoster(connection, ranks, files)
        layout: Layout = DataParallel(ranks, settings.job, link=settings.machine.link)
        if assignment.sharded:
            layout = FullySharded(ranks, settings.job)
        form = partial(form_pack, job=settings.job, layout=layout)
        interval = CheckpointInterval(settings.machine_file, settings.job.train.checkpoint_seconds)
        clock = AgreedClock(ranks, notice=Notice(settings.notice), interval=interval)
        agreed: dict[str, Any] = {"clock": clock, "heard": clock.heard, "interval": clock.interval}
        train(roster, form, settings.job, report, total=ranks.sum_, **agreed)
        files.flush()
    if ranks.is_first and (done := roster.done(files)) is not None:
        report(done)


def reporter(place: environment.RankEnvironment, connection: RankConnection, device: str) -> Report:
    """Return the receiver of a rank's events. Those of rank 0 are reported. Those of the first rank of
    another machine are signs of progress there, and those of any other rank are dropped.
    """
    if place.rank == 0:
        return lambda event: connection.report(with_memory(event, device))
    return lambda event: sign("training") if place.local_rank == 0 else None


class _RankRoster:
    """The one run of a rank: see `loop.Roster`."""

    def __init__(self, connection: RankConnection, ranks: Ranks, files: PieceFiles) -> None:
        self._assignment, self._report = connection.assignment, connection.report
        self._ranks, self._files = ranks, files
        self.opened: Opened | None = None
        self._trained: nn.Module | None = None
        self._outputs: Outputs | None = None  # of a piece that has no stage after its first fits
        self._evaluate = shared_outputs(ranks, self._assignment.settings.job.target.outputs)

    def arrivals(self, free: int, *, wait: bool, make_room: Callable[[], None]) -> list[Run]:
        """Return the run of the piece's first stage, then of each further one. If a rank can't read its
        source, raise TrainerError there and return none on the others.
        """
        if self.opened is None:
            if self._ranks.is_first:
                started = {"event": "model_started", **self._assignment.piece.identity, "staged": False}
                self._report({**started, "ranks": self._ranks.count})
            checkpoint, stages = self._newest()
            return self._opened(stages, checkpoint)
        if self._trained is None:
            return []
        opened, trained = self._files.ended(self.opened), self._trained
        self._trained = None
        if opened.stages.is_to_score:
            self._outputs = self._files.evaluated(opened, trained, self._evaluate)
            if opened.piece.refit:
                opened = self._scored(opened, self._outputs)
        self.opened = opened
        if opened.stages.is_over:
            return []
        make_room()
        return self._opened(opened.stages, None)

    def _newest(self) -> tuple[Checkpoint | None, Stages]:
        """Return the newest checkpoint, of several machines the first one's."""
        files, piece, ranks = self._files, self._assignment.piece, self._ranks
        if ranks.nodes > 1:
            spread(
                files.newest_folder(piece) if ranks.is_first else None, files.folder_of(piece), ranks=ranks
            )
        return files.newest(piece)

    def done(self, files: PieceFiles) -> dict[str, Any] | None:
        """Write the model, and return its `model_done` event; None if it is not trained to its end."""
        opened = self.opened
        if opened is None or not opened.stages.is_over:
            return None
        if opened.stages.is_to_score and self._outputs is not None:
            opened = files.scored(opened, self._outputs)
        return files.finish(opened)

    def _scored(self, opened: Opened, outputs: Outputs) -> Opened:
        """Return the piece with its card, which rank 0 makes while the others wait."""
        failure: TrainerError | None = None
        if self._ranks.is_first:
            try:
                opened = self._files.scored(opened, outputs)
            except TrainerError as error:
                failure = error
        if self._ranks.any(failure is not None):
            raise failure or TrainingFailed("rank 0 could not score the model", do="Read `mayfly logs`.")
        return opened

    def _opened(self, stages: Stages, checkpoint: Checkpoint | None) -> list[Run]:
        """Return the run of the next stage, in agreement with the other ranks."""
        piece, settings = self._assignment.piece, self._assignment.settings
        failure: TrainerError | None = None
        try:
            on_all_bars = stages.on_all_bars
            read = read_source(piece, settings.job, settings.data, refit=on_all_bars, whole=False)
            source = on_device(read, str(self._ranks.device))
            self.opened = open_piece(piece, settings.job, source, self._evaluate, stages=stages)
        except TrainerError as error:
            failure = error
        if self._ranks.any(failure is not None):
            if failure is not None:
                raise failure
            self.opened = None
            return []
        assert self.opened is not None
        if not stages.fits or checkpoint is not None:
            self._files.resume(self.opened, checkpoint)
        run = self.opened.run
        if run.validation is None:
            return [run]
        judged = run.validation.judged

        def agreed(outputs_NO: np.ndarray) -> Validated:
            """Return rank 0's loss on every rank, so that all make the same decisions."""
            own = judged(outputs_NO)
            return replace(own, loss=self._ranks.numbers_of_first([own.loss])[0])

        run.validation = replace(run.validation, judged=agreed)
        return [run]

    def checkpoint(self, run: Run, state: ModelState, *, snapshot_seconds: float) -> None:
        """Write this rank's part of a checkpoint; every rank is called at the same step."""
        if self.opened is not None:
            self._files.checkpoint(self.opened, run, state, snapshot_seconds=snapshot_seconds)

    def finished(self, run: Run, model: nn.Module) -> None:
        """Keep the trained model until the loop has ended."""
        self._trained = model

    def stopped(self, runs: Sequence[Run]) -> None:
        """See `loop.Roster`; every rank is called at the same step."""
        if self.opened is not None:
            self._files.stopped(self.opened)


if __name__ == "__main__":
    main()
