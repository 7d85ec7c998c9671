"""Fetch what another node of the attempt left of a piece in S3: its end, or else its newest checkpoint.

A training asks for it by an event, and reads the answer in a file (docs/cluster.md); of the pieces that the
agent starts, the agent asks itself. What lies in S3 is another machine's: a snapshot counts if its manifest
is sound and its objects have their hashes, as for the next attempt (`control.carry`).
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainer.base.errors import Stopped, TrainerError
from trainer.base.files import whole_file
from trainer.base.strict_json import Unsound, read_object
from trainer.cluster.waiting import CHECKPOINT, MADE, NOTHING
from trainer.job.pieces.piece import Piece
from trainer.node.own_user import OwnUser
from trainer.node.shared import Node
from trainer.node.stage import read_patiently
from trainer.node.start import lay_out_checkpoints
from trainer.node.uplink import AWS_ERRORS
from trainer.runs.keys import NodeKeys
from trainer.runs.record import Leaves
from trainer.runs.reports import MOST_OUTPUTS_BYTES, read_scripts, trial_end
from trainer.runs.snapshots import MOST_NUMBER, Snapshot, read_snapshot
from trainer.runs.start_file import CarriedObject, StartFile

log = logging.getLogger("trainer.node")
MOST_TRIED = 3  # snapshots: the newest may not verify


class OtherNodes:
    """The other nodes of an attempt, by what they left in S3."""

    def __init__(
        self, node: Node, start: StartFile, checkpoints: Path, *, leaves: Leaves, own_user: OwnUser | None
    ) -> None:
        self._node, self._start, self._checkpoints = node, start, checkpoints
        self._leaves, self._own_user = leaves, own_user

    @property
    def count(self) -> int:
        """Return the number of the attempt's nodes."""
        return len(self._start.instances)

    def fetch(self, number: int, folder: str, *more: str) -> str:
        """Lay out the newest checkpoint that a node has of a piece, whose files lie in `folder` of
        CHECKPOINTS, and in `more` those of its trials; return MADE if there is nothing to do, CHECKPOINT, or
        NOTHING.
        """
        own = self._node.status.identity.keys
        keys = replace(own, instance_id=self._start.instances[number])
        try:
            if self._is_made(keys, folder):
                return MADE
            newest = newest_number(lambda one: self._exists(keys.snapshot(one)))
        except AWS_ERRORS as error:
            log.warning("what node %d left of %s can't be looked up: %s", number, folder, error)
            return NOTHING
        for snapshot in range(newest, max(0, newest - MOST_TRIED), -1):
            try:
                if self._laid_out(keys, snapshot, (folder, *more)):
                    log.info("%s goes on from node %d's checkpoint", folder, number)
                    return CHECKPOINT
            except Stopped:
                raise
            except (*AWS_ERRORS, TrainerError, Unsound, OSError) as error:
                log.warning("snapshot %d of node %d is not used: %s", snapshot, number, error)
        return NOTHING

    def ended(self, number: int, titles: Collection[str]) -> list[dict[str, Any]]:
        """Return the ends of these trials that a node lists, as a training reads them."""
        keys = replace(self._node.status.identity.keys, instance_id=self._start.instances[number])
        return [trial_end(one) for one in self._ends(keys) if "trial" in one and one["piece"] in titles]

    def _laid_out(self, keys: NodeKeys, number: int, folders: Sequence[str]) -> bool:
        body = self._read(keys.snapshot(number))
        snapshot = read_snapshot(body, run_id=keys.run_id, attempt=keys.attempt, number=number)
        part = _part_of(snapshot, keys, self._start, folders)
        if not part.files:
            return False
        # The command may own CHECKPOINTS, and put a link there: nothing is written below it.
        place = self._node.work / "carried"
        shutil.rmtree(place, ignore_errors=True)
        lay_out_checkpoints(self._node, part, place)
        for folder in {file.path.partition("/")[0] for file in part.files}:
            target = self._checkpoints / folder
            if self._own_user is not None:
                self._own_user.give(place / folder)
            shutil.rmtree(target, ignore_errors=True)
            (place / folder).rename(target)
        return True

    def _is_made(self, keys: NodeKeys, folder: str) -> bool:
        """Return whether S3 has all that a node makes of a piece."""
        if self._leaves == "models":
            return self._exists(f"{keys.models}{folder}.json")  # sent after the weights
        return any(end["piece"] == folder and end["done"] for end in self._ends(keys))

    def _ends(self, keys: NodeKeys) -> tuple[dict[str, Any], ...]:
        """Return the ends of pieces that a node lists."""
        try:
            if not self._exists(keys.output_index):
                return ()
            body = self._read(keys.output_index)
            return read_scripts(read_object(body, most_bytes=MOST_OUTPUTS_BYTES, name="outputs.json"))
        except (*AWS_ERRORS, Unsound):
            return ()

    def _exists(self, key: str) -> bool:
        """Return whether an object exists, asked for as long as an input is: no piece begins anew since S3
        failed for a moment. Raises Stopped, or botocore's error.
        """
        return read_patiently(lambda: self._node.uplink.find(key), key, stopped=self._node.is_stopping)

    def _read(self, key: str) -> bytes:
        return read_patiently(lambda: self._node.uplink.read(key), key, stopped=self._node.is_stopping)


def newest_number(exists: Callable[[int], bool]) -> int:
    """Return the highest of the numbers 1, 2, ... that exist, without a gap; 0 for none. A node may not list
    keys: it asks for twice the last number until there is none, and halves the rest.
    """
    if not exists(1):
        return 0
    there = 1
    while 2 * there <= MOST_NUMBER and exists(2 * there):
        there *= 2
    missing = 2 * there
    while missing - there > 1:
        middle = (there + missing) // 2
        there, missing = (middle, missing) if exists(middle) else (there, middle)
    return there


def _part_of(snapshot: Snapshot, keys: NodeKeys, start: StartFile, folders: Sequence[str]) -> StartFile:
    """Return a start file with the part of a snapshot that lies in these folders."""
    files = tuple(file for file in snapshot.files if file.path.partition("/")[0] in folders)
    needed = {file.object for file in files}
    objects = tuple(
        CarriedObject(
            key=keys.snapshot_data(one.slot), sha256=one.sha256, size=one.size, version_id=one.version_id
        )
        for one in snapshot.objects
        if one.sha256 in needed
    )
    return replace(start, objects=objects, files=files)


class Fetches:
    """Pieces whose state is being fetched, on a thread: `Carrier` of the agent's own pieces, and the answers
    to a training.
    """

    def __init__(self, others: OtherNodes, *, answers: Path | None = None) -> None:
        """`answers`: the file that a training reads."""
        self._others, self._answers = others, answers
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="fetch")
        self._waiting: dict[str, tuple[Piece, Future[str]]] = {}
        self._answered: dict[str, Mapping[str, Any]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def ask(self, piece: Piece, node: int) -> None:
        """Begin to fetch what a node left of a piece that the agent starts."""
        self._waiting[piece.name] = (piece, self._pool.submit(self._others.fetch, node, piece.title))

    def arrived(self) -> list[tuple[Piece, str]]:
        """Return the pieces whose state is there, and what was found."""
        ready = [(piece, future.result()) for piece, future in self._waiting.values() if future.done()]
        for piece, _ in ready:
            del self._waiting[piece.name]
        return ready

    def answer(self, event: Mapping[str, Any], trials: Mapping[str, str]) -> None:
        """Fetch for a training what its event `taken_over` names, with the `trials` of its study (names by
        title), and add the answer to its file. Raises ValueError for a node that does not exist.
        """
        model, number = str(event["model"]), event["node"]
        if not isinstance(number, int) or not 0 <= number < self._others.count:
            raise ValueError(f"there is no node {number}")

        def fetch() -> None:
            ended = self._others.ended(number, trials) if trials else []
            over = {end["piece"] for end in ended}
            left = self._others.fetch(number, model, *(trials[one] for one in trials.keys() - over))
            self._answered[model] = {"left": left, "ended": ended}
            if self._answers is not None:
                with whole_file(self._answers) as new:
                    new.write_text(json.dumps(self._answered))

        self._pool.submit(fetch)

    def close(self) -> None:
        """Fetch nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)
