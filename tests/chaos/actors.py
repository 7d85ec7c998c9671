"""The actors of a simulated run: the desk, control, the sweeper, the Scheduler, EC2's events, and the machines with their
timer and trap. Desk, control and sweeper are the product's own code; nodes are what they leave in S3 and when they end.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from functools import cache, lru_cache
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from tests.chaos.aws import BUCKET, GROUP, Access, Aws, Caller, kill_ids
from tests.chaos.schedule import BOOT_SECONDS, CONTROL_SECONDS, START, SWEEP_SECONDS, NodeLife, Schedule
from tests.pieces import named
from trainer.aws.stack_outputs import StackOutputs
from trainer.base.errors import TrainerError, UsageError
from trainer.control import carry as carry_module
from trainer.control import cloud as cloud_module
from trainer.control import observe as observe_module
from trainer.control import settle as settle_module
from trainer.control.cloud import AwsCloud
from trainer.control.drive import goes_on_alone, leave, step
from trainer.control.functions import sweep as sweep_module
from trainer.control.functions.control import answer
from trainer.control.functions.sweep import Clients, SweepSettings, sweep
from trainer.control.progress import overdue
from trainer.control.retrain import RetrainHome
from trainer.control.settle import settle_all
from trainer.control.stop import request_stop
from trainer.rehearsal.world import Instance
from trainer.runs import record_json as record_json_module
from trainer.runs import store as store_module
from trainer.runs.actions import sweep_schedule
from trainer.runs.deadline import armed_for
from trainer.runs.index import INDEX_KEY, begin_run, note_shown
from trainer.runs.keys import NodeKeys
from trainer.runs.lease import LEASE
from trainer.runs.record import Rung, RunPiece, RunRecord, iso
from trainer.runs.record_json import record_from_json
from trainer.runs.snapshots import SnapshotObject, StoredContent, snapshot_of, snapshot_to_json
from trainer.runs.start_file import StartFile, read_start
from trainer.runs.store import start_key

RUN = "20261120-120000-crypto-k3v9"
ROLE = "AROA1"
BEAT, SNAPSHOT_SECONDS = 3.0, 60.0
STOP_SECONDS = 20.0  # which a node takes to end on request
SYMBOLS = ("BTC-USD", "ETH-USD")
OUTPUTS = StackOutputs(
    project="mayfly", stack="dev", bucket=BUCKET, schedule_group=GROUP, instance_role_id=ROLE,
    scheduler_role_arn="arn:aws:iam::1:role/scheduler", sweeper_arn="arn:aws:lambda:us-east-1:1:function:sweeper",
)  # fmt: skip
SETTINGS = SweepSettings(project="mayfly", stack="dev", bucket=BUCKET, schedule_group=GROUP)
PRICES = {"on_demand": 5.0, "spot": 2.0}  # of an hour


def record_of(schedule: Schedule) -> RunRecord:
    """Return the record of the run that a schedule is about."""
    ladder = tuple(
        Rung(
            instance_type="g5.12xlarge",
            availability_zone=f"us-east-1{zone}",
            subnet_id=f"subnet-us-east-1{zone}",
            market=market,
            price_usd_per_hour=PRICES[market],
            on_demand_usd_per_hour=5.0,
            launch_template_id="lt-1",
            image_id="ami-1",
            vcpus=48,
            quota_code="",
            boot_seconds=BOOT_SECONDS,
        )
        for zone, market in zip("abc", schedule.markets, strict=False)
    )
    pieces = tuple(RunPiece(model=f"lstm_{one}_1m", **{**named(one), "series": (one,)}) for one in SYMBOLS)
    return RunRecord(
        run_id=RUN, project="mayfly", stack="dev", owner="someone", place="account", bucket=BUCKET,
        instance_role_id=ROLE, job={"name": "crypto", "data": {"symbols": list(SYMBOLS), "timeframe": "1m"}},
        pieces=pieces, ladder=ladder, bundle_key="code/abc.whl", bundle_sha256="abc",
        budget_usd=schedule.budget_usd, estimated_usd=0.5, preflight_at=START - timedelta(seconds=5),
        created_at=START, deadline=START + timedelta(minutes=schedule.minutes), deadline_cause="max_duration",
        driver=schedule.driver,  # type: ignore[arg-type]
        queue_seconds=schedule.queue_minutes * 60,
    )  # fmt: skip


POOLED = (carry_module, observe_module, settle_module)  # which ask several things at once


class InLine:
    """The pool of threads that `settle` and `observe` ask at once, in the caller's own thread and in order."""

    def __init__(self, *_: Any) -> None: ...

    def __enter__(self) -> InLine:
        return self

    def __exit__(self, *_: object) -> None: ...

    def shutdown(self, **_: Any) -> None: ...

    def submit(self, call: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(call(*arguments))
        return future

    def map(self, call: Callable[..., Any], *items: Any, timeout: float | None = None) -> Iterator[Any]:
        return map(call, *items)


@lru_cache(maxsize=4096)
def record_at_once(body: bytes) -> RunRecord:
    return record_from_json(body)


def _compact(value: Any) -> bytes:
    """Write a record without indentation, which Python would make itself, slowly."""
    return json.dumps(_plain(value)).encode()


@cache
def _fields_of(cls: type) -> tuple[str, ...]:
    return tuple(item.name for item in fields(cls))


def _plain(value: Any) -> Any:
    """Return a record as JSON values, as `record_json` does, by types that it has."""
    kind = type(value)
    if kind in (str, int, float, bool, type(None), dict):
        return value
    if kind is datetime:
        return iso(value)
    if kind is tuple:
        return [_plain(item) for item in value]
    return {name: _plain(getattr(value, name)) for name in _fields_of(kind)}


@contextmanager
def simulated(aws: Aws) -> Iterator[None]:
    """Give the product's modules the simulator's clock, and its pools no threads."""
    before = cloud_module.utc_now, store_module.record_from_json, store_module.to_json
    cloud_module.utc_now = aws.callers_now
    if store_module.record_from_json is record_from_json:  # else it is mutated
        store_module.record_from_json = record_at_once
    if store_module.to_json is record_json_module.to_json:
        store_module.to_json = _compact
    for module in POOLED:
        module.ThreadPoolExecutor = InLine  # type: ignore[attr-defined]
    sweep_module.print = lambda *_: None  # type: ignore[attr-defined]  # its log
    try:
        yield
    finally:
        del sweep_module.print  # type: ignore[attr-defined]
        cloud_module.utc_now, store_module.record_from_json, store_module.to_json = before
        for module in POOLED:
            module.ThreadPoolExecutor = ThreadPoolExecutor  # type: ignore[attr-defined]


# machines
# ------------------------------------------------------------------------------------------------------------


class Machine:
    """One node: what it writes, what it trains, and how it ends. A piece takes half of the life's work."""

    def __init__(self, aws: Aws, instance: Instance, life: NodeLife) -> None:
        self.aws, self.instance, self.life = aws, instance, life
        tags = instance.tags
        self.attempt = int(tags.get("attempt", "1"))
        self.keys = NodeKeys(role_id=ROLE, instance_id=instance.id, run_id=RUN, attempt=self.attempt)
        self.skew = timedelta(seconds=aws.schedule.node_skew)
        self.works = self.kernel = True  # whether its agent, and its kernel, still do
        self.silent_since: datetime | None = None
        self.beat_at: datetime | None = None  # of the lease in S3
        self.reports: dict[str, dict[str, str]] = {}  # models in S3 that it reported: name -> entry
        self.uploaded: dict[str, datetime] = {}
        self.trained: dict[str, float] = {}  # symbol -> seconds that were done when it began with it
        self.done: dict[str, float] = {}  # symbol -> seconds of it that are done
        self.snapshots: list[tuple[datetime, dict[str, float]]] = []  # in S3, whole
        self.start: StartFile | None = None
        self.result: dict[str, Any] | None = None
        self.stopping = False
        self.began = instance.running_at + timedelta(seconds=life.boot)
        self.ticked = self.began
        self.deadline = (
            datetime.fromisoformat(tags["deadline"].replace("Z", "+00:00")) if "deadline" in tags else None
        )
        aws.at(instance.running_at, self._boot)

    @property
    def alive(self) -> bool:
        return self.instance.shutting_down_at is None

    def _boot(self) -> None:
        life, aws = self.life, self.aws
        if not self.alive:
            return
        if self.deadline is not None:
            aws.at(self.deadline - self.skew, self._timer)
        if life.fate == "never_reports":
            self.silent_since = aws.now
            return
        aws.at(self.began, self._says)
        fates = {
            "hangs": self._hang,
            "dies": self._die,
            "panics": self._panic,
            "taken": self._noticed,
            "taken_unseen": self._taken,
        }
        if (fate := fates.get(life.fate)) is not None:
            aws.at(instance_time(self.instance, life.at), fate)

    def _says(self) -> None:
        """Find itself in its start file, then begin the work; without it, end at the boot allowance."""
        if not (self.alive and self.works):
            return
        if self._reaches_s3():
            key = start_key(RUN, self.attempt)
            stored = self.aws.bucket.newest(key)
            start = read_start(stored.body, run_id=RUN, attempt=self.attempt) if stored else None
            # one that forges works although its word does not count
            if start is not None and (self.instance.id in start.instances or self.life.fate == "forges"):
                self._begin(start)
                return
        if self.aws.now > self.instance.running_at + timedelta(seconds=BOOT_SECONDS):
            self.aws.say(f"{self.instance.id} is in no start file")
            self._hang()
            self._trap()
            return
        self.aws.after(10.0, self._says)

    def _begin(self, start: StartFile) -> None:
        """Take over what earlier attempts finished, and their checkpoints."""
        self.start, self.ticked = start, self.aws.now
        phases = {"boot": iso(self.instance.running_at + self.skew), "train": iso(self.aws.now + self.skew)}
        body = {"phase": "train", "phases": phases, "models_total": 2}
        self._write(self.keys.progress, json.dumps(body).encode())
        for file in start.files:
            (item,) = [one for one in start.objects if one.sha256 == file.object]
            stored = self.aws.bucket.newest(item.key, item.version_id)
            assert stored is not None and hashlib.sha256(stored.body).hexdigest() == item.sha256
            self.done |= json.loads(stored.body)
        self._work()

    def _work(self) -> None:
        """Train until the next event: a model's end, or a snapshot."""
        if not (self.alive and self.works and self.start) or self.result is not None:
            return
        now, each = self.aws.now, self.life.work / 2
        spent, self.ticked = (now - self.ticked).total_seconds(), now
        current = next(iter(self._left()), None)
        if current is not None and current in self.trained:
            self.done[current] = self.done.get(current, 0.0) + spent
            if self.done[current] >= each - 0.01 and not self._finish_model(current):
                self.aws.after(20.0, self._work)
                return
        following = next(iter(self._left()), None)
        if following is None:
            self._end("failed" if self.life.fate == "fails" else "done")
            return
        self.trained.setdefault(following, self.done.get(following, 0.0))
        rest = max(each - self.done.get(following, 0.0), 0.0)
        if spent:
            self._snapshot()
        self.aws.after(min(rest, SNAPSHOT_SECONDS), self._work)

    def _left(self) -> Iterator[str]:
        """Yield the symbols that nobody has finished."""
        finished = self.start.pieces if self.start else ()
        return (one for one in SYMBOLS if one not in finished and f"lstm_{one}_1m" not in self.reports)

    def _snapshot(self) -> None:
        """Send the checkpoints: data first, then the manifest."""
        if not self._reaches_s3() or not self.done:
            return
        body = json.dumps({symbol: round(done, 3) for symbol, done in self.done.items()}).encode()
        sha256 = hashlib.sha256(body).hexdigest()
        number = len(self.snapshots) + 1
        slot = 1 + number % 2  # the one that the newest snapshot does not need
        version = self._write(self.keys.snapshot_data(slot), body, metadata={"sha256": sha256})
        stored = SnapshotObject(sha256=sha256, size=len(body), version_id=version, slot=slot)
        snapshot = snapshot_of(
            {"checkpoint.json": (sha256, len(body))},
            {sha256: StoredContent(object=stored, offset=0)},
            run_id=RUN,
            attempt=self.attempt,
            number=number,
            at=self.aws.now + self.skew,
        )
        self._write(self.keys.snapshot(number), snapshot_to_json(snapshot))
        self.snapshots.append((self.aws.now, dict(self.done)))

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
        body = {
            "instance_id": self.instance.id,
            "at": iso(at + self.skew),
            "lease_until": iso(at + self.skew + LEASE),
        }
        self._write(self.keys.lease, json.dumps(body).encode())

    def stop(self) -> None:
        """Find the request to stop with the next beat."""
        if self.alive and self.works and not self.stopping and self.start is not None:
            self.stopping = True
            self.aws.after(STOP_SECONDS, lambda: self._end("stopped"))

    def _finish_model(self, symbol: str) -> bool:
        """Upload a finished model, and return whether it is in S3."""
        if not self._reaches_s3():
            return False
        name = f"lstm_{symbol}_1m"
        sha256 = hashlib.sha256(f"{symbol} by {self.instance.id}".encode()).hexdigest()
        key = f"{self.keys.models}{name}.safetensors"
        version = self._write(key, b"weights", metadata={"sha256": sha256})
        self.reports[name] = {"key": key, "version_id": version, "sha256": sha256}
        self.uploaded[symbol] = self.aws.now
        return True

    def _end(self, state: str) -> None:
        """Report and power off; while S3 fails, try until the deadline ends it."""
        if not (self.alive and self.works) or self.result is not None:
            return
        if not self._reaches_s3():
            self.aws.after(15.0, lambda: self._end(state))
            return
        if state != "done":
            self._snapshot()
        models = self._models()
        if self.life.fate == "spoils" and models:
            models[0] = {**models[0], "version_id": "v-none"}
        error = {"code": 100, "what": "training failed", "why": "", "do": ""} if state == "failed" else None
        self._report(state, models=models, error=error, exit_code=100 if error else 0)
        self.beat()
        self.silent_since = self.aws.now
        if self.life.fate != "stays_on":
            self._trap()

    def _models(self) -> list[dict[str, Any]]:
        ids = {f"lstm_{symbol}_1m": named(symbol) for symbol in SYMBOLS}
        return [{**ids[name], "family": "lstm", **entry} for name, entry in self.reports.items()]

    def _report(self, state: str, **more: Any) -> None:
        phases = {"boot": self.instance.running_at + self.skew, "end": self.aws.now + self.skew}
        if self.start is not None:
            phases["train"] = max(self.began, self.instance.running_at) + self.skew
        self.result = {"state": state, "phases": {name: iso(at) for name, at in phases.items()}, **more}
        self._write(self.keys.result, json.dumps(self.result).encode())

    def _trap(self) -> None:
        """Power off as the agent ends: the first layer."""
        if "L1" not in self.aws.schedule.off and self.kernel:
            self.aws.after(2.0, lambda: self.aws.power_off(self.instance))

    def _timer(self) -> None:
        """Power off at the deadline: the second layer."""
        if self.alive and self.kernel and "L2" not in self.aws.schedule.off:
            reports = self.works and self.result is None and self.start is not None
            if reports and self._reaches_s3():
                self._report("expired", models=self._models())
            self.aws.power_off(self.instance)

    def _hang(self) -> None:
        if self.works and self.result is None:
            self.works, self.silent_since = False, self.silent_since or self.aws.now
            self.aws.say(f"{self.instance.id} hangs")

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
            self.aws.after(120.0, self._taken)
            if self.start is not None:
                self._work()
                self._end("interrupted")

    def _taken(self) -> None:
        spot = self.instance.description.get("InstanceLifecycle") == "spot"
        if self.alive and spot:
            self.aws.say(f"{self.instance.id} is taken back")
            self.aws.take_back(self.instance)

    def _reaches_s3(self) -> bool:
        return not (self.aws.down("s3") or self.aws.down("net:node"))

    def _write(self, key: str, body: bytes, **more: Any) -> str:
        return self.aws.bucket.write(key, body, self.aws.now, **more).version_id


def instance_time(instance: Instance, seconds: float) -> datetime:
    return instance.running_at + timedelta(seconds=seconds)


# callers
# ------------------------------------------------------------------------------------------------------------


class Desk:
    """One command: it launches the run or only looks, and follows it by steps until its end or its death."""

    def __init__(self, sim: Simulation, *, begins: bool, role: str = "desk") -> None:
        self.sim, self.begins = sim, begins
        self.caller = Caller(role, timedelta(seconds=sim.schedule.desk_skew))
        self.cloud = sim.cloud_of()
        self.seen = self.stopped = False
        sim.aws.after(0.0, self._act)

    def _act(self) -> None:
        sim = self.sim
        if sim.aws.busy.count(self.caller.role) or len(sim.aws.busy) >= 5:
            sim.aws.after(1.0, self._act)
            return
        if not sim.aws.act(self.caller, self._look):
            sim.desk_died()

    def _look(self) -> None:
        aws, schedule = self.sim.aws, self.sim.schedule
        pause = schedule.poll
        try:
            if self.begins:
                begin_run(self.cloud.objects, self.sim.record)
                self.begins, self.seen = False, True
            asked = schedule.stop_at and aws.now >= START + timedelta(seconds=schedule.stop_at)
            if asked and not self.stopped:
                request_stop(self.cloud, RUN, seen=True)
                self.stopped = True
            look = step(self.cloud, RUN, starts=self.sim.desks_start, seen=self.seen)
            self.seen = True
        except UsageError:
            return  # killed between index and record: there is no run
        except (TrainerError, store_module.Conflict) as error:
            aws.say(f"error: {error}")
            if self.begins:  # a launch that can't write its record ends
                return
            aws.after(pause, self._act)
            return
        self.sim.looked(look)
        if look.error is not None:
            aws.say(f"error: {look.error}")
        if look.record.state == "closed" and not look.observed.alive:
            self.sim.shown += 1  # its receipt is printed
            note_shown(self.cloud.objects, {"run_id": RUN, "state": str(look.record.outcome)})
            return
        if overdue(look, self.cloud.now()):
            return  # exit code 110
        if schedule.detached and goes_on_alone(look.record) and look.record.stop_requested_at is None:
            leave(self.cloud, look.record)
            return
        aws.after(0.0 if look.moved else pause, self._act)


@dataclass
class Simulation:
    """One run from its launch to long after its end."""

    schedule: Schedule
    aws: Aws = field(init=False)
    record: RunRecord = field(init=False)
    machines: dict[str, Machine] = field(default_factory=dict)
    sweeps: list[tuple[datetime, bool]] = field(
        default_factory=list
    )  # of the stack: began, and without a fault
    fired: list[tuple[str, datetime]] = field(
        default_factory=list
    )  # one-time schedules that did their work: ids
    looks: list[Any] = field(default_factory=list)
    messages: list[Any] = field(default_factory=list)
    shown: int = 0  # desks that printed the receipt
    most_alive: int = 0
    unarmed: list[str] = field(default_factory=list)  # instances that no one-time schedule would have ended
    problems: list[str] = field(default_factory=list)  # what an actor raised that it must not
    desks_start: Any = "desk"
    ends_at: datetime = field(init=False)

    def __post_init__(self) -> None:
        self.aws = Aws(self.schedule)
        self.record = record_of(self.schedule)
        earlier = {"format": 1, "open": [], "ended": [{"run_id": "20261119-120000-crypto-aaaa"}]}
        self.aws.bucket.write(INDEX_KEY, json.dumps(earlier).encode(), START)
        self.aws.on_launch.append(self._launched)
        self.aws.on_end.append(self._instance_changes)
        self.aws.on_delete.append(self._deleted)
        self.aws.before_get.append(self._read)
        self.aws.on_put.append(self._written)
        healed = max((one.until for one in self.schedule.outages), default=0.0)
        last = max((self.schedule.minutes + self.schedule.queue_minutes) * 60, healed)
        self.ends_at = START + timedelta(seconds=last + 900 + self.schedule.shutting_down_seconds)

    def cloud_of(self) -> AwsCloud:
        return AwsCloud(Access(self.aws), OUTPUTS)  # type: ignore[arg-type]

    def run(self) -> None:
        """Play it to its end."""
        with simulated(self.aws):
            self.begin()
            self.finish()

    def begin(self) -> None:
        """Start every actor."""
        aws = self.aws
        Desk(self, begins=True)
        if self.schedule.two_desks:
            aws.after(3.0, lambda: Desk(self, begins=False, role="desk2") and None)
        aws.after(60.0, self._tick_control)
        aws.after(30.0, self._tick_sweeper)
        aws.after(0.0, self._tick_scheduler)

    def finish(self) -> None:
        """Play on until long after the end; then what is out of order works again, and everything is settled."""
        self.aws.run_until(self.ends_at)
        self._heal()

    def weather(self, **changed: Any) -> None:
        """Change the faults that are still to come."""
        self.schedule = self.aws.schedule = replace(self.schedule, **changed)

    def _heal(self) -> None:
        """Let everything work: after an hour, which AWS forgets an instance in, nothing may be open."""
        aws = self.aws
        quiet = {"kills": frozenset(), "lost": frozenset(), "errors": {}, "stalls": {}, "delays": {}, "error_rate": 0.0,
                 "lost_rate": 0.0, "outages": ()}  # fmt: skip
        aws.schedule = replace(aws.schedule, **quiet)
        aws.kills.clear()
        for _ in range(14):
            aws.run_until(aws.now + timedelta(minutes=6))
            if not self.is_open() and not self.is_untold():
                break

    def again(self) -> None:
        """Call everybody once more."""
        aws = self.aws
        with simulated(aws):
            self._visit()
            aws.act(
                Caller("desk"),
                lambda: step(self.cloud_of(), RUN, starts=self.desks_start, seen=True) and None,
            )
            self._control({}, forced=True)
            for one in self.aws.everything:
                self._control({"source": "aws.ec2", "detail": {"instance-id": one}}, forced=True)
            self._sweep("", forced=True)
            self._sweep(RUN, forced=True)

    def is_open(self) -> bool:
        """Return whether the run is in the index, or its record is not closed."""
        stored = self.aws.bucket.newest(f"runs/{RUN}/run.json")
        index = self.aws.bucket.newest(INDEX_KEY)
        listed = index is not None and RUN.encode() in index.body.partition(b'"ended"')[0]
        return (stored is not None and record_at_once(stored.body).state != "closed") or (
            listed and stored is not None
        )

    def is_untold(self) -> bool:
        """Return whether the run has ended, and nobody has noted that its end was shown or sent."""
        index = self.aws.bucket.newest(INDEX_KEY)
        return index is not None and RUN.encode() in index.body.partition(b'"untold"')[2]

    # hooks
    # --------------------------------------------------------------------------------------------------------

    def looked(self, look: Any) -> None:
        self.looks.append(look)

    def desk_died(self) -> None:
        schedule = self.schedule
        if schedule.returns == "drive":
            self.aws.after(schedule.returns_after, lambda: Desk(self, begins=False) and None)
        elif schedule.returns == "look":
            self.aws.after(schedule.returns_after, self._visit)

    def _visit(self) -> None:
        """Let any command settle what is open, as each does that looks."""
        caller, cloud = Caller("desk", timedelta(seconds=self.schedule.desk_skew)), self.cloud_of()

        def settle() -> None:
            try:
                settle_all(cloud)
            except TrainerError as error:
                self.aws.say(f"error: {error}")

        self.aws.act(caller, settle)

    def _launched(self, instance: Instance) -> None:
        number = len(self.machines)
        lives = self.schedule.nodes
        self.machines[instance.id] = Machine(self.aws, instance, lives[min(number, len(lives) - 1)])
        self.most_alive = max(self.most_alive, len(self.aws.alive()))
        self._check_armed(instance)
        self._instance_changes(instance)

    def _check_armed(self, instance: Instance) -> None:
        """Note an instance that begins before the schedule that ends it is armed."""
        deadline, name = self.machines[instance.id].deadline, sweep_schedule(RUN)
        armed = self.aws.world.schedules.get((GROUP, name))
        if deadline is not None and (
            armed is None or armed.next_at is None or armed.next_at > armed_for(deadline)
        ):
            self.unarmed.append(f"{instance.id} began, nothing was armed")

    def _deleted(self, name: str) -> None:
        """Note the schedule of an instance that is alive when it is deleted."""
        self.unarmed += [f"{one.id} lived, {name} was deleted" for one in self.aws.alive()]

    def _instance_changes(self, instance: Instance) -> None:
        """Let EC2 tell control about the changes of an instance."""
        if self.schedule.events == "never":
            return
        changes = [instance.running_at] if instance.shutting_down_at is None else [self.aws.now]
        if instance.terminated_at is not None:
            changes.append(instance.terminated_at)
        late = 240.0 if self.schedule.events == "late" else 2.0
        for at in changes * (2 if self.schedule.events == "twice" else 1):
            event = {"source": "aws.ec2", "detail": {"instance-id": instance.id}}
            self.aws.at(at + timedelta(seconds=late), lambda event=event: self._control(event))  # type: ignore[misc]

    def _read(self, key: str) -> None:
        if key.startswith("live/"):
            for machine in self.machines.values():
                if machine.keys.lease == key:
                    machine.beat()

    def _written(self, key: str) -> None:
        if key.endswith("/stop.json"):
            for machine in self.machines.values():
                self.aws.after(BEAT, machine.stop)

    # control, sweeper, Scheduler
    # --------------------------------------------------------------------------------------------------------

    def _tick_control(self) -> None:
        self._control({})
        self.aws.after(CONTROL_SECONDS, self._tick_control)

    def _control(self, event: dict[str, Any], tries: int = 0, *, forced: bool = False) -> None:
        aws = self.aws
        if not forced and not self.is_open() and not self.is_untold() and not aws.alive():
            return  # nothing that it could do
        if aws.down("control"):
            if not event:
                return
            if tries < 2:  # Lambda keeps an event, and tries again
                aws.after(90.0, lambda: self._control(event, tries + 1))
            return
        if aws.busy.count("control") > 1 or len(aws.busy) >= 5:
            aws.after(5.0, lambda: self._control(event, tries))
            return
        failed = []
        ends = aws.now + timedelta(seconds=240)

        def work() -> None:
            home = RetrainHome(
                access=Access(aws),  # type: ignore[arg-type]
                outputs=OUTPUTS,
                cloud=self.cloud_of(),
                publish=self.messages.append,
            )
            try:
                report = answer(
                    event, home, poll_seconds=5.0, time_is_left=lambda: aws.now < ends, sleep=aws.sleep
                )
            except (TrainerError, store_module.Conflict) as error:
                failed.append(str(error))
                return
            failed.extend(report["problems"].values())

        if not aws.act(Caller("control"), work) or failed:
            for error in failed:
                aws.say(f"control: {error}")
            if event and tries < 2:
                aws.after(60.0, lambda: self._control(event, tries + 1))

    def _tick_sweeper(self) -> None:
        if "L4" not in self.schedule.off:
            self._sweep("")
        self.aws.after(SWEEP_SECONDS, self._tick_sweeper)

    def _sweep(self, run_id: str, *, forced: bool = False) -> bool:
        """Sweep, and return whether it did everything."""
        aws = self.aws
        if aws.down("sweeper") or len(aws.busy) >= 6:
            return False
        began, hurt, done = aws.now, aws.hurt, []
        if not forced and not aws.alive() and not aws.world.schedules:
            return True  # it could do nothing

        def work() -> None:
            access = Access(aws)
            clients = Clients(**{one: access.client(one) for one in ("cloudwatch", "ec2", "s3", "scheduler")})
            try:
                summary = sweep(SETTINGS, clients, now=aws.now, run_id=run_id)
                done.append(not summary.failed)
            except (BotoCoreError, ClientError) as error:
                aws.say(f"sweep: {error}")

        lived = aws.act(Caller("sweeper"), work)
        fine = lived and bool(done and done[0])
        if not run_id:
            self.sweeps.append((began, fine and aws.hurt == hurt))
        return fine

    def _tick_scheduler(self) -> None:
        """Fire the one-time schedules that are due: the third layer, as precise as a minute."""
        aws = self.aws
        if "L3" in self.schedule.off:
            return
        if not aws.down("scheduler"):
            for firing in aws.world.fire_due(aws.now):
                self._fire(firing.target, 0)
        aws.after(20.0, self._tick_scheduler)

    def _fire(self, target: dict[str, Any], tries: int) -> None:
        aws, ids = self.aws, kill_ids(target)
        if ids is None:
            done = self._sweep(str(json.loads(target["Input"])["run_id"]))
        else:
            done = not aws.down("ec2")
            known = [one for one in ids if one in aws.world.instances]
            if done and known == ids:
                aws.say(f"the Scheduler terminates {ids}")
                aws.terminate(ids)
        if done:
            for one in ids if ids is not None else list(self.machines):
                self.fired.append((one, aws.now))
        elif tries < 30:
            aws.after(60.0, lambda: self._fire(target, tries + 1))


def play(schedule: Schedule) -> Simulation:
    """Play one schedule."""
    sim = Simulation(schedule)
    sim.run()
    return sim
