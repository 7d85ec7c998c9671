"""A simulation that is over: what its record and receipt say, what is true, and by when each machine had to end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from tests.chaos.actors import Simulation
from tests.chaos.nodes import BEAT, PROGRESS_BOUND, Machine
from tests.chaos.run import PRICES, RUN
from tests.chaos.schedule import START
from trainer.rehearsal.world import Instance
from trainer.runs.deadline import armed_for
from trainer.runs.lease import TWICE
from trainer.runs.record import RunRecord
from trainer.runs.store import start_key

SLACK = timedelta(seconds=30)  # requests take time, and a clock may be off by seconds
PRECISION = timedelta(seconds=60)  # of a one-time schedule


class Ending:
    """A simulation that is over: what its record and receipt say, and what is true."""

    def __init__(self, sim: Simulation, off: frozenset[str] | None = None) -> None:
        self.off = sim.schedule.off if off is None else off
        self.sim, self.aws, self.bucket = sim, sim.aws, sim.aws.bucket
        self.records = self.bucket.objects.get(f"runs/{RUN}/run.json", [])
        self.receipts = self.bucket.objects.get(f"runs/{RUN}/receipt.json", [])
        self.record: RunRecord | None = sim.records.read(self.records[-1].body) if self.records else None
        self.receipt: dict[str, Any] | None = json.loads(self.receipts[-1].body) if self.receipts else None
        self.written_at = self.receipts[-1].at if self.receipts else self.aws.now
        self.instances = list(self.aws.everything.values())
        self.bounds = {one.id: self.bound(one) for one in self.instances}

    @property
    def latest(self) -> datetime:
        """Return the latest deadline that an instance may have: waiting for room takes nothing from it."""
        schedule, attempts = self.sim.schedule, len(self.record.attempts) if self.record else 1
        return START + timedelta(minutes=schedule.minutes + schedule.queue_minutes * attempts)

    def state(self) -> dict[str, int]:
        """Return how many versions and things there are, besides the leases, which are the nodes' own."""
        versions = {key: len(found) for key, found in self.bucket.objects.items() if "live/" not in key}
        return versions | {"instances": len(self.aws.everything), "schedules": len(self.aws.world.schedules)}

    def workers(self) -> list[Machine]:
        """Return the machines whose word counts, by attempt."""
        attempts = self.record.attempts if self.record else ()
        launches = [attempt.launches[-1] for attempt in attempts if attempt.launches]
        ids = [name for launch in launches if not launch.is_partial for name in launch.instance_ids]
        return [self.sim.machines[name] for name in ids if name in self.sim.machines]

    @property
    def heads(self) -> list[Machine]:
        """Return the first of the machines of each attempt whose word counts."""
        return list({one.attempt: one for one in reversed(self.workers())}.values())[::-1]

    def start_written(self, attempt: int) -> datetime:
        return self.bucket.objects[start_key(RUN, attempt)][0].at

    def first_of(self, symbol: str, *, before: datetime) -> Machine | None:
        """Return a machine that had finished a symbol before."""
        return next((one for one in self.workers() if one.uploaded.get(symbol, before) < before), None)

    def begun_after(self, at: datetime) -> bool:
        """Return whether an attempt began after an instant."""
        return any(self.start_written(one.attempt) > at for one in self.workers())

    def lived(self, instance: Instance) -> tuple[datetime, datetime]:
        """Return when an instance was there: from its launch until it was told to end."""
        return instance.description["LaunchTime"], instance.shutting_down_at or self.aws.now

    def billed(self, instance: Instance) -> float:
        """Return the seconds that AWS bills: from `running` on, a minute at least."""
        ended = self.lived(instance)[1]
        ran = (ended - instance.running_at).total_seconds()
        return max(ran, 60.0) if ran > 0 else 0.0

    def price(self, instance: Instance) -> float:
        return PRICES["spot" if instance.description.get("InstanceLifecycle") == "spot" else "on_demand"]

    def bound(self, instance: Instance) -> datetime | None:
        """Return by when an instance has to have ended; None if no layer could end it.

        Each layer that is on names the first moment after the deadline at which it was able to.
        """
        machine, off = self.sim.machines[instance.id], self.off
        if machine.deadline is None:
            due = self.lived(instance)[0] + timedelta(minutes=1)
            return min(self._sweeps(due), default=None)
        latest = self.latest
        due = max(min(machine.deadline, latest), self.lived(instance)[0])
        chances = list(self._sweeps(due)) if "L4" not in off else []
        if "L2" not in off and machine.kernel and instance.running_at <= machine.deadline:
            chances.append(min(machine.deadline, latest) - machine.skew)
        if "L3" not in off:
            chances += self._schedule_fires(machine, due)
        if "L4" not in off and machine.stalled_since is not None and machine.start is not None:
            said = machine.stalled_since + timedelta(seconds=TWICE * PROGRESS_BOUND + 2 * BEAT)
            chances += (
                list(self._sweeps(max(said, self.lived(instance)[0]))) if self._reaches_s3(said) else []
            )
        return min(chances) + SLACK if chances else None

    def _reaches_s3(self, at: datetime) -> bool:
        """Return whether leases arrive and can be read from an instant on."""
        began = (at - START).total_seconds()
        return not any(
            one.what in ("s3", "net:node") and one.until > began - 120 for one in self.sim.schedule.outages
        )

    def _sweeps(self, due: datetime) -> Iterator[datetime]:
        """Yield the first sweep that nothing hurt."""
        shown = timedelta(seconds=max(240.0, self.sim.schedule.shown_after))
        late = {word.partition(":")[0] for word in self.sim.schedule.fleet.values()} & {"late"}
        hidden = shown if late or self.sim.schedule.shown_after else timedelta(0)
        whole = (began for began, fine in self.sim.sweeps if fine and began >= due)
        first = next(whole, None)
        if first is not None:
            yield first + hidden

    def _schedule_fires(self, machine: Machine, due: datetime) -> list[datetime]:
        """Return when its one-time schedules have to have worked, if nothing was out of order then."""
        assert machine.deadline is not None
        at = armed_for(machine.deadline)
        if due > at:  # it began after that: the sweeper has it
            return []
        weather = self.sim.schedule
        if any(one.what in ("scheduler", "ec2", "sweeper") for one in weather.outages) or weather.error_rate:
            return []
        roles = {
            role
            for role, _ in (*weather.kills, *weather.lost, *weather.errors, *weather.stalls, *weather.delays)
        }
        hidden = machine.aws.hidden[machine.instance.id] > at
        return [] if "sweeper" in roles or hidden else [at + PRECISION]
