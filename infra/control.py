"""The two functions that act: the sweeper ends instances past their deadline, control settles runs and starts
retrains.

Two functions with two roles, so that what breaks the one leaves the other. Their code:
trainer/control/functions/sweep.py and trainer/control/functions/control.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import pulumi
import pulumi_aws as aws

from infra import policies
from infra.functions import LoggedFunction
from infra.identity import ServiceRole
from infra.launcher import LaunchedFrom, LaunchLimits, compact, launch_policy_text
from infra.packing import function_files, reached_files
from infra.schedule import Caller, StandingSchedule
from infra.stack import Component, Stack

SWEEPER_FILES = (
    "trainer/__init__.py",
    "trainer/base/__init__.py",
    "trainer/base/strict_json.py",
    "trainer/control/__init__.py",
    "trainer/control/functions/__init__.py",
    "trainer/control/functions/sweep.py",
    "trainer/runs/__init__.py",
    "trainer/runs/keys.py",
    "trainer/runs/lease.py",
)
# botocore describes 400 services in 27 MB; these are the ones that are called (sts is where credentials may
# come from).
SWEEPER_SERVICES = ("cloudwatch", "ec2", "s3", "scheduler", "sts")
CONTROL_SERVICES = (*SWEEPER_SERVICES, "iam", "lambda", "pricing", "service-quotas", "sns", "ssm")
CONTROL = "trainer.control.functions.control"
# No code, nothing of a node's.
WRITES = ("runs/*", "resumed/*", "scheduled/*", "memory/*", "models/retrains/*", "models/production/*")
CREATES = ("raw/*", "raw-index/*")  # a prepare run's finds: added, never replaced
# Events of EC2, about every instance of the account: control drops those of others after one look.
ENDING = {
    "source": ["aws.ec2"],
    "detail-type": ["EC2 Instance State-change Notification"],
    "detail": {"state": ["terminated"]},  # a run closes on this proof
}
TAKEN_BACK = {"source": ["aws.ec2"], "detail-type": ["EC2 Spot Instance Interruption Warning"]}


class Sweeper(Component):
    """The sweeper's function and its log."""

    arn: pulumi.Output[str]

    def __init__(
        self,
        name: str,
        stack: Stack,
        *,
        role: ServiceRole,
        bucket: pulumi.Input[str],
        dead_letters_arn: pulumi.Input[str],
    ) -> None:
        super().__init__(name, stack)
        function = LoggedFunction(
            name,
            stack,
            self.child,
            description=(
                "Ends every instance of this stack that is past its deadline or silent past its lease."
            ),
            handler="trainer.control.functions.sweep.handler",
            files=sweeper_files(),
            role_arn=role.arn,
            dead_letters_arn=dead_letters_arn,
            timeout_seconds=90,
            memory_mib=512,  # CPU comes with memory: boto3 starts in a second instead of three
            variables={"BUCKET": bucket, "SCHEDULE_GROUP": stack.schedule_group},
        )
        self.arn = function.arn
        self.register_outputs({"arn": self.arn})


class ControlFunction(Component):
    """The control function with its role and log, called by a schedule of its own and by EC2's events.

    It reads the stack's parameter, as a desk does.
    """

    arn: pulumi.Output[str]

    def __init__(
        self,
        name: str,
        stack: Stack,
        *,
        minutes: int,
        launched_from: LaunchedFrom,
        limits: LaunchLimits,
        schedule_group: pulumi.Input[str],
        caller: Caller,
    ) -> None:
        super().__init__(name, stack)
        own = (
            policies.publish_messages(stack),
            policies.count_own_work(stack),
            policies.keep_dead_letters(stack),
            policies.write_own_log(stack, stack.log_group(name)),
        )
        role = ServiceRole(
            name,
            stack,
            self.child,
            description="Control: settle runs, start those of schedules.",
            trust=policies.trust("lambda.amazonaws.com"),
            policy=launch_policy_text(stack, launched_from, limits, *own, as_text=compact),
        )
        function = LoggedFunction(
            name,
            stack,
            self.child,
            description="Settles runs that nobody watches, and starts those that schedules ask for.",
            handler=f"{CONTROL}.handler",
            files=control_files(),
            role_arn=role.arn,
            dead_letters_arn=caller.dead_letters_arn,
            timeout_seconds=600,
            memory_mib=1024,
        )
        StandingSchedule(
            "standing-control",
            stack,
            self.child,
            group=schedule_group,
            description="Settles what nobody watches: a run whose desk is gone gets its receipt.",
            minutes=minutes,
            function_arn=function.arn,
            caller=caller,
        )
        InstanceEvents(name, stack, self.child, function=function)
        self.arn = function.arn
        self.register_outputs({"arn": self.arn})


class InstanceEvents(Component):
    """Two rules of the default bus, each with the function as its target, which lets them call it."""

    def __init__(
        self, name: str, stack: Stack, opts: pulumi.ResourceOptions, *, function: LoggedFunction
    ) -> None:
        super().__init__(name, stack, opts)
        for kind, pattern in (("ending", ENDING), ("taken-back", TAKEN_BACK)):
            rule = aws.cloudwatch.EventRule(
                f"{name}-{kind}",
                name=f"{stack.function(name)}-{kind}",
                description="Tells control of an instance; it drops those that are not of its stack.",
                event_pattern=json.dumps(pattern),
                opts=self.child,
            )
            aws.cloudwatch.EventTarget(f"{name}-{kind}", rule=rule.name, arn=function.arn, opts=self.child)
            aws.lambda_.Permission(
                f"{name}-{kind}",
                action="lambda:InvokeFunction",
                function=function.name,
                principal="events.amazonaws.com",
                source_arn=rule.arn,
                opts=self.child,
            )
        self.register_outputs({})


def control_limits(instance_types: tuple[str, ...], *, own_templates: bool) -> LaunchLimits:
    """Return control's limits as a launcher."""
    return LaunchLimits(
        roles=("instance", "prepare", "score", "script"),
        functions=("sweeper",),
        writes=WRITES,
        creates=CREATES,
        instance_types=instance_types,
        own_templates=own_templates,
        tags=("run_id", "deadline"),
    )


def sweeper_files() -> dict[str, Path]:
    """Return the content of the sweeper's zip: path in the zip -> file here."""
    return function_files(SWEEPER_FILES, SWEEPER_SERVICES)


def control_files() -> dict[str, Path]:
    """Return the content of control's zip: path in the zip -> file here."""
    return function_files(reached_files(CONTROL), CONTROL_SERVICES, time_zones=True)
