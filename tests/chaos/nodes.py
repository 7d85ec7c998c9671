"""The machines of a simulated run: what their nodes leave in S3, and how they end.

A node is a model of one, with the product's own sender of checkpoints (`node.snapshots`) on files in memory.
"""

from __future__ import annotations

import hashlib
import io
import json
from base64 import b64encode
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

from tests.chaos.aws import Aws, failure
from tests.chaos.run import ROLE, RUN, WORKS, checkpoint, done_in, done_of_each, model_name
from tests.chaos.schedule import BOOT_SECONDS, NodeLife
from tests.chaos.sender import Sender
from tests.pieces import named
from trainer.base.errors import TrainerError
from trainer.base.instants import iso
from trainer.rehearsal.world import Instance
from trainer.runs.keys import NodeKeys
from trainer.runs.lease import LEASE
from trainer.runs.start_file import StartFile, read_start
from trainer.runs.store import start_key

BEAT, SNAPSHOT_SECONDS = 3.0, 60.0
STOP_SECONDS = 20.0  # which a node takes to end on request
LATE_SECONDS = 200.0  # after its end, for a request that was on its way
PROGRESS_BOUND = 60  # seconds without progress that its lease allows
STARTED = {"exit_code": 0, "starts": 1, "values": {}, "sha256": "", "best": {}, "seconds": 1.0}


class Lost(BaseException):
    """The machine is gone in the midst of what its node does."""


class Machine:
    """One node: what it writes, what it does, and how it ends. Its tasks take equal shares of the life's work."""

    def __init__(self, aws: Aws, instance: Instance, life: NodeLife) -> None:
        self.aws, self.instance, self.life = aws, instance, life
        self.work = WORKS[aws.schedule.work]
        tags = instance.tags
        self.attempt = int(tags.get("attempt", "1"))
        self.keys = NodeKeys(role_id=ROLE, instance_id=instance.id, run_id=RUN, attempt=self.attempt)
        self.skew = timedelta(seconds=aws.schedule.node_skew)
        self.works = self.kernel = True  # whether its agent, and its kernel, still do
        self.silent_since: datetime | None = None
        self.stalled_since: datetime | None = None  # its agent reports, and its worker does nothing
        self.beat_at: datetime | None = None  # of the lease in S3
        self.writes = 0  # to S3, besides the leases
        self.reports: dict[str, dict[str, Any]] = {}  # what is in S3 of finished tasks: task -> its entry
        self.uploaded: dict[str, datetime] = {}
        self.trained: dict[str, float] = {}  # task -> seconds that were done when it began with it
        self.done: dict[str, float] = {}  # task -> seconds of it that are done
        self.sender = Sender(self)
        self.snapshots: list[tuple[datetime, dict[str, float]]] = []  # in S3, whole
        self.start: StartFile | None = None
        self.result: dict[str, Any] | None = None
        self.stopping = False
        self.began = instance.running_at + timedelta(seconds=life.boot)
        self.ticked = self.began
        self.deadline = (
            datetime.fromisoformat(tags["deadline"].replace("Z", "+00:00")) if "deadline" in tags else None
        )
        self._at(instance.running_at, self._boot)

    @property
    def alive(self) -> bool:
        return self.instance.shutting_down_at is None

    @property
    def spoils(self) -> bool:
        """Return whether what it left can't be all that it reported."""
        return self.life.fate == "spoils" or bool(self.life.locked)

    def seconds(self) -> float:
        return (self.aws.now - self.instance.running_at).total_seconds()

    # its life
    # --------------------------------------------------------------------------------------------------------

    def _at(self, when: datetime, act: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                act()
            except Lost:
                self.aws.say(f"{self.instance.id} is lost after {self.writes} writes")

        self.aws.at(when, guarded)

    def _after(self, seconds: float, act: Callable[[], None]) -> None:
        self._at(self.aws.now + timedelta(seconds=seconds), act)

    def _boot(self) -> None:
        if not self.alive:
            return
        if self.deadline is not None:
            self._at(self.deadline - self.skew, self._timer)
        if self.life.fate == "never_reports":
            self.silent_since = self.aws.now
            return
        self._at(self.began, self._says)
        if not self.life.writes and (fate := self._fate()) is not None:
            self._at(self.instance.running_at + timedelta(seconds=self.life.at), fate)

    def _fate(self) -> Callable[[], None] | None:
        fates = {
            "hangs": self._hang, "stalls": self._stall, "dies": self._die, "panics": self._panic,
            "taken": self._noticed, "taken_unseen": self._taken, "zombie": self._hang,
        }  # fmt: skip
        return fates.get(self.life.fate)

    def _says(self) -> None:
        """Find itself in its start file, then begin the work; without it, end at the boot allowance."""
        if not (self.alive and self.works):
            return
        if self._reaches_s3():
            stored = self.aws.bucket.newest(start_key(RUN, self.attempt))
            start = read_start(stored.body, run_id=RUN, attempt=self.attempt) if stored else None
            # one that forges works although its word does not count
            known = start is not None and (self.aws.schedule.cluster == 1 or start.addresses)
            if known and (self.instance.id in start.instances or self.life.fate == "forges"):
                self._begin(start)
                return
        if self.aws.now > self.instance.running_at + timedelta(seconds=BOOT_SECONDS):
            self.aws.say(f"{self.instance.id} is in no start file")
            self._hang()
            self._trap()
            return
        self._after(10.0, self._says)

    def _begin(self, start: StartFile) -> None:
        """Take over what earlier attempts finished, and their checkpoints."""
        self.start, self.ticked = start, self.aws.now
        phases = {"boot": iso(self.instance.running_at + self.skew), "train": iso(self.aws.now + self.skew)}
        body = {"phase": "train", "phases": phases, "models_total": len(self.work.tasks)}
        self._write(self.keys.progress, json.dumps(body).encode())
        objects, bodies = {one.sha256: one for one in start.objects}, []
        for file in start.files:
            item = objects[file.object]
            stored = self.aws.bucket.newest(item.key, item.version_id)
            assert stored is not None
            bodies.append(stored.body[file.offset : file.offset + file.size])
            assert hashlib.sha256(bodies[-1]).hexdigest() == file.sha256
        self.done |= done_in(bodies) if self._is_alone else done_of_each(bodies)
        self._work()

    def _work(self) -> None:
        """Train until the next event: a task's end, or a snapshot."""
        if not (self.alive and self.works and self.start) or self.result is not None:
            return
        now, each = self.aws.now, self.life.work / len(self.work.tasks)
        spent, self.ticked = (now - self.ticked).total_seconds(), now
        current = next(iter(self._left()), None)
        if current is not None and current in self.trained:
            self.done[current] = self.done.get(current, 0.0) + spent
            if self.done[current] >= each - 0.01 and not self._finish(current):
                self._after(20.0, self._work)
                return
        following = next(iter(self._left()), None)
        if self._is_abandoned() and not self._is_over():
            self._after(5.0, lambda: self._end("failed"))
            return
        if following is None and not self._is_over():
            self._after(10.0, self._work)  # for what a peer has under way
            return
        if following is None:
            self._end("failed" if self.life.fate == "fails" else "done")
            return
        if following not in self.trained:  # what a dead peer had begun goes on from its newest checkpoint
            sent = [one.snapshots[-1][1] for one in self.peers if one is not self and one.snapshots]
            self.done[following] = max(done.get(following, 0.0) for done in (self.done, *sent))
        self.trained.setdefault(following, self.done.get(following, 0.0))
        rest = max(each - self.done.get(following, 0.0), 0.0)
        if spent:
            self._snapshot()
        self._after(min(rest, SNAPSHOT_SECONDS), self._work)

    def _left(self) -> Iterator[str]:
        """Yield the tasks that nobody has finished, and that no peer has."""
        finished = [*(self.start.pieces if self.start else ()), *self.reports]
        for number, one in enumerate(self.work.tasks):
            if one not in finished and self._whose(number) is self:
                yield one

    # several machines: what Ray's queue, and ranks, would have them do
    # --------------------------------------------------------------------------------------------------------

    @property
    def peers(self) -> list[Machine]:
        """Return the machines of its attempt in order, itself among them."""
        names = (
            self.start.instances if self.start is not None and self.start.addresses else (self.instance.id,)
        )
        return [self.aws.nodes[name] for name in names]

    @property
    def _is_alone(self) -> bool:
        """Return whether its checkpoints are of all tasks: machines that share tasks have those of theirs."""
        return self.aws.schedule.cluster == 1 or self.aws.schedule.one_model

    @property
    def is_at_work(self) -> bool:
        return self.alive and self.works and self.result is None

    def _whose(self, number: int) -> Machine | None:
        """Return who makes a task: of one model the head; else each in turn, for a dead one the head; None if it is
        made.
        """
        peers, task = self.peers, self.work.tasks[number]
        if any(task in one.reports for one in peers):
            return None
        if self.aws.schedule.one_model or len(peers) == 1:
            return peers[0]
        own = peers[number % len(peers)]
        return own if own.is_at_work else peers[0]

    def _is_over(self) -> bool:
        """Return whether every task is made."""
        finished = self.start.pieces if self.start else ()
        return all(
            task in finished or self._whose(number) is None for number, task in enumerate(self.work.tasks)
        )

    def _is_abandoned(self) -> bool:
        """Return whether the machine that its work needs is gone: the head, or of one model any."""
        needed = self.peers if self.aws.schedule.one_model else self.peers[:1]
        return any(
            not one.is_at_work and (one.result is None or one.result["state"] != "done") for one in needed
        )

    def stop(self) -> None:
        """Find the request to stop with the next beat."""
        if self.alive and self.works and not self.stopping and self.start is not None:
            self.stopping = True
            self._after(STOP_SECONDS, lambda: self._end("stopped"))

    def give_up(self, error: TrainerError) -> None:
        """End the work with an error, as the node does whose checkpoints S3 refuses for too long."""
        self._after(1.0, lambda: self._end("failed"))

    def _end(self, state: str) -> None:
        """Report and power off; while S3 fails, try until the deadline ends it."""
        if not (self.alive and self.works) or self.result is not None:
            return
        if not self._reaches_s3():
            self._after(15.0, lambda: self._end(state))
            return
        if state != "done":
            self._snapshot()
        error = {"code": 100, "what": "training failed", "why": "", "do": ""} if state == "failed" else None
        self._report(state, error=error, exit_code=100 if error else 0)
        self.beat()
        self.silent_since = self.aws.now
        if self.life.fate != "stays_on":
            self._trap()

    # its ends
    # --------------------------------------------------------------------------------------------------------

    def _trap(self) -> None:
        """Power off as the agent ends: the first layer."""
        if "L1" not in self.aws.schedule.off and self.kernel:
            self._after(2.0, lambda: self.aws.power_off(self.instance))

    def _timer(self) -> None:
        """Power off at the deadline: the second layer."""
        if self.alive and self.kernel and "L2" not in self.aws.schedule.off:
            reports = self.works and self.result is None and self.start is not None
            try:
                if reports and self._reaches_s3():
                    self._report("expired")
            finally:  # systemd's, whatever becomes of the agent
                self.aws.power_off(self.instance)

    def _hang(self) -> None:
        if self.works and self.result is None:
            self.works, self.silent_since = False, self.silent_since or self.aws.now
            self.aws.say(f"{self.instance.id} hangs")

    def _stall(self) -> None:
        """Let its worker hang: the agent reports that there is no progress."""
        if self.works and self.result is None:
            self.works, self.stalled_since = False, self.aws.now
            self.aws.say(f"{self.instance.id} makes no progress")

    def _die(self) -> None:
        if self.works and self.alive and self.result is None:
            self._hang()
            self._trap()

    def _panic(self) -> None:
        if self.alive and self.result is None:
            self._hang()
            self.kernel = False

    def _noticed(self) -> None:
        """Hear two minutes before the end: send the last checkpoint, report, and end."""
        if self.alive and self.instance.description.get("InstanceLifecycle") == "spot":
            self._after(120.0, self._taken)
            if self.start is not None:
                self._work()
                self._end("interrupted")

    def _taken(self) -> None:
        spot = self.instance.description.get("InstanceLifecycle") == "spot"
        if self.alive and spot:
            self.aws.say(f"{self.instance.id} is taken back")
            self.aws.take_back(self.instance)

    def ended(self) -> None:
        """Let what a lost node sent arrive after its end: all of its work, as if it were done."""
        if self.life.fate == "zombie" and self.start is not None and self.instance.terminated_at is not None:
            self._at(self.instance.terminated_at + timedelta(seconds=LATE_SECONDS), self._late_words)

    def _late_words(self) -> None:
        if self.result is not None or not self._reaches_s3():
            return
        known = dict(self.reports), dict(self.uploaded)
        try:
            for task in self._left():
                self._upload(task, "late")
            self._write(self.keys.result, json.dumps(self._said("done")).encode())
        finally:
            self.reports, self.uploaded = known  # nobody has to know of it

    # what it writes
    # --------------------------------------------------------------------------------------------------------

    def beat(self) -> None:
        """Bring the lease in S3 up to the present, as the node's own beats would have."""
        now = min(
            self.aws.now, self.silent_since or self.aws.now, self.instance.shutting_down_at or self.aws.now
        )
        if now < self.began or not self._reaches_s3():
            return
        beats = int((now - self.began).total_seconds() / BEAT)
        at = self.began + timedelta(seconds=beats * BEAT)
        if self.beat_at is not None and at <= self.beat_at:
            return
        self.beat_at = at
        moved = min(at, self.stalled_since or at)
        body = {
            "instance_id": self.instance.id,
            "at": iso(at + self.skew),
            "lease_until": iso(at + self.skew + LEASE),
            "progress_at": iso(moved + self.skew),
            "progress_bound": PROGRESS_BOUND,
        }
        self.aws.bucket.write(self.keys.lease, json.dumps(body).encode(), self.aws.now)

    def _snapshot(self) -> None:
        """Send the checkpoint as the product does."""
        if not self.done or not self.work.shards:
            return
        parts = (
            {"": self.done}
            if self._is_alone
            else {f"{one}-": {one: self.done.get(one, 0.0)} for one in self.trained}
        )
        for name, done in parts.items():
            ranks = range(self.work.shards)
            self.sender.files.update({f"{name}rank-{rank}.json": checkpoint(rank, done) for rank in ranks})
        taken = self.sender.take()
        self.sender.check_lag()
        if taken:
            self.snapshots.append((self.aws.now, dict(self.done)))

    def put_file(self, body: io.BytesIO, key: str, sha256: str, size: int, **_: object) -> str:
        """Create an object of a checkpoint, and return its version."""
        return self._sent(key, body.read(), metadata={"sha256": sha256})

    def create(self, body: bytes, key: str) -> None:
        """Create a checkpoint's manifest; one that exists stays, as with S3's If-None-Match."""
        there = self.aws.bucket.newest(key)
        if there is None or there.body != body:
            self._sent(key, body)

    def _sent(self, key: str, body: bytes, **more: Any) -> str:
        if not self._reaches_s3():
            raise failure("ServiceUnavailable", "PutObject")
        return self._write(key, body, **more)

    def _finish(self, task: str) -> bool:
        """Upload what a task made, and return whether it is in S3."""
        if not self._reaches_s3():
            return False
        self._upload(task, "in time")
        return True

    def _upload(self, task: str, when: str) -> None:
        body = f"{task} by {self.instance.id}, {when}".encode()
        sha256 = hashlib.sha256(body).hexdigest()
        if self.work.leaves == "candles":
            self.reports[task] = {
                "file": f"{task}_1m.csv",
                "sha256": sha256,
                "bytes": len(body),
                "added": True,
            }
            return  # only its result names it
        if self.work.leaves == "models":
            key = f"{self.keys.models}{model_name(task)}.safetensors"
            version = self._write(key, b"weights", metadata={"sha256": sha256})
            self.reports[task] = {
                **named(task),
                "family": "lstm",
                "key": key,
                "version_id": version,
                "sha256": sha256,
            }
        else:
            key, checksum = f"{self.keys.outputs}{sha256}", b64encode(bytes.fromhex(sha256)).decode()
            version = self._write(key, body, checksum=checksum)
            file = {
                "file": f"{task}.txt",
                "key": key,
                "version_id": version,
                "sha256": sha256,
                "bytes": len(body),
            }
            if self.life.fate == "spoils":
                file["version_id"] = "v-none"
            listed = {"files": [file], "scripts": [self._script(task)]}
            self._write(self.keys.output_index, json.dumps(listed).encode())
            self.reports[task] = file
        self.uploaded[task] = self.aws.now

    def _script(self, task: str) -> dict[str, Any]:
        return {**named(task), **STARTED, "done": True}

    def _report(self, state: str, **more: Any) -> None:
        said = self._said(state) | more
        if self.life.fate == "spoils" and said.get("models"):
            said["models"][0] = {**said["models"][0], "version_id": "v-none"}
        self._write(self.keys.result, json.dumps(said).encode(), then=lambda: setattr(self, "result", said))

    def _said(self, state: str) -> dict[str, Any]:
        lived = min(self.aws.now, self.instance.shutting_down_at or self.aws.now)  # its clock ends with it
        phases = {"boot": self.instance.running_at + self.skew, "end": lived + self.skew}
        if self.start is not None:
            phases["train"] = max(self.began, self.instance.running_at) + self.skew
        made = {
            "models": lambda: {"models": list(self.reports.values())},
            "files": lambda: {"scripts": [self._script(task) for task in self.reports]},
            "candles": lambda: {"files": list(self.reports.values())},
        }[self.work.leaves]()
        return {"state": state, "phases": {name: iso(at) for name, at in phases.items()}, **made}

    def _reaches_s3(self) -> bool:
        return not (self.aws.down("s3") or self.aws.down("net:node"))

    def _write(self, key: str, body: bytes, *, then: Callable[[], None] = lambda: None, **more: Any) -> str:
        """Write an object; the machine's fate may come right after it."""
        self.writes += 1
        locked = self.life.lock if self.writes == self.life.locked else ""
        version = self.aws.bucket.write(key, body, self.aws.now, locked=locked, **more).version_id
        then()
        if self.writes == self.life.writes and (fate := self._fate()) is not None:
            fate()
            raise Lost
        return version
