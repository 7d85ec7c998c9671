"""Fetch a training's candle files in the order in which its models need them, while it trains on those that
are there.

Each is linked into the command's data once it is whole and has its hash. What can't be had is written into
the document that the trainer reads (`base/arrivals.py`): only the models that need it fail.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

from trainer.base.arrivals import BEAT_SECONDS, Arrivals
from trainer.base.errors import FULL, DataError, Stopped, TrainerError
from trainer.node.shared import Node
from trainer.node.stage import AT_ONCE, check_space, fetch_one
from trainer.runs.manifest import ManifestInput

log = logging.getLogger(__name__)


class ArrivingInputs:
    """The inputs that come while a command runs, in their order. Leaving the `with` ends those under way."""

    def __init__(
        self, node: Node, inputs: Sequence[ManifestInput], *, fetched: Path, root: Path, document: Path
    ) -> None:
        """`fetched`: the folder of files by hash; `root`: the one that the inputs' paths are relative to.
        Raises TrainingFailed if the disk is too small.
        """
        self._node, self._fetched, self._root, self._document = node, fetched, root, document
        self._places: dict[str, list[ManifestInput]] = {}  # of each object, in the order of need
        for item in inputs:
            self._places.setdefault(item.stored_as, []).append(item)
        fetched.mkdir(parents=True, exist_ok=True)
        check_space(node, [items[0] for items in self._places.values()], fetched)
        self._before = dict(node.origins.counts)
        self._failed: dict[str, DataError] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="arriving", daemon=True)

    def __enter__(self) -> ArrivingInputs:
        Arrivals().write(self._document)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        beat = 0
        with ThreadPoolExecutor(AT_ONCE) as pool:
            left: set[Future[None]] = {pool.submit(self._bring, items) for items in self._places.values()}
            while left:
                _, left = wait(left, timeout=BEAT_SECONDS)
                beat += 1
                self._write(Arrivals(beat=beat, failed=dict(self._failed)))
        over = Arrivals(beat=beat + 1, failed=self._failed, over=True)
        while not self._write(over) and not self._ended.wait(BEAT_SECONDS):
            pass
        origins = self._node.origins
        if origins.cache and origins.counts["cache_added"]:
            origins.cache.prune()
        # Without the checkpoints, which were fetched between these and the inputs before.
        more = {name: count - self._before[name] for name, count in origins.counts.items()}
        told = self._node.status.inputs
        counts = {name: told.get(name, 0) + count for name, count in more.items()}
        self._node.status.inputs = {**origins.to_dict(), **counts}
        log.info("inputs: %s", origins.summary)

    def _bring(self, items: Sequence[ManifestInput]) -> None:
        """Fetch an object and link it to its places, or note why it does not come."""
        try:
            target = self._fetched / items[0].stored_as
            fetch_one(self._node, items[0], target, stopped=self._stopped)
            for item in items:
                place = self._root / item.path
                place.parent.mkdir(parents=True, exist_ok=True)
                os.link(target, place)
        except Stopped:
            return
        except (TrainerError, OSError) as error:
            log.error("%s", error)
            self._failed |= {Path(item.path).name: self._error(error) for item in items}

    def _stopped(self) -> bool:
        return self._ended.is_set() or self._node.is_stopping()

    def _error(self, error: TrainerError | OSError) -> DataError:
        if isinstance(error, TrainerError):
            return DataError(error.what, why=error.why, do=error.do)
        full = error.errno in FULL
        what = "the disk is full" if full else "a file can't be staged"
        return DataError(what, why=str(error), do=self._node.place.more_disk if full else "Launch again.")

    def _write(self, arrivals: Arrivals) -> bool:
        try:
            arrivals.write(self._document)
        except OSError as error:  # a full disk
            log.warning("the list of arrivals was not written: %s", error)
            return False
        return True
