"""Notices of a spot machine: tell its command that AWS is about to take it, and end the work in time.

A thread asks the metadata service every 5 s, as AWS advises (EC2 user guide, "Spot Instance interruption
notices", looked up 2026-11-24). A command reads the notice in its file MAYFLY_NOTICE, which has one line once
there is one:

    checkpoint    EC2 recommends to rebalance: write a checkpoint and go on
    stop          EC2 takes the machine, usually in two minutes: write a checkpoint now and end

A command that is still at work ten seconds after it, or the last of its values, wrote a checkpoint, or when
half of the time is over (a minute before the end of two), is stopped as on request. The rest is for the last
uploads.
"""

from __future__ import annotations

import http.client
import json
import logging
import threading
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Literal

from trainer.base.files import whole_file
from trainer.base.instants import from_iso, iso, utc_now
from trainer.node.identity import Metadata
from trainer.node.inside import entries_inside
from trainer.node.report import SPOT
from trainer.node.shared import COMMAND, Node

log = logging.getLogger("trainer.node")
POLL_SECONDS = 5.0
LEAVING_POLL_SECONDS = 1.0  # once it is known that the machine goes
SHORTEST_NOTICE = timedelta(minutes=2)  # by the user guide; of a notice whose time can't be read
RESERVE = timedelta(seconds=60)  # for a command's last 30 s after SIGTERM, and as many for the last uploads
SETTLED = timedelta(seconds=10)  # nothing was written to CHECKPOINTS for so long: the last one is whole
INTERRUPTION, REBALANCE = "spot/instance-action", "events/recommendations/rebalance"
Word = Literal["checkpoint", "stop"]


class SpotNotices:
    """Polls the metadata service for notices about this spot machine, on a thread, while the `with` lasts."""

    def __init__(
        self,
        node: Node,
        ask: Callable[[str], str | None],
        *,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        """`ask` returns the text of a path of the metadata service, None for one that is not there."""
        self._node, self._ask, self._clock = node, ask, clock
        self._heard_at = self._stop_at = datetime.max.replace(tzinfo=timezone.utc)
        self._word: Word | None = None  # that the newest notice asks for
        self._passed_on: Word | None = None  # that the file has
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spot notices", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(timeout=30)

    def look(self) -> None:
        """Ask once, and pass on what is new. Raises OSError while the metadata service does not answer, or
        the file of the notice can't be written.
        """
        if self._node.taken_at is None:
            if (text := self._ask(INTERRUPTION)) is not None:
                self._leave(text)
            elif self._word is None and self._ask(REBALANCE) is not None:
                self._word = "checkpoint"
                log.warning("EC2 recommends to rebalance: the command is asked for a checkpoint")
        try:
            if self._word is not None and self._word != self._passed_on:
                write_notice(self._node.notice_file, self._word)
                self._passed_on = self._word
        finally:  # a full disk, which the command may have filled, does not keep it from its end
            self._end_in_time()

    def _leave(self, text: str) -> None:
        """Note that the machine is taken, and until when its command may work."""
        now = self._clock()
        taken_at = taken_by(text) or now + SHORTEST_NOTICE
        self._node.taken_at = taken_at
        self._heard_at, self._stop_at = now, taken_at - min(RESERVE, max(taken_at - now, timedelta(0)) / 2)
        self._word = "stop"
        log.warning("EC2 takes this spot machine at %s: the command is asked to end", iso(taken_at))

    def _end_in_time(self) -> None:
        """Stop the command once its time is over; before it began, at once: there is nothing to save."""
        if self._node.taken_at is None:
            return
        begun = self._node.status.phase not in ("boot", "stage")
        if not begun or self._clock() >= self._stop_at or self._has_saved():
            self._node.stop(SPOT)

    def _has_saved(self) -> bool:
        """Return whether all that runs wrote a checkpoint after the notice, and has written no more since."""
        checkpoints, settled = self._node.work / COMMAND / "checkpoints", self._clock() - SETTLED
        saved = [last_written(checkpoints / folder) for folder in self._node.at_work]
        return bool(saved) and all(at is not None and self._heard_at < at <= settled for at in saved)

    def _run(self) -> None:
        heard = True  # whether the last look was without an error
        while not self._ended.is_set():
            try:
                self.look()
                heard = True
            except (OSError, ValueError, http.client.HTTPException) as error:
                if heard:
                    log.warning("notices can't be read or passed on, it will be tried again: %s", error)
                heard = False
            leaving = self._node.taken_at is not None
            self._ended.wait(LEAVING_POLL_SECONDS if leaving else POLL_SECONDS)


def spot_notices(node: Node, metadata_endpoint: str) -> SpotNotices | None:
    """Return the notices of a node on a spot instance; None for another one, which gets none."""
    return SpotNotices(node, Metadata(metadata_endpoint).find) if node.status.identity.spot_zone else None


def taken_by(text: str) -> datetime | None:
    """Return the instant in EC2's notice of an interruption; None for one without."""
    try:
        return from_iso(str(json.loads(text)["time"]))
    except (ValueError, KeyError, TypeError):
        return None


def last_written(folder: Path) -> datetime | None:
    """Return when a file of an untrusted folder was last written or replaced, by the kernel's clock; None if
    there is none.
    """
    try:
        changed = max((about.st_ctime for _, about in entries_inside(folder, hidden=True)), default=None)
    except OSError:  # it is not there yet, or is removed just now
        return None
    return datetime.fromtimestamp(changed, timezone.utc) if changed is not None else None


def write_notice(file: Path, word: Word) -> None:
    """Write the file of a notice for every user of the machine; it appears whole."""
    with whole_file(file) as new:
        new.write_text(f"{word}\n")
        new.chmod(0o644)
