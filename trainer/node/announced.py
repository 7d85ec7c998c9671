"""Upload of files that a command announces by hash in its events: a model with its card, or a candle file
with its index entry.

Each goes up as soon as it is announced. While S3 refuses, one is tried at a time, in turn, after growing
pauses; a file that fails for good is reported.
"""

from __future__ import annotations

import logging
import re
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from queue import SimpleQueue
from typing import IO, Any

from trainer.base.errors import NotVersioned, TrainingFailed
from trainer.base.symbols import path_flaw
from trainer.node.inside import open_inside, sha256_of
from trainer.node.progress import identity_of
from trainer.node.shared import Node
from trainer.node.uplink import AWS_ERRORS
from trainer.runs.record import Leaves

log = logging.getLogger("trainer.node")
POLL_SECONDS = 0.2
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 30.0  # after a refusal
MOST_CARD_BYTES = 32 * 2**20  # of a card or an index entry


class _Refused(Exception):
    """S3 did not take a card."""


@dataclass(kw_only=True)
class _Told:
    """An announced file and its card, by their paths in OUT."""

    entry: dict[str, Any]  # of the result
    kept: bool = False  # from before the training was restarted
    path: str  # empty: only the card is sent
    card: str
    sha256: str

    def __post_init__(self) -> None:
        flaws = [path_flaw(path) for path in (self.path, self.card) if path]
        if any(flaws) or not re.fullmatch("[0-9a-f]{64}", self.sha256):
            raise ValueError("a file that can't be sent")


class Announced:
    """Files to upload, in the order of their next try."""

    def __init__(self, node: Node, folder: Path, kind: Leaves) -> None:
        keys = node.status.identity.keys
        self._node, self._folder, self._kind = node, folder, kind
        self._prefix = keys.models if kind == "models" else keys.folder
        self._new: SimpleQueue[_Told] = SimpleQueue()
        self._waiting: deque[_Told] = deque()
        self._pause, self._next_try = FIRST_PAUSE_SECONDS, 0.0
        self.lost: list[str] = []  # candle files that were not sent, with the reason

    def add(self, event: Mapping[str, Any]) -> None:
        """Take in an event. Raises ValueError, KeyError or TypeError if it announces no file that can be."""
        if self._kind == "models" and event["event"] == "model_done":
            path, card = event["file"], str(PurePosixPath(event["file"]).with_suffix(".json"))
            entry = {**identity_of(event), **{key: event[key] for key in ("family", "sha256", "metrics")}}
            entry |= {"target": event.get("target", ""), "key": f"{self._prefix}{path}"}
            kept = bool(event.get("kept"))
            self._new.put(_Told(entry=entry, kept=kept, path=path, card=card, sha256=event["sha256"]))
        elif self._kind == "candles" and event["event"] == "file":
            path, card = f"files/{event['file']}", f"index/{event['sha256']}.json"
            entry = {key: event[key] for key in ("file", "sha256", "bytes", "added")}
            path = path if event["added"] else ""
            self._new.put(_Told(entry=entry, path=path, card=card, sha256=event["sha256"]))

    def send(self) -> None:
        """Send the files that wait, up to the first that S3 refuses: a call may take minutes then."""
        while not self._new.empty():
            self._waiting.append(self._new.get())
        while self._waiting and time.monotonic() >= self._next_try:
            file = self._waiting.popleft()
            try:
                self._upload(file)
                self._pause = FIRST_PAUSE_SECONDS
            except (*AWS_ERRORS, NotVersioned, _Refused) as error:
                name = file.path or file.card
                log.warning("%s was not uploaded, next try in %.0f s: %s", name, self._pause, error)
                self._waiting.append(file)
                self._next_try = time.monotonic() + self._pause
                self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)
            except (TrainingFailed, OSError) as error:  # the second: its disk
                log.error("%s", error)
                self._lose(file, str(error))

    def finish(self) -> None:
        """Send the remaining files, and report those that S3 did not accept in time."""
        began = time.monotonic()
        self.send()
        while self._waiting and time.monotonic() - began < self._node.patience_seconds:
            time.sleep(POLL_SECONDS)
            self.send()
        for file in self._waiting:
            self._lose(file, f"trained, but S3 did not take it within {self._node.patience_seconds:.0f} s")

    def _lose(self, file: _Told, reason: str) -> None:
        if self._kind == "models":
            self._node.status.failed.append({**identity_of(file.entry), "reason": reason})
        else:
            self.lost.append(f"{file.entry['file']}: {reason.removeprefix('trained, but ')}")

    def _upload(self, file: _Told) -> None:
        """Send a file and its card, and report it. Raises TrainingFailed for other bytes than announced."""
        status, version, uplink = self._node.status, "", self._node.uplink
        key = f"{self._prefix}{file.path}"
        with self._open(file.card) as opened:
            card = opened.read(MOST_CARD_BYTES)
        if file.path:
            with self._open(file.path) as body:
                sha256, size = sha256_of(body)
                if sha256 != file.sha256:
                    why = f"{file.sha256} was announced"
                    raise TrainingFailed(f"{file.path} has sha256 {sha256}", why=why, do="Launch again.")
                version = uplink.put_file(body, key, sha256, size, once=self._kind == "models")
        if not uplink.try_send(f"{self._prefix}{file.card}", card):
            raise _Refused(f"{file.card} was refused")
        if self._kind == "models":
            log.info("%s is in S3", key)
            # a training that was restarted tells again of what it keeps
            if not (file.kept and any(one["piece"] == file.entry["piece"] for one in status.models)):
                status.models.append({**file.entry, "version_id": version})
        else:
            status.files.append(file.entry)

    def _open(self, path: str) -> IO[bytes]:
        try:
            return open_inside(self._folder, path)
        except OSError as error:
            raise TrainingFailed(f"{path} can't be read", why=str(error), do="Launch again.") from error
