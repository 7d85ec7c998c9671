"""The schedules: a group for runs, with the standing calls of sweeper and control (every few minutes), and
one for retrains.

Launches add two one-time schedules a run to the group, with the scheduler role of identity.py, and the
sweeper clears them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from trainer.retrains.schedule import RetrainSchedule


@dataclass(frozen=True, kw_only=True)
class ScheduleArgs:
    group_name: str
    sweep_minutes: int
    sweeper_arn: pulumi.Input[str]
    scheduler_role_arn: pulumi.Input[str]
    dead_letters_arn: pulumi.Input[str]
    tags: dict[str, str]


class Schedule(pulumi.ComponentResource):
    """The schedule group and the standing sweep."""

    group: pulumi.Output[str]

    def __init__(self, name: str, args: ScheduleArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("mayfly:schedule:Schedule", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        group = aws.scheduler.ScheduleGroup("group", name=args.group_name, tags=args.tags, opts=child)
        StandingSchedule(
            "standing-sweep",
            StandingScheduleArgs(
                group_name=group.name,
                description="Sweeps everything: ends what is past its deadline, whoever forgot it.",
                minutes=args.sweep_minutes,
                target_arn=args.sweeper_arn,
                role_arn=args.scheduler_role_arn,
                dead_letters_arn=args.dead_letters_arn,
            ),
            opts=child,
        )
        self.group = group.name
        self.register_outputs({"group": self.group})


@dataclass(frozen=True, kw_only=True)
class StandingScheduleArgs:
    group_name: pulumi.Input[str]
    description: str
    minutes: int
    target_arn: pulumi.Input[str]
    role_arn: pulumi.Input[str]
    dead_letters_arn: pulumi.Input[str]


class StandingSchedule(pulumi.ComponentResource):
    """A call of a function every few minutes, with {}: all runs."""

    def __init__(
        self, name: str, args: StandingScheduleArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("mayfly:schedule:StandingSchedule", name, None, opts)
        aws.scheduler.Schedule(
            name,
            name=name,
            description=args.description,
            group_name=args.group_name,
            schedule_expression=rate(args.minutes),
            flexible_time_window=aws.scheduler.ScheduleFlexibleTimeWindowArgs(mode="OFF"),
            state="ENABLED",
            target=aws.scheduler.ScheduleTargetArgs(
                arn=args.target_arn,
                role_arn=args.role_arn,
                input="{}",
                dead_letter_config=aws.scheduler.ScheduleTargetDeadLetterConfigArgs(
                    arn=args.dead_letters_arn
                ),
                # A call that can't be delivered within a minute is dropped; the next one is due by then.
                retry_policy=aws.scheduler.ScheduleTargetRetryPolicyArgs(
                    maximum_retry_attempts=2, maximum_event_age_in_seconds=60
                ),
            ),
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.register_outputs({})


@dataclass(frozen=True, kw_only=True)
class RetrainsArgs:
    group_name: str
    schedules: tuple[RetrainSchedule, ...]
    target_arn: pulumi.Input[str]
    role_arn: pulumi.Input[str]
    dead_letters_arn: pulumi.Input[str]
    tags: dict[str, str]


class Retrains(pulumi.ComponentResource):
    """The schedules of retrains, in a group of their own: launchers may not touch them. No group if there is
    none.
    """

    def __init__(self, name: str, args: RetrainsArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("mayfly:schedule:Retrains", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        if args.schedules:
            group = aws.scheduler.ScheduleGroup(name, name=args.group_name, tags=args.tags, opts=child)
        for schedule in args.schedules:
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
                flexible_time_window=aws.scheduler.ScheduleFlexibleTimeWindowArgs(mode="OFF"),
                state="ENABLED",
                target=aws.scheduler.ScheduleTargetArgs(
                    arn=args.target_arn,
                    role_arn=args.role_arn,
                    input=json.dumps(target_input),
                    dead_letter_config=aws.scheduler.ScheduleTargetDeadLetterConfigArgs(
                        arn=args.dead_letters_arn
                    ),
                    retry_policy=aws.scheduler.ScheduleTargetRetryPolicyArgs(
                        maximum_retry_attempts=30, maximum_event_age_in_seconds=3600
                    ),
                ),
                opts=child,
            )
        self.register_outputs({})


def rate(minutes: int) -> str:
    """Write a rate expression. EventBridge takes `1 minute`, and refuses `1 minutes`."""
    return f"rate({minutes} minute{'' if minutes == 1 else 's'})"


def cron(schedule: RetrainSchedule) -> str:
    """Write a cron expression. EventBridge wants `?` for the day of month or weekday that is not given."""
    days = f"{schedule.day_of_month} * ?" if schedule.day_of_month else f"? * {','.join(schedule.weekdays)}"
    return f"cron({schedule.minute} {schedule.hour} {days} *)"
