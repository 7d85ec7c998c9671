"""The two functions that act: the sweeper ends instances past their deadline, control settles runs and starts
retrains.

Two functions with two roles, so that what breaks the one leaves the other. Their code:
trainer/control/functions/sweep.py and trainer/control/functions/control.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pulumi

from infra import policies
from infra.events import InstanceEvents, InstanceEventsArgs
from infra.functions import LoggedFunction, LoggedFunctionArgs
from infra.identity import ServiceRole, ServiceRoleArgs
from infra.launcher import LauncherPolicyArgs, LaunchLimits, launch_policy_text
from infra.packing import archive, function_files, reached_files
from infra.schedule import StandingSchedule, StandingScheduleArgs

SWEEPER_FILES = (
    "trainer/__init__.py",
    "trainer/base/__init__.py",
    "trainer/control/__init__.py",
    "trainer/control/functions/__init__.py",
    "trainer/control/functions/sweep.py",
    "trainer/runs/__init__.py",
    "trainer/runs/keys.py",
    "trainer/runs/lease.py",
    "trainer/base/strict_json.py",
)
# botocore describes 400 services in 27 MB; these are the ones that are called (sts is where credentials may
# come from).
SWEEPER_SERVICES = ("cloudwatch", "ec2", "s3", "scheduler", "sts")
CONTROL_SERVICES = (
    "cloudwatch",
    "ec2",
    "iam",
    "lambda",
    "pricing",
    "s3",
    "scheduler",
    "service-quotas",
    "sns",
    "ssm",
    "sts",
)
CONTROL = "trainer.control.functions.control"
WRITES = (
    *("runs/*", "scheduled/*", "memory/*"),
    *("models/retrains/*", "models/production/*"),
)  # no code, nothing of a node's
CREATES = ("raw/*", "raw-index/*")  # a prepare run's finds: added, never replaced


@dataclass(frozen=True, kw_only=True)
class SweeperArgs:
    function_name: str
    log_group: str
    log_days: int
    role_arn: pulumi.Input[str]
    bucket: pulumi.Input[str]
    project: str
    stack: str
    schedule_group: str
    dead_letters_arn: pulumi.Input[str]
    tags: dict[str, str]


class Sweeper(pulumi.ComponentResource):
    """The sweeper's function and its log."""

    arn: pulumi.Output[str]

    def __init__(self, name: str, args: SweeperArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("mayfly:control:Sweeper", name, None, opts)
        function = LoggedFunction(
            name,
            LoggedFunctionArgs(
                function_name=args.function_name,
                description=(
                    "Ends every instance of this stack that is past its deadline or silent past its lease."
                ),
                handler="trainer.control.functions.sweep.handler",
                code=archive(sweeper_files()),
                role_arn=args.role_arn,
                log_group=args.log_group,
                log_days=args.log_days,
                timeout_seconds=90,
                dead_letters_arn=args.dead_letters_arn,
                memory_mib=512,  # CPU comes with memory: boto3 starts in a second instead of three
                variables={
                    "PROJECT": args.project,
                    "STACK": args.stack,
                    "BUCKET": args.bucket,
                    "SCHEDULE_GROUP": args.schedule_group,
                },
                tags=args.tags,
            ),
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.arn = function.arn
        self.register_outputs({"arn": self.arn})


@dataclass(frozen=True, kw_only=True)
class ControlFunctionArgs:
    function_name: str
    role_name: str
    log_group: str
    log_days: int
    every_minutes: int
    permissions: LauncherPolicyArgs  # what a launcher needs; control's policy narrows it
    instance_types: tuple[str, ...]
    scheduler_role_arn: pulumi.Input[str]
    topic: str  # its name
    dead_letters: str  # the queue's name
    dead_letters_arn: pulumi.Input[str]
    tags: dict[str, str]


class ControlFunction(pulumi.ComponentResource):
    """The control function with its role and log, called by a schedule of its own and by EC2's events.

    It reads the stack's parameter, as a desk does.
    """

    arn: pulumi.Output[str]

    def __init__(
        self, name: str, args: ControlFunctionArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("mayfly:control:Control", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        may = args.permissions
        own = (
            policies.publish_messages(account=may.account, region=may.region, topic=args.topic),
            policies.count_own_work(project=may.project, stack=may.stack),
            policies.keep_dead_letters(account=may.account, region=may.region, queue=args.dead_letters),
            policies.write_own_log(account=may.account, region=may.region, log_group=args.log_group),
        )
        limits = LaunchLimits(
            writes=WRITES, creates=CREATES, instance_types=args.instance_types, tags=("run_id", "deadline")
        )
        role = ServiceRole(
            name,
            ServiceRoleArgs(
                role_name=args.role_name,
                description="Control: settle runs, start those of schedules.",
                trust=policies.trust("lambda.amazonaws.com"),
                policy=launch_policy_text(may, limits, *own),
                tags=args.tags,
            ),
            opts=child,
        )
        function = LoggedFunction(
            name,
            LoggedFunctionArgs(
                function_name=args.function_name,
                description="Settles runs that nobody watches, and starts those that schedules ask for.",
                handler=f"{CONTROL}.handler",
                code=archive(control_files()),
                role_arn=role.arn,
                log_group=args.log_group,
                log_days=args.log_days,
                timeout_seconds=600,
                dead_letters_arn=args.dead_letters_arn,
                memory_mib=1024,
                variables={"PROJECT": may.project, "STACK": may.stack},
                tags=args.tags,
            ),
            opts=child,
        )
        StandingSchedule(
            "standing-control",
            StandingScheduleArgs(
                group_name=may.schedule_group,
                description="Settles what nobody watches: a run whose desk is gone gets its receipt.",
                minutes=args.every_minutes,
                target_arn=function.arn,
                role_arn=args.scheduler_role_arn,
                dead_letters_arn=args.dead_letters_arn,
            ),
            opts=child,
        )
        InstanceEvents(
            name, InstanceEventsArgs(prefix=args.function_name, function=function, tags=args.tags), opts=child
        )
        self.arn = function.arn
        self.register_outputs({"arn": self.arn})


def sweeper_files() -> dict[str, Path]:
    """Return the content of the sweeper's zip: path in the zip -> file here."""
    return function_files(SWEEPER_FILES, SWEEPER_SERVICES)


def control_files() -> dict[str, Path]:
    """Return the content of control's zip: path in the zip -> file here."""
    return function_files(reached_files(CONTROL), CONTROL_SERVICES, time_zones=True)
