"""The same operations on the simulator and, over HTTP, on the embedded AWS: both have to answer alike."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from math import floor
from typing import Any

from tests.chaos.aws import Aws
from tests.chaos.clients import Access
from tests.chaos.schedule import Schedule
from trainer.aws.objects import Conflict
from trainer.aws.stack_outputs import StackOutputs
from trainer.base.errors import TrainerError
from trainer.control.cloud import AwsCloud
from trainer.control.fleet import create_fleet_request
from trainer.runs.attempts import Attempt, Launch
from trainer.runs.record import RunRecord

CODES = ("InsufficientInstanceCapacity", "RequestLimitExceeded", "VcpuLimitExceeded", "UnauthorizedOperation")
WORDS = (
    "ok",
    "ok",
    *(f"refuse:{code}" for code in CODES),
    "raise:RequestLimitExceeded",
    "failed:InternalError",
    "part:2",
)
NAMES = ("sweep", "kill-1")


@dataclass(frozen=True)
class Operation:
    """One call of the Cloud protocol, or time that passes."""

    name: str
    number: int = 0
    word: str = "ok"
    seconds: float = 0.0


def operations(seed: int, count: int = 12) -> Iterator[Operation]:
    """Yield the operations of a seed."""
    dice = random.Random(seed)
    names = (
        "create",
        "create",
        "look",
        "look",
        "end",
        "arm",
        "kill",
        "read",
        "delete",
        "put",
        "wait",
        "end all",
    )
    for _ in range(count):
        yield Operation(
            name=dice.choice(names),
            number=dice.randint(0, 1),
            word=dice.choice(WORDS),
            seconds=dice.choice((0.5, 5.0, 9.0, 30.0, 4000.0)),
        )


class Side:
    """One of both: its cloud, its clock, and how it is told of a fault."""

    def __init__(
        self,
        cloud: AwsCloud,
        record: RunRecord,
        advance: Callable[[float], None],
        meet: Callable[[str], None],
    ) -> None:
        self.cloud, self.record, self.advance, self.meet = cloud, record, advance, meet
        self.ids: list[str] = []
        self.fleets: list[str] = []
        self.etags: dict[str, str] = {}

    def do(self, operation: Operation) -> Any:
        """Carry an operation out, and return its answer in words that both have in common."""
        try:
            return getattr(self, "_" + operation.name.replace(" ", "_"))(operation)
        except (TrainerError, Conflict) as error:
            return type(error).__name__

    def _create(self, operation: Operation) -> Any:
        launch = Launch(
            rung=operation.number,
            token=f"{self.record.run_id}-{operation.number}",
            deadline=self.record.deadline,
            deadline_cause="max_duration",
            intended_at=self.record.created_at,
        )
        record = replace(self.record, attempts=(Attempt(number=1, launches=(launch,)),))
        self.meet(operation.word)
        answer = self.cloud.create_fleet(
            request=create_fleet_request(record, record.ladder[operation.number], launch)
        )
        self.ids += [one for one in answer.instance_ids if one not in self.ids]
        return (
            answer.kind,
            answer.code,
            answer.of_the_call,
            sorted(self.ids.index(one) for one in answer.instance_ids),  # AWS promises no order
        )

    def _look(self, operation: Operation) -> Any:
        found = self.cloud.instances(run_id=self.record.run_id)
        self.ids += [one.instance_id for one in found if one.instance_id not in self.ids]
        in_order = sorted(found, key=lambda one: self.ids.index(one.instance_id))
        self.fleets += [one.fleet for one in in_order if one.fleet not in self.fleets]
        alive = [one.private_address for one in found if one.private_address]
        assert len(set(alive)) == len(alive), "two instances have one address"
        began = self.record.created_at  # EC2 shows whole seconds, of which the simulator knows the parts
        return sorted(
            (
                self.ids.index(one.instance_id),
                replace(
                    one,
                    instance_id="",
                    launched_at=began,
                    ended_at=None,
                    private_address=one.private_address.partition(".")[0],
                    fleet=str(self.fleets.index(one.fleet)),
                ),
                floor((one.launched_at - began).total_seconds()),
                one.ended_at and floor((one.ended_at - began).total_seconds()),
            )
            for one in found
        )

    def _end(self, operation: Operation) -> Any:
        return self.cloud.terminate(instance_ids=tuple(self.ids[operation.number : operation.number + 1]))

    def _end_all(self, operation: Operation) -> Any:
        return self.cloud.terminate(instance_ids=("i-0123456789abcdef0", *self.ids))

    def _arm(self, operation: Operation) -> Any:
        return self.cloud.arm_sweep(
            name=self._name(operation), run_id=self.record.run_id, at=self._at(operation)
        )

    def _kill(self, operation: Operation) -> Any:
        return self.cloud.arm_kill(name=self._name(operation), instance_ids=("i-1",), at=self._at(operation))

    def _read(self, operation: Operation) -> Any:
        return self.cloud.scheduled(name=self._name(operation))

    def _delete(self, operation: Operation) -> Any:
        return self.cloud.delete_schedule(name=self._name(operation))

    def _put(self, operation: Operation) -> Any:
        """Write an object: created once, or swapped by the ETag that is known, which may be an old one."""
        key = f"runs/{self.record.run_id}/{operation.number}.json"
        create = operation.word.startswith("refuse") or key not in self.etags
        etag = self.cloud.objects.put(
            key=key, body=operation.word.encode(), create=create, if_match="" if create else self.etags[key]
        )
        if operation.seconds < 20:  # else the next swap is of an older one
            self.etags[key] = etag
        stored = self.cloud.objects.get(key=key)
        assert stored is not None and stored.etag == etag
        return stored.body, len(self.cloud.objects.versions(key=key)), stored.size

    def _wait(self, operation: Operation) -> Any:
        return self.advance(operation.seconds)

    def _name(self, operation: Operation) -> str:
        return f"mayfly-{self.record.run_id}-{NAMES[operation.number]}"

    def _at(self, operation: Operation) -> datetime:
        return self.record.deadline + timedelta(days=300, seconds=operation.seconds)


def simulated_side(outputs: StackOutputs, record: RunRecord) -> Side:
    """Return the simulator's side."""
    aws = Aws(Schedule(latency=0.0))
    aws.now = record.created_at
    aws.zones = {rung.subnet_id: rung.availability_zone for rung in record.ladder}

    def meet(word: str) -> None:
        aws.schedule = replace(aws.schedule, fleet={aws.fleet_calls + 1: word})

    return Side(
        AwsCloud(Access(aws), outputs),  # type: ignore[arg-type]
        record,
        lambda seconds: aws.run_until(aws.now + timedelta(seconds=seconds)),
        meet,
    )
