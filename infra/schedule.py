"""The schedules: a group for runs, with the standing calls of sweeper and control (every few minutes), and
one for retrains.

Launches add two one-time schedules a run to the group, with the scheduler role of identity.py, and the
sweeper clears them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from infra.stack import Component, Stack
from trainer.retrains.schedule import RetrainSchedule


@dataclass(frozen=True, kw_only=True)
class Caller:
    """The role that schedules call functions as, and the queue of the calls that fail."""

    role_arn: pulumi.Input[str]
    dead_letters_arn: pulumi.Input[str]

    def target(
        self, function_arn: pulumi.Input[str], given: dict[str, str], *, tries: int, seconds: int
    ) -> aws.scheduler.ScheduleTargetArgsDict:
        """Return a call of a function as a schedule's target; dropped after so many tries or seconds."""
        return {
            "arn": function_arn,
            "role_arn": self.role_arn,
            "input": json.dumps(given),
            "dead_letter_config": {"arn": self.dead_letters_arn},
            "retry_policy": {"maximum_retry_attempts": tries, "maximum_event_age_in_seconds": seconds},
        }


class Schedule(Component):
    """The schedule group and the standing sweep."""

    group: pulumi.Output[str]

    def __init__(
        self,
        name: str,
        stack: Stack,
        *,
        minutes: int,
        sweeper_arn: pulumi.Input[str],
        caller: Caller,
    ) -> None:
        super().__init__(name, stack)
        group = aws.scheduler.ScheduleGroup("group", name=stack.schedule_group, opts=self.child)
        self.group = group.name
        StandingSchedule(
            "standing-sweep",
            stack,
            self.child,
            group=self.group,
            description="Sweeps everything: ends what is past its deadline, whoever forgot it.",
            minutes=minutes,
            function_arn=sweeper_arn,
            caller=caller,
        )
        self.register_outputs({"group": self.group})


class StandingSchedule(Component):
    """A call of a function every few minutes, with {}: all runs."""

    def __init__(
        self,
        name: str,
        stack: Stack,
        opts: pulumi.ResourceOptions,
        *,
        group: pulumi.Input[str],
        description: str,
        minutes: int,
        function_arn: pulumi.Input[str],
        caller: Caller,
    ) -> None:
        super().__init__(name, stack, opts)
        aws.scheduler.Schedule(
            name,
            name=name,
            description=description,
            group_name=group,
            schedule_expression=rate(minutes),
            flexible_time_window={"mode": "OFF"},
            state="ENABLED",
            target=caller.target(function_arn, {}, tries=2, seconds=60),  # by then the next one is due
            opts=self.child,
        )
        self.register_outputs({})


class Retrains(Component):
    """The schedules of retrains, in a group of their own: launchers may not touch them. No group if there is
    none.
    """

    def __init__(
        self,
        name: str,
        stack: Stack,
        *,
        schedules: Sequence[RetrainSchedule],
        control_arn: pulumi.Input[str],
        caller: Caller,
    ) -> None:
        super().__init__(name, stack)
        if schedules:
            group = aws.scheduler.ScheduleGroup(name, name=stack.retrain_group, opts=self.child)
        for schedule in schedules:
            # The context attribute is the same for each delivery of one scheduled time, and so is the run's
            # id.
            target_input = {"retrain": schedule.name, "scheduled_time": "<aws.scheduler.scheduled-time>"}
            aws.scheduler.Schedule(
                f"retrain-{schedule.name}",
                name=schedule.name,
                description="Calls control, which runs what was published for this retrain.",
                group_name=group.name,
                schedule_expression=cron(schedule),
                schedule_expression_timezone=schedule.time_zone,
                flexible_time_window={"mode": "OFF"},
                state="ENABLED",
                target=caller.target(control_arn, target_input, tries=30, seconds=3600),
                opts=self.child,
            )
        self.register_outputs({})


def rate(minutes: int) -> str:
    """Write a rate expression. EventBridge takes `1 minute`, and refuses `1 minutes`."""
    return f"rate({minutes} minute{'' if minutes == 1 else 's'})"


def cron(schedule: RetrainSchedule) -> str:
    """Write a cron expression. EventBridge wants `?` for the day of month or weekday that is not given."""
    days = f"{schedule.day_of_month} * ?" if schedule.day_of_month else f"? * {','.join(schedule.weekdays)}"
    return f"cron({schedule.minute} {schedule.hour} {days} *)"
