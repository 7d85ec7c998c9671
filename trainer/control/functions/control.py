"""The control Lambda: settles runs without a command attached, and starts the runs that it drives.

Called every five minutes with {}; by the schedule of each retrain, with its name and scheduled time; and by
EC2's events about instances, which only do earlier what the next call would do. An event about another
stack's instance is dropped after one describe. Settling may end a machine; ending machines by age is the
sweeper's task. Deployed as `trainer.control.functions.control.handler`.
"""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

from trainer.aws.access import Access, aws_errors, own_access
from trainer.aws.stack import read_stack
from trainer.aws.stack_outputs import metrics_namespace, parameter_name
from trainer.base.environment import function_environment
from trainer.base.errors import ConfigError, ConnectionFailed, TrainerError, UsageError
from trainer.base.instants import from_iso, iso
from trainer.control.cloud import AwsCloud, Cloud
from trainer.control.retrain import advance
from trainer.control.retrain_calls import begin, overdue, publisher, tell, unfinished
from trainer.control.retrain_home import RetrainHome
from trainer.control.settle import Settled, Settling, settle_all, settle_run
from trainer.retrains.decision import refuse_untimely
from trainer.retrains.entries import ScheduledRun, is_scheduled
from trainer.retrains.schedule import is_name
from trainer.retrains.summary import PersonMessage, end_summary, unread_end_summary, untimely_summary
from trainer.runs.index import INDEX_KEY, claim_messages, note_told, read_index
from trainer.runs.store import UnreadableRecord, read_record
from trainer.runs.stored_receipt import UnreadableReceipt, read_receipt

LOOKS_OF_A_DESK = 3  # of a command attached to a run, within which it sees and shows its end
FOLLOWED = ("preparing", "training")  # states of a scheduled time whose run another may follow
LEFT_AT_END = 60.0  # seconds of the invocation reserved for the work after the last look


def handler(event: Mapping[str, Any] | None, context: Any) -> dict[str, Any]:
    """Settle the run of an event, or all runs. Raises RuntimeError, for the alarm, if a run could not be
    observed.
    """
    own = function_environment()
    access = own_access()
    outputs = read_stack(access, stack=own.stack, project=own.project)
    cloud = AwsCloud(access, outputs)
    ends_at = time.monotonic() + context.get_remaining_time_in_millis() / 1000 - LEFT_AT_END
    home = RetrainHome(access=access, outputs=outputs, cloud=cloud, publish=publisher(access, outputs))
    report = answer(
        event or {},
        home,
        poll_seconds=access.place.poll_seconds,
        time_is_left=lambda: time.monotonic() < ends_at,
        request_id=str(context.aws_request_id),
    )
    print(json.dumps(report))
    if not event:  # the regular call, which the alarm for a silent control function counts
        changed_at = partial(_outputs_changed_at, access, parameter_name(own.project, own.stack))
        data = metrics(home, changed_at, report["problems"])
        namespace = metrics_namespace(own.project, own.stack)
        access.client("cloudwatch").put_metric_data(Namespace=namespace, MetricData=data)
    if report["problems"]:  # a failed invocation is tried again by Lambda, and counts for the alarm
        raise RuntimeError(f"control could not do everything: {json.dumps(report['problems'])}")
    return report


def metrics(
    home: RetrainHome, changed_at: Callable[[], datetime], problems: dict[str, str]
) -> list[dict[str, Any]]:
    """Return the metrics of a regular call: it settled what it could, and how many retrains are overdue.

    Published whatever problems the call met: a run that stays unobservable must not hide the others. If
    retrains can't be read, the error is added to `problems`, and their metric is missing, which its alarm
    counts as overdue.
    """
    done: list[dict[str, Any]] = [{"MetricName": "SettlesDone", "Value": 1.0}]
    try:
        late = overdue(home, changed_at=changed_at())
    except TrainerError as error:
        problems["overdue"] = str(error)
        return done
    print(json.dumps({"overdue": late}))
    return [*done, {"MetricName": "RetrainsOverdue", "Value": float(len(late))}]


def _outputs_changed_at(access: Access, name: str) -> datetime:
    """Return when the stack's outputs were last written."""
    with aws_errors("cannot read the stack's outputs"):
        changed: datetime = access.client("ssm").get_parameter(Name=name)["Parameter"]["LastModifiedDate"]
    return changed


def answer(
    event: Mapping[str, Any],
    home: RetrainHome,
    *,
    poll_seconds: float,
    time_is_left: Callable[[], bool],
    request_id: str = "",
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Any]:
    """Handle an event and return the states of runs and retrains, and the errors of those that could not be
    observed.

    An event about an instance settles its run alone; any other settles all runs and advances every scheduled
    time.
    """
    instance_id = (event.get("detail") or {}).get("instance-id") if event.get("source") == "aws.ec2" else None
    settle = partial(
        settle_while_starting,
        home.cloud,
        poll_seconds=poll_seconds,
        time_is_left=time_is_left,
        sleep=sleep,
    )
    report = CallReport(
        home=home, settle_all=settle, await_desks=lambda: sleep(LOOKS_OF_A_DESK * poll_seconds)
    )
    if instance_id is not None:
        run_id = home.cloud.run_of(instance_id=str(instance_id))
        if run_id is None:
            return {**report.as_dict(), "dropped": f"{instance_id} is not an instance of this stack's runs"}
        try:
            read_record(home.cloud.objects, run_id)
        except UsageError:  # started by hand, with tags of a run: only the sweeper cares for it
            return {**report.as_dict(), "dropped": f"{instance_id} is of {run_id}, which has no record"}
        except UnreadableRecord as error:
            report.settled([], {run_id: error})
            return report.as_dict()
        report.settled([settle_run(home.cloud, run_id, starts="control")], {})
        mine = [entry for entry in report.unfinished() if run_id in entry.runs]
        report.advance(mine)
        if any(entry.state in FOLLOWED for entry in mine):  # the next run may be ready to start
            report.settle()
        report.tell_ends()
        return report.as_dict()
    if "retrain" in event:
        report.begin(str(event["retrain"]), from_iso(str(event["scheduled_time"])), request_id)
    report.advance(report.unfinished())
    report.settle()
    entries = report.unfinished()
    report.advance(entries)
    if any(entry.state in FOLLOWED for entry in entries):
        report.settle()
    report.tell_ends()
    return report.as_dict()


@dataclass
class CallReport:
    """Work of one call, its answer and its log line."""

    home: RetrainHome
    settle_all: Callable[[], Settling]
    await_desks: Callable[[], None]  # until commands that are attached have shown the ends that they saw
    runs: dict[str, str] = field(default_factory=dict)  # id -> state or outcome
    retrains: dict[str, str] = field(default_factory=dict)  # name and scheduled time -> state
    problems: dict[str, str] = field(default_factory=dict)  # what has to be tried again -> the error

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {"settled": self.runs, "retrains": self.retrains, "problems": self.problems}

    def settle(self) -> None:
        """Settle every open run, and wait for those that start."""
        settling = self.settle_all()
        self.settled(settling.settled, settling.problems)

    def unfinished(self) -> list[ScheduledRun]:
        """Return every scheduled time that has not ended, or whose end was not announced."""
        return unfinished(self.home, self.problems)

    def settled(self, settled: Iterable[Settled], problems: Mapping[str, TrainerError]) -> None:
        """Add runs, and the errors of steps that failed. A permanently unreadable record is reported, but is
        not a failure.
        """
        for item in settled:
            record = item.look.record
            if item.look.error is not None:
                self.problems[item.run_id] = str(item.look.error)
            self.runs[item.run_id] = record.outcome or record.state
        for run_id, error in problems.items():
            if isinstance(error, UnreadableRecord):
                self.runs[run_id] = "unreadable"
            else:
                self.problems[run_id] = str(error)

    def tell_ends(self) -> None:
        """Publish a message about each run that ended, whoever closed it, and whose end no command has shown.
        Scheduled runs are in the messages of their times.
        """
        objects = self.home.cloud.objects
        try:
            untold = read_index(objects).untold
            scheduled = [run_id for run_id in untold if is_scheduled(run_id)]
            if scheduled:
                note_told(objects, scheduled)
            waiting = [run_id for run_id in untold if run_id not in scheduled]
            if waiting:
                self.await_desks()
            mine = claim_messages(objects, waiting, self.home.cloud.now()) if waiting else ()
        except TrainerError as error:
            self.problems[INDEX_KEY] = str(error)
            return
        for run_id in mine:
            try:
                self.home.publish(self._end_of(run_id))
                note_told(objects, [run_id])
            except TrainerError as error:  # a later call sends it; the others' are sent all the same
                self.problems[run_id] = str(error)

    def _end_of(self, run_id: str) -> PersonMessage:
        """Return the message about an ended run. Raises ConnectionFailed while S3 does not show its
        receipt.
        """
        try:
            receipt = read_receipt(self.home.cloud.objects, run_id)
        except UnreadableReceipt as error:
            return unread_end_summary(run_id, error)
        if receipt is None:
            raise ConnectionFailed(f"run {run_id} is closed, but S3 does not return its receipt yet")
        return end_summary(receipt)

    def begin(self, name: str, scheduled_at: datetime, request_id: str) -> None:
        """Begin a scheduled time. One that is not now is refused and announced: no later call may begin
        it.
        """
        key = f"{name} {iso(scheduled_at)}"
        try:
            if is_name(name):  # else `begin` refuses it
                refuse_untimely(name, scheduled_at, self.home.cloud.now())
        except ConfigError as refusal:
            self.retrains[key] = "refused"
            self._publish(key, untimely_summary(name, refusal, request_id))
            return
        self._take(key, partial(begin, self.home, name, scheduled_at, request_id=request_id))

    def advance(self, entries: Iterable[ScheduledRun]) -> None:
        """Advance scheduled times."""
        for entry in entries:
            self._take(f"{entry.retrain} {iso(entry.scheduled_at)}", partial(advance, self.home, entry))

    def _publish(self, about: str, message: PersonMessage) -> None:
        try:
            self.home.publish(message)
        except TrainerError as error:
            self.problems[about] = str(error)

    def _take(self, name: str, act: Callable[[], ScheduledRun]) -> None:
        try:
            entry = act()
            self.retrains[name] = entry.state
            if entry.is_untold:
                tell(self.home, entry)
        except TrainerError as error:
            self.problems[name] = str(error)
        except Exception as error:  # a fault of ours about one time: runs and other times go on all the same
            traceback.print_exc()
            self.problems[name] = f"{type(error).__name__}: {error}"


def settle_while_starting(
    cloud: Cloud,
    *,
    poll_seconds: float,
    time_is_left: Callable[[], bool],
    sleep: Callable[[float], None],
) -> Settling:
    """Settle every open run; repeat, while time is left, as long as a run that control drives has no
    machine, its first or its next.
    """
    while True:
        settling = settle_all(cloud, starts="control")
        waiting = [item for item in settling.settled if _starts(item)]
        if not waiting or not time_is_left():
            return settling
        next_at = min(_next_try(item) for item in waiting)
        sleep(poll_seconds)
        while cloud.now() < next_at:  # every run that starts waits in line for capacity
            if not time_is_left():
                return settling
            sleep(poll_seconds)


def _next_try(item: Settled) -> datetime:
    """Return when a starting run that control drives goes on: at the next walk of its line, else at once."""
    record = item.look.record
    queue = record.attempt.queue if record.attempt and record.attempt.waits else None
    return queue.next_at if queue else record.created_at


def _starts(item: Settled) -> bool:
    record = item.look.record
    return record.state in ("starting", "recovering") and record.driver == "control"
