"""Send a command's CHECKPOINTS to S3 while it runs: data first, then a manifest (`runs.snapshots`).

A thread of its own, with the lowest priority, looks every few seconds to minutes. It reads each new file
once, sends contents that S3 does not have, and then lists the whole state. A unit of the folder
(`node.checkpoint_folder`) that changes while it is read is read again, and in the end stays as the snapshot
before has it.

Mayfly's trainer writes as often as the machine file says (`checkpoint_seconds`), which follows from what a
snapshot takes and costs; a command of the user's writes when it likes.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError

from trainer.aws.access import error_code
from trainer.aws.parts import PART_BYTES
from trainer.aws.transfer import CHANGED
from trainer.base.errors import ConnectionFailed, NotVersioned, TrainerError, TrainingFailed
from trainer.base.instants import iso, utc_now
from trainer.base.text import counted
from trainer.node.checkpoint_folder import CheckpointFolder, Files
from trainer.node.inside import open_inside
from trainer.node.shared import Node
from trainer.node.uplink import AWS_ERRORS
from trainer.runs.reports import MOST_FILES
from trainer.runs.snapshots import (
    LOOKS,
    MOST_SECONDS,
    PACK_BYTES,
    SMALL_BYTES,
    TRAINING_SECONDS,
    SnapshotObject,
    StoredContent,
    affordable_seconds,
    packs,
    snapshot_of,
    snapshot_to_json,
    snapshot_usd,
)

log = logging.getLogger("trainer.node")
POLL_SECONDS = 0.5
LEAST_SECONDS = 10.0  # between two snapshots, as MOST_SECONDS
AGAIN_SECONDS = 5.0  # after S3 refused
# Assumed, since AWS publishes monthly classes per type and no rate (Spot Instance Advisor, 2026-11-24).
LOST_AFTER_SECONDS = {"spot": 10 * 3600.0, "on_demand": 30 * 24 * 3600.0}
# Then the run ends: it would pay for work that its machine can lose. Two looks, where they are further apart.
MOST_LAG_SECONDS = 900.0
TRIES = 3  # to read a state that does not change meanwhile
NICE = 19


def seconds_between(
    save_seconds: float, *, spot: bool, usd: float, usd_per_hour: float | None, most: float = MOST_SECONDS
) -> float:
    """Return the seconds between two snapshots: Young's and Daly's optimum from the measured seconds of one
    and the rate of losses, `most` at most; more where `usd` for one would be over 1 % of the machine's price.

    J. W. Young, CACM 17(9), 1974; J. T. Daly, FGCS 22(3), 2006, first order: sqrt(2 x save x time to a loss).
    """
    optimum = math.sqrt(2 * save_seconds * LOST_AFTER_SECONDS["spot" if spot else "on_demand"])
    affordable = affordable_seconds(usd, usd_per_hour=usd_per_hour or 0.0)
    return max(min(most, max(LEAST_SECONDS, optimum)), affordable)


class Snapshots:
    """The snapshots of one command's CHECKPOINTS, sent while the `with` lasts, and once more at its end.
    `whole_with` and `folders` make units of its files.
    """

    def __init__(
        self,
        node: Node,
        folder: Path,
        *,
        whole_with: str = "",
        folders: Collection[str] = (),
        usd_per_hour: float | None = None,
        tell: Callable[[int], None] = lambda seconds: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`tell` hands a trainer the seconds between checkpoints of a model, each time that they change."""
        self._node, self._folder, self._clock = node, folder, clock
        self._whole_with, self._usd_per_hour = whole_with, usd_per_hour
        self._there = CheckpointFolder(
            folder, whole_with=whole_with, folders=folders, redacts=lambda path: node.redaction.shows(path)
        )
        self._tell, self._told = tell, 0
        self._parts: dict[str, StoredContent] = {}  # sha256 -> place in S3
        self._units: dict[str, Files] = {}  # of the newest snapshot
        self._sent: Files | None = None  # of the newest snapshot; None: there is none
        self._number = self._stored = 0  # of manifests, which have a key each; of the newest in S3
        self._unsent = b""  # the last manifest, until S3 has taken it
        self._at: datetime = utc_now()  # since when the newest state in S3 had been so
        self._current_at = clock()  # the same, by the clock
        self._refused = False  # by S3, the last time
        self._behind: TrainerError | None = None  # why S3 lacked a part of the state at the last look
        self._on_disk: set[str] = set()  # names of units
        self._save_seconds = self._usd = 0.0  # of the last one
        self._ended = threading.Event()
        self.counts = {"snapshots": 0, "objects": 0, "bytes": 0}
        node.status.durable = self.durable

    def __enter__(self) -> Snapshots:
        self._thread = threading.Thread(target=self._run, name="snapshots", daemon=True)
        self._thread.start()
        threading.Thread(target=self._watch, name="snapshots' lag", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        ends = time.monotonic() + self._node.patience_seconds
        self._thread.join(timeout=self._node.patience_seconds)
        while self._thread.is_alive() or not self.take():
            if time.monotonic() >= ends:
                log.warning("the last checkpoints are not in S3")
                return
            time.sleep(POLL_SECONDS)

    def durable(self) -> dict[str, Any] | None:
        """Return number and age of the newest state in S3, for the progress; None before there is one."""
        if not self._stored:
            return None
        lag = max((utc_now() - self._at).total_seconds(), 0.0)
        return {"number": self._stored, "at": iso(self._at), "lag_seconds": round(lag, 1), **self.counts}

    @property
    def every_seconds(self) -> float:
        """Return the seconds between two snapshots, or between two checkpoints of a trainer's model."""
        return seconds_between(
            self._save_seconds,
            spot=bool(self._node.status.identity.spot_zone),
            usd=self._usd,
            usd_per_hour=self._usd_per_hour,
            most=TRAINING_SECONDS if self._whole_with else MOST_SECONDS,
        )

    @property
    def look_seconds(self) -> float:
        """Return the seconds between two looks."""
        if self._refused:
            return AGAIN_SECONDS
        return self.every_seconds / LOOKS if self._whole_with else self.every_seconds

    def _run(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)  # of this thread alone, on Linux
        due, ending = self._clock() + LEAST_SECONDS, False
        while not self._ended.wait(POLL_SECONDS):
            if not ending and self._node.status.phase == "upload":  # the command has ended
                due, ending = self._clock(), True
            if self._clock() >= due:
                began = self._clock()
                self.take()
                due = began + self.look_seconds

    def _watch(self) -> None:
        """Look at the lag while the other thread may hang."""
        while not self._ended.wait(POLL_SECONDS):
            self.check_lag()

    def check_lag(self) -> None:
        """End the run if S3 has lacked a part of the newest state for too long, whatever the reason. After
        its command the last state has the patience of all uploads.
        """
        seconds = self._clock() - self._current_at
        if seconds < max(MOST_LAG_SECONDS, 2 * self.look_seconds) or self._node.status.phase == "upload":
            return
        do = "Launch again once S3 answers: what its machine computes meanwhile would be lost with it."
        why = self._behind or ConnectionFailed("", why="a state is still being read and sent", do=do)
        what = f"no checkpoint reached S3 for {seconds / 60:.0f} minutes"
        self._node.fail(type(why)(what, why=why.why, do=why.do))

    def take(self) -> bool:
        """Send the present state unless S3 has it; return whether it has now what can be sent."""
        began, at = self._clock(), utc_now()
        before = dict(self.counts)
        try:
            units, self._behind = self._consistent()
            units = {**self._dropped(units), **units}
            files = {path: known for unit in units.values() for path, known in unit.items()}
            if files != (self._sent or {}):
                self._send_manifest(files, at)
        except (*AWS_ERRORS, NotVersioned) as error:
            log.warning("the checkpoints were not sent, they will be tried again: %s", error)
            do = "Launch again once S3 answers: what its machine computes meanwhile would be lost with it."
            self._refused, self._behind = True, ConnectionFailed("S3 refused", why=str(error), do=do)
            return False
        except OSError as error:
            log.warning("the checkpoints can't be read, they will be tried again: %s", error)
            do = "Have the script keep plain files there that its user may read."
            self._behind = TrainingFailed("MAYFLY_CHECKPOINTS can't be read", why=str(error), do=do)
            return False
        self._units, self._refused = units, False
        if self.counts["snapshots"] > before["snapshots"]:
            self._save_seconds = self._clock() - began
            self._account({name: self.counts[name] - before[name] for name in self.counts}, len(files))
        if self._behind is None:
            self._at, self._current_at = at, began
        return True

    def _account(self, more: Mapping[str, int], files: int) -> None:
        """Count what the last snapshot cost, and adjust the interval to it."""
        spent_usd = _usd_of(puts=more["objects"] + 1, size=more["bytes"])
        self._usd = self._round_usd() if self._whole_with else spent_usd
        self._node.status.checkpoints = dict(self.counts)
        log.info(
            "checkpoints are in S3 as snapshot %d: %s, %d new bytes",
            self._stored,
            counted(files, "file"),
            more["bytes"],
        )
        told = int(self.every_seconds)
        if self._whole_with and told != self._told:
            with suppress(OSError):  # a full disk: it is told with the next one
                self._tell(told)
                self._told = told

    def _round_usd(self) -> float:
        """Return what it costs to send each model's checkpoint once: until it writes the next one."""
        sizes: dict[str, int] = {}
        for name, unit in self._units.items():
            model = name.partition("/")[0]
            if name in self._on_disk:
                size = sum(size for _, size in unit.values())
                sizes[model] = max(size, sizes.get(model, 0))
        return _usd_of(puts=2 * LOOKS, size=sum(sizes.values()))

    def _consistent(self) -> tuple[dict[str, Files], TrainerError | None]:
        """Return the files of each unit, all with their contents in S3, and why S3 lacks a unit's newest
        state, if it does.
        """
        units: dict[str, Files] = {}
        behind: TrainerError | None = None
        for number in range(1, TRIES + 1):
            seen = self._there.scan()
            units = {
                name: files for name, unit in seen.items() if (files := self._there.hashed(unit)) is not None
            }
            self._send_contents(units)
            units = {
                name: files
                for name, files in units.items()
                if all(sha256 in self._parts for sha256, _ in files.values())
            }
            if units.keys() == seen.keys() and self._there.scan() == seen:
                break
            if number == TRIES and (changing := seen.keys() - units.keys()):  # they stay as they were
                units |= {name: self._units[name] for name in changing & self._units.keys()}
                behind = self._changing(sorted(changing)[0])
        self._on_disk = set(units)
        return units, behind or self._there.too_many

    def _changing(self, name: str) -> TrainerError:
        why = f"a file in {name or 'it'} changed each time that it was read"
        do = "Write a checkpoint beside the old one, and rename it."
        return TrainingFailed("MAYFLY_CHECKPOINTS never stands still", why=why, do=do)

    def _dropped(self, units: Mapping[str, Files]) -> dict[str, Files]:
        """Return the newest checkpoint of each model that has none on the disk any more: a trainer drops them
        with its model's file, S3 keeps the newest as long as all others.
        """
        if not self._whole_with:
            return {}
        there, room = {name.partition("/")[0] for name in units}, MOST_FILES - sum(map(len, units.values()))
        newest = {name.partition("/")[0]: name for name in sorted(self._units)}
        kept: dict[str, Files] = {}
        for model, name in newest.items():
            if model not in there and (room := room - len(self._units[name])) >= 0:
                kept[name] = self._units[name]
        return kept

    def _send_contents(self, units: Mapping[str, Files]) -> None:
        """Send the contents that S3 does not have."""
        new = {
            sha256: (path, size)
            for files in units.values()
            for path, (sha256, size) in files.items()
            if sha256 not in self._parts
        }
        for pack in packs({sha256: size for sha256, (_, size) in new.items()}):
            if new[pack[0]][1] > SMALL_BYTES:
                self._send_large(pack[0], *new[pack[0]])
            else:
                self._send_pack({sha256: new[sha256] for sha256 in pack})

    def _send_large(self, sha256: str, path: str, size: int) -> None:
        """Send a file from disk. One that changed has no content in S3 then."""
        try:
            with open_inside(self._folder, path) as body:
                stored = self._put(body, sha256, size)
        except OSError as error:
            log.info("%s changed while it was read: %s", path, error)
            return
        except ClientError as error:
            if error_code(error) not in CHANGED:
                raise
            return
        self._parts[sha256] = StoredContent(object=stored, offset=0)

    def _send_pack(self, contents: Mapping[str, tuple[str, int]]) -> None:
        """Send small files as one object."""
        pack, offsets = io.BytesIO(), dict[str, int]()
        if len(contents) > 1:  # else it may have the hash of a file that joins them, and no two objects may
            pack.write(b"\0")
        for sha256, (path, size) in contents.items():
            try:
                with open_inside(self._folder, path) as body:
                    content = body.read(size)
            except OSError:
                continue
            if hashlib.sha256(content).hexdigest() == sha256:
                offsets[sha256] = pack.tell()
                pack.write(content)
        if offsets:
            whole = pack.getvalue()
            stored = self._put(io.BytesIO(whole), hashlib.sha256(whole).hexdigest(), len(whole))
            self._parts |= {
                sha256: StoredContent(object=stored, offset=offset) for sha256, offset in offsets.items()
            }

    def _put(self, body: Any, sha256: str, size: int) -> SnapshotObject:
        """Send an object, as a version of the first slot that holds nothing of the newest snapshot or of the
        next one.
        """
        taken = {part.object.slot for part in self._parts.values()}
        slot = next(slot for slot in itertools.count(1) if slot not in taken)
        key = self._node.status.identity.keys.snapshot_data(slot)
        journals = self._node.work / "uploads"
        version_id = self._node.uplink.put_file(body, key, sha256, size, journals=journals)
        self.counts["objects"] += 1
        self.counts["bytes"] += size
        return SnapshotObject(sha256=sha256, size=size, version_id=version_id, slot=slot)

    def _send_manifest(self, files: Files, at: datetime) -> None:
        """List the files as the next snapshot. Each number has a key with one content, and none is left out:
        the one before the first that is missing is the newest, for a node that may not list (`other_nodes`).
        """
        identity = self._node.status.identity
        if self._unsent:  # what it names still lies in S3: nothing was replaced since
            self._create_manifest()
        self._number += 1
        named: Any = {"run_id": identity.run_id, "attempt": identity.attempt, "number": self._number}
        self._unsent = snapshot_to_json(snapshot_of(files, self._parts, at=at, **named))
        self._create_manifest()
        self._stored, self._sent = self._number, files
        self.counts["snapshots"] += 1
        needed = {sha256 for sha256, _ in files.values()}
        self._parts = {sha256: part for sha256, part in self._parts.items() if sha256 in needed}

    def _create_manifest(self) -> None:
        self._node.uplink.create(self._unsent, self._node.status.identity.keys.snapshot(self._number))
        self._unsent = b""


def _usd_of(*, puts: int, size: int) -> float:
    """Return the dollars of a snapshot, whose bytes may be those of large objects, with a request a part."""
    return snapshot_usd(puts=puts + (size // PART_BYTES if size > PACK_BYTES else 0), size=size)
