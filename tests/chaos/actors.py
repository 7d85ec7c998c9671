"""The callers of a simulated run: the desk, control, the sweeper, the Scheduler, and EC2's events. Desk, control and sweeper
are the product's own code.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from tests.chaos.aws import BUCKET, GROUP, Aws, Caller
from tests.chaos.clients import Access, kill_ids
from tests.chaos.nodes import BEAT, Machine
from tests.chaos.replaced import Records, simulated
from tests.chaos.run import PARENT, ROLE, RUN, leave_parent, record_of
from tests.chaos.schedule import CONTROL_SECONDS, START, SWEEP_SECONDS, NodeLife, Schedule
from trainer.aws.objects import Conflict
from trainer.aws.stack_outputs import StackOutputs
from trainer.base.errors import TrainerError, UsageError
from trainer.control.cloud import AwsCloud
from trainer.control.drive import goes_on_alone, leave, step
from trainer.control.functions.control import answer
from trainer.control.functions.sweep import Clients, SweepSettings, sweep
from trainer.control.progress import Patience
from trainer.control.retrain_home import RetrainHome
from trainer.control.settle import settle_all
from trainer.control.stop import request_stop
from trainer.rehearsal.world import Instance
from trainer.runs.actions import sweep_schedule
from trainer.runs.deadline import armed_for
from trainer.runs.index import INDEX_KEY, begin_run, note_shown
from trainer.runs.record import RunRecord
from trainer.runs.store import receipt_key
from trainer.store.production import promote

OUTPUTS = StackOutputs(
    project="mayfly", stack="dev", bucket=BUCKET, schedule_group=GROUP, instance_role_id=ROLE,
    scheduler_role_arn="arn:aws:iam::1:role/scheduler", sweeper_arn="arn:aws:lambda:us-east-1:1:function:sweeper",
)  # fmt: skip
SETTINGS = SweepSettings(project="mayfly", stack="dev", bucket=BUCKET, schedule_group=GROUP)
# callers
# ------------------------------------------------------------------------------------------------------------


class Desk:
    """One command: it launches the run or only looks, and follows it by steps until its end or its death."""

    def __init__(self, sim: Simulation, *, begins: bool, role: str = "desk") -> None:
        self.sim, self.begins = sim, begins
        self.caller = Caller(role, timedelta(seconds=sim.schedule.desk_skew))
        self.cloud = sim.cloud_of()
        self.seen = self.stopped = False
        self.patience = Patience()
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
        except (TrainerError, Conflict) as error:
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
        if self.patience.is_over(look, self.cloud.now()):
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
    records: Records = field(default_factory=Records)
    unarmed: list[str] = field(default_factory=list)  # instances that no one-time schedule would have ended
    problems: list[str] = field(default_factory=list)  # what an actor raised that it must not
    desks_start: Any = "desk"
    ends_at: datetime = field(init=False)

    def __post_init__(self) -> None:
        self.aws = Aws(self.schedule)
        self.record = record_of(self.schedule)
        earlier = {"format": 1, "open": [], "ended": [{"run_id": PARENT}]}
        self.aws.bucket.write(INDEX_KEY, json.dumps(earlier).encode(), START)
        if self.schedule.parent:
            leave_parent(self.aws.bucket, self.schedule)
        self.aws.on_launch.append(self._launched)
        self.aws.on_end.append(self._ended)
        self.aws.on_delete.append(self._deleted)
        self.aws.before_get.append(self._read)
        self.aws.on_put.append(self._written)
        healed = max((one.until for one in self.schedule.outages), default=0.0)
        last = max((self.schedule.minutes + 2 * self.schedule.queue_minutes) * 60, healed)
        self.ends_at = START + timedelta(seconds=last + 900 + self.schedule.shutting_down_seconds)

    def cloud_of(self) -> AwsCloud:
        return AwsCloud(Access(self.aws), OUTPUTS)  # type: ignore[arg-type]

    def run(self) -> None:
        """Play it to its end."""
        with simulated(self.aws, self.records):
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
        """Call everybody once more; a sweeper that is switched off was never called."""
        aws = self.aws
        with simulated(self.aws, self.records):
            self._visit()
            aws.act(
                Caller("desk"),
                lambda: step(self.cloud_of(), RUN, starts=self.desks_start, seen=True) and None,
            )
            self._control({}, forced=True)
            for one in self.aws.everything:
                self._control({"source": "aws.ec2", "detail": {"instance-id": one}}, forced=True)
            for run_id in ("", RUN) if "L4" not in self.schedule.off else (RUN,):
                self._sweep(run_id, forced=True)

    def is_open(self) -> bool:
        """Return whether the run is in the index, or its record is not closed."""
        stored = self.aws.bucket.newest(f"runs/{RUN}/run.json")
        index = self.aws.bucket.newest(INDEX_KEY)
        listed = index is not None and RUN.encode() in index.body.partition(b'"ended"')[0]
        return (stored is not None and self.records.read(stored.body).state != "closed") or (
            listed and stored is not None
        )

    def is_untold(self) -> bool:
        """Return whether the run has ended, and nobody has noted that its end was shown or sent."""
        index = self.aws.bucket.newest(INDEX_KEY)
        return index is not None and RUN.encode() in index.body.partition(b'"untold"')[2]

    @property
    def _function_skew(self) -> timedelta:
        return timedelta(seconds=self.schedule.function_skew)

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
        lives, peers = self.schedule.nodes, self.schedule.peers
        fleet, node = divmod(len(self.machines), self.schedule.cluster)
        life = lives[min(fleet, len(lives) - 1)]
        if node:
            at = fleet * (self.schedule.cluster - 1) + node - 1
            life = peers[at] if at < len(peers) else NodeLife(boot=life.boot, work=life.work)
        self.machines[instance.id] = self.aws.nodes[instance.id] = Machine(self.aws, instance, life)
        self.most_alive = max(self.most_alive, len(self.aws.alive()))
        self._check_armed(instance)
        self._instance_changes(instance)

    def _ended(self, instance: Instance) -> None:
        self.machines[instance.id].ended()
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
        if key == receipt_key(RUN) and self.schedule.promotes:
            for number, role in enumerate(("control", "desk", "control", "desk")):
                self.aws.after(
                    1.0 + 2.2 * number * self.schedule.latency, lambda role=role: self._promote(role)
                )  # type: ignore[misc]

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
            except (TrainerError, Conflict) as error:
                failed.append(str(error))
                return
            failed.extend(report["problems"].values())

        if not aws.act(Caller("control", self._function_skew), work) or failed:
            for error in failed:
                aws.say(f"control: {error}")
            if event and tries < 2:
                aws.after(60.0, lambda: self._control(event, tries + 1))

    def _promote(self, role: str) -> None:
        """Let a caller put the models of the receipt into production, at the same time as others do."""
        cloud, stored = self.cloud_of(), self.aws.bucket.newest(receipt_key(RUN))

        def work() -> None:
            for model in json.loads(stored.body)["models"] if stored else ():
                try:
                    promote(cloud.objects, model, group="weekly")
                except TrainerError as error:
                    self.aws.say(f"not promoted: {error}")

        self.aws.act(Caller(role), work)

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
                summary = sweep(SETTINGS, clients, now=aws.callers_now(), run_id=run_id)
                done.append(not summary.failed)
            except (BotoCoreError, ClientError) as error:
                aws.say(f"sweep: {error}")

        lived = aws.act(Caller("sweeper", self._function_skew), work)
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
            aws.world.forget(aws.now)
            known = [one for one in ids if one in aws.world.instances]
            if done and known == ids and all(aws.now >= aws.hidden[one] for one in ids):
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
