"""The control Lambda: settles runs that nobody watches, and starts the runs that it drives.

Called every five minutes with {}, and by EC2's events about instances, which only hasten what the next call would do: an event
about an instance that is none of this stack's is dropped after one describe. It ends a machine only as settling does, never by
age: that is the sweeper's. Deployed as `trainer.control.function.handler`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from trainer.access import own_access
from trainer.control.cloud import AwsCloud, Cloud
from trainer.control.drive import pace
from trainer.control.settle import Settled, Settling, settle_all, settle_run
from trainer.environment import function_environment
from trainer.errors import TrainerError
from trainer.runs.store import UnreadableRecord
from trainer.stack import read_stack

LEFT_AT_END = 60.0  # seconds of the invocation for what comes after the last look


def handler(event: Mapping[str, Any] | None, context: Any) -> dict[str, Any]:
    """Settle what an event is about, or everything. Raises RuntimeError where a run could not be looked at: for the alarm."""
    own = function_environment()
    access = own_access()
    outputs = read_stack(access, stack=own.stack, project=own.project)
    cloud = AwsCloud(access, outputs)
    ends_at = time.monotonic() + context.get_remaining_time_in_millis() / 1000 - LEFT_AT_END
    told = answer(event or {}, cloud, poll_seconds=pace(access), time_is_left=lambda: time.monotonic() < ends_at)
    print(json.dumps(told))
    if told["problems"]:  # a failed invocation is tried again by Lambda, and counts for the alarm
        raise RuntimeError(f"control could not do everything: {json.dumps(told['problems'])}")
    return told


def answer(
    event: Mapping[str, Any],
    cloud: Cloud,
    *,
    poll_seconds: float,
    time_is_left: Callable[[], bool],
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Any]:
    """Do what an event asks for: {"settled": run -> state, "problems": run -> error}, or why the event was dropped."""
    instance_id = (event.get("detail") or {}).get("instance-id") if event.get("source") == "aws.ec2" else None
    if instance_id is not None:
        run_id = cloud.run_of(instance_id=str(instance_id))
        if run_id is None:
            return {"dropped": f"{instance_id} is no instance of this stack's runs", "settled": {}, "problems": {}}
        return _told([settle_run(cloud, run_id, starts="control")], {})
    settling = settle_while_starting(cloud, poll_seconds=poll_seconds, time_is_left=time_is_left, sleep=sleep)
    return _told(settling.settled, settling.problems)


def settle_while_starting(
    cloud: Cloud, *, poll_seconds: float, time_is_left: Callable[[], bool], sleep: Callable[[float], None] = time.sleep
) -> Settling:
    """Settle every open run, and look again as long as one that control drives has no machine yet and time is left."""
    while True:
        settling = settle_all(cloud, starts="control")
        waiting = [item for item in settling.settled if _starts(item)]
        if not waiting or not time_is_left():
            return settling
        sleep(poll_seconds)


def _starts(item: Settled) -> bool:
    return item.look.record.state == "starting" and item.look.record.driver == "control"


def _told(settled: Iterable[Settled], problems: Mapping[str, TrainerError]) -> dict[str, Any]:
    """Return the answer; a record that no later call will be able to read either is named in the log, and no failure."""
    states = {item.run_id: item.look.record.outcome or item.look.record.state for item in settled}
    unreadable = {run_id: str(error) for run_id, error in problems.items() if isinstance(error, UnreadableRecord)}
    failed = {run_id: str(error) for run_id, error in problems.items() if run_id not in unreadable}
    return {"settled": states | dict.fromkeys(unreadable, "unreadable"), "problems": failed}
