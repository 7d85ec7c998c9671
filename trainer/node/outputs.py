"""Upload what a command leaves in MAYFLY_OUT, as far as it may: files that it announces (announced.py), files
beside the result, and all others by their hash.

Of these each state goes up that stays unchanged for 30 s, and the last state at the end. A state is stored
under its sha256 and never changes; outputs.json names the last state of each file. The folder is untrusted:
files are opened without following links, and S3 checks what is sent against the hash.
"""

from __future__ import annotations

import json
import logging
import os
import stat
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from trainer.base.errors import NotVersioned
from trainer.base.symbols import folders_of, path_flaw
from trainer.base.text import counted
from trainer.node.announced import Announced
from trainer.node.inside import State, entries_inside, open_inside, sha256_of, state_of
from trainer.node.shared import Node
from trainer.node.uplink import AWS_ERRORS
from trainer.runs.manifest import Command
from trainer.runs.reports import MOST_FILE_SIZE, MOST_NOTES, MOST_OUTPUTS, MOST_OUTPUTS_BYTES

log = logging.getLogger("trainer.node")
UNCHANGED_SECONDS = 30.0
SCAN_SECONDS = 5.0
POLL_SECONDS = 0.5
# Of outputs.json, which grows with each piece that ends and each file: every state of it stays in the bucket
# for months, as a version. A machine that is lost takes the ends that are not listed yet with it.
LIST_BYTES_PER_SECOND = 64 * 1024
MOST_BESIDE = 1_000  # files beside the result
MOST_LOOKED_AT = 100_000  # files and folders, kept or not


class _Changed(Exception):
    """A file changed while it was read."""


@dataclass(kw_only=True)
class _Seen:
    state: State
    since: float
    sent: State | None = None

    @property
    def is_sent(self) -> bool:
        """Return whether S3 has this state."""
        return self.sent == self.state


@dataclass(kw_only=True)
class Outputs:
    """The files of a command's output folder: those seen, sent and refused so far."""

    folder: Path
    node: Node
    command: Command
    clock: Callable[[], float] = time.monotonic
    sent: dict[str, dict[str, Any]] = field(default_factory=dict)  # path -> entry of outputs.json
    refused: dict[str, str] = field(default_factory=dict)  # path -> why it is not sent
    _seen: dict[str, _Seen] = field(default_factory=dict)
    _unsent: list[str] = field(default_factory=list)  # that S3 did not take until the end
    _uploaded: dict[str, str] = field(default_factory=dict)  # sha256 -> version, of every state that was sent
    _bytes: int = 0  # of these
    # `sent` and `_ends` as outputs.json in S3 has them
    _listed: tuple[dict[str, Any], dict[str, Any]] = field(default_factory=lambda: ({}, {}))
    _over: dict[str, Callable[[], dict[str, Any]]] = field(
        default_factory=dict
    )  # prefix -> a done piece's end
    _ends: dict[str, dict[str, Any]] = field(default_factory=dict)  # of those whose files are all sent
    _listed_at: float = float("-inf")
    _listed_bytes: int = 0
    _ended: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.announced = Announced(self.node, self.folder, self.command.leaves)

    def notes(self, prefix: str = "") -> list[str]:
        """Return the receipt's notes on files whose path begins with `prefix`: each that was refused, or that
        there is none.
        """
        refused = [path for path in sorted(self.refused) if path.startswith(prefix)]
        if not refused and not any(path.startswith(prefix) for path in self.sent):
            return ["MAYFLY_OUT stayed empty: nothing was uploaded"]
        notes = [f"{path} was not uploaded: {self.refused[path]}" for path in refused]
        if len(notes) > MOST_NOTES:
            notes[MOST_NOTES - 1 :] = [
                f"{counted(len(notes) - MOST_NOTES + 1, 'more file was', 'more files were')} not uploaded"
            ]
        return list(map(self.node.redaction.redacted, notes))

    def piece_done(self, prefix: str, end: Callable[[], dict[str, Any]]) -> None:
        """List how a piece ended, once the files below its prefix are sent: a later attempt leaves it out."""
        self._over = {**self._over, prefix: end}  # a new one: the other thread may be reading the old one

    def begun_again(self, prefix: str) -> None:
        """List a piece that ended no more: it is begun once more, on another device."""
        self._over = {name: end for name, end in self._over.items() if name != prefix}
        self._ends.pop(prefix, None)

    def trial_done(self, end: dict[str, Any]) -> None:
        """List how a trial ended, which leaves no file: a later attempt leaves it out."""
        self._ends = {**self._ends, str(end["piece"]): end}

    def __enter__(self) -> Outputs:
        self._thread = threading.Thread(target=self._watch, name="outputs", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        scanned_at = self.clock()
        while not self._ended.wait(POLL_SECONDS):
            self.announced.send()
            if not self.command.out_bytes and self._is_due(SCAN_SECONDS):
                self._send_index()
            if self.command.out_bytes and self.clock() - scanned_at >= SCAN_SECONDS:
                self._scanned(final=False)
                scanned_at = self.clock()

    def scan(self, *, final: bool = False, is_late: Callable[[], bool] = lambda: False) -> bool:
        """Send the files that have settled, or all if `final`; return whether none is left to send. Once S3
        refused one and it `is_late`, no other is tried: each try may hang for minutes.
        """
        complete, total, all_seen, most = True, 0, True, self.command.out_bytes
        there: set[str] = set()
        over = self._over  # before the files are looked at
        self.refused = {}
        for number, (path, about) in enumerate(entries_inside(self.folder)):
            if self._ended.is_set() and not final:
                return False
            if number >= MOST_LOOKED_AT:
                self.refused[_shown(path)] = f"a run looks at {MOST_LOOKED_AT:,} files and folders"
                all_seen = False
                break
            why = flaw(path, about, len(there))
            if not why and self.node.redaction.shows(path):
                why = "a secret is in its name"
            if why:
                self.refused[_shown(path)] = why
                continue
            there.add(path)
            if total + about.st_size > most:
                self.refused[path] = f"files above {most / 2**30:g} GiB in all are not kept (script.out_gib)"
                continue
            total += about.st_size
            last = final or "" in over or f"{path.partition('/')[0]}/" in over  # it changes no more
            tries = complete or not is_late()
            complete = self._look(path, about, final=last, tries=tries) and complete
        above = folders_of(there)  # a file may have become a folder, and a folder a file
        stale = [path for path in self.sent if path in above or folders_of([path]) & there]
        for path in stale:
            del self.sent[path]
        if final and all_seen:  # forget removed files: people get what the script left
            self._seen = {path: seen for path, seen in self._seen.items() if path in there}
            self.sent = {path: entry for path, entry in self.sent.items() if path in there}
        # No attempt of the run keeps what is refused.
        left = [path for path in there - self.refused.keys() if not self._seen[path].is_sent]
        for prefix in over.keys() - self._ends.keys():
            if prefix in self._over and not any(path.startswith(prefix) for path in left):
                self._ends[prefix] = over[prefix]()
        return (final or self._is_due()) and self._send_index() and complete

    def finish(self) -> None:
        """Send the last state of every file, and record those that S3 did not accept in time."""
        self.announced.finish()
        began = self.clock()

        def is_late() -> bool:
            return self.clock() - began >= self.node.patience_seconds

        scan = partial(self._scanned, final=True, is_late=is_late)
        send = scan if self.command.out_bytes else self._send_index  # a training's list has ends of trials
        while not send() and not is_late():
            time.sleep(POLL_SECONDS)
        for path, seen in self._seen.items():
            if not seen.is_sent and path not in self.refused:
                self.refused[path] = f"S3 did not take it within {self.node.patience_seconds:.0f} s"
                self._unsent.append(path)
        self._send_beside(is_late)

    def lost(self, prefix: str = "") -> list[str]:
        """Return the files that should be in S3 and are not, with the reasons."""
        unsent = [path for path in self._unsent if path.startswith(prefix)]
        return [*self.announced.lost, *(f"{path}: {self.refused[path]}" for path in unsent)]

    def _scanned(self, **how: Any) -> bool:
        try:
            return self.scan(**how)
        except OSError as error:  # the folder changed meanwhile: a later scan sends it
            log.warning("the output folder can't be read: %s", error)
            return False

    def _send_beside(self, is_late: Callable[[], bool]) -> None:
        """Send the files beside the result; once it `is_late`, no other is tried."""
        places = sorted(place for name in self.command.beside for place in self.folder.glob(name))
        for place in places[:MOST_BESIDE]:
            path = place.relative_to(self.folder).as_posix()
            while not self._sent_beside(path):
                if is_late():
                    return
                time.sleep(POLL_SECONDS)

    def _sent_beside(self, path: str) -> bool:
        """Try once to send a file beside the result; return whether no other try is needed."""
        try:
            with open_inside(self.folder, path) as body:
                sha256, size = sha256_of(body)
                key = f"{self.node.status.identity.keys.folder}{path}"
                self.node.uplink.put_file(body, key, sha256, size)
        except (*AWS_ERRORS, NotVersioned) as error:
            log.warning("%s was not uploaded: %s", path, error)
            return False
        except OSError as error:  # no plain file
            log.warning("%s was not uploaded: %s", path, error)
        return True

    def _look(self, path: str, about: os.stat_result, *, final: bool, tries: bool) -> bool:
        """Send a file if it has settled; return whether its last state is in S3."""
        state, now = state_of(about), self.clock()
        seen = self._seen.get(path)
        if seen is None or seen.state != state:
            seen = self._seen[path] = _Seen(state=state, since=now, sent=seen.sent if seen else None)
        if seen.is_sent:
            return True
        # Intermediate states of files that are written again and again must not fill the bucket; last states
        # are always sent.
        settled = now - seen.since >= UNCHANGED_SECONDS
        is_due = final or (settled and self._bytes + about.st_size <= self.command.out_bytes)
        if not (is_due and tries):
            return False
        try:
            entry = self._send(path, state)
        except (*AWS_ERRORS, NotVersioned, OSError, _Changed) as error:
            log.warning("%s was not uploaded, it will be tried again: %s", path, error)
            return False
        seen.sent, self.sent[path] = state, entry
        log.info("%s is in S3, sha256 %s", path, entry["sha256"][:12])
        if self._is_due(SCAN_SECONDS):  # else once for all of a scan: the list may have megabytes
            self._send_index()
        return True

    def _send(self, path: str, state: State) -> dict[str, Any]:
        with open_inside(self.folder, path) as body:
            if state_of(os.fstat(body.fileno())) != state:
                raise _Changed("it changed meanwhile")
            sha256, size = sha256_of(body)
            key = f"{self.node.status.identity.keys.outputs}{sha256}"
            if sha256 not in self._uploaded:
                self._uploaded[sha256] = self.node.uplink.put_file(body, key, sha256, size)
                self._bytes += size
        version = self._uploaded[sha256]
        return {"file": path, "key": key, "version_id": version, "sha256": sha256, "bytes": size}

    def _is_due(self, seconds: float = 0.0) -> bool:
        """Return whether the last list was sent so many seconds ago, or longer if it was a large one."""
        pause = self._listed_bytes / LIST_BYTES_PER_SECOND
        return self.clock() - self._listed_at >= (pause if pause > SCAN_SECONDS else seconds)

    def _send_index(self) -> bool:
        """List the files that were sent and the pieces that are over, unless S3 has this list; return whether
        it has it now.
        """
        if (self.sent, self._ends) == self._listed:
            return True
        self._listed_at = self.clock()
        above = folders_of(self.sent)  # within a scan both may be known
        files = [self.sent[path] for path in sorted(self.sent) if path not in above]
        ends = list(self._ends.values())
        body = json.dumps({"files": files, "scripts": ends}).encode()
        if len(body) > MOST_OUTPUTS_BYTES:  # the next attempt needs no texts; the result has them, too
            ends = [{**end, "last_lines": [], "notes": []} for end in ends]
            body = json.dumps({"files": files, "scripts": ends}).encode()
        if not self.node.uplink.try_send(self.node.status.identity.keys.output_index, body):
            return False
        self._listed, self._listed_bytes = (dict(self.sent), dict(self._ends)), len(body)
        return True


def flaw(path: str, about: os.stat_result, before: int, *, hidden: bool = False) -> str:
    """Return why a file can't be sent, '' if it can."""
    if stat.S_ISLNK(about.st_mode):
        return "it is a link"
    if stat.S_ISDIR(about.st_mode):
        return path_flaw(path.removesuffix("/"), hidden=hidden)
    if not stat.S_ISREG(about.st_mode):
        return "it is not a plain file"
    if about.st_size > MOST_FILE_SIZE:
        return f"it has {about.st_size / 2**30:.1f} GiB, one upload takes {MOST_FILE_SIZE / 2**30:.0f}"
    return path_flaw(path, hidden=hidden) or (
        f"a run keeps {MOST_OUTPUTS:,} files" if before >= MOST_OUTPUTS else ""
    )


def _shown(path: str) -> str:
    """Return a path for the receipt, whose reader takes Unicode only: names of files are bytes."""
    text = path.encode(errors="surrogateescape").decode(errors="replace")
    return text if len(text) <= 300 else f"{text[:297]}..."
